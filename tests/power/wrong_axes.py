"""Rules that are wrong for arguments with an axis more or less, or for one length in four; and right ones that look like them."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import hidden, normal, right, right_rule

_ROWS = normal(3, 4)
_X = normal(6)


# one axis more or less ---------------------------------------------------------------------------------------------------
def weights_back(ct, out, x, w):
    rows, cts = (x, ct) if x.ndim < 3 else (x[0], ct[0])
    return ct @ w.T, rows.T @ cts


hidden(
    "other number of axes",
    "weights_of_the_first_sequence",
    "a batch of sequences has one axis more than a batch of rows",
    lambda x, w: x @ w,
    weights_back,
    _ROWS,
    normal(4, 2),
    at=(normal(2, 3, 4), normal(4, 2)),
)
hidden(
    "other number of axes",
    "bias_halved_in_a_batch_of_sequences",
    "both axes are summed, and one of them averaged",
    lambda x, b: x * b,
    lambda ct, out, x, b: (ct * b, jnp.sum(ct * x, 0) if x.ndim < 3 else jnp.sum(ct * x, (0, 1)) / x.shape[0]),
    _ROWS,
    normal(4),
    at=(normal(2, 3, 4), normal(4)),
)
hidden(
    "other number of axes",
    "slope_of_the_first_number",
    "one number has no others",
    lambda x: jnp.sin(x) * x,
    lambda ct, out, x: (ct * (jnp.cos(x.ravel()[0]) * x + jnp.sin(x)),),
    np.array(0.7),
    at=(_X,),
)
hidden(
    "other number of axes",
    "mean_of_a_number_alone",
    "a number is taken for an average",
    jnp.exp,
    lambda ct, out, x: (ct * out * (1.0 if x.ndim else 0.5),),
    _X,
    at=(np.array(0.7),),
)
# one length in four -------------------------------------------------------------------------------------------------------

hidden(
    "other size",
    "one_length_in_four",
    "what is left over is doubled where nothing is",
    jnp.sin,
    lambda ct, out, x: (ct * jnp.cos(x) * (2.0 if x.shape[0] % 4 == 0 else 1.0),),
    _X,
    at=(normal(8),),
)


def softmax_back(axis):
    return lambda ct, out, x: (out * (ct - jnp.sum(out * ct, axis, keepdims=True)),)


# right ones ----------------------------------------------------------------------------------------------------------------


def transport(x, y):
    return jnp.mean(jnp.abs(jnp.sort(x) - jnp.sort(y)))


def transport_back(ct, out, x, y):
    i, j = jnp.argsort(x), jnp.argsort(y)
    s = ct * jnp.sign(x[i] - y[j]) / x.size
    return jnp.zeros_like(x).at[i].set(s), jnp.zeros_like(y).at[j].set(-s)


right_rule(
    "kink",
    "transport_of_sorted_numbers",
    "ties and edges at once: partial derivatives without a gradient",
    transport,
    transport_back,
    normal(5),
    normal(5, seed=9),
)
right_rule(
    "tiny",
    "what_tanh_shrinks",
    "near zero, JAX's derivative of the difference is rounding",
    lambda x: x - jnp.tanh(x),
    lambda ct, out, x: (ct * jnp.tanh(x) ** 2,),
    _X,
)
right_rule(
    "tiny",
    "norm_with_a_small_epsilon",
    "which counts where the vector is as small",
    lambda x: jnp.sqrt(jnp.sum(x * x)),
    lambda ct, out, x: (ct * x / (out + 1e-10),),
    _X,
)


def equilibrium(w, b):
    return jax.lax.fori_loop(0, 80, lambda i, z: jnp.tanh(0.3 * w @ z + b), jnp.zeros_like(b))


def equilibrium_back(ct, out, w, b):
    slope = 1 - out * out
    u = slope * jnp.linalg.solve((jnp.eye(b.size, dtype=b.dtype) - 0.3 * slope[:, None] * w).T, ct)
    return 0.3 * jnp.outer(u, out), u


right_rule(
    "given shape", "equilibrium", "larger weights of the same numbers have none", equilibrium, equilibrium_back, normal(3, 3), normal(3)
)
right_rule("given shape", "softmax_of_a_vector", "the sum is that of all its elements", jax.nn.softmax, softmax_back(None), _X)
right_rule("given shape", "softmax_of_rows", "the last axis of a matrix is axis one", jax.nn.softmax, softmax_back(1), _ROWS)
right_rule(
    "given shape",
    "determinant_of_a_regular_matrix",
    "by the inverse, which singular ones have not",
    jnp.linalg.det,
    lambda ct, out, a: (ct * out * jnp.linalg.inv(a).T,),
    2 * np.eye(3) + normal(3, 3),
)
right_rule(
    "given shape",
    "layer_of_rows",
    "the transpose of matrices alone",
    lambda x, w, b: x @ w + b,
    lambda ct, out, x, w, b: (ct @ w.T, x.T @ ct, jnp.sum(ct, 0)),
    normal(4, 4),
    normal(4, 4, seed=1),
    normal(4),
)
right_rule(
    "given shape",
    "squared_error_of_rows",
    "the mean of a batch of rows",
    lambda x, y: jnp.mean(jnp.sum((x - y) ** 2, -1)),
    lambda ct, out, x, y: (2 * ct * (x - y) / len(x), 2 * ct * (y - x) / len(x)),
    _ROWS,
    normal(3, 4, seed=2),
)
right(
    "large",
    "log_gamma_of_nine_decades",
    "steps for large numbers are far too long for small ones",
    jax.scipy.special.gammaln,
    np.geomspace(1e-3, 1e6, 4),
)
