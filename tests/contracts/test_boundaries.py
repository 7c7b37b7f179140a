"""Contracts 23 to 30: modes, hooks, custom ops, and what crosses between the tape and the world around it."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import LostGradientError, TapeRuntimeError, TapeTypeError, TapeValueError
from tests.agreement import close
from tests.contracts.counting import counted

A = np.array([1.0, -2.0, 0.5], np.float32)


# -- 23 ----------------------------------------------------------------------------------------------------------------------


def recording():
    return (tape.Variable(1.0) * 2).requires_grad


def test_contract_23_modes_nest_and_restore():
    assert recording()
    with tape.no_grad():
        assert not recording()
        with tape.enable_grad():
            assert recording()
            with tape.set_grad_enabled(False):
                assert not recording()
            assert recording()
        assert not recording()
    assert recording()


def test_contract_23_modes_are_restored_on_exceptions():
    mode = tape.no_grad()
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), mode, mode:
            1 / 0
        assert recording()
    with pytest.raises(ZeroDivisionError), tape.eager():
        1 / 0
    tape.stats().reset()
    tape.Variable(1.0) * 2
    assert tape.stats().executed == 0


def test_contract_23_decorators_with_their_arguments():
    @tape.set_grad_enabled(False)
    def off(depth):
        assert not recording()
        return on(depth - 1) if depth else recording()

    @tape.set_grad_enabled(True)
    def on(depth):
        assert recording()
        return off(depth - 1) if depth else recording()

    assert off(4) is False
    assert off(3) is True
    assert recording()
    assert off.__name__ == "off"
    with tape.no_grad():
        on(2)
        assert not recording()


def test_contract_23_modes_belong_to_their_thread():
    """Also one mode object in two threads at once, entered and left in turns."""
    mode = tape.no_grad()
    entered, leave = threading.Event(), threading.Event()
    seen = []

    def other():
        seen.append(recording())
        with tape.no_grad():
            with mode:
                entered.set()
                leave.wait(10)
            seen.append(recording())
        seen.append(recording())

    thread = threading.Thread(target=other)
    with mode:
        thread.start()
        entered.wait(10)
    assert recording()
    leave.set()
    thread.join()
    assert seen == [True, False, True]
    assert recording()


@pytest.mark.usefixtures("tier")
def test_contract_23_results_made_without_recording():
    x = tape.Variable(3.0)
    with tape.no_grad():
        y = x * x
    assert not y.requires_grad
    assert y.is_leaf
    with pytest.raises(TapeValueError, match="no_grad"):
        y.backward()
    (x * y).backward()
    close(x.grad, 9)


def test_contract_23_no_grad_under_jax_is_stop_gradient():
    @interop.lower
    def f(x):
        with tape.no_grad():
            y = x * x
        return x * y + x.detach() * x

    assert float(jax.grad(f)(3.0)) == 9 + 3

    def raw(x):
        v = tape.Variable(x)
        with tape.no_grad():
            y = v * v
        return (v * y + tape.stop_gradient(v) * v).value

    assert float(jax.grad(raw)(3.0)) == 9 + 3
    assert float(jax.jit(jax.grad(raw))(3.0)) == 9 + 3


# -- 24 ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_contract_24_hooks_see_the_total_once_in_order():
    x = tape.Variable(2.0)
    h = x * 1
    seen = []
    h.register_hook(lambda g: seen.append(("first", float(g))))
    h.register_hook(lambda g: seen.append(("second", float(g))) or g * 10)
    h.register_hook(lambda g: seen.append(("third", float(g))))
    x.register_hook(lambda g: seen.append(("leaf", float(g))))
    (h * h + h * 3 + h).backward()
    assert seen == [("first", 8.0), ("second", 8.0), ("third", 80.0), ("leaf", 80.0)]
    close(x.grad, 80)


@pytest.mark.usefixtures("tier")
def test_contract_24_remove_works_during_a_sweep():
    x = tape.Variable(2.0)
    h = x * 3
    seen = []
    handles = {}
    handles["a"] = h.register_hook(lambda g: (seen.append("a"), handles["a"].remove(), handles["b"].remove())[0])
    handles["b"] = h.register_hook(lambda g: seen.append("b"))
    handles["x"] = x.register_hook(lambda g: seen.append("x") or g * 2)
    h.register_hook(lambda g: handles["x"].remove())
    h.backward(retain_graph=True)
    assert seen == ["a"]
    h.backward()
    assert seen == ["a"]
    handles["a"].remove()
    close(x.grad, 6)


@pytest.mark.usefixtures("tier")
def test_contract_24_post_accumulate_hooks_run_when_grad_is_set():
    x, w = tape.Variable(2.0), tape.Variable(5.0)
    seen = []
    handle = x.register_post_accumulate_grad_hook(lambda v: seen.append((v is x, float(v.grad), w.grad is not None)))
    (x * w).backward()
    (x * x).backward()
    handle.remove()
    (x * x).backward()
    assert seen == [(True, 5.0, True), (True, 9.0, True)]
    tape.gradients(x * w, x)
    assert len(seen) == 2


@pytest.mark.usefixtures("tier")
def test_contract_24_hooks_may_sweep_and_record():
    x = tape.Variable(2.0)
    h = x * x
    inner = []
    h.register_hook(lambda g: inner.append(float(tape.grad(lambda v: v**3)(2.0))) or g * tape.constant(2.0))
    h.backward()
    assert inner == [12.0]
    close(x.grad, 8)


# -- 25 ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("looked", [True, False])
def test_contract_25_detach_and_unchain(looked):
    x = tape.Variable(3.0)
    h = x * x
    if looked:
        float(h)
    for d in (h.detach(), tape.stop_gradient(h)):
        assert not d.requires_grad
        close(tape.gradients(d * x, x, retain_graph=True), 9)
    h.unchain()
    assert h.is_leaf
    assert h.requires_grad
    (h * x).backward()
    close(x.grad, 9)
    close(h.grad, 3)


@pytest.mark.usefixtures("tier")
def test_contract_25_truncated_backpropagation_through_time():
    x = tape.Variable(2.0)
    h = x * 1
    for _ in range(3):
        h = h * x
    h.unchain_backward()
    h = h * x
    h.backward()
    close(x.grad, 16)


# -- 26 ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_contract_26_functions_track_pytrees_and_keywords():
    class Affine(tape.Function):
        @staticmethod
        def forward(ctx, x, params, *, scale, name="affine"):
            ctx.save_for_backward({"x": x, "w": params["w"]}, scale)
            ctx.name = name
            return (x * params["w"] + params["b"]) * scale

        @staticmethod
        def backward(ctx, g):
            kept, scale = ctx.saved
            x, w = kept["x"], kept["w"]
            return g * w * scale, g * scale, g * x * scale, g * (x * w)

    x, w, b, s = tape.Variable(2.0), tape.Variable(3.0), tape.Variable(5.0), tape.Variable(7.0)
    y = Affine.apply(x, {"w": w, "b": b}, scale=s)
    close(y, 77)
    y.backward()
    for v, expected in ((x, 21.0), (b, 7.0), (w, 14.0), (s, 6.0)):
        close(v.grad, expected)


@pytest.mark.usefixtures("tier")
def test_contract_26_numpy_on_the_left_records():
    x = tape.Variable(A)
    for y in (A * x, A + x, np.float32(2) * x, A - x, np.multiply(A, x), np.sin(x)):
        assert isinstance(y, tape.Variable)
        assert y.requires_grad
    apply, calls = counted()
    close(tape.gradients((A * apply(x)).sum(), x), A)
    assert len(calls) == 1


@pytest.mark.usefixtures("tier")
def test_contract_26_a_function_of_one_input_twice():
    class Times(tape.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved
            return g * y, g * x

    x = tape.Variable(3.0)
    y = Times.apply(x, x)
    x.value = 100.0
    y.backward()
    close(x.grad, 6)


def test_contract_26_jax_uses_the_backward_of_a_function():
    class Odd(tape.Function):
        @staticmethod
        def forward(ctx, x):
            y = tnp.exp(x)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved[0] * 10

    f = interop.lower(lambda x: Odd.apply(x))
    np.testing.assert_allclose(jax.grad(f)(0.5), 10 * np.exp(0.5), rtol=1e-6)

    def raw(x):
        return Odd.apply(tape.constant(x)).value

    np.testing.assert_allclose(jax.jit(jax.grad(raw))(0.5), 10 * np.exp(0.5), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(jax.grad(raw))(0.5), 100 * np.exp(0.5), rtol=1e-6)  # the saved output is Odd's, with its derivative
    x = tape.Variable(0.5)
    np.testing.assert_allclose(float(tape.gradients(tape.gradients(Odd.apply(x), x, create_graph=True), x)), 100 * np.exp(0.5), rtol=1e-6)


def test_contract_26_jax_wants_every_gradient_of_a_function():
    """JAX does not say which inputs it differentiates by, and keeps no tracer of ours."""

    class Times(tape.Function):
        @staticmethod
        def forward(ctx, x, y, n):
            ctx.save_for_backward(x, y)
            return x * y * n

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved
            return g * y if ctx.needs_input_grad[0] else None, g * x if ctx.needs_input_grad[1] else None

    def raw(x, y):
        return Times.apply(tape.constant(x), y, 1).value

    with jax.checking_leaks():
        assert float(jax.jit(jax.grad(raw))(3.0, jnp.float32(5.0))) == 5.0
    assert float(jax.grad(raw, argnums=1)(3.0, 5.0)) == 3.0


# -- 27 ----------------------------------------------------------------------------------------------------------------------


def test_contract_27_a_loss_scale_is_a_seed():
    x = tape.Variable(np.float16(2e-6))
    loss = (x * np.float16(1.0)).astype("float16")
    loss.backward(1024.0)
    assert float(x.grad) == 1024.0


# -- 28 ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transformation", [jax.jit, jax.vmap], ids=["jit", "vmap"])
def test_contract_28_variables_come_out_as_constants(transformation):
    x = tape.Variable(A)
    y = transformation(lambda v: v * 2)(x)
    assert isinstance(y, tape.Variable)
    close(y, 2 * A)
    assert not y.requires_grad
    with pytest.raises(TapeValueError, match="does not require grad"):
        y.sum().backward()


def test_contract_28_raw_jax_on_a_variable_is_refused():
    x = tape.Variable(A)
    for f in (jnp.sin, jax.jit(jnp.sin), lambda v: jnp.add(v, 1), jax.vmap(jnp.sin)):
        with pytest.raises(LostGradientError):
            f(x)
    with pytest.raises(
        (LostGradientError, TypeError, ValueError, TapeRuntimeError)
    ):  # JAX itself refuses, or we do when it asks for an array
        jax.lax.mul(x, x)
    close(tape.constant(jnp.sin(x.detach())), np.sin(A))
    y = jnp.asarray(A) * x
    assert y.requires_grad
    assert isinstance(jnp.asarray(A) * tape.constant(A), tape.Variable)


# -- 29 ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [lambda w, x: w * x, lambda w, x: w.value * x, lambda w, x: w, lambda w, x: x + float(w)])
def test_contract_29_lifted_functions_refuse_captures(use):
    w, c = tape.Variable(2.0, name="weight"), tape.constant(3.0)
    x = tape.Variable(5.0)
    with pytest.raises(LostGradientError, match="'weight'"):
        interop.lift(lambda x: use(w, x))(x)
    close(interop.lift(lambda x: c.value * x)(x), 15)
    y = interop.lift(lambda x, w: w * x)(x, w)
    y.backward()
    close(w.grad, 5)


# -- 30 ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_contract_30_looking_loses_no_gradient():
    x = tape.Variable(2.5)
    y = x * 2
    assert bool(y)
    assert float(y) == 5.0
    assert int(y) == 5
    assert complex(y) == 5
    assert f"{y:.2f}" == "5.00"
    assert "5." in repr(y)
    for use in (np.asarray, np.array, lambda v: np.zeros(1) + np.asarray(v), jnp.asarray):
        with pytest.raises((LostGradientError, TapeTypeError), match=r"\.value"):
            use(y)
    assert float(np.asarray(y.detach())) == float(np.asarray(y.value)) == 5.0
    y.backward()
    close(x.grad, 2)
