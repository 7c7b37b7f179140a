"""Correct gradients of matrix functions, layers, loops and transforms, and correct custom rules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import BOTH, built, conditioned, custom, normal, right, right_rule, uniform


def _sym(a):
    return 0.5 * (a + a.T)


# matrices -------------------------------------------------------------------------------------------------------------
for condition in (1e1, 1e3, 1e5):
    name = f"{condition:.0e}".replace("+0", "")
    right("ill-conditioned", f"solve_of_condition_{name}", "a linear system", jnp.linalg.solve, conditioned(4, condition), normal(4))
    right("ill-conditioned", f"inverse_of_condition_{name}", "an inverse", jnp.linalg.inv, conditioned(3, condition))
    right(
        "ill-conditioned",
        f"cholesky_of_condition_{name}",
        "a Cholesky factor",
        lambda a: jnp.linalg.cholesky(_sym(a)),
        conditioned(3, condition, symmetric=True),
    )
right("ill-conditioned", "log_determinant_of_condition_1e5", "a log determinant", lambda a: jnp.linalg.slogdet(a)[1], conditioned(4, 1e5))
right(
    "ill-conditioned",
    "triangular_solve",
    "a triangular system",
    lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
    np.tril(normal(4, 4)) + 3 * np.eye(4),
    normal(4),
)
right("ill-conditioned", "hilbert_determinant", "a determinant of 1e-7", jnp.linalg.det, 1 / (np.arange(4)[:, None] + np.arange(4) + 1.0))
right("ill-conditioned", "least_squares", "the normal equations", lambda a, b: jnp.linalg.solve(a.T @ a, a.T @ b), normal(6, 3), normal(6))
right("matrix", "determinant", "3 by 3", jnp.linalg.det, normal(3, 3))
right(
    "matrix",
    "eigenvalues_separated",
    "gaps of about 1",
    lambda a: jnp.linalg.eigvalsh(_sym(a)),
    _sym(normal(4, 4)) + np.diag([0.0, 2.0, 4.0, 6.0]),
)
right(
    "matrix",
    "eigenvectors_separated",
    "squared, so that signs do not matter",
    lambda a: jnp.linalg.eigh(_sym(a))[1] ** 2,
    _sym(normal(3, 3)) + np.diag([0.0, 3.0, 6.0]),
)
right("matrix", "singular_values", "of a 3 by 2 matrix", lambda a: jnp.linalg.svd(a, compute_uv=False), normal(3, 2))
right("matrix", "qr_triangle", "the triangular factor", lambda a: jnp.linalg.qr(a)[1], normal(3, 3) + 2 * np.eye(3))
right("matrix", "matrix_exponential", "of a 3 by 3 matrix", jax.scipy.linalg.expm, 0.5 * normal(3, 3))
right("matrix", "frobenius_norm", "of a matrix", jnp.linalg.norm, normal(3, 3))
right("matrix", "quadratic_form", "with an unsymmetric matrix", lambda x, a: x @ a @ x, normal(4), normal(4, 4))
right(
    "matrix", "einsum_chain", "three factors", lambda a, b, c: jnp.einsum("ij,jk,kl->il", a, b, c), normal(2, 3), normal(3, 2), normal(2, 2)
)
right("matrix", "vector_norm_of_order_three", "an odd power", lambda x: jnp.linalg.norm(x, 3), normal(4))

# layers, transforms, loops --------------------------------------------------------------------------------------------
right(
    "layer",
    "layer_norm",
    "which check_grads blames in float32",
    lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6),
    normal(3, 8),
)
right(
    "layer",
    "layer_norm_of_nearly_equal_inputs",
    "a standard deviation of 1e-2",
    lambda x: (x - x.mean()) / jnp.sqrt(x.var() + 1e-6),
    1 + 0.01 * normal(6),
)
right("layer", "attention", "softmax(q k') v", lambda q, k, v: jax.nn.softmax(q @ k.T / 2.0) @ v, normal(3, 4), normal(2, 4), normal(2, 3))
right("layer", "gelu", "exact and tanh forms", lambda x: jax.nn.gelu(x, approximate=False) + jax.nn.gelu(x), normal(5))
right(
    "layer",
    "group_norm_with_gain",
    "three arguments",
    lambda x, g, b: ((x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)) * g + b,
    normal(6, 2),
    normal(2),
    normal(2, seed=1),
)
right(
    "layer", "convolution", "an image convolution", lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"), normal(1, 2, 4, 4), normal(2, 2, 3, 3)
)
right(
    "layer",
    "strided_dilated_convolution",
    "stride 2, dilation 2",
    lambda x, k: jax.lax.conv_general_dilated(x, k, (2,), [(2, 1)], rhs_dilation=(2,)),
    normal(1, 1, 9),
    normal(2, 1, 3),
)
right(
    "layer",
    "rfft_filter",
    "filtered in the spectrum",
    lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.arange(1, 5, dtype=x.dtype)),
    normal(6),
)
right("layer", "average_pool", "a window mean", lambda x: x.reshape(3, 2).mean(1), normal(6))
right(
    "loop",
    "scan_recurrence",
    "a recurrence of 20 steps",
    lambda x, w: jax.lax.scan(lambda h, v: (jnp.tanh(w * h + v),) * 2, jnp.zeros_like(w), x)[1],
    normal(20),
    np.array(0.7),
)
right(
    "loop",
    "logistic_map",
    "three steps of a chaotic map",
    lambda x: functools.reduce(lambda y, _: 3.7 * y * (1 - y), range(3), x),
    np.array([0.3, 0.41]),
)
right("loop", "cumulative_product", "positive factors", jnp.cumprod, uniform(0.5, 1.5, 6))
right(
    "loop",
    "polynomial_by_horner",
    "a loop over coefficients",
    lambda x, c: functools.reduce(lambda acc, a: acc * x + a, c, jnp.zeros_like(x)),
    np.array([0.5, -1.2]),
    normal(4),
)
right("loop", "conditional_branch", "cond on a value", lambda x: jax.lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x), np.array([0.5, 1.0]))

# indices and sizes ----------------------------------------------------------------------------------------------------
_IDS = np.array([0, 2, 2, 1, 2, -1])
right("indices", "gather_with_duplicates", "rows read several times", lambda x, i: x[i], normal(4, 2), _IDS)
right("indices", "scatter_add_with_duplicates", "rows written several times", lambda x, y, i: x.at[i].add(y), normal(4), normal(6), _IDS)
right(
    "indices",
    "scatter_multiply",
    "distinct places",
    lambda x, y: x.at[jnp.array([0, 2])].multiply(y, unique_indices=True),
    normal(4),
    normal(2),
)
right("indices", "integer_exponent", "an integer array", lambda x, n: x ** n.astype(x.dtype), uniform(0.5, 1.5, 3), np.array([2, 0, 3]))
right("indices", "boolean_mask", "a boolean array", lambda x, m: jnp.where(m, jnp.sin(x), x), normal(3), np.array([True, False, True]))
right("sizes", "empty", "size zero", lambda x: jnp.sin(x), np.zeros((0, 3)))
right("sizes", "empty_sum", "a sum over nothing", lambda x, y: jnp.sum(x) + jnp.sum(y * y), np.zeros((0,)), normal(3))
right("sizes", "scalar", "shape ()", jnp.exp, np.array(0.3))
right("sizes", "one_by_one", "a matrix of size 1", jnp.linalg.inv, np.array([[2.5]]))
right("sizes", "python_float", "a Python number", lambda x: x * x, 1.5)
right(
    "pytree",
    "nested_parameters",
    "a two-layer network",
    lambda p, x: jnp.sum(jnp.tanh(x @ p["a"]["w"] + p["a"]["b"]) @ p["b"][0]),
    {"a": {"w": normal(3, 4), "b": normal(4)}, "b": [normal(4, 2)]},
    normal(2, 3),
)
right(
    "pytree",
    "several_outputs",
    "a tuple and a dictionary",
    lambda x, y: (x * y, {"s": jnp.sum(jnp.sin(x)), "t": y}),
    normal(3),
    normal(3, seed=1),
)
right("pytree", "integer_output", "one output is an index", lambda x: (jnp.max(x), jnp.argmax(x)), np.array([1.0, 3.0, 2.0]))
right(
    "pytree",
    "none_and_unused",
    "an unused leaf and a None",
    lambda p: jnp.sin(p["x"]),
    {"x": normal(3), "unused": normal(2), "nothing": None},
)

# correct custom rules -------------------------------------------------------------------------------------------------
right_rule("custom rule", "rule_for_sine", "plain", jnp.sin, lambda ct, out, x: (ct * jnp.cos(x),), normal(4))
right_rule(
    "custom rule",
    "rule_by_the_result",
    "the result is the residual",
    jnp.tanh,
    lambda ct, out, x: (ct * (1 - out * out),),
    normal(4),
    dtypes=(*BOTH, "float16", "bfloat16"),
)
right_rule(
    "custom rule",
    "rule_for_softmax",
    "with its sum",
    lambda x: jax.nn.softmax(x),
    lambda ct, out, x: (out * (ct - jnp.sum(ct * out)),),
    normal(5),
)
right_rule(
    "custom rule",
    "rule_with_broadcast",
    "sums over the broadcast axis",
    lambda x, b: x * b,
    lambda ct, out, x, b: (ct * b, jnp.sum(ct * x, 0)),
    normal(4, 3),
    normal(3),
)
right_rule(
    "custom rule",
    "rule_for_matrix_product",
    "both factors",
    lambda a, b: a @ b,
    lambda ct, out, a, b: (ct @ b.T, a.T @ ct),
    normal(3, 3),
    normal(3, 3, seed=1),
)
right_rule(
    "custom rule",
    "rule_for_solve",
    "the transposed system",
    jnp.linalg.solve,
    lambda ct, out, a, b: (lambda lam: (-jnp.outer(lam, out), lam))(jnp.linalg.solve(a.T, ct)),
    conditioned(3, 20.0),
    normal(3),
)
right_rule(
    "custom rule",
    "rule_with_an_integer_argument",
    "None for the indices",
    lambda x, i: x[i],
    lambda ct, out, x, i: (jnp.zeros_like(x).at[i].add(ct), None),
    normal(4),
    np.array([0, 2, 2]),
)
right_rule(
    "custom rule",
    "rule_for_complex_product",
    "JAX's convention",
    lambda x, y: x * y,
    lambda ct, out, x, y: (ct * y, ct * x),
    normal(3) + 1j * normal(3, seed=1),
    normal(3, seed=2) + 1j * normal(3, seed=3),
)
right_rule(
    "custom rule",
    "rule_for_two_outputs",
    "both cotangents",
    lambda x: (jnp.sin(x), x * x),
    lambda ct, out, x: (ct[0] * jnp.cos(x) + ct[1] * 2 * x,),
    normal(4),
)
right_rule(
    "custom rule",
    "rule_for_a_tree",
    "a dictionary of parameters",
    lambda p, x: p["w"] * x + p["b"],
    lambda ct, out, p, x: ({"w": ct * x, "b": ct}, ct * p["w"]),
    {"w": normal(3), "b": normal(3, seed=1)},
    normal(3, seed=2),
)
right_rule(
    "custom rule",
    "rule_with_an_unused_argument",
    "zeros for what is not used",
    lambda x, y: jnp.exp(x),
    lambda ct, out, x, y: (ct * out, jnp.zeros_like(y)),
    normal(3),
    normal(3, seed=1),
)


@built(
    "custom rule",
    "the rule closes over an argument of the function around it",
    normal(3),
    normal(3, seed=1),
    truth=lambda x, y: jnp.sum(jnp.sin(x * jnp.sin(y)) * y),
    wrong=False,
)
def rule_that_closes_over_a_tracer():
    def fun(x, y):
        op = custom(jnp.sin, lambda ct, out, v: (ct * jnp.cos(v),))
        return jnp.sum(op(x * jnp.sin(y)) * y)

    return fun


@built("custom rule", "a static argument by nondiff_argnums", normal(4), truth=lambda x: x**3, wrong=False)
def rule_with_a_static_argument():
    op = jax.custom_vjp(lambda n, x: x**n, nondiff_argnums=(0,))
    op.defvjp(lambda n, x: (x**n, x), lambda n, x, ct: (n * ct * x ** (n - 1),))
    return lambda x: op(3, x)


@built("custom rule", "a forward rule", normal(4), normal(4, seed=1), truth=lambda x, y: x * jnp.exp(y), wrong=False)
def forward_rule_of_two_arguments():
    op = jax.custom_jvp(lambda x, y: x * jnp.exp(y))
    op.defjvps(lambda t, out, x, y: t * jnp.exp(y), lambda t, out, x, y: t * out)
    return op


@built("custom rule", "log(1 + exp(x)) with the textbook rule", np.array([-100.0, 0.0, 100.0]), truth=jax.nn.softplus, wrong=False)
def stable_log1p_exp():
    return custom(jax.nn.softplus, lambda ct, out, x: (ct * (1 - 1 / (1 + jnp.exp(jnp.minimum(x, 80.0)))),))


@built("custom rule", "the implicit function theorem at a root", uniform(0.5, 2.0, 3), wrong=False)
def implicit_root():
    def newton(a):
        return jax.lax.fori_loop(0, 30, lambda _, x: x - (x**3 + x - a) / (3 * x * x + 1), a / (1 + jnp.abs(a)))

    op = jax.custom_vjp(newton)
    op.defvjp(lambda a: (lambda x: (x, a))(newton(a)), lambda a, ct: (ct / (3 * op(a) ** 2 + 1),))
    return op


@built("custom rule", "custom_linear_solve", conditioned(3, 10.0), normal(3), truth=jnp.linalg.solve, wrong=False)
def linear_solve_rule():
    def fun(a, b):
        return jax.lax.custom_linear_solve(lambda x: a @ x, b, lambda _, y: jnp.linalg.solve(a, y), lambda _, y: jnp.linalg.solve(a.T, y))

    return fun


@built("custom rule", "a rule with a batching rule that is right", normal(4), truth=jnp.sin, wrong=False)
def rule_with_its_own_batching():
    batching = jax.custom_batching.custom_vmap(jnp.cos)
    batching.def_vmap(lambda size, batched, x: (jnp.cos(x), True))
    slope = jax.custom_jvp(batching)
    slope.defjvp(lambda primals, tangents: jax.jvp(jnp.cos, primals, tangents))
    return custom(jnp.sin, lambda ct, out, x: (ct * slope(x),))


@built("custom rule", "a cache that is keyed by what it depends on", normal(4), truth=lambda x: 3.0 * x, wrong=False)
def rule_with_a_harmless_cache():
    cache = {}

    def bwd(ct, out, x):
        return (ct * cache.setdefault(x.dtype, 3.0),)

    return custom(lambda x: 3.0 * x, bwd)


@built("custom rule", "rematerialised", normal(3, 3), normal(3), truth=lambda w, x: jnp.sum(jnp.tanh(w @ jnp.tanh(w @ x))), wrong=False)
def checkpointed_network():
    return jax.checkpoint(lambda w, x: jnp.sum(jnp.tanh(w @ jnp.tanh(w @ x))))


@built("custom rule", "jitted inside", normal(4), truth=lambda x: jnp.sin(x) ** 2, wrong=False)
def jitted_rule():
    op = custom(jax.jit(jnp.sin), lambda ct, out, x: (ct * jnp.cos(x),))
    return jax.jit(lambda x: op(x) ** 2)
