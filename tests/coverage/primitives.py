"""One primitive's rule beside JAX's: both orders, dtypes, strict promotion, ``vmap``, and arguments that lie on two devices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from tape.rules import coverage, registered
from tape.rules.left import LEFT
from tests.rules.oracles import assert_same, flat, jax_vjp, own_vjp, second_order
from tests.rules.records import APART, accepts, draw, draw_like, examples_of, trusted

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


@functools.cache
def facts():
    """What the registry says of every primitive."""
    return {p.name: (p.rule, p.flows) for p in coverage().primitives}


def reason(primitive, checked):
    """Why a primitive's rule is not compared here; an empty text where it is."""
    name = primitive.name
    if name in APART:
        return f"{APART[name]} (tests/rules/test_apart.py)"
    if primitive.rule == "jax":
        return LEFT.get(name, "")
    if not primitive.flows:
        return "nothing flows"
    return "" if name in checked else f"{primitive.source} (tests/callables, tests/ops)"


@functools.cache
def reasons():
    checked = {str(r.primitive) for r in registered() if r.domain}
    return {p.name: reason(p, checked) for p in coverage().primitives}


def checked(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it stands on the page
        return " ".join(f"{type(error).__name__}: {error}".split())[:110]
    return ""


def orders(record, example, x64="float64"):
    """Both orders, and the batch, in one program."""
    fun = flat(example.fun)
    with jax.enable_x64(True):
        args = draw(record, example, x64)
        cts = draw_like(jax.eval_shape(fun, *args), "cotangents")
        seeds = draw_like(args, "seeds")

        @jax.jit
        def everything(args, cts):
            first = own_vjp(fun, args, cts), trusted(record, example, lambda: jax_vjp(fun, args, cts))
            second = trusted(record, example, lambda: second_order(fun, jax_vjp, args, cts, seeds))
            own = None if second is None else second_order(fun, own_vjp, args, cts, seeds)
            mapped = jax.vmap(lambda *xs: own_vjp(fun, xs, cts))(*[jnp.stack([x, x]) for x in args])
            return first, (own, second), [x[1] for x in mapped]

        (own, expected), (own_second, second), mapped = everything([jnp.asarray(x) for x in args], cts)
        if expected is not None:
            assert_same(own, expected, "first order")
        if second is not None:
            assert_same(own_second, second, "second order", factor=100.0, scale=1e-3)
        assert_same(mapped, own, "vmap", factor=100.0)
    return "2" if second is not None else "1"


def runs(fun, args):
    """Tell whether XLA has a kernel for arguments of these dtypes."""
    try:
        jax.jit(fun).lower(*args)
    except NotImplementedError:
        return False
    return True


def first(record, example, dtype, place=None):
    """The first order in one dtype; ``place`` puts arguments on devices."""
    fun = flat(example.fun)
    with jax.enable_x64(dtype in ("float64", "complex128")):
        args = draw(record, example, dtype)
        if not accepts(fun, args) or not runs(fun, args):
            return False
        cts = draw_like(jax.eval_shape(fun, *args), "cotangents")
        own = jax.jit(functools.partial(own_vjp, fun))(list(map(place, args)) if place else args, cts)
        expected = trusted(record, example, lambda: jax.jit(functools.partial(jax_vjp, fun))(args, cts))
        if expected is not None:
            assert_same(own, expected, dtype, factor=4.0)
    return True


def strict(record, example):
    fun = flat(example.fun)
    args = draw(record, example, "float32")
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        if accepts(fun, args):
            jax.eval_shape(functools.partial(own_vjp, fun), args, draw_like(jax.eval_shape(fun, *args), "cotangents"))


def spread(x):
    """An argument in halves on two devices, where its first axis is even."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    axes = ("x",) if x.ndim and x.shape[0] % 2 == 0 and x.shape[0] else ()
    return jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)))


def known(name):
    """What is known of a primitive without using it."""
    return {
        "name": name,
        "rule": facts()[name][0],
        "why": reasons()[name],
        "orders": "",
        "dtypes": [],
        "strict": "",
        "sharding": "",
        "differences": [],
    }


def row(name):
    """All that the page says of a primitive."""
    line = known(name)
    record = next((r for r in registered() if str(r.primitive) == name), None)
    if record is None or line["why"]:
        return line
    example = examples_of(record)[0]

    def note(what, call):
        wrong = checked(call)
        if wrong:
            line["differences"].append((what, wrong))
        return not wrong

    def ordered():
        line["orders"] = orders(record, example)

    note("orders", ordered)
    for dtype in DTYPES if record.complex else DTYPES[:4]:
        taken = []
        if note(dtype, lambda dtype=dtype, taken=taken: taken.append(first(record, example, dtype))) and taken[0]:
            line["dtypes"].append(dtype)
    line["strict"] = "yes" if note("strict promotion", lambda: strict(record, example)) else "no"
    if len(jax.devices()) > 1:
        line["sharding"] = "yes" if note("sharding", lambda: first(record, example, "float32", spread)) else "no"
    return line


def rows(names, _parts=()):
    found = [row(name) for name in names]
    jax.clear_caches()
    return found
