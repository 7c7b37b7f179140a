"""Whether a case is what its label says, by comparison with the derivative of its truth; no checker is asked."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import HALVES, cast

TOLERANCE = {"float16": 2e-2, "bfloat16": 8e-2, "float32": 1e-4, "float64": 1e-8}
SCALES = (1.0, -1.0, 1e3, 1e-3, 1e10)  # the last is beyond half precision
HONEST = "jax cannot differentiate"  # a second time it raises
PLACES = (10.0, 1e-3, -1.0)


def inexact(x):
    """Tell whether ``x`` carries a gradient."""
    return jnp.issubdtype(x.dtype, jnp.inexact)


def seed_for(out, scale=1.0):
    """A cotangent of absolute values between ``scale`` / 2 and ``scale`` * 3 / 2, of both signs."""
    rng = np.random.default_rng(5)

    def one(o):
        values = rng.uniform(0.5, 1.5, o.shape) * rng.choice((-1.0, 1.0), o.shape)
        if jnp.issubdtype(o.dtype, jnp.complexfloating):
            values = values + 1j * rng.uniform(0.5, 1.5, o.shape)
        return jnp.asarray(scale, o.dtype) * jnp.asarray(values, o.dtype) if inexact(o) else np.zeros(o.shape, jax.dtypes.float0)

    return jax.tree.map(one, out)


def carrying(args):
    """The leaves of ``args`` that carry a gradient, and the function that puts others in their place."""
    leaves, tree = jax.tree.flatten(args)
    places = [i for i, leaf in enumerate(leaves) if inexact(leaf)]

    def rebuild(values):
        full = list(leaves)
        for i, value in zip(places, values, strict=True):
            full[i] = value
        return jax.tree.unflatten(tree, full)

    return [leaves[i] for i in places], rebuild


def on_leaves(fun, args):
    """``fun`` as a function of the leaves that carry a gradient, with a list of results that carry one."""
    leaves, rebuild = carrying(args)
    return lambda *values: [o for o in map(jnp.asarray, jax.tree.leaves(fun(*rebuild(values)))) if inexact(o)], leaves


def first(fun):
    """The function that pulls a cotangent of size ``scale`` back through ``fun``: its result, and the gradients."""

    def pull(scale, *leaves):
        out, vjp = jax.vjp(fun, *leaves)
        return out, vjp(seed_for(out, scale))

    return pull


def second(fun):
    """The gradient of a weighted sum of the gradients."""

    def total(*leaves):
        grads = first(fun)(1.0, *leaves)[1]
        return sum(jnp.sum(jnp.real(g * w)) for g, w in zip(grads, seed_for(list(grads)), strict=True))

    return lambda *leaves: jax.grad(total, tuple(range(len(leaves))))(*leaves)


def distance(these, those):
    """The largest difference relative to the largest true value; infinite where a number is missing."""
    worst = 0.0
    for this, that in zip(map(_wide, these), map(_wide, those), strict=True):
        if not this.size:
            continue
        if not np.isfinite(this).all():
            return np.inf
        worst = max(worst, np.abs(this - that).max() / max(np.abs(that).max(), 1e-300))
    return worst


def _bent(x):
    """``x`` moved by a tenth at most, each element by another share, and off the axes."""
    share = 0.1 * np.random.default_rng(3).uniform(0.3, 1, x.shape)
    return x + share * ((1 + 1j) if jnp.iscomplexobj(x) else 1)


def _wide(x):
    return np.asarray(x).astype("complex128")


def _between(fun, leaves, other):
    """Gradients at ``other``, and then at ``leaves`` with another forward pass before the pullback."""
    _, gradients = first(fun)(1.0, *other)
    out, vjp = jax.vjp(fun, *leaves)
    jax.vjp(fun, *other)
    return (*gradients, *vjp(seed_for(out)))


def _in_parts(fun, leaves):
    """Gradients of each argument by itself, and of each output by itself."""

    def only(k, value):
        return fun(*[value if i == k else leaf for i, leaf in enumerate(leaves)])

    for k, leaf in enumerate(leaves):
        yield first(lambda value, k=k: only(k, value))(1.0, leaf)[1]
    for o in range(len(fun(*leaves))):
        yield first(lambda *values, o=o: fun(*values)[o])(1.0, *leaves)[1]


def shown(case, dtype):
    """What a case shows where it differs from its truth: a set of words of ``SHOWS``, empty for a right one."""
    with jax.enable_x64(dtype == "float64"):
        fun, args = case.make(dtype)
        args = jax.tree.map(jnp.asarray, args)
        own, leaves = on_leaves(fun, args)
        true, _ = on_leaves(case.truth(dtype), args)
        other = [0.7 * leaf for leaf in leaves]

        def differ(these, those):
            return distance(these, those) > TOLERANCE[dtype]

        seen = set()
        value = own(*leaves)
        assert not differ(value, true(*leaves)), "the truth is another function"
        compiled, reference = jax.jit(first(own)), jax.jit(first(true))
        pull = first(own) if case.shows in {"repeat", "jit"} else compiled
        scales = SCALES[: 1 if case.shows == "repeat" else 4 if dtype in HALVES else 5]
        right = [reference(scale, *leaves)[1] for scale in scales]
        got = [pull(scale, *leaves) for scale in scales]
        if any(differ(g, r) for (_, g), r in zip(got, right, strict=True)):
            seen.add("first")
        if any(not np.isfinite(_wide(x)).all() for _, g in got for x in g):
            seen.add("nan")
        if any(a.dtype != b.dtype for a, b in zip(got[0][1], leaves, strict=True)):
            seen.add("structure")
        if differ(got[0][0], value):
            seen.add("value")
        if case.shows == "repeat" and differ(*(_between(f, leaves, other) for f in (own, true))):
            seen.add("repeat")
        if case.shows == "part" and any(differ(a, b) for a, b in zip(_in_parts(own, leaves), _in_parts(true, leaves), strict=True)):
            seen.add("part")
        places = [[factor * leaf for leaf in leaves] for factor in PLACES]
        if case.shows == "elsewhere" and any(differ(compiled(1.0, *p)[1], reference(1.0, *p)[1]) for p in places):
            seen.add("elsewhere")
        if case.shows == "jit" and differ(compiled(1.0, *leaves)[1], right[0]):
            seen.add("jit")
        if case.shows == "vmap":
            stacked = [jnp.stack(pair) for pair in zip(leaves, other, strict=True)]
            batched, true_batched = (
                [x for part in jax.vmap(first(f), (None, *[0] * len(leaves)))(1.0, *stacked) for x in part] for f in (own, true)
            )
            if differ(batched, true_batched):
                seen.add("vmap")
        if case.shows == "nested":
            stacked = [jnp.stack([leaf, 0.7 * leaf, 0.9 * leaf, leaf]).reshape(2, 2, *leaf.shape) for leaf in leaves]
            axes = (None, *[0] * len(leaves))
            once = [jax.vmap(first(f), axes)(1.0, *[x[0] for x in stacked])[1] for f in (own, true)]
            twice = [jax.vmap(jax.vmap(first(f), axes), axes)(1.0, *stacked)[1] for f in (own, true)]
            if not differ(*once) and differ(*twice):
                seen.add("nested")
        if case.shows == "calls" and any(differ(first(own)(1.0, *leaves)[1], right[0]) for _ in range(12)):
            seen.add("calls")
        if case.shows == "bent":
            moved = [_bent(leaf) for leaf in leaves]
            if differ(compiled(1.0, *moved)[1], reference(1.0, *moved)[1]):
                seen.add("bent")
        if case.shows == "others":
            there = jax.tree.map(jnp.asarray, cast(case.at, dtype))
            (moved, elsewhere), (true_there, _) = on_leaves(fun, there), on_leaves(case.truth(dtype), there)
            if differ(first(moved)(1.0, *elsewhere)[1], first(true_there)(1.0, *elsewhere)[1]):
                seen.add("others")
        if case.shows == "forward" and differ(jax.jvp(own, leaves, other)[1], jax.jvp(true, leaves, other)[1]):
            seen.add("forward")
        twice = not seen and case.shows in {"second", "first", "vmap"} and case.kind != HONEST
        if twice and differ(jax.jit(second(own))(*leaves), jax.jit(second(true))(*leaves)):
            seen.add("second")
        return seen
