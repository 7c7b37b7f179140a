"""``scipy.linalg``: SciPy's own where no Variable is met, and what is recorded where one is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as _np
import scipy.linalg as _linalg

from interop.autograd import numpy as _anp
from interop.autograd.extend import defvjp as _defvjp
from interop.autograd.extend import defvjp_argnums as _defvjp_argnums
from interop.autograd.extend import primitive as _primitive
from interop.autograd.numpy.dispatch import wrapped as _wrapped
from tape.scipy import linalg as _recorded

_ON_TAPE = ("cho_factor", "cho_solve", "cholesky", "det", "eigh", "expm", "inv", "lu", "qr", "solve", "svd", "block_diag")
globals().update({name: _wrapped(getattr(_linalg, name), getattr(_recorded, name), name=name) for name in _ON_TAPE})


def _solve_triangular(a: Any, b: Any, trans: Any = 0, lower: bool = False, **options: Any) -> Any:
    options = {k: v for k, v in options.items() if k == "unit_diagonal"}
    return _recorded.solve_triangular(a, b, trans=trans, lower=lower, **options)


solve_triangular = _wrapped(_linalg.solve_triangular, _solve_triangular, name="solve_triangular")
sqrtm, solve_sylvester, solve_banded = map(_primitive, (_linalg.sqrtm, _linalg.solve_sylvester, _linalg.solve_banded))

_defvjp(sqrtm, lambda ans, _a, **_: lambda g: solve_sylvester(_anp.transpose(ans), _anp.transpose(ans), g))


def _sylvester(argnums: Sequence[int], ans: Any, args: Any, _: Any) -> Callable[[Any], list[Any]]:
    a, b, _q = args

    def vjp(g: Any) -> list[Any]:
        by_q = solve_sylvester(_anp.transpose(a), _anp.transpose(b), g)
        gradients = [-_anp.dot(by_q, _anp.transpose(ans)), -_anp.dot(_anp.transpose(ans), by_q), by_q]
        return [gradients[n] for n in argnums]

    return vjp


_defvjp_argnums(solve_sylvester, _sylvester)


def _bands(size: int, below: int, above: int) -> tuple[Any, Any, Any]:
    """Return, for the entries of a banded matrix in the form of ``solve_banded``, their rows and columns, and which of them there are."""
    columns = _np.broadcast_to(_np.arange(size), (below + above + 1, size))
    rows = columns + _np.arange(-above, below + 1)[:, None]
    return rows, columns, (rows >= 0) & (rows < size)


def _transposed(ab: Any, below: int, above: int) -> Any:
    rows, _, there = _bands(ab.shape[1], above, below)
    return _anp.where(there, ab[below + above - _np.arange(below + above + 1)[:, None], _np.clip(rows, 0, ab.shape[1] - 1)], 0.0)


def _solved_transposed(counts: Any, ab: Any, g: Any) -> Any:
    below, above = counts
    return solve_banded((above, below), _transposed(ab, below, above), g)


def _by_bands(ans: Any, counts: Any, ab: Any, _b: Any) -> Callable[[Any], Any]:
    def vjp(g: Any) -> Any:
        rows, columns, there = _bands(ab.shape[1], *counts)
        right = _solved_transposed(counts, ab, g)
        products = right[_np.clip(rows, 0, ab.shape[1] - 1)] * ans[columns]
        return -_anp.where(there, products if products.ndim == 2 else _anp.sum(products, axis=2), 0.0)

    return vjp


_defvjp(solve_banded, _by_bands, lambda _ans, counts, ab, _b: lambda g: _solved_transposed(counts, ab, g), argnums=(1, 2))
