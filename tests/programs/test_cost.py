"""What compiled programs cost, by XLA's own count: no more work than JAX's, also where somebody looks at the loss first."""

import collections
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.lax
import tape.nn
import tape.numpy as tnp
import tape.scipy.linalg
from tape.programs import buffers, policy
from tape.rules import gates
from tests.platforms import AT_HOME

gelu = jax.custom_jvp(lambda x: jax.nn.gelu(x))  # with the derivative that keeps the digits of its tails, which is more work than JAX's
gelu.defjvps(lambda t, _, x: t * gates.gelu(x))
_NN = types.SimpleNamespace(relu=jax.nn.relu, log_softmax=jax.nn.log_softmax, softmax=jax.nn.softmax, gelu=gelu)
JAX = types.SimpleNamespace(np=jnp, nn=_NN, lax=jax.lax, solve=jax.scipy.linalg.solve_triangular)
TAPE = types.SimpleNamespace(np=tnp, nn=tape.nn, lax=tape.lax, solve=tape.scipy.linalg.solve_triangular)


def array(*shape):
    return (np.random.default_rng(shape).standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)


def mlp(n, p, x):
    h = n.nn.relu(x @ p["w1"] + p["b1"])
    h = n.nn.relu(h @ p["w2"] + p["b2"])
    return -n.nn.log_softmax(h @ p["w3"])[:, 0].mean()


def cnn(n, p, x):
    numbers = ("NHWC", "HWIO", "NHWC")
    for kernel, bias in ((p["k1"], p["b1"]), (p["k2"], p["b2"])):
        x = n.nn.relu(n.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers) + bias)
        x = x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2, x.shape[3]).max((2, 4))
    return -n.nn.log_softmax(x.reshape(x.shape[0], -1) @ p["w"])[:, 0].mean()


def transformer(n, p, x):
    batch, length, width = x.shape

    def normalized(h):
        centred = h - h.mean(-1, keepdims=True)
        return centred / n.np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    def heads(h):
        return h.reshape(batch, length, 4, width // 4)

    h = normalized(x) * p["g1"]
    query, key, value = heads(h @ p["q"]), heads(h @ p["k"]), heads(h @ p["v"])
    weights = n.nn.softmax(n.np.einsum("blhd,bmhd->bhlm", query, key) / 4)
    x = x + n.np.einsum("bhlm,bmhd->blhd", weights, value).reshape(x.shape) @ p["o"]
    h = normalized(x) * p["g2"]
    return ((x + n.nn.gelu(h @ p["w1"]) @ p["w2"]) ** 2).mean()


def process(n, p, x):
    z = x / n.np.exp(p["scale"])
    squares = (z * z).sum(1)
    distances = squares[:, None] + squares[None, :] - 2 * z @ z.T
    covariance = n.np.exp(p["amplitude"] - distances / 2) + n.np.exp(p["noise"]) * n.np.eye(x.shape[0])
    factor = n.np.linalg.cholesky(covariance)
    white = n.solve(factor, n.np.sin(x).sum(1), lower=True)
    return (white * white).sum() / 2 + n.np.log(n.np.diagonal(factor)).sum()


WORKLOADS = {
    mlp: ({"w1": array(64, 128), "b1": array(128), "w2": array(128, 128), "b2": array(128), "w3": array(128, 10)}, array(32, 64)),
    cnn: ({"k1": array(3, 3, 3, 16), "b1": array(16), "k2": array(3, 3, 16, 16), "b2": array(16), "w": array(64, 10)}, array(4, 8, 8, 3)),
    transformer: (
        {name: array(64, 64) for name in "qkvo"} | {"g1": array(64), "g2": array(64), "w1": array(64, 256), "w2": array(256, 64)},
        array(4, 16, 64),
    ),
    process: ({"scale": array(5), "amplitude": np.float32(0.1), "noise": np.float32(-1.0)}, array(60, 5) * 8),
}
COSTLY = re.compile(r"stablehlo\.(?:dot_general|convolution|cholesky|triangular_solve)\b|@lapack_\w+")


class Cost:
    """What the programs of one step cost in total: floating-point operations, as lowered and as compiled, and how often each costly one is there."""

    def __init__(self):
        self.lowered = self.flops = 0.0
        self.counts = collections.Counter()

    def add(self, lowered, compiled):
        self.lowered += lowered.cost_analysis()["flops"]
        self.flops += compiled.cost_analysis()["flops"]
        self.counts.update(COSTLY.findall(lowered.as_text()))


def cost_of(step, monkeypatch):
    """Run a step until it is compiled; return the cost of the programs that it runs then: others may have been compiled for its first runs."""
    monkeypatch.setattr(policy, "LEAST", 1 << 30)  # first steps hold more, and are not compiled
    run = []
    jit = jax.jit

    class Observed:
        def __init__(self, fun, **options):
            self.jitted, self.cost = jit(fun, **options), Cost()

        def __call__(self, *args):
            run.append(self.cost)
            return self.jitted(*args)

        def lower(self, *args):
            lowered = self.jitted.lower(*args)

            def compile_it():
                compiled = lowered.compile()
                self.cost.add(lowered, compiled)
                return compiled

            return types.SimpleNamespace(compile=compile_it)

    monkeypatch.setattr(buffers, "jax", types.SimpleNamespace(**{**vars(jax), "jit": Observed}))
    for _ in range(12):  # a process that meets these ops for the first time needs some steps more
        tape.stats().reset()
        run.clear()
        step()
        if (tape.stats().interpreted, tape.stats().compiles) == (0, 0):
            assert run
            total = Cost()
            for cost in run:
                total.lowered += cost.lowered
                total.flops += cost.flops
                total.counts += cost.counts
            return total
    pytest.fail("the step is still interpreted, or compiled anew")


@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("f", WORKLOADS)
def test_programs_do_no_more_work_than_those_of_jax(f, look, monkeypatch):
    parameters, x = WORKLOADS[f]
    lowered = jax.jit(jax.value_and_grad(lambda p: f(JAX, p, x))).lower(parameters)
    theirs = Cost()
    theirs.add(lowered, lowered.compile())
    expected = jax.grad(lambda p: f(JAX, p, x))(parameters)
    variables = {name: tape.Variable(value) for name, value in parameters.items()}
    constant = tape.constant(x)

    def step():
        for v in variables.values():
            v.zero_grad()
        loss = f(TAPE, variables, constant)
        if look:
            float(loss)
        loss.backward()

    ours = cost_of(step, monkeypatch)
    for name, gradient in expected.items():
        np.testing.assert_allclose(variables[name].grad.value, gradient, rtol=1e-3, atol=1e-5)
    assert theirs.counts.total() >= 8
    assert ours.counts == theirs.counts  # nothing heavy is done twice
    more = 1.05 if look else 1.02
    assert ours.lowered <= more * theirs.lowered, ours.lowered / theirs.lowered
    if AT_HOME:  # on GPUs XLA's fusions compute again what several of them read
        assert ours.flops <= more * theirs.flops, ours.flops / theirs.flops
