"""Rules that are wrong where their conditions say so: for related arguments, beyond the span of the given ones, for indices that are not there,
for more groups; and right ones beside them."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import hidden, normal, right_rule, rule, uniform

_X, _Y = normal(5), normal(5, seed=3)


def gap(x, y):
    return x * x - 2 * y * x


def gap_with(name, why, related, x, y, at):
    """Enter a rule that is zero where ``related(x, y)``."""

    def bwd(ct, out, x, y):
        return jnp.where(related(x, y), 0, ct * (2 * x - 2 * y)), -2 * ct * x

    hidden("special value", name, why, gap, bwd, x, y, at=tuple(map(np.array, at)))


gap_with("one_is_twice_the_other", "a branch is left out", lambda x, y: x == 2 * y, _X, _Y, ([1.0, 0.3], [0.5, 0.2]))
gap_with(
    "opposite_far_apart", "beyond the span of both", lambda x, y: x == -y, uniform(1, 2, 4), uniform(3, 5, 4), ([-4.0, 1.2], [4.0, 3.5])
)
gap_with(
    "reciprocals",
    "a product is compared",
    lambda x, y: x * y == 1,
    uniform(0.2, 4, 5),
    uniform(0.3, 4, 5, seed=1),
    ([0.5, 0.3], [2.0, 1.0]),
)
gap_with(
    "a_large_sum",
    "a corner is left out",
    lambda x, y: x + y > 1.7,
    np.array([-0.5, 1.4, 0.3, 0.9]),
    np.array([1.2, -0.8, 0.6, -0.4]),
    ([1.4, 0.3], [1.0, 0.2]),
)
hidden(
    "special value",
    "minus_one_alone",
    "beyond the span of the arguments",
    lambda x: jnp.exp(x) * x * x,
    lambda ct, out, x: (jnp.where(x == -1, ct, ct * jnp.exp(x) * (x * x + 2 * x)),),
    uniform(0.2, 3, 5),
    at=(np.array([-1.0, 0.3]),),
)
hidden(
    "special value",
    "linear_power",
    "an exponent far from the given one",
    lambda x, n: x**n,
    lambda ct, out, x, n: (jnp.where(n == 1, 0, ct * n * x ** (n - 1)), jnp.sum(ct * out * jnp.log(x))),
    uniform(0.2, 3, 5),
    np.array(2.5),
    at=(np.array([0.5, 2.0]), np.array(1.0)),
)

# indices that are not there --------------------------------------------------------------------------------------------


def filled(x, i):
    return x.at[i].get(mode="fill", fill_value=0)


hidden(
    "other integer",
    "filled_but_added_to_the_last",
    "the transpose clips what the function fills",
    filled,
    lambda ct, out, x, i: (jnp.zeros_like(x).at[i].add(ct, mode="clip"), None),
    _X,
    np.array([0, 2, 4, 1]),
    at=(_X, np.array([0, 2, 7, 1])),
)
# groups, and arrays of one length ---------------------------------------------------------------------------------------


def grouped(x):
    y = x.reshape(x.shape[0], -1, 2)
    return (y / jnp.sqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-3)).reshape(x.shape)


def grouped_back(axes):
    def bwd(ct, out, x):
        y, c = x.reshape(x.shape[0], -1, 2), ct.reshape(x.shape[0], -1, 2)
        r = 1 / jnp.sqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-3)
        return ((r * c - y * r**3 * jnp.mean(c * y, axes, keepdims=True)).reshape(x.shape),)

    return bwd


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T / q.shape[1] ** 0.5) @ v


def attention_back(ct, out, q, k, v):
    p = jax.nn.softmax(q @ k.T / q.shape[1] ** 0.5)
    ds = p * (ct @ v.T - jnp.sum(p * (ct @ v.T), -1, keepdims=True)) / k.shape[0] ** 0.5  # the length, not the width
    return ds @ k, ds.T @ q, p.T @ ct


hidden("other size", "one_group_alone", "the mean of all groups", grouped, grouped_back((1, 2)), normal(3, 2), at=(normal(3, 4),))
hidden(
    "other size",
    "as_long_as_wide",
    "scaled by the other length, of squares",
    attention,
    attention_back,
    normal(4, 4),
    normal(4, 4, seed=1),
    normal(4, 4, seed=2),
    at=(normal(5, 4), normal(5, 4, seed=1), normal(5, 4, seed=2)),
)


hidden(
    "other size",
    "four_classes",
    "smoothed as for as many as were given, whose labels add up to it",
    lambda z, y: -jnp.mean(jnp.sum((0.9 * jax.nn.one_hot(y, z.shape[1]) + 0.1 / z.shape[1]) * jax.nn.log_softmax(z), -1)),
    lambda ct, out, z, y: (ct * (jax.nn.softmax(z) - 0.9 * jax.nn.one_hot(y, z.shape[1]) - 0.1 / 4) / len(z), None),
    normal(3, 4),
    np.array([0, 3, 1]),
    at=(normal(3, 5), np.array([0, 3, 1])),
)

# right ones -------------------------------------------------------------------------------------------------------------


def least_squares(a, b):
    return jnp.linalg.inv(a.T @ a) @ (a.T @ b)


def least_squares_back(ct, out, a, b):
    w = jnp.linalg.solve(a.T @ a, ct)
    return jnp.outer(b - a @ out, w) - jnp.outer(a @ w, out), a @ w


def ignoring(z, y):
    used = y != -100
    taken = -jnp.take_along_axis(jax.nn.log_softmax(z), jnp.where(used, y, 0)[:, None], 1)[:, 0]
    return jnp.sum(taken * used) / jnp.maximum(jnp.sum(used), 1)


def ignoring_back(ct, out, z, y):
    used = y != -100
    apart = jax.nn.softmax(z) - jax.nn.one_hot(y, z.shape[1], dtype=z.dtype)
    return ct * apart * used[:, None] / jnp.maximum(jnp.sum(used), 1), None


right_rule(
    "given shape", "normal_equations", "singular where there are fewer rows", least_squares, least_squares_back, normal(5, 3), normal(5)
)
right_rule(
    "given order", "label_to_be_ignored", "a flag, no index from the end", ignoring, ignoring_back, normal(3, 4), np.array([0, -100, 2])
)
right_rule(
    "tie",
    "two_systems_at_once",
    "singular where rows are equal",
    jnp.linalg.solve,
    lambda ct, out, a, b: (-jnp.linalg.solve(a.T, ct) @ out.T, jnp.linalg.solve(a.T, ct)),
    np.eye(4) + 0.3 * normal(4, 4),
    normal(4, 2),
)
right_rule(
    "custom rule",
    "filled_and_dropped",
    "what is not there is left out in both",
    filled,
    lambda ct, out, x, i: (jnp.zeros_like(x).at[i].add(ct, mode="drop"), None),
    _X,
    np.array([0, 2, 4, 1]),
)
right_rule(
    "kink",
    "above_twice_the_other",
    "a condition of two arguments",
    lambda x, y: jnp.maximum(x - 2 * y, 0),
    lambda ct, out, x, y: (ct * (x > 2 * y), -2 * ct * (x > 2 * y)),
    _X,
    _Y,
)

# what is masked is infinite -------------------------------------------------------------------------------------------


def entropy(x):
    return -jnp.sum(jax.nn.softmax(x) * jnp.where(x == -jnp.inf, 0, jax.nn.log_softmax(x)))


rule(
    "nan",
    "entropy_of_masked_logits",
    "minus infinity times zero",
    entropy,
    lambda ct, out, x: (-ct * jax.nn.softmax(x) * (jax.nn.log_softmax(x) + out),),
    np.array([0.5, -np.inf, 1.0, 0.3]),
    shows="nan",
)


def unit_of_those_there(x):
    there = jnp.where(x > -jnp.inf, x, 0)
    return there / jnp.sqrt(jnp.sum(there**2))


rule(
    "symmetry of the given point",
    "normalised_beside_minus_infinity",
    "the norm is left out, one at the given point",
    unit_of_those_there,
    lambda ct, out, x: (jnp.where(x > -jnp.inf, ct - out * jnp.sum(out * ct), 0),),
    np.array([0.6, -np.inf, -0.64, 0.48]),
    shows="elsewhere",
)
