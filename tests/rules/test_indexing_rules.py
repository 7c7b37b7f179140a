"""What the derived suite cannot ask of indexing: products of repeated places, refusals, infinite cotangents."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import jax_vjp, own_vjp

from tape.errors import TapeTypeError


def test_repeated_factors_get_the_product_of_the_others():
    index = np.array([1, 0, 1, 1])
    x, update = jnp.array([2.0, 3.0]), jnp.array([5.0, 7.0, 0.0, 4.0])
    own = own_vjp(lambda a, u: (a.at[index].multiply(u),), (x, update), (jnp.ones(2),))
    expected = jax_vjp(lambda a, u: (jnp.array([a[0] * u[1], a[1] * u[0] * u[2] * u[3]]),), (x, update), (jnp.ones(2),))
    for mine, other in zip(own, expected, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_factors_that_were_dropped_do_not_meet_in_a_product():
    index, update = np.full(64, 9), jnp.full(64, 1e30)
    (own,) = own_vjp(lambda u: (jnp.ones(2).at[index].multiply(u, mode="drop"),), (update,), (jnp.ones(2),))
    np.testing.assert_array_equal(own, np.zeros(64))


def test_infinite_cotangent_of_what_was_not_chosen_is_no_nan():
    own = own_vjp(lambda a, u: (a.at[np.array([0, 0])].max(u),), (jnp.array([1.0]), jnp.array([3.0, 2.0])), (jnp.array([jnp.inf]),))
    np.testing.assert_array_equal(own[0], [0.0])
    np.testing.assert_array_equal(own[1], [jnp.inf, 0.0])


@pytest.mark.parametrize("how", ["max", "min"])
def test_what_no_update_touches_keeps_its_cotangent_also_where_it_is_nan(how):
    args = (jnp.array([jnp.nan, 2.0, 3.0, jnp.nan]), jnp.array([0.5, 7.0]))
    call = ((lambda a, u: (getattr(a.at[np.array([1, 3])], how)(u),)), args, (jnp.arange(1.0, 5.0),))
    for mine, other in zip(own_vjp(*call), jax_vjp(*call), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_apply_is_refused_with_a_repair():
    with pytest.raises(TapeTypeError, match=r"x\.at\[i\]\.set\(f\(x\[i\]\)\)"):
        own_vjp(lambda a: (a.at[np.array([0, 1])].apply(jnp.sin),), (jnp.ones(3),), (jnp.ones(3),))


@pytest.mark.parametrize(
    ("index", "options", "shapes"),
    [
        ((slice(None), [2, 0, 2, 2], slice(None)), {}, ((2, 3, 2), (2, 4, 2))),
        (([0, 1, 0], [2, 2, 2]), {}, ((2, 3), (3,))),
        (([0, 9, 1, 0, 9],), {"mode": "drop"}, ((3, 2), (5, 2))),
        (([0, 9, 2, 1],), {"mode": "clip"}, ((3, 2), (4, 2))),
        (([0, 2, 0],), {"mode": "promise_in_bounds"}, ((3, 2), (3, 2))),
    ],
)
def test_one_of_several_updates_of_a_place_has_its_cotangent(index, options, shapes):
    """The last one, where updates come in turns; on GPUs any, not always that whose value stayed, also in JAX."""
    index = tuple(np.array(i) if isinstance(i, list) else i for i in index)
    x, update = (n + np.arange(np.prod(shape), dtype="float32").reshape(shape) for n, shape in zip((0, 100), shapes, strict=True))

    def put(x, update):
        return (jnp.asarray(x).at[index].set(update, **options),)

    ct = 1 + np.arange(x.size, dtype="float32").reshape(x.shape)
    of_x, of_update = own_vjp(put, (x, update), (ct,))
    written = np.asarray(put(np.zeros_like(x), np.ones_like(update))[0])
    np.testing.assert_array_equal(of_x, ct * (1 - written))
    (sent,) = jax.linear_transpose(lambda u: jnp.zeros(x.shape).at[index].add(u, **options), update)(jnp.asarray(ct))
    chosen = np.asarray(of_update) != 0
    np.testing.assert_array_equal(of_update, np.where(chosen, sent, 0))
    np.testing.assert_array_equal(jnp.zeros(x.shape).at[index].add(chosen.astype("float32"), **options), written)
    if jax.default_backend() == "cpu":
        for mine, other in zip((of_x, of_update), jax_vjp(put, (x, update), (ct,)), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_windows_that_overlap_keep_the_update_that_stayed():
    numbers = jax.lax.ScatterDimensionNumbers(update_window_dims=(1,), inserted_window_dims=(), scatter_dims_to_operand_dims=(0,))
    args = (jnp.arange(4.0), 10 + jnp.arange(6.0).reshape(3, 2))
    call = ((lambda a, u: (jax.lax.scatter(a, np.array([[0], [1], [0]]), u, numbers),)), args, (jnp.arange(1.0, 5.0),))
    for mine, other in zip(own_vjp(*call), jax_vjp(*call), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("how", ["multiply", "set"])
def test_two_updates_of_one_place_are_not_taken_for_unique(how):
    index, x, update = np.array([1, 1]), jnp.array([2.0, 3.0]), jnp.array([5.0, 7.0])
    of_x, of_update = own_vjp(lambda a, u: (getattr(a.at[index], how)(u),), (x, update), (jnp.ones(2),))
    np.testing.assert_array_equal(of_x, [1, 35] if how == "multiply" else [1, 0])
    np.testing.assert_array_equal(of_update, [21, 15] if how == "multiply" else [0, 1])


@pytest.mark.parametrize("start", [-1, -7, 3, 9])
def test_places_before_the_first_are_clamped_where_negative_ones_are_not_counted_from_the_end(start):
    x, update, options = jnp.arange(5.0), jnp.array([10.0, 20.0]), {"allow_negative_indices": False}
    ct = jnp.arange(1.0, 6.0)
    at = min(max(start, 0), 3)
    of_x, of_update, _ = own_vjp(
        lambda a, u, i: (jax.lax.dynamic_update_slice(a, u, (i,), **options),), (x, update, jnp.asarray(start)), (ct,)
    )
    np.testing.assert_array_equal(of_update, ct[at : at + 2])
    np.testing.assert_array_equal(of_x, ct.at[at : at + 2].set(0))
    of_slice, _ = own_vjp(lambda a, i: (jax.lax.dynamic_slice(a, (i,), (2,), **options),), (x, jnp.asarray(start)), (ct[:2],))
    np.testing.assert_array_equal(of_slice, jnp.zeros(5).at[at : at + 2].set(ct[:2]))


def test_what_is_sorted_by_two_keys_has_its_gradients_where_the_first_key_is_equal():
    keys, x = np.array([1, 0, 1, 0, 1], "float32"), np.array([3.0, 5.0, 1.0, 4.0, 2.0], "float32")
    ct = jnp.arange(1.0, 6.0)
    (own,) = own_vjp(lambda x: (jax.lax.sort((keys, x), num_keys=2)[1],), (x,), (ct,))
    np.testing.assert_array_equal(own, ct[np.argsort(np.lexsort((x, keys)))])
