"""Ops are traced to what ``jax.make_jaxpr`` traces them to, in half its time, and what is wrong with them is said as it says it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape import jaxapi

X = jaxapi.ShapedArray((3, 5), np.dtype("float32"))
N = jaxapi.ShapedArray((), np.dtype("int32"), weak_type=True)
TABLE = np.arange(15.0, dtype=np.float32).reshape(3, 5)

FUNCTIONS = {
    "one": (jnp.sin, X),
    "jitted inside": (lambda x: jnp.linalg.norm(jnp.where(x > 0, x, 0.0)), X),
    "a tree": (lambda x, n: {"a": [x * n], "b": (x.sum(), None)}, X, N),
    "a constant": (lambda x: x + TABLE, X),
    "a number": (lambda x: (x, 1.0, 2), X),
    "no operand": (lambda: jnp.ones((2, 2)),),
    "a loop": (lambda x: jax.lax.scan(lambda c, row: (c + row, c * row), x[0], x), X),
    "a branch": (lambda x, n: jax.lax.cond(n > 0, jnp.sin, jnp.cos, x), X, N),
    "a derivative of its own": (jax.nn.relu, X),
    "a callback": (lambda x: jax.pure_callback(np.sin, x, x), X),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_an_op_is_traced_to_what_jax_traces(case):
    fun, *avals = FUNCTIONS[case]
    (quick, shapes), (right, described) = jaxapi.trace_quickly(fun, *avals), jaxapi.trace(fun, *avals)
    assert str(quick) == str(right)
    assert quick.in_avals == right.in_avals
    assert quick.out_avals == right.out_avals
    assert jax.tree.structure(shapes) == jax.tree.structure(described)
    assert quick.jaxpr.effects == right.jaxpr.effects
    jaxapi.extend.check_jaxpr(quick.jaxpr)
    given = [np.ones(a.shape, a.dtype) for a in avals]
    for ours, theirs in zip(jaxapi.jaxpr_as_fun(quick)(*given), jaxapi.jaxpr_as_fun(right)(*given), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_an_op_holds_is_not_the_users_array():
    table = TABLE.copy()
    closed, _ = jaxapi.trace_quickly(lambda x: x + table, X)
    table[:] = 0.0
    np.testing.assert_array_equal(jaxapi.jaxpr_as_fun(closed)(np.zeros((3, 5), np.float32))[0], TABLE)


@pytest.mark.parametrize(
    "fun", [lambda x: x if x[0, 0] > 0 else -x, lambda x: jnp.dot(x, x), lambda x: object()], ids=["bool", "shape", "type"]
)
def test_what_is_wrong_is_said_as_jax_says_it(fun):
    said = []
    for trace in (jaxapi.trace_quickly, jaxapi.trace):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - each has its own
            trace(fun, X)
        said.append((raised.type, str(raised.value)))
    assert said[0] == said[1]


def test_a_mesh_and_leaks_are_seen():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.sharding.set_mesh(mesh):
        assert str(jaxapi.trace_quickly(jnp.sin, X)[0]) == str(jaxapi.trace(jnp.sin, X)[0])
    kept = []
    with jax.checking_leaks(), pytest.raises(Exception, match="Leaked"):
        jaxapi.trace_quickly(lambda x: kept.append(x * 2.0) or x, X)


def test_an_op_of_new_shapes_takes_no_jit(monkeypatch):
    called = []
    jaxapi.no_origin()  # once a process
    make = jax.make_jaxpr
    monkeypatch.setattr(jax, "make_jaxpr", lambda *args, **options: called.append(args) or make(*args, **options))
    x = tape.Variable(np.ones((2, 1009), np.float32))
    tnp.sin(x * x).sum().backward()
    np.testing.assert_allclose(x.grad.value, jax.grad(lambda x: jnp.sin(x * x).sum())(np.ones((2, 1009), np.float32)), rtol=1e-6)
    assert not called
