"""Eight threads record and sweep at once, each its own tape, over shared Variables."""

import queue
import random
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.graph.scope import LOCAL
from tape.graph.segment import Segment

N = 8
A = np.array([1.0, -2.0, 0.5], np.float32)
W = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)


@pytest.fixture(autouse=True)
def _switching():
    """Switch between threads as often as Python can."""
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(old)


def together(*works):
    """Run functions at once, each in a thread of its own, and raise what they raised."""
    errors = []
    barrier = threading.Barrier(len(works))

    def run(work):
        try:
            barrier.wait(30)
            work()
        except BaseException as e:  # noqa: BLE001 - raised below
            errors.append(e)

    threads = [threading.Thread(target=run, args=(w,), daemon=True) for w in works]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    if errors:
        raise errors[0]


def model(np_, x, w, b, k):
    """A tape of its own structure for each k."""
    h = x
    for i in range(3 + k % 3):
        h = np_.tanh(h @ w + b * (i + 1))
    q, r = np_.divmod(h, b + 3)
    return (h * h).sum() + (q * 0 + r).sum()


def reference(x, w, b, k):
    return jax.value_and_grad(lambda w, b: model(jnp, x, w, b, k), argnums=(0, 1))(w, b)


def test_gradients_over_shared_parameters():
    w, b = tape.Variable(W), tape.Variable(A)
    data = [A * (i + 1) / N for i in range(N)]
    expected = {(i, k): reference(data[i], W, A, k) for i in range(N) for k in range(3)}

    def work(i):
        for k in range(30):
            loss = model(tnp, tape.constant(data[i]), w, b, k)
            if (i + k) % 4 == 0:
                float(loss)
            gw, gb = tape.gradients(loss, [w, b])
            value, (ew, eb) = expected[i, k % 3]
            np.testing.assert_allclose(gw.value, ew, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(gb.value, eb, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(loss.value, value, rtol=1e-4)

    together(*[lambda i=i: work(i) for i in range(N)])


def test_gradients_add_up_over_threads():
    """No addition to a shared ``.grad`` is lost, whatever the way it takes (written, replayed, onto an old one)."""
    times = 25
    w = tape.Variable(A)
    w.grad = np.zeros(3, np.float32)
    fresh = tape.Variable(A)

    def work(i):
        for k in range(times):
            ((w * fresh).sum() * float(i + 1)).backward()
            if k % 5 == 0:
                float((w * 2).sum())

    together(*[lambda i=i: work(i) for i in range(N)])
    total = times * sum(range(1, N + 1)) * A
    np.testing.assert_allclose(w.grad.value, total, rtol=1e-5)
    np.testing.assert_allclose(fresh.grad.value, total, rtol=1e-5)


def test_first_gradients_are_not_lost():
    for _ in range(40):
        w = tape.Variable(A)
        together(*[lambda w=w: (w * 2).sum().backward()] * 4)
        np.testing.assert_array_equal(w.grad.value, [8, 8, 8])


def test_a_structure_first_met_by_all_threads_at_once():
    for n in range(12):
        x, w = tape.Variable(A), tape.Variable(A + n)

        def work(i, x=x, w=w, n=n):
            y = x * (7.0 + n)
            parts = [tnp.sin(y), y[: 1 + n % 3], y.sum(), tnp.stack([y, w]), w @ y]
            z = parts[i % 5].sum() + sum(p.sum() for p in parts)
            (g,) = tape.gradients(z, [x])
            again = jax.grad(lambda x: jnp_program(x, A + n, i, n))(A)
            np.testing.assert_allclose(g.value, again, rtol=1e-4, atol=1e-4)

        together(*[lambda i=i: work(i) for i in range(5)])


def jnp_program(x, w, i, n):
    y = x * (7.0 + n)
    parts = [jnp.sin(y), y[: 1 + n % 3], y.sum(), jnp.stack([y, w]), w @ y]
    return parts[i % 5].sum() + sum(p.sum() for p in parts)


def test_pending_values_of_other_threads():
    """One thread records and goes on recording, while others look at, use and sweep what it made."""
    x = tape.Variable(A)
    given: queue.SimpleQueue = queue.SimpleQueue()
    total = 600

    def produce():
        try:
            make()
        finally:
            for _ in range(3):
                given.put(None)

    def make():
        for k in range(total):
            c = 1.0 + k % 7
            y = tnp.sin(x * c)
            _, s = tnp.divmod(y, 2.0)
            given.put((c, y, s))
            kept = [y * 2, tnp.cos(y), (y * y).sum()]
            if k % 11 == 0:
                kept[2].value
            np.testing.assert_allclose(kept[0].value, 2 * np.sin(A * c), rtol=1e-5, atol=1e-6)

    def consume(how):
        while (item := given.get()) is not None:
            c, y, s = item
            if how == 0:
                np.testing.assert_allclose(y.value, np.sin(A * c), rtol=1e-5, atol=1e-6)
            elif how == 1:
                np.testing.assert_allclose((y * 3 + s).value, 3 * np.sin(A * c) + np.sin(A * c) % 2, rtol=1e-4, atol=1e-5)
            else:
                g = tape.gradients((y * y).sum(), x, retain_graph=True)
                np.testing.assert_allclose(g.value, 2 * np.sin(A * c) * np.cos(A * c) * c, rtol=1e-3, atol=1e-4)

    together(produce, *[lambda h=h: consume(h) for h in range(3)])


def test_a_shared_trunk_is_swept_by_all_threads():
    for meeting in range(6):
        x = tape.Variable(A)
        trunk = tnp.tanh(x * 2) * x
        if meeting % 2:
            trunk.value

        def work(i, x=x, trunk=trunk):
            g = tape.gradients((trunk * float(i)).sum(), x, retain_graph=True)
            np.testing.assert_allclose(g.value, i * (np.tanh(2 * A) + 2 * A / np.cosh(2 * A) ** 2), rtol=1e-4, atol=1e-4)

        together(*[lambda i=i: work(i) for i in range(N)])


def test_rebinding_while_others_read():
    """Whoever reads a parameter finds one of its values and the gradient at that value."""
    w = tape.Variable(np.float32(1.0))
    stop = threading.Event()

    def write():
        for k in range(300):
            w.value = np.float32(1 + k % 5)
        stop.set()

    def read():
        while not stop.is_set():
            y = w**3
            g = tape.gradients(y, w, unconnected="zero")
            slope, value = float(g), float(y)
            assert round(value ** (1 / 3)) ** 3 == pytest.approx(value)
            assert slope == pytest.approx(3 * round(value ** (1 / 3)) ** 2)

    together(write, read, read, read)


def test_modes_and_settings_stay_with_their_thread():
    w = tape.Variable(A)

    def work(i):
        rng = random.Random(i)  # noqa: S311
        for _ in range(60):
            grad, wide, eager = rng.random() < 0.5, rng.random() < 0.2, rng.random() < 0.2
            with tape.set_grad_enabled(grad), jax.enable_x64(wide):
                if eager:
                    with tape.eager():
                        y = w * 2
                else:
                    y = w * 2
                z = tnp.arange(3) * 1.5
            assert y.requires_grad is grad
            assert z.dtype == (np.float64 if wide else np.float32)
            np.testing.assert_allclose(y.value, 2 * A)
            np.testing.assert_allclose(z.value, [0, 1.5, 3])

    together(*[lambda i=i: work(i) for i in range(N)])


def test_hooks_run_in_the_thread_that_sweeps():
    w = tape.Variable(A)
    seen = []
    w.register_hook(lambda g: seen.append(threading.get_ident()))
    ran = []

    def work():
        tape.gradients((w * 2).sum(), w)
        ran.append(threading.get_ident())

    together(*[work] * N)
    assert sorted(seen) == sorted(ran)


# -- the power of these tests ------------------------------------------------------------------------------------------------


def repeat(times, test):
    for _ in range(times):
        test()


def test_a_segment_that_stays_open_when_another_thread_runs_it_is_noticed(monkeypatch):
    def keeping(segment, name, value):
        if name != "epoch" or value is not None:
            object.__setattr__(segment, name, value)

    monkeypatch.setattr(Segment, "__setattr__", keeping)
    with pytest.raises((AssertionError, LookupError, RuntimeError, TypeError, ValueError)):  # how it breaks is chance
        repeat(5, test_pending_values_of_other_threads)


def test_an_assignment_without_its_lock_is_noticed(monkeypatch):
    from tape.sweeps import differentiation

    def hasty(made, consumed=(), *, mode=None):
        segment = LOCAL.segment()
        assert segment is None or not segment.pending
        for variable, _, _, total in made:
            variable._extra.grad = total

    monkeypatch.setattr(differentiation, "assign", hasty)
    with pytest.raises(AssertionError):
        repeat(10, test_gradients_add_up_over_threads)
