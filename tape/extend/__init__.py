"""For authors of optimizers and of bridges to other libraries: what they need of the tape beyond what its users do.

What is here stays as it is from one release to the next; everything else below :mod:`tape` whose name is not public may change.
An optimizer reads ``.grad`` and values (:func:`array`), computes new ones under :func:`updating` (with :func:`interop.lift` of its
library's update, so that backward pass and update are one program), and hands them over (:class:`Assignment`).  Where the same was done
before, :class:`Update` does all of that by one look-up.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tape.errors import TapeValueError
from tape.extend.update import Update, hand_over
from tape.graph.scope import LOCAL, within
from tape.graph.segment import Handle, extra_of, itself
from tape.graph.trie import CONSTANT
from tape.jaxapi import Tracer
from tape.programs.program import look, run_pending
from tape.sweeps.seeds import describe
from tape.variables.conversion import as_array
from tape.variables.cuts import hold
from tape.variables.updates import store
from tape.variables.variable import Variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import jax

__all__ = ["Assignment", "Update", "array", "awaiting", "describe", "identity", "is_variable", "replace", "updating"]


def is_variable(x: object) -> bool:
    """Tell whether something is a Variable: what ``jax.tree`` functions need as ``is_leaf``.

    Example:
        >>> import jax, tape.extend
        >>> tree = {"w": tape.Variable(1.0), "n": 3}
        >>> [tape.extend.is_variable(leaf) for leaf in jax.tree.leaves(tree, is_leaf=tape.extend.is_variable)]
        [False, True]

    """
    return isinstance(x, Handle)


def identity(variable: Variable) -> Variable:
    """Return the Variable for which one that a function of ``jax.tree`` handed out stands; any other Variable is returned as it is.

    Example:
        >>> import tape.extend
        >>> w = tape.Variable(1.0)
        >>> tape.extend.identity(w) is w
        True

    """
    return itself(variable)  # type: ignore[return-value]


def array(variable: Variable) -> jax.Array:
    """Return a Variable's value as an array; where it is pending, the tape up to it runs.

    Raises:
        ConcretizationError: it has no value, as in ``jax.eval_shape``.
        ExecutionError: it could not be computed.

    Example:
        >>> import tape.extend
        >>> tape.extend.array(tape.Variable(2.0) * 3)
        Array(6., dtype=float32, weak_type=True)

    """
    return as_array(look(variable))


def awaiting(variables: Sequence[Variable], owner: object) -> None:
    """Have backward passes that end at such leaves, and at no others, stay pending until somebody looks, or updates some of them.

    Args:
        variables: leaves that require grad.
        owner: who updates them together; passes that end at leaves of several owners wait for the first.  None: do not wait.

    Example:
        >>> import tape.extend
        >>> w = tape.Variable(2.0)
        >>> tape.extend.awaiting([w], owner=object())
        >>> (w * w).backward()  # pending
        >>> float(w.grad)
        4.0

    """
    for variable in variables:
        extra_of(itself(variable)).updater = owner


@contextlib.contextmanager
def updating() -> Iterator[None]:
    """Compute an update: what is recorded within is constant, and has run at the end, as one program with the pending backward pass.

    Raises:
        ExecutionError: something could not be computed.

    Example:
        >>> import tape.extend
        >>> w = tape.Variable(2.0)
        >>> (w * w).backward()
        >>> with tape.extend.updating():
        ...     new = w - 0.25 * w.grad
        >>> w.value = new.value
        >>> float(w)
        1.0

    """
    with within(mode=CONSTANT):
        yield
        segment = LOCAL.segment()
        if segment is not None:
            run_pending(segment, "step")


def replace(variable: Variable, result: Variable) -> None:
    """Have a constant be what was computed for it (a running mean, a random key), detached; where that is pending, it stays so.

    It may have another shape or dtype then.

    Raises:
        TapeValueError: ``variable`` requires grad.
        LeakedTracerError: the result belongs to a JAX transformation, and ``variable`` does not.

    Example:
        >>> import tape.extend
        >>> w, mean = tape.Variable(2.0), tape.constant(0.0)
        >>> tape.extend.replace(mean, mean * 0.9 + w * 0.1)
        >>> round(float(mean), 2), mean.requires_grad
        (0.2, False)

    """
    variable = itself(variable)  # type: ignore[assignment]
    if variable._place.kind.requires_grad:
        msg = f"replace: it is for constants, and this Variable requires grad ({describe(variable)}); assign to its .value"
        raise TapeValueError(msg)
    store("replace", variable, result.detach())


class Assignment:
    """Assigns new values to the same Variables, update after update, once all of them are there.

    Example:
        >>> import tape.extend
        >>> w, assign = tape.Variable(2.0), tape.extend.Assignment()
        >>> with tape.extend.updating():
        ...     new = w * 0.5
        >>> assign([w], [new])
        >>> float(w), w.requires_grad
        (1.0, True)

    """

    __slots__ = ("_fitting",)

    def __init__(self) -> None:
        self._fitting: list[Any] | None = None  # the places of Variables and results that were seen to fit each other

    def __call__(self, variables: Sequence[Variable], results: Sequence[Variable | None]) -> None:
        """Give each of ``variables`` (leaves) the value of the result in its place; None leaves it as it is.

        Raises:
            TapeValueError: a value has another shape than its Variable.  Nothing is changed then.
            TapeTypeError: it has a dtype that the Variable's does not take.  Nothing is changed then.
            ExecutionError: a result could not be computed.  Nothing is changed then.

        """
        if self.again(variables, results):
            return
        arrays = [None if result is None else look(result) for result in results]
        changed = [(variable, new, result) for variable, new, result in zip(variables, arrays, results, strict=True) if new is not None]
        fits = all(r is None or v._place.kind.aval == r._place.kind.aval for v, r in zip(variables, results, strict=True))
        fitting = [(variable, variable._assignable(new), of) for variable, new, of in changed]  # all of them, before the first is assigned
        before = [(variable, variable._segment, variable._cell, variable._place) for variable, _, _ in fitting]
        try:
            for variable, value, of in fitting:
                hold(variable, value, requires_grad=variable._place.kind.requires_grad, of=of)
        except BaseException:  # Ctrl-C
            for variable, segment, cell, place in before:
                variable._segment, variable._cell, variable._place = segment, cell, place
            raise
        if fits and not LOCAL.scope.trace.capturing:
            self._fitting = _places(variables, results)

    def again(self, variables: Sequence[Variable], results: Sequence[Variable | None]) -> bool:
        """Assign what comes from the same program as the last time, without looking at shapes again; tell whether it was that."""
        scope = LOCAL.scope
        if scope.trace.capturing or scope.notes is not None or _places(variables, results) != self._fitting:
            return False
        cells = [r._cell for r in results if r is not None]
        if any(cell[0] is None or isinstance(cell[0], Tracer) for cell in cells):  # nor may a value of a JAX transformation leave it so
            return False
        changing = [v for v, r in zip(variables, results, strict=True) if r is not None]
        hand_over(changing, cells)
        return True


def _places(variables: Sequence[Variable], results: Sequence[Variable | None]) -> list[Any]:
    return [None if r is None else r._place for r in results] + [getattr(v, "_place", None) for v in variables]
