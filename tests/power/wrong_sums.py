"""Wrong sums over what was broadcast, wrong transposes, and wrong conjugates."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import complexes, normal, rule, uniform

# broadcasting ---------------------------------------------------------------------------------------------------------
rule(
    "broadcast",
    "two_axes_one_sum",
    "one of two broadcast axes is summed, the other's first index taken",
    lambda x, b: x * b,
    lambda ct, out, x, b: (ct * b, jnp.sum(ct * x, 0)[0]),
    normal(2, 4, 3),
    normal(3),
)
rule(
    "broadcast",
    "kept_axis_takes_the_mean",
    "an axis of size one gets the mean",
    lambda x, b: x + b,
    lambda ct, out, x, b: (ct, jnp.mean(ct, 1, keepdims=True)),
    normal(2, 5),
    normal(2, 1),
)
rule(
    "broadcast",
    "outer_sums_swapped",
    "the sums of an outer sum are swapped in a square",
    lambda x, y: x[:, None] + 2 * y[None],
    lambda ct, out, x, y: (jnp.sum(ct, 0), 2 * jnp.sum(ct, 1)),
    normal(3),
    normal(3, seed=1),
)
rule(
    "broadcast",
    "scalar_takes_the_last",
    "a scalar takes the last element's share",
    lambda x, s: x**2 * s,
    lambda ct, out, x, s: (2 * ct * x * s, (ct * x**2).ravel()[-1]),
    normal(2, 3),
    normal(),
)
rule(
    "broadcast",
    "where_branch_not_summed",
    "a scalar branch of where gets its first share",
    lambda x, s: jnp.where(x > 0, x, s),
    lambda ct, out, x, s: (jnp.where(x > 0, ct, 0), jnp.where(x > 0, 0, ct)[jnp.argmax(x <= 0)]),
    normal(6),
    normal(),
)
rule(
    "broadcast",
    "batched_matmul_weight_mean",
    "the weight's gradient is averaged over the batch",
    lambda x, w: x @ w,
    lambda ct, out, x, w: (ct @ w.T, jnp.mean(jnp.swapaxes(x, -1, -2) @ ct, 0)),
    normal(3, 2, 4),
    normal(4, 5),
)
rule(
    "broadcast",
    "batched_matmul_first_only",
    "the weight's gradient is the first batch's",
    lambda x, w: x @ w,
    lambda ct, out, x, w: (ct @ w.T, x[0].T @ ct[0]),
    normal(3, 2, 4),
    normal(4, 5),
)
rule(
    "reduction axis",
    "mean_over_two_axes_one_count",
    "the count is that of one axis",
    lambda x: jnp.mean(x, (0, 2)),
    lambda ct, out, x: (jnp.broadcast_to(ct[None, :, None] / x.shape[0], x.shape),),
    normal(2, 3, 4),
)
rule(
    "reduction axis",
    "sum_without_keepdims",
    "spread along the last axis of a square",
    lambda x: jnp.sum(x**2, 1),
    lambda ct, out, x: (2 * x * ct,),
    normal(3, 3),
)
rule(
    "reduction axis",
    "variance_along_the_wrong_axis",
    "the mean over rows for that over columns",
    lambda x: jnp.var(x, 0),
    lambda ct, out, x: (2 * ct * (x - jnp.mean(x, 1, keepdims=True)) / x.shape[0],),
    normal(4, 3),
)
rule(
    "reduction axis",
    "max_over_rows_along_columns",
    "ties and maxima are sought along the other axis",
    lambda x: jnp.max(x, 1),
    lambda ct, out, x: (jnp.where(x == jnp.max(x, 0, keepdims=True), ct[:, None], 0),),
    normal(3, 3),
)
rule(
    "normaliser",
    "ddof_of_one",
    "n - 1 for n in a variance of three",
    lambda x: jnp.var(x, ddof=1),
    lambda ct, out, x: (2 * ct * (x - jnp.mean(x)) / x.size,),
    normal(3),
)
rule(
    "normaliser",
    "masked_mean_over_everything",
    "the count of what is kept is forgotten",
    lambda x, m: jnp.sum(x * m) / jnp.sum(m),
    lambda ct, out, x, m: (ct * m / m.size, None),
    normal(5),
    np.array([1, 0, 1, 1, 0]),
)

# transposes -----------------------------------------------------------------------------------------------------------
rule(
    "transposed",
    "batched_matmul_flat_transpose",
    "all axes are reversed for the last two",
    lambda a, b: a @ b,
    lambda ct, out, a, b: (ct @ jnp.swapaxes(b, -1, -2), jnp.swapaxes(a.T.reshape(a.shape), -1, -2) @ ct),
    normal(2, 3, 3),
    normal(2, 3, 3, seed=1),
)
rule(
    "transposed",
    "moveaxis_not_inverted",
    "moved the same way again",
    lambda x: jnp.moveaxis(x, 0, 2),
    lambda ct, out, x: (jnp.moveaxis(ct, 0, 2),),
    normal(3, 3, 3),
)
rule(
    "transposed",
    "quadratic_form_untransposed",
    "x'A for (A + A')x",
    lambda x, a: x @ a @ x,
    lambda ct, out, x, a: (2 * ct * (x @ a), ct * jnp.outer(x, x)),
    normal(3),
    normal(3, 3),
)
rule(
    "transposed",
    "outer_product_swapped",
    "the factors of an outer product swap their sides",
    lambda x, y: jnp.outer(x, y),
    lambda ct, out, x, y: (ct.T @ y, ct @ x),
    normal(3),
    normal(3, seed=1),
)
rule(
    "transposed",
    "triangular_solve_same_side",
    "the adjoint solve is not transposed",
    lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
    lambda ct, out, a, b: (
        -jnp.tril(jnp.outer(jax.scipy.linalg.solve_triangular(a, ct, lower=True), out)),
        jax.scipy.linalg.solve_triangular(a, ct, lower=True),
    ),
    np.tril(normal(3, 3)) + 3 * np.eye(3),
    normal(3, seed=1),
)
rule(
    "transposed",
    "kron_factors_swapped",
    "the blocks of a Kronecker product are read the other way",
    jnp.kron,
    lambda ct, out, a, b: (
        jnp.einsum("ikjl,kl->ij", ct.reshape(2, 2, 2, 2), b),
        jnp.einsum("kilj,kl->ij", ct.reshape(2, 2, 2, 2).transpose(2, 3, 0, 1), a),
    ),
    normal(2, 2),
    normal(2, 2, seed=1),
)

# complex --------------------------------------------------------------------------------------------------------------
rule(
    "conjugate",
    "holomorphic_sine_conjugated",
    "the slope is conjugated",
    jnp.sin,
    lambda ct, out, z: (ct * jnp.conj(jnp.cos(z)),),
    complexes(4),
)
rule(
    "conjugate",
    "phase_slope_without_conjugate",
    "the angle's gradient is not conjugated",
    jnp.angle,
    lambda ct, out, z: (ct * 1j * jnp.conj(1 / z),),
    complexes(4),
)
rule("conjugate", "absolute_value_like_real", "z/|z| for its conjugate", jnp.abs, lambda ct, out, z: (ct * z / out,), complexes(4))
rule("conjugate", "conjugation_is_identity", "conj passes the cotangent as it is", jnp.conj, lambda ct, out, z: (ct,), complexes(4))
rule(
    "conjugate",
    "real_part_doubled",
    "the real part's gradient is doubled",
    jnp.real,
    lambda ct, out, z: (2 * ct.astype(z.dtype),),
    complexes(4),
)
rule(
    "conjugate",
    "matmul_hermitian",
    "the adjoint of JAX's convention is the plain transpose",
    lambda a, b: a @ b,
    lambda ct, out, a, b: (ct @ b.conj().T, a.conj().T @ ct),
    complexes(2, 3),
    complexes(3, 2),
)
rule(
    "conjugate",
    "fft_inverse_with_norm",
    "the inverse transform times n",
    jnp.fft.fft,
    lambda ct, out, z: (jnp.fft.ifft(ct) * z.size,),
    complexes(5),
)
rule(
    "conjugate",
    "real_input_imaginary_share",
    "a real factor gets the modulus",
    lambda x, z: x * z,
    lambda ct, out, x, z: (jnp.abs(ct * z), ct * x),
    normal(4),
    complexes(4),
)
rule(
    "conjugate",
    "polar_angle_dropped",
    "r exp(i t): the angle's share is real",
    lambda r, t: r * jnp.exp(1j * t),
    lambda ct, out, r, t: (jnp.real(ct * jnp.exp(1j * t)), jnp.real(ct * out)),
    uniform(0.5, 1.5, 3),
    normal(3),
)
