"""Every primitive of the installed JAX that has a derivative has a rule here, or stands in the list of what is left to JAX with the reason."""

import functools
import importlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from oracles import jax_vjp, own_vjp

from interop import lift
from tape import Variable, jaxapi
from tape.errors import RuleError
from tape.graph.kinds import differentiable
from tape.ops.jaxprs import equations_in
from tape.rules import lookup
from tape.rules.left import LEFT
from tests.mirrored import samples
from tests.mirrored.test_derivatives import EVERY

X = np.array([[0.3, -1.2, 0.7], [0.9, 0.4, -0.6], [1.1, 0.2, 0.5]], "float32")


def is_ours(primitive):
    return lookup(primitive) is not None or primitive in jaxapi.CALL_JAXPR_PARAMS


def forgotten(primitives):
    return {p.name for p in primitives if not is_ours(p) and p.name not in LEFT}


def flows(eqn):
    """Tell whether an equation makes numbers with a derivative of such numbers."""
    return all(any(hasattr(v.aval, "dtype") and differentiable(v.aval) for v in side) for side in (eqn.invars, eqn.outvars))


def _is_jaxs(rule):
    """Tell whether a derivative is JAX's own, not that of a library on it which another test has imported."""
    while isinstance(rule, functools.partial):
        rule = rule.func
    module = getattr(rule, "__module__", "jax")
    return module.partition(".")[0] in {"jax", "jaxlib"} and not module.startswith("jax.experimental")


def test_what_jax_can_differentiate_has_a_rule_or_a_reason():
    tables = (jaxapi.ad.primitive_jvps, jaxapi.ad.primitive_transposes)
    derived = {p for table in tables for p, rule in table.items() if _is_jaxs(rule)}
    pallas = {"get_global", "masked_load", "masked_swap", "mpmd_map", "pallas_call"}  # where another test has imported it
    assert forgotten(derived) <= {"mulhi", *pallas}  # the first is of integers


def test_what_jax_lists_has_a_rule_or_a_reason():
    listed = [p for p in vars(jaxapi.primitives).values() if isinstance(p, jaxapi.Primitive)]
    assert not forgotten(listed)


@functools.cache
def primitives_of(source, name):
    """The primitives through which a gradient flows in a public function, called with its sample; none where it cannot be traced."""
    fun = getattr(importlib.import_module(source), name)
    try:
        args, options = samples.smooth(source, name, fun)
    except AssertionError:
        return frozenset()
    leaves, tree = jax.tree.flatten((args, options))
    places = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact)]

    def called(values):
        filled = list(leaves)
        for i, x in zip(places, values, strict=True):
            filled[i] = x
        args, options = jax.tree.unflatten(tree, filled)
        return [x for x in jax.tree.leaves(fun(*args, **options)) if isinstance(x, jax.Array)]

    try:
        with warnings.catch_warnings(), np.printoptions():  # one of them sets those
            warnings.simplefilter("ignore")
            closed = jax.make_jaxpr(called)([leaves[i] for i in places])
    except Exception:  # noqa: BLE001 - shapes that depend on values, functions of no arrays
        return frozenset()
    return frozenset(eqn.primitive for eqn in equations_in(closed.jaxpr) if flows(eqn))


@pytest.mark.parametrize("source", sorted({source for source, _ in EVERY}))
def test_public_functions_are_made_of_what_has_a_rule_or_a_reason(source):
    missing = {name: forgotten(primitives_of(source, name)) for s, name in EVERY if s == source}
    assert not {name: found for name, found in missing.items() if found}


def test_a_primitive_that_is_new_is_noticed():
    unknown = jaxapi.Primitive("tests_unknown")
    assert forgotten([unknown]) == {"tests_unknown"}


def test_reasons_are_of_what_has_no_rule():
    known = {p.name: p for p in (*jaxapi.ad.primitive_jvps, *vars(jaxapi.primitives).values()) if isinstance(p, jaxapi.Primitive)}
    assert not {name for name in LEFT if name in known and lookup(known[name]) is not None}
    assert all(reason for reason in LEFT.values())


COLLECTIVES = {
    "psum": lambda x: lax.psum(jnp.sin(x) * x, "i") * x,
    "pmean": lambda x: lax.pmean(jnp.sin(x) * x, "i") * x,
    "ppermute": lambda x: lax.ppermute(jnp.sin(x) * x, "i", [(0, 1), (1, 2), (2, 0)]) * x,
    "all_gather": lambda x: lax.all_gather(jnp.sin(x) * x, "i") * x,
    "all_to_all": lambda x: lax.all_to_all(jnp.sin(x) * x, "i", 0, 0) * x,
    "psum_scatter": lambda x: lax.psum_scatter(jnp.sin(x) * x, "i"),
    "pswapaxes": lambda x: lax.pswapaxes(jnp.sin(x) * x, "i", 0) * x,
}


def both_orders(vjp, fun, x):
    def first(x):
        return vjp(fun, (x,), (jnp.ones_like(fun(x)[0]),))[0]

    return first(x), vjp(lambda x: (first(x) ** 2,), (x,), (jnp.ones_like(x),))[0]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_over_a_mapped_axis(name):
    fun = lambda x: (jax.vmap(COLLECTIVES[name], axis_name="i")(x),)  # noqa: E731
    for own, expected in zip(*(jax.jit(functools.partial(both_orders, vjp, fun))(X) for vjp in (own_vjp, jax_vjp)), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", ["psum", "all_gather", "ppermute", "psum_scatter", "pmean"])
def test_collectives_on_a_mesh_of_one_device(name, checked):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = {
        "psum": lambda x: lax.psum(jnp.sin(x) * x, "i") * x,
        "pmean": lambda x: lax.pmean(jnp.sin(x) * x, "i") * x,
        "ppermute": lambda x: lax.ppermute(jnp.sin(x) * x, "i", [(0, 0)]) * x,
        "all_gather": lambda x: lax.all_gather(jnp.sin(x) * x, "i", tiled=True) * x,
        "psum_scatter": lambda x: lax.psum_scatter(jnp.sin(x) * x, "i", tiled=True) * x,
    }
    split = PartitionSpec("i")
    mapped = jax.shard_map(whole[name], mesh=mesh, in_specs=split, out_specs=split, check_vma=checked)
    fun = lambda x: (mapped(x),)  # noqa: E731
    plain = lambda x: (jnp.sin(x) * x * x,)  # noqa: E731 - on one device a collective is the identity
    own = jax.jit(functools.partial(both_orders, own_vjp, fun))(X)
    for mine, expected in zip(own, both_orders(jax_vjp, plain, X), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jax.vmap(lambda y: lax.pmax(y, "i") * y, axis_name="i")(x),
        lambda x: jax.vmap(lambda y: lax.pmin(y, "i") * y, axis_name="i")(x),
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"),
    ],
    ids=["pmax", "pmin", "pure_callback"],
)
def test_what_has_no_derivative_in_jax_either_is_refused_by_name(fun, request):
    with pytest.raises(RuleError, match=request.node.callspec.id):
        own_vjp(lambda x: (fun(x),), (X,), (X,))


def test_effects_stay_and_gradients_flow_past_them():
    seen = []

    def fun(x):
        y = jnp.sin(x)
        jax.debug.callback(seen.append, y)
        return y * x

    v = Variable(X)
    lift(fun)(v).sum().backward()
    np.testing.assert_allclose(v.grad.value, np.cos(X) * X + np.sin(X), rtol=1e-5)
    jax.effects_barrier()
    assert len(seen) == 1
