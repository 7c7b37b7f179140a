"""SciPy's optimizers on functions of the tape, which give them gradients, Hessian-vector products and Jacobians."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import tape
import tape.numpy as tnp
from tape import extend
from tape.errors import TapeError, TapeTypeError, TapeValueError, check_callable

__all__ = ["least_squares", "minimize"]

_DERIVATIVE_FREE = frozenset(("nelder-mead", "powell", "cobyla", "cobyqa"))
_HESSIAN_PRODUCTS = frozenset(("newton-cg", "trust-ncg", "trust-krylov", "trust-constr"))
_HESSIANS = frozenset(("dogleg", "trust-exact"))


def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    method: str | None = None,
    *,
    bounds: Any = None,
    constraints: Any = (),
    tol: float | None = None,
    callback: Callable[..., Any] | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Minimise a function of the tape by ``scipy.optimize.minimize``.

    The tape gives the gradient, and the Hessian or its products to the methods that use them.  ``fun`` runs as plain Python at every point,
    so it may look at values; ``tape.jit(fun)`` is quicker where it does not.

    Args:
        fun: takes Variables in the structure of ``x0``, and ``args``; returns a real Variable of size 1.
        x0: where to begin: an array, a list of numbers, or a pytree of arrays.
        args: further arguments of ``fun``.
        method: as SciPy's.
        bounds: as SciPy's, for the numbers of ``x0`` one after the other.
        constraints: as SciPy's.  Functions in them are functions of the tape, like ``fun``, and need no derivatives.
        tol: as SciPy's.
        callback: as SciPy's; it sees the numbers of ``x0`` one after the other.
        options: as SciPy's.

    Returns:
        SciPy's ``OptimizeResult``, whose ``x`` has the structure, shapes and dtypes of ``x0``, as NumPy arrays.  Everything is computed in
        JAX's widest floating type: float32, unless ``jax_enable_x64`` is set.

    Raises:
        TapeTypeError: ``fun`` cannot be called, or does not return a real Variable; ``x0`` is not real.
        TapeValueError: it returns more than one number, or ``x0`` has none.

    Example:
        >>> import numpy as np, interop, tape.numpy as tnp
        >>> result = interop.scipy.minimize(lambda x: ((x - tnp.array([1.0, 2.0])) ** 2).sum(), np.zeros(2))
        >>> result.success, result.x.round(3).tolist()
        (True, [1.0, 2.0])

    """
    flat = _Flat("minimize", fun, x0, args)
    name = "" if method is None else str(method).lower()
    given: dict[str, Any] = {"jac": True}
    if name in _DERIVATIVE_FREE:
        given = {}
    elif name in _HESSIAN_PRODUCTS:
        given["hessp"] = lambda x, p: _numbers(tape.hvp(flat.scalar, (flat.variable(x),), (flat.variable(p),)))
    elif name in _HESSIANS:
        given["hess"] = lambda x: _numbers(tape.hessian(flat.scalar)(flat.variable(x)))
    listed = constraints if isinstance(constraints, (list, tuple)) else [constraints]
    result = scipy.optimize.minimize(
        flat.value_and_gradient if given else flat.value,
        flat.start,
        method=method,
        bounds=bounds,
        constraints=[_constraint(flat, c) for c in listed],
        tol=tol,
        callback=callback,
        options=options,
        **given,
    )
    result.x = flat.tree(result.x)
    return result


def least_squares(fun: Callable[..., Any], x0: Any, *, args: tuple[Any, ...] = (), **options: Any) -> Any:
    """Minimise a sum of squares by ``scipy.optimize.least_squares``, to which the tape gives the Jacobian.

    It is computed column by column (forward mode) where there are more residuals than numbers in ``x0``, otherwise row by row.

    Args:
        fun: takes Variables in the structure of ``x0``, and ``args``; returns the residuals, a Variable or a pytree of them.
        x0: where to begin: an array, a list of numbers, or a pytree of arrays.
        args: further arguments of ``fun``.
        options: as SciPy's (``bounds``, ``method``, ``loss`` ...), but for ``jac``.

    Returns:
        SciPy's ``OptimizeResult``, whose ``x`` has the structure, shapes and dtypes of ``x0``, as NumPy arrays.

    Raises:
        TapeTypeError: ``fun`` cannot be called, or does not return real Variables; ``x0`` is not real.
        TapeValueError: ``x0`` has no numbers.

    Example:
        >>> import numpy as np, interop, tape.numpy as tnp
        >>> t = np.linspace(0, 1, 9)
        >>> y = 2 * np.exp(-3 * t)
        >>> fit = interop.scipy.least_squares(lambda p: p["a"] * tnp.exp(-p["b"] * t) - y, {"a": 1.0, "b": 1.0})
        >>> round(float(fit.x["a"]), 3), round(float(fit.x["b"]), 3)
        (2.0, 3.0)

    """
    if "jac" in options:
        msg = "least_squares: the tape gives the Jacobian; leave out jac, or call scipy.optimize.least_squares"
        raise TapeTypeError(msg)
    flat = _Flat("least_squares", fun, x0, args)
    residuals = functools.partial(flat.vector, fun)
    result = scipy.optimize.least_squares(
        lambda x: _numbers(residuals(flat.variable(x))), flat.start, jac=_Jacobian(flat, residuals), **options
    )
    result.x = flat.tree(result.x)
    return result


class _Flat:
    """A function of a pytree as a function of the vector of its numbers."""

    def __init__(self, what: str, fun: Callable[..., Any], x0: Any, args: tuple[Any, ...]) -> None:
        check_callable(what, fun)
        self._what, self._fun = what, fun
        self._args = args if isinstance(args, tuple) else (args,)
        if isinstance(x0, (list, tuple)) and all(isinstance(x, (bool, int, float, np.number)) for x in x0):
            x0 = np.asarray(x0)  # a vector, as SciPy takes it
        leaves, self._tree = jax.tree.flatten(x0, is_leaf=extend.is_variable)
        arrays = [np.asarray(extend.array(x) if extend.is_variable(x) else x) for x in leaves]
        for x in arrays:
            if not (jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool):
                msg = f"{what}: x0 must be of real numbers, got dtype {x.dtype}; pass real and imaginary parts"
                raise TapeTypeError(msg)
        if not sum(x.size for x in arrays):
            msg = f"{what}: x0 has no numbers"
            raise TapeValueError(msg)
        self._dtype = jnp.zeros(0).dtype  # float64 where JAX has it
        self._dtypes = [x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else np.dtype(np.float64) for x in arrays]
        self._shapes = [x.shape for x in arrays]
        self.start = np.concatenate([x.ravel().astype(np.float64) for x in arrays])

    def variable(self, x: np.ndarray[Any, Any]) -> tape.Variable:
        """Return SciPy's vector as a Variable."""
        return tape.Variable(np.asarray(x, self._dtype))

    def _split(self, x: Any) -> list[Any]:
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes]).tolist()
        return [x[start:end].reshape(shape) for start, end, shape in zip([0, *ends], ends, self._shapes, strict=False)]

    def tree(self, x: np.ndarray[Any, Any]) -> Any:
        """Return a vector in the structure of x0."""
        return jax.tree.unflatten(self._tree, [part.astype(d) for part, d in zip(self._split(np.asarray(x)), self._dtypes, strict=True)])

    def called(self, fun: Callable[..., Any], x: Any, args: Sequence[Any]) -> Any:
        """Return what a function makes of a vector, in the dtypes of x0."""
        parts = [part if d == np.float64 else part.astype(d) for part, d in zip(self._split(x), self._dtypes, strict=True)]
        return fun(jax.tree.unflatten(self._tree, parts), *args)

    def vector(self, fun: Callable[..., Any], x: Any, args: Sequence[Any] | None = None) -> Any:
        """Return the numbers that a function returns, one after the other."""
        results = jax.tree.leaves(self.called(fun, x, self._args if args is None else args), is_leaf=extend.is_variable)
        parts = [tnp.ravel(self._checked(v)) for v in results]
        return parts[0] if len(parts) == 1 else tnp.concatenate(parts)

    def scalar(self, x: Any) -> Any:
        """Return the one number that the function returns."""
        result = self._checked(self.called(self._fun, x, self._args))
        if result.size != 1:
            msg = f"{self._what}: the function must return one number, got shape {result.shape}; reduce it, for instance with .sum()"
            raise TapeValueError(msg)
        return result.reshape(())

    def _checked(self, result: Any) -> Any:
        if not extend.is_variable(result) or not jnp.issubdtype(result.dtype, jnp.floating):
            kind = f"dtype {result.dtype}" if extend.is_variable(result) else type(result).__name__
            msg = f"{self._what}: the function must return a Variable of real numbers, got {kind}; compute it with tape.numpy"
            raise TapeTypeError(msg)
        return result

    def value(self, x: np.ndarray[Any, Any]) -> float:
        """Return the function's value at SciPy's point."""
        with tape.no_grad():
            return float(self.scalar(self.variable(x)))

    def value_and_gradient(self, x: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        """Return the function's value and gradient at SciPy's point."""
        point = self.variable(x)
        value = self.scalar(point)
        (gradient,) = tape.gradients(value, [point], unconnected="zero")
        return float(value), _numbers(gradient)


class _Jacobian:
    """The Jacobian of a function at SciPy's points: by columns where more numbers come out of it than go in, otherwise by rows."""

    def __init__(self, flat: _Flat, fun: Callable[[Any], Any]) -> None:
        self._flat, self._fun = flat, fun
        self._jacobian: Callable[..., Any] | None = None

    def __call__(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        point = self._flat.variable(x)
        if self._jacobian is None:
            with tape.no_grad():
                tall = self._fun(point).size > x.size
            self._jacobian = tape.jacfwd if tall and self._has_columns(point) else tape.jacrev
        return _numbers(self._jacobian(self._fun)(point))

    def _has_columns(self, point: tape.Variable) -> bool:
        """Tell whether forward mode, which differentiates the sweep, agrees with the sweep: a ``tape.Function`` may cut that off."""
        try:
            by_columns = _numbers(tape.jacfwd(self._fun)(point))
        except TapeError:
            return False
        weights = np.cos(np.arange(len(by_columns)))
        values = self._fun(point)
        (by_rows,) = tape.gradients(values, [point], weights.astype(values.dtype), unconnected="zero")
        return bool(np.all(abs(weights @ by_columns - _numbers(by_rows)) <= 1e-3 * (abs(weights) @ abs(by_columns))))


def _numbers(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x.detach(), np.float64)


def _constraint(flat: _Flat, constraint: Any) -> Any:
    """Return SciPy's constraint with derivatives from the tape."""
    if isinstance(constraint, dict) and callable(constraint.get("fun")) and constraint.get("jac") is None:
        value = functools.partial(flat.vector, constraint["fun"], args=constraint.get("args", ()))
        return {
            "type": constraint["type"],
            "fun": lambda x: _numbers(value(flat.variable(x))),
            "jac": _Jacobian(flat, value),
        }
    if isinstance(constraint, scipy.optimize.NonlinearConstraint) and not callable(constraint.jac):
        value = functools.partial(flat.vector, constraint.fun)

        def curvature(x: Any, weights: Any) -> np.ndarray[Any, Any]:
            return _numbers(tape.hessian(lambda v: (value(v) * np.asarray(weights, flat._dtype)).sum())(flat.variable(x)))

        return scipy.optimize.NonlinearConstraint(
            lambda x: _numbers(value(flat.variable(x))),
            constraint.lb,
            constraint.ub,
            jac=_Jacobian(flat, value),
            hess=curvature,
            keep_feasible=constraint.keep_feasible,
        )
    return constraint
