"""Ops on the values of a running JAX transformation stay pending, and enter it as one call."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import LeakedTracerError
from tape.graph.scope import LOCAL
from tape.recording import staging
from tests import agreement

X = jnp.asarray(np.linspace(0.1, 1.0, 6), jnp.float32).reshape(2, 3)


def loss(xp):
    return lambda x: (xp.sin(x) ** 2).sum()


GRADIENT = jax.grad(loss(jnp))
SECOND = jax.grad(lambda x: (GRADIENT(x) ** 2).sum())

close = functools.partial(agreement.close, rtol=2e-5)


def equations(jaxpr):
    """How many primitives a jaxpr runs, calls looked into."""
    inner = [p for eqn in jaxpr.eqns for p in eqn.params.values() if hasattr(p, "eqns")]
    return sum(not any(hasattr(p, "eqns") for p in e.params.values()) for e in jaxpr.eqns) + sum(
        equations(getattr(p, "jaxpr", p)) for p in inner
    )


def swept(x):
    v = tape.Variable(x)
    loss(tnp)(v).backward()
    return v.grad


def looked_and_swept(x):
    v = tape.Variable(x)
    out = loss(tnp)(v)
    scale = out.value / out.value
    out.backward()
    return v.grad.value * scale


def hooked(x):
    v = tape.Variable(x)
    y = tnp.sin(v)
    y.register_hook(lambda g: g + g)
    (y**2).sum().backward()
    return v.grad.value / 2


class Doubled(tape.Function):
    """Twice the sine, with the cosine's wrong sign in the backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tnp.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved
        return -g * tnp.cos(x)


def with_function(x):
    v = tape.Variable(x)
    (Doubled.apply(v * 1) ** 2).sum().backward()
    return -v.grad.value


def both_orders(x):
    v = tape.Variable(x)
    g = tape.gradients(loss(tnp)(v), v, create_graph=True)
    return tape.gradients((g * g).sum(), v)


FIRST_ORDER = {
    "grad": tape.grad(loss(tnp)),
    "value_and_grad": lambda x: tape.value_and_grad(loss(tnp))(x)[1],
    "vjp": lambda x: tape.vjp(loss(tnp), x)[1](jnp.float32(1))[0],
    "backward": swept,
    "look before backward": looked_and_swept,
    "hooks": hooked,
    "Function": with_function,
    "lift": tape.grad(interop.lift(loss(jnp))),
    "lower": jax.grad(interop.lower(loss(tnp))),
}
TRANSFORMATIONS = {
    "jit": jax.jit,
    "vmap": lambda f: jax.vmap(lambda row: f(row[None])[0]),
    "jit of vmap": lambda f: jax.jit(jax.vmap(lambda row: f(row[None])[0])),
    "vmap of jit": lambda f: jax.vmap(jax.jit(lambda row: f(row[None])[0])),
    "checkpoint": lambda f: jax.jit(jax.checkpoint(lambda x: jnp.asarray(f(x)) if isinstance(f(x), jax.Array) else f(x).value)),
    "while": lambda f: jax.jit(lambda x: jax.lax.fori_loop(0, 1, lambda _, x: _array(f(x)), x)),
    "scan": lambda f: jax.jit(lambda x: jax.lax.scan(lambda c, row: (c, _array(f(row[None]))[0]), 0, x)[1]),
}


def _array(x):
    return x.value if isinstance(x, tape.Variable) else x


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("name", FIRST_ORDER)
def test_gradients_inside_transformations(name, transformation):
    with jax.checking_leaks():
        found = TRANSFORMATIONS[transformation](FIRST_ORDER[name])(X)
    close(_array(found), GRADIENT(X))


@pytest.mark.parametrize(
    "second",
    [
        jax.jit(both_orders),
        jax.jit(tape.grad(lambda x: (tape.grad(loss(tnp))(x) ** 2).sum())),
        jax.grad(lambda x: (jax.jit(tape.grad(loss(tnp)))(x) ** 2).sum()),
        jax.jit(jax.grad(lambda x: (tape.grad(loss(tnp))(x) ** 2).sum())),
        jax.jit(tape.grad(lambda x: (interop.lift(jax.grad(loss(jnp)))(x) ** 2).sum())),
    ],
    ids=["create_graph", "grad of grad", "jax over jit", "jax inside jit", "lifted"],
)
def test_second_order(second):
    close(_array(second(X)), SECOND(X))


def test_one_call_and_no_more_equations_than_jax():
    ours = jax.make_jaxpr(tape.grad(loss(tnp)))(X)
    assert [str(eqn.primitive) for eqn in ours.jaxpr.eqns] == ["jit"]
    assert equations(ours.jaxpr) <= equations(jax.make_jaxpr(GRADIENT)(X).jaxpr) + 1


def test_no_more_operations_than_jax():
    def network(xp):
        def fun(layers, x):
            for w in layers:
                x = xp.tanh(x @ w)
            return (x * x).mean()

        return fun

    layers = [jnp.eye(3) * i for i in range(1, 6)]
    ours, theirs = [jax.jit(g).lower(layers, X).compile() for g in (tape.grad(network(tnp)), jax.grad(network(jnp)))]
    assert ours.cost_analysis()["flops"] <= theirs.cost_analysis()["flops"]
    assert ours.memory_analysis().temp_size_in_bytes <= theirs.memory_analysis().temp_size_in_bytes


def test_nothing_runs_before_it_is_needed(stats):
    @jax.jit
    def fun(x):
        v = tape.Variable(x)
        y = tnp.sin(v) + 1
        assert y._cell[0] is None
        return y

    fun(X)
    assert stats.flushes == {"look": 1}
    assert not stats.compiles


@pytest.mark.parametrize(
    "inner",
    [
        lambda f, x: jax.vmap(f)(x).sum(),
        lambda f, x: jax.lax.scan(lambda c, r: (c + f(r), None), jnp.float32(0), x)[0],
        lambda f, x: jax.lax.map(f, x).sum(),
        lambda f, x: sum(jax.jit(f)(r) for r in x),
        lambda f, x: sum(jax.lax.cond(True, f, f, r) for r in x),
    ],
    ids=["vmap", "scan", "map", "jit", "cond"],
)
def test_what_is_pending_outside_a_transformation_inside(inner):
    def fun(x):
        y = tnp.sin(tape.constant(x)) * 2
        found = inner(lambda row: (y * row).sum().value, x)
        return found + y.sum().value

    with jax.checking_leaks():
        found = jax.jit(fun)(X)
    y = jnp.sin(X) * 2
    close(found, sum((y * row).sum() for row in X) + y.sum())


def test_values_from_outside_are_computed_outside():
    outer = tape.Variable(X)
    pending = tnp.cos(outer)
    jaxpr = jax.make_jaxpr(lambda x: (pending.detach() * tape.constant(x)).sum().value)(X)
    assert "cos" not in str(jaxpr)
    found = jax.jit(lambda x: (pending.detach() * tape.constant(x)).sum().value)(X)
    close(found, (jnp.cos(X) * X).sum())


def test_values_made_of_numbers_are_computed_inside_and_known_outside(stats):
    def fun(x):
        mask = tnp.arange(3.0) * 2 + tnp.ones(3)
        y = (mask * tape.constant(x)).sum().value
        assert not stats.executed  # no executable was compiled for the mask
        assert float(mask.sum()) == 9.0
        return y

    close(jax.jit(fun)(X), (X * jnp.array([1.0, 3.0, 5.0])).sum())
    assert "iota" in str(jax.make_jaxpr(lambda x: (tnp.arange(3.0) * tape.constant(x)).value)(X))


@pytest.mark.parametrize(
    "outer", [lambda f: jax.grad(jax.jit(f)), lambda f: jax.jit(jax.grad(f)), jax.grad], ids=["grad of jit", "jit", "eager"]
)
def test_no_grad_stops_the_gradients_of_jax(outer):
    def fun(x):
        with tape.no_grad():
            y = tnp.sin(tape.constant(x))
        return (y * tape.constant(x)).sum().value

    close(outer(fun)(X), jnp.sin(X))
    close(outer(lambda x: (tnp.sin(tape.constant(x)).detach() * tape.constant(x)).sum().value)(X), jnp.sin(X))


def test_gradients_do_not_leak_into_outer_variables():
    outer = tape.Variable(X)

    @jax.jit
    def fun(x):
        (outer * tape.constant(x)).sum().backward()
        return x

    with pytest.raises(LeakedTracerError, match=r"backward.*outside"):
        fun(X)
    assert outer.grad is None

    @jax.jit
    def assign(x):
        outer.grad = tape.constant(x) * 2
        return x

    with pytest.raises(LeakedTracerError, match=r"grad.*outside"):
        assign(X)
    assert outer.grad is None


def _unchained(v):
    v.unchain()
    return v


def _cut_backward(v):
    v.unchain_backward()
    return v


LEAVES = {  # how a leaf is made of what is given, and of what
    "unchain": (lambda w: w * 2, _unchained),
    "unchain_backward": (lambda w: w * 2, _cut_backward),
    "requires_grad_": (lambda w: (w * 2).detach(), lambda v: v.requires_grad_()),
}


@pytest.mark.parametrize("looked", [False, True], ids=["pending", "looked at"])
@pytest.mark.parametrize("way", LEAVES)
def test_what_becomes_a_leaf_in_a_transformation_is_as_much_from_outside_as_before(way, looked):
    made, leaf = LEAVES[way]

    def swept(v, a):
        if looked:
            v.numpy()
        z = leaf(v)
        (z * z * tape.constant(a)).sum().backward()
        return z.grad.value

    outer = made(tape.Variable(X))
    with pytest.raises(LeakedTracerError, match=r"backward.*outside"):
        jax.jit(lambda a: swept(outer, a))(X)
    assert outer.grad is None
    close(jax.jit(lambda a: swept(made(tape.Variable(X)), a))(X), 4 * X * X)


def test_a_leaked_variable_says_so():
    leaked = []
    jax.jit(lambda x: leaked.append(tnp.sin(tape.constant(x))))(X)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        np.asarray(leaked[0] + 1)


@pytest.mark.parametrize("ask", [float, bool, int, lambda v: v.item(), lambda v: v.tolist()])
def test_a_leaked_value_that_is_looked_at_says_so(ask):
    leaked, w = [], tape.Variable(2.0)
    tape.lax.scan(lambda c, x: (c, leaked.append(c * w)), tnp.asarray(1.0), None, length=2)
    with pytest.raises(LeakedTracerError, match=r"^\S+: the value of a Variable .* over; return it"):
        ask(leaked[0])


@pytest.mark.parametrize("transformation", [jax.jit, lambda f: lambda x: jax.vmap(f)(x[None])[0]], ids=["jit", "vmap"])
def test_the_configuration_of_recording_holds(transformation):
    def fun(x):
        y = tnp.sin(tape.constant(x))
        with jax.enable_x64(True):
            z = y.astype("float64") + 1e-12
        assert z.value.dtype == jnp.float64
        return z.value

    found = transformation(fun)(X)
    assert found.dtype == jnp.float64
    assert (np.asarray(found) != np.sin(X)).all()


def test_sweeps_met_again_under_other_transformations():
    def cube(x):
        return (x**3).sum() * x[0]

    hessian = tape.hessian(cube)
    expected = jax.vmap(jax.hessian(cube))(X.T)
    for _ in range(3):
        close(jax.vmap(hessian)(X.T), expected)
        close(jax.jit(jax.vmap(lambda x: hessian(x)))(X.T), expected)


def test_effects_happen_whether_or_not_somebody_looks():
    seen = []

    def note(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x)
        return x

    @jax.jit
    def fun(x):
        y = tape.constant(x).sum()
        interop.lift(note)(y)
        return (y + 1).value

    fun(X)
    jax.effects_barrier()
    assert seen == [pytest.approx(float(X.sum()))]


def test_shard_map():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")

    def local(x):
        return tape.grad(lambda r: tape.lax.psum(loss(tnp)(r), "i"))(x)

    close(jax.jit(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec))(X), GRADIENT(X))


def penalised(t, xp):
    """The derivative by what is the same on all devices, with one by what varies over them in it."""
    return lambda w, x: t.grad(lambda w: (t.grad(lambda x: (xp.tanh(x * w) ** 2).sum())(x) ** 2).sum() + (w * w).sum())(w)


def scanned(t, xp):
    return lambda w, x: t.grad(lambda w: t.lax.scan(lambda c, a: (xp.tanh(c * w) * a, c.sum()), x, X)[1].sum())(w)


def computed_again(t, xp):
    return lambda w, x: t.grad(lambda w: t.checkpoint(lambda w, x: xp.sin(xp.tanh(w) * x).sum())(w, x))(w)


def chosen(t, xp):
    return lambda w, x: t.grad(lambda w: t.lax.cond(x[0, 0] > 0, lambda: xp.sin(w * x).sum(), lambda: (x * w).sum()))(w)


def curved(t, xp):
    return lambda w, x: t.hessian(lambda w: (xp.tanh(x * w) ** 2).sum())(w)


@pytest.mark.parametrize("program", [penalised, scanned, computed_again, chosen, curved])
def test_shard_map_checks_what_varies_over_devices(program):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("i")
    own, expected = (
        jax.jit(jax.shard_map(fun, mesh=mesh, in_specs=(whole, split), out_specs=whole))(X, 2 * X)
        for fun in (program(tape, tnp), program(jax, jnp))
    )
    close(own, expected)


def test_no_segment_of_a_transformation_survives_it():
    segments = []

    def fun(x):
        y = tnp.sin(tape.constant(x))
        segments.append(weakref.ref(y._segment))
        return y

    jax.jit(fun)(X)
    gc.collect()
    assert [ref() for ref in segments] == [None]
    for _ in range(50):
        jax.jit(lambda x: fun(x))(X)
    assert len(LOCAL.scope.staged) <= 2
    assert staging.current() is None


def test_long_tapes_are_one_segment():
    def chain(xp):
        def fun(x):
            for _ in range(450):
                x = xp.sin(x)
            return x.sum()

        return fun

    ours = jax.make_jaxpr(tape.grad(chain(tnp)))(X)
    assert len(ours.jaxpr.eqns) == 1
    assert equations(ours.jaxpr) <= equations(jax.make_jaxpr(jax.grad(chain(jnp)))(X).jaxpr)


@pytest.mark.parametrize("stopped", [False, True])
def test_loops_are_loops_of_the_transformation(stopped):
    """Nor does JAX, which may differentiate the whole, differentiate what was recorded under ``no_grad``."""

    def ours(turns):
        def fun(w, x):
            h = x
            for i in range(turns):
                if stopped and i == turns - 150:
                    with tape.no_grad():
                        h = h + 0 * h
                h = tnp.tanh(h @ w + x) * (1 + 0.01 * i)
            return (h * h).sum()

        return tape.grad(fun)

    def theirs(w, x):
        scales = 1 + 0.01 * jnp.arange(200.0)
        h = x
        for part in (scales[:50], scales[50:]):
            h, _ = jax.lax.scan(lambda h, s: (jnp.tanh(h @ w + x) * s, None), jax.lax.stop_gradient(h) if stopped else h, part)
        return (h * h).sum()

    w = jnp.full((3, 3), 0.1)
    sizes = [equations(jax.make_jaxpr(ours(turns))(w, X).jaxpr) for turns in (200, 300)]
    assert sizes[0] == sizes[1]
    np.testing.assert_allclose(jax.jit(ours(200))(w, X), jax.jit(jax.grad(theirs))(w, X), rtol=1e-5)
    again = [jax.jit(jax.jacrev(grad))(w, X) for grad in (ours(200), jax.grad(theirs))]  # JAX differentiates our loops
    np.testing.assert_allclose(*again, rtol=1e-4, atol=1e-5)


def test_a_transformation_that_is_over_leaves_nothing_behind_for_the_recorder():
    """Else each segment from then on would begin in the slow way."""
    jax.jit(lambda x: (tape.Variable(x) * 2).sum().value)(X)
    gc.collect()
    tape.Variable(X) * 2
    assert LOCAL.scope.staged == []
