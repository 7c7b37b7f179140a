"""Wrong sums, axes and places: what goes wrong between the shapes of a function and of its gradient."""

import jax
import jax.numpy as jnp

from tests.power.case import complexes, normal, rule

# broadcasting ---------------------------------------------------------------------------------------------------------
rule(
    "broadcast",
    "bias_by_mean",
    "the sum over the broadcast axis is a mean",
    lambda x, b: x + b,
    lambda ct, out, x, b: (ct, jnp.mean(ct, 0)),
    normal(4, 3),
    normal(3),
)
rule(
    "broadcast",
    "bias_by_slice",
    "the first row stands for the sum over the broadcast axis",
    lambda x, b: x * b,
    lambda ct, out, x, b: (ct * b, (ct * x)[0]),
    normal(4, 3),
    normal(3),
)
rule(
    "broadcast",
    "column_by_slice",
    "the first column stands for the sum over the kept axis of size 1",
    lambda x, c: x * c,
    lambda ct, out, x, c: (ct * c, (ct * x)[:, :1]),
    normal(3, 4),
    normal(3, 1),
)
rule(
    "broadcast",
    "scalar_by_mean",
    "a scalar that was broadcast gets a mean",
    lambda x, s: x * s,
    lambda ct, out, x, s: (ct * s, jnp.mean(ct * x)),
    normal(3, 2),
    normal(),
)
rule(
    "broadcast",
    "square_bias_on_the_wrong_axis",
    "the sum runs over the wrong axis of a square matrix",
    lambda x, b: jnp.tanh(x + b),
    lambda ct, out, x, b: (ct * (1 - out**2), jnp.sum(ct * (1 - out**2), 1)),
    normal(3, 3),
    normal(3),
)
rule(
    "broadcast",
    "repeated_without_sum",
    "a repeated row's share is the last copy's",
    lambda x: jnp.tile(x, (3, 1)),
    lambda ct, out, x: (ct[-1],),
    normal(4),
)
rule(
    "broadcast",
    "batch_norm_gain_per_example",
    "a per-channel gain loses the sum over one of two batch axes",
    lambda x, g: x * g,
    lambda ct, out, x, g: (ct * g, jnp.sum(ct * x, 0)[0]),
    normal(3, 2, 4),
    normal(4),
)

# normalisers ----------------------------------------------------------------------------------------------------------
rule(
    "normaliser",
    "mean_without_n",
    "the factor 1 / n of the mean is missing",
    lambda x: jnp.mean(x),
    lambda ct, out, x: (ct * jnp.ones_like(x),),
    normal(6),
)
rule(
    "normaliser",
    "mean_over_the_other_axis",
    "divided by the length of the wrong axis",
    lambda x: jnp.mean(x, 0),
    lambda ct, out, x: (jnp.broadcast_to(ct / x.shape[1], x.shape),),
    normal(3, 5),
)
rule(
    "normaliser",
    "variance_with_n_minus_one",
    "n - 1 in the rule, n in the function",
    lambda x: jnp.var(x),
    lambda ct, out, x: (2 * ct * (x - jnp.mean(x)) / (x.size - 1),),
    normal(6),
)
rule(
    "normaliser",
    "squared_error_twice_divided",
    "divided by the batch size twice",
    lambda x, y: jnp.mean((x - y) ** 2),
    lambda ct, out, x, y: (2 * ct * (x - y) / x.size**2, -2 * ct * (x - y) / x.size**2),
    normal(5),
    normal(5, seed=1),
)
rule(
    "normaliser",
    "standard_deviation_without_itself",
    "the factor 1 / std is missing",
    lambda x: jnp.std(x),
    lambda ct, out, x: (ct * (x - jnp.mean(x)) / x.size,),
    normal(6),
)

# axes of reductions ---------------------------------------------------------------------------------------------------
rule(
    "reduction axis",
    "sum_spread_over_the_wrong_axis",
    "the cotangent of a square matrix's row sums is spread over columns",
    lambda x: jnp.sum(x, 1),
    lambda ct, out, x: (jnp.broadcast_to(ct, x.shape),),
    normal(3, 3),
)
rule(
    "reduction axis",
    "softmax_sum_over_everything",
    "the inner sum of softmax runs over the batch too",
    lambda x: jax.nn.softmax(x, -1),
    lambda ct, out, x: (out * (ct - jnp.sum(ct * out)),),
    normal(3, 4),
)
rule(
    "reduction axis",
    "logsumexp_over_everything",
    "normalised over all rows instead of each",
    lambda x: jax.nn.logsumexp(x, 1),
    lambda ct, out, x: (ct[:, None] * jax.nn.softmax(x, (0, 1)),),
    normal(2, 4),
)

# transposition --------------------------------------------------------------------------------------------------------
rule(
    "transposed",
    "product_by_untransposed",
    "A instead of its transpose, which only square matrices allow",
    lambda a, x: a @ x,
    lambda ct, out, a, x: (jnp.outer(ct, x), a @ ct),
    normal(4, 4),
    normal(4),
)
rule(
    "transposed",
    "weight_gradient_transposed",
    "the gradient of a square weight is transposed",
    lambda x, w: x @ w,
    lambda ct, out, x, w: (ct @ w.T, ct.T @ x),
    normal(3, 3),
    normal(3, 3, seed=1),
)
rule(
    "transposed",
    "einsum_letters",
    "two letters of the same size change places",
    lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
    lambda ct, out, a, b: (jnp.einsum("bik,bkj->bij", ct, b), jnp.einsum("bij,bik->bjk", a, ct)),
    normal(2, 3, 3),
    normal(2, 3, 3, seed=1),
)
rule(
    "transposed",
    "transpose_as_identity",
    "the cotangent of a square transpose is handed on",
    lambda x: x.T * 2.0,
    lambda ct, out, x: (2.0 * ct,),
    normal(4, 4),
)
rule(
    "transposed",
    "cyclic_axes_forward_again",
    "three axes turned the same way twice",
    lambda x: jnp.transpose(x, (1, 2, 0)),
    lambda ct, out, x: (jnp.transpose(ct, (1, 2, 0)),),
    normal(2, 2, 2),
)
rule(
    "transposed",
    "reshape_in_column_order",
    "reshaped back in the other memory order",
    lambda x: x.reshape(-1),
    lambda ct, out, x: (ct.reshape(x.shape, order="F"),),
    normal(3, 4),
)

# complex --------------------------------------------------------------------------------------------------------------
rule(
    "conjugate",
    "complex_product_conjugated",
    "conjugated factors, another convention than JAX's",
    lambda x, y: x * y,
    lambda ct, out, x, y: (ct * y.conj(), ct * x.conj()),
    complexes(3),
    complexes(3, seed=1),
)
rule(
    "conjugate",
    "squared_modulus",
    "the conjugate of JAX's gradient of |z|^2",
    lambda z: jnp.sum(jnp.real(z * z.conj())),
    lambda ct, out, z: ((2 * ct * z).astype(z.dtype),),
    complexes(4),
)
rule(
    "conjugate",
    "imaginary_part_dropped",
    "the rule returns the real part only",
    lambda z: jnp.exp(z),
    lambda ct, out, z: (jnp.real(ct * out).astype(z.dtype),),
    complexes(3),
)
rule(
    "conjugate",
    "real_part_of_complex_product",
    "a real argument's gradient keeps the wrong part",
    lambda x, z: x * z,
    lambda ct, out, x, z: (jnp.imag(ct * z), ct * x),
    normal(3),
    complexes(3),
)
rule(
    "conjugate",
    "hermitian_product_transposed_only",
    "the matrix product with a conjugate, conjugated in the wrong factor",
    lambda a, x: a.conj() @ x,
    lambda ct, out, a, x: (jnp.outer(ct, x), a.T.conj() @ ct),
    complexes(3, 3),
    complexes(3, seed=2),
)
