"""Hypothesis strategies for the arguments of functions that are differentiated.

They draw what matters to derivatives rather than to values: ties and zeros, both signs, numbers close to where formulas branch, large and
tiny ones, arrays of no and of one element, shapes that broadcast, the same array twice, duplicate indices, strided NumPy arrays, never
subnormals.  Shapes come from few buckets, because every new one costs a compilation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from tape.errors import TapeTypeError, TapeValueError
from tape.jaxapi import X64
from tape.testing.programs import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hypothesis.strategies import SearchStrategy

__all__ = ["arrays", "broadcastable", "dtypes", "indices", "numbers", "programs", "pytrees", "repeated", "shapes"]

SHAPES = ((), (3,), (1,), (2, 3), (0,), (3, 1), (2, 1, 3), (4, 4))
BROADCASTS = (
    ((), ()),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), ()),
    ((2, 1), (1, 3)),
    ((1,), (3,)),
    ((2, 3), (2, 3)),
    ((2, 3), (2, 1)),
    ((0,), (1,)),
)

# Where formulas branch, and what they branch on, simplest first: failures shrink to the first number that still fails.
NICE = (1.0, 2.0, 0.5, -1.0, -0.5, -2.0, 3.0, 0.0, 1.5, -1.5, 0.25, -3.0, 10.0, -10.0)
BRANCHES = (0.0, 1.0, -1.0, 0.5, math.pi / 2, math.pi, -math.pi / 2, 2.0)
MODERATE = 4.0


def dtypes(*names: str) -> SearchStrategy[np.dtype[Any]]:
    """Floating dtypes, those named or the ones that JAX is set to: float32, and float64 where 64 bits are enabled.

    Args:
        names: dtypes to choose from, the simplest first.

    Raises:
        TapeTypeError: a name is not a numeric dtype.

    Example:
        >>> from tape.testing import strategies
        >>> str(strategies.dtypes("float16").example())  # doctest: +SKIP
        'float16'

    """
    chosen = names or (("float32", "float64") if X64.value else ("float32",))
    return st.sampled_from([_dtype("dtypes", name) for name in chosen])


def _dtype(function: str, name: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(jnp.dtype(name))
    except TypeError as error:
        msg = f"{function}: {name!r} is not a dtype; pass a name such as 'float32'"
        raise TapeTypeError(msg) from error
    if not jnp.issubdtype(dtype, jnp.number):
        msg = f"{function}: dtype {dtype} is not numeric; pass a floating, complex or integer dtype"
        raise TapeTypeError(msg)
    return dtype


def shapes(*buckets: tuple[int, ...], min_dims: int = 0, max_dims: int = 3, min_size: int = 0) -> SearchStrategy[tuple[int, ...]]:
    """Shapes from a few buckets, so that compilation does not dominate a test.

    Args:
        buckets: the shapes to choose from, the simplest first; the default ones have 0 to 16 elements.
        min_dims: lowest number of dimensions.
        max_dims: highest number of dimensions.
        min_size: lowest number of elements.

    Raises:
        TapeValueError: no bucket fits.

    Example:
        >>> from hypothesis import given
        >>> from tape.testing import strategies
        >>> @given(strategies.shapes(min_dims=1, min_size=1))
        ... def property(shape):
        ...     assert 1 <= len(shape) <= 3 and 0 not in shape
        >>> property()

    """
    fitting = [s for s in buckets or SHAPES if min_dims <= len(s) <= max_dims and math.prod(s) >= min_size]
    if not fitting:
        msg = (
            f"shapes: none of {buckets or SHAPES} has {min_dims} to {max_dims} dimensions and at least {min_size} elements; pass buckets "
            "that do"
        )
        raise TapeValueError(msg)
    return st.sampled_from(fitting)


def numbers(dtype: Any = "float32", *, domain: tuple[float | None, float | None] = (None, None), wide: bool = True) -> SearchStrategy[Any]:
    """Numbers that a dtype holds: simple ones, ones near branch points and near the ends of the domain, large and tiny ones; no subnormals.

    Args:
        dtype: floating, complex or integer.
        domain: lowest and highest number (of either part, if complex); None is unbounded.
        wide: also magnitudes far from one, up to the fourth root of the dtype's largest number and down to its reciprocal.

    Raises:
        TapeTypeError: the dtype is not numeric.
        TapeValueError: the domain is empty.

    Example:
        >>> from hypothesis import given
        >>> from tape.testing import strategies
        >>> @given(strategies.numbers("float16", domain=(0, 1)))
        ... def property(x):
        ...     assert 0 <= x <= 1
        >>> property()

    """
    dtype = _dtype("numbers", dtype)
    low, high = (-math.inf if domain[0] is None else domain[0]), (math.inf if domain[1] is None else domain[1])
    if not low <= high:
        msg = f"numbers: the domain {domain} is empty; pass (lowest, highest)"
        raise TapeValueError(msg)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = numbers(np.empty(0, dtype).real.dtype, domain=domain, wide=wide)
        return st.builds(complex, part, part).map(dtype.type)
    if jnp.issubdtype(dtype, jnp.integer):
        return st.integers(math.ceil(max(low, -8, 0 if jnp.issubdtype(dtype, jnp.unsignedinteger) else -8)), math.floor(min(high, 8))).map(
            dtype.type
        )
    return _floats(dtype, low, high, wide)


def _floats(dtype: np.dtype[Any], low: float, high: float, wide: bool) -> SearchStrategy[Any]:
    info = jnp.finfo(dtype)  # type: ignore[no-untyped-call]  # no annotations there
    eps, least = float(info.eps), float(info.smallest_normal)

    def held(x: float) -> Any:
        """The number nearest to ``x`` that the dtype and the domain hold, or None."""
        if not low <= x <= high:
            return None
        value = dtype.type(x)
        return value if low <= float(value) <= high and (value == 0 or abs(float(value)) >= least) else None

    def of(candidates: Sequence[float]) -> list[Any]:
        distinct = {float(v): v for v in map(held, candidates) if v is not None}  # once each, in order
        return list(distinct.values())

    ends = [x for x in (low, high) if math.isfinite(x)]
    simple = of((*NICE, *ends))
    at = (*BRANCHES, *ends)
    near = of([b * (1 + s * k * eps) + s * k * eps * (b == 0) for b in at for k in (1, 1e2, 1e-1 / eps**0.5) for s in (1, -1)])
    bottom, top = max(low, -MODERATE), min(high, MODERATE)
    if bottom > top:  # a domain far from zero
        bottom, top = (low, min(high, 2 * low)) if low > 0 else (max(low, 2 * high), high)
    kinds: list[SearchStrategy[Any]] = []
    if simple:
        kinds.append(st.sampled_from(simple))
    kinds.append(st.floats(bottom, top, allow_nan=False).map(held).filter(lambda v: v is not None))
    if near:
        kinds.append(st.sampled_from(near))
    if wide:
        scale = float(info.max) ** 0.25
        magnitudes = [m**p for m in (scale, 1 / scale) for p in (0.25, 0.5, 1.0)]
        far = of([s * m for m in magnitudes for s in (1, -1)])
        if far:
            kinds.append(st.sampled_from(far))
    return st.one_of(kinds)


def arrays(
    shape: Any = None,
    dtype: Any = None,
    *,
    domain: tuple[float | None, float | None] = (None, None),
    wide: bool = False,
    ties: bool = True,
    strided: bool = True,
) -> SearchStrategy[Any]:
    """NumPy arrays with the edge cases that matter to derivatives.

    Args:
        shape: a shape, or a strategy for shapes; None is :func:`shapes`.
        dtype: a dtype, or a strategy for dtypes; None is :func:`dtypes`.
        domain: lowest and highest number; None is unbounded.
        wide: also very large and very small magnitudes.
        ties: also arrays with equal elements.
        strided: also views that are not contiguous, and read-only ones.

    Returns:
        A strategy; its arrays shrink to equal simple numbers in the first shape.

    Example:
        >>> from hypothesis import given
        >>> from tape.testing import strategies
        >>> @given(strategies.arrays((2, 3), domain=(0, None)))
        ... def property(x):
        ...     assert x.shape == (2, 3) and (x >= 0).all()
        >>> property()

    """
    shaped = shapes() if shape is None else shape if isinstance(shape, st.SearchStrategy) else st.just(_shape(shape))
    typed = dtypes() if dtype is None else dtype if isinstance(dtype, st.SearchStrategy) else st.just(_dtype("arrays", dtype))
    return st.tuples(shaped, typed).flatmap(lambda pair: _filled(pair[0], pair[1], domain, wide, ties, strided))


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(n, int) and n >= 0 for n in sizes):
        msg = f"arrays: the shape {shape!r} must be a tuple of sizes, or a strategy for such tuples"
        raise TapeValueError(msg)
    return sizes


def _filled(
    shape: tuple[int, ...], dtype: np.dtype[Any], domain: tuple[float | None, float | None], wide: bool, ties: bool, strided: bool
) -> SearchStrategy[Any]:
    size = math.prod(shape)
    elements = numbers(dtype, domain=domain, wide=wide)
    free = st.lists(elements, min_size=size, max_size=size)
    patterns = [free]
    if ties and size > 1:
        equal = elements.map(lambda v: [v] * size)
        few = st.tuples(elements, elements).flatmap(lambda pair: st.lists(st.sampled_from(pair), min_size=size, max_size=size))
        patterns = [equal, free, free, few]
    generated = st.one_of(patterns).map(lambda values: np.array(values, dtype).reshape(shape))
    return st.tuples(generated, st.sampled_from(_LAYOUTS)).map(lambda pair: pair[1](pair[0])) if strided and size > 1 else generated


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _fortran(x: np.ndarray) -> np.ndarray:
    return np.asfortranarray(x)


def _reversed(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x[..., ::-1])[..., ::-1]


def _every_second(x: np.ndarray) -> np.ndarray:
    return np.repeat(x, 2, axis=-1)[..., ::2]


def _read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


_LAYOUTS: tuple[Callable[[Any], Any], ...] = (_same, _same, _fortran, _reversed, _every_second, _read_only)


def broadcastable(count: int = 2, dtype: Any = None, **options: Any) -> SearchStrategy[tuple[Any, ...]]:
    """Tuples of arrays of one dtype whose shapes broadcast together; now and then the very same array several times.

    Args:
        count: number of arrays.
        dtype: as for :func:`arrays`.
        options: further ones of :func:`arrays`.

    Example:
        >>> from hypothesis import given
        >>> from tape.testing import strategies
        >>> @given(strategies.broadcastable(2))
        ... def property(pair):
        ...     assert (pair[0] + pair[1]).dtype == pair[0].dtype
        >>> property()

    """
    typed = dtypes() if dtype is None else dtype if isinstance(dtype, st.SearchStrategy) else st.just(_dtype("broadcastable", dtype))
    chosen = st.tuples(st.sampled_from(BROADCASTS), typed, st.permutations(range(count)), st.sampled_from((False, False, False, True)))

    def of_drawn(drawn: tuple[Any, ...]) -> SearchStrategy[tuple[Any, ...]]:
        pair, dt, order, same = drawn
        if same:
            return repeated(arrays(pair[0], dt, **options), count)
        return st.tuples(*[arrays(pair[i % 2], dt, **options) for i in order])

    return chosen.flatmap(of_drawn)


def repeated(strategy: SearchStrategy[Any], count: int = 2) -> SearchStrategy[tuple[Any, ...]]:
    """Tuples that hold one drawn object ``count`` times: aliased arguments.

    Example:
        >>> from hypothesis import given
        >>> from tape.testing import strategies
        >>> @given(strategies.repeated(strategies.arrays((3,))))
        ... def property(pair):
        ...     assert pair[0] is pair[1]
        >>> property()

    """
    return strategy.map(lambda x: (x,) * count)


def indices(size: int, shape: Any = (3,), *, negative: bool = True) -> SearchStrategy[Any]:
    """Integer arrays that index an axis of ``size`` elements, often with duplicates.

    Args:
        size: length of the indexed axis, at least 1.
        shape: of the array of indices.
        negative: also indices that count from the end.

    Raises:
        TapeValueError: the axis has no elements.

    Example:
        >>> from hypothesis import given
        >>> from tape.testing import strategies
        >>> @given(strategies.indices(5))
        ... def property(i):
        ...     assert i.shape == (3,) and (abs(i) <= 5).all()
        >>> property()

    """
    if size < 1:
        msg = f"indices: an axis of {size} elements cannot be indexed; pass a size of at least 1"
        raise TapeValueError(msg)
    sizes = _shape(shape)
    count = math.prod(sizes)
    one = st.integers(-size if negative else 0, size - 1)
    several = st.lists(one, min_size=count, max_size=count)
    return st.one_of(one.map(lambda i: [i] * count), several).map(lambda values: np.array(values, np.int32).reshape(sizes))


def pytrees(leaves: SearchStrategy[Any] | None = None) -> SearchStrategy[Any]:
    """Nested dicts, lists, tuples and None around arrays, from a few structures.

    Args:
        leaves: strategy for the leaves; None is :func:`arrays` of shape (3,) and ().

    Example:
        >>> import jax
        >>> from hypothesis import given
        >>> from tape.testing import strategies
        >>> @given(strategies.pytrees())
        ... def property(tree):
        ...     assert all(leaf.shape in {(3,), ()} for leaf in jax.tree.leaves(tree))
        >>> property()

    """
    leaf = arrays(st.sampled_from([(3,), ()])) if leaves is None else leaves
    return st.one_of(
        leaf,
        st.fixed_dictionaries({"w": leaf, "b": leaf}),
        st.tuples(leaf, st.lists(leaf, min_size=1, max_size=2)),
        st.fixed_dictionaries({"layers": st.lists(st.tuples(leaf, leaf), min_size=1, max_size=2), "none": st.none()}),
    )
