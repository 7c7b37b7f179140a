"""Arrays changed in place inside an op (``jax.new_ref``): gradients of both orders are those of the same function without them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tape
from interop import lift
from tape.errors import TapeError
from tape.ops import references
from tape.ops.pullback import pullback
from tests.daily import pairs

X = np.array([0.3, -1.2, 0.7], "float32")


def written_twice(x):
    r = jax.new_ref(jnp.zeros_like(x))
    r[...] = jnp.sin(x)
    r[0] = x[1] * x[0]
    y = r[...]
    r[...] = y * x
    return r[...]


def forgotten(x):
    r = jax.new_ref(x[0])
    a = r[...]
    r[...] = jnp.float32(3)
    return jnp.sin(a) * r[...] * x


def in_a_loop(x):
    r = jax.new_ref(x)

    def body(i, done):
        r[i] = r[i] * jnp.sin(r[(i + 1) % 3])
        return done

    lax.fori_loop(0, 3, body, 0)
    return jax.freeze(r)


def loop(x):
    for i in range(3):
        x = x.at[i].multiply(jnp.sin(x[(i + 1) % 3]))
    return x


def in_branches_and_calls(x):
    r = jax.new_ref(x)
    r[1:] = jnp.cos(r[:2]) * r[0]

    def first():
        r[0] = x[2]

    def second():
        r[::2] = r[jnp.array([1, 1])] * x[0]

    lax.cond(x[0] > 0, first, second)
    jax.ref.addupdate(r, 1, x[0] * x[0])

    @jax.jit
    def called(r, y):
        old = jax.ref.swap(r, 0, y * r[1])
        return old * y

    return called(r, x[2]) + r[...]


def branches_and_calls(x):
    r = x.at[1:].set(jnp.cos(x[:2]) * x[0])
    r = jnp.where(x[0] > 0, r.at[0].set(x[2]), r.at[::2].set(r[1] * x[0]))
    r = r.at[1].add(x[0] * x[0])
    return r[0] * x[2] + r.at[0].set(x[2] * r[1])


def of_a_step(x):
    def body(state, e):
        r = jax.new_ref(state)
        r[0] = r[0] * e
        return r[...] * jnp.sin(state), r[0]

    last, seen = lax.scan(body, x[:2], x)
    return jnp.concatenate([last, seen])


def step(x):
    def body(state, e):
        after = state.at[0].multiply(e)
        return after * jnp.sin(state), after[0]

    last, seen = lax.scan(body, x[:2], x)
    return jnp.concatenate([last, seen])


def counted(x):
    r = jax.new_ref(jnp.int32(0))

    def body(i):
        r[...] = r[...] + i
        return i + 1

    lax.while_loop(lambda i: i < 4, body, 1)
    return jnp.sin(x) * r[...]


@jax.jit
def swapped_in_a_call(x):
    r = jax.new_ref(x)
    old = jax.ref.swap(r, ..., jnp.sin(x))
    return old * old * r[...]


PAIRS = {
    "written twice": (written_twice, lambda x: jnp.sin(x).at[0].set(x[1] * x[0]) * x),
    "forgotten": (forgotten, lambda x: jnp.sin(x[0]) * 3 * x),
    "in a loop": (in_a_loop, loop),
    "in branches and calls": (in_branches_and_calls, branches_and_calls),
    "of a step": (of_a_step, step),
    "counted": (counted, lambda x: 6 * jnp.sin(x)),
    "swapped in a call": (swapped_in_a_call, lambda x: x * x * jnp.sin(x)),
    "in a checkpoint": (jax.checkpoint(of_a_step), step),
}
each = pytest.mark.parametrize(("fun", "twin"), PAIRS.values(), ids=PAIRS)


@pytest.mark.parametrize(("name", "sign"), pairs(PAIRS, [1, -1], 2))
def test_both_orders(name, sign):
    fun, twin = PAIRS[name]
    x = sign * X
    grad = jax.grad(lambda x: jnp.sum(twin(x) ** 2))
    expected, expected_second = jax.jit(lambda x: (grad(x), jax.grad(lambda x: jnp.sum(grad(x) ** 2))(x)))(x)
    for _ in range(2):  # interpreted, then found again
        v = tape.Variable(x)
        (gradient,) = tape.gradients((lift(fun)(v) ** 2).sum(), (v,), create_graph=True)
        np.testing.assert_allclose(gradient.value, expected, rtol=2e-5, atol=1e-6)
        (second,) = tape.gradients((gradient**2).sum(), (v,))
        np.testing.assert_allclose(second.value, expected_second, rtol=2e-4, atol=1e-5)


@each
def test_under_jit_and_vmap(fun, twin):
    if fun is PAIRS["in a checkpoint"][0] and jax.__version_info__ < (0, 10):
        return  # JAX 0.9 cannot map the function itself

    def gradient(x):
        y = jax.make_jaxpr(fun)(x)
        return pullback(y, [x], [jnp.ones(y.out_avals[0].shape, x.dtype)])[0]

    expected = jax.vmap(jax.grad(lambda x: jnp.sum(twin(x))))(np.stack([X, -X]))
    np.testing.assert_allclose(jax.jit(jax.vmap(gradient))(np.stack([X, -X])), expected, rtol=2e-5, atol=1e-6)


def test_dynamic_slices_and_arrays_of_places():
    pl = pytest.importorskip("jax.experimental.pallas")

    def fun(x):
        r = jax.new_ref(x)

        def body(i, done):
            r[pl.ds(i, 2), 0:2] = r[pl.ds(i, 2), 1:3] * x[0, 0]
            return done

        lax.fori_loop(0, 2, body, 0)
        return r[jnp.array([1, 0])] + r[jnp.array([2, 2]), :]

    def twin(x):
        r = x
        for i in range(2):
            r = r.at[i : i + 2, 0:2].set(r[i : i + 2, 1:3] * x[0, 0])
        return r[jnp.array([1, 0])] + r[jnp.array([2, 2])]

    x = np.sin(np.arange(9, dtype="float32")).reshape(3, 3) + 1
    v = tape.Variable(x)
    (lift(fun)(v) ** 2).sum().backward()
    np.testing.assert_allclose(v.grad.value, jax.grad(lambda x: jnp.sum(twin(x) ** 2))(x), rtol=1e-5)


def test_nothing_is_changed_in_place_in_what_is_swept():
    closed = jax.make_jaxpr(in_branches_and_calls)(X)
    assert references.changes_in_place(closed)
    assert not references.without(closed).effects
    assert not references.changes_in_place(jax.make_jaxpr(branches_and_calls)(X))


def test_one_from_outside_is_refused():
    closed = jax.make_jaxpr(lambda r, x: jax.new_ref(x)[...] * r[...])(jax.new_ref(X), X)
    assert references.changes_in_place(closed)
    with pytest.raises(TapeError, match="an array from outside with one is not followed"):
        references.without(closed)


def test_a_function_with_a_derivative_of_its_own_that_changes_one_is_refused():
    @jax.custom_jvp
    def changing(r, x):
        r[...] = x
        return x

    changing.defjvp(lambda primals, tangents: (changing(*primals), tangents[1]))

    def fun(x):
        r = jax.new_ref(x)
        return changing(r, x) * r[...]

    try:
        closed = jax.make_jaxpr(fun)(X)
    except Exception:  # noqa: BLE001 - JAX refuses it by itself
        return
    with pytest.raises(TapeError, match="changed in place"):
        pullback(closed, [X], [X])
