"""Checkpoints: functions of which a sweep keeps the inputs, and computes what is inside again when it gets there.

A checkpointed call is one entry of the tape, traced as control flow is (:mod:`tape.callables`).  What its policy lets be kept are hidden
outputs of the entry (:mod:`tape.ops.residuals`); the rest belongs to the entry's VJP.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from tape import jaxapi
from tape.callables.higher_order import ARRAYS, NUMBERS, invoke
from tape.errors import TapeTypeError, TapeValueError, check_callable, check_flag
from tape.graph.segment import Handle
from tape.graph.trees import flatten, variables_in
from tape.ops.kernel import Op, intern_op
from tape.recording import record

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="Callable[..., Any]")

checkpoint_policies = jax.checkpoint_policies


def _of_a_function(checkpoint: F) -> F:
    """Have a function say what to write where it is called as PyTorch's is, with the arguments of the function that it is given."""
    options = inspect.signature(checkpoint).parameters

    @functools.wraps(checkpoint)
    def checked(fun: Callable[..., Any], *misplaced: object, **named: object) -> object:
        unknown = [name for name in named if name not in options]
        if misplaced or unknown:
            names = ", ".join([*[f"a {type(x).__name__}" for x in misplaced], *[f"{name}=" for name in unknown]])
            msg = (
                f"checkpoint: got {names} beside the function; it takes a function and options of its own (policy, prevent_cse, "
                "static_argnums, static_argnames) and returns a function, which takes the arguments: tape.checkpoint(f)(x)"
            )
            raise TapeTypeError(msg)
        return checkpoint(fun, **named)

    return checked  # type: ignore[return-value]


@_of_a_function
def checkpoint(
    fun: Callable[P, R],
    *,
    policy: Callable[..., Any] | None = None,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
) -> Callable[P, R]:
    """Return ``fun`` as one entry of the tape whose inner values are computed again in a sweep, instead of being kept.

    Args:
        fun: a function over pytrees of Variables.  It is traced at every call, so it may not look at values; Variables that it captures
            get their gradients.  It runs no hooks on Variables inside it, for the sweep goes through it as one entry.
        policy: what may be kept of the values inside, as for ``jax.checkpoint``: one of ``tape.checkpoint_policies`` or a function
            ``policy(primitive, *avals, **params)``; None keeps nothing.  Values that a policy would move to the host are kept where they
            are.  A loop inside ``fun`` runs again as a whole.
        prevent_cse: keep XLA from merging the two computations.  In the body of ``tape.lax.scan`` False is safe, and quicker.
        static_argnums: positions of arguments that ``fun`` is to see as they are, not as Variables.
        static_argnames: names of such arguments, by position or by keyword.

    Returns:
        A function of the same arguments; numbers and arrays among them become Variables, as everywhere in ``tape.lax``.  Others that are
        no pytrees (the ``self`` of a method, a string, a function) it sees as they are.

    Raises:
        TapeTypeError: it is given arguments of ``fun``, which belong to what it returns; ``fun`` or ``policy`` cannot be called;
            ``prevent_cse`` is not a bool; or a static argument is a Variable.
        TapeValueError: ``static_argnums`` names an argument that the call does not have, or ``static_argnames`` one that ``fun`` has not.
        ConcretizationError: ``fun`` looked at the value of a Variable.
        TapeRuntimeError: ``fun`` registered a hook that no sweep inside it calls.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> w = tape.Variable([[0.5, 0.0], [0.0, 0.5]])
        >>> block = tape.checkpoint(lambda x: tnp.tanh(w @ x), policy=tape.checkpoint_policies.dots_saveable)
        >>> block(block(tnp.ones(2))).sum().backward()
        >>> w.grad.shape
        (2, 2)

    """
    check_callable("checkpoint", fun)
    if policy is not None:
        check_callable("checkpoint", policy, "policy must be a function such as tape.checkpoint_policies.dots_saveable")
    check_flag("checkpoint", "prevent_cse", prevent_cse)
    given: Any = static_argnums
    numbers = tuple(given) if hasattr(given, "__iter__") else (given,)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            msg = f"checkpoint: static_argnums must be an int or a sequence of ints, got {type(number).__name__}"
            raise TapeTypeError(msg)
    names = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames)
    parameters = _parameters(fun) if names else []
    if not names.issubset(parameters) and "**" not in parameters:
        unknown = sorted(names.difference(parameters))
        msg = f"checkpoint: static_argnames names {unknown}, which the function does not take; name some of {parameters}"
        raise TapeValueError(msg)
    name = f"checkpoint({getattr(fun, '__name__', type(fun).__name__)})"

    def apply(body: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return jax.checkpoint(body, policy=policy, prevent_cse=prevent_cse)(*args, **kwargs)

    @functools.wraps(fun)
    def checkpointed(*args: object, **kwargs: object) -> object:
        static = names.union(i for i, p in enumerate(itertools.takewhile("*".__ne__, parameters[: len(args)])) if p in names)
        body, rest, named = _bound(fun, args, kwargs, numbers, static)
        return invoke(apply, name, (body, rest, named), {})

    return checkpointed  # type: ignore[return-value]


def _parameters(fun: Callable[..., Any]) -> list[str]:
    """Return the parameters of a function, by name; ``*`` and ``**`` are those that take any, the latter also where nobody can tell."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except ValueError:
        return ["**"]
    return ["*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else p.name for p in parameters]


def _bound(
    fun: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object], numbers: Sequence[int], chosen: set[int | str]
) -> tuple[Callable[..., object], tuple[object, ...], dict[str, object]]:
    """Bind the static arguments and those that are no arrays; return the function of the others, and those."""
    for number in numbers:
        if not -len(args) <= number < len(args):
            msg = f"checkpoint: static_argnums names argument {number}, but the function was called with {len(args)} positional arguments"
            raise TapeValueError(msg)
    given: dict[int | str, object] = dict([*enumerate(args), *kwargs.items()])
    chosen = chosen.union(number % len(args) for number in numbers)
    for key in chosen.intersection(given):
        if variables_in(given[key]):
            msg = (
                f"checkpoint: argument {key!r} is static and holds a Variable, which would get no gradient; take it off static_argnums, or "
                "static_argnames"
            )
            raise TapeTypeError(msg)
    static = {key: a for key, a in given.items() if key in chosen or _is_no_array(a)}
    if not static:
        return fun, args, kwargs
    count, named = len(args), {key: a for key, a in static.items() if isinstance(key, str)}

    def body(*rest: object, **kwargs: object) -> object:
        others = iter(rest)
        return fun(*[static[i] if i in static else next(others) for i in range(count)], **kwargs, **named)

    return body, tuple(a for i, a in enumerate(args) if i not in static), {key: a for key, a in kwargs.items() if key not in static}


def _is_no_array(value: object) -> bool:
    """Tell whether an argument is neither an array nor a number nor a pytree: the ``self`` of a method, a string, a function."""
    return not isinstance(value, (Handle, *ARRAYS, np.generic, *NUMBERS)) and jax.tree_util.all_leaves([value])


def checkpoint_name(value: object, name: str) -> Any:
    """Name a value for the policies of :func:`checkpoint` that go by names; it is the same value otherwise.

    Args:
        value: a Variable, or a pytree of Variables and arrays.
        name: what ``tape.checkpoint_policies.save_only_these_names`` (for instance) calls it.

    Returns:
        The tree with Variables in place of arrays.

    Raises:
        TapeTypeError: ``name`` is not a string.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> x = tape.Variable(0.5)
        >>> only = tape.checkpoint_policies.save_only_these_names("inner")
        >>> tape.checkpoint(lambda x: tnp.sin(tape.checkpoint_name(tnp.exp(x), "inner")), policy=only)(x).backward()

    """
    if not isinstance(name, str):
        msg = f"checkpoint_name: the name must be a string, got {type(name).__name__}"
        raise TapeTypeError(msg)
    op = intern_op(("checkpoint_name", name), lambda: Op("checkpoint_name", lambda x: jaxapi.checkpoint_name(x, name), {"name": name}))
    leaves, tree = flatten(value)
    return jax.tree.unflatten(tree, [record.record(op, (x if isinstance(x, Handle) else record.constant(x),)) for x in leaves])
