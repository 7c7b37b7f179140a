"""Contract 26: what the forward of a ``tape.Function`` reads without being given it is refused, for its gradient would be lost silently."""

import contextlib

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import tape
import tape.lax
import tape.numpy as tnp
from tape.errors import LostGradientError
from tape.testing import strategies
from tests.tiers import by_xla

A, B = np.array([1.0, -2.0, 0.5], np.float32), np.array([3.0, 0.25, -1.0], np.float32)
W = tape.Variable(B, name="weight")


def make(forward, backward=lambda ctx, g: g):
    return type("Made", (tape.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


class Holder:
    """What a forward may hold Variables by."""

    weight = W


def after_a_look(ctx, x):
    h = x * W
    float(h.sum())
    return h + 1


def before_a_look(ctx, x):
    float(x.sum())
    return x * W


def recorded(ctx, x):
    with tape.enable_grad():
        return x * W


def scanned(ctx, x):
    return tape.lax.scan(lambda c, r: (c * W, r), x, x)[0]


def by_another(ctx, x):
    return make(lambda ctx, x: x * W).apply(x) + 1


def by_another_recorded(ctx, x):
    with tape.enable_grad():
        return make(lambda ctx, x, w: x * w).apply(x, W)


READ = {
    "a closure": lambda ctx, x: x * W,
    "an attribute": lambda ctx, x: x * Holder.weight,
    "a method": lambda ctx, x: x.at[0].set(W[1]),
    "through other ops": lambda ctx, x: tnp.exp(x) + tnp.tanh(tnp.sin(W * 2)).sum(),
    "the value looked at": after_a_look,
    "an argument looked at": before_a_look,
    "under enable_grad": recorded,
    "in a callable": scanned,
    "in another Function": by_another,
    "as the argument of another Function": by_another_recorded,
    "the output itself": lambda ctx, x: (x * 2, W),
    "in the second output": lambda ctx, x: (x * 2, (x * W).sum()),
    "through stop_gradient of something else": lambda ctx, x: tape.stop_gradient(W) * W + x,
    "by one op without a gradient and by another one": lambda ctx, x: x * tnp.sign(W) + tnp.sin(W),
    "before an op without a gradient for something else": lambda ctx, x: W * tnp.floor(x),
}


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("given", ["leaf", "result", "constant"])
@pytest.mark.parametrize("name", READ)
def test_contract_26_a_variable_that_is_read_and_not_given_is_refused(name, given):
    """At every meeting of the structure, before anything is recorded; other arguments keep their gradients."""
    refused = make(READ[name])
    for _ in range(3):
        x = tape.Variable(A)
        y = {"leaf": x, "result": x * 2, "constant": x.detach()}[given]
        with pytest.raises(
            LostGradientError, match=r"Made\.forward reads a Variable .*(shape \(3,\)|shape \(\)), dtype float32\).*Made\.apply"
        ):
            refused.apply(y)
        assert (x * 2).requires_grad  # the mode is as it was
        (x * 3).sum().backward()
        np.testing.assert_array_equal(x.grad.value, 3 + 0 * A)


def test_contract_26_the_message_names_the_variable_and_the_line():
    def forward(ctx, x):
        return tnp.arctan2(x, W)  # the line is that of the first recording of a structure

    line = forward.__code__.co_firstlineno + 1
    for _ in range(2):
        with pytest.raises(
            LostGradientError, match=rf"'weight' that requires grad \(shape \(3,\), dtype float32\) at .*test_reads\.py:{line} "
        ):
            make(forward).apply(tape.Variable(A))
    gradient = tape.gradients((W * W).sum(), W)
    with pytest.raises(LostGradientError, match="whose own derivative was not recorded"):
        make(lambda ctx, x: x * gradient).apply(tape.Variable(A))


@pytest.mark.parametrize("held", ["leaf", "pending", "looked at"])
def test_contract_26_a_result_from_outside_is_refused(held):
    for _ in range(3):
        h = W if held == "leaf" else W * 2
        if held == "looked at":
            float(h.sum())
        x = tape.Variable(A)
        for refused in (lambda ctx, x, h=h: x * h, lambda ctx, x, h=h: h, lambda ctx, x, h=h: x * h[0]):
            with pytest.raises(LostGradientError, match=r"shape \(3,\)"):
                make(refused).apply(x)


def leaf_inside(ctx, x):
    v = tape.Variable(x.value)
    with tape.enable_grad():
        slope = tape.gradients((v * v).sum(), v)
    return slope + x * 0


def pending_leaf_inside(ctx, x):
    v = (x * 2).detach().requires_grad_()
    with tape.enable_grad():
        slope = tape.gradients((v * v).sum(), v)
    return slope * x


def not_recorded(ctx, x):
    with tape.no_grad():
        h = W * 2
    return x * h


def in_a_look(ctx, x):
    return x * 2 if float(W[0]) > 0 else x


def unchained(ctx, x):
    h = W * 2
    h.unchain()
    return x * h


def unchained_recorded(ctx, x):
    with tape.enable_grad():
        h = W * 2
        h.unchain()
    return x * h


def cut_off(ctx, x):
    with tape.enable_grad():
        h = tnp.sin(W * 2)
        k = tnp.tanh(h)
        h.unchain()
    return x * k


def rebound(ctx, x):
    h = x * 1
    h[0] = 5.0
    return h


def constant_output(ctx, x):
    h = W * x
    ctx.mark_non_differentiable(h)
    return x * 2, h


FLAT = {
    "sign": lambda: tnp.sign(W),
    "floor": lambda: tnp.floor(tnp.exp(W) * 2),
    "round": lambda: tnp.sin(tnp.round(W)),
    "comparison": lambda: tnp.where(W > 0, 1.0, 2.0),
    "cast": lambda: W.astype(int).astype(np.float32),
    "argsort": lambda: tnp.argsort(W) * 1.0,
    "quotient": lambda: W // 2.0,
    "scan": lambda: tape.lax.scan(lambda c, r: (c + tnp.sign(r), r > 0), 0.0, W)[0],
    "detach": lambda: tnp.cos(W.detach()),
    "stop_gradient": lambda: tape.stop_gradient(W * 2),
}

READ_RIGHTLY = {
    "detached": lambda ctx, x: x * W.detach(),
    "detached later": lambda ctx, x: x * (W * 2).detach(),
    "stopped": lambda ctx, x: x * tape.stop_gradient(W),
    "by its value": lambda ctx, x: x * W.value,
    "under no_grad": not_recorded,
    "looked at": in_a_look,
    "compared": lambda ctx, x: tnp.where(W > 0, x, 2.0),
    "kept, not used": lambda ctx, x: ctx.save_for_backward(W) or x * 2,
    "unchained": unchained,
    "unchained under enable_grad": unchained_recorded,
    "computed of what was unchained": cut_off,
    "in an output that is a constant": constant_output,
    "only its shape": lambda ctx, x: x * W.size,
    "nothing": lambda ctx, x: x,
    "a transform inside": lambda ctx, x: tape.grad(lambda v: (v * v).sum())(x),
    "a leaf made inside": leaf_inside,
    "a pending leaf made inside": pending_leaf_inside,
    "an index assigned": rebound,
    "another Function": lambda ctx, x: make(lambda ctx, x: x * x).apply(x),
    **{name: lambda ctx, x, flat=flat: x * flat() for name, flat in FLAT.items()},
}


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("given", ["leaf", "result", "constant"])
@pytest.mark.parametrize("name", READ_RIGHTLY)
def test_contract_26_constants_and_leaves_of_its_own_are_no_alarm(name, given):
    def ones(ctx, g, *rest):
        return g

    for _ in range(3):
        x = tape.Variable(A)
        y = {"leaf": x, "result": x * 2, "constant": x.detach()}[given]
        out = make(READ_RIGHTLY[name], ones).apply(y)
        out = out[0] if isinstance(out, tuple) else out
        assert out.requires_grad == (given != "constant")
        if given != "constant":
            out.backward(A)
            np.testing.assert_array_equal(x.grad.value, A * (2 if given == "result" else 1))


@pytest.mark.parametrize("name", ["a closure", "through other ops", "under enable_grad", "in the second output"])
def test_contract_26_in_compiled_functions_and_under_jax(name):
    refused = make(READ[name])

    def f(x):
        out = refused.apply(x)
        return out[0].sum() if isinstance(out, tuple) else out.sum()

    x = tape.Variable(A)
    for attempt in (
        lambda: tape.jit(f)(x),
        lambda: tape.jit(lambda x: tape.gradients(f(x), x))(x),
        lambda: tape.gradients(tape.checkpoint(f)(x), x),
        lambda: tape.grad(f)(A),
        lambda: tape.jacrev(f)(A),
        lambda: jax.grad(lambda a: f(tape.constant(a)).value)(A),
        lambda: jax.jit(lambda a: f(tape.constant(a)).value)(A),
        lambda: jax.vmap(lambda a: f(tape.constant(a)).value)(np.stack([A, B])),
    ):
        with pytest.raises(LostGradientError, match=r"Made\.forward reads a Variable"):
            attempt()


@pytest.mark.parametrize("flat", FLAT.values(), ids=FLAT)
@by_xla()
def test_contract_26_what_no_gradient_flows_through_may_be_read_in_traced_functions(flat):
    expected = jax.jit(lambda: flat().value)()
    scaled = make(lambda ctx, x: ctx.save_for_backward(flat()) or x * ctx.saved[0], lambda ctx, g: g * ctx.saved[0])
    for call in (
        tape.jit(scaled.apply),
        tape.checkpoint(scaled.apply),
        lambda x: tape.lax.scan(lambda c, _: (scaled.apply(c), None), x, None, length=1)[0],
    ):
        x = tape.Variable(A)
        call(x).sum().backward()
        np.testing.assert_array_equal(x.grad.value, expected + 0 * A)
        assert W.grad is None


def test_contract_26_a_captured_variable_may_be_given_in_a_compiled_function():
    times = make(lambda ctx, x, w: ctx.save_for_backward(x, w) or x * w, lambda ctx, g: (g * ctx.saved[1], g * ctx.saved[0]))
    w = tape.Variable(B)
    for _ in range(3):
        x = tape.Variable(A)
        found = tape.gradients(tape.jit(lambda x: times.apply(x, w).sum())(x), (x, w))
        for g, expected in zip(found, (B, A), strict=True):
            np.testing.assert_array_equal(g.value, expected)


@pytest.mark.parametrize("around", [tape.jit, lambda f: tape.eager()(f), lambda f: f], ids=["jit", "eager", "recorded"])
def test_a_forward_of_many_paths_is_followed_once_per_value(around):
    def doubled(ctx, x):
        for _ in range(60):
            x = x + x
        return x

    x = tape.Variable(A)
    around(lambda: make(doubled, lambda ctx, g: g * 2.0**60).apply(x).sum().backward())()
    assert x.grad.numpy().tolist() == [2.0**60] * 3


def test_a_forward_that_is_not_differentiated_may_read_anything():
    with tape.no_grad():
        np.testing.assert_array_equal(make(READ["a closure"]).apply(tape.Variable(A)).value, A * B)


@settings(max_examples=max(settings.default.max_examples // 4, 25), suppress_health_check=[HealthCheck.too_slow])
@given(program=strategies.programs(max_operations=6), chosen=st.integers(0, 7), eagerly=st.booleans(), pending=st.booleans())
def test_contract_26_random_forwards_lose_no_gradient(program, chosen, eagerly, pending):
    """Some leaves of a program are given and the others captured: where JAX finds a gradient for one of these, it is refused."""
    arrays = program.arguments
    captured = [i for i in range(len(arrays)) if chosen + 1 >> i & 1]
    slopes = jax.grad(lambda *a: (program.reference(*a) ** 2).sum().real, argnums=tuple(range(len(arrays))))(*arrays)
    lost = any(np.any(np.asarray(slopes[i]) != 0) for i in captured)
    event(f"lost: {lost}, captured: {len(captured)}")

    def forward(ctx, *given):
        it = iter(given)
        return program(*[v if i in captured else next(it) for i, v in enumerate(leaves)])

    for _ in range(2):
        with tape.eager() if eagerly else contextlib.nullcontext():
            leaves = [tape.Variable(x) * 1 if pending else tape.Variable(x) for x in arrays]
            given = [v for i, v in enumerate(leaves) if i not in captured]
            refused = False
            try:
                make(forward).apply(*given)
            except LostGradientError:
                refused = True
        assert refused or not lost
        assert captured or not refused


def test_steps_of_the_tape_in_a_forward_are_looked_through():
    times, sine = tape.jit(lambda x, y: x * y), tape.jit(tnp.sin)
    given = make(lambda ctx, x, y: sine(times(x, y)), lambda ctx, g: (g * 2, g * 3))
    captures = make(lambda ctx, x, y: times(x, W) * y, lambda ctx, g: (g, g))
    for x in (tape.Variable(A), tape.Variable(A) * 1, W):
        y = tape.Variable(B)
        gradients = tape.gradients(given.apply(x, y).sum(), [x, y])
        assert [g[0].item() for g in gradients] == [2, 3]
        np.testing.assert_allclose(given.apply(x, y).numpy(), np.sin(x.numpy() * B), rtol=1e-6)
        if x is not W:
            with pytest.raises(LostGradientError, match="weight"):
                captures.apply(x, y)
