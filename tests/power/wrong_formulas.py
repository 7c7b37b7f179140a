"""Wrong formulas: the terms that are forgotten in the well-known derivatives of layers, matrices, densities and solvers."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import built, complexes, conditioned, custom, normal, rule, uniform

# layers and activations -----------------------------------------------------------------------------------------------
rule(
    "layer",
    "softmax_without_the_sum",
    "out (1 - out), as if it were a sigmoid",
    jax.nn.softmax,
    lambda ct, out, x: (ct * out * (1 - out),),
    normal(5),
)
rule(
    "layer",
    "log_softmax_without_the_sum",
    "ct - out instead of ct - exp(out) sum(ct)",
    jax.nn.log_softmax,
    lambda ct, out, x: (ct - jnp.exp(out),),
    normal(5),
)
rule(
    "layer",
    "cross_entropy_sign",
    "labels minus probabilities",
    lambda x, y: -jnp.sum(y * jax.nn.log_softmax(x)),
    lambda ct, out, x, y: (ct * (y - jax.nn.softmax(x)), -ct * jax.nn.log_softmax(x)),
    normal(4),
    np.array([0.0, 1.0, 0.0, 0.0]),
)


def _standard(x):
    mean, var = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + 1e-5)


def _scale(x):
    return 1 / jnp.sqrt(jnp.var(x, -1, keepdims=True) + 1e-5)


rule(
    "layer",
    "layer_norm_without_the_variance",
    "the term through the variance is missing",
    _standard,
    lambda ct, out, x: ((ct - jnp.mean(ct, -1, keepdims=True)) * _scale(x),),
    normal(2, 5),
)
rule(
    "layer",
    "layer_norm_without_the_mean",
    "the term through the mean is missing",
    _standard,
    lambda ct, out, x: ((ct - out * jnp.mean(ct * out, -1, keepdims=True)) * _scale(x),),
    normal(2, 5),
)
rule(
    "layer",
    "rms_norm_as_a_constant",
    "the root mean square is taken for a constant",
    lambda x: x / jnp.sqrt(jnp.mean(x * x)),
    lambda ct, out, x: (ct / jnp.sqrt(jnp.mean(x * x)),),
    normal(6),
)
rule(
    "layer",
    "gelu_of_the_other_form",
    "the slope of the tanh form for the exact one",
    lambda x: jax.nn.gelu(x, approximate=False),
    lambda ct, out, x: jax.vjp(lambda y: jax.nn.gelu(y, approximate=True), x)[1](ct),
    np.array([-2.2, -1.1, 1.3, 2.4]),
)
rule(
    "layer",
    "swish_without_the_product",
    "only the sigmoid, not its slope",
    jax.nn.silu,
    lambda ct, out, x: (ct * jax.nn.sigmoid(x),),
    normal(4),
)
rule(
    "layer",
    "attention_scale_missing",
    "the factor 1 / sqrt(d) is missing in the queries' gradient",
    lambda q, k: q @ k.T / 2.0,
    lambda ct, out, q, k: (ct @ k, ct.T @ q / 2.0),
    normal(3, 4),
    normal(2, 4),
)
rule(
    "layer",
    "logsumexp_unnormalised",
    "exp(x - max) instead of exp(x - out)",
    jax.nn.logsumexp,
    lambda ct, out, x: (ct * jnp.exp(x - jnp.max(x)),),
    normal(5),
)

# matrices -------------------------------------------------------------------------------------------------------------
_A = np.eye(3) * 2 + 0.5 * normal(3, 3)
_SPD = conditioned(3, 4.0, symmetric=True)


def _sym(a):
    return 0.5 * (a + a.T)


rule(
    "matrix",
    "inverse_without_transposes",
    "-B ct B instead of -B' ct B'",
    jnp.linalg.inv,
    lambda ct, out, a: (-out @ ct @ out,),
    _A,
)
rule("matrix", "inverse_without_minus", "the minus is missing", jnp.linalg.inv, lambda ct, out, a: (out.T @ ct @ out.T,), _A)
rule(
    "matrix",
    "determinant_without_itself",
    "the inverse instead of det times the inverse",
    jnp.linalg.det,
    lambda ct, out, a: (ct * jnp.linalg.inv(a).T,),
    _A,
)
rule(
    "matrix",
    "determinant_not_transposed",
    "the adjugate is not transposed",
    jnp.linalg.det,
    lambda ct, out, a: (ct * out * jnp.linalg.inv(a),),
    _A,
)
rule(
    "matrix",
    "log_determinant_not_transposed",
    "the inverse is not transposed",
    lambda a: jnp.linalg.slogdet(a)[1],
    lambda ct, out, a: (ct * jnp.linalg.inv(a),),
    _A,
)
rule(
    "matrix",
    "trace_as_ones",
    "every entry gets the cotangent, not only the diagonal",
    lambda a: jnp.trace(a),
    lambda ct, out, a: (ct * jnp.ones_like(a),),
    _A,
)


def _cholesky(a):
    return jnp.linalg.cholesky(_sym(a), symmetrize_input=False)


def _cholesky_bwd(halve, symmetric):
    def bwd(ct, out, a):
        inner = jnp.tril(out.T @ ct)
        inner = inner - 0.5 * jnp.diag(jnp.diag(inner)) if halve else inner
        inverse = jnp.linalg.inv(out)
        grad = inverse.T @ inner @ inverse
        return (_sym(grad) if symmetric else grad,)

    return bwd


rule("matrix", "cholesky_without_the_half", "the diagonal is not halved", _cholesky, _cholesky_bwd(False, True), _SPD)
rule("matrix", "cholesky_not_symmetric", "the gradient is not symmetrised", _cholesky, _cholesky_bwd(True, False), _SPD)
rule(
    "matrix",
    "eigenvalues_not_transposed",
    "V' diag(ct) V instead of V diag(ct) V'",
    lambda a: jnp.linalg.eigvalsh(_sym(a)),
    lambda ct, out, a: ((lambda v: v.T @ jnp.diag(ct) @ v)(jnp.linalg.eigh(_sym(a))[1]),),
    _sym(normal(3, 3)),
)


@built(
    "matrix", "1 / (w_j - w_i) has the other sign", _sym(normal(3, 3, seed=4)), truth=lambda a: jnp.abs(jnp.linalg.eigh(_sym(a))[1]) ** 2
)
def eigenvectors_with_the_other_gap():
    def decompose(a):
        w, v = jnp.linalg.eigh(_sym(a))
        return w, v

    def bwd(ct, out, a):
        w, v = out
        gap = w[:, None] - w[None, :] + jnp.eye(3, dtype=a.dtype)
        inner = (v.T @ ct[1]) / gap * (1 - jnp.eye(3, dtype=a.dtype))
        return (_sym(v @ (jnp.diag(ct[0]) + inner) @ v.T),)

    op = custom(decompose, bwd)
    return lambda a: jnp.abs(op(a)[1]) ** 2


rule(
    "matrix",
    "frobenius_norm_squared",
    "2 A instead of A / norm",
    jnp.linalg.norm,
    lambda ct, out, a: (2 * ct * a,),
    _A,
)
rule(
    "matrix",
    "matrix_power_commuting",
    "n A^(n-1), as for numbers",
    lambda a: a @ a @ a,
    lambda ct, out, a: (3 * ct @ (a @ a).T,),
    _A,
)

# convolution and Fourier transform ------------------------------------------------------------------------------------


def _convolve(x, k):
    return jnp.convolve(x, k, mode="full")


rule(
    "convolution",
    "kernel_not_flipped",
    "convolved again instead of correlated",
    _convolve,
    lambda ct, out, x, k: (jnp.convolve(ct, k, mode="valid"), jnp.correlate(ct, x, mode="valid")),
    normal(6),
    normal(3),
)
rule(
    "convolution",
    "kernel_gradient_flipped",
    "the kernel's gradient comes out backwards",
    _convolve,
    lambda ct, out, x, k: (jnp.correlate(ct, k, mode="valid"), jnp.correlate(ct, x, mode="valid")[::-1]),
    normal(6),
    normal(3),
)
rule(
    "convolution",
    "image_convolution_channels_swapped",
    "input and output channels of the kernel change places in the rule",
    lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"),
    lambda ct, out, x, k: (
        jax.lax.conv(ct, k[:, :, ::-1, ::-1], (1, 1), "SAME"),
        jax.vjp(lambda q: jax.lax.conv(x, q, (1, 1), "SAME"), k)[1](ct)[0],
    ),
    normal(1, 2, 4, 4),
    normal(2, 2, 3, 3),
)
rule(
    "convolution",
    "stride_forgotten",
    "the skipped places get a share too",
    lambda x: x[::2] * 3.0,
    lambda ct, out, x: (3.0 * jnp.repeat(ct, 2),),
    normal(6),
)
rule(
    "convolution",
    "average_pool_without_window",
    "the factor 1 / window is missing",
    lambda x: x.reshape(3, 2).mean(1),
    lambda ct, out, x: (jnp.repeat(ct, 2),),
    normal(6),
)
rule(
    "fourier",
    "fft_by_inverse",
    "ifft, which divides by n, in place of the transpose",
    jnp.fft.fft,
    lambda ct, out, x: (jnp.fft.ifft(ct),),
    complexes(6),
)
rule(
    "fourier",
    "real_fft_without_the_doubled_half",
    "the mirrored half of the spectrum is forgotten",
    lambda x: jnp.real(jnp.fft.irfft(jnp.fft.rfft(x) * jnp.arange(1, 5, dtype=x.dtype))),
    lambda ct, out, x: (ct * jnp.mean(jnp.arange(1, 5, dtype=x.dtype)),),
    normal(6),
)
rule(
    "fourier",
    "power_spectrum_halved",
    "the factor 2 of |.|^2 is missing",
    lambda x: jnp.abs(jnp.fft.fft(x)) ** 2,
    lambda ct, out, x: (x.size * jnp.real(jnp.fft.ifft(ct * jnp.fft.fft(x))),),
    normal(6),
)

# densities ------------------------------------------------------------------------------------------------------------
rule(
    "density",
    "normal_scale_without_normaliser",
    "the term -1 / scale of the normaliser is missing",
    lambda x, s: jnp.sum(-0.5 * (x / s) ** 2 - jnp.log(s)),
    lambda ct, out, x, s: (-ct * x / s**2, ct * jnp.sum(x**2) / s**3),
    normal(4),
    np.array(1.3),
)
rule(
    "density",
    "gamma_shape_without_digamma",
    "log x without the digamma of the shape",
    lambda x, a: (a - 1) * jnp.log(x) - x - jax.scipy.special.gammaln(a),
    lambda ct, out, x, a: (ct * ((a - 1) / x - 1), ct * jnp.log(x)),
    uniform(0.5, 2.0, 4),
    uniform(1.5, 3.0, 4),
)
rule(
    "density",
    "gaussian_covariance_without_log_determinant",
    "the covariance's gradient lacks the log determinant",
    lambda x, c: -0.5 * x @ jnp.linalg.solve(c, x) - 0.5 * jnp.linalg.slogdet(c)[1],
    lambda ct, out, x, c: (
        -0.5 * ct * (jnp.linalg.solve(c, x) + jnp.linalg.solve(c.T, x)),
        0.5 * ct * jnp.outer(jnp.linalg.solve(c.T, x), jnp.linalg.solve(c, x)),
    ),
    normal(3),
    _SPD,
)
rule(
    "density",
    "poisson_rate",
    "the term -1 of the rate is missing",
    lambda rate, k: k * jnp.log(rate) - rate,
    lambda ct, out, rate, k: (ct * k / rate, None),
    uniform(0.5, 3.0, 3),
    np.array([1, 0, 4]),
)
