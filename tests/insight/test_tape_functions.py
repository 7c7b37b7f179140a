"""``Tape.function``: what was recorded, as a function of JAX arrays with the derivative that was recorded."""

import contextlib
import copy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop
import tape
import tape.extend
import tape.lax
import tape.numpy as tnp

A = np.array([1.0, -2.0, 0.5], np.float32)


def same(a, b, tolerance=1e-6):
    np.testing.assert_allclose(jax.device_get(a), jax.device_get(b), rtol=tolerance, atol=tolerance)


def test_it_computes_and_differentiates_as_the_tape():
    x, w = tape.Variable(A, name="x"), tape.Variable(A + 1, name="w")
    with tape.Tape() as t:
        y = (tnp.tanh(x * w) * w).sum()

    def plain(x, w):
        return (jnp.tanh(x * w) * w).sum()

    f = t.function([x, w], y)
    other = A * 3 - 1
    same(f(A, A + 1), y)
    same(f(other, A), plain(other, A))
    for i in (0, 1):
        same(jax.jit(jax.grad(f, i))(other, A), jax.grad(plain, i)(other, A), 1e-5)  # 1 - tanh^2 where that is nearly 0
    same(jax.hessian(f)(other, A), jax.hessian(plain)(other, A), 1e-5)
    same(jax.vmap(f, (0, None))(np.stack([A, other]), A), [plain(A, A), plain(other, A)])
    same(t.function(x, y)(other), plain(other, A + 1))
    same(tape.Tape.of(y).function(x, y)(other), plain(other, A + 1))


def test_trees_results_as_inputs_and_several_outputs():
    p = {"a": tape.Variable(A), "b": tape.Variable(A)}
    with tape.Tape() as t:
        h = p["a"] * 2.0
        y, z = h * p["b"], tnp.sin(h)
    f = t.function(p, {"y": y, "z": z})
    got = f({"a": A, "b": A + 1})
    same(got["y"], 2 * A * (A + 1))
    same(t.function(h, [y, z])(A)[0], A * A)
    same(t.function((h,), z)(A), np.sin(A))


def test_what_is_cut_is_a_constant_to_jax():
    x = tape.Variable(A)
    with tape.Tape() as t:
        with tape.no_grad():
            a = x * 3.0
        y = (x * a + x * (x * x).detach() + tape.stop_gradient(x)).sum()
    f = t.function(x, y)
    same(jax.grad(f)(A), 3 * A + A * A)
    same(f(2 * A), (12 * A * A + 8 * A**3 + 2 * A).sum())


def test_gradients_on_the_tape_are_part_of_the_function():
    x = tape.Variable(A)
    with tape.Tape() as t:
        y = (x * x * x).sum()
        g = tape.gradients(y, x, create_graph=True)
        penalty = (g * g).sum()
    f = t.function(x, penalty)
    same(f(A + 1), (9 * (A + 1) ** 4).sum(), 1e-4)
    same(jax.grad(f)(A), 36 * A**3, 1e-4)


def test_the_backward_of_a_function_is_the_users():
    class Twice(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return tnp.sin(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved
            return 10 * x * g

    x = tape.Variable(A)
    with tape.Tape() as t:
        y = (Twice.apply(x * 2.0) * 3.0).sum()
    f = t.function(x, y)
    same(f(A + 1), (3 * np.sin(2 * (A + 1))).sum())
    same(jax.grad(f)(A + 1), 60 * 2 * (A + 1))
    same(jax.jit(jax.grad(f))(A + 1), 60 * 2 * (A + 1))


def test_a_mask_of_the_input_is_computed_anew():
    x = tape.Variable(A)
    with tape.Tape() as t:
        mask = x > 0
        assert bool(mask.any())
        y = tnp.where(mask, x, 10.0 * x).sum()
        del mask
    same(t.function(x, y)(-A), np.where(A < 0, -A, -10 * A).sum())


def test_after_a_sweep_it_needs_the_leaves():
    x, w = tape.Variable(A), tape.Variable(A)
    with tape.Tape() as t, tape.Tape(keep=True) as kept:
        y = (tnp.sin(x) * w).sum()
        y.backward()
    with pytest.raises(tape.errors.ReleasedTapeError, match="keep=True"):
        t.function(x, y)
    same(kept.function(x, y)(A + 1), (np.sin(A + 1) * A).sum())
    with tape.Tape() as t:
        y = (tnp.sin(x) * w).sum()
        f = t.function(x, y)
        y.backward()
    same(f(A + 1), (np.sin(A + 1) * A).sum())


def test_loops_and_steps_of_jit_are_part_of_it():
    x = tape.Variable(A)
    step = tape.jit(lambda v: tnp.tanh(v) * 2)
    with tape.Tape() as t:
        h, _ = tape.lax.scan(lambda c, _: (tnp.sin(c), None), step(x), None, length=3)
        y = h.sum()

    def plain(x):
        h = jnp.tanh(x) * 2
        for _ in range(3):
            h = jnp.sin(h)
        return h.sum()

    same(t.function(x, y)(A + 1), plain(A + 1))
    same(jax.grad(t.function(x, y))(A + 1), jax.grad(plain)(A + 1))


def test_mistakes_are_said():
    x, other = tape.Variable(A), tape.Variable(A)
    with tape.Tape() as t:
        y = (x * 2).sum()
    outside = other * 2
    with pytest.raises(tape.errors.TapeValueError, match="is not on this tape"):
        t.function(other, y)
    with pytest.raises(tape.errors.TapeValueError, match="is not on this tape"):
        t.function(x, outside)
    with pytest.raises(tape.errors.TapeValueError, match="given twice"):
        t.function([x, x], y)
    f = t.function(x, y)
    with pytest.raises(tape.errors.TapeValueError, match="shape"):
        f(A[:2])
    with pytest.raises(tape.errors.TapeTypeError, match="dtype"):
        f(A.astype(np.int32))
    with pytest.raises(tape.errors.TapeTypeError, match="takes 1 arrays"):
        f(A, A)


def test_a_variable_whose_gradient_would_be_lost_is_refused():
    x = tape.Variable(A)
    with tape.Tape() as t:
        y = (x * x).sum()
    f = t.function(x, y)
    with pytest.raises(tape.errors.LostGradientError, match=r"interop\.lift"):
        f(x)
    interop.lift(f)(x).backward()  # what the message says
    same(x.grad.value, 2 * A)
    same(f(x.detach()), f(A))
    same(jax.jit(interop.lower(f))(A), f(A))  # as interop.export calls it


def test_a_variable_that_was_assigned_in_between_is_refused():
    x = tape.Variable(A)
    with tape.Tape() as t:
        a = x * 2
        x.value = A + 1
        y = (a * x).sum()
    with pytest.raises(tape.errors.TapeValueError, match="assigned in between"):
        t.function(x, y)


def test_constants_that_a_sweep_reads_are_those_that_entered_before_the_tape_was_open():
    a, b, c = (tape.constant(A * factor) for factor in (1.0, 10.0, 100.0))
    x = tape.Variable(np.ones(3, np.float32), name="x")
    before = a * b * x
    with tape.Tape(keep=True) as t:
        y = (x * b + tnp.sin(x * c) * a).sum() + (before * c).sum()
        float(y)
        y.backward()
        g = x.grad * 1.0

    def plain(x):
        return a.value * b.value * c.value + b.value + jnp.cos(x * c.value) * c.value * a.value

    f = t.function(x, g)
    same(f(np.ones(3)), g)
    same(f(A), plain(A), 1e-3)


@pytest.mark.parametrize("how", ["backward", "gradients", "stream"])
def test_the_sum_of_what_two_segments_give_comes_before_what_reads_it(how):
    x = tape.Variable(A, name="x")
    with tape.Tape(keep=True) as t:
        h = x * 2.0
        np.asarray(h.detach())
        y = (h * x).sum()
        if how == "backward":
            y.backward()
            g = x.grad
        else:
            ((_, g),) = tape.stream_gradients(y) if how == "stream" else [(x, tape.gradients(y, x))]
        z = g * 3.0
    assert [e.op for e in t][-2:] == ["add_any", "multiply"]
    assert str(t[-1].inputs[0]) == f"%{len(t) - 2}"
    same(t.function(x, z)(A + 1), 12 * (A + 1))


class Outside(tape.Function):
    """A function of the tape that NumPy computes."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tape.constant(np.sin(np.asarray(x.detach().numpy())))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved
        return g * tnp.cos(x)


def _assigned(x):
    v = tape.Variable(np.zeros(3, np.float32))
    v.value = (x * x).detach()
    return v * x


def _stepped(x):
    state = {"v": tape.Variable(np.zeros(3, np.float32), requires_grad=False)}

    @tape.jit
    def step(x):
        state["v"].value = x * x
        return state["v"] + 1

    return step(x.detach()) * state["v"] * x


def _restepped(x):
    step = tape.jit(lambda x: x * x)
    return step(step(x.detach()) * 2) * x


def _steps_on_arrays(x):
    step = tape.jit(lambda v, a: (v * a, a + 1))
    y, z = step(x.detach(), jnp.asarray(A))
    return y * x + z


def _captured(x):
    w = (x * x).detach()
    step = tape.jit(lambda: w * 2)
    return step() * x


def _gradient_of_a_step(x):
    step = tape.jit(lambda x: tape.grad(lambda v: (v**3).sum())(x))
    return step(x.detach()) * x


HANDED_ON = {
    "a step": lambda x: tape.jit(lambda v: v * v)(x.detach()) * x,
    "a step without recording": lambda x: tape.no_grad()(tape.jit(lambda v: v * v))(x) * x,
    "two steps": _restepped,
    "a step that reads": _captured,
    "a step that assigns": _stepped,
    "a step with arrays": _steps_on_arrays,
    "a step with a gradient": _gradient_of_a_step,
    "grad": lambda x: tape.grad(lambda v: (v**3).sum())(x.detach()) * x,
    "hessian": lambda x: tape.hessian(lambda v: (v**3).sum())(x.detach()) @ x,
    "jvp": lambda x: tape.jvp(lambda v: v**3, (x.detach(),), (x.detach(),))[1] * x,
    "vjp": lambda x: tape.vjp(lambda v: v**3, x)[1](x.detach())[0] * x,
    "a seed": lambda x: tape.gradients(x**3, x, x.detach(), create_graph=True) * x,
    "a Variable": lambda x: tape.Variable(x * x) * x,
    "a constant": lambda x: tape.constant(x.detach()) * x,
    "a number": lambda x: tape.constant((x * x).sum()) * x,
    "a copy": lambda x: copy.copy((x * x).detach()) * copy.copy(x.detach()) * x,
    "a deep copy": lambda x: copy.deepcopy((x * x).detach()) * copy.deepcopy(x.detach()) * x,
    "an assignment": _assigned,
}


@pytest.mark.parametrize("name", HANDED_ON)
def test_values_that_are_handed_on_without_recording_are_followed(name):
    make = HANDED_ON[name]
    for x in (tape.Variable(A), tape.Variable(A * 2)):  # a step that is traced, and one that is known
        with tape.Tape(keep=True) as t:
            y = make(x)
        f = t.function(x, y)
        same(f(A), make(tape.Variable(A)), 1e-5)
        same(jax.jit(f)(A + 3), make(tape.Variable(A + 3)), 1e-5)
    tangent = tape.jvp(make, (tape.Variable(A + 3),), (tape.constant(np.ones(3, np.float32)),))[1]
    same(jax.jvp(f, (A + 3,), (np.ones(3, np.float32),))[1], tangent, 1e-5)


def _trained(x, steps, tape_of=contextlib.nullcontext):
    w = tape.Variable(np.ones(3, np.float32))
    optimizer = interop.optax.Optimizer([w], optax.sgd(0.1))
    with tape_of() as t:
        for _ in range(steps):
            optimizer.zero_grad()
            ((w * x) ** 2).sum().backward(inputs=[w])
            optimizer.step()
        return t, w * x


def test_updates_of_an_optimizer_are_followed():
    x = tape.Variable(A)
    t, y = _trained(x, 3, lambda: tape.Tape(keep=True))
    same(t.function(x, y)(A + 1), _trained(tape.Variable(A + 1), 3)[1], 1e-5)
    t, y = _trained(x, 3, tape.Tape)
    with pytest.raises(tape.errors.ReleasedTapeError, match="keep=True"):
        t.function(x, y)


def test_what_a_step_computes_of_something_else_is_a_constant():
    x, c = tape.Variable(A), tape.constant(A)
    with tape.Tape() as t:
        once = tape.jit(lambda c: c * 2)(c)
        y = tape.jit(lambda c: c + 1)(once) * x
        del once
    same(t.function(x, y)(A), (2 * A + 1) * A)


def test_what_an_entry_that_ran_at_once_led_to_is_no_constant():
    x, k = tape.Variable(A), tape.constant(A)
    with tape.eager(), tape.Tape() as t:
        y = (k + k).detach() * x
    with pytest.raises(ValueError, match=r"add ran at once .*record it without tape\.eager\(\)"):
        t.function(k, y)  # it gave what it had been for the k that was recorded
    same(t.function(x, y)(A + 1), 2 * A * (A + 1))


def test_a_function_that_computes_outside_of_the_tape_is_not_taken_for_a_constant():
    x, c = tape.Variable(A), tape.constant(A)
    with tape.Tape() as t:
        with tape.no_grad():
            y = Outside.apply(x * 2.0) * 3.0
        z, constant = y * x, Outside.apply(c) * x
        recorded = Outside.apply(x) * x
    with pytest.raises(tape.errors.TapeValueError, match=r"Outside computed a value of the inputs .* not by ops"):
        t.function(x, z)
    same(t.function(x, constant)(A + 1), np.sin(A) * (A + 1))
    with pytest.raises(tape.errors.ConcretizationError):  # NumPy's cannot be traced
        jax.jit(t.function(x, recorded))(A)


def test_a_mean_that_a_module_has_kept_is_computed_before_what_reads_it():
    x, mean = tape.Variable(A), tape.constant(np.zeros(3, np.float32))
    with tape.Tape(keep=True) as t:
        tape.extend.replace(mean, mean * 0.5 + x * x)
        same(mean.numpy(), A * A)  # it stands on another segment than what reads it
        y = mean * x
    same(t.function(x, y)(A + 1), (A + 1) ** 3, 1e-5)
