"""Contracts 5, 8, 12, 14, 18 to 20 and 22: all ways to a gradient agree with ``jax.grad``, at every meeting of a structure."""

import functools
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import interop
import tape
import tape.lax
import tape.nn
import tape.numpy as tnp
from tape.testing import strategies
from tests.daily import NIGHTLY

A = np.linspace(-1.0, 1.2, 6, dtype=np.float32).reshape(2, 3)
B = np.cos(np.arange(12, dtype=np.float32)).reshape(3, 4)
C = np.array([0.3, -0.7, 1.1, 0.2], np.float32)


@jax.custom_vjp
def doubled(x, y):
    return x * y, jnp.sin(x)


doubled.defvjp(lambda x, y: (doubled(x, y), (x, y)), lambda s, g: (2 * g[0] * s[1] + 2 * g[1] * jnp.cos(s[0]), 2 * g[0] * s[0]))


class Doubled(tape.Function):
    """Twice the derivative, so that whatever else were differentiated would be noticed."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(True)
        ctx.save_for_backward(x, y)
        return x * y, tnp.sin(x)

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved
        return 2 * g * y + 2 * h * tnp.cos(x), 2 * g * x


class Theirs:
    """JAX, by the names that the functions below use."""

    np, lax, nn, checkpoint, stop = jnp, jax.lax, jax.nn, staticmethod(jax.checkpoint), staticmethod(jax.lax.stop_gradient)
    custom = staticmethod(doubled)


class Ours:
    """The tape."""

    np, lax, nn, checkpoint, stop = tnp, tape.lax, tape.nn, staticmethod(tape.checkpoint), staticmethod(tape.stop_gradient)
    custom = staticmethod(Doubled.apply)


def network(m, a, b, c):
    return (m.np.tanh(a @ b + c) ** 2).mean()


def recurrence(m, a, b, c):
    def step(h, row):
        h = m.np.tanh(h + row @ b)
        return h, h.sum()

    last, sums = m.lax.scan(step, c, a)
    return (last * sums[0]).sum() + sums[-1]


def duplicates(m, a, b, c):
    """One element gathered, and scattered to, more than once; a wide fan-out of one value."""
    picked = b[np.array([0, 2, 0, 0]), np.array([1, 1, 1, 3])]
    spread = m.np.zeros(4).at[np.array([1, 1, 3, 1])].add(c * picked)
    return sum((spread * k).sum() for k in range(9)) + (a.sum() * c).sum()


def masked(m, a, b, c):
    """NaN in the branch that is not taken, without a NaN in the gradient; ties and kinks."""
    safe = m.np.where(a > 0, a, 1.0)
    logs = m.np.where(a > 0, m.np.log(safe), 0.0)
    return logs.sum() + m.np.maximum(c, c).sum() + m.np.abs(m.np.clip(b, -0.5, 0.5)).sum()


def integers_between(m, a, b, c):
    """Weak types, integers and booleans in the middle, and a value that is cut off."""
    index = m.np.argmax(b, axis=1)
    order = m.np.argsort(c)
    return (b[np.arange(3), index] * a[0]).sum() * 2 + (c[order] * m.np.arange(4)).sum() + (m.stop(c) * c).sum() + (a > 0).sum() * c[0]


def complex_between(m, a, b, c):
    z = m.np.exp(1j * b) * (a.sum() + 1j)
    return m.np.abs(z).sum() + (m.np.real(z) * c).sum() + m.np.abs(m.np.fft.fft(c)).sum()


def mixed_precision(m, a, b, c):
    low = (a.astype("float16") @ b.astype("float16")).astype("float32")
    return (low * c).sum() + (c.astype("bfloat16") * 1.5).astype("float32").sum()


def checkpointed(m, a, b, c):
    block = m.checkpoint(lambda x: m.np.sin(x @ b) * c)
    return (block(a) ** 3).sum() + m.lax.cond(True, lambda x: (x * b[0, 0]).sum(), lambda x: x.sum(), a)


def custom(m, a, b, c):
    product, _ = m.custom(b @ c, a[0])
    _, sine = m.custom(c, c)
    both = m.custom(product, product * 2)
    return (both[0] * both[1]).sum() + (sine * b[0]).sum()


def empty(m, a, b, c):
    """Arrays without elements."""
    return m.np.concatenate([a[:, :0].ravel(), c]).sum() * m.np.prod(b[:0]) + (a[5:] * 3).sum()


FUNCTIONS = [network, recurrence, duplicates, masked, integers_between, custom, complex_between, mixed_precision, checkpointed, empty]
LOOSE = {mixed_precision: 2e-2}


@functools.cache
def expected(function):
    return jax.value_and_grad(functools.partial(function, Theirs), argnums=(0, 1, 2))


def variables(arrays):
    return [tape.Variable(x) for x in arrays]


def by_backward(function, arrays, **options):
    v = variables(arrays)
    y = function(Ours, *v)
    y.backward(**options)
    return y, [x.grad for x in v]


def by_two_backwards(function, arrays):
    """Accumulated, half by half."""
    v = variables(arrays)
    y = function(Ours, *v)
    y.backward(0.5, retain_graph=True)
    y.backward(0.5)
    return y, [x.grad for x in v]


def by_gradients(function, arrays, **options):
    v = variables(arrays)
    y = function(Ours, *v)
    return y, tape.gradients(y, v, unconnected="zero", **options)


def by_roots(function, arrays):
    """The same root twice, and one that feeds another."""
    v = variables(arrays)
    y = function(Ours, *v)
    return y, tape.gradients([y, y * 2.0, y], v, [None, 0.5, -1.0], unconnected="zero")


def by_looking(function, arrays):
    v = variables(arrays)
    y = function(Ours, *v)
    float(y)
    return y, tape.gradients(y, v, unconnected="zero")


def by_stream(function, arrays):
    v = variables(arrays)
    y = function(Ours, *v)
    found = {id(leaf): gradient for leaf, gradient in tape.stream_gradients(y)}
    return y, [found.get(id(x)) for x in v]


def by_value_and_grad(function, arrays):
    return tape.value_and_grad(functools.partial(function, Ours), argnums=(0, 1, 2))(*arrays)


def by_vjp(function, arrays):
    y, pull = tape.vjp(functools.partial(function, Ours), *arrays)
    return y, pull(np.float32(1.0))


COMPILED = {f: tape.jit(functools.partial(f, Ours)) for f in FUNCTIONS}


def by_jit(function, arrays):
    v = variables(arrays)
    y = COMPILED[function](*v)
    return y, tape.gradients(y, v, unconnected="zero")


def by_a_compiled_step(function, arrays):
    return STEPS[function](*variables(arrays))


def _step(function):
    def step(*v):
        y = function(Ours, *v)
        return y, tape.gradients(y, v, unconnected="zero")

    return tape.jit(step)


STEPS = {f: _step(f) for f in FUNCTIONS}


def by_checkpoint(function, arrays):
    v = variables(arrays)
    y = tape.checkpoint(functools.partial(function, Ours))(*v)
    return y, tape.gradients(y, v, unconnected="zero")


def by_jax(function, arrays):
    return jax.value_and_grad(interop.lower(functools.partial(function, Ours)), argnums=(0, 1, 2))(*arrays)


def eagerly(function, arrays):
    with tape.eager():
        return by_backward(function, arrays)


WAYS = {
    "backward": by_backward,
    "backward retained": functools.partial(by_backward, retain_graph=True),
    "backward recorded": functools.partial(by_backward, create_graph=True),
    "two backwards": by_two_backwards,
    "gradients": by_gradients,
    "gradients recorded": functools.partial(by_gradients, create_graph=True),
    "several roots": by_roots,
    "looked at": by_looking,
    "stream": by_stream,
    "value_and_grad": by_value_and_grad,
    "vjp": by_vjp,
    "jit": by_jit,
    "compiled step": by_a_compiled_step,
    "checkpoint": by_checkpoint,
    "lowered": by_jax,
    "eager": eagerly,
}


def array(x):
    return np.asarray(x.detach().value if isinstance(x, tape.Variable) else x)


ALL = [(f, w) for f in FUNCTIONS for w in WAYS]
SOME = [(FUNCTIONS[n % len(FUNCTIONS)], w) for n, w in enumerate(reversed(WAYS))] + [(custom, w) for w in ("stream", "jit", "checkpoint")]


@pytest.mark.parametrize(("function", "way"), ALL if NIGHTLY else SOME)
def test_contract_05_08_12_14_19_all_ways_agree_with_jax_grad(function, way):
    """Meetings with other values: interpreted, compiled meanwhile, and compiled, recalled or replayed; by night all pairs of the two."""
    tolerance = LOOSE.get(function, 2e-5)
    for k in range(1 if way in ("lowered", "eager") else 4 if NIGHTLY else 3):
        arrays = [x * np.float32(1 - 0.1 * k) for x in (A, B, C)]
        y, slopes = expected(function)(*arrays)
        found, gradients = WAYS[way](function, arrays)
        np.testing.assert_allclose(array(found), y, rtol=tolerance, atol=tolerance)
        for ours, theirs in zip(gradients, slopes, strict=True):
            if ours is None:
                assert not np.any(theirs)
                continue
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            np.testing.assert_allclose(array(ours), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("function", [network, recurrence, duplicates, masked, checkpointed, custom] if NIGHTLY else [masked, custom])
def test_contract_20_second_derivatives_agree_with_jax(function):
    """The gradient of a weighted sum of the gradients, on the tape and through transforms in transforms."""
    weights = [np.cos(np.arange(x.size, dtype=np.float32)).reshape(x.shape) for x in (A, B, C)]

    def penalty(m, transform, *arrays):
        slopes = transform(functools.partial(function, m), argnums=(0, 1, 2))(*arrays)
        return sum((g * w).sum() for g, w in zip(slopes, weights, strict=True))

    theirs = jax.grad(functools.partial(penalty, Theirs, jax.grad), argnums=(0, 1, 2))
    ours = tape.grad(functools.partial(penalty, Ours, tape.grad), argnums=(0, 1, 2))
    for k in range(2):
        arrays = [x * np.float32(1 - 0.1 * k) for x in (A, B, C)]
        expect = theirs(*arrays)
        v = variables(arrays)
        slopes = tape.gradients(function(Ours, *v), v, unconnected="zero", create_graph=True)
        found = tape.gradients(sum((g * w).sum() for g, w in zip(slopes, weights, strict=True)), v, unconnected="zero")
        for a, b, e in zip(found, ours(*arrays), expect, strict=True):
            np.testing.assert_allclose(array(a), e, rtol=2e-4, atol=2e-4)
            np.testing.assert_allclose(array(b), e, rtol=2e-4, atol=2e-4)


# -- ops with several outputs ------------------------------------------------------------------------------------------------

S = np.array([[2.0, 0.3, -0.1], [0.3, 1.0, 0.4], [-0.1, 0.4, 3.0]], np.float32)
R = np.array([1.5, -0.5, 0.75], np.float32)


def _scan(m, s, r):
    last, sines = m.lax.scan(lambda c, x: (c * r, m.np.sin(c) * x), r, s)
    return last, sines, s * r


SEVERAL = {
    "svd": lambda m, s, r: m.np.linalg.svd(s * r + s, full_matrices=False),
    "qr": lambda m, s, r: m.np.linalg.qr(s + r),
    "eigh": lambda m, s, r: m.np.linalg.eigh(s + m.np.outer(r, r)),
    "split": lambda m, s, r: m.np.split(s * r, 3),
    "divmod": lambda m, s, r: m.np.divmod(s, r),
    "scan": _scan,
}


@pytest.mark.parametrize("name", SEVERAL if NIGHTLY else ["split", "divmod"])
def test_contract_08_subsets_and_orders_of_outputs_and_inputs(name):
    """All ordered subsets of the outputs, and of the inputs: each gradient is JAX's with zeros for the outputs left out."""
    function = SEVERAL[name]
    outputs, pull = jax.vjp(lambda s, r: tuple(function(Theirs, s, r)), S, R)
    seeds = [np.cos(0.5 + np.arange(o.size, dtype=np.float32)).reshape(o.shape) for o in outputs]
    chosen = [p for n in range(1, len(seeds) + 1) for p in itertools.permutations(range(len(seeds)), n)]
    orders = [(0,), (1,), (0, 1), (1, 0), (0, 0, 1)]
    for n, picked in enumerate(chosen):
        inputs = orders[n % len(orders)]
        v = variables([S, R])
        made = list(function(Ours, *v))
        found = tape.gradients([made[i] for i in picked], [v[j] for j in inputs], [seeds[i] for i in picked], unconnected="zero")
        slopes = pull(tuple(seed * (i in picked) for i, seed in enumerate(seeds)))
        for j, g in zip(inputs, found, strict=True):
            np.testing.assert_allclose(array(g), slopes[j], rtol=2e-3, atol=2e-3)


# -- inputs= and ignore= on random graphs --------------------------------------------------------------------------------------


class Graph:
    """A random directed graph of operations on two leaves."""

    def __init__(self, rng):
        self.steps = []
        for n in range(2, rng.randint(4, 9)):
            self.steps.append((rng.choice(["mul", "add", "sin", "sub"]), rng.randrange(n), rng.randrange(max(0, n - 3), n)))
        count = 2 + len(self.steps)
        self.roots = [rng.randrange(2, count) for _ in range(rng.choice([1, 1, 2]))]
        self.inputs = [rng.randrange(count) for _ in range(rng.choice([1, 2, 3]))]
        self.ignored = [rng.randrange(count) for _ in range(rng.choice([0, 0, 1, 2]))]

    def nodes(self, leaves):
        """All nodes, on the tape."""
        found = list(leaves)
        for name, i, j in self.steps:
            a, b = found[i], found[j]
            found.append(a * b if name == "mul" else a + b if name == "add" else a - b if name == "sub" else tnp.sin(a))
        return found

    def slopes(self, leaves):
        """What the chain rule says of the roots' sum by every node, nothing going to or through the ignored ones.

        All operations are elementwise, so that the derivative by a node is one number for each element.
        """
        values, slopes = [], []
        for n in range(2 + len(self.steps)):
            if n < len(leaves):
                value, slope = leaves[n].astype(float), np.zeros((2 + len(self.steps), 2))
            else:
                name, i, j = self.steps[n - 2]
                a, b, da, db = values[i], values[j], slopes[i], slopes[j]
                value, slope = {
                    "mul": (a * b, a * db + b * da),
                    "add": (a + b, da + db),
                    "sin": (np.sin(a), np.cos(a) * da),
                    "sub": (a - b, da - db),
                }[name]
            values.append(value)
            slope = slope.copy()
            slope[n] += 1
            slopes.append(0 * slope if n in self.ignored else slope)
        return sum(slopes[r] for r in self.roots)


@settings(max_examples=max(settings.default.max_examples // 8, 25))
@given(st.integers(0, 1 << 40))
def test_contract_16_inputs_and_ignored_variables_of_random_graphs(seed):
    graph = Graph(random.Random(seed))  # noqa: S311
    leaves = [np.array([0.5, -0.3], np.float32), np.array([0.8, 0.2], np.float32)]
    slopes = graph.slopes(leaves)
    for inputs in (None, graph.inputs):
        nodes = graph.nodes(variables(leaves))
        options = {} if inputs is None else {"inputs": [nodes[i] for i in inputs]}
        seeds = [np.ones(2, np.float32)] * len(graph.roots)
        tape.backward([nodes[r] for r in graph.roots], seeds, ignore=[nodes[i] for i in graph.ignored], **options)
        for i in range(len(nodes)):
            found = nodes[i].grad
            if i in ((0, 1) if inputs is None else inputs):
                expect = np.zeros(2) if i in graph.ignored else slopes[i]
                np.testing.assert_allclose(np.zeros(2) if found is None else array(found), expect, rtol=1e-4, atol=1e-5)
            else:
                assert found is None


# -- random programs, and another peer -----------------------------------------------------------------------------------------


def weighed(x):
    """A real number whose gradient by ``x`` differs from element to element."""
    weights = np.cos(np.arange(x.size)).reshape(x.shape)
    return (x * weights.astype(x.dtype)).sum().real


RANDOM_WAYS = (
    "backward retained",
    "backward recorded",
    "two backwards",
    "several roots",
    "looked at",
    "stream",
    "jit",
    "checkpoint",
    "eager",
)


@settings(max_examples=max(settings.default.max_examples // 40, 5), suppress_health_check=[HealthCheck.too_slow])
@given(program=strategies.programs(max_operations=4), way=st.sampled_from(RANDOM_WAYS))
def test_contract_05_12_14_18_random_programs_agree_in_every_way(program, way):
    """Each program twice in one of the ways; a fortieth of the profile's examples, since each is compiled by JAX, and by most of the ways."""

    def function(m, *arguments):
        del m
        return weighed(program(*arguments))

    def reference(*arguments):
        return weighed(program.reference(*arguments))

    arrays = program.arguments
    assume(function(Ours, *variables(arrays)).requires_grad)  # a program may end with stop_gradient, and such a root is refused
    y, slopes = jax.value_and_grad(reference, argnums=tuple(range(len(arrays))))(*arrays)
    COMPILED[function] = tape.jit(functools.partial(function, Ours))
    near = 4 * 2.0**-8 if "float16" in str(program) else 1e-4  # what is rounded to bfloat16 on the way may be so to one of two neighbours
    try:
        for _ in range(2):
            found, gradients = WAYS[way](function, arrays)
            scale = max([1.0, float(abs(y)), *[float(np.max(np.abs(s), initial=0.0)) for s in slopes]])
            np.testing.assert_allclose(array(found), y, rtol=near, atol=near * scale)
            for ours, theirs in zip(gradients, slopes, strict=True):
                np.testing.assert_allclose(np.zeros(theirs.shape) if ours is None else array(ours), theirs, rtol=near, atol=near * scale)
    finally:
        del COMPILED[function]


@given(
    seeds=st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=2, max_size=2),
    factors=st.tuples(st.integers(-3, 3), st.integers(-3, 3)),
    how=st.sampled_from(["gradients", "backward", "stream"]),
)
def test_contract_04_05_27_a_sweep_is_linear_in_its_seeds(seeds, factors, how):
    """The Jacobian by hand, of roots that share what they are made of: each sweep gives its transpose times any seeds."""
    x = tape.Variable(np.array([0.5, -0.25, 1.0], np.float32))
    h = x * x
    roots = [h * x * 2, h + x]
    s, t = (np.array(k, np.float32) * f for k, f in zip(seeds, factors, strict=True))
    v = np.array([0.5, -0.25, 1.0])
    expected = s * 6 * v * v + t * (2 * v + 1)
    if how == "gradients":
        found = tape.gradients(roots, x, [s, t])
    elif how == "stream":
        ((_, found),) = tape.stream_gradients(roots, [s, t])
    else:
        tape.backward(roots, [s, t])
        found = x.grad
    np.testing.assert_allclose(array(found), expected, rtol=1e-5, atol=1e-5)


def in_torch(torch, t, a, b, c):
    """The network, a gather, a mask and the doubled function, in PyTorch's words."""
    h = torch.tanh(a @ b + c)
    picked = b[[0, 2, 0, 0], [1, 1, 1, 3]]
    return (h**2).mean() + (picked * c).sum() + torch.where(a > 0, a * a, 0.5 * a).sum() + t(b @ c, a[0]).sum()


def on_tape(a, b, c):
    h = tnp.tanh(a @ b + c)
    picked = b[np.array([0, 2, 0, 0]), np.array([1, 1, 1, 3])]
    return (h**2).mean() + (picked * c).sum() + tnp.where(a > 0, a * a, 0.5 * a).sum() + Doubled.apply(b @ c, a[0])[0].sum()


def test_contract_12_14_20_26_pytorch_agrees():
    """First derivatives, accumulated ones, and those of a gradient penalty, through a Function of each."""
    torch = pytest.importorskip("torch")

    class TorchDoubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return 2 * g * y, 2 * g * x

    theirs = [torch.tensor(x, requires_grad=True) for x in (A, B, C)]
    ours = variables((A, B, C))
    for _ in range(3):
        in_torch(torch, TorchDoubled.apply, *theirs).backward()
        on_tape(*ours).backward()
        for v, t in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(array(v.grad), t.grad.numpy(), rtol=1e-4, atol=1e-5)
    slopes = torch.autograd.grad(in_torch(torch, TorchDoubled.apply, *theirs), theirs, create_graph=True)
    expected = torch.autograd.grad(sum((s**2).sum() for s in slopes), theirs)
    slopes = tape.gradients(on_tape(*ours), ours, create_graph=True)
    for found, e in zip(tape.gradients(sum((s**2).sum() for s in slopes), ours), expected, strict=True):
        np.testing.assert_allclose(array(found), e.numpy(), rtol=1e-3, atol=1e-4)
