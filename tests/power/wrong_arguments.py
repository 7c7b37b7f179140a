"""Rules that mix up, forget or count twice their arguments."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import built, normal, rule, uniform

# missing and doubled arguments ----------------------------------------------------------------------------------------
rule(
    "missing argument",
    "linear_without_bias",
    "the bias gets zeros",
    lambda x, w, b: x @ w + b,
    lambda ct, out, x, w, b: (ct @ w.T, x.T @ ct, jnp.zeros_like(b)),
    normal(3, 4),
    normal(4, 2),
    normal(2),
)
rule(
    "missing argument",
    "power_without_exponent",
    "the exponent gets zeros",
    lambda x, p: x**p,
    lambda ct, out, x, p: (ct * p * x ** (p - 1), jnp.zeros_like(p)),
    uniform(0.5, 2.0, 4),
    uniform(1.0, 3.0, 4),
)
rule(
    "missing argument",
    "interpolation_weight",
    "the weight of an interpolation gets zeros",
    lambda a, b, t: a + t * (b - a),
    lambda ct, out, a, b, t: (ct * (1 - t), ct * t, jnp.zeros_like(t)),
    normal(3),
    normal(3, seed=1),
    uniform(0.1, 0.9, 3),
)
rule(
    "doubled argument",
    "product_counted_twice",
    "the first argument's share is added twice",
    lambda x, y: x * y,
    lambda ct, out, x, y: (ct * y + ct * y, ct * x),
    normal(4),
    normal(4, seed=1),
)
rule(
    "doubled argument",
    "quadratic_form_once",
    "x'Ax with x on both sides, one of them forgotten",
    lambda x, a: x @ a @ x,
    lambda ct, out, x, a: (ct * (a @ x), ct * jnp.outer(x, x)),
    normal(3),
    normal(3, 3),
)
rule(
    "doubled argument",
    "quadratic_form_as_if_symmetric",
    "2Ax, which needs a symmetric A",
    lambda x, a: x @ a @ x,
    lambda ct, out, x, a: (2 * ct * (a @ x), ct * jnp.outer(x, x)),
    normal(4),
    normal(4, 4),
)
rule(
    "doubled argument",
    "shared_argument_once",
    "an argument that enters twice gets one of its two shares",
    lambda x: jnp.sum(jnp.sin(x) * jnp.exp(x)),
    lambda ct, out, x: (ct * jnp.cos(x) * jnp.exp(x),),
    normal(4),
)

# argument order -------------------------------------------------------------------------------------------------------
rule(
    "argument order",
    "product_swapped",
    "the two gradients change places",
    lambda x, y: x * y,
    lambda ct, out, x, y: (ct * x, ct * y),
    normal(4),
    normal(4, seed=1),
)
rule(
    "argument order",
    "arctan2_swapped",
    "the arguments of arctan2 change places",
    jnp.arctan2,
    lambda ct, out, y, x: (-ct * y / (x * x + y * y), ct * x / (x * x + y * y)),
    uniform(0.5, 1.5, 3),
    uniform(0.5, 1.5, 3, seed=1),
)
rule(
    "argument order",
    "matrix_factors_swapped",
    "square factors change places",
    lambda a, b: a @ b,
    lambda ct, out, a, b: (a.T @ ct, ct @ b.T),
    normal(3, 3),
    normal(3, 3, seed=1),
)
rule(
    "argument order",
    "cross_product_order",
    "the cross product does not commute",
    jnp.cross,
    lambda ct, out, a, b: (jnp.cross(ct, b), jnp.cross(ct, a)),
    normal(3),
    normal(3, seed=1),
)


@built(
    "argument order", "the branches of select change places", np.array([True, False, True]), normal(3), normal(3, seed=1), truth=jnp.where
)
def select_branches_swapped():
    op = jax.custom_vjp(jnp.where)
    op.defvjp(lambda c, x, y: (jnp.where(c, x, y), c), lambda c, ct: (None, jnp.where(c, 0, ct), jnp.where(c, ct, 0)))
    return op


# pytrees --------------------------------------------------------------------------------------------------------------
_LAYER = {"b": normal(3), "w": normal(3, seed=1)}
rule(
    "pytree",
    "leaves_swapped",
    "two leaves of one shape change places",
    lambda p, x: p["w"] * x + jnp.sin(p["b"]),
    lambda ct, out, p, x: ({"b": ct * x, "w": ct * jnp.cos(p["b"])}, ct * p["w"]),
    _LAYER,
    normal(3, seed=2),
)
rule(
    "pytree",
    "one_leaf_zero",
    "one leaf of a nested tree gets zeros",
    lambda p, x: jnp.tanh(p["w"] * x) + p["b"],
    lambda ct, out, p, x: ({"b": jnp.zeros_like(p["b"]), "w": ct * (1 - (out - p["b"]) ** 2) * x}, ct * (1 - (out - p["b"]) ** 2) * p["w"]),
    _LAYER,
    normal(3, seed=2),
)
rule(
    "pytree",
    "outputs_in_another_order",
    "the cotangents of a dictionary are taken in the order of writing, not of its keys",
    lambda x: {"value": jnp.sin(x), "energy": x**2},
    lambda ct, out, x: (sum(c * slope for c, slope in zip(ct.values(), (jnp.cos(x), 2 * x), strict=True)),),
    uniform(0.5, 1.5, 4),
)
