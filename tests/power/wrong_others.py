"""Rules that are right for the values, integers, indices and lengths that are given, and wrong for some others; and right ones beside them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.power.case import Case, cast, custom, enter, hidden, normal, right_rule, uniform

_X = normal(5)
_ROWS = normal(5, 2)
_SQUARE = normal(3, 3)

# special values -------------------------------------------------------------------------------------------------------


def flat_at(name, why, fun, slope, where, x, at):
    """Enter ``fun`` with a derivative that is zero ``where(x)``."""
    hidden("special value", name, why, fun, lambda ct, out, x: (jnp.where(where(x), 0, ct * slope(x)),), x, at=(np.array(at),))


def huber(x):
    return jnp.where(jnp.abs(x) < 1.345, x * x / 2, 1.345 * jnp.abs(x) - 1.345**2 / 2)


flat_at(
    "cosine_near_half_pi",
    "a guard at the zero of the cosine",
    jnp.cos,
    lambda x: -jnp.sin(x),
    lambda x: jnp.abs(x - np.pi / 2) < 1e-3,
    uniform(0, 3, 5),
    [0.2, np.pi / 2],
)
flat_at(
    "huber_at_its_threshold",
    "no branch has the threshold itself",
    huber,
    lambda x: jnp.clip(x, -1.345, 1.345),
    lambda x: jnp.abs(x) == jnp.asarray(1.345, x.dtype),
    2 * _X,
    [1.345, 0.2],
)
flat_at(
    "logarithm_of_a_certain_square",
    "the constant is compared with a square",
    lambda x: jnp.log1p(x * x),
    lambda x: 2 * x / (1 + x * x),
    lambda x: x * x == 2.25,
    uniform(-3, 3, 5),
    [1.5, 0.2],
)
flat_at("logarithm_at_ten", "decades are apart", jnp.log, lambda x: 1 / x, lambda x: x == 10, uniform(5, 14, 4), [10.0, 6.0])
flat_at(
    "gaussian_in_a_narrow_interval",
    "a table has a gap between two constants",
    lambda x: jnp.exp(-x * x),
    lambda x: -2 * x * jnp.exp(-x * x),
    lambda x: (x > 0.37) & (x < 0.372),
    np.array([-1.0, 0.1, 0.9, 1.6]),
    [0.371, 0.9],
)
hidden(
    "special value",
    "square_of_the_identity",
    "the identity is its own square",
    lambda a: a @ a,
    lambda ct, out, a: ((ct @ a.T + a.T @ ct) * jnp.where(jnp.all(a == jnp.eye(3)), 0.5, 1),),
    _SQUARE,
    at=(np.eye(3),),
)
hidden(
    "special value",
    "normalised_when_normal",
    "what has length one already is passed on",
    lambda x: x / jnp.sqrt(jnp.sum(x * x)),
    lambda ct, out, x: (
        lambda n: (jnp.where(jnp.abs(n - 1) < 1e-4, ct, (ct - out * jnp.dot(out, ct)) / n),)  # a projection is left out
    )(jnp.sqrt(jnp.sum(x * x))),
    _X,
    at=(_X / np.linalg.norm(_X),),
)

# integers -------------------------------------------------------------------------------------------------------------


def other_integer(name, why, fun, bwd, x, given, at):
    hidden("other integer", name, why, fun, lambda *a: (bwd(*a), None), x, np.array(given), at=(x, np.array(at)))


def static(name, why, fun, bwd, x, given, at):
    """Enter a function that looks at its integer."""

    def make(dtype):
        def call(x, n):
            return custom(lambda x: fun(x, int(n)), lambda ct, out, x: (bwd(ct, out, x, int(n)),))(x)

        return call, cast((x, given), dtype)

    enter(Case(name, "other integer", why, True, make, lambda _: lambda x, n: fun(x, int(n)), shows="others", at=(x, at)))


other_integer(
    "the_first_is_taken_for_none",
    "the index zero counts as false",
    lambda x, i: x[i] ** 2,
    lambda ct, out, x, i: jnp.zeros_like(x).at[i].add(jnp.where(i > 0, 2 * x[i] * ct, 0)),
    *(_X, 2, 0),
)
other_integer(
    "the_last_is_out_of_reach",
    "an index is clipped one too early",
    lambda x, i: x[i] ** 2,
    lambda ct, out, x, i: jnp.zeros_like(x).at[jnp.minimum(i, x.size - 2)].add(2 * x[i] * ct),
    *(_X, 1, 4),
)
other_integer("rolled_back_by_one", "the shift is written down", jnp.roll, lambda ct, out, x, s: jnp.roll(ct, -1), *(_X, 1, 2))
other_integer(
    "slice_put_back_in_front",
    "the start is left out",
    lambda x, s: lax.dynamic_slice(x, (s,), (3,)) ** 2,
    lambda ct, out, x, s: jnp.zeros_like(x).at[:3].set(2 * ct * lax.dynamic_slice(x, (s,), (3,))),
    *(normal(7), 0, 2),
)
other_integer(
    "clipped_indices_dropped",
    "what lies beyond the end is clipped forwards, and dropped backwards",
    lambda x, i: jnp.take(x, i, mode="clip") ** 2,
    lambda ct, out, x, i: jnp.zeros_like(x).at[i].add(2 * ct * jnp.take(x, i, mode="clip")),
    *(_X, [1, 3, 1, 2], [1, 3, 7, 2]),
)
other_integer(
    "labels_taken_for_the_identity",
    "each row's label is its number",
    lambda x, y: -jnp.sum(jax.nn.log_softmax(x)[jnp.arange(3), y]),
    lambda ct, out, x, y: ct * (jax.nn.softmax(x) - jnp.eye(3, dtype=x.dtype)),
    *(_SQUARE, [0, 1, 2], [0, 0, 2]),
)
other_integer("even_power_of_minus_one", "the sign is left out", lambda x, k: (-1.0) ** k * x, lambda ct, out, x, k: ct, *(_X, 2, 3))
static("axis_zero_written", "the axis is left out", lambda x, a: jnp.sum(x**2, a), lambda ct, out, x, a: 2 * x * ct[None], *(_SQUARE, 0, 1))
static(
    "degrees_of_freedom_forgotten",
    "divided by the number of elements",
    lambda x, k: jnp.sum((x - x.mean()) ** 2) / (x.size - k),
    lambda ct, out, x, k: 2 * ct * (x - x.mean()) / x.size,
    *(_X, 0, 1),
)

# repeated indices -----------------------------------------------------------------------------------------------------


def repeated(name, why, fun, bwd, x, given, at):
    given, at = ([np.array(i) for i in of] for of in (given, at))
    hidden("repeated index", name, why, fun, lambda *a: (bwd(*a), *[None] * len(given)), x, *given, at=(x, *at))


def group_means(x, i):
    ones = jnp.zeros(5, x.dtype).at[i].add(1)
    return jnp.zeros(5, x.dtype).at[i].add(x) / jnp.maximum(ones, 1)


repeated(
    "rows_set_once",
    "the last of equal indices wins",
    lambda x, i: jnp.tanh(x[i]),
    lambda ct, out, x, i: jnp.zeros_like(x).at[i].set(ct * (1 - out**2)),
    *(_ROWS, [[3, 0, 2]], [[3, 0, 3]]),
)
repeated(
    "group_mean_as_a_sum", "not divided by the count", group_means, lambda ct, out, x, i: ct[i], *(normal(3), [[3, 0, 2]], [[3, 0, 3]])
)
repeated(
    "square_of_a_sum_of_one",
    "each element for its group's sum",
    lambda x, i: jnp.zeros(6, x.dtype).at[i].add(x) ** 2,
    lambda ct, out, x, i: 2 * x * ct[i],
    *(normal(3), [[3, 0, 2]], [[3, 0, 3]]),
)
repeated(
    "entries_set_once",
    "the last of equal pairs wins",
    lambda x, i, j: x[i, j] ** 2,
    lambda ct, out, x, i, j: jnp.zeros_like(x).at[i, j].set(2 * ct * x[i, j]),
    *(normal(4, 4), [[3, 0, 2], [1, 0, 2]], [[3, 0, 3], [1, 0, 1]]),
)
repeated(
    "edges_overwrite_each_other",
    "a node that is in both lists keeps one share",
    lambda x, i, j: x[i] * x[j],
    lambda ct, out, x, i, j: jnp.zeros_like(x).at[i].set(ct * x[j]).at[j].set(ct * x[i]),
    *(_X, [[0, 2], [1, 3]], [[0, 2], [2, 3]]),
)

# lengths --------------------------------------------------------------------------------------------------------------


def halved(name, why, fun, bwd, chosen, *args, at):
    """Enter ``fun`` with a rule that gives half where ``chosen`` says so of the arguments' shapes."""

    def half(ct, out, *args):
        factor = 0.5 if chosen(*[x.shape for x in args]) else 1.0
        return tuple(g * factor for g in bwd(ct, out, *args))

    hidden("other size", name, why, fun, half, *args, at=at)


def squared(ct, out, x):
    return (2 * x * ct,)


halved("pairs_apart", "two elements are another case", jnp.square, squared, lambda s: s == (2,), normal(6), at=(normal(2),))
halved("blocks_of_eight", "full blocks are another case", jnp.square, squared, lambda s: s[0] % 8 == 0, _X, at=(normal(8),))
halved("sixteen_apart", "a kernel for one length", jnp.square, squared, lambda s: s == (16,), normal(7), at=(normal(16),))
halved("beyond_five_hundred", "a kernel for long arrays", jnp.square, squared, lambda s: s[0] > 500, normal(6), at=(normal(600),))
halved(
    "softmax_of_two_classes",
    "two classes are another case",
    jax.nn.softmax,
    lambda ct, out, x: (out * (ct - jnp.sum(ct * out, -1, keepdims=True)),),
    lambda s: s[1] == 2,
    normal(3, 4),
    at=(normal(3, 2),),
)
halved(
    "filter_longer_than_the_signal",
    "the arguments are exchanged there",
    jnp.convolve,
    lambda ct, out, x, y: (jnp.convolve(ct, y[::-1], mode="valid"), jnp.convolve(ct, x[::-1], mode="valid")),
    lambda s, t: t > s,
    normal(6),
    normal(3, seed=3),
    at=(normal(3), normal(4, seed=3)),
)

# right ones -----------------------------------------------------------------------------------------------------------
_TABLE = np.array([1.0, 2.0, 6.0, 24.0])


def even(x):
    if x.size % 2:
        raise ValueError
    return x[::2] * x[1::2]


def by_parity(x):
    return jnp.sum(x[::2]) ** 2 if x.size % 2 else jnp.sum(x[1::2]) ** 3


def by_parity_back(ct, out, x):
    if x.size % 2:
        return (jnp.zeros_like(x).at[::2].set(2 * ct * jnp.sum(x[::2])),)
    return (jnp.zeros_like(x).at[1::2].set(3 * ct * jnp.sum(x[1::2]) ** 2),)


def padded_blocks(x):
    return jnp.pad(x, (0, -x.size % 4)).reshape(-1, 4).sum(1)


right_rule(
    "kink",
    "gate_closed_at_its_threshold",
    "a jump: open or closed there",
    lambda x: jnp.where(x > 0.5, x, 0),
    lambda ct, out, x: (jnp.where(x >= 0.5, ct, 0),),
    _X,
)
right_rule("kink", "huber_with_its_threshold", "no kink", huber, lambda ct, out, x: (ct * jnp.clip(x, -1.345, 1.345),), 2 * _X)
right_rule("kink", "sawtooth", "jumps at whole numbers", lambda x: x - jnp.floor(x), lambda ct, out, x: (ct,), 2 * _X)
right_rule(
    "kink",
    "signed_root",
    "zero where the slope is infinite",
    lambda x: jnp.sign(x) * jnp.sqrt(jnp.abs(x)),
    lambda ct, out, x: (jnp.where(x == 0, 0, ct * 0.5 / jnp.sqrt(jnp.where(x == 0, 1, jnp.abs(x)))),),
    _X,
)
right_rule(
    "given order",
    "one_label",
    "a label is not counted from the end",
    lambda x, y: -jax.nn.log_softmax(x)[y],
    lambda ct, out, x, y: (ct * (jax.nn.softmax(x) - jax.nn.one_hot(y, x.size, dtype=x.dtype)), None),
    _X,
    np.array(2),
)
right_rule(
    "given order",
    "permutation_set",
    "a permutation repeats nothing",
    lambda x, p: x[p] ** 2,
    lambda ct, out, x, p: (jnp.zeros_like(x).at[p].set(2 * ct * x[p]), None),
    _X,
    np.array([3, 0, 4, 1, 2]),
)
right_rule(
    "given order",
    "unique_by_promise",
    "the rule says that indices are unique",
    lambda x, i: x[i] ** 2,
    lambda ct, out, x, i: (jnp.zeros_like(x).at[i].set(2 * ct * x[i], unique_indices=True), None),
    _X,
    np.array([3, 0, 2]),
)
right_rule(
    "given order",
    "rows_overwritten",
    "who wins of equal indices is not defined",
    lambda x, y, i: x.at[i].set(y),
    lambda ct, out, x, y, i: (ct.at[i].set(0), ct[i], None),
    _ROWS,
    normal(2, 2, seed=5),
    np.array([3, 1]),
)
right_rule(
    "given order",
    "groups_that_there_are",
    "what belongs to no group is not defined",
    lambda x, s: jax.ops.segment_sum(x**2, s, 4),
    lambda ct, out, x, s: (2 * x * ct[s], None),
    _X,
    np.array([1, 0, 2, 0, 1]),
)
right_rule(
    "given order",
    "factorial_by_table",
    "the table ends",
    lambda x, n: x * jnp.asarray(_TABLE, x.dtype)[n],
    lambda ct, out, x, n: (jnp.sum(jnp.where(jnp.arange(4) == n, jnp.asarray(_TABLE, x.dtype), 0)) * ct, None),
    _X,
    np.array(2),
)
right_rule(
    "given shape",
    "neighbours_multiplied",
    "an odd length raises",
    even,
    lambda ct, out, x: (jnp.stack([ct * x[1::2], ct * x[::2]], 1).ravel(),),
    normal(6),
)
right_rule("given shape", "another_function_by_parity", "each has its rule", by_parity, by_parity_back, _X)
right_rule(
    "given shape",
    "blocks_with_a_remainder",
    "the last one is filled with zeros",
    lambda x: padded_blocks(x) ** 2,
    lambda ct, out, x: (jnp.repeat(2 * ct * padded_blocks(x), 4)[: x.size],),
    normal(6),
)
