"""What lowered functions do inside (sweep, cut, use hooks) against every derivative that JAX is asked for, in every nesting."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core.primitives import sin_p
from jax.lax import stop_gradient

import interop
import tape
import tape.numpy as tnp
from tape.errors import LostGradientError, TapeTypeError, UnrecordedGradientError
from tests.daily import pairs

X = np.array([0.7, -1.3])


def cube(x):
    return (x**3).sum()


# -- what is done inside, and the same in jax.numpy ----------------------------------------------------------------------------


def by_backward(x, **options):
    cube(x).backward(**options)
    return (x.grad**2).sum()


def by_backward_and_values(x):
    cube(x).backward()
    return jnp.sum(x.grad.value**2)


def beside_what_is_recorded(x):
    y = cube(x)
    g = tape.gradients(y, x, retain_graph=True)
    return y * x[0] + (g * x).sum()


def to_an_inner_leaf(x):
    v = x.detach().requires_grad_()
    return (tape.gradients(cube(v), v) * x).sum()


def step(x):
    cube(x).backward()
    return x.grad


class Doubled(tape.Function):
    """A sine with twice its derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tnp.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved
        return 2 * g * tnp.cos(x)


class Pushed(Doubled):
    """The same with a forward derivative."""

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved
        return 2 * t * tnp.cos(x)


@jax.custom_jvp
def doubled(x):
    return jnp.sin(x)


doubled.defjvp(lambda p, t: (doubled(p[0]), 2 * jnp.cos(p[0]) * t[0]))


def hooked(x):
    h = x * x
    h.register_hook(lambda g: g * 10)
    return tnp.sin(h).sum()


@jax.custom_jvp
def of_hooked(x):
    return jnp.sin(x * x).sum()


of_hooked.defjvp(lambda p, t: (of_hooked(*p), (20 * p[0] * jnp.cos(p[0] ** 2) * t[0]).sum()))


def unchained(x, function="unchain"):
    y = tnp.sin(x) * x
    z = y * x
    getattr(y, function)()
    return (z * y * x).sum()


def of_unchained(x):
    y = stop_gradient(jnp.sin(x) * x)
    return (y * x * y * x).sum()


@tape.no_grad()
def unrecorded_sine(x):
    return tnp.sin(x)


def of_cut(x):
    return (stop_gradient(jnp.sin(x)) * x).sum()


def squares(x):
    return (jax.grad(cube)(x) ** 2).sum()


def scanned(x):
    return tape.lax.scan(lambda c, r: (c * r + tnp.sin(r).detach() * r, None), x[0], x)[0]


def of_scanned(x):
    return jax.lax.scan(lambda c, r: (c * r + stop_gradient(jnp.sin(r)) * r, None), x[0], x)[0]


SWEEPS = {
    "gradients": (lambda x: (tape.gradients(cube(x), [x])[0] ** 2).sum(), squares),
    "gradients, recorded": (lambda x: (tape.gradients(cube(x), x, create_graph=True) ** 2).sum(), squares),
    "gradients beside": (beside_what_is_recorded, lambda x: cube(x) * x[0] + (jax.grad(cube)(x) * x).sum()),
    "gradients to an inner leaf": (to_an_inner_leaf, lambda x: (jax.grad(cube)(stop_gradient(x)) * x).sum()),
    "backward": (by_backward, squares),
    "backward, recorded": (functools.partial(by_backward, create_graph=True), squares),
    "backward, values": (by_backward_and_values, squares),
    "stream_gradients": (lambda x: sum((g**2).sum() for _, g in tape.stream_gradients(cube(x))), squares),
    "tape.vjp": (lambda x: (tape.vjp(cube, x)[1](1.0)[0] ** 2).sum(), squares),
    "tape.vjp of a value": (lambda x: jnp.sum(tape.vjp(cube, x.value)[1](1.0)[0] ** 2), squares),
    "tape.grad": (lambda x: (tape.grad(cube)(x) ** 2).sum(), squares),
    "tape.grad of a value": (lambda x: jnp.sum(tape.grad(cube)(x.value) ** 2), squares),
    "tape.grad of what is cut": (lambda x: (tape.grad(cube)(x.detach()) * x).sum(), lambda x: (jax.grad(cube)(stop_gradient(x)) * x).sum()),
    "tape.jvp": (lambda x: tape.jvp(lambda v: v**3, (x,), (x,))[1].sum(), lambda x: (3 * x**3).sum()),
    "tape.jit": (lambda x: (tape.jit(lambda v: tape.gradients(cube(v), v))(x) ** 2).sum(), squares),
    "backward in tape.jit": (lambda x: (tape.jit(step)(x) ** 2).sum(), squares),
    "tape.checkpoint": (lambda x: (tape.gradients(tape.checkpoint(cube)(x), x) ** 2).sum(), squares),
    "a value": (lambda x: (x * x.value**2).sum(), cube),
}
CUTS = {
    "detach": (lambda x: (tnp.sin(x).detach() * x).sum(), of_cut),
    "detach a square": (lambda x: ((x**2).detach() * x).sum(), lambda x: (stop_gradient(x**2) * x).sum()),
    "detach before": (lambda x: (tnp.sin(x.detach()) * x).sum(), of_cut),
    "no_grad": (lambda x: (unrecorded_sine(x) * x).sum(), of_cut),
    "stop_gradient": (lambda x: (tape.stop_gradient(tnp.sin(x)) * x).sum(), of_cut),
    "tape.lax.stop_gradient": (lambda x: (tape.lax.stop_gradient(tnp.sin(x)) * x).sum(), of_cut),
    "unchain": (unchained, of_unchained),
    "unchain_backward": (functools.partial(unchained, function="unchain_backward"), of_unchained),
    "detach in tape.jit": (tape.jit(lambda x: (tnp.sin(x).detach() * x).sum()), of_cut),
    "detach in a checkpoint": (tape.checkpoint(lambda x: (tnp.sin(x).detach() * x).sum()), of_cut),
    "detach in a scan": (scanned, of_scanned),
    "lift": (interop.lift(of_cut), of_cut),
}
CUSTOM = {
    "a Function": (lambda x: (Doubled.apply(x) * x).sum(), lambda x: (doubled(x) * x).sum()),
    "a Function with a jvp": (lambda x: (Pushed.apply(x) * x).sum(), lambda x: (doubled(x) * x).sum()),
    "a Function, swept": (
        lambda x: (tape.gradients((Pushed.apply(x) * x).sum(), x) ** 2).sum(),
        lambda x: (jax.grad(lambda x: (doubled(x) * x).sum())(x) ** 2).sum(),
    ),
    "a hook": (hooked, of_hooked),
    "a hook in tape.jit": (tape.jit(hooked), of_hooked),
}
CASES = {**SWEEPS, **CUTS, **CUSTOM}


# -- the derivatives ------------------------------------------------------------------------------------------------------------


def repeated(f):
    return lambda x: jax.lax.scan(lambda c, _: (c + f(x), None), jnp.zeros((), x.dtype), None, length=2)[0]


def stacked(x):
    return jnp.stack([x, x + 1])


NESTINGS = {
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(stacked(x)),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(stacked(x)).sum()),
    "grad of scan": lambda f: jax.grad(repeated(f)),
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x + 1,))[1],
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x + 1),
    "jit of jacfwd": lambda f: jax.jit(jax.jacfwd(f)),
    "jacfwd of scan": lambda f: jax.jacfwd(repeated(f)),
    "hessian": jax.hessian,
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f)),
    "forward over forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "jit of reverse over reverse": lambda f: jax.jit(jax.jacrev(jax.grad(f))),
    "reverse over jit of reverse": lambda f: jax.jacrev(jax.jit(jax.grad(f))),
    "reverse over reverse of jit": lambda f: jax.jacrev(jax.grad(jax.jit(f))),
    "reverse over reverse of scan": lambda f: jax.jacrev(jax.grad(repeated(f))),
    "reverse over reverse of checkpoint": lambda f: jax.jacrev(jax.grad(jax.checkpoint(f))),
    "third order, reverse": lambda f: jax.jacrev(jax.jacrev(jax.grad(f))),
    "third order, mixed": lambda f: jax.jacfwd(jax.jacrev(jax.jacfwd(f))),
    "grad of the value of value_and_grad": lambda f: jax.grad(lambda x: jax.value_and_grad(f)(x)[0]),
}
CHAINS = {
    "lift of lower": (lambda f: tape.grad(interop.lift(f)), jax.grad),
    "second order of lift of lower": (lambda f: tape.jacrev(tape.grad(interop.lift(f))), jax.hessian),
    "lower of lift of lower": (lambda f: jax.grad(interop.lower(interop.lift(f))), jax.grad),
    "hessian of lower of lift of lower": (lambda f: jax.hessian(interop.lower(interop.lift(f))), jax.hessian),
    "lift of grad of lower": (
        lambda f: tape.grad(lambda x: interop.lift(jax.grad(f))(x).sum()),
        lambda f: lambda x: jax.hessian(f)(x).sum(0),
    ),
}
CHAINS |= {name: (nesting, nesting) for name, nesting in NESTINGS.items()}
FORWARD = ("jvp", "linearize", "jacfwd", "hessian", "forward", "mixed")  # in the names of what needs a forward derivative
SOME = ["grad", "hessian", "jit of reverse over reverse", "third order, mixed", "lower of lift of lower"]


@functools.cache
def truth(reference, nesting, wide):
    with jax.enable_x64(wide):
        return np.asarray(CHAINS[nesting][1](reference)(jnp.asarray(X)))


def check(lowered, reference, nesting, *, wide):
    with jax.enable_x64(wide):
        found = CHAINS[nesting][0](lowered)(jnp.asarray(X))
        found = np.asarray(getattr(found, "value", found))
    expected = truth(reference, nesting, wide)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-9 if wide else 2e-4, atol=1e-9 if wide else 2e-4)


@pytest.mark.parametrize(("name", "nesting"), pairs(CASES, SOME, 5))
def test_derivatives_are_the_true_ones(name, nesting):
    function, reference = CASES[name]
    if name == "a Function" and any(word in nesting for word in FORWARD):
        with pytest.raises(TypeError, match="forward-mode"):
            check(interop.lower(function), reference, nesting, wide=True)
        return
    check(interop.lower(function), reference, nesting, wide=True)


@pytest.mark.parametrize(
    ("name", "nesting"), pairs(["gradients", "unchain", "a Function with a jvp", "a hook"], [n for n in CHAINS if n not in SOME])
)
def test_derivatives_in_every_nesting(name, nesting):
    function, reference = CASES[name]
    check(interop.lower(function), reference, nesting, wide=False)


@pytest.mark.parametrize(("name", "nesting"), pairs(SWEEPS, ["vmap of grad", "reverse over reverse of checkpoint"], 2))
def test_jax_differentiates_what_it_traces_without_lower_too(name, nesting):
    function, reference = SWEEPS[name]

    def raw(x):
        found = function(tape.Variable(x))
        return found if isinstance(found, jax.Array) else found.value

    check(raw, reference, nesting, wide=False)


# -- which of the two derivatives is asked for ------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad, jax.jacfwd], ids=["call", "jit", "grad", "jacfwd"])
def test_contract_21_a_second_sweep_of_the_tape_raises_in_a_lowered_function(transform):
    lowered = interop.lower(lambda x: tape.gradients((tape.gradients(cube(x), x) * x).sum(), x).sum())
    with pytest.raises(UnrecordedGradientError, match="create_graph=True"):
        transform(lowered)(jnp.float32(X))


@pytest.mark.parametrize(
    "transform", [jax.grad, lambda f: jax.grad(lambda x: jax.grad(f)(x).sum()), jax.jacfwd], ids=["grad", "second", "jacfwd"]
)
def test_python_sees_the_numbers_that_it_branches_on(transform):
    def branching(x):
        if float(x.sum()) < 0 and x.max().item() > 0 and x.sum() < 0 and float(tape.gradients(cube(x), x).sum()) > 0:
            return (x**3).sum() * int(x[0] + 1)
        return x.sum()

    np.testing.assert_allclose(
        transform(interop.lower(branching))(jnp.float32(X)), transform(lambda x: (x**3).sum())(jnp.float32(X)), rtol=1e-5
    )


def test_a_function_may_close_over_what_jax_differentiates_by():
    close_over = jax.grad(lambda c: interop.lower(lambda x: (x * x * c).sum())(X))
    np.testing.assert_allclose(close_over(2.0), (X * X).sum(), rtol=1e-6)
    both = jax.jit(jax.grad(lambda c: interop.lower(lambda x: x * x * c)(c)))
    np.testing.assert_allclose(both(2.0), 12.0)
    nested = jax.grad(lambda c: jax.grad(interop.lower(lambda x: x * x * c))(3.0))
    np.testing.assert_allclose(nested(2.0), 6.0)


# -- hooks -------------------------------------------------------------------------------------------------------------------------


def with_hook(fun):
    def hooked(x):
        h = x * x
        h.register_hook(lambda g: g * 10)
        return fun(x, h)

    return interop.lower(hooked)


A = jnp.array([1.0, -2.0], jnp.float32)


def test_what_is_not_recorded_beside_hooks_has_the_derivative_of_jax():
    f = with_hook(lambda x, h: (h.sum(), (tape.gradients(h.sum(), x, retain_graph=True) ** 2).sum(), jnp.sum(x.value**3)))
    swept, through_sweep, through_value = jax.jacrev(f)(A)
    np.testing.assert_allclose(swept, 20 * A)
    np.testing.assert_allclose(through_sweep, 800 * A)
    np.testing.assert_allclose(through_value, 3 * A**2)


@pytest.mark.parametrize(
    ("fun", "message"),
    [
        (lambda x, h: (tape.gradients(h.sum(), x, retain_graph=True) * h).sum(), "create_graph=True"),
        (lambda x, h: (h * x.value).sum(), r"\.detach\(\)\.value"),
    ],
    ids=["a gradient", "a value"],
)
def test_a_sweep_with_hooks_refuses_what_is_not_recorded(fun, message):
    with pytest.raises(UnrecordedGradientError, match=message):
        jax.grad(with_hook(fun))(A)
    np.testing.assert_allclose(jax.grad(with_hook(lambda x, h: (h * x.detach().value).sum()))(A), 20 * A * A)


def test_a_sweep_with_hooks_refuses_a_value_that_it_does_not_reach():
    with pytest.raises(LostGradientError, match="closes over"):
        jax.grad(lambda c: with_hook(lambda x, h: (h * c).sum())(A))(2.0)
    with pytest.raises(LostGradientError, match="closes over"):
        jax.grad(lambda c: with_hook(lambda x, h: (h * c).sum())(A * c))(2.0)


def test_hooks_in_forward_mode_scale_or_say_so():
    _, pushed = jax.jvp(with_hook(lambda x, h: h.sum()), (A,), (A,))
    np.testing.assert_allclose(pushed, 20 * (A * A).sum())
    for number, expected in ((3.0, 60.0), (1 + 2j, 20 + 40j)):
        np.testing.assert_allclose(jax.jvp(with_hook(lambda x, h: h), (number,), (number / number,))[1], expected)

    @interop.lower
    def clipped(x):
        h = x * x
        h.register_hook(lambda g: g.clip(-1, 1))
        return (h * 3).sum()

    np.testing.assert_allclose(jax.grad(clipped)(A), 2 * A)
    with pytest.raises(TapeTypeError, match=r"no forward mode.*reverse mode"):
        jax.jvp(clipped, (A,), (A,))


class Twice(tape.OpHook):
    """Doubles what every op passes back, and counts."""

    def __init__(self):
        self.recorded = 0

    def forward_preprocess(self, op, inputs):
        self.recorded += 1

    def backward_preprocess(self, op, gradients):
        return tuple(None if g is None else g * 2 for g in gradients)


@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.jit(jax.grad(f)), jax.jacfwd], ids=["grad", "jit", "jacfwd"])
def test_op_hooks_are_called(transform):
    twice = Twice()
    with tape.hooks(twice):
        np.testing.assert_allclose(transform(interop.lower(lambda x: (x * x).sum()))(A), 8 * A)
        assert twice.recorded == 2
        with pytest.raises(UnrecordedGradientError, match="create_graph=True"):
            transform(interop.lower(lambda x: (tape.gradients(cube(x), x) ** 2).sum()))(A)


def test_rules_of_the_users_own_are_used():
    f = interop.lower(lambda x: tnp.sin(x).sum())
    old = tape.rules.lookup(sin_p)
    tape.rules.defvjp(sin_p, lambda ct, out, x, **_: (ct * 5 * jax.lax.cos(x),))
    try:
        np.testing.assert_allclose(jax.grad(f)(A), 5 * jnp.cos(A), rtol=1e-6)
        np.testing.assert_allclose(jax.jacfwd(f)(A), 5 * jnp.cos(A), rtol=1e-6)
    finally:
        tape.rules.defvjp(sin_p, old.vjp)
    np.testing.assert_allclose(jax.grad(f)(A), jnp.cos(A), rtol=1e-6)


@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f)), jax.jacfwd])
def test_what_jax_does_not_differentiate_is_swept(transform):
    places = np.array([0, 0, 1])
    f = interop.lower(lambda x: (x.at[places].multiply(2 * x) ** 2).sum())
    found = transform(f)(jnp.array([1.0, -2.0, 0.5]))
    step = 1e-3
    points = np.array([1.0, -2.0, 0.5]) + step * np.stack([np.eye(3), -np.eye(3)])[:, :]

    def value(x):
        y = x.copy()
        np.multiply.at(y, places, 2 * x)
        return (y**2).sum()

    wanted = [(value(a) - value(b)) / (2 * step) for a, b in zip(*points, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("transform", [jax.grad, jax.jacfwd])
def test_what_needs_values_has_them_where_jax_knows_them(transform):
    f = interop.lower(lambda x: (tnp.unique(x) ** 2).sum() if x.sum() > 0 else x[x > 0].sum())
    np.testing.assert_allclose(transform(f)(jnp.array([1.0, 3.0, 1.0])), [2, 6, 0], rtol=1e-6)
    np.testing.assert_allclose(transform(f)(jnp.array([1.0, -3.0, 1.0])), [1, 0, 1], rtol=1e-6)


def test_rules_of_the_users_own_that_are_not_met_change_nothing():
    old = tape.rules.lookup(sin_p)
    tape.rules.defvjp(sin_p, lambda ct, out, x, **_: (ct * 5 * jax.lax.cos(x),))
    try:
        inner = interop.lower(lambda x: (tape.gradients((x**3).sum(), x) ** 2).sum())
        np.testing.assert_allclose(jax.grad(inner)(A), 36 * A**3, rtol=1e-5)
        closing = jax.grad(lambda b: interop.lower(lambda x: (x * b).sum())(A))(2.0)
        np.testing.assert_allclose(closing, A.sum(), rtol=1e-6)
        with pytest.raises(tape.errors.LostGradientError, match="closes over a value"):
            jax.grad(lambda b: interop.lower(lambda x: tnp.sin(x * b).sum())(A))(2.0)
        looped = interop.lower(lambda x: tape.lax.fori_loop(0, 2, lambda i, v: tnp.sin(v), x).sum())
        np.testing.assert_allclose(jax.grad(looped)(A), 25 * jnp.cos(A) * jnp.cos(jnp.sin(A)), rtol=1e-5)
    finally:
        tape.rules.defvjp(sin_p, old.vjp)


@pytest.mark.parametrize(
    "transform", [jax.grad, jax.jacfwd, lambda f: lambda x: jax.hessian(f)(x).sum(0)], ids=["grad", "jacfwd", "hessian"]
)
@pytest.mark.parametrize("name", ["gradients", "no_grad", "a Function with a jvp"])
def test_in_shard_map(name, transform):
    function, reference = CASES[name]
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    local = jax.shard_map(transform(interop.lower(function)), mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_allclose(jax.jit(local)(jnp.float32(X)), transform(reference)(jnp.float32(X)), rtol=2e-4)


class Sine(tape.Function):
    """A sine with derivatives in both modes of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tnp.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved
        return g * tnp.cos(x)

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved
        return t * tnp.cos(x)


@pytest.mark.parametrize("transformation", [jax.jit, jax.vmap, lambda f: jax.jit(jax.vmap(f))], ids=["jit", "vmap", "jit of vmap"])
@pytest.mark.parametrize("name", ["hook", "Function"])
def test_nothing_of_a_trace_outlives_it(name, transformation):
    """JAX's caches keep the linear map that a lowered function's derivative is; it may hold no tracer of what is around."""

    def hooked(x):
        y = tnp.sin(x)
        y.register_hook(lambda g: g * 2.0)
        return (y * y).sum()

    function = {"hook": hooked, "Function": lambda x: (Sine.apply(x) ** 2).sum()}[name]
    tracers = []

    def gradient(x):
        y = x * 3.0
        tracers.extend(map(weakref.ref, (x, y)))
        return jax.grad(interop.lower(function))(y)

    transformation(gradient)(jnp.arange(3.0))
    gc.collect()
    assert tracers
    assert all(tracer() is None for tracer in tracers)


@pytest.mark.parametrize("transform", [jax.grad, jax.jacfwd])
@pytest.mark.parametrize(
    "make",
    [
        tape.Variable,
        lambda v: tape.Variable(v, requires_grad=False),
        tnp.asarray,
        tnp.array,
        lambda v: tnp.zeros_like(tape.Variable([1.0])) + v,
        lambda v: tape.lax.cond(True, lambda: tnp.asarray(v), lambda: tnp.asarray(v)),
    ],
)
@pytest.mark.parametrize("value", [2.0, np.float32(2), np.array([2.0]), jnp.array([2.0])], ids=repr)
def test_what_a_function_makes_of_numbers_is_known_where_jax_differentiates(transform, make, value):
    def f(x):
        made = make(value)
        return (tnp.unique(x) ** 2).sum() * (3 if made.sum() > 1 else 1)  # JAX has no derivative of unique: the sweep gives it

    found = transform(interop.lower(f))(jnp.array([1.0, 3.0, 1.0]))
    np.testing.assert_allclose(found, [6, 18, 0], rtol=1e-6)
