"""What every transform does to its arguments and results: make the differentiable inputs, see what else they depend on, unwrap."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tape import jaxapi
from tape.errors import LostGradientError, TapeTypeError, TapeValueError, UnrecordedGradientError
from tape.graph import boundary
from tape.graph.constants import known_array, refused
from tape.graph.kinds import Place, differentiable, kind_of, why_unrecorded
from tape.graph.scope import LOCAL, in_mode
from tape.graph.segment import Handle, LeafNode, WayBack, made_at
from tape.graph.trees import flatten, mapped, variables_in
from tape.graph.trie import CONSTANT, SWEEP
from tape.mirrored.detachment import detach
from tape.modes import enable_grad
from tape.ops.kernel import Op
from tape.programs.handing import array_of
from tape.programs.program import look
from tape.recording import record
from tape.sweeps.plan import behind
from tape.sweeps.sweep import target_of
from tape.variables import conversion
from tape.variables.variable import Variable

_ALIAS = Op("alias", lambda x: x)


def positions(name: str, argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Return the argument positions of ``argnums``, counted from the front."""
    listed = _listed(argnums)
    for i in listed:
        if not -count <= i < count:
            msg = f"{name}: argnums names argument {i}, but the function was called with {count} positional arguments"
            raise TapeValueError(msg)
    return tuple(int(i) % count for i in listed)


def _listed(argnums: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(argnums) if hasattr(argnums, "__iter__") else (argnums,)


class Call:
    """One call of a user's function, with the leaves of its chosen arguments made differentiable ``inputs``.

    It is ``plain``, so that results go back as arrays, where no argument was a Variable, and the output depends on no other Variable.
    """

    def __init__(
        self,
        name: str,
        fun: Callable[..., Any],
        args: Sequence[object],
        kwargs: dict[str, object],
        chosen: Sequence[int],
        *,
        has_aux: bool,
        allow_int: bool = False,
    ) -> None:
        self.name = name
        self._allow_int = allow_int
        self._variables = bool(variables_in((args, kwargs)))
        self._outer = False
        self._unrecorded = False
        leaves, self.tree = flatten(tuple(args[i] for i in chosen))
        with enable_grad():
            self.inputs: list[Variable] = [self._input(x) for x in leaves]
            given = dict(zip(chosen, jax.tree.unflatten(self.tree, self.inputs), strict=True))
            filled = [given[i] if i in given else mapped(_constant, a) for i, a in enumerate(args)]
            outer, LOCAL.gave = LOCAL.gave, False
            try:
                result = fun(*filled, **{k: mapped(_constant, v) for k, v in kwargs.items()})
            finally:
                gave = LOCAL.gave
                LOCAL.gave = outer or gave
        self.has_aux, self.aux = has_aux, None
        if has_aux:
            if not (isinstance(result, (tuple, list)) and len(result) == 2):
                msg = f"{name}: with has_aux=True the function must return (output, aux), got {type(result).__name__}"
                raise TapeTypeError(msg)
            result, self.aux = result
        outputs, self.output_tree = flatten(result)
        for output in outputs:
            _check_kept(name, fun, output, looked=gave)
        self.outputs: list[Variable] = [variable(name, x) for x in outputs]
        for v in self.outputs:
            check_recorded(name, v)
        self.nested = self._outer or self._depends_on_others()
        self.plain = not self._variables and not self.nested

    def _input(self, value: object) -> Any:
        if isinstance(value, Handle):
            if value._place.kind.requires_grad:
                self._outer = True
                return record.record(_ALIAS, (value,))
            if self._allow_int and not differentiable(value._place.kind.aval):
                return value
            self._unrecorded = self._unrecorded or bool(value._place.kind.unrecorded)
        array = as_array(self.name, look(value) if isinstance(value, Handle) else value)
        if not differentiable(array):
            if self._allow_int:
                return record.leaf(array)
            msg = (
                f"{self.name}: an argument to differentiate has shape {array.shape}, dtype {array.dtype}; gradients need a floating or "
                "complex dtype: convert it, or leave it out of argnums"
            )
            raise TapeTypeError(msg)
        leaf = record.leaf(array, requires_grad=True)
        if LOCAL.scope.notes is not None and isinstance(value, Handle):
            LOCAL.scope.notes.detached(value, leaf)
        return leaf

    def _depends_on_others(self) -> bool:
        """Tell whether an output depends on a Variable that requires grad and is not one of the inputs."""
        ours = {target_of(v) for v in self.inputs}
        way = WayBack([target_of(v) for v in self.outputs if v._place.kind.requires_grad])
        for segment, slots in way:
            if any(leaf not in ours and leaf.ref() is not None for leaf in way.leaves):  # the input of a call inside this one may be gone
                return True
            stop = frozenset([t[1] for t in ours if not isinstance(t, LeafNode) and t[0] is segment])
            way.follow(segment, behind(segment.state, slots - stop, stop).ends)
        return any(leaf not in ours and leaf.ref() is not None for leaf in way.leaves)

    def result(self, tree: object) -> object:
        """Return a tree of Variables as the caller wants it: arrays for a plain call, Variables otherwise."""
        if self.plain:
            return mapped(_plain, tree)
        if LOCAL.scope.mode == CONSTANT:
            return mapped(_cut, tree)
        if not self.nested:
            end = _unrecorded if self._unrecorded else _severed
            return mapped(lambda x: end(x) if isinstance(x, Handle) and x._place.kind.requires_grad else x, tree)
        return tree

    def gradient(self, tree: object) -> object:
        """Return a tree of gradients as the caller wants it: they depend on nothing outside that the inputs do not depend on."""
        if not (self.plain or self.nested or self._unrecorded or LOCAL.scope.mode == CONSTANT):
            return mapped(lambda x: _severed(x) if isinstance(x, Handle) and x._place.kind.unrecorded else x, tree)
        return self.result(tree)

    def product(self, tree: object, directions: Sequence[object]) -> object:
        """Return derivatives along directions (tangents, cotangents) as the caller wants them: they depend on those too."""
        kinds = [d._place.kind for d in directions if isinstance(d, Handle)]
        if not any(kind.requires_grad or kind.unrecorded for kind in kinds):
            return self.gradient(tree)
        return mapped(_cut, tree) if LOCAL.scope.mode == CONSTANT else tree

    def settle(self) -> None:
        """Give up the differentiable outputs of a plain call, once swept: what only another sweep from them would read is not kept."""
        if self.plain:
            self.outputs = [_unrecorded(v) if v._place.kind.requires_grad else v for v in self.outputs]

    def output(self) -> object:
        """Return the function's output as the caller wants it."""
        return self.result(jax.tree.unflatten(self.output_tree, self.outputs))

    def with_aux(self, result: object) -> object:
        """Return a result, with what else the function returned where the caller wants that."""
        return (result, self.result(self.aux)) if self.has_aux else result

    def chosen(self, leaves: Sequence[object], argnums: int | Sequence[int]) -> object:
        """Return one value per input in the tree of the chosen arguments: of the only one, if ``argnums`` is one number."""
        tree = jax.tree.unflatten(self.tree, leaves)
        return tree if hasattr(argnums, "__iter__") else tree[0]


def variable(name: str, value: object) -> Any:
    """Return what the function ``name`` was given, or returned, as a Variable."""
    return value if isinstance(value, Handle) else record.constant(as_array(name, value))


def _severed(variable: Handle) -> Any:
    """Return the same value as a constant of the tape; a running JAX transformation differentiates it on."""
    if boundary.is_traced(variable):
        return record.handle(None, Place(-1, kind_of(variable._place.kind.aval)), [look(variable)])
    return detach(variable)


def _cut(value: object) -> object:
    """Return what a call under ``no_grad`` returns."""
    if not isinstance(value, Handle):
        return value
    kind = value._place.kind
    return detach(value) if kind.requires_grad or kind.unrecorded or boundary.is_traced(value) else value


def _unrecorded(variable: Handle) -> Any:
    """Return the same value, through which no sweep goes, and which remembers it."""
    return in_mode(SWEEP, record.record, _ALIAS, (variable,))


def _check_kept(name: str, fun: Callable[..., Any], output: object, *, looked: bool) -> None:
    """Refuse what a function of the tape computed, and took off the tape: ``loss.value`` and ``x.numpy().sum()`` lead back to no input.

    Neither can be told from a constant.  So they are refused where the function ``looked`` at a value that has a gradient, but for a number
    that stands in its own code, as in ``return x if float(x) > 0 else 0.0``; the one output of :func:`tape.grad` is no array in any case.
    """
    if isinstance(output, (jax.Array, np.ndarray, np.generic)) and (looked or name == "grad") and differentiable(output):
        what, looks = f"an array ({type(output).__name__}, shape {output.shape}, dtype {output.dtype})", ".value and .numpy()"
    elif isinstance(output, (float, complex)) and looked and not _stands_in(fun, output):
        what, looks = f"a number of Python's ({output!r})", "float(), .item() and .tolist()"
    else:
        return
    looking = ", having looked at the value of one that requires grad," if looked else ","
    msg = (
        f"{name}: the function returned {what} and no Variable{looking} so its gradient would be lost; "
        f"compute with the Variables, without {looks}, or return tape.constant(y) for a constant"
    )
    raise LostGradientError(msg)


def _stands_in(fun: Callable[..., Any], number: object) -> bool:
    """Tell whether a number stands in a function's code; one that was computed is another object."""
    return any(number is known for known in getattr(getattr(fun, "__code__", None), "co_consts", ()))


def check_recorded(name: str, variable: Handle) -> None:
    """Refuse to take a value for a constant that was computed from differentiable ones without recording."""
    kind = variable._place.kind
    if kind.unrecorded:
        msg = (
            f"{name}: what the function computes (shape {kind.aval.shape}, dtype {kind.aval.dtype}) has no derivative on the tape: "
            f"{why_unrecorded(kind.unrecorded, made_at(variable._place, variable._segment))}"
        )
        raise UnrecordedGradientError(msg)


def _constant(value: object) -> object:
    if value.__class__ is np.ndarray and value.dtype.kind in "biufc" and not jaxapi.in_trace():
        value = array_of(value)  # by a program, in a fifth of the time
    return record.constant(value) if isinstance(value, (jax.Array, np.ndarray)) else value


def _plain(value: object) -> object:
    return conversion.as_array(look(value)) if isinstance(value, Handle) else value


def as_array(name: str, value: object) -> jax.Array:
    """Return an argument, or a result, of a function that is to be differentiated as an array."""
    if isinstance(value, jax.Array):
        return value
    try:
        return known_array(value, copy=True)
    except OverflowError as e:
        raise refused(name, value, e) from e
    except (TypeError, ValueError) as e:
        kind = type(value).__name__
        repair = "pass it by an argument that is not differentiated"
        if dataclasses.is_dataclass(value):
            repair = f"have JAX look into it: jax.tree_util.register_dataclass({kind})"
        msg = f"{name}: {kind} is not an array or a number; {repair}"
        raise TapeTypeError(msg) from e


def check_transformed(name: str, fun: object, argnums: int | Sequence[int]) -> None:
    """Check what a transform that returns a function is given: a function, and positions of its arguments, not these themselves."""
    check_callable(name, fun)
    whole = isinstance(argnums, (Handle, jax.Array))  # whose elements are no integers of Python or NumPy
    for i in (argnums,) if whole else _listed(argnums):
        if not isinstance(i, (int, np.integer)) or isinstance(i, bool):
            msg = f"{name}: argnums must be an int or a sequence of ints, got {type(i).__name__}"
            if isinstance(i, (float, np.floating, Handle, jax.Array)):
                msg += f"; {name} returns a function of the arguments: write tape.{name}(f)(x)"
            raise TapeTypeError(msg)


def check_callable(name: str, fun: object) -> None:
    """Check that what a transform is given is a function."""
    if not callable(fun):
        msg = f"{name}: expected a function, got {type(fun).__name__}"
        if isinstance(fun, Handle):
            msg += "; use tape.gradients(output, inputs) for the gradient of a value"
        raise TapeTypeError(msg)
