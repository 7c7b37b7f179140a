"""Functions with wrong rules and with right ones, small, one idea each."""

import jax
import jax.numpy as jnp
import numpy as np


def ruled(fun, bwd, fwd=None):
    """``fun`` as a custom_vjp; ``bwd(residuals, ct)``, where the residuals are the arguments unless ``fwd`` says otherwise."""
    op = jax.custom_vjp(lambda *args: fun(*args))
    op.defvjp(fwd or (lambda *args: (fun(*args), args)), bwd)
    return op


def pushed(fun, rule):
    """``fun`` as a custom_jvp with ``rule(primals, tangents)``."""
    op = jax.custom_jvp(lambda *args: fun(*args))
    op.defjvp(rule)
    return op


def first_residual(x):
    """A rule that keeps the residual of the first call."""
    kept = []

    def bwd(res, ct):
        kept.append(res[0])
        return (ct * jnp.cos(kept[0]),)

    del x
    return ruled(jnp.sin, bwd)


def last_residual():
    """A rule that keeps the residual of the latest forward pass, whichever that belongs to."""
    kept = []

    def fwd(x):
        kept.append(x)
        return x * x, None

    return ruled(lambda x: x * x, lambda res, ct: (2 * ct * kept[-1],), fwd)


def solved(bwd):
    """The fixed point of ``s = a cos(s) / 4``, by a loop that stops when two turns differ by little, with a rule."""

    def solve(a):
        def near(state):
            return (jnp.max(jnp.abs(state[0] - state[1])) > 1e-5) & (state[2] < 90)

        return jax.lax.while_loop(near, lambda state: (jnp.cos(state[0]) * a / 4, state[0], state[2] + 1), (a, a + 1, 0))[0]

    return ruled(solve, bwd, lambda a: (solve(a), (a, solve(a))))


def implicit(res, ct):
    """Differentiate the fixed point by the implicit function theorem."""
    a, s = res
    return (ct * jnp.cos(s) / 4 / (1 + jnp.sin(s) * a / 4),)


def rooted(a):
    """The square root by Newton's iteration, which stops at no root of a negative number; with the rule of a root."""

    def root(a):
        return jax.lax.while_loop(lambda s: jnp.any(jnp.abs(s * s - a) > 1e-6 * a), lambda s: (s + a / s) / 2, jnp.ones_like(a))

    return ruled(root, lambda s, ct: (ct / (2 * s),), lambda a: (root(a), root(a)))(a)


def cubic(x):
    """The cube root by twenty turns of Newton's iteration, too few for some numbers below zero; with the rule of a root."""

    def root(a):
        return jax.lax.fori_loop(0, 20, lambda _, s: s - (s**3 - a) / (3 * s * s), jnp.ones_like(a))

    return ruled(root, lambda s, ct: (ct / (3 * s * s),), lambda a: (root(a), root(a)))(x)


def iterated(x):
    """The fixed point of ``s = cos(a s) / 2`` by sixty turns, too few where ``a`` is larger; with the rule of the implicit function."""

    def solve(a):
        return jax.lax.fori_loop(0, 60, lambda _, s: jnp.cos(a * s) / 2, jnp.zeros_like(a))

    def bwd(res, ct):
        a, s = res
        return (-ct * s * jnp.sin(a * s) / (2 + a * jnp.sin(a * s)),)

    return ruled(solve, bwd, lambda a: (solve(a), (a, solve(a))))(x)


def kept_by_point():
    """A rule that keeps its result for each point, whatever the cotangent."""
    kept = {}

    def bwd(res, ct):
        (x,) = res
        if isinstance(x, jax.core.Tracer) or isinstance(ct, jax.core.Tracer):
            return (2 * ct * x,)
        return (kept.setdefault(np.asarray(x).tobytes(), 2 * ct * x),)

    return ruled(lambda x: x * x, bwd)


def relu_with_a_rule():
    """JAX's own function, given another rule as it stands."""
    op = jax.custom_vjp(jax.nn.relu)
    op.defvjp(lambda x: (jax.nn.relu(x), x), lambda x, ct: (ct * jnp.where(x == 0, 2, x > 0),))
    return op


def halved(a):
    """Halve each element until it is below one."""
    return jax.vmap(lambda x: jax.lax.while_loop(lambda x: x >= 1, lambda x: x / 2, x))(a)


def on_the_host(factor):
    """A sine that NumPy computes."""

    def sine(x):
        return jax.pure_callback(lambda x: np.sin(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")

    return ruled(sine, lambda r, ct: (factor * ct * jnp.cos(r[0]),))


def told(fun, fwd, bwd):
    """``fun`` with a rule that is told what is not differentiated and what is not used."""
    op = jax.custom_vjp(lambda *args: fun(*args))
    op.defvjp(fwd, bwd, symbolic_zeros=True)
    return op


def unused(ct):
    """Tell whether nobody asked for an output."""
    return isinstance(ct, jax.custom_derivatives.SymbolicZero)


def batched(whole, slope, slope_of_batch):
    """An elementwise function whose slope has a batching rule of its own."""
    op = jax.custom_batching.custom_vmap(slope)
    op.def_vmap(lambda size, batched, x: (slope_of_batch(x), True))
    return ruled(whole, lambda res, ct: (ct * op(res[0]),))


def batched_slope(slope_of_batch):
    """A cosine with a batching rule of its own."""
    op = jax.custom_batching.custom_vmap(lambda x: jnp.cos(x))
    op.def_vmap(lambda size, batched, x: (slope_of_batch(x), True))
    return op


def now_and_then(every):
    """A sine whose rule is wrong at each so manieth call."""
    calls = [0]

    def bwd(res, ct):
        calls[0] += 1
        return (ct * jnp.cos(res[0]) * (2 if calls[0] % every == 0 else 1),)

    return ruled(jnp.sin, bwd)


X = np.random.default_rng(0).normal(size=6).astype(np.float32)
M = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
B = np.random.default_rng(2).normal(size=4).astype(np.float32)
S = M[:, :3] + M[:, :3].T

# name: (function, arguments, words of the diagnosis)
WRONG = {
    "scaled": (ruled(jnp.sin, lambda r, ct: (1.001 * ct * jnp.cos(r[0]),)), (X,), "1.001x too large everywhere"),
    "doubled": (ruled(jnp.sin, lambda r, ct: (2 * ct * jnp.cos(r[0]),)), (X,), "2x too large everywhere"),
    "sign": (ruled(jnp.sin, lambda r, ct: (-ct * jnp.cos(r[0]),)), (X,), "sign flipped"),
    "tiny and zero": (ruled(lambda x: 1e-6 * jnp.sin(x), lambda r, ct: (0 * ct,)), (X,), "zero everywhere"),
    "clipped": (ruled(jnp.sin, lambda r, ct: (jnp.clip(ct, -100, 100) * jnp.cos(r[0]),)), (X,), "clipped"),
    "negative cotangents": (ruled(jnp.sin, lambda r, ct: (jnp.maximum(ct, 0) * jnp.cos(r[0]),)), (X,), ""),
    "zero below zero": (ruled(lambda x: x**3, lambda r, ct: (jnp.where(r[0] > 0, 3 * r[0] ** 2, 0) * ct,)), (X,), "zero where x < 0"),
    "last element": (ruled(jnp.sin, lambda r, ct: ((ct * jnp.cos(r[0])).at[-1].mul(1.01),)), (X,), "at the last index of axis 0"),
    "transposed": (ruled(lambda x: x @ x, lambda r, ct: ((ct @ r[0].T + r[0].T @ ct).T,)), (M[:, :3],), "transposed"),
    "no sum": (
        ruled(lambda x, b: x + b, lambda r, ct: (ct, ct[0])),
        (M, B),
        "missing the sum over the broadcast axis",
    ),
    "shifted": (ruled(lambda x: x**3, lambda r, ct: (jnp.roll(3 * r[0] ** 2 * ct, 1),)), (X,), "off by one along axis 0"),
    "first call": (first_residual(X), (X,), ""),
    "latest forward pass": (last_residual(), (X,), "another forward pass"),
    "kept by point": (kept_by_point(), (X,), "another cotangent"),
    "transpose": (
        lambda x: jnp.sin(jax.custom_derivatives.linear_call(lambda _, x: 2 * x, lambda _, ct: ct, (), x)),
        (X,),
        "2x too small everywhere",
    ),
    "a rule for JAX's own": (relu_with_a_rule(), (np.float32([-1.0, 0.0, 1.0]),), "too large where x = 0"),
    "nan at a kink": (lambda x: jnp.sqrt(jnp.sum(x * x)), (np.zeros(3, np.float32),), "NaN born at sqrt(0)"),
    "one argument alone": (
        told(
            lambda x, y: x * y,
            lambda x, y: (x.value * y.value, (x.value, y.value, y.perturbed)),
            lambda res, ct: (ct * res[1] if res[2] else ct * 0, ct * res[0]),
        ),
        (X, X + 2),
        "alone, though right for all of them together",
    ),
    "one output alone": (
        told(
            lambda x: (jnp.sin(x), x * x),
            lambda x: ((jnp.sin(x.value), x.value**2), x.value),
            lambda x, cts: (0 * x if any(map(unused, cts)) else cts[0] * jnp.cos(x) + 2 * cts[1] * x,),
        ),
        (X,),
        "alone, though right for all of them together",
    ),
    "the cotangent of a sum": (ruled(jnp.sin, lambda r, ct: (ct * jnp.cos(r[0]) * jnp.where(jnp.all(ct == 1), 0.5, 1),)), (X,), "of ones"),
    "a lone element of the cotangent": (
        ruled(jnp.sin, lambda r, ct: (ct * jnp.cos(r[0]) * jnp.where((jnp.sum(ct != 0) == 1) & (ct[0] == 0) & (ct[-1] == 0), 0.5, 1),)),
        (X,),
        "of the outputs alone",
    ),
    "a loop that stops when near": (solved(lambda res, ct: (1.001 * implicit(res, ct)[0],)), (X[:3],), "1.001x too large"),
    "a large loop": (solved(lambda res, ct: (-implicit(res, ct)[0],)), (np.linspace(0.5, 1.5, 70, dtype=np.float32),), ""),
    "on the host": (on_the_host(1.01), (X,), "with differences of its values only"),
    "near zero": (ruled(jnp.sin, lambda r, ct: (ct * jnp.where(jnp.abs(r[0]) < 1e-4, 0, jnp.cos(r[0])),)), (X,), ""),
    "a symmetric matrix": (ruled(lambda a, x: x @ a @ x, lambda r, ct: (ct * jnp.outer(r[1], r[1]), 2 * ct * r[0] @ r[1])), (S, B[:3]), ""),
    "a diagonal matrix": (
        ruled(jnp.linalg.inv, lambda y, ct: (-y @ ct @ y,), lambda a: (jnp.linalg.inv(a),) * 2),
        (np.diag(B[:3] + 3),),
        "",
    ),
    "the identity": (
        ruled(jnp.linalg.det, lambda r, ct: (ct * jnp.linalg.det(r[0]) * jnp.linalg.inv(r[0]),)),
        (np.eye(3, dtype=np.float32),),
        "without the given symmetry",
    ),
    "real values of a complex argument": (
        ruled(lambda z: z * z, lambda r, ct: (2 * ct * jnp.conj(r[0]),)),
        (X.astype(np.complex64),),
        "a point nearby",
    ),
    "each seventh call": (now_and_then(7), (X,), "further call"),
    "under two vmaps": (batched(jnp.sin, jnp.cos, batched_slope(lambda x: 0.5 * jnp.cos(x))), (X,), "twice"),
    "clipped far up": (ruled(jnp.sin, lambda r, ct: (jnp.clip(ct, -1e8, 1e8) * jnp.cos(r[0]),)), (X,), "clipped"),
    "a batch that the rule looks at": (
        ruled(jnp.sin, lambda r, ct: (ct * jnp.cos(r[0]) * (1.5 if type(ct).__name__ == "BatchTracer" else 1),)),
        (X,),
        "wrong under vmap",
    ),
    "under vmap": (batched(jnp.sin, jnp.cos, lambda x: 0.5 * jnp.cos(x)), (X,), "under vmap"),
    "traced": (
        ruled(lambda x: x * x, lambda r, ct: (ct * r[0] if isinstance(r[0], jax.core.Tracer) else 2 * ct * r[0],)),
        (X,),
        "",
    ),
    "cut": (ruled(jnp.sin, lambda r, ct: (ct * jax.lax.stop_gradient(jnp.cos(r[0])),)), (X,), "right at first order, zero"),
    "second": (
        ruled(jnp.sin, lambda r, ct: (ct * pushed(jnp.cos, lambda p, t: (jnp.cos(p[0]), t[0] * jnp.sin(p[0])))(r[0]),)),
        (X,),
        "right at first order, sign flipped",
    ),
    "another value": (
        ruled(jnp.sin, lambda r, ct: (ct * jnp.cos(r[0]),), lambda x: (jnp.sin(x) * 1.001, (x,))),
        (X,),
        "when the function is",
    ),
    "dtype": (
        ruled(jnp.sin, lambda r, ct: ((ct * jnp.cos(r[0])).astype(jnp.float32),)),
        (X.astype(np.float16),),
        "dtype float32",
    ),
    "half precision alone": (
        ruled(jnp.sin, lambda r, ct: (ct * jnp.cos(r[0]) * (1.05 if r[0].dtype == jnp.float16 else 1),)),
        (X.astype(np.float16),),
        "wrong in float16, though right in single",
    ),
    "scaled in bfloat16 alone": (
        ruled(jnp.sin, lambda r, ct: (ct * jnp.cos(r[0]) * (1.08 if r[0].dtype == jnp.bfloat16 else 1),)),
        (jnp.asarray(X, jnp.bfloat16),),
        "wrong in bfloat16, though right in single",
    ),
    "one element in bfloat16 alone": (
        ruled(jnp.sin, lambda r, ct: ((ct * jnp.cos(r[0])).at[3].multiply(1.3 if r[0].dtype == jnp.bfloat16 else 1),)),
        (jnp.asarray(X, jnp.bfloat16),),
        "wrong in bfloat16, though right in single",
    ),
    "half precision": (ruled(jnp.sin, lambda r, ct: (1.001 * ct * jnp.cos(r[0]),)), (X.astype(np.float16),), "1.001x too large"),
    "forward rule": (pushed(jnp.sin, lambda p, t: (jnp.sin(p[0]), -t[0] * jnp.cos(p[0]))), (X,), "sign flipped"),
    "stop_gradient": (lambda x: x * jax.lax.stop_gradient(x), (X,), "values contradict"),
    "thousand elements": (
        ruled(jnp.sin, lambda r, ct: (1.1 * ct * jnp.cos(r[0]),)),
        (np.linspace(-3, 3, 1000, dtype=np.float32),),
        "1.1x too large everywhere",
    ),
    "raises": (ruled(jnp.sin, lambda r, ct: (ct.reshape(2, 3),)), (X,), "raises"),
    "conjugated": (
        ruled(lambda z: z * z, lambda r, ct: (jnp.conj(2 * r[0] * ct),)),
        ((X + 1j * X[::-1]).astype(np.complex64),),
        "conjugated",
    ),
    "both of a tie": (
        ruled(jnp.maximum, lambda r, ct: (ct * (r[0] >= r[1]), ct * (r[1] >= r[0]))),
        (np.float32([1, 2, 3]), np.float32([1, 1, 4])),
        "",
    ),
    "looks at values": (lambda x: WRONG["scaled"][0](x) if x.sum() < 1e3 else x, (X,), "1.001x too large"),
}

RIGHT = {
    "plain": (jnp.tanh, (X,)),
    "rule": (ruled(jnp.sin, lambda r, ct: (ct * jnp.cos(r[0]),)), (X,)),
    "forward rule": (pushed(jnp.sin, lambda p, t: (jnp.sin(p[0]), t[0] * jnp.cos(p[0]))), (X,)),
    "cancelled": (ruled(lambda x: x - jnp.sin(x), lambda r, ct: (ct * (1 - jnp.cos(r[0])),)), (np.float32(1e-4),)),
    "square of 30": (lambda x: x**2, (np.float32([30.0, -30.0]),)),
    "relu at zero": (jax.nn.relu, (np.float32([0.0, 1.0, -1.0, 0.0]),)),
    "abs at zero": (jnp.abs, (np.float32([0.0, 1.0, -1.0]),)),
    "clip at its edges": (lambda x: jnp.clip(x, -1, 1), (np.float32([-1.0, 1.0, 0.5, 2.0]),)),
    "max of ties": (lambda x: jnp.max(x, axis=0), (np.float32([[1, 2], [1, 3], [0, 3]]),)),
    "own relu": (ruled(lambda x: jnp.maximum(x, 0), lambda r, ct: (jnp.where(r[0] > 0, ct, 0),)), (np.float32([0.0, 1.0, -1.0]),)),
    "network at a kink": (lambda w, x: jax.nn.relu(w @ x).sum(), (np.float32([[1, -1], [0, 0]]), np.float32([1, 1]))),
    "own norm at zero": (
        ruled(lambda x: jnp.linalg.norm(x), lambda r, ct: (ct * r[0] / jnp.where(jnp.any(r[0] != 0), jnp.linalg.norm(r[0]), 1),)),
        (np.zeros(3, np.float32),),
    ),
    "chaos": (lambda x: jax.lax.fori_loop(0, 25, lambda _, x: 3.9 * x * (1 - x), x), (np.float32([0.11, 0.3, 0.7]),)),
    "bits": (lambda x: jnp.frexp(x)[0], (np.float32([0.3, 1.7, -5.0]),)),
    "one triangle": (jax.scipy.linalg.cholesky, (np.float32([[2, 0.5], [0.5, 1]]),)),
    "large logsumexp": (jax.nn.logsumexp, (np.float32([1e4, 1e4 + 1, 9e3]),)),
    "softmax in half precision": (jax.nn.softmax, (X.astype(np.float16),)),
    "ill-conditioned solve": (
        lambda a, b: jnp.linalg.solve(a, b),
        (np.diag([1.0, 0.03, 1e-3]).astype(np.float32) + 1e-4 * M[:, :3], X[:3]),
    ),
    "layer norm": (lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5), (M + 100,)),
    "a loop that stops when near": (solved(implicit), (X[:3],)),
    "a large loop": (solved(implicit), (np.linspace(0.5, 1.5, 70, dtype=np.float32),)),
    "a loop that stops at no negative number": (rooted, (np.float32([3.0]),)),
    "too few turns for negative numbers": (cubic, (np.float32([2.0]),)),
    "too few turns further out": (iterated, (X / 2,)),
    "on the host": (on_the_host(1.0), (X,)),
    "a batch of loops": (ruled(halved, lambda r, ct: (ct * halved(r[0]) / r[0],)), (np.float32([0.7, 3.3, 17.1]),)),
    "a loop": (lambda x: jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + x, x), (X,)),
    "a while loop": (lambda x: jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (jnp.sin(c[0]), c[1] + 1), (x, 0))[0], (X,)),
    "a tree": (lambda p, n: {"y": p["w"] * p["b"] ** n, "n": n}, ({"w": X, "b": X + 3, "none": None}, 2)),
    "an integer argument": (lambda x, i: x[i], (M, np.int32([2, 0, 2]))),
    "a tail in pieces": (jax.scipy.stats.norm.logcdf, (np.float32([-10.0, 0.0]),)),
    "a sample": (lambda a: jax.random.gamma(jax.random.key(1), a), (np.float32([1.3, 2.7]),)),
    "a removable singularity": (jnp.sinc, (np.float32([0.0, 0.5]),)),
    "a key": (lambda key, x: x * jax.random.normal(key, x.shape), (jax.random.key(0), X)),
    "complex": (lambda z: jnp.abs(z) ** 2 + jnp.exp(z).real, ((X + 1j * X[::-1]).astype(np.complex64),)),
    "bfloat16": (lambda x: jax.nn.gelu(x) @ x, (jnp.asarray(X, jnp.bfloat16),)),
    "constants in half precision": (
        ruled(lambda x: jnp.exp(0.1 * x) - 0.3 * x, lambda r, ct: (ct * (0.1 * jnp.exp(0.1 * r[0]) - 0.3),)),
        (jnp.asarray(X, jnp.bfloat16),),
    ),
    "size zero": (jnp.sin, (np.zeros((0, 3), np.float32),)),
    "a scalar": (lambda x: x**3, (1.5,)),
    "what is not asked for": (
        told(
            lambda x, y: (x * y, jnp.sin(x)),
            lambda x, y: ((x.value * y.value, jnp.sin(x.value)), (x.value, y.value)),
            lambda r, cts: (
                (0 if unused(cts[0]) else cts[0] * r[1]) + (0 if unused(cts[1]) else cts[1] * jnp.cos(r[0])),
                jnp.zeros_like(r[1]) if unused(cts[0]) else cts[0] * r[0],
            ),
        ),
        (X, X + 2),
    ),
    "a derivative of its values through zero": (
        ruled(lambda x, y: jax.lax.stop_gradient(x) * y, lambda r, ct: (ct * r[1], ct * r[0])),
        (X[:3], np.float32([0.9, 1.4, 0.37])),
    ),
    "an unused argument": (lambda x, y: jnp.sin(x), (X, X)),
    "looks at values": (lambda x: jnp.sin(x) if x.sum() < 1e3 else x, (X,)),
}
