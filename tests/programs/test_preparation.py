"""Kernels that run for the first time are compiled before the run, by two threads, each of them once."""

import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
import tape.random
from benchmarks.compiles import watching
from tape.errors import ExecutionError
from tape.ops import running
from tape.programs import background, policy
from tests import idle

WIDTHS = iter(range(101, 200))  # a width that no other test uses has kernels that never ran


def arrays():
    rng = np.random.default_rng(0)
    return [jax.device_put(rng.standard_normal(next(WIDTHS)).astype(np.float32))] * 2


def loss(x, w, scale=2.0):
    h = tnp.tanh(x * w) * scale + 1
    return (h * h).mean()


def uncommitted():
    x, w = arrays()
    return tape.Variable(x), w


def committed():
    x, w = (jax.device_put(a, jax.devices()[0]) for a in arrays())  # both: JAX compiles anew for every mixture
    return tape.Variable(x), w


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """No structure is compiled whole at its first meeting, and kernels are as those of primitives that only XLA has."""
    monkeypatch.setattr(policy, "LEAST", 1 << 30)
    monkeypatch.setattr(running, "hosted", lambda _: (None, 0.0))


@pytest.fixture
def submitted(monkeypatch):
    """The jobs given to the background, from here on: what any width needs is there, and what other tests left to compile is compiled."""
    for x, w in (uncommitted(), committed()):
        loss(x, w).backward()
        x.grad.block_until_ready()
    idle.settle()
    jobs = []
    submit = background.submit

    def noting(call):
        jobs.append(submit(call))
        return jobs[-1]

    monkeypatch.setattr(background, "submit", noting)
    return jobs


def numbered():
    return *uncommitted(), tape.Variable(jnp.asarray(2.0) * 1.5)


def weak():
    x, w = arrays()
    return tape.Variable(x), w, tape.constant(jnp.full(len(x), 3.0)) * 0.5  # no dtype: weakly typed, what is computed from it as well


def integer():
    x, w = arrays()
    return tape.Variable(x), w, jax.device_put(np.arange(len(x)))


@pytest.mark.parametrize("leaves", [uncommitted, committed, numbered, weak, integer])
def test_a_call_finds_what_was_compiled_before_it(leaves, submitted):
    given = leaves()
    with watching() as compiles:
        out = loss(*given)
        out.backward()
        given[0].grad.block_until_ready()
    assert len(submitted) > 5
    assert len(compiles.compiled) == len(submitted)


def test_the_background_compiles_with_the_settings_in_force(submitted):
    with jax.enable_x64(True), watching() as compiles:
        x = tape.Variable(np.linspace(0.0, 1.0, next(WIDTHS)))
        compiles.compiled.clear()
        loss(x, x).block_until_ready()
    assert len(compiles.compiled) == len(submitted) > 3


def test_keys_are_known_too(submitted):
    shape = (next(WIDTHS),)
    key = tape.constant(jax.random.key(0))
    with watching() as compiles:
        value = (tape.random.normal(key, shape) * tape.random.uniform(key, shape)).value
    assert len(compiles.compiled) == len(submitted) == 3
    np.testing.assert_array_equal(value, jax.random.normal(key.value, shape) * jax.random.uniform(key.value, shape))


def test_results_are_those_of_entries_that_run_at_once(submitted):
    x, w = uncommitted()
    lazy = loss(x, w)
    lazy.backward()
    found = [lazy.value, x.grad.value]
    assert submitted
    x.zero_grad()
    with tape.eager():
        eager = loss(x, w)
        eager.backward()
    for a, b in zip(found, [eager.value, x.grad.value], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("place", ["nowhere", "a mesh"])
def test_kernels_are_left_to_the_run_where_nothing_is_compiled_or_known(place, submitted):
    x, w = arrays()
    if place == "nowhere":
        with jax.disable_jit():
            loss(tape.Variable(x), w).value
    else:
        mesh = jax.sharding.NamedSharding(jax.sharding.Mesh(jax.devices()[:1], "x"), jax.sharding.PartitionSpec())
        loss(tape.Variable(jax.device_put(x, mesh)), w).value
    assert not submitted


def test_two_threads_compile(monkeypatch):
    meeting = threading.Barrier(2, timeout=60)
    names = set()

    def waiting():
        meeting.wait()
        names.add(threading.current_thread().name)

    monkeypatch.setattr(background, "compiling", lambda *_: background.submit(waiting))
    x, w = uncommitted()
    (tnp.tanh(x) * w).value
    assert names == {threading.current_thread().name, "tape-compile"}


def test_nothing_waits_for_what_the_background_does_besides(submitted):
    done = threading.Event()
    background.submit(done.wait)
    try:
        x, w = uncommitted()
        assert np.isfinite(float(loss(x, w)))
        assert not done.is_set()
        assert len(submitted) > 3
    finally:
        done.set()


def test_a_kernel_that_cannot_be_compiled_is_named_where_it_runs(submitted):
    x, w = uncommitted()
    seen = []
    noted = interop.lift(lambda a: (jax.debug.callback(seen.append, a.sum()), a + 1)[1])(x)
    good, bad = tnp.tanh(x * w), interop.lift(lambda a: jax.lax.platform_dependent(a, tpu=jnp.sin))(x)
    with pytest.raises(ExecutionError, match="test_preparation"):
        bad.value
    np.testing.assert_allclose(good.value, np.tanh(x.value * w), rtol=1e-6)
    np.testing.assert_array_equal(noted.value, x.value + 1)  # no suspect
    jax.effects_barrier()
    assert len(seen) == 1
    assert len(submitted) == 3


def settled_at():
    """Return how soon threads hand on the lock when the background is through."""
    idle.settle()
    for _ in range(1000):
        if sys.getswitchinterval() != pytest.approx(background.YIELDING):
            break
        time.sleep(0.001)
    return sys.getswitchinterval()


def test_the_background_hands_on_the_lock_sooner_unless_the_user_says_how_soon():
    """A step of a loop takes Python's lock several times, and JAX traces and lowers for 10 ms under it."""
    before = settled_at()
    seen = []
    background.submit(lambda: seen.append(sys.getswitchinterval()))
    assert settled_at() == before
    assert seen == [pytest.approx(background.YIELDING)]
    try:
        background.submit(lambda: sys.setswitchinterval(0.002))
        assert settled_at() == pytest.approx(0.002)
    finally:
        sys.setswitchinterval(before)
