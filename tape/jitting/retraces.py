"""Retraces: why a step was traced again, in words."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import jax

from tape.accounts.records import STREAK, Change, Compilation, Line
from tape.bounded import Bounded
from tape.callables.objects import Itself, steps_to
from tape.callables.reach import Reach, spelled
from tape.configuration import configuration
from tape.graph.lines import user_line
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle
from tape.jitting.arguments import Call, aval_of
from tape.jitting.tracing import TracedStep
from tape.programs.telling import warn_of
from tape.rules import table
from tape.statistics import STATS

_LIMIT = 128  # of these that a function of tape.jit keeps
_FIRST = "first call"
_STATE = "state "  # before what a step has looked at besides Variables and arrays


class _Known(Protocol):
    """A step that was traced, in words, and what was seen around it so far."""

    said: dict[str, str]
    around: list[dict[Hashable, Any]]


def note(reasons: list[str], said: Mapping[str, str], step: _Known, others: Sequence[_Known]) -> None:
    """Note why a step was traced of which this is ``said``: it is a new one, or one of the others with something else around."""
    del reasons[: -_LIMIT + 1]
    if not others:
        reasons.append(_FIRST)
        return
    apart = ([(k, o.said.get(k), said.get(k)) for k in {**said, **o.said} if o.said.get(k) != said.get(k)] for o in others)
    differences = [f"{k}: {old or 'absent'} -> {new or 'absent'}" for k, old, new in min(apart, key=len)]
    before = [*[around for o in others if o is not step for around in o.around], *step.around[:-1]]
    unknown = "the Variables that it captures are other ones, or are shared in another way"
    reasons.append("; ".join(differences) or _around(step.around[-1], before) or unknown)


def _around(seen: Mapping[Any, Any], before: Sequence[Mapping[Any, Any]]) -> str | None:
    """Say what of that which a step has looked at around it is another one; None where nobody can."""
    changes = min(
        ({k: (old.get(k), seen.get(k)) for k in {**seen, **old} if old.get(k) != seen.get(k)} for old in reversed(before)),
        key=len,
        default={},
    )
    words = (_change(key, *changes[key]) for key in sorted(changes, key=lambda key: isinstance(key, tuple)))  # classes before their methods
    return next((f"{_STATE}{text}" for text in words if text is not None), None)


def _change(key: Any, old: Any, new: Any) -> str | None:
    """Say what was seen under a key of :func:`tape.jitting.surroundings.surroundings`, before and now; None where that has no name."""
    if key == "hidden":
        change = "a method -> an attribute" if new - old else "an attribute -> a method"
        return f"{spelled(next(iter(new ^ old)))}: {change}"
    if key == "kinds":
        changed = [(p, old.get(p), new.get(p)) for p in {**old, **new} if old.get(p) is not new.get(p)]
        return next((f"class of {spelled(p)}: {_class(a)} -> {_class(b)}" for p, a, b in changed if isinstance(a or b, type)), None)
    if not isinstance(key, tuple):
        return None
    holder = key if _is_place(key) else key[0]
    if not _is_place(holder):  # an attribute in a slot or a class
        return f"{spelled((*holder, f'.{key[1]}'))}: {_value(old)} -> {_value(new)}" if isinstance(key[1], str) else None
    path, form, _ = holder
    if key is holder:
        return f"length of {spelled(path)}: {_value(old)} -> {_value(new)}"
    if key[1] == "kinds":
        kinds = [{} if told is None else dict(told[0]) for told in (old, new)]
        changed = next(k for k in {**kinds[0], **kinds[1]} if kinds[0].get(k) is not kinds[1].get(k))
        return f"class of {spelled((*path, *steps_to(form, changed)))}: {_class(kinds[0].get(changed))} -> {_class(kinds[1].get(changed))}"
    if key[-1] == "flag":
        return f"{spelled((*path, *steps_to(form, key[1])))}: {_value(old)} -> {_value(new)}"
    return f"{spelled(path)}: what it holds"


def _is_place(key: Any) -> bool:
    """Tell whether something is the key of a place that a step can write to."""
    return isinstance(key, tuple) and len(key) == 3 and isinstance(key[1], str) and isinstance(key[2], bool)


def _value(told: tuple[object, object] | None) -> str:
    """Say what was seen, which is in the second place."""
    if told is None:
        return "not looked at"
    looked_at, content = told
    if isinstance(content, Itself):
        return "an object"
    if isinstance(content, tuple) and len(content) > 1 and content[0] in _FUNCTIONS:
        code = content[1]
        return f"{code.co_name} in line {code.co_firstlineno}" if isinstance(code, types.CodeType) else "a function"
    return repr(looked_at if content is True and type(looked_at) is int else content)


_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)  # of which other code tells what they are made of


def _class(kind: Any) -> str:
    return "not looked at" if kind is None else kind.__name__


def described(x: object) -> str:
    """Say what one leaf of the arguments is."""
    aval = x._place.kind.aval if isinstance(x, Handle) else aval_of(x)
    text = f"shape {aval.shape}, dtype {aval.dtype}"
    if getattr(aval, "weak_type", False):
        text += ", weak"
    if isinstance(x, Handle):
        text = f"Variable of {text}{', requires grad' if x._place.kind.requires_grad else ''}"
    return text


def said_of(step: TracedStep, call: Call, reached: Reach) -> dict[str, str]:
    """Say what tells a step from others, by what it is."""
    return {**_said_of_call(call), **_said_of_state(step, reached, len(call.variables))}


def _said_of_call(call: Call) -> dict[str, str]:
    """Say what each argument is, and in which mode and configuration the call is made."""
    labels = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(call.tree, list(range(len(call.leaves)))))[0]
    dynamic = [i for i in range(call.length) if i not in {k for k, _ in call.statics}]
    said: dict[str, str] = {}
    for (path, _), x in zip(labels, call.leaves, strict=True):
        first = dynamic[path[1].idx] if path[0].idx == 0 else path[1].key
        said[f"argument {first!r}{jax.tree_util.keystr(path[2:])}"] = described(x)
    for k, v in call.statics:
        said[f"static argument {k!r}"] = repr(v)
    if call.order is not None:
        said["order of keys in arguments"] = f"{hash(call.order) % 2**16:04x}"
    said["the grad mode"] = ("no_grad", "recording", "in a sweep")[LOCAL.scope.mode]
    if LOCAL.scope.observer is not None:
        said["the op hooks"] = ", ".join(type(hook).__name__ for hook, _ in LOCAL.scope.observer.pairs)
    said["JAX's configuration"] = repr(configuration())
    said["the rules"] = f"revision {table.revision()}"
    return said


def _said_of_state(step: TracedStep, reached: Reach, given: int) -> dict[str, str]:
    """Say what each captured Variable is, and which of all have gradients."""
    said = {f"the mode of {spelled(e.path[:-1])}": f"{hash(e.content) % 2**16:04x}" for e in reached.modes}
    for i in step.relevant:
        v = step.sources[i]
        known = reached.variables.get(id(v))
        kept = step.kept.get(i)
        path = None if known is None else known[1]
        if kept is not None:
            path = *kept.holder.path, *steps_to(kept.holder.place.spelled, kept.key)
        name = v.name or (f"number {i}" if path is None else spelled(path))
        label = f"Variable {name!r}" if i < given else f"captured {'Variable' if kept is None else 'array'} {name!r}"
        if i >= given:
            said[label] = described(v if kept is None else v._cell[0])
        if i in step.leaves:
            said[f"{label}: leaf"] = str(step.leaves[i])
        hooks = sum(h is not None for h in step.hooks[i])
        if hooks:
            said[f"{label}: hooks"] = str(hooks)
        if i in step.looked:
            kind = step.grad_kinds[i]
            said[f"{label}: grad"] = "None" if kind is None else f"shape {kind.aval.shape}, dtype {kind.aval.dtype}"
    return said


# By code and line, the last one, and how often it was called.
_MADE: Bounded[Hashable, tuple[weakref.ref[Any], list[int]]] = Bounded("functions of tape.jit", 512)


def change_of(jitted: Any, line: Line | None) -> Change:
    """Say why it was traced, where it is called at this line."""
    text = jitted.reasons[-1] if jitted.reasons else _FIRST
    if text == _FIRST:
        code = getattr(jitted.__wrapped__, "__code__", None)
        known = None if code is None else _MADE.get((code, line))
        if code is not None:
            _MADE[code, line] = weakref.ref(jitted), jitted._called
        if known is None or known[0]() is not None or known[1][0] > STREAK:  # it may be called again, or was, and often
            return Change("new", text)
        return Change("function", f"the tape.jit of {jitted.name}, which is made anew")
    label, _, values = text.partition(": ")
    if label.startswith(_STATE):
        return Change("state", f"{label.removeprefix(_STATE)}, which {jitted.name} names,", values)
    kind = "static" if label.startswith("static") else "settings" if label.startswith(("JAX's", "the ")) else "arguments"
    return Change(kind, f"{label} of {jitted.name}", values)


def retraced(jitted: Any, call: int) -> None:
    """Note that a call traced a function whose program was known, for what it has looked at; warn should each of them do so."""
    line = user_line()
    site, change = STATS.sites.of("call", line), change_of(jitted, line)
    site.compiled(call, Compilation("trace", line, "call", (), change), 0)
    warn_of(site)
