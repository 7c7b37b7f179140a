"""Correct rules in several forms, and functions that are hard on checkers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.ode import odeint

import tape
from tests.power.case import BOTH, built, complexes, conditioned, custom, normal, right, right_rule, uniform

_HALVES = (*BOTH, "float16", "bfloat16")
_SORTED = np.array([-1.3, -0.4, 0.2, 0.9, 2.1])

# rules in several forms -----------------------------------------------------------------------------------------------


@built("custom rule", "a static power", uniform(0.5, 1.5, 4), truth=lambda x: x**3, wrong=False)
def rule_with_a_static_power():
    @functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
    def power(x, n):
        return x**n

    power.defvjp(lambda x, n: (x**n, x), lambda n, x, ct: (ct * n * x ** (n - 1),))
    return lambda x: power(x, 3)


@built("jax cannot differentiate", "a loop that stops when it is near", uniform(1, 4, 4), truth=jnp.sqrt, wrong=False)
def newton_root_with_a_rule():
    def solve(a):
        return jax.lax.while_loop(lambda s: jnp.max(jnp.abs(s * s - a)) > 1e-3 * jnp.max(a), lambda s: 0.5 * (s + a / s), (1 + a) / 2)

    def root(a):
        s = solve(a)
        for _ in range(3):
            s = 0.5 * (s + a / s)
        return s

    return custom(root, lambda ct, kept: (ct / (2 * kept[0]),), lambda a: (root(a), (root(a),)))


@built("custom rule", "shape-dependent code with equal results", normal(6), truth=jnp.mean, wrong=False)
def mean_in_blocks():
    def bwd(ct, out, x):
        n = x.size
        if n % 4 == 0:
            return (jnp.repeat(ct[None] / n, n),)
        return (jnp.full_like(x, ct / n),)

    return custom(jnp.mean, bwd)


@built("custom rule", "of the tape", normal(4), normal(4, seed=1), truth=lambda x, y: x * jnp.sin(y), wrong=False)
def recorded_product_with_sine():
    class Product(tape.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * tape.numpy.sin(y)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved
            return g * tape.numpy.sin(y), g * x * tape.numpy.cos(y)

    return Product.apply


@built("custom rule", "of the tape, two outputs, one perhaps unused", normal(4), truth=lambda x: (jnp.sin(x), x * x), wrong=False)
def recorded_pair():
    class Pair(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(True)
            ctx.save_for_backward(x)
            return tape.numpy.sin(x), x * x

        @staticmethod
        def backward(ctx, g, h):
            (x,) = ctx.saved
            return g * tape.numpy.cos(x) + 2 * h * x

    return Pair.apply


for _name, _fun, _rule, _args in (
    ("expm1", jnp.expm1, lambda ct, out, x: (ct * (out + 1),), (normal(5) * 1e-3,)),
    ("log1p", jnp.log1p, lambda ct, out, x: (ct / (1 + x),), (np.array([-0.999, 1e-6, 0.5, 1e4]),)),
    ("logaddexp", jnp.logaddexp, lambda ct, out, x, y: (ct * jax.nn.sigmoid(x - y), ct * jax.nn.sigmoid(y - x)), (np.array([1.0, 40.0, -40.0]), np.array([1.0, -40.0, 40.0]))),
    ("hypot", lambda x, y: jnp.sqrt(x * x + y * y), lambda ct, out, x, y: (ct * x / out, ct * y / out), (np.array([3.0, -1e-3, 1e3]), np.array([4.0, 1e-3, 1.0]))),
    ("arctan2", jnp.arctan2, lambda ct, out, y, x: (ct * x / (x * x + y * y), -ct * y / (x * x + y * y)), (normal(4), normal(4, seed=1))),
    ("logsumexp_rows", lambda x: jax.nn.logsumexp(x, 1), lambda ct, out, x: (ct[:, None] * jnp.exp(x - out[:, None]),), (5 * normal(3, 4),)),
    ("cumprod_with_a_zero", jnp.cumprod, lambda ct, out, x: (jax.vjp(lambda v: jnp.stack([jnp.prod(v[: i + 1]) for i in range(v.size)]), x)[1](ct)[0],), (np.array([1.5, 0.0, -0.7, 2.0]),)),
    ("normalised_rows", lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True), lambda ct, out, x: ((ct - out * jnp.sum(ct * out, 1, keepdims=True)) / jnp.linalg.norm(x, axis=1, keepdims=True),), (normal(3, 4),)),
    ("sinc", jnp.sinc, lambda ct, out, x: (ct * jnp.where(jnp.abs(x) < 1e-2, -(jnp.pi**2) * x / 3 + jnp.pi**4 * x**3 / 30, (jnp.cos(jnp.pi * x) - jnp.sinc(x)) / jnp.where(x == 0, 1, x)),), (np.array([0.3, -1.2, 2.4]),)),
    ("clip_with_halves", lambda x: jnp.clip(x, -1, 1), lambda ct, out, x: (ct * jnp.where(jnp.abs(x) == 1, 0.5, jnp.abs(x) < 1),), (np.array([-1.0, 0.3, 1.0, 2.0]),)),
    ("minimum_by_halves", jnp.minimum, lambda ct, out, x, y: (ct * jnp.where(x == y, 0.5, x < y), ct * jnp.where(x == y, 0.5, y < x)), (np.array([1.0, 2.0]), np.array([1.0, 1.0]))),
    ("embedding", lambda t, i: t[i], lambda ct, out, t, i: (jnp.zeros_like(t).at[i].add(ct), None), (normal(6, 3), np.array([0, 5, 0, 2]))),
    ("einsum_of_three", lambda a, b, c: jnp.einsum("ij,jk,kl->il", a, b, c), lambda ct, out, a, b, c: (ct @ (b @ c).T, a.T @ ct @ c.T, (a @ b).T @ ct), (normal(2, 3), normal(3, 4), normal(4, 2))),
    ("convolution_full", lambda x, k: jnp.convolve(x, k), lambda ct, out, x, k: (jnp.correlate(ct, k, "valid"), jnp.correlate(ct, x, "valid")), (normal(6), normal(3))),
    ("inverse", jnp.linalg.inv, lambda ct, out, a: (-out.T @ ct @ out.T,), (normal(3, 3) + 2 * np.eye(3),)),
    ("determinant", jnp.linalg.det, lambda ct, out, a: (ct * out * jnp.linalg.inv(a).T,), (normal(3, 3) + np.eye(3),)),
    ("trace_of_a_product", lambda a, b: jnp.trace(a @ b), lambda ct, out, a, b: (ct * b.T, ct * a.T), (normal(3, 4), normal(4, 3))),
    ("tall_gram", lambda a: a.T @ a, lambda ct, out, a: (a @ (ct + ct.T),), (normal(5, 3),)),
    ("roll_by_two", lambda x: jnp.roll(x, 2) * x, lambda ct, out, x: (ct * jnp.roll(x, 2) + jnp.roll(ct * x, -2),), (normal(5),)),
    ("mean_and_variance", lambda x: (jnp.mean(x), jnp.var(x)), lambda ct, out, x: (ct[0] / x.size + 2 * ct[1] * (x - out[0]) / x.size,), (normal(5),)),
    ("rms_norm", lambda x: x * jax.lax.rsqrt(jnp.mean(x * x)), lambda ct, out, x: ((ct - out * jnp.mean(ct * out)) * jax.lax.rsqrt(jnp.mean(x * x)),), (normal(6),)),
    ("pad_and_cut", lambda x: jnp.pad(x, (1, 2))[:-1] ** 2, lambda ct, out, x: ((2 * jnp.pad(x, (1, 2))[:-1] * ct)[1 : 1 + x.size],), (normal(4),)),
    ("strided", lambda x: x[::2] * 3, lambda ct, out, x: (jnp.zeros_like(x).at[::2].set(3 * ct),), (normal(5),)),
    ("median_of_any_number", lambda x: jnp.median(x), lambda ct, out, x: (jnp.zeros_like(x).at[jnp.argsort(x)[(x.size - 1) // 2]].add(ct / 2).at[jnp.argsort(x)[x.size // 2]].add(ct / 2),), (normal(6),)),
    ("spectrum", lambda x: jnp.abs(jnp.fft.rfft(x)) ** 2, lambda ct, out, x: (jax.vjp(lambda v: jnp.abs(jnp.fft.rfft(v)) ** 2, x)[1](ct)[0],), (normal(6),)),
    ("complex_modulus", jnp.abs, lambda ct, out, z: (ct * jnp.conj(z) / out,), (complexes(4),)),
    ("complex_quotient", lambda z, w: z / w, lambda ct, out, z, w: (ct / w, -ct * out / w), (complexes(3), complexes(3, seed=1) + 2)),
    ("complex_matmul", lambda a, b: a @ b, lambda ct, out, a, b: (ct @ b.T, a.T @ ct), (complexes(2, 3), complexes(3, 4))),
    ("complex_from_parts", jax.lax.complex, lambda ct, out, x, y: (jnp.real(ct), -jnp.imag(ct)), (normal(3), normal(3, seed=1))),
    ("empty_sum", lambda x: jnp.sum(x * x) + 1, lambda ct, out, x: (2 * ct * x,), (np.zeros((0, 3)),)),
    ("scalar_times_empty", lambda s, x: s * x, lambda ct, out, s, x: (jnp.sum(ct * x), ct * s), (np.array(2.0), np.zeros((0,)))),
    ("batch_of_one_bias", lambda x, b: jnp.tanh(x + b), lambda ct, out, x, b: (ct * (1 - out**2), jnp.sum(ct * (1 - out**2), 0)), (normal(1, 3), normal(3))),
    ("square_outer", lambda x, y: x[:, None] * y, lambda ct, out, x, y: (ct @ y, x @ ct), (normal(3), normal(3, seed=1))),
    ("unused_second", lambda x, y: x * 2, lambda ct, out, x, y: (2 * ct, jnp.zeros_like(y)), (normal(3), normal(2))),
    ("huge", lambda x: x * 1e20, lambda ct, out, x: (ct * 1e20,), (normal(3),)),
    ("minute", lambda x: x * x * 1e-18, lambda ct, out, x: (2e-18 * ct * x,), (normal(3),)),
    ("saturated_tanh", jnp.tanh, lambda ct, out, x: (ct * (1 - out) * (1 + out),), (np.array([0.1, 3.0, 8.0, -9.0]),)),
    ("saturated_sigmoid", jax.nn.sigmoid, lambda ct, out, x: (ct * out * jax.nn.sigmoid(-x),), (np.array([0.1, -30.0, 30.0]),)),
    ("log_of_sigmoid", jax.nn.log_sigmoid, lambda ct, out, x: (ct * jax.nn.sigmoid(-x),), (np.array([0.1, -50.0, 50.0]),)),
):  # fmt: skip
    right_rule("custom rule", f"right_{_name}", "a right rule", _fun, _rule, *_args)

# hard on checkers -----------------------------------------------------------------------------------------------------
right(
    "ill-conditioned",
    "solve_of_nearly_equal_rows",
    "a condition of 1e5",
    lambda a, b: jnp.linalg.solve(a, b),
    conditioned(4, 1e5),
    normal(4),
    dtypes=("float64",),
)
right(
    "ill-conditioned",
    "least_squares_of_a_tall_matrix",
    "normal equations",
    lambda a, b: jnp.linalg.solve(a.T @ a, a.T @ b),
    normal(6, 3),
    normal(6),
)
right("tie", "sort_rows_with_ties", "ties in rows", lambda x: jnp.sort(x, 1), np.array([[1.0, 1.0, 2.0], [3.0, 3.0, 3.0]]))
right("tie", "top_k_with_ties", "ties at the edge", lambda x: jax.lax.top_k(x, 2)[0], np.array([3.0, 1.0, 3.0, 3.0]))
right("tie", "max_minus_min_of_equals", "all equal", lambda x: jnp.max(x) - jnp.min(x), np.ones(3))
right("tie", "ranks_as_integers", "an integer result beside", lambda x: (jnp.argsort(x), x**2), np.array([0.4, 0.1, 0.9]))
right(
    "kink",
    "norm_of_zero",
    "a root of zero guarded by where",
    lambda x: jnp.where(jnp.sum(x * x) > 0, jnp.sqrt(jnp.where(jnp.sum(x * x) > 0, jnp.sum(x * x), 1)), 0.0),
    np.zeros(3),
)
right("kink", "relu_of_whole_numbers", "whole numbers", lambda x: jax.nn.relu(x - 1) + jax.nn.relu(2 - x), np.array([0.0, 1.0, 2.0, 3.0]))
right("kink", "sign_times_square", "zero twice", lambda x: jnp.sign(x) * x * x, np.array([0.0, 1.0, -1.0]))
right("plateau", "floor_plus_linear", "steps between whole numbers", lambda x: jnp.floor(x) + x, np.array([0.3, 1.6, -2.2]))
right("plateau", "comparison_counts", "counts of comparisons", lambda x: jnp.sum(x > 0.1) * jnp.sum(x), np.array([0.3, 1.6, -2.2]))
right("plateau", "saw_tooth_squared", "a saw tooth", lambda x: jnp.mod(x, 1.0) ** 2, np.array([0.3, 1.6, -2.2]))
right("half precision", "softmax_in_half", "half precision", jax.nn.softmax, normal(5), dtypes=("float16", "bfloat16"))
right(
    "half precision",
    "layer_norm_in_half",
    "half precision",
    lambda x: (x - jnp.mean(x)) / jnp.sqrt(jnp.var(x) + 1e-3),
    normal(6),
    dtypes=("float16", "bfloat16"),
)
right("half precision", "product_in_half", "half precision", lambda a, b: a @ b, normal(3, 4), normal(4, 2), dtypes=("float16", "bfloat16"))
right_rule(
    "half precision",
    "ruled_tanh_in_half",
    "half precision",
    jnp.tanh,
    lambda ct, out, x: (ct * (1 - out * out),),
    normal(5),
    dtypes=("float16", "bfloat16"),
)
right_rule(
    "half precision",
    "ruled_sum_in_single_inside",
    "summed in single precision inside",
    lambda x: jnp.sum(x.astype(jnp.float32) ** 2).astype(x.dtype),
    lambda ct, out, x: ((2 * ct.astype(jnp.float32) * x.astype(jnp.float32)).astype(x.dtype),),
    normal(6),
    dtypes=("float16", "bfloat16"),
)
right_rule(
    "half precision",
    "ruled_sizes_in_half",
    "a mean in half precision",
    lambda x: jnp.mean(x),
    lambda ct, out, x: (jnp.full_like(x, ct / x.size),),
    normal(6),
    dtypes=("float16", "bfloat16"),
)
right("complex", "phase_near_the_cut", "the angle beside its cut", jnp.angle, np.array([-1 + 0.01j, -1 - 0.01j, 0.3 + 1j]))
right("complex", "logarithm_of_complex", "beside the cut", jnp.log, np.array([-1 + 0.1j, 0.3 - 0.2j, 2 + 0j]))
right("complex", "eigenvalues_of_hermitian", "a Hermitian matrix", lambda a: jnp.linalg.eigvalsh(a @ a.conj().T), complexes(3, 3))
right(
    "loop",
    "fori_with_branches",
    "branches inside a loop",
    lambda x: jax.lax.fori_loop(0, 4, lambda i, s: jax.lax.cond(i % 2 == 0, jnp.sin, jnp.cos, s) + x, x),
    normal(3),
)
right(
    "loop",
    "adaptive_solver",
    "adjoint and loop are as near as the solver's tolerance",
    lambda y: odeint(lambda y, t: -y * y, y, jnp.linspace(0, 1, 3, dtype=y.dtype))[-1],
    uniform(0.5, 2, 3),
    dtypes=("float64",),
)
right("indices", "take_along_axis", "gathered by argmax", lambda x: jnp.take_along_axis(x, jnp.argmax(x, 1)[:, None], 1), normal(3, 4))
right(
    "indices",
    "searched_and_interpolated",
    "interp of NumPy",
    lambda x: jnp.interp(x, jnp.array([-2.0, -0.5, 0.7, 2.0]), jnp.array([1.0, -1.0, 0.5, 2.0])),
    np.array([-1.2, 0.1, 1.4]),
)
right("sizes", "reduction_of_axis_of_one", "size one", lambda x: jnp.var(x, 1) + jnp.sum(x), normal(4, 1))
right("sizes", "empty_product", "an empty product beside", lambda x, y: jnp.prod(y) * x, normal(3), np.zeros((0,)))
right("large values", "logits_of_1e4", "differences of large logits", jax.nn.log_softmax, np.array([1e4, 1e4 + 1, 1e4 - 2]))
right("tiny values", "products_of_1e_10", "1e-10", lambda x, y: x * y, 1e-10 * normal(3), 1e-10 * normal(3, seed=1))
right("cancellation", "one_minus_cosine_again", "1 - cos near zero", lambda x: 1 - jnp.cos(x), np.array([1e-3, 0.01, 0.5]))
right("cancellation", "variance_of_large_numbers", "a variance around 1e3", jnp.var, 1e3 + normal(6))
right("edge of the domain", "arcsine_near_one_again", "1 - 1e-6", jnp.arcsin, np.array([1 - 1e-6, 0.3, -0.99]))
right("edge of the domain", "power_with_zero_base", "0 ** 2.5", lambda x: x**2.5, np.array([0.0, 0.5, 2.0]))
right(
    "pytree",
    "dictionary_of_lists",
    "a tree with an integer leaf",
    lambda p: jnp.sum(p["w"][0] * p["w"][1]) * p["n"],
    {"w": [normal(3), normal(3, seed=1)], "n": np.array(3)},
)
