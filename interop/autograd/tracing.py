"""Calls of the user's function: its arguments become Variables in 64 bits, its results and gradients go back as NumPy arrays and numbers.

What a call gives back is plain, unless it depends on what a call around it differentiates by: then it is a Variable, and so every operator
can be nested in every other one, also where functions close over outer values.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from interop.autograd import trees
from tape import jaxapi
from tape.configuration import sixty_four_bits
from tape.errors import TapeTypeError
from tape.graph import boundary, constants
from tape.graph.kinds import GivenPlace, kind_of
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, LeafNode, WayBack
from tape.modes import enable_grad
from tape.ops.kernel import Op
from tape.programs.program import look
from tape.recording import record
from tape.sweeps.differentiation import gradients
from tape.sweeps.plan import behind
from tape.sweeps.sweep import target_of
from tape.transforms.inputs import check_recorded

_ALIAS = Op("alias", lambda x: x)
_FLOATING = frozenset({np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.complex64), np.dtype(np.complex128)})
INDEPENDENT = "Output seems independent of input."  # that library's words, by which programs filter the warning


class _Running(threading.local):
    """The calls of the user's functions that are running in a thread, the outermost one first."""

    def __init__(self) -> None:
        self.calls: list[Call] = []


_RUNNING = _Running()


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Compute in 64 bits, and record; for this thread, and only as long as it lasts."""
    with sixty_four_bits(), enable_grad():
        yield


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a pytree, Variables among them, and its structure (None for what is one leaf)."""
    if isinstance(tree, (Handle, float, np.ndarray)):
        return [tree], None
    return trees.flatten(tree)


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """Put a tree together again."""
    return leaves[0] if structure is None else trees.unflatten(structure, leaves)


def plain(x: Any) -> Any:
    """Return a Variable's value as an array of NumPy of its own, or as a number of NumPy, where it has no axes; anything else as it is."""
    if not isinstance(x, Handle):
        return x
    value = look(x)
    if isinstance(value, jaxapi.Tracer):
        return value
    array = np.asarray(value, x._place.kind.aval.dtype)
    return array[()] if array.shape == () else np.array(array)


class Call:
    """One call of a function of one pytree.

    Attributes:
        nested: the results depend on what is differentiated outside, so that they are Variables.
        connected: there is a result that has a derivative.

    """

    name = "autograd"

    def __init__(self, fun: Callable[[Any], Any], x: Any) -> None:
        leaves, self.tree = flatten(x)
        self._dtypes: list[Any] = []
        self._outer = False
        self.inputs: list[Any] = [self._input(leaf) for leaf in leaves]
        running = _RUNNING.calls
        running.append(self)
        try:
            result = fun(unflatten(self.tree, self.inputs))
        finally:
            running.pop()
        outputs, self.output_tree = flatten(result)
        self.outputs: list[Any] = [x if isinstance(x, Handle) else _constant(x) for x in outputs]
        for v in self.outputs:
            check_recorded(self.name, v)
        self.connected = any(v._place.kind.requires_grad for v in self.outputs)
        self.nested = self._outer or (self.connected and self._depends_on_others())

    def _input(self, value: Any) -> Any:
        """Return a leaf of the argument as a Variable that is differentiated by."""
        if isinstance(value, Handle):
            kind = value._place.kind
            self._dtypes.append(None)
            if kind.requires_grad or kind.unrecorded:
                self._outer = True
                return record.record(_ALIAS, (value,))
            if np.dtype(kind.aval.dtype) not in _FLOATING:
                raise _not_differentiable(plain(value))
            leaf = _leaf(kind.aval, value._cell[0] if value._segment is None else look(value))
            if LOCAL.scope.notes is not None:
                LOCAL.scope.notes.detached(value, leaf)
            return leaf
        if isinstance(value, jax.Array):
            self._dtypes.append(None)
            if not jax.numpy.issubdtype(value.dtype, jax.numpy.inexact):
                raise _not_differentiable(value)
            return _leaf(jax.typeof(value), value)
        if isinstance(value, (bool, int, np.integer, np.bool_)) or not isinstance(value, (float, complex, np.ndarray, np.inexact)):
            raise _not_differentiable(value)
        array = np.asarray(value)
        self._dtypes.append(array.dtype if array.dtype.kind in "fc" and array.dtype not in _FLOATING else None)
        if array.dtype not in _FLOATING:
            if array.dtype.kind not in "biufc":
                raise _not_differentiable(value)
            array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
        operand = constants.known_operand(array)
        return _leaf(operand._place.kind.aval, operand._cell[0])

    def _depends_on_others(self) -> bool:
        """Tell whether a result depends on what is differentiated by outside: of a call around this one, or a Variable of the user's."""
        ours = {target_of(v) for v in self.inputs}
        roots = [target_of(v) for v in self.outputs if v._place.kind.requires_grad]
        around = {target_of(v) for call in _RUNNING.calls for v in call.inputs}
        if not around and all(_harmless(target, ours) for target in roots):
            return False
        way = WayBack(roots)
        for segment, slots in way:
            stop = frozenset([t[1] for t in ours if not isinstance(t, LeafNode) and t[0] is segment])
            if any((segment, slot) in around for slot in slots - stop):
                return True
            way.follow(segment, behind(segment.state, slots - stop, stop).ends)
        return any(leaf in around or not _inactive(leaf) for leaf in way.leaves if leaf not in ours)

    def warn(self) -> None:
        """Say that the derivative is zero, as that library does."""
        warnings.warn(INDEPENDENT, stacklevel=3)

    def answer(self) -> Any:
        """Return what the function returned."""
        return unflatten(self.output_tree, self.outputs if self.nested else [plain(v) for v in self.outputs])

    def pull(self, seeds: Sequence[Any], *, retain: bool = False) -> Any:
        """Return the gradient for one cotangent per result, in the tree of the argument."""
        return unflatten(self.tree, self.given(self.sweep(seeds, retain=retain), seeds))

    def sweep(self, seeds: Sequence[Any], *, retain: bool = False) -> list[Any]:
        """Return the gradients by all inputs, as Variables."""
        roots = [(v, s) for v, s in zip(self.outputs, seeds, strict=True) if v._place.kind.requires_grad]
        if not roots or not self.inputs:
            return [record.constant(np.zeros(v.shape, v.dtype)) for v in self.inputs]
        create = self.differentiated(seeds)
        swept = gradients(
            [r for r, _ in roots],
            self.inputs,
            [s for _, s in roots],
            unconnected="zero" if create else "none",
            retain_graph=retain or create,
            create_graph=create,
        )
        return [constants.known_operand(np.zeros(v.shape, v.dtype)) if g is None else g for g, v in zip(swept, self.inputs, strict=True)]

    def differentiated(self, given: Sequence[Any]) -> bool:
        """Tell whether what is computed of the call and these values is differentiated again."""
        return self.nested or any(isinstance(x, Handle) and x._place.kind.requires_grad for x in given)

    def given(self, results: Sequence[Any], by: Sequence[Any] = ()) -> list[Any]:
        """Return gradients by the inputs as the caller wants them."""
        if self.differentiated(by):
            return list(results)
        pairs = zip(map(plain, results), self._dtypes, strict=True)
        return [g if dtype is None else np.asarray(g).astype(dtype)[()] for g, dtype in pairs]


def _leaf(aval: Any, value: Any) -> Any:
    variable = constants.handle(None, GivenPlace(-1, kind_of(aval, requires_grad=True)), [value])
    boundary.made(variable)
    return variable


def _constant(x: Any) -> Any:
    if isinstance(x, (jax.Array, float, complex, np.floating, np.complexfloating)):
        return record.constant(x)
    if isinstance(x, np.ndarray) and x.dtype.kind in "biufc":
        return record.constant(
            x if x.dtype.kind not in "fc" or x.dtype in _FLOATING else x.astype(np.float64 if x.dtype.kind == "f" else complex)
        )
    msg = f"a function that is differentiated returns floating numbers, arrays or containers of them, not {x!r} ({type(x).__name__})"
    raise TapeTypeError(msg)


def _not_differentiable(value: Any) -> TapeTypeError:
    return TapeTypeError(f"there is no derivative by {type(value).__name__}: pass a float or an array of floats, or leave it out of argnum")


def _inactive(node: LeafNode) -> bool:
    """Tell whether a leaf is gone, or one that was made for a call that is over."""
    variable = node.ref()
    return variable is None or variable._place.given


def _harmless(target: Any, ours: set[Any]) -> bool:
    """Tell quickly whether a result depends on nothing but this call's inputs; False where that takes a walk."""
    if isinstance(target, LeafNode):
        return target in ours or _inactive(target)
    return all(end in ours or (isinstance(end, LeafNode) and _inactive(end)) for end in target[0].origins.values())
