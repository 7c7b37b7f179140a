"""Rows: what puts values together, or takes an array apart, is seen to; and nothing else is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tape.graph.trie import Step
from tape.ops.kernel import Op
from tape.programs.rows import puts_together, takes_apart

N = 4
SHAPES = [(), (1,), (3,), (N,), (2, 3), (3, 2), (1, 2)]


def entry(fun, *shapes):
    kernel = Op("entry", fun).kernel(tuple(jax.ShapeDtypeStruct(s, np.float32) for s in shapes))
    slots = range(len(shapes), len(shapes) + len(kernel.out_avals))
    return Step(kernel, tuple(range(len(shapes))), tuple(slots), None, 1)


def filled(shapes):
    sizes = np.cumsum([0, *[np.prod(s, dtype=int) for s in shapes]])
    return [np.arange(a, b, dtype=np.float32).reshape(s) for a, b, s in zip(sizes, sizes[1:], shapes, strict=False)]


TOGETHER = {
    "stack": lambda *rows: jnp.stack(rows),
    "concatenate": lambda *rows: jnp.concatenate(rows),
    "rows": lambda *rows: jnp.concatenate([x[None] for x in rows]),
    "in tiers": lambda *rows: lax.concatenate([jnp.stack(rows[:2]), jnp.stack(rows[2:])], 0),
}
OTHERS = {
    "along the last axis": lambda *rows: jnp.stack(rows, -1),
    "side by side": lambda *rows: jnp.concatenate(rows, -1),
    "backwards": lambda *rows: jnp.stack(rows[::-1]),
    "one twice": lambda *rows: jnp.stack([*rows[:-1], rows[0]]),
    "all but one": lambda *rows: jnp.stack(rows[1:]),
    "all and one": lambda *rows: jnp.stack([*rows, rows[0]]),
    "another value": lambda *rows: jnp.stack([*rows[:-1], rows[-1] * 2]),
    "repeated": lambda *rows: jnp.concatenate([jnp.broadcast_to(x, (2, *x.shape)) for x in rows]),
    "and changed": lambda *rows: jnp.stack(rows) * 2,
    "and a sum": lambda *rows: (jnp.stack(rows), sum(rows)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*TOGETHER, *OTHERS])
def test_what_puts_rows_together(name, shape):
    fun, rows = {**TOGETHER, **OTHERS}[name], filled([shape] * N)
    try:
        result = fun(*rows)
    except ValueError:  # numbers cannot be concatenated
        return
    found = puts_together(entry(fun, *[shape] * N))
    if name in TOGETHER:
        assert found
    if found:
        np.testing.assert_array_equal(np.ravel(result), np.ravel(rows))


def test_rows_of_several_shapes_and_few_are_not_put_together():
    assert not puts_together(entry(lambda *rows: jnp.concatenate(rows), (2,), (3,), (2,), (3,)))
    assert not puts_together(entry(lambda *rows: jnp.stack(rows), (3,), (3,)))


APART = {
    "split": lambda x: jnp.split(x, N),
    "unstack": lambda x: jnp.unstack(x) if len(x) == N else jnp.split(x, N),
    "rows": lambda x: [x[i] for i in range(N)] if len(x) == N else jnp.split(x, N),
    "slices": lambda x: [lax.slice_in_dim(x, i * (len(x) // N), (i + 1) * (len(x) // N)) for i in range(N)],
}
NOT_APART = {
    "along the last axis": lambda x: jnp.split(x, x.shape[-1], -1),
    "columns at once": lambda x: jnp.unstack(x, axis=-1),
    "backwards": lambda x: jnp.split(x, N)[::-1],
    "one twice": lambda x: [*jnp.split(x, N)[:-1], jnp.split(x, N)[0]],
    "all but one": lambda x: jnp.split(x, N)[1:],
    "all but the last": lambda x: jnp.split(x, N)[:-1],
    "the first rows": lambda x: [jnp.squeeze(y, 0) for y in jnp.split(x, len(x))[: len(x) // 2]],
    "columns": lambda x: [jnp.ravel(y) for y in jnp.split(x, x.shape[-1], -1)],
    "longer ones": lambda x: [lax.slice_in_dim(x, 0, len(x) // N + 1) for _ in range(N)],
    "of the half": lambda x: [lax.slice_in_dim(x, i, i + 1) for i in range(len(x) // 2)],
    "each second": lambda x: [x[i::N] for i in range(N)],
    "of another": lambda x: [y * 2 for y in jnp.split(x, N)],
    "of what is made of it": lambda x: jnp.split(x + 1, N),
    "unequal": lambda x: jnp.split(x, [1, 2, 4]),
    "a part of each row": lambda x: [x[i, :1] for i in range(N)],
}


@pytest.mark.parametrize("shape", [(N,), (2 * N,), (N, 3), (N, 1), (2 * N, N), (N, N), (N + 1, 3), (3 * N,)])
@pytest.mark.parametrize("name", [*APART, *NOT_APART])
def test_what_takes_rows_apart(name, shape):
    fun, (array,) = {**APART, **NOT_APART}[name], filled([shape])
    try:
        results = fun(array)
    except (ValueError, IndexError, TypeError):  # it has not so many axes, or other lengths
        return
    found = takes_apart(entry(fun, shape))
    if name in APART and shape[0] % N == 0:
        assert found
    if found:
        np.testing.assert_array_equal(np.concatenate([np.ravel(x) for x in results]), np.ravel(array))
        assert len({np.shape(x) for x in results}) == 1
