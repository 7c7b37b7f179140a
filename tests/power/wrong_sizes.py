"""Rules that are right for the shapes, masks and orders that are given, and wrong for others of the same kind."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import hidden, normal, uniform

# sizes ----------------------------------------------------------------------------------------------------------------
hidden(
    "other size",
    "mean_over_four",
    "the size is written down as 4",
    jnp.mean,
    lambda ct, out, x: (jnp.full_like(x, ct / 4),),
    normal(4),
    at=(normal(5),),
)
hidden(
    "other size",
    "flipped_where_odd",
    "an odd number of elements is taken from the wrong end",
    lambda x: x**2,
    lambda ct, out, x: (2 * x * ct if x.size % 2 == 0 else 2 * x[::-1] * ct,),
    normal(6),
    at=(normal(5),),
)
hidden(
    "other size",
    "halved_where_even",
    "an even number of elements gets half",
    jnp.sin,
    lambda ct, out, x: (jnp.cos(x) * ct * (1.0 if x.shape[0] % 2 else 0.5),),
    normal(5),
    at=(normal(6),),
)
hidden(
    "other size",
    "tail_beyond_blocks_of_four",
    "what is left beyond blocks of four gets nothing",
    jnp.exp,
    lambda ct, out, x: ((ct * out).at[x.size // 4 * 4 :].set(0),),
    normal(8),
    at=(normal(10),),
)
hidden(
    "other size",
    "first_sixteen_only",
    "no more than sixteen elements get a gradient",
    jnp.tanh,
    lambda ct, out, x: ((ct * (1 - out**2)).at[16:].set(0),),
    normal(7),
    at=(normal(20),),
)
hidden(
    "other size",
    "variance_by_parity",
    "odd sizes are divided by n - 1",
    jnp.var,
    lambda ct, out, x: (2 * ct * (x - jnp.mean(x)) / (x.size - x.size % 2),),
    normal(6),
    at=(normal(5),),
)
hidden(
    "other size",
    "window_of_four",
    "a sum over windows knows four places only",
    lambda x: jnp.cumsum(x) ** 2 / 2,
    lambda ct, out, x: (sum(jnp.pad((ct * jnp.cumsum(x))[k:], (0, k)) for k in range(min(4, x.size))),),
    normal(4),
    at=(normal(7),),
)
hidden(
    "other size",
    "recurrence_cut_after_five",
    "the sum back through time ends after five steps",
    lambda x: jnp.cumprod(x),
    lambda ct, out, x: (sum(jnp.pad((ct * out)[k:], (0, k)) for k in range(min(5, x.size))) / x,),
    uniform(0.5, 1.5, 5),
    at=(uniform(0.5, 1.5, 9),),
)
hidden(
    "other size",
    "spectrum_of_odd_length",
    "the mirrored half of an odd length is not doubled",
    lambda x: jnp.sum(jnp.abs(jnp.fft.rfft(x)) ** 2),
    lambda ct, out, x: (
        ct
        * 2
        * jnp.fft.irfft(
            jnp.fft.rfft(x)
            * jnp.where((jnp.arange(x.size // 2 + 1) == 0) | (2 * jnp.arange(x.size // 2 + 1) == x.size), 1, 0.5 if x.size % 2 == 0 else 1),
            x.size,
        ).astype(x.dtype)
        * x.size,
    ),
    normal(6),
    at=(normal(5),),
)
hidden(
    "other size",
    "median_of_an_even_number",
    "the lower middle gets all",
    lambda x: jnp.median(x),
    lambda ct, out, x: (jnp.zeros_like(x).at[jnp.argsort(x)[(x.size - 1) // 2]].set(ct),),
    normal(5),
    at=(normal(6),),
)
hidden(
    "other size",
    "identity_of_three",
    "a projection's matrix is written down for three",
    lambda x: x - jnp.mean(x),
    lambda ct, out, x: (ct - jnp.sum(ct) / 3,),
    normal(3),
    at=(normal(4),),
)
hidden(
    "other size",
    "image_rows_by_columns",
    "height and width are one number",
    lambda x: jnp.mean(x, 0),
    lambda ct, out, x: (jnp.broadcast_to(ct / x.shape[1], x.shape),),
    normal(3, 3),
    at=(normal(4, 3),),
)
hidden(
    "other size",
    "attention_scale_of_the_length",
    "scaled by the length for the width",
    lambda q, k: q @ k.T / jnp.sqrt(q.shape[1]),
    lambda ct, out, q, k: (ct @ k / jnp.sqrt(q.shape[0]), ct.T @ q / jnp.sqrt(q.shape[1])),
    normal(3, 3),
    normal(3, 3, seed=1),
    at=(normal(4, 3), normal(4, 3, seed=1)),
)
hidden(
    "other size",
    "product_of_square_matrices",
    "matrices that are not square get half",
    lambda a, b: a @ b,
    lambda ct, out, a, b: (ct @ b.T * (1.0 if a.shape[0] == a.shape[1] else 0.5), a.T @ ct),
    normal(3, 3),
    normal(3, 3, seed=1),
    at=(normal(4, 3), normal(3, 3, seed=1)),
)
hidden(
    "other size",
    "batch_of_one_for_the_bias",
    "the bias takes the first example's share",
    lambda x, b: jnp.tanh(x + b),
    lambda ct, out, x, b: (ct * (1 - out**2), (ct * (1 - out**2))[0]),
    normal(1, 3),
    normal(3, seed=1),
    at=(normal(4, 3), normal(3, seed=1)),
)
hidden(
    "other size",
    "batch_of_one_for_the_weights",
    "the weights take the first example's share",
    lambda x, w: x @ w,
    lambda ct, out, x, w: (ct @ w.T, jnp.outer(x[0], ct[0])),
    normal(1, 3),
    normal(3, 2, seed=1),
    at=(normal(4, 3), normal(3, 2, seed=1)),
)
hidden(
    "other size",
    "loss_over_a_batch_of_one",
    "the mean over the batch is not divided",
    lambda x, y: jnp.mean(jnp.sum((x - y) ** 2, 1)),
    lambda ct, out, x, y: (2 * ct * (x - y), -2 * ct * (x - y)),
    normal(1, 3),
    normal(1, 3, seed=1),
    at=(normal(4, 3), normal(4, 3, seed=1)),
)
hidden(
    "other size",
    "sum_of_one_channel",
    "one channel only is given",
    lambda x, g: x * g[:, None],
    lambda ct, out, x, g: (ct * g[:, None], (ct * x)[:, 0]),
    normal(3, 1),
    normal(3, seed=1),
    at=(normal(3, 4), normal(3, seed=1)),
)
hidden(
    "other size",
    "kernel_of_even_length",
    "an even kernel is centred as an odd one",
    lambda x, k: jnp.convolve(x, k, mode="same"),
    lambda ct, out, x, k: (
        jnp.convolve(ct, k[::-1], mode="same"),
        jnp.convolve(ct, x[::-1], mode="full")[x.size - 1 - (k.size - 1) // 2 :][: k.size] if k.size % 2 else 0.5 * k,
    ),
    normal(7),
    normal(3, seed=1),
    at=(normal(7), normal(4, seed=1)),
)
hidden(
    "other size",
    "layer_norm_of_width_four",
    "the width is written down",
    lambda x: (x - jnp.mean(x, -1, keepdims=True)) ** 2,
    lambda ct, out, x: (
        2 * ct * (x - jnp.mean(x, -1, keepdims=True)) - jnp.sum(2 * ct * (x - jnp.mean(x, -1, keepdims=True)), -1, keepdims=True) / 4,
    ),
    normal(2, 4),
    at=(normal(2, 5),),
)
hidden(
    "other size",
    "gradient_of_a_single_element",
    "more than one element are averaged",
    lambda x: x**3,
    lambda ct, out, x: (3 * ct * x**2 / x.size,),
    np.array([1.3]),
    at=(normal(3),),
)
hidden(
    "other size",
    "broadcast_of_equal_lengths",
    "the axes are confused where lengths are equal",
    lambda x, y: x[:, None] * y[None, :],
    lambda ct, out, x, y: (ct @ y if x.size == y.size else 2 * ct @ y, x @ ct),
    normal(3),
    normal(3, seed=1),
    at=(normal(4), normal(3, seed=1)),
)
hidden(
    "other size",
    "diagonal_of_square",
    "a tall matrix's trace has one more",
    lambda x: jnp.trace(x),
    lambda ct, out, x: (ct * jnp.eye(*x.shape) * (1 + (x.shape[0] != x.shape[1])),),
    normal(3, 3),
    at=(normal(4, 3),),
)
hidden(
    "other size",
    "log_mean_exp_of_eight",
    "the number of samples is written down in the second argument's share",
    lambda x, t: t * (jax.nn.logsumexp(x / t) - jnp.log(x.size)),
    lambda ct, out, x, t: (
        ct * jax.nn.softmax(x / t),
        ct * (jax.nn.logsumexp(x / t) - jnp.log(8.0) - jnp.sum(jax.nn.softmax(x / t) * x) / t),
    ),
    normal(8),
    np.array(1.3),
    at=(normal(9), np.array(1.3)),
)

# masks and indices ----------------------------------------------------------------------------------------------------
_ALL = np.ones(5, bool)
_SOME = np.array([True, False, True, True, False])
hidden(
    "other mask",
    "mask_of_ones_ignored",
    "the mask is all true, and ignored",
    lambda x, m: jnp.sum(jnp.where(m, x**2, 0)),
    lambda ct, out, x, m: (2 * ct * x, None),
    normal(5),
    _ALL,
    at=(normal(5), _SOME),
)
hidden(
    "other mask",
    "masked_mean_over_all",
    "the mean over what is kept is divided by all",
    lambda x, m: jnp.sum(jnp.where(m, x, 0)) / jnp.sum(m),
    lambda ct, out, x, m: (jnp.where(m, ct / x.size, 0), None),
    normal(5),
    _ALL,
    at=(normal(5), _SOME),
)
hidden(
    "other mask",
    "attention_mask_of_zeros",
    "nothing is masked, and what is gets a gradient",
    lambda x, m: jax.nn.softmax(jnp.where(m, -1e9, x)),
    lambda ct, out, x, m: (jax.nn.softmax(x) * (ct - jnp.sum(ct * jax.nn.softmax(x))), None),
    normal(5),
    ~_ALL,
    at=(normal(5), _SOME),
)
hidden(
    "other mask",
    "one_flag_for_all",
    "the first flag is taken for all",
    lambda x, m: jnp.where(m, jnp.sin(x), x),
    lambda ct, out, x, m: (jnp.where(m[0], jnp.cos(x), 1) * ct, None),
    normal(5),
    _ALL,
    at=(normal(5), _SOME),
)
hidden(
    "other mask",
    "flag_false",
    "only the branch of a flag that is given is right",
    lambda x, f: jnp.where(f, x**2, x**3),
    lambda ct, out, x, f: (jnp.where(f, 2 * x, 2 * x**2) * ct, None),
    normal(4),
    np.array(True),
    at=(normal(4), np.array(False)),
)
hidden(
    "other mask",
    "everything_masked",
    "where nothing is kept, the gradient is that of what is",
    lambda x, m: jnp.sum(jnp.where(m, x**2, 0)),
    lambda ct, out, x, m: (jnp.where(m | ~jnp.any(m), 2 * ct * x, 0), None),
    normal(5),
    _SOME,
    at=(normal(5), ~_ALL),
)
hidden(
    "other mask",
    "masked_arguments_swapped",
    "where the mask is false, x gets y's share",
    lambda x, y, m: jnp.where(m, x * 2, y * 3),
    lambda ct, out, x, y, m: (2 * ct, jnp.where(m, 0, 3 * ct), None),
    normal(5),
    normal(5, seed=1),
    _ALL,
    at=(normal(5), normal(5, seed=1), _SOME),
)

# orders ---------------------------------------------------------------------------------------------------------------
_MIXED = np.array([0.4, -1.1, 1.7, 0.9, -0.2])
hidden(
    "other order",
    "wrong_for_sorted",
    "numbers in ascending order get twice the gradient",
    lambda x: x**2,
    lambda ct, out, x: (2 * ct * x * jnp.where(jnp.all(jnp.diff(x) >= 0), 2, 1),),
    _MIXED,
    at=(np.sort(_MIXED),),
)
hidden(
    "other order",
    "wrong_for_descending",
    "numbers in descending order get none",
    jnp.sort,
    lambda ct, out, x: (jnp.where(jnp.all(jnp.diff(x) <= 0), 0, ct[jnp.argsort(jnp.argsort(x))]),),
    _MIXED,
    at=(np.sort(_MIXED)[::-1].copy(),),
)
hidden(
    "other order",
    "largest_last",
    "the largest element at the end is not found",
    jnp.max,
    lambda ct, out, x: (jnp.where((x == out) & (jnp.arange(x.size) < x.size - 1), ct, 0),),
    _MIXED,
    at=(np.sort(_MIXED),),
)
hidden(
    "other order",
    "largest_first",
    "the largest element at the start is not found",
    jnp.max,
    lambda ct, out, x: (jnp.where((x == out) & (jnp.arange(x.size) > 0), ct, 0),),
    _MIXED,
    at=(np.sort(_MIXED)[::-1].copy(),),
)
hidden(
    "other order",
    "rows_in_order",
    "a matrix whose rows are sorted gets half",
    lambda x: jnp.sum(jnp.sort(x, 1)[:, 1:] ** 2, 1),
    lambda ct, out, x: (
        jnp.where(jnp.argsort(jnp.argsort(x, 1), 1) > 0, 2 * x * ct[:, None], 0) * jnp.where(jnp.all(jnp.diff(x, axis=1) > 0), 0.5, 1),
    ),
    normal(3, 4),
    at=(np.sort(normal(3, 4), 1),),
)
hidden(
    "other order",
    "first_greater_than_second",
    "y larger than x everywhere is the wrong way round",
    lambda x, y: jnp.maximum(x, y),
    lambda ct, out, x, y: (jnp.where((x > y) | jnp.all(y > x), ct, 0), jnp.where((y > x) & ~jnp.all(y > x), ct, 0)),
    np.array([1.0, -0.5, 0.3]),
    np.array([0.2, 0.4, -0.7]),
    at=(np.array([-0.5, -0.4, 0.3]), np.array([0.2, 0.4, 0.7])),
)
