"""The facade's numpy and scipy: NumPy's own on plain values, recorded on Variables, anywhere among the arguments."""

from inspect import signature

import jax
import numpy as onp  # noqa: ICN001 - np is the facade's
import pytest
import scipy.signal
import scipy.special
import scipy.stats

import interop.autograd.numpy as np
from interop.autograd import grad, make_jvp
from interop.autograd.misc.fixed_points import fixed_point
from interop.autograd.misc.flatten import flatten
from interop.autograd.misc.optimizers import adam, rmsprop, sgd
from interop.autograd.scipy import integrate, linalg, signal, special, stats
from interop.autograd.scipy.misc import logsumexp
from interop.autograd.test_util import check_grads
from tape.errors import TapeTypeError
from tape.graph import constants
from tests.platforms import AT_HOME

A = onp.array([[2.0, 0.3, -0.1], [0.4, 1.5, 0.2], [0.1, -0.3, 1.8]])
X = onp.array([0.3, -1.2, 2.0])
P = onp.array([0.4, 1.2, 2.5])
FLAT = onp.array([1.0, 2.0, 0.0])
DERIVED = "enable_eigvec_derivs" in signature(jax.lax.linalg.eig).parameters  # so do second derivatives of eigenvalues


def test_on_plain_values_they_are_numpys():
    assert type(np.sin([1.0, 2.0])) is onp.ndarray
    assert type(np.sum([1, 2])) is onp.int64
    assert np.add.reduce([1, 2, 3]) == 6
    assert (np.pi, np.float64, np.newaxis) == (onp.pi, onp.float64, None)
    assert np.zeros(2, dtype=np.int64).dtype == onp.int64
    assert isinstance(onp.int64(3), np.int64)
    assert type(np.where(True, 1, 2)) is int
    missing = [n for n in dir(onp) if not n.startswith("_") and not hasattr(np, n)]
    assert missing == []


RECORDED = {
    "arrays of Variables": lambda x: np.array([[x[0], 1.0], [x[1] * 2, x[2]]]),
    "mean of a list": lambda x: np.mean([x, x * x]),
    "concatenate": lambda x: np.concatenate([x, onp.ones(2), [1.0, 2.0]]),
    "stack": lambda x: np.stack((x, X)),
    "vstack": lambda x: np.vstack([x, X]),
    "r_": lambda x: np.r_[x, 1.0, x],
    "dot": lambda x: np.dot(A, x),
    "einsum": lambda x: np.einsum("ij,j->i", A, x),
    "where": lambda x: np.where(X > 0, x, x**2),
    "clip": lambda x: np.clip(x, -1.0, 1.0),
    "index": lambda x: x[[0, 2, 0]],
    "reversed": lambda x: x[::-1],
    "numpys own": lambda x: onp.sin(x) * X,
    "var": lambda x: np.var(x, ddof=1),
    "prod": np.prod,
    "cumsum": np.cumsum,
    "sort": np.sort,
    "partition": lambda x: np.partition(x, 1),
    "power": lambda x: np.power(x**2 + 1, 1.7),
    "hypot": lambda x: np.hypot(x, 1.5),
    "linspace": lambda x: np.linspace(x[0], x[1], 4),
    "tensordot": lambda x: np.tensordot(A, np.outer(x, x), 2),
    "gradient": np.gradient,
    "norm": np.linalg.norm,
    "solve": lambda x: np.linalg.solve(A, x),
    "inv": lambda x: np.linalg.inv(A + np.diag(x**2)),
    "slogdet": lambda x: np.linalg.slogdet(A + np.diag(x**2))[1],
    "eigh": lambda x: np.linalg.eigh(A + A.T + np.diag(x))[0],
    "fft": lambda x: np.real(np.fft.ifft(np.fft.fft(x) * X)),
}


@pytest.mark.parametrize("name", RECORDED)
def test_derivatives_of_numpys_functions(name):
    check_grads(RECORDED[name], modes=["rev"], order=1 if name == "eigh" else 2)(X)


def test_kinks_are_those_of_hips_autograd():
    assert grad(np.abs)(0.0) == 0.0
    assert grad(np.std)(3.5) == 0.0
    assert grad(grad(lambda x: np.hypot(x, x)))(2.0) == pytest.approx(0.0, abs=1e-12)
    assert grad(lambda x: np.clip(x, 0.0, 1.0))(0.0) == 0.0
    assert grad(lambda x: np.maximum(x, 0.0))(0.0) == 0.5
    assert grad(grad(lambda x: np.power(x, 2.0)))(0.0) == 2.0


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.clip(x, 0.0, 1.0, where=X > 0),
        lambda x: np.clip(x, 0.0, 1.0, out=onp.zeros(3)),
        lambda x: np.std(x, out=onp.zeros(())),
    ],
)
def test_options_that_would_be_left_out_are_refused(call):
    with pytest.raises(TapeTypeError, match=r"there is no argument (where|out)="):
        grad(lambda x: np.sum(call(x)))(X)


SPECIAL = {
    "gamma": special.gamma,
    "gammaln": special.gammaln,
    "erf": special.erf,
    "erfinv": lambda x: special.erfinv(x / 4),
    "expit": special.expit,
    "j1": special.j1,
    "yn": lambda x: special.yn(2, x),
    "iv": lambda x: special.iv(2.5, x),
    "betaln": lambda x: special.betaln(x, 2.0),
    "gammainc": lambda x: special.gammainc(1.5, x),
    "polygamma": lambda x: special.polygamma(1, x),
    "multigammaln": lambda x: special.multigammaln(x + 2, 2),
    "logsumexp": lambda x: logsumexp(np.outer(x, x), axis=1),
    "norm": lambda x: stats.norm.logpdf(x, x**2, 1.0 + x) + stats.norm.logcdf(x) + stats.norm.sf(x),
    "t": lambda x: stats.t.logpdf(x, 3.0, 0.1, x) + stats.t.cdf(x, 2.0),
    "gamma distribution": lambda x: stats.gamma.logpdf(x, 2.0) + stats.gamma.cdf(x, 1.5),
    "chi2": lambda x: stats.chi2.logpdf(x, 3) + stats.chi2.pdf(x, 2) + stats.chi2.cdf(x, 2),
    "beta": lambda x: stats.beta.pdf(x / 4, 2.0, x) + stats.beta.cdf(x / 4, 2.0, 1.5),
    "poisson": lambda x: stats.poisson.logpmf(3.0, x) + stats.poisson.cdf(2.0, x),
    "dirichlet": lambda x: stats.dirichlet.logpdf(onp.array([0.2, 0.3, 0.5]), x),
    "multivariate normal": lambda x: stats.multivariate_normal.logpdf(x, X, A @ A.T),
    "multivariate normal, singular": lambda x: stats.multivariate_normal.logpdf(x * FLAT, X * FLAT, onp.diag(FLAT), True),
    "sqrtm": lambda x: linalg.sqrtm(np.diag(x) + A @ A.T),
    "sylvester": lambda x: linalg.solve_sylvester(A, A + np.diag(x), A),
    "solve_triangular": lambda x: linalg.solve_triangular(np.tril(A) + np.diag(x), X, lower=True),
    "solve_banded": lambda x: linalg.solve_banded((1, 0), np.array([x + 1, x / 4]), np.outer(x, x)),
    "convolve": lambda x: signal.convolve(x, onp.array([1.0, -2.0]), mode="same"),
    "convolve along axes": lambda x: signal.convolve(np.outer(x, x), A, axes=([1], [1])),
    "odeint": lambda x: integrate.odeint(lambda y, t, a: -y * a, x, onp.linspace(0, 0.5, 3), (x,), rtol=1e-10, atol=1e-10),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_derivatives_of_scipys_functions(name):
    fun = SPECIAL[name]
    check_grads(fun, modes=["rev"], order=1)(P)
    traced = []
    grad(lambda x: (traced.append(np.array(fun(x))), np.sum(traced[-1]))[1])(P)
    onp.testing.assert_allclose(traced[0].numpy(), fun(P), rtol=1e-9)


def test_what_says_how_odeints_function_is_called_is_not_handed_to_the_adjoint_equation():
    def slope(y, t, a):
        return -y * a + np.sin(t) * y * y

    def total(p, fun, **options):
        return np.sum(np.cos(integrate.odeint(fun, p, onp.linspace(0, 0.5, 3), (p,), **options)))

    expected = grad(total)(P, slope)
    swapped = grad(total)(P, lambda t, y, a: slope(y, t, a), tfirst=True)
    given = grad(total)(P, slope, Dfun=lambda y, t, a: onp.diag(2 * onp.sin(t) * y - a))
    onp.testing.assert_allclose(swapped, expected, rtol=1e-12)
    onp.testing.assert_allclose(given, expected, rtol=1e-5)


def test_what_a_rule_differentiates_by_stays_an_array_of_numpys(monkeypatch):
    def step():
        return grad(lambda p: np.sum(integrate.odeint(lambda y, t, a: -y * a, p, onp.linspace(0, 0.5, 3), (p,))))(P)

    expected = [step(), step()][1]
    made = []
    constant = constants.constant
    monkeypatch.setattr(constants, "constant", lambda value: (made.append(value), constant(value))[1])
    onp.testing.assert_allclose(step(), expected, rtol=1e-12)
    assert sum(isinstance(value, onp.ndarray) for value in made) < 10  # the adjoint's solver asks for some hundred derivatives


def test_convolution_is_scipys():
    rng = onp.random.default_rng(0)
    for a, b in (((5, 4), (3, 2)), ((4,), (3,)), ((6,), (4,))):
        left, right = rng.normal(size=a), rng.normal(size=b)
        for mode in ("full", "same", "valid"):
            onp.testing.assert_allclose(signal.convolve(left, right, mode=mode), scipy.signal.convolve(left, right, mode), atol=1e-12)


def test_flatten_optimizers_and_fixed_points():
    tree = (1.0, onp.ones((2, 3)), [onp.zeros(2), {"x": 2.0, "a": ()}])
    vector, unflatten = flatten(tree)
    assert vector.shape == (10,)
    assert unflatten(vector)[2][1] == {"x": 2.0, "a": ()}
    assert grad(lambda x, y: np.sum(flatten([x, y])[0] ** 2))(3.0, 1.0) == 6.0
    for optimizer in (sgd, rmsprop, adam):
        seen = []
        best = optimizer(
            lambda x, i: grad(lambda x: np.sum((x["a"] - 1.0) ** 2))(x),
            {"a": onp.zeros(2)},
            callback=lambda x, i, g, seen=seen: seen.append((i, x["a"].shape, g["a"].shape)),
            num_iters=200,
            step_size=0.1,
        )
        onp.testing.assert_allclose(best["a"], 1.0, atol=0.1)
        assert seen[-1] == (199, (2,), (2,))
    root = lambda a: fixed_point(lambda a: lambda x: 0.5 * (x + a / x), a, 1.0, lambda x, y: abs(x - y), 1e-10)  # noqa: E731
    assert grad(root)(2.0) == pytest.approx(0.5 / 2**0.5)


def test_steps_of_the_optimizers_are_those_of_their_formulas():
    """Of two steps by one gradient; by default, and what callbacks are told."""
    g = onp.array([2.0, -0.5])
    first = 0.9 + 0.1 * g**2
    expected = {
        sgd: -(0.01 + 0.019) * g,
        rmsprop: -0.1 * g * (1 / (onp.sqrt(first) + 1e-8) + 1 / (onp.sqrt(0.9 * first + 0.1 * g**2) + 1e-8)),
        adam: -0.002 * g / (abs(g) + 1e-8),
    }
    for optimizer, moved in expected.items():
        told = []
        found = optimizer(
            lambda x, i: {"a": g}, {"a": onp.ones(2)}, lambda x, i, g, told=told: told.append((i, x["a"], g["a"])), num_iters=2
        )
        onp.testing.assert_allclose(found["a"], 1 + moved, rtol=1e-13)
        assert [i for i, *_ in told] == [0, 1]
        onp.testing.assert_array_equal([told[0][1], told[0][2], told[1][2]], [onp.ones(2), g, g])


@pytest.mark.parametrize("offset", [-2, 0, 1])
@pytest.mark.parametrize("axes", [(0, 1), (-1, -2), (1, 2)])
def test_make_diagonal_is_what_diagonal_takes_apart(offset, axes):
    d = onp.random.default_rng(0).normal(size=(2, 3))
    made = np.make_diagonal(d, offset, *axes)
    onp.testing.assert_allclose(onp.diagonal(made, offset, *axes), d)
    assert onp.count_nonzero(made) == d.size
    found = grad(lambda d: np.sum(np.make_diagonal(d, offset, *axes) ** 2))(d)
    onp.testing.assert_allclose(found, 2 * d)


@pytest.mark.parametrize("triangle", ["L", "U"])
def test_a_hermitian_matrix_is_the_triangle_that_is_named(triangle):
    """As for NumPy, whose signs of eigenvectors are those of that triangle's routine; on GPUs another one computes them."""
    values, vectors = onp.linalg.eigh(A, triangle)
    seen = []
    grad(lambda a: seen.append(np.linalg.eigh(a, triangle)) or np.sum(a))(A)
    (found,) = seen
    assert onp.allclose(found[0].value, values)
    signs = 1 if AT_HOME else onp.sign((onp.asarray(found[1].value) * vectors).sum(0))
    assert onp.allclose(found[1].value, signs * vectors)
    check_grads(lambda a: np.linalg.eigh(a, triangle)[1])(A)
    check_grads(lambda a: np.linalg.eigvalsh(a, triangle))(A)


def test_eigenvalues_of_a_real_matrix_are_real_where_those_of_numpy_are():
    real = onp.array([[2.0, 1.0], [0.5, 3.0]])
    seen = []

    def summed(a):
        w = np.linalg.eig(a).eigenvalues
        seen.extend([w.dtype, np.linalg.eigvals(a).dtype])
        return np.sum(np.real(w))

    assert onp.allclose(grad(summed)(real), onp.eye(2))
    assert seen == [onp.linalg.eig(real).eigenvalues.dtype, onp.linalg.eigvals(real).dtype]  # complex from NumPy 2.5 on
    check_grads(np.linalg.eigvals, order=2 if DERIVED else 1)(real)
    turned = onp.array([[0.2, -1.0], [1.5, 0.1]])
    check_grads(lambda a: np.abs(np.linalg.eigvals(a)), order=2 if DERIVED else 1)(turned)


@pytest.mark.skipif(not DERIVED, reason="this JAX refuses derivatives of eigenvectors")
@pytest.mark.parametrize("a", [A, A + 1j * A.T, onp.stack([A, A.T])], ids=["real", "complex", "a batch"])
def test_eigenvectors_of_general_matrices(a):
    def fun(a):
        w, v = np.linalg.eig(a)
        return np.abs(w), np.abs(v)

    check_grads(fun, order=1)(a)


def test_lists_of_different_shapes_are_no_array():
    with pytest.raises(ValueError, match="not of one shape"):
        grad(lambda x: np.sum(np.array([x, [x, x]])))(2.0)


@pytest.mark.parametrize("name", ["fmax", "fmin", "maximum", "minimum"])
def test_equal_numbers_share_the_gradient(name):
    assert grad(lambda x: np.sum(getattr(np, name)(x, onp.array([1.0, 0.0, 2.0]))))(onp.ones(3))[0] == 0.5
    given = onp.array([1.0, onp.nan, 3.0]), onp.array([onp.nan, 2.0, 1.0])
    seen = []
    grad(lambda x: seen.append(getattr(np, name)(x, given[1])) or x[0])(given[0])
    assert onp.array_equal(seen[0].value, getattr(onp, name)(*given), equal_nan=True)


def test_what_lapack_cannot_do_is_an_error():
    def jittered(a):
        jitter = 0.0
        while True:
            try:
                return np.sum(np.linalg.cholesky(a + jitter * onp.eye(2)))
            except np.linalg.LinAlgError:
                jitter += 1.0

    onp.testing.assert_allclose(grad(jittered)(-0.5 * onp.eye(2)), onp.full((2, 2), 0.5**0.5))
    for f in (np.linalg.inv, lambda a: np.linalg.solve(a, onp.ones(2))):
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            grad(lambda a, f=f: np.sum(f(a)))(onp.zeros((2, 2)))
        assert onp.isnan(grad(lambda a, f=f: np.sum(f(a)))(onp.full((2, 2), onp.nan))).all()


def test_options_of_numpys_are_taken_or_refused():
    x = onp.array([0.3, -1.2, 2.0])
    onp.testing.assert_array_equal(grad(lambda x: np.dot(np.sort(x, kind="stable"), onp.arange(3.0)))(x), [1, 0, 2])
    assert make_jvp(lambda x: np.std(x, dtype=onp.float32))(x)(x)[0].dtype == onp.float32
    with pytest.raises(TypeError, match="out="):
        grad(lambda x: np.sum(np.sin(x, out=onp.zeros(3))))(x)
    with pytest.raises(TypeError, match="order"):
        grad(lambda x: np.sum(np.sort(x, order="a")))(x)
    onp.testing.assert_array_equal(grad(lambda x: np.sum(x[:, None] ** onp.arange(3.0)))(onp.zeros(2)), [1, 1])
