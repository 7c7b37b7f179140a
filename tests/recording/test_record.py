"""Recording: nothing runs, shapes and errors are known at once, tracers stay inside their trace."""

import functools
import gc
import threading
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import ConcretizationError, TapeTypeError, TapeValueError
from tape.recording import entering
from tape.sweeps import differentiation, written
from tests import agreement

A = np.array([1.0, -2.0, 0.5], np.float32)

close = functools.partial(agreement.close, rtol=1e-6, atol=0)


@pytest.fixture
def observed():
    """A lifted function that tells how often it ran."""
    runs = []

    def see(x):
        runs.append(1)
        return np.asarray(x)

    @jax.custom_jvp
    def watch(x):
        return jax.pure_callback(see, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    watch.defjvp(lambda primals, tangents: (watch(*primals), tangents[0]))
    lifted = interop.lift(lambda x: watch(x))
    return lambda x: tnp.sin(lifted(x)), runs


def test_recording_runs_nothing(observed):
    f, runs = observed
    x = tape.Variable(A)
    y = f(x).sum() * 2
    assert (y.shape, y.dtype, y.requires_grad, y.size, y.ndim) == ((), jnp.float32, True, 1, 0)
    assert runs == []
    del y
    assert runs == []


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_each_entry_runs_at_most_once(observed, looks):
    f, runs = observed
    for _ in range(4):  # interpreted, compiled, found again
        runs.clear()
        x = tape.Variable(A)
        h = f(x)
        y = (h * h).sum()
        for _ in range(looks):
            float(y)
        y.backward()
        float(y)
        jax.block_until_ready(x.grad.value)
        close(x.grad, 2 * np.sin(A) * np.cos(A))
        assert len(runs) == 1


def test_dropped_variables_do_not_run(observed):
    f, runs = observed
    x = tape.Variable(A)
    y = x * 2
    f(x)
    close(y, 2 * A)
    assert runs == []


def test_eager_runs_at_once(observed):
    f, runs = observed
    with tape.eager():
        y = f(tape.Variable(A))
    jax.block_until_ready(y.value)
    assert runs == [1]


def user_line(error):
    """The line of this file where the error came up."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
    return frames[-1].line


def test_errors_come_up_at_the_users_line():
    x = tape.Variable(A)
    good = x * 2
    with pytest.raises(TapeTypeError) as info:
        good + tape.Variable(np.ones(2, np.float32))  # at once
    assert user_line(info.value) == "good + tape.Variable(np.ones(2, np.float32))  # at once"
    with pytest.raises((TapeTypeError, TapeValueError)) as info:
        tnp.reshape(good, (7,))
    assert user_line(info.value) == "tnp.reshape(good, (7,))"
    with pytest.raises(TypeError):
        x @ np.ones((4, 4), np.float32)
    good.sum().backward()  # failed recording left nothing behind
    close(x.grad, [2, 2, 2])


def test_an_error_inside_an_op_leaves_the_tape_usable():
    x = tape.Variable(A)
    y = x * 3

    def broken(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interop.lift(broken)(y)
    y.sum().backward()
    close(x.grad, [3, 3, 3])


# -- tracers -------------------------------------------------------------------------------------------------------------------


def test_tracers_are_evaluated_inside_their_trace():
    w = tape.Variable(A)

    def f(x):
        v = tape.constant(x)
        return (tnp.sin(v) * w.detach() + v).value

    with jax.checking_leaks():
        y = jax.jit(f)(A)
    np.testing.assert_allclose(y, np.sin(A) * A + A, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(f)(A), (np.sin(A)[:, None] * A) + A[:, None], rtol=1e-6)
    (w * w).sum().backward()
    close(w.grad, 2 * A)


def test_pending_concrete_variables_run_concretely_inside_a_trace():
    w = tape.Variable(A)
    pending = w * 2
    other = pending + 1
    seen = []

    def f(x):
        seen.append(float(pending.sum()))
        return x * pending.detach().value

    with jax.checking_leaks():
        y = jax.jit(f)(3.0)
    np.testing.assert_allclose(y, 6 * A)
    assert seen == [-1.0]
    assert not isinstance(pending.value, jax.core.Tracer)
    close(other, 2 * A + 1)
    pending.sum().backward()
    close(w.grad, [2, 2, 2])


def test_looking_at_a_tracer_raises():
    def f(x):
        v = tape.constant(x)
        return 1 if v > 0 else 2

    for look in (f, lambda x: float(tape.constant(x)), lambda x: tape.constant(x).numpy(), lambda x: tape.constant(x).item()):
        with pytest.raises(ConcretizationError, match=r"JAX transformation.*static_argnames"):
            jax.jit(look)(1.0)


# -- threads and settings ------------------------------------------------------------------------------------------------------


def test_a_variable_looked_at_in_another_thread():
    x = tape.Variable(A)
    y = x * 2
    seen = []
    thread = threading.Thread(target=lambda: seen.append(y.numpy()))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(seen[0], 2 * A)
    z = y + 1  # this thread goes on recording
    close(z, 2 * A + 1)
    z.sum().backward()
    close(x.grad, [2, 2, 2])


def test_threads_record_tapes_of_their_own():
    results = {}

    def work(k):
        x = tape.Variable(A * k)
        for _ in range(20):
            y = (tnp.sin(x) * x).sum()
            x.zero_grad()
            y.backward()
        results[k] = x.grad.numpy()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k in range(1, 5):
        np.testing.assert_allclose(results[k], np.cos(A * k) * A * k + np.sin(A * k), rtol=1e-4, atol=1e-6)


def test_settings_of_jax_belong_to_their_entries():
    x = tape.Variable(A)
    y = x * 2
    with jax.enable_x64(True):
        z = tape.Variable(np.arange(3.0)) * 2
        assert z.dtype == jnp.float64
    w = y * 1.5
    assert (y.dtype, w.dtype) == (jnp.float32, jnp.float32)
    close(w, 3 * A)
    close(z, np.arange(3) * 2)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64:UserWarning")  # of JAX's own sum
def test_gradients_are_of_64_bits_where_a_value_of_before_has_them():
    with jax.enable_x64(True):
        x = tape.Variable(np.array([1.0, 2.0]))
        y = x * x
    z = y.sum()  # float32, as JAX's is there
    for _ in range(2):
        g = tape.gradients(z, x, create_graph=True)
        assert (z.dtype, g.dtype, g.value.dtype) == (jnp.float32, jnp.float64, jnp.float64)
        close(g, [2.0, 4.0])
        close(tape.gradients((g * g).sum(), x), [8.0, 16.0])
    zero = tape.gradients(z, tape.Variable(x), unconnected="zero")
    assert (zero.dtype, zero.value.dtype) == (jnp.float64, jnp.float64)


def test_numpy_scalars_keep_their_dtype_and_are_converted_once(monkeypatch):
    x = tape.constant(A)
    values = [np.float32(0.0), np.float32(-0.0), np.float16(2.0), np.int32(2), np.float32(2.0)]
    for v in values:
        np.testing.assert_array_equal((x * v).value, A * v)
        np.testing.assert_array_equal(np.signbit((x * v).value), np.signbit(A * v))
    assert [(x * v).dtype for v in values] == [jnp.result_type(x.value, v) for v in values]
    assert (tape.constant(A.astype(np.int32)) * np.float16(0.5)).dtype == jnp.float16  # strongly typed
    monkeypatch.setattr(jnp, "asarray", None)
    assert float((x * np.float32(2.0)).sum()) == float(tnp.sum(tnp.where(x != np.float32(0.0), x, np.float32(2.0))) * 2) == -1.0


def test_python_scalars_are_weakly_typed():
    for dtype in (jnp.float16, jnp.bfloat16, jnp.float32):
        x = tape.Variable(jnp.ones(2, dtype))
        for y in (x * 2, 2.5 * x, x + True, x**2, 1 / x):
            assert y.dtype == dtype
    assert (tape.constant([1, 2]) * 2.5).dtype == jnp.float32
    assert float(1 / (tape.constant(1.0) * -0.0)) == -np.inf


def test_integers_out_of_bounds():
    with pytest.raises(OverflowError, match="1099511627776 is out of bounds for int32"):
        tape.Variable(1.0) * 2**40


def test_what_a_finalizer_records_while_a_leaf_enters_keeps_its_gradient(monkeypatch):
    x, w, v = (tape.Variable(value) for value in (0.5, 2.0, 0.25))
    h = x * 3.0
    float(h)  # a leaf of what is recorded next, which leads back to x
    y = w * 2.0
    made = []
    count = entering.count

    def counting(*args):
        if not made:
            made.append(tnp.sin(v))  # as what is called when garbage is collected here
        count(*args)

    monkeypatch.setattr(entering, "count", counting)
    entering.place_in(y._segment, h)
    (made[0] * y * h).backward()
    np.testing.assert_allclose(v.grad.value, np.cos(0.25) * 4.0 * 1.5, rtol=1e-5)
    np.testing.assert_allclose(x.grad.value, np.sin(0.25) * 4.0 * 3.0, rtol=1e-5)


@pytest.mark.parametrize("seeded", [False, True])
def test_what_a_finalizer_records_while_a_sweep_is_written_again_stays(seeded, monkeypatch):
    x, v = tape.Variable(jnp.full(3, 0.5)), tape.Variable(0.25)
    monkeypatch.setattr(differentiation, "regained", lambda *_: None)  # which does the same in C
    handle, again, made = written.handle, written.Written.again, []

    def meddling(*args):
        if not made:
            made.append(tnp.sin(v))  # as what is called when garbage is collected here
        return handle(*args)

    def written_again(*args):
        with monkeypatch.context() as patch:
            patch.setattr(written, "handle", meddling)
            return again(*args)

    monkeypatch.setattr(written.Written, "again", written_again)
    for _ in range(4):
        y = tnp.sin(x) * x
        seeds = tape.constant(jnp.full(3, 2.0)) if seeded else None
        g = tape.gradients(y if seeded else y.sum(), x, seeds)
        close(g.value, (2.0 if seeded else 1.0) * (np.cos(0.5) * 0.5 + np.sin(0.5)) * np.ones(3))
    close(made[0], np.sin(0.25))


def test_what_is_recorded_after_garbage_was_collected_has_room_for_its_results():
    x = tape.Variable(jnp.ones(3))

    def chain(n):
        y = x
        for _ in range(n):
            y = tnp.cos(y)
        return y

    float(chain(60).sum())
    gc.collect()
    cycle = [chain(40)]
    cycle.append(cycle)
    with jax.enable_x64(True):
        tnp.sin(tape.Variable(jnp.ones(2)))  # goes to another segment
    del cycle
    gc.collect()  # the first segment goes, and nobody has filled its cells
    float(chain(40).sum())
    results = [chain(30) for _ in range(3)]
    expected = jax.grad(lambda x: sum(functools.reduce(lambda y, _: jnp.cos(y), range(30), x).sum() for _ in range(3)))(x.value)
    close(tape.gradients(sum(y.sum() for y in results), x), expected)
