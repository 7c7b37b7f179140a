"""SciPy's optimizers get derivatives from the tape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import interop
import tape
import tape.numpy as tnp
from tape.errors import TapeTypeError, TapeValueError


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def rosen(x):
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


START = np.array([1.3, 0.7, 0.8, 1.9, 1.2])
GIVEN = {"jac": scipy.optimize.rosen_der}


@pytest.mark.parametrize(
    ("method", "given"),
    [
        (None, GIVEN),
        ("CG", GIVEN),
        ("BFGS", GIVEN),
        ("L-BFGS-B", GIVEN),
        ("TNC", GIVEN),
        ("SLSQP", GIVEN),
        ("Newton-CG", {**GIVEN, "hessp": scipy.optimize.rosen_hess_prod}),
        ("trust-ncg", {**GIVEN, "hessp": scipy.optimize.rosen_hess_prod}),
        ("trust-krylov", {**GIVEN, "hessp": scipy.optimize.rosen_hess_prod}),
        ("trust-exact", {**GIVEN, "hess": scipy.optimize.rosen_hess}),
        ("dogleg", {**GIVEN, "hess": scipy.optimize.rosen_hess}),
        ("Nelder-Mead", {}),
    ],
)
def test_methods_take_the_steps_that_exact_derivatives_give(method, given):
    start = START if method != "dogleg" else np.full(5, 1.05)  # where the Hessian is positive definite
    options = {"maxfun": 9} if method == "TNC" else {"maxiter": 6}
    wanted = scipy.optimize.minimize(scipy.optimize.rosen, start, method=method, options=options, **given)
    found = interop.scipy.minimize(rosen, start, method=method, options=options)
    assert (found.nfev, found.nit) == (wanted.nfev, wanted.nit)
    np.testing.assert_allclose(found.x, wanted.x, rtol=1e-6)
    assert found.x.dtype == np.float64


def test_trees_keep_their_structure_and_dtypes():
    target = {"a": np.array([[1.0, -2.0]], np.float32), "b": (3.0, np.arange(2.0))}

    def fun(x, scale):
        assert x["a"].dtype == jnp.float32
        return scale * sum(
            ((v - t) ** 2).sum()
            for v, t in zip(jax.tree.leaves(x, is_leaf=lambda v: isinstance(v, tape.Variable)), jax.tree.leaves(target), strict=True)
        )

    found = interop.scipy.minimize(fun, jax.tree.map(np.zeros_like, target), args=(0.5,), method="BFGS")
    assert jax.tree.structure(found.x) == jax.tree.structure(target)
    assert found.x["a"].dtype == np.float32
    assert found.x["a"].shape == (1, 2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), found.x, target)
    listed = interop.scipy.minimize(lambda x: ((x - 2) ** 2).sum(), [0, 1])
    np.testing.assert_allclose(listed.x, [2, 2], rtol=1e-6)


def test_functions_may_look_at_values():
    seen = []

    def fun(x):
        seen.append(float(x[0].detach()))
        return (x**2).sum() if x[0] > 1 else (x**4).sum() + 0 * x.sum()

    found = interop.scipy.minimize(fun, np.array([3.0]), method="BFGS", callback=lambda x: seen.append(x))
    assert found.fun < 1e-4
    assert any(isinstance(x, np.ndarray) for x in seen)


def test_constraints_and_bounds_are_functions_of_the_tape():
    # Least distance from (2, 1) to the unit disc, x1 at most 0.4.
    def distance(x):
        return ((x - np.array([2.0, 1.0])) ** 2).sum()

    def slack(x, radius):
        return radius**2 - (x**2).sum()

    bounds = [(-1, 1), (-1, 0.4)]
    wanted = [np.sqrt(1 - 0.16), 0.4]
    found = interop.scipy.minimize(
        distance, np.zeros(2), method="SLSQP", bounds=bounds, constraints={"type": "ineq", "fun": slack, "args": (1.0,)}
    )
    np.testing.assert_allclose(found.x, wanted, rtol=1e-6)
    circle = scipy.optimize.NonlinearConstraint(lambda x: (x**2).sum(), -np.inf, 1)
    found = interop.scipy.minimize(distance, np.array([0.1, 0.1]), method="trust-constr", bounds=bounds, constraints=[circle])
    np.testing.assert_allclose(found.x, wanted, rtol=1e-3)
    linear = scipy.optimize.LinearConstraint([[1.0, 1.0]], 1.0, 1.0)
    found = interop.scipy.minimize(distance, np.zeros(2), method="SLSQP", constraints=linear)
    np.testing.assert_allclose(found.x, [1, 0], atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"method": "lm"}, {"loss": "soft_l1"}, {"bounds": (0, 2.5)}])
def test_least_squares(options):
    t = np.linspace(0, 2, 15)
    y = 2.0 * np.exp(-1.3 * t) + 0.01 * np.cos(9 * t)

    def residuals(p):
        return p[0] * np.exp(-p[1] * t) - y

    def jacobian(p):
        return np.stack([np.exp(-p[1] * t), -p[0] * t * np.exp(-p[1] * t)], 1)

    wanted = scipy.optimize.least_squares(residuals, [1.0, 1.0], jac=jacobian, **options)
    found = interop.scipy.least_squares(lambda p: p[0] * tnp.exp(-p[1] * t) - y, [1.0, 1.0], **options)
    np.testing.assert_allclose(found.x, wanted.x, rtol=1e-7)
    assert found.nfev == wanted.nfev
    pieces = interop.scipy.least_squares(lambda p: [p["a"] * tnp.exp(-p["b"] * t) - y, 0 * p["a"]], {"a": 1.0, "b": 1.0}, **options)
    np.testing.assert_allclose([pieces.x["a"], pieces.x["b"]], wanted.x, rtol=1e-5)


@pytest.mark.parametrize(("rows", "used"), [(9, ["jacfwd"]), (1, ["jacrev"])])
def test_jacobians_are_computed_from_their_shorter_side(rows, used, monkeypatch):
    seen = []
    for name in ("jacfwd", "jacrev"):
        real = getattr(tape, name)
        monkeypatch.setattr(tape, name, lambda f, name=name, real=real: seen.append(name) or real(f))
    weights = np.arange(1.0, 1.0 + 2 * rows).reshape(rows, 2)
    found = interop.scipy.least_squares(lambda p: tnp.tanh(weights @ (p - 1)), [0.8, 1.1], method="trf")
    assert sorted(set(seen)) == used
    assert found.cost < 1e-9


class Opaque(tape.Function):
    """The derivative of its backward is not to be had."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, ct):
        return tape.constant(np.asarray((2 * ctx.saved[0] * ct).detach()))


def test_a_function_without_a_second_derivative_has_a_jacobian():
    found = interop.scipy.least_squares(lambda p: Opaque.apply(p) - np.array([4.0, 9.0]), [1.0, 1.0])
    np.testing.assert_allclose(found.x, [2.0, 3.0], rtol=1e-6)
    tall = interop.scipy.least_squares(lambda p: tnp.concatenate([Opaque.apply(p) - np.array([4.0, 9.0]), 0 * p]), [1.0, 1.0])
    np.testing.assert_allclose(tall.x, [2.0, 3.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: interop.scipy.minimize(3, [1.0]), TapeTypeError, "expected a function"),
        (lambda: interop.scipy.minimize(lambda x: x, [1.0, 2.0]), TapeValueError, r"reduce it, for instance with \.sum\(\)"),
        (lambda: interop.scipy.minimize(lambda x: float(x.sum().detach()), [1.0]), TapeTypeError, "compute it with tape.numpy"),
        (lambda: interop.scipy.minimize(lambda x: x.sum(), np.array([1j])), TapeTypeError, "real and imaginary parts"),
        (lambda: interop.scipy.minimize(lambda x: x.sum(), np.zeros(0)), TapeValueError, "no numbers"),
        (lambda: interop.scipy.least_squares(lambda x: x, [1.0], jac="2-point"), TapeTypeError, "leave out jac"),
        (lambda: interop.scipy.least_squares(lambda x: x * 1j, [1.0]), TapeTypeError, "got dtype complex128"),
    ],
)
def test_what_does_not_fit_says_so(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_float32_is_what_there_is_without_x64():
    with jax.enable_x64(False):
        found = interop.scipy.minimize(rosen, START.astype(np.float32), method="BFGS", options={"gtol": 1e-3})
    assert found.x.dtype == np.float32
    np.testing.assert_allclose(found.x, np.ones(5), atol=1e-2)
