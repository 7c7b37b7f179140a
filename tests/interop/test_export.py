"""What is exported runs without this library: values, gradients, symbolic lengths; what cannot be exported is said."""

import functools
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.nn
import tape.numpy as tnp
from tape.errors import TapeTypeError

X = np.random.default_rng(3).normal(size=(5, 3)).astype(np.float32)
W = np.random.default_rng(4).normal(size=(3, 2)).astype(np.float32)
ROWS = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 3"), jnp.float32)


def net(x, params, *, scale):
    h = tape.nn.softmax(tnp.tanh(x @ params["w"]) * scale)
    return {"y": h.mean(0), "loss": (h**2).sum() / x.shape[0]}


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-6, atol=1e-6)


def test_values_and_gradients_for_any_batch():
    exported = interop.export(net, ROWS, {"w": tape.Variable(W)}, scale=2.0)
    for x in (X, X[:2], np.tile(X, (3, 1))):
        v, w = tape.Variable(x), tape.Variable(W)
        wanted = net(v, {"w": w}, scale=2.0)
        out = exported.call(x, {"w": W}, scale=2.0)
        close(out["y"], wanted["y"].detach())
        close(out["loss"], wanted["loss"].detach())
    sweep = interop.export(lambda x, w: tape.gradients(net(x, {"w": w}, scale=2.0)["loss"], [x, w]), ROWS, W)
    v, w = tape.Variable(X), tape.Variable(W)
    for g, wanted in zip(sweep.call(X, W), tape.gradients(net(v, {"w": w}, scale=2.0)["loss"], [v, w]), strict=True):
        close(g, wanted)


def test_functions_of_jit_captures_and_rules_of_the_users():
    class Cube(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved
            return 30 * x * x * g  # ten times the derivative, to be told from JAX's

    w = tape.Variable(W)
    exported = interop.export(tape.jit(lambda x: Cube.apply(x @ w).sum()), ROWS)
    close(exported.call(X), ((X @ W) ** 3).sum())
    gradient = interop.export(lambda x: tape.gradients(Cube.apply(x @ w).sum(), x), ROWS)
    close(gradient.call(X), 30 * (X @ W) ** 2 @ W.T)
    w.value = w.value * 2  # constants are what they were
    close(exported.call(X), ((X @ W) ** 3).sum())


RELOADED = """
import sys, numpy as np, jax, jax.export
blob, data, out = sys.argv[1:]
with open(blob, "rb") as file:
    exported = jax.export.deserialize(bytearray(file.read()))
with np.load(data) as given:
    x, w = given["x"], given["w"]
def loss(x, w):
    return exported.call(x, {"w": w}, scale=2.0)["loss"]
value, (gx, gw) = jax.value_and_grad(loss, (0, 1))(x, w)
np.savez(out, value=value, gx=gx, gw=gw)
assert not [name for name in sys.modules if name.split(".")[0] in ("tape", "interop")]
"""


def test_bytes_run_without_this_library(tmp_path):
    pytest.importorskip("flatbuffers", reason="jax.export makes bytes with it")
    exported = interop.export(net, ROWS, {"w": W}, scale=2.0)
    (tmp_path / "net").write_bytes(exported.serialize(vjp_order=1))
    np.savez(tmp_path / "given.npz", x=X, w=W)
    command = [sys.executable, "-c", RELOADED, tmp_path / "net", tmp_path / "given.npz", tmp_path / "out.npz"]
    subprocess.run(list(map(str, command)), check=True, cwd=tmp_path)  # noqa: S603 - its own interpreter
    v, w = tape.Variable(X), tape.Variable(W)
    loss = net(v, {"w": w}, scale=2.0)["loss"]
    gx, gw = tape.gradients(loss, [v, w], retain_graph=True)
    with np.load(tmp_path / "out.npz") as out:
        close(out["value"], loss.detach())
        close(out["gx"], gx)
        close(out["gw"], gw)


def test_a_recorded_tape_is_exported():
    x, w = tape.Variable(X), tape.Variable(W)
    loss = net(x, {"w": w}, scale=2.0)["loss"]
    t = tape.Tape.of(loss)
    inputs = interop.export(t.function([x, w], [loss]), X, W)
    constant = interop.export(t.function([x], [loss]), X)
    for other in (X, X + 1):
        wanted = net(tape.constant(other), {"w": tape.constant(W)}, scale=2.0)["loss"]
        close(jax.tree.leaves(inputs.call(other, W))[0], wanted)
        close(jax.tree.leaves(constant.call(other))[0], wanted)
    loss.backward()
    close(jax.tree.leaves(inputs.call(X, W))[0], loss.detach())  # the tape was released, what was exported stays


def test_what_cannot_be_exported_is_said():
    host = interop.lift(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"))
    with pytest.raises(TapeTypeError, match=r"calls back to Python \(pure_callback\)"):
        interop.export(lambda x: host(x) * 2, X)
    with pytest.raises(TapeTypeError, match="expected a function, got Variable"):
        interop.export(tape.Variable(X), X)
    with pytest.raises(TapeTypeError, match=r"given str, which is not an array; bind it by functools\.partial"):
        interop.export(lambda x, how: x, X, "mean")
    count = tape.constant(0.0)

    def counted(x):
        count.value = count + x.sum()
        return x

    with pytest.raises(TapeTypeError, match="assigns to a Variable outside of it"):
        interop.export(counted, X)
    assert float(count) == 0.0
    with pytest.raises(TapeTypeError, match="must return Variables or arrays"):
        interop.export(lambda x: (x, "text"), X)


def test_a_torch_module_is_refused():
    torch = pytest.importorskip("torch", reason="the bridge to PyTorch needs it: pip install torch, the build for CPUs")
    with pytest.raises(TapeTypeError, match="calls back to Python"):
        interop.export(interop.torch.from_torch(torch.sin), X)


@pytest.mark.parametrize("symbolic", [False, True])
def test_common_layers_take_a_symbolic_batch(symbolic):
    def model(x):
        h = tape.nn.gelu(tnp.einsum("bi,ij->bj", x, W))
        h = tnp.concatenate([h, h[:, ::-1]], axis=1).reshape(x.shape[0], 2, 2)
        return tape.nn.logsumexp(tnp.where(h > 0, h, 0.1 * h), axis=(1, 2)), tnp.argmax(h.reshape(x.shape[0], -1), 1)

    exported = interop.export(model, ROWS if symbolic else X)
    for a, b in zip(exported.call(X), model(tape.constant(X)), strict=True):
        close(a, b)


def test_loops_over_a_symbolic_length_have_gradients():
    def f(scan, zeros, x):
        last, products = scan(lambda c, t: (c * 0.5 + t, c * t), zeros(3), x)
        return (last**2).sum() + products.sum()

    exported = interop.export(tape.grad(functools.partial(f, tape.lax.scan, tnp.zeros)), ROWS)
    for x in (X, X[:1]):
        close(exported.call(x), jax.grad(functools.partial(f, jax.lax.scan, jnp.zeros))(x))
