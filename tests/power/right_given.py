"""Correct rules that rely on the shapes, orders and masks that are given."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import BOTH, conditioned, normal, right_rule, uniform

_HALVES = (*BOTH, "float16", "bfloat16")
_SORTED = np.array([-1.3, -0.4, 0.2, 0.9, 2.1])

# meant for one size ---------------------------------------------------------------------------------------------------
right_rule(
    "given shape",
    "cross_product_of_three",
    "three components are written down",
    lambda a, b: jnp.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]),
    lambda ct, out, a, b: (jnp.cross(b, ct), jnp.cross(ct, a)),
    normal(3),
    normal(3, seed=1),
)
right_rule(
    "given shape",
    "fourth_component",
    "an element is picked by its number, and put back",
    lambda x: x[3] * x[0],
    lambda ct, out, x: (jnp.zeros_like(x).at[3].set(ct * x[0]).at[0].set(ct * x[3]),),
    normal(4),
)
right_rule(
    "given shape",
    "real_part_of_a_quaternion",
    "four components",
    lambda q: jnp.array([1.0, -1, -1, -1], q.dtype) * q,
    lambda ct, out, q: (jnp.array([1.0, -1, -1, -1], q.dtype) * ct,),
    normal(4),
)
right_rule(
    "given shape",
    "rotation_in_the_plane",
    "a matrix of two by two",
    lambda t, x: jnp.array([[jnp.cos(t), -jnp.sin(t)], [jnp.sin(t), jnp.cos(t)]]) @ x,
    lambda ct, out, t, x: (ct @ jnp.array([-out[1], out[0]]), jnp.array([[jnp.cos(t), jnp.sin(t)], [-jnp.sin(t), jnp.cos(t)]]) @ ct),
    np.array(0.4),
    normal(2),
)
right_rule(
    "given shape",
    "luminance",
    "three channels at the end",
    lambda x: x @ jnp.array([0.3, 0.6, 0.1], x.dtype),
    lambda ct, out, x: (ct[..., None] * jnp.array([0.3, 0.6, 0.1], x.dtype),),
    uniform(0, 1, 4, 3),
)
right_rule(
    "given shape",
    "split_in_halves",
    "an even length is cut in two",
    lambda x: x[: x.size // 2] * x[x.size // 2 :],
    lambda ct, out, x: (jnp.concatenate([ct * x[x.size // 2 :], ct * x[: x.size // 2]]),),
    normal(6),
)
right_rule(
    "given shape",
    "gated_halves",
    "an even width is cut in two",
    lambda x: jnp.split(x, 2, -1)[0] * jax.nn.sigmoid(jnp.split(x, 2, -1)[1]),
    lambda ct, out, x: (jax.vjp(lambda v: jnp.split(v, 2, -1)[0] * jax.nn.sigmoid(jnp.split(v, 2, -1)[1]), x)[1](ct)[0],),
    normal(3, 4),
)
right_rule(
    "given shape",
    "blocks_of_two_averaged",
    "a pool whose window divides the length",
    lambda x: x.reshape(-1, 2).mean(1),
    lambda ct, out, x: (jnp.repeat(ct / 2, 2),),
    normal(6),
)
right_rule(
    "given shape",
    "upper_triangle_packed",
    "six numbers are a matrix of three",
    lambda p: jnp.zeros((3, 3), p.dtype).at[jnp.triu_indices(3)].set(p),
    lambda ct, out, p: (ct[jnp.triu_indices(3)],),
    normal(6),
)
right_rule(
    "given shape",
    "sizes_of_a_closure",
    "constants of four elements",
    lambda x: jnp.dot(x, jnp.arange(4.0, dtype=x.dtype)),
    lambda ct, out, x: (ct * jnp.arange(4.0, dtype=x.dtype),),
    normal(4),
)
right_rule(
    "given shape",
    "determinant_by_hand",
    "two by two",
    lambda a: a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0],
    lambda ct, out, a: (ct * jnp.array([[a[1, 1], -a[1, 0]], [-a[0, 1], a[0, 0]]]),),
    normal(2, 2),
)
right_rule(
    "given shape",
    "last_of_five",
    "the last element by its number from the front",
    lambda x: x[4] ** 2 + jnp.sum(x),
    lambda ct, out, x: (jnp.full_like(x, ct).at[4].add(2 * ct * x[4]),),
    normal(5),
)
right_rule(
    "given shape",
    "batch_of_one_squeezed",
    "an axis of one is taken away",
    lambda x: jnp.squeeze(x, 0) ** 2,
    lambda ct, out, x: ((2 * jnp.squeeze(x, 0) * ct)[None],),
    normal(1, 3),
)
right_rule(
    "given shape",
    "rows_are_pairs",
    "two columns: a value and a weight",
    lambda x: jnp.sum(x[:, 0] * x[:, 1]),
    lambda ct, out, x: (ct * x[:, ::-1],),
    normal(4, 2),
)

# structures and orders that are given ---------------------------------------------------------------------------------
_PERM = np.array([2, 0, 3, 1, 4])
right_rule(
    "given order",
    "interpolated_between_sorted",
    "knots are in order",
    lambda x, f: jnp.interp(x, jnp.asarray(_SORTED, x.dtype), f),
    lambda ct, out, x, f: jax.vjp(lambda a, b: jnp.interp(a, jnp.asarray(_SORTED, a.dtype), b), x, f)[1](ct),
    uniform(-1, 2, 4),
    normal(5),
)
right_rule(
    "given order",
    "permuted_by_indices",
    "a permutation, inverted by argsort",
    lambda x, p: x[p] * jnp.arange(1.0, 6.0, dtype=x.dtype)[: x.size],
    lambda ct, out, x, p: ((ct * jnp.arange(1.0, 6.0, dtype=x.dtype)[: x.size])[jnp.argsort(p)], None),
    normal(5),
    _PERM,
)
right_rule(
    "given order",
    "scattered_to_unique_places",
    "indices that never meet",
    lambda x, i: jnp.zeros(8, x.dtype).at[i].set(x),
    lambda ct, out, x, i: (ct[i], None),
    normal(4),
    np.array([5, 0, 7, 2]),
)
right_rule(
    "given order",
    "segments_in_order",
    "segment numbers are sorted",
    lambda x, s: jax.ops.segment_sum(x, s, 3, indices_are_sorted=True),
    lambda ct, out, x, s: (ct[s], None),
    normal(5),
    np.array([0, 0, 1, 2, 2]),
)
right_rule(
    "given order",
    "rows_by_pointers",
    "row pointers of a sparse matrix",
    lambda v, p: jnp.diff(jnp.concatenate([jnp.zeros(1, v.dtype), jnp.cumsum(v)])[p]),
    lambda ct, out, v, p: (jnp.repeat(ct, np.array([2, 0, 3]), total_repeat_length=5) if v.size == 5 else None, None),
    normal(5),
    np.array([0, 2, 2, 5]),
)
right_rule(
    "given order",
    "one_hot_labels",
    "labels below the number of classes",
    lambda x, y: -jnp.sum(jax.nn.log_softmax(x)[jnp.arange(x.shape[0]), y]),
    lambda ct, out, x, y: (ct * (jax.nn.softmax(x) - jax.nn.one_hot(y, x.shape[1], dtype=x.dtype)), None),
    normal(4, 3),
    np.array([0, 2, 1, 2]),
)
right_rule(
    "given order",
    "mask_that_keeps_something",
    "a mean over what is kept; of nothing, it is not finite",
    lambda x, m: jnp.sum(jnp.where(m, x, 0)) / jnp.sum(m),
    lambda ct, out, x, m: (jnp.where(m, ct / jnp.sum(m), 0), None),
    normal(5),
    np.array([True, False, True, True, False]),
)
right_rule(
    "given order",
    "masked_logsumexp",
    "of nothing kept, minus infinity",
    lambda x, m: jax.nn.logsumexp(jnp.where(m, x, -jnp.inf)),
    lambda ct, out, x, m: (ct * jnp.where(m, jnp.exp(x - out), 0), None),
    normal(5),
    np.array([True, False, True, True, False]),
)
right_rule(
    "given order",
    "causal_attention",
    "a causal mask is given",
    lambda x, m: jax.nn.softmax(jnp.where(m, x, -jnp.inf)),
    lambda ct, out, x, m: (out * (ct - jnp.sum(ct * out, -1, keepdims=True)), None),
    normal(3, 3),
    np.tril(np.ones((3, 3), bool)),
)
right_rule(
    "given order",
    "flag_chooses_a_branch",
    "both branches are right",
    lambda x, f: jnp.where(f, jnp.sin(x), x**3),
    lambda ct, out, x, f: (ct * jnp.where(f, jnp.cos(x), 3 * x**2), None),
    normal(4),
    np.array(True),
)
right_rule(
    "given order",
    "lower_cholesky_solve",
    "a triangular factor with its upper half zero",
    lambda f, b: jax.scipy.linalg.solve_triangular(jnp.tril(f), b, lower=True),
    lambda ct, out, f, b: (lambda w: (-jnp.tril(jnp.outer(w, out)), w))(
        jax.scipy.linalg.solve_triangular(jnp.tril(f), ct, trans=1, lower=True)
    ),
    np.tril(normal(3, 3)) + 3 * np.eye(3),
    normal(3, seed=1),
)
right_rule(
    "given order",
    "log_determinant_of_a_definite_matrix",
    "by Cholesky's factor, symmetric",
    lambda a: 2 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(a)))),
    lambda ct, out, a: (ct * jnp.linalg.inv((a + a.T) / 2),),
    conditioned(4, 20, symmetric=True),
)

# what is missing ------------------------------------------------------------------------------------------------------
right_rule(
    "given order",
    "mean_of_those_there",
    "a missing number is NaN, which belongs to no other point",
    jnp.nanmean,
    lambda ct, out, x: (jnp.where(jnp.isnan(x), 0, ct / jnp.sum(~jnp.isnan(x))),),
    np.array([0.5, np.nan, 2.0, -1.0]),
)
