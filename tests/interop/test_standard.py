"""Libraries that take arrays of any kind run on Variables, and gradients flow; those that want plain values are refused with advice."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop  # noqa: F401 - tells einops of Variables
import tape
import tape.numpy as tnp
from tape.errors import LostGradientError, TapeError
from tests.daily import share

X = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3) / 3
EINOPS = {
    "rearrange": lambda e, x: e.rearrange(x, "a (b c) -> c (a b)", c=3),
    "mean": lambda e, x: e.reduce(x, "a b -> a", "mean"),
    "max": lambda e, x: e.reduce(x, "a b -> b", "max"),
    "prod": lambda e, x: e.reduce(x, "(a c) b -> a", "prod", a=1),
    "repeat": lambda e, x: e.repeat(x, "a b -> (a c) b", c=2) ** 2,
    "einsum": lambda e, x: e.einsum(x, x, x, "a b, c b, c d -> a d"),
    "pack": lambda e, x: e.pack([x, x * x], "* b")[0],
    "unpack": lambda e, x: e.unpack(x, [[1], [2]], "a *")[1] ** 3,
    "list": lambda e, x: e.rearrange([x, x**2], "k a b -> a (k b)"),
}


def both(fun, reference=None):
    """Value, gradient and second derivative of a function, by the tape (plain, and compiled) and by JAX."""

    def inner(f):
        return lambda v: (f(v) ** 2).sum()

    ours, theirs = inner(fun), inner(reference or fun)
    wanted = theirs(jnp.asarray(X)), jax.grad(theirs)(X), jax.grad(lambda v: (jax.grad(theirs)(v) ** 2).sum())(X)

    def step(v):
        value = ours(v)
        (gradient,) = tape.gradients(value, [v], create_graph=True)
        return value, gradient, tape.gradients((gradient**2).sum(), [v])[0]

    for run in (step, tape.jit(step)):
        for a, b in zip(run(tape.Variable(X)), wanted, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", share(list(EINOPS), 2))
def test_einops_records(name):
    einops = pytest.importorskip("einops")
    both(lambda v: EINOPS[name](einops, v))


ORDERS = [
    "import einops, interop",
    "import interop, einops",
    "import einops, interop.einops",
    "import interop, tape; from einops import layers, rearrange",
]


@pytest.mark.parametrize("order", ORDERS)
def test_einops_hears_of_variables_whatever_is_imported_first(order):
    pytest.importorskip("einops")
    script = f"{order}\nimport sys, einops, tape\nassert einops.rearrange(tape.Variable([[1.0, 2.0]]), 'a b -> b a').shape == (2, 1)\n"
    script += "assert not [f for f in sys.meta_path if type(f).__name__ == '_Arrival']"
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603


def test_opt_einsum_records():
    oe = pytest.importorskip("opt_einsum")
    both(lambda v: oe.contract("ab,cb,cd->ad", v, v, v))
    expression = oe.contract_expression("ab,cb,cd->ad", (2, 3), (2, 3), (2, 3))
    both(lambda v: expression(v, v, v), lambda v: jnp.einsum("ab,cb,cd->ad", v, v, v))


def test_array_api_compat_takes_variables():
    compat = pytest.importorskip("array_api_compat")
    v = tape.Variable(X)
    assert compat.array_namespace(v) is tnp
    assert compat.is_array_api_obj(v)
    assert compat.size(v) == 6
    assert compat.to_device(v, compat.device(v)).requires_grad
    made = tape.jit(lambda x: x + tnp.ones(3, device=compat.device(x)))(v)  # as functions do that make arrays beside their arguments
    np.testing.assert_array_equal(made.numpy(), X + 1)


SCIPY = """
import os
os.environ["SCIPY_ARRAY_API"] = "1"
import jax, jax.numpy as jnp, numpy as np, scipy.special, scipy.stats, scipy.integrate, scipy.fft
import tape
X = np.array([[0.3, 1.2, 2.1], [0.7, 0.4, 1.9]], np.float32)
LOOKING = ("zscore", "moment")  # at values, in Python: under tape.jit they say so, as everything does
for name, (fun, reference) in {
    "logsumexp": (lambda v: scipy.special.logsumexp(v, axis=1), lambda v: jax.nn.logsumexp(v, axis=1)),
    "softmax": (lambda v: scipy.special.softmax(v, axis=1), lambda v: jax.nn.softmax(v, axis=1)),
    "log_softmax": (lambda v: scipy.special.log_softmax(v, axis=1), lambda v: jax.nn.log_softmax(v, axis=1)),
    "gmean": (lambda v: scipy.stats.gmean(v, axis=1), lambda v: jnp.exp(jnp.log(v).mean(axis=1))),
    "zscore": (lambda v: scipy.stats.zscore(v, axis=1), lambda v: (v - v.mean(1, keepdims=True)) / v.std(1, keepdims=True)),
    "moment": (lambda v: scipy.stats.moment(v, order=3, axis=1), lambda v: ((v - v.mean(1, keepdims=True)) ** 3).mean(1)),
    "trapezoid": (lambda v: scipy.integrate.trapezoid(v), lambda v: ((v[:, 1:] + v[:, :-1]) / 2).sum(1)),
    "rfft": (lambda v: abs(scipy.fft.rfft(v)), lambda v: abs(jnp.fft.rfft(v))),
}.items():
    def step(v):
        (g,) = tape.gradients((fun(v) ** 2).sum(), [v], create_graph=True)
        return g, tape.gradients((g ** 2).sum(), [v])[0]
    first = jax.grad(lambda v: (reference(v) ** 2).sum())
    second = jax.grad(lambda v: (first(v) ** 2).sum())
    for run in (step,) if name in LOOKING else (step, tape.jit(step)):
        for a, b in zip(run(tape.Variable(X)), (first(X), second(X))):
            np.testing.assert_allclose(a.numpy(), b, rtol=2e-3, atol=2e-3)
try:
    scipy.stats.entropy(tape.Variable(X))  # it has no other way than through NumPy
except tape.errors.LostGradientError as e:
    assert ".numpy()" in str(e)
else:
    raise AssertionError
np.testing.assert_allclose(np.asarray(scipy.stats.entropy(tape.constant(X))), scipy.stats.entropy(X), rtol=1e-5)
"""


def test_scipy_takes_the_standard():
    pytest.importorskip("scipy", minversion="1.15")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCIPY], check=False, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr


def _frames(v):
    pandas = pytest.importorskip("pandas")
    return [lambda: pandas.Series(v[0]), lambda: pandas.DataFrame(v), lambda: pandas.DataFrame({"a": v[0]})]


def _plots(v):
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    return [
        lambda: plt.plot(v[0]),
        lambda: plt.scatter(v[0], v[1]),
        lambda: plt.imshow(v),
        lambda: plt.hist(v[0]),
        lambda: plt.bar([1, 2, 3], v[0]),
    ]


def _fits(v):
    linear = pytest.importorskip("sklearn.linear_model")
    return [lambda: linear.LinearRegression().fit(v, [1, 2]), lambda: linear.LinearRegression().fit(X, v[:, 0])]


def _arrays(v):
    return [lambda: np.asarray(v), lambda: np.array([v[0], v[1]]), lambda: np.from_dlpack(v), lambda: jnp.from_dlpack(v)]


@pytest.mark.parametrize("uses", [_arrays, _frames, _plots, _fits])
def test_what_wants_plain_values_takes_numpy_and_is_refused_a_gradient(uses):
    for use in uses(tape.Variable(X)):
        with pytest.raises(LostGradientError, match=r"would lose its gradient; use \.numpy\(\), \.value or \.detach\(\)"):
            use()
    host = jax.device_put(X, jax.devices("cpu")[0])  # where NumPy's from_dlpack takes arrays
    for v in (tape.Variable(X).numpy(), tape.Variable(host).detach(), tape.constant(host)):
        if uses is not _arrays or not isinstance(v, np.ndarray):
            for use in uses(v):
                use()


def test_dlpack_goes_both_ways():
    host = tape.constant(jax.device_put(X, jax.devices("cpu")[0]))
    assert host.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(np.from_dlpack(host), X)
    torch = pytest.importorskip("torch")
    c = tape.constant(X)
    assert c.__dlpack_device__() == c.value.__dlpack_device__()
    np.testing.assert_array_equal(torch.from_dlpack(c).cpu().numpy(), X)
    np.testing.assert_array_equal(torch.from_dlpack(host).numpy(), X)
    np.testing.assert_array_equal(tape.constant(jnp.from_dlpack(torch.tensor(X))).numpy(), X)
    with pytest.raises(TapeError, match="would lose its gradient"):
        torch.from_dlpack(tape.Variable(X))
