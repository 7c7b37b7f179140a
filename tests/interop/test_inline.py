"""``interop.lift(fun, inline=True)`` records each equation, and is the function all the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import NonFiniteError

X = jnp.array([[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]])
W = np.array([[0.1, 0.2], [0.3, -0.4], [0.5, 0.6]], np.float32)


class Log(tape.OpHook):
    """What was recorded and swept, with the line and scope of each."""

    def __init__(self):
        self.forward, self.backward = [], []

    def forward_postprocess(self, op, inputs, outputs):
        self.forward.append((op.name, op.where, op.scope))

    def backward_postprocess(self, op, input_grads):
        self.backward.append((op.name, op.where, op.scope))


@jax.custom_vjp
def halved(x):
    return x


halved.defvjp(lambda x: (x, None), lambda _, ct: (ct / 2,))


def model(w, x):
    with jax.named_scope("hidden"):
        h = jnp.tanh(x @ w)
    with jax.named_scope("out"):
        h = jax.nn.relu(halved(h) * 2.0)
    h, _ = jax.lax.scan(lambda c, r: (c + r, r), jnp.zeros(2), h)
    return {"out": jax.jit(lambda v: jnp.sin(v) * X.sum())(h), "static": 3, "input": x, "constant": jnp.ones(2)}


def test_values_and_derivatives_are_the_functions():
    w = tape.Variable(W)
    inlined, whole = interop.lift(model, inline=True), interop.lift(model)
    for _ in range(4):
        found, wanted = inlined(w, X), whole(w, X)
        assert found.keys() == wanted.keys()
        for key in wanted:
            np.testing.assert_allclose(np.asarray(jax.device_get(found[key])), jax.device_get(wanted[key]), rtol=1e-6)
        first, second = [tape.gradients(tnp.cos(r["out"]).sum(), w, create_graph=True) for r in (found, wanted)]
        np.testing.assert_allclose(first.detach(), second.detach(), rtol=1e-5)
        penalties = [tape.gradients((g**2).sum(), w) for g in (first, second)]
        np.testing.assert_allclose(*penalties, rtol=1e-4)


def test_op_hooks_see_lines_and_scopes_inside():
    log = Log()
    with tape.hooks(log):
        interop.lift(model, inline=True)(tape.Variable(W), X)["out"].sum().backward()
    line = model.__code__.co_firstlineno
    seen = {name: (where[1] - line, scope) for name, where, scope in log.forward if where[0] == __file__}
    assert seen["tanh"] == (2, "hidden")
    assert seen["dot_general"] == (2, "hidden")
    assert seen["relu"] == (4, "out")
    assert seen["halved"] == (4, "out")
    assert seen["scan"] == (5, "")
    assert "sin" in seen
    assert [name for name, *_ in log.backward if name in {"tanh", "relu", "scan"}] == ["scan", "relu", "tanh"]
    assert {entry for entry in log.backward if entry[0] == "tanh"} == {entry for entry in log.forward if entry[0] == "tanh"}


def test_intermediate_gradients_of_a_function_that_knows_nothing_of_the_tape():
    gradients = {}

    class Catch(tape.OpHook):
        def backward_preprocess(self, op, output_grads):
            if op.name == "tanh":
                gradients[op.scope] = output_grads[0].numpy()

    with tape.hooks(Catch()):
        interop.lift(model, inline=True)(tape.Variable(W), X)["out"].sum().backward()

    def after(h):
        with_rest = jax.nn.relu(halved(h) * 2.0).sum(0)
        return (jnp.sin(with_rest) * X.sum()).sum()

    np.testing.assert_allclose(gradients["hidden"], jax.grad(after)(jnp.tanh(X @ W)), rtol=1e-5)


def test_anomalies_are_found_inside():
    def bad(x):
        y = x - 1.0
        return jnp.sqrt(y) * 0.0

    line = bad.__code__.co_firstlineno + 2
    with pytest.raises(NonFiniteError, match=f"sqrt, recorded at .*{__file__}:{line}"), tape.detect_anomaly():
        interop.lift(bad, inline=True)(tape.Variable(0.5)).backward()


def test_what_a_function_hands_through_is_its_argument():
    x = tape.Variable(2.0)
    same, number, twice = interop.lift(lambda v: (v, 1.5, (v * 2, v * 2)), inline=True)(x)
    (same * number + twice[0] + twice[1]).backward()
    assert float(x.grad) == 5.5


def test_modes_and_transformations():
    w = tape.Variable(W)
    inlined = interop.lift(lambda w: jnp.tanh(w) ** 2, inline=True)
    wanted = jax.grad(lambda w: (jnp.tanh(w) ** 2).sum())(jnp.asarray(W))
    with tape.no_grad():
        assert not inlined(w).requires_grad
    np.testing.assert_allclose(tape.grad(lambda w: inlined(w).sum())(w).numpy(), wanted, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(interop.lower(lambda w: inlined(w).sum())))(W), wanted, rtol=1e-5)
    step = tape.jit(lambda: tape.gradients(inlined(w).sum(), w))
    np.testing.assert_allclose(step(), wanted, rtol=1e-5)
    np.testing.assert_allclose(tape.vmap(tape.grad(lambda w: inlined(w).sum()))(w).detach(), wanted, rtol=1e-5)
    np.testing.assert_allclose(tape.gradients(tape.checkpoint(inlined)(w).sum(), w), wanted, rtol=1e-5)


def test_the_compiled_program_is_that_of_one_op():
    w = tape.Variable(W)

    def programs(fun):
        return tape.jit(lambda: tape.gradients(fun(w, X)["out"].sum(), w))()

    np.testing.assert_array_equal(programs(interop.lift(model, inline=True)), programs(interop.lift(model)))


@pytest.mark.parametrize("bridge", ["nnx", "linen", "equinox"])
def test_modules_are_taken_apart(bridge):
    x = jnp.ones((4, 3))
    if bridge == "nnx":
        nnx = pytest.importorskip("flax.nnx")
        module = interop.nnx.Module(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), inline=True)
    elif bridge == "linen":
        linen = pytest.importorskip("flax.linen")
        module = interop.linen.Module(linen.Dense(2), linen.Dense(2).init(jax.random.key(0), x), inline=True)
    else:
        eqx = pytest.importorskip("equinox")
        module, x = interop.equinox.Module(eqx.nn.Linear(3, 2, key=jax.random.key(0)), inline=True), x[0]
    log = Log()
    with tape.hooks(log):
        module(x).sum().backward()
    assert "dot_general" in [name for name, *_ in log.forward]
    where = next(where for name, where, _ in log.forward if name == "dot_general")
    assert ("equinox" if bridge == "equinox" else "flax") in where[0]
