"""Contract 21: where a second derivative would be lost, the sweep raises, and says on which line the gradient was taken."""

import contextlib
import copy
import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import LostGradientError, UnrecordedGradientError
from tape.graph import kinds, trie, writing
from tape.recording import record
from tests.agreement import is_variable, to_variables
from tests.cube import Cube
from tests.daily import NIGHTLY
from tests.mirrored import samples
from tests.mirrored.test_namespaces import functions

A = np.array([1.0, -2.0, 0.5], np.float32)


def by_gradients(x):
    return tape.gradients((x**3).sum(), x), inspect.currentframe().f_lineno


def by_backward(x):
    (x**3).sum().backward()
    return x.grad, inspect.currentframe().f_lineno - 1


def by_two_sweeps(x):
    (x**3).sum().backward(create_graph=True)
    (x**3).sum().backward()
    return x.grad, inspect.currentframe().f_lineno - 1


def by_a_long_way(x):
    """Through segments that ran before."""
    y = x
    for _ in range(3):
        y = tnp.sin(y) * y
        float(y.sum())
    return tape.gradients(y.sum(), x), inspect.currentframe().f_lineno


def by_retaining(x):
    y = tnp.sin(x)
    y.retain_grad()
    (y**3).sum().backward()
    return y.grad, inspect.currentframe().f_lineno - 1


def by_a_hook_that_records(x):
    y = tnp.sin(x)
    y.register_hook(lambda g: g * 1)
    return tape.gradients((y**3).sum(), x), inspect.currentframe().f_lineno


def by_streaming(x):
    y = (x**3).sum()
    ((_, g),) = list(tape.stream_gradients(y))
    return g, inspect.currentframe().f_lineno - 1


def by_a_compiled_step(x):
    return tape.jit(lambda v: tape.gradients((v**3).sum(), v))(x), inspect.currentframe().f_lineno


WAYS = [by_gradients, by_backward, by_two_sweeps, by_a_long_way, by_retaining, by_a_hook_that_records, by_streaming, by_a_compiled_step]

USES = {
    "itself": lambda _, g: g.sum(),
    "in a product": lambda x, g: (x * g).sum(),
    "after other ops": lambda x, g: (x * tnp.sin(2 * g)[::-1]).sum(),
    "after a look": lambda x, g: (x * (g * float(g.sum()))).sum(),
    "copied": lambda x, g: (x * copy.copy(g) * copy.deepcopy(g)).sum(),
    "captured by a loop": lambda x, g: tape.lax.scan(lambda c, _: (c * g, None), x, None, length=2)[0].sum(),
    "captured by a checkpoint": lambda x, g: tape.checkpoint(lambda c: c * g)(x).sum(),
    "lifted": lambda x, g: interop.lift(lambda c, g: (c * g).sum())(x, g),
    "an argument of a compiled function": lambda x, g: tape.jit(lambda c, g: (c * g).sum())(x, g),
    "captured by a compiled function": lambda x, g: tape.jit(lambda c: (c * g).sum())(x),
    "selected": lambda x, g: (x[:1] * tnp.unique(g)[0]).sum(),
    "written": lambda x, g: written(x, g).sum(),
    "a value of a transform": lambda x, g: (x * tape.value_and_grad(lambda v: (v**2).sum())(g)[0]).sum(),
    "a gradient of a transform": lambda x, g: (x * tape.grad(lambda v: (v**3).sum())(g)).sum(),
    "a seed": lambda x, g: (x * tape.gradients(x**2, x, grad_outputs=g, create_graph=True)).sum(),
    "padding": lambda x, g: (x * tnp.pad(tape.constant(A[:2]), (0, 1), constant_values=g[0])).sum(),
}
UNNAMED = {"a value of a transform", "a gradient of a transform"}  # these are taken anew, on the line of the use


def written(x, g):
    z = x * 1
    z[0] = g[0]
    return z


PAIRS = [(way, "in a product") for way in WAYS] + [(by_gradients, use) for use in USES if use != "in a product"]


@pytest.fixture
def _own_lines():
    """Tapes that other tests have recorded on other lines are forgotten."""
    trie._ROOTS.clear()


@pytest.mark.usefixtures("_own_lines")
@pytest.mark.parametrize(("way", "use"), PAIRS)
def test_contract_21_the_error_names_the_line_where_the_gradient_was_taken(way, use):
    for _ in range(2):  # found again on the trie, and replayed
        x = tape.Variable(A)
        g, line = way(x)
        root = USES[use](x, g)
        before = x.grad
        with pytest.raises(UnrecordedGradientError, match="create_graph=True") as raised:
            root.backward()
        assert x.grad is before
        if use not in UNNAMED:
            assert f"without recording, first at {__file__}:{line} " in str(raised.value)


# -- every route to a gradient ------------------------------------------------------------------------------------------


class Once(Cube):
    @staticmethod
    @tape.once_differentiable
    def backward(ctx, g):
        return Cube.backward(ctx, g)


class Raw(Cube):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved
        return 3 * jnp.asarray(x.value) ** 2 * g.value


class Spy(tape.OpHook):
    def __init__(self):
        self.seen = []

    def backward_postprocess(self, op, input_grads):
        self.seen.extend(g for g in input_grads if g is not None)


def cubed(x):
    return (x**3).sum()


def seen_by(register):
    """A route: what a hook sees in a sweep."""

    def route(x):
        seen = []
        handle = register(x, seen)
        cubed(x).backward()
        handle.remove()
        return seen[-1]

    return route


def seen_by_an_op_hook(x):
    spy = Spy()
    with spy:
        cubed(x).backward()
    return spy.seen[-1]


def one(x):
    return tape.constant(jnp.ones(x.shape, x.dtype))


REFUSED = {
    "a Function": lambda x: tape.gradients(Cube.apply(x).sum(), x),
    "a Function that is once differentiable": lambda x: tape.gradients(Once.apply(x).sum(), x, create_graph=True),
    "a Function in raw JAX": lambda x: tape.gradients(Raw.apply(x).sum(), x, create_graph=True),
    "a checkpoint": lambda x: tape.gradients(tape.checkpoint(cubed)(x), x),
    "outside of tape.jit": lambda x: tape.gradients(tape.jit(cubed)(x), x),
    "inside of tape.jit": lambda x: tape.jit(lambda v: tape.gradients(cubed(v), v))(x),
    "a stream": lambda x: next(iter(tape.stream_gradients(cubed(x))))[1],
    "a stream in tape.jit": lambda x: tape.jit(lambda v: next(iter(tape.stream_gradients(cubed(v), inputs=[v])))[1])(x),
    "a hook": seen_by(lambda x, seen: x.register_hook(seen.append)),
    "a hook after accumulation": seen_by(lambda x, seen: x.register_post_accumulate_grad_hook(lambda v: seen.append(v.grad))),
    "a hook over several": seen_by(lambda x, seen: tape.register_multi_grad_hook([x], seen.extend)),
    "an op hook": seen_by_an_op_hook,
    "a loop": lambda x: tape.gradients(tape.lax.scan(lambda c, _: (c * x, None), one(x), None, length=3)[0].sum(), x),
    "a lifted function": lambda x: tape.gradients(interop.lift(lambda a: (a**3).sum())(x), x),
}
RECORDED = {
    "create_graph": lambda x: tape.gradients(cubed(x), x, create_graph=True),
    "a Function": lambda x: tape.gradients(Cube.apply(x).sum(), x, create_graph=True),
    "a checkpoint": lambda x: tape.gradients(tape.checkpoint(cubed)(x), x, create_graph=True),
    "outside of tape.jit": lambda x: tape.gradients(tape.jit(cubed)(x), x, create_graph=True),
    "inside of tape.jit": lambda x: tape.jit(lambda v: tape.gradients(cubed(v), v, create_graph=True))(x),
    "grad": lambda x: tape.grad(cubed)(x),
    "grad of a Function": lambda x: tape.grad(lambda v: Cube.apply(v).sum())(x),
    "vjp": lambda x: tape.vjp(lambda v: v**3, x)[1](one(x))[0],
    "jvp": lambda x: tape.jvp(lambda v: v**3, (x,), (one(x),))[1],
    "linearize": lambda x: tape.linearize(lambda v: v**3, x)[1](one(x)),
    "jacrev": lambda x: tape.jacrev(lambda v: v**3)(x).sum(0),
    "jacfwd": lambda x: tape.jacfwd(lambda v: v**3)(x).sum(0),
    "lifted": lambda x: interop.lift(jax.grad(lambda a: (a**3).sum()))(x),
}
AT_A_CONSTANT = {
    "grad": lambda x: tape.grad(cubed)(x.detach()),
    "value_and_grad": lambda x: tape.value_and_grad(cubed)(x.detach())[1],
    "jacrev": lambda x: tape.jacrev(lambda v: v**3)(x.detach()).sum(0),
    "jacfwd": lambda x: tape.jacfwd(lambda v: v**3)(x.detach()).sum(0),
    "vjp": lambda x: tape.vjp(lambda v: v**3, x.detach())[1](np.ones_like(A))[0],
    "jvp": lambda x: tape.jvp(lambda v: v**3, (x.detach(),), (np.ones_like(A),))[1],
    "linearize": lambda x: tape.linearize(lambda v: v**3, x.detach())[1](np.ones_like(A)),
    "hvp": lambda x: tape.hvp(lambda v: (v**4).sum() / 4, (x.detach(),), (np.ones_like(A),)),
    "detach": lambda x: tape.gradients(cubed(x), x).detach(),
    "arrays": lambda x: tape.constant(tape.grad(cubed)(x.value)),
}


def slope_after(route, x):
    """The gradient by x of sum(x * g), where g comes by a route; the gradient itself is what it is to be."""
    g = route(x)
    x.grad = None
    np.testing.assert_allclose(g.numpy(), 3 * A**2, rtol=1e-5)
    return tape.gradients((x * g).sum(), x).numpy()


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("name", REFUSED)
def test_contract_21_a_gradient_taken_without_recording_is_refused_on_every_route(name):
    for _ in range(2):
        x = tape.Variable(A)
        with pytest.raises(UnrecordedGradientError):
            slope_after(REFUSED[name], x)
        assert x.grad is None


@pytest.mark.usefixtures("tier")
def test_contract_21_a_cotangent_taken_without_recording_is_refused():
    x = tape.Variable(A)
    pull = tape.vjp(lambda v: v**2, x)[1]
    (g,) = pull(tape.gradients((x**2).sum(), x))
    with pytest.raises(UnrecordedGradientError):
        (x * g).sum().backward()
    (g,) = pull(tape.gradients(x.sum(), x))  # ones, whatever x is
    np.testing.assert_allclose(tape.gradients((x * g).sum(), x).numpy(), 4 * A, rtol=1e-6)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("name", RECORDED)
def test_contract_20_a_recorded_gradient_is_differentiated_on_every_route(name):
    np.testing.assert_allclose(slope_after(RECORDED[name], tape.Variable(A)), 9 * A**2, rtol=1e-5)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("name", AT_A_CONSTANT)
def test_contract_21_a_gradient_at_a_constant_is_a_constant(name):
    np.testing.assert_allclose(slope_after(AT_A_CONSTANT[name], tape.Variable(A)), 3 * A**2, rtol=1e-5)


PRODUCTS = {
    "vjp": lambda x, t: tape.vjp(lambda v: v**3, x)[1](t)[0],
    "jvp": lambda x, t: tape.jvp(lambda v: v**3, (x,), (t,))[1],
    "linearize": lambda x, t: tape.linearize(lambda v: v**3, x)[1](t),
    "hvp": lambda x, t: tape.hvp(lambda v: (v**4).sum() / 4, (x,), (t,)),
}


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("at", [np.asarray, tape.constant, tape.Variable], ids=["array", "constant", "Variable"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_contract_20_a_product_along_a_variable_is_differentiated_by_it(name, at):
    """It is linear in its tangent or cotangent, wherever it is taken."""
    t = tape.Variable(np.ones_like(A))
    PRODUCTS[name](at(A), t).sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), 3 * A**2, rtol=1e-5)


@pytest.mark.parametrize("at", [np.asarray, tape.constant], ids=["array", "constant"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_contract_21_a_product_along_an_unrecorded_gradient_remembers_it(name, at):
    x = tape.Variable(A)
    product = PRODUCTS[name](at(A), tape.gradients((x**2).sum(), x))
    with pytest.raises(UnrecordedGradientError):
        (x * product).sum().backward()


def test_contract_21_jax_differentiates_on_what_is_a_constant_of_the_tape():
    """A transform at a constant whose value a transformation of JAX traces."""
    value = jax.grad(lambda a: tape.value_and_grad(cubed)(tape.constant(a))[0].value)(A)
    np.testing.assert_allclose(value, 3 * A**2, rtol=1e-5)
    slope = jax.grad(lambda a: tape.grad(cubed)(tape.constant(a)).value.sum())(A)
    np.testing.assert_allclose(slope, 6 * A, rtol=1e-5)
    rows = jax.grad(lambda a: tape.jacfwd(lambda v: v**3)(tape.constant(a)).value.sum())(A)
    np.testing.assert_allclose(rows, 6 * A, rtol=1e-5)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("way", WAYS)
def test_contract_21_the_repairs_work(way):
    x = tape.Variable(A)
    g, _ = way(x)
    value = g.numpy()
    x.grad = None
    (x * g.detach()).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), value)


# -- hooks --------------------------------------------------------------------------------------------------------------


class Through(tape.OpHook):
    """An op hook that has a function make what it returns."""

    def __init__(self, hook):
        self.hook = hook

    def backward_postprocess(self, op, input_grads):
        return tuple(None if g is None else self.hook(g) for g in input_grads)


RAW = {
    "value": lambda g: jnp.clip(g.value, -5, 5),
    "numpy": lambda g: np.clip(np.asarray(g.value), -5, 5),
}


def penalty(x, hook, *, by_op=False):
    """The gradient by x of the sum of the gradient of sum(x**4), a hook on the way."""
    y = x * x
    if not by_op:
        y.register_hook(hook)
    z = (y * y).sum()
    with Through(hook) if by_op else contextlib.nullcontext():
        g = tape.gradients(z, x, create_graph=True)
    return tape.gradients(g.sum(), x)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("by_op", [False, True])
@pytest.mark.parametrize("kind", ["value", "numpy"])
def test_contract_21_a_hook_that_returns_an_array_of_its_own_making_cuts_and_is_told_so(kind, by_op):
    with pytest.raises(UnrecordedGradientError, match=r"returned an array that it computed outside the tape.*tape\.constant"):
        penalty(tape.Variable(A), RAW[kind], by_op=by_op)


@pytest.mark.usefixtures("tier")
def test_contract_21_a_hook_on_the_tape_or_with_a_constant_does_not_cut():
    np.testing.assert_allclose(penalty(tape.Variable(A), lambda g: g * 1).numpy(), 12 * A**2, rtol=1e-5)
    for constant in (lambda _: jnp.ones(3), lambda g: tape.constant(g.value * 0 + 1), lambda _: np.ones(3, np.float32)):
        np.testing.assert_allclose(penalty(tape.Variable(A), constant).numpy(), 2, rtol=1e-6)
    x = tape.Variable(A)
    x.register_hook(RAW["value"])
    (x * x).sum().backward()  # the first derivative is what the hook says
    np.testing.assert_allclose(x.grad.numpy(), np.clip(2 * A, -5, 5))
    with pytest.raises(UnrecordedGradientError):
        (x * x.grad).sum().backward()


def test_contract_21_raw_functions_and_values_refuse_what_they_would_make_a_constant():
    x = tape.Variable(A)
    g, _ = by_gradients(x)
    with pytest.raises(LostGradientError, match="gradient that was taken without recording"):
        interop.lift(lambda c: (c * g.value).sum())(x)
    with pytest.raises(LostGradientError, match="gradient that was taken without recording"):
        tnp.arange(g[0] * 0, 3.0)
    constant = g.detach()
    interop.lift(lambda c: (c * constant.value).sum())(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), 3 * A**2, rtol=1e-6)


# -- every function of the namespaces -----------------------------------------------------------------------------------


def unrecorded(tree):
    return jax.tree.map(
        lambda x: record.leaf(x, unrecorded=True) if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact) else x, tree
    )


def forgotten(source, names=None):
    """Functions (of the given names) whose results depend on an unrecorded gradient without knowing it, where they would require grad."""
    for name in names or functions(source):
        if samples.SAMPLES.get(source, {}).get(name, ()) is None:
            continue
        theirs = getattr(importlib.import_module(source), name)
        ours = getattr(importlib.import_module(source.replace("jax", "tape", 1)), name)
        try:
            args, options, _ = samples.fitting(source, name, theirs)
            differentiable = jax.tree.leaves(ours(*to_variables(args), **options), is_leaf=is_variable)
        except (AssertionError, LostGradientError):
            continue  # the samples have none for it; or it refuses both
        try:
            found = jax.tree.leaves(ours(*unrecorded(args), **options), is_leaf=is_variable)
        except LostGradientError:
            continue
        pairs = [(v, w) for v, w in zip(differentiable, found, strict=True) if is_variable(v)]
        if any(v.requires_grad and not w._place.kind.unrecorded for v, w in pairs):
            yield name


@pytest.mark.parametrize("source", ["jax.numpy", "jax.nn"])
def test_contract_21_no_function_forgets_that_a_gradient_was_not_recorded(source):
    step = 1 if NIGHTLY else 4
    assert list(forgotten(source, list(functions(source))[::step])) == []


# -- the checker --------------------------------------------------------------------------------------------------------


def softplus_whose_residual_is_cut():
    """First derivative right; the residual is a constant of the forward, so the second derivative is zero."""

    @jax.custom_vjp
    def softplus(x):
        return jnp.logaddexp(x, 0.0)

    def forward(x):
        return softplus(x), jax.lax.stop_gradient(jax.nn.sigmoid(x))

    softplus.defvjp(forward, lambda slope, ct: (ct * slope,))
    return softplus


class Softplus(tape.Function):
    """The same as a Function: what the forward computed is kept."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(tape.nn.sigmoid(x))
        return tnp.logaddexp(x, 0.0)

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved
        return slope.detach() * g


@pytest.mark.parametrize("fun", [softplus_whose_residual_is_cut(), Softplus.apply], ids=["custom_vjp", "Function"])
def test_a_residual_that_cuts_the_second_derivative_is_found_by_the_checker(fun):
    tape.testing.check_gradients(fun, A, order=1)
    with pytest.raises(tape.testing.GradientMismatch, match="right at first order, zero everywhere"):
        tape.testing.check_gradients(fun, A)


# -- planted bugs -------------------------------------------------------------------------------------------------------


def test_planted_functions_that_forget_are_noticed(monkeypatch):
    names = ["sin", "unique", "median"]
    monkeypatch.setattr(
        f"{__name__}.unrecorded", lambda tree: jax.tree.map(lambda x: tape.constant(x) if isinstance(x, jax.Array) else x, tree)
    )
    assert list(forgotten("jax.numpy", names)) == names


def test_planted_a_wrong_line_is_noticed(monkeypatch):
    trie._ROOTS.clear()
    try:
        for module in (trie, writing):
            monkeypatch.setattr(module, "user_line", lambda: ("elsewhere.py", 1))
        with pytest.raises(AssertionError, match=r"elsewhere\.py"):
            test_contract_21_the_error_names_the_line_where_the_gradient_was_taken(by_gradients, "in a product")
    finally:
        trie._ROOTS.clear()


def test_messages_without_a_line_are_sentences_too():
    assert "without recording (or" in kinds.why_unrecorded(unrecorded=True)
    assert kinds.why_unrecorded("because") == "because"
    assert kinds.why_unrecorded("because", ("a.py", 3)) == "because (it was first made at a.py:3)"
