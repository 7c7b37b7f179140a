"""Reasons: why a compiled step was traced again, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from tape.callables.reach import spelled
from tape.configuration import configuration
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle
from tape.jitting.arguments import aval_of
from tape.rules import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.callables.reach import Reach
    from tape.jitting.arguments import Call
    from tape.jitting.tracing import Step

__all__ = ["describe_leaf", "reason", "said_of_call", "said_of_state"]


def reason(said: dict[str, str], others: Sequence[dict[str, str]]) -> str:
    """Say what tells a step apart from the most similar one known before."""
    if not others:
        return "first call"
    differences = min(([_difference(k, o, said) for k in {**said, **o} if o.get(k) != said.get(k)] for o in others), key=len)
    return "; ".join(differences) or "the Variables that it captures are other ones, or are shared in another way"


def describe_leaf(x: Any) -> str:
    """Say what one leaf of the arguments is."""
    aval = x._place.kind.aval if isinstance(x, Handle) else aval_of(x)
    text = f"shape {aval.shape}, dtype {aval.dtype}"
    if getattr(aval, "weak_type", False):
        text += ", weak"
    if isinstance(x, Handle):
        text = f"Variable of {text}{', requires grad' if x._place.kind.requires_grad else ''}"
    return text


def said_of_call(call: Call) -> dict[str, str]:
    """Say what each argument is, and in which mode and configuration the call is made."""
    labels = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(call.tree, list(range(len(call.leaves)))))[0]
    dynamic = [i for i in range(call.length) if i not in {k for k, _ in call.statics}]
    said: dict[str, str] = {}
    for (path, _), x in zip(labels, call.leaves, strict=True):
        first = dynamic[path[1].idx] if path[0].idx == 0 else path[1].key
        said[f"argument {first!r}{jax.tree_util.keystr(path[2:])}"] = describe_leaf(x)
    for k, v in call.statics:
        said[f"static argument {k!r}"] = repr(v)
    said["the grad mode"] = ("no_grad", "recording", "in a sweep")[LOCAL.scope.mode]
    if LOCAL.scope.observer is not None:
        said["the op hooks"] = ", ".join(type(hook).__name__ for hook, _ in LOCAL.scope.observer.pairs)
    said["JAX's configuration"] = repr(configuration())
    said["the rules"] = f"revision {table.revision()}"
    return said


def said_of_state(step: Step, found: Reach, given: int) -> dict[str, str]:
    """Say what each captured Variable is, and which of all have gradients."""
    said = {}
    for i in step.relevant:
        v = step.sources[i]
        known = found.variables.get(id(v))
        name = v.name or (spelled(known[1]) if known is not None else f"number {i}")
        label = f"Variable {name!r}" if i < given else f"captured Variable {name!r}"
        if i >= given:
            said[label] = describe_leaf(v)
        hooks = sum(h is not None for h in step.hooks[i])
        if hooks:
            said[f"{label}: hooks"] = str(hooks)
        if i in step.looked:
            kind = step.grad_kinds[i]
            said[f"{label}: grad"] = "None" if kind is None else f"shape {kind.aval.shape}, dtype {kind.aval.dtype}"
    return said


def _difference(label: str, old: dict[str, str], new: dict[str, str]) -> str:
    return f"{label}: {old.get(label, 'absent')} -> {new.get(label, 'absent')}"
