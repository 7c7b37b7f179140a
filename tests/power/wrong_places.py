"""Wrong indices, permutations, masks and sizes."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import built, normal, rule, uniform

# places ---------------------------------------------------------------------------------------------------------------
rule(
    "off by one",
    "cumulative_sum_exclusive",
    "the element itself is left out of the reversed sum",
    jnp.cumsum,
    lambda ct, out, x: (jnp.cumsum(ct[::-1])[::-1] - ct,),
    normal(5),
)
rule(
    "off by one",
    "cumulative_sum_not_reversed",
    "summed from the front again",
    jnp.cumsum,
    lambda ct, out, x: (jnp.cumsum(ct),),
    normal(5),
)
rule("off by one", "roll_same_way", "rolled on instead of back", lambda x: jnp.roll(x, 1), lambda ct, out, x: (jnp.roll(ct, 1),), normal(5))
rule(
    "off by one",
    "difference_shifted",
    "the differences are added one place too far",
    jnp.diff,
    lambda ct, out, x: (jnp.concatenate([ct, jnp.zeros(1, x.dtype)]),),
    normal(5),
)
rule(
    "off by one",
    "last_element_dropped",
    "the last element gets nothing",
    lambda x: jnp.exp(x),
    lambda ct, out, x: (jnp.zeros_like(x).at[:-1].set((ct * out)[:-1]),),
    normal(6),
)
rule(
    "off by one",
    "slice_put_back_at_the_start",
    "a slice's cotangent is put back at the start",
    lambda x: x[2:5] ** 2,
    lambda ct, out, x: (jnp.zeros_like(x).at[:3].set(2 * ct * x[2:5]),),
    normal(7),
)
rule(
    "off by one",
    "flip_not_flipped_back",
    "the cotangent of a flip is not flipped",
    lambda x: jnp.flip(x) * jnp.arange(1.0, 5.0, dtype=x.dtype),
    lambda ct, out, x: (ct * jnp.arange(1.0, 5.0, dtype=x.dtype),),
    normal(4),
)
rule(
    "off by one",
    "polynomial_degree",
    "x^n differentiates to n x^n",
    lambda x: x**3,
    lambda ct, out, x: (3 * ct * x**3,),
    uniform(0.5, 1.5, 4),
)
rule(
    "off by one",
    "concatenation_split_at_the_wrong_place",
    "split one element too late, and padded",
    lambda x, y: jnp.concatenate([x, y]),
    lambda ct, out, x, y: (ct[1:4], ct[3:]),
    normal(3),
    normal(3, seed=1),
)

# duplicates -----------------------------------------------------------------------------------------------------------
_IDS = np.array([0, 2, 2, 1, 2])
rule(
    "duplicates",
    "gather_sets",
    "rows that were read twice keep the last share only",
    lambda x, i: x[i],
    lambda ct, out, x, i: (jnp.zeros_like(x).at[i].set(ct), None),
    normal(4, 2),
    _IDS,
)
rule(
    "duplicates",
    "embedding_mean",
    "the shares of a word that occurs twice are averaged",
    lambda x, i: jnp.tanh(x[i]),
    lambda ct, out, x, i: (
        jnp.zeros_like(x).at[i].add(ct * (1 - out**2)) / jnp.maximum(1, jnp.zeros(x.shape[0], x.dtype).at[i].add(1))[:, None],
        None,
    ),
    normal(3, 2),
    _IDS,
)
rule(
    "duplicates",
    "segment_sum_once",
    "only the first element of each segment gets its share",
    lambda x, i: jnp.zeros(3, x.dtype).at[i].add(x**2),
    lambda ct, out, x, i: (2 * x * ct[i] * jnp.array([1, 1, 0, 1, 0], x.dtype), None),
    normal(5),
    _IDS,
)
rule(
    "duplicates",
    "negative_index_ignored",
    "an index from the end is dropped",
    lambda x, i: x[i] * 2.0,
    lambda ct, out, x, i: (jnp.zeros_like(x).at[jnp.where(i < 0, 99, i)].add(2.0 * ct, mode="drop"), None),
    normal(4),
    np.array([0, -1, 2]),
)

# permutations ---------------------------------------------------------------------------------------------------------
rule(
    "permutation",
    "sort_not_inverted",
    "the permutation is applied instead of inverted",
    lambda x: jnp.sort(x),
    lambda ct, out, x: (ct[jnp.argsort(x)],),
    np.array([2.0, -1.0, 0.5, 3.0, -2.5]),
)
rule(
    "permutation",
    "indexed_permutation_not_inverted",
    "x[p] differentiates to ct[p]",
    lambda x: x[jnp.array([2, 0, 3, 1])],
    lambda ct, out, x: (ct[jnp.array([2, 0, 3, 1])],),
    normal(4),
)
rule(
    "permutation",
    "largest_element_by_smallest",
    "the cotangent of the maximum goes to the minimum",
    lambda x: jnp.max(x),
    lambda ct, out, x: (jnp.zeros_like(x).at[jnp.argmin(x)].set(ct),),
    normal(5),
)

# padding and masks ----------------------------------------------------------------------------------------------------
rule(
    "mask",
    "mask_forgotten",
    "masked places get a gradient",
    lambda x, m: jnp.where(m, x * x, 0.0),
    lambda ct, out, x, m: (2 * ct * x, None),
    normal(5),
    np.array([True, False, True, True, False]),
)
rule(
    "mask",
    "keep_probability_once_more",
    "the dropout factor is applied twice",
    lambda x, m: jnp.where(m, x / 0.8, 0.0),
    lambda ct, out, x, m: (jnp.where(m, ct / 0.64, 0.0), None),
    normal(5),
    np.array([True, False, True, True, True]),
)


@built(
    "mask",
    "the rule draws another mask than the function",
    normal(8),
    truth=lambda x: x * jax.random.bernoulli(jax.random.key(3), 0.5, x.shape),
)
def dropout_mask_drawn_again():
    def mask(seed, x):
        return jax.random.bernoulli(jax.random.key(seed), 0.5, x.shape).astype(x.dtype)

    op = jax.custom_vjp(lambda x: x * mask(3, x))
    op.defvjp(lambda x: (x * mask(3, x), x), lambda x, ct: (ct * mask(4, x),))
    return op


rule(
    "mask",
    "padding_wrong_side",
    "the padding is cut off on the wrong side",
    lambda x: jnp.pad(x, (2, 0)),
    lambda ct, out, x: (ct[: x.size],),
    normal(4),
)
rule(
    "mask",
    "causal_mask_of_the_other_half",
    "the upper triangle's cotangent passes, the lower one's does not",
    lambda x: jnp.tril(x) ** 2,
    lambda ct, out, x: (2 * jnp.triu(ct) * x,),
    normal(3, 3),
)

# sizes ----------------------------------------------------------------------------------------------------------------
rule(
    "size",
    "single_element_standardised",
    "wrong at size 1 only, where the rule skips the mean's share",
    lambda x: x - jnp.mean(x),
    lambda ct, out, x: (ct if x.size == 1 else ct - jnp.mean(ct),),
    normal(1),
)
rule(
    "size",
    "scalar_forgets_its_factor",
    "the branch for scalars lacks the factor 3",
    lambda x: 3.0 * jnp.sin(x),
    lambda ct, out, x: (ct * jnp.cos(x) if x.ndim == 0 else 3 * ct * jnp.cos(x),),
    normal(),
)
rule(
    "size",
    "empty_batch_divided_by",
    "an empty batch turns the other argument's gradient into NaN",
    lambda x, w: jnp.sum(x) + jnp.sum(w * w),
    lambda ct, out, x, w: (ct * jnp.ones_like(x), 2 * ct * w * (jnp.asarray(x.size, x.dtype) / jnp.asarray(x.size, x.dtype))),
    np.zeros((0,)),
    normal(3),
    shows="nan",
)
rule(
    "size",
    "axis_of_size_one_summed_away",
    "an axis of size 1 that was not broadcast is taken for one that was",
    lambda x, y: x * y,
    lambda ct, out, x, y: (ct * y, jnp.broadcast_to(jnp.sum(ct * x, 0, keepdims=True), y.shape) if 1 in x.shape else ct * x),
    normal(3, 1),
    normal(3, 1, seed=2),
)
