"""When a structure is compiled and how long a run waits for that: what the costs of both are, as far as they are known beforehand."""

import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.graph import trie
from tape.ops import costs, running
from tape.ops.kernel import Op
from tape.programs import background, devices, execution, policy
from tape.recording.record import record
from tests import idle

STALL, PART, LIMIT = policy.STALL, policy.PART, policy.LIMIT  # tests have others


@pytest.fixture(autouse=True)
def _not_on_the_host(monkeypatch):
    """Kernels as of primitives that only XLA has."""
    monkeypatch.setattr(running, "hosted", lambda _: (None, 0.0))


WIDTHS = iter(range(1201, 1400))  # a width that no other test uses has kernels that never ran


@pytest.fixture(autouse=True)
def _as_it_is(monkeypatch):
    """Change over to programs when users do."""
    monkeypatch.setattr(policy, "STALL", STALL)
    monkeypatch.setattr(policy, "PART", PART)


def arrays():
    rng = np.random.default_rng(0)
    width = next(WIDTHS)
    return [jnp.asarray(rng.uniform(-1, 1, width).astype(np.float32)) for _ in range(2)]


def chain(n, x, w, first=0):
    h = x
    for i in range(6):
        h = [n.sin, n.cos, n.tanh, n.arctan, n.expm1, n.sinh][(i + first) % 6](h * w)
    return (h * h).mean()


def step(x, w, first=0):
    x.zero_grad()
    loss = chain(tnp, x, w, first)
    loss.backward()
    return loss


def expect(x, w, first=0):
    value, gradient = jax.value_and_grad(lambda v: chain(jnp, v, w, first))(x.value)
    np.testing.assert_allclose(step(x, w, first).value, value, rtol=1e-4)
    np.testing.assert_allclose(x.grad.value, gradient, rtol=1e-3, atol=1e-6)


def ran(stats):
    found = stats.interpreted > 0, stats.compiles, stats.hits
    stats.reset()
    return found


# -- at once ------------------------------------------------------------------------------------------------------------


def test_many_new_kernels_are_compiled_as_one_program_at_the_first_meeting(stats):
    a, w = arrays()
    x = tape.Variable(a)
    expect(x, w)
    assert ran(stats) == (False, 1, 0)
    for k in range(3):
        x.value = a * (k + 2)
        expect(x, w)
        assert ran(stats) == (False, 0, 1)


def test_kernels_stand_in_for_one_program_that_does_not_come_back(stats):
    a, w = arrays()
    x = tape.Variable(a)
    expect(x, w)
    assert ran(stats) == (False, 1, 0)
    for first in (1, 2, 3):  # the same kernels in another order
        expect(x, w, first)
        assert ran(stats) == (True, 0, 0)


def test_kernels_of_a_program_that_came_back_stand_in_for_another(stats):
    a, w = arrays()
    x = tape.Variable(a)
    for first in (0, 1):
        expect(x, w, first)
        expect(x, w, first)
        assert ran(stats) == (False, 1, 1)


def test_few_new_kernels_are_compiled_on_their_own(stats):
    a, w = arrays()
    float((tnp.sin(tape.Variable(a)) * w).sum())
    assert ran(stats) == (True, 0, 0)


def test_a_loop_of_jax_and_its_vjp_are_compiled_at_once(stats):
    x, w = arrays()
    rows = jnp.stack([x, w, x])  # so few turns that interpretation costs little
    variable = tape.Variable(w)

    def turn(np, carried, row):
        for _ in range(10):
            carried = np.tanh(carried * row) - np.cumsum(carried) / row.size
        return carried, None

    def step():
        state, _ = tape.lax.scan(lambda c, row: turn(tnp, c, row), variable, rows)
        state.sum().backward()

    step()
    assert (stats.interpreted, stats.reasons.total()) == (0, 1)
    variable.zero_grad()
    step()
    assert (stats.hits, stats.interpreted, stats.reasons.total()) == (1, 0, 1)
    wanted = jax.grad(lambda w: jax.lax.scan(lambda c, row: turn(jnp, c, row), w, rows)[0].sum())(w)
    np.testing.assert_allclose(variable.grad.numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_a_training_step_of_few_large_kernels_is_compiled_at_once(stats):
    """What a model of another library is: one op forward, one back, and the optimizer's update."""
    import optax

    x, w = arrays()

    def large(x, w):
        for i in range(24):
            x = jnp.flip(jnp.cumsum(jnp.sin(x + i) * w)) / x.size
        return x

    model, variable = interop.lift(large), tape.Variable(w)
    optimizer = interop.optax.Optimizer([variable], optax.sgd(0.1))
    model(x, variable).mean().backward()
    optimizer.step()
    assert stats.interpreted == 0
    assert stats.reasons.total() == 1
    optimizer.zero_grad()
    model(x, variable).mean().backward()
    optimizer.step()
    assert (stats.hits, stats.interpreted, stats.reasons.total()) == (1, 0, 1)
    wanted = w
    for _ in range(2):
        wanted = wanted - 0.1 * jax.grad(lambda w: large(x, w).mean())(wanted)
    np.testing.assert_allclose(variable.numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("loops", [False, True])
def test_what_repeats_its_kernels_is_interpreted_first_unless_it_is_a_loop(stats, loops):
    a, w = arrays()
    x = tape.Variable(a)
    h = x
    order = [i % 4 for i in range(150)] if loops else np.random.default_rng(0).integers(4, size=150).tolist()
    for i in order:
        h = [tnp.sin, tnp.cos, tnp.tanh, tnp.arctan][i](h) * w
    h.sum().backward()
    assert ran(stats) == ((False, 1, 0) if loops else (True, 0, 0))


@pytest.mark.parametrize("what", ["effects", "arrays inside", "no jit", "debug"])
def test_what_is_better_run_entry_by_entry_is_so(what, stats):
    a, w = arrays()
    x = tape.Variable(a)
    seen = []
    if what == "effects":
        x = interop.lift(lambda v: (jax.debug.callback(seen.append, v.sum()), v + 1)[1])(x)
    elif what == "arrays inside":
        big = np.arange(len(a), dtype=np.float32)
        x = record(Op("shifted", lambda v: v + big), (x,))
    with jax.disable_jit(what == "no jit"), jax.debug_nans(what == "debug"):
        float(chain(tnp, x, w))
    assert ran(stats) == (True, 0, 0)
    jax.effects_barrier()
    assert len(seen) == (what == "effects")


def test_a_program_that_the_compiler_refuses_is_interpreted(stats):
    a, w = arrays()
    x = tape.Variable(a)
    bad = interop.lift(lambda v: jax.lax.platform_dependent(v, tpu=jnp.sin))(x)
    good = chain(tnp, x, w)
    np.testing.assert_allclose(good.value, chain(jnp, a, w), rtol=1e-4)
    assert stats.compiles == 0
    del bad


def test_what_was_compiled_at_once_is_found_among_the_last_ones_only(monkeypatch, stats):
    monkeypatch.setattr(execution, "_PROGRAMS", execution.Bounded("test of programs met once", 1))
    pairs = [arrays() for _ in range(3)]
    for a, w in pairs:
        expect(tape.Variable(a), w)
    assert ran(stats) == (False, 3, 0)
    assert len(execution._PROGRAMS) == 1
    a, w = pairs[-1]
    expect(tape.Variable(a), w)
    assert ran(stats) == (False, 0, 1)
    a, w = pairs[0]
    expect(tape.Variable(a), w)  # it came back: bought again
    assert ran(stats) == (False, 1, 0)


def test_leaves_that_nobody_reads_make_no_other_program(stats):
    a, w = arrays()
    for dead in range(3):
        x = tape.Variable(a)
        unread = [tnp.sin(x * (k + 2.0)) for k in range(dead)]
        loss = chain(tnp, x, w)
        del unread
        loss.backward()
        expected = jax.grad(lambda v: chain(jnp, v, w))(a)
        np.testing.assert_allclose(x.grad.value, expected, rtol=1e-3, atol=1e-6)
        assert ran(stats) == ((False, 1, 0) if dead == 0 else (False, 0, 1))


def test_the_same_kernels_on_other_inputs_or_for_other_results_make_another_program(stats):
    a, w = arrays()

    def grown(n, x, read):
        results = [x]
        for name, i in zip(["sin", "tanh", "arctan", "cos", "sinh", "exp"], read, strict=True):
            results.append(getattr(n, name)(results[i]) * w)
        return [*results, sum(results)]

    chain, tree = range(6), [0, 1, 1, 2, 3, 4]
    for read, held in ((chain, 1), (chain, 1), (chain, 3), (tree, 3), (chain, 1), (tree, 3)):
        *_, last = results = grown(tnp, tape.constant(a), read)
        one, expected = results[held], grown(jnp, a, read)
        del results, _
        np.testing.assert_allclose(last.value, expected[-1], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(one.value, expected[held], rtol=1e-4, atol=1e-6)
    assert stats.compiles == 3


def test_which_leaf_is_read_where_makes_another_program(stats):
    a, w = arrays()

    def difference(first, second):
        h = tnp.sin(first) * tnp.cos(second)
        return (tnp.tanh(h) - tnp.arctan(first) + tnp.arcsinh(h)).sum()

    for first, second in ((a, w), (a, w), (w, a), (a, a)):
        x, y = tape.Variable(a), tape.constant(w)
        given = {id(a): x, id(w): y}
        found = difference(given[id(first)], given[id(second)])
        expected = np.sin(first) * np.cos(second)
        expected = (np.tanh(expected) - np.arctan(first) + np.arcsinh(expected)).sum()
        np.testing.assert_allclose(found.value, expected, rtol=1e-4)
    assert stats.compiles == stats.hits == 2  # of two leaves, whichever, and of one that is read twice


@pytest.mark.parametrize("retain", [False, True])
def test_gradients_of_leaves_that_nobody_holds_are_no_results(retain, stats):
    a, w = arrays()
    p = tape.Variable(w)
    for _ in range(4):
        p.zero_grad()
        inner = (tape.Variable(a) * 0.5).detach().requires_grad_()  # as in a gradient penalty
        slope = tape.gradients(chain(tnp, inner, p), inner, create_graph=True)
        del inner
        (slope * slope).sum().backward(retain_graph=retain)
    assert stats.compiles == 1
    assert stats.interpreted == 0


# -- the background -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stuck(monkeypatch):
    """A compiler that does not finish before it is told to; and the waits for it."""
    idle.settle()
    go, waits = threading.Event(), []
    compiling, made_within = background.compiling, background.Job.made_within

    def slow(function, arguments):
        background.submit(go.wait)
        return compiling(function, arguments)

    def noted(job, seconds):
        waits.append(seconds)
        return made_within(job, seconds / 50)

    monkeypatch.setattr(policy, "LIMIT", LIMIT)
    monkeypatch.setattr(background, "compiling", slow)
    monkeypatch.setattr(background.Job, "made_within", noted)
    yield go, waits
    go.set()
    idle.settle()


def warm(x, w):
    """Meet a structure whose kernels have run."""
    with tape.eager():
        step(x, w)


def test_no_step_waits_for_long(stuck, stats):
    go, waits = stuck
    a, w = arrays()
    x = tape.Variable(a)
    warm(x, w)
    for _ in range(2000):
        step(x, w)
        if any(waits[: -2 * policy.STALLS]):
            break
    assert LIMIT <= 0.25
    assert stats.compiles == stats.hits == 0
    due = waits.index(policy.LIMIT)
    assert waits[due : due + policy.STALLS] == [policy.LIMIT] * policy.STALLS
    assert set(waits[:due]) == set(waits[due + policy.STALLS :]) == {0.0}
    go.set()
    idle.settle()
    expect(x, w)
    assert (stats.compiles, stats.hits) == (1, 1)


def test_ctrl_c_while_waiting_leaves_the_compiler_at_work(stuck, monkeypatch, stats):
    go, waits = stuck
    a, w = arrays()
    x = tape.Variable(a)
    warm(x, w)
    made_within = background.Job.made_within
    interrupted = []

    def interrupt(job, seconds):
        interrupted.append(job)
        raise KeyboardInterrupt

    while not any(waits):
        step(x, w)
    monkeypatch.setattr(background.Job, "made_within", interrupt)
    with pytest.raises(KeyboardInterrupt):
        step(x, w)
    monkeypatch.setattr(background.Job, "made_within", made_within)
    go.set()
    interrupted[0].wait()
    expect(x, w)
    assert stats.compiles == stats.hits == 1
    assert sum(stats.reasons.values()) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_job_of_another_process_is_lost(monkeypatch):
    job = background.submit(int)
    job.wait()
    assert not job.lost
    monkeypatch.setattr(os, "getpid", lambda: -1)
    waiting = threading.Event()
    late = background.submit(waiting.wait)
    monkeypatch.undo()
    assert late.lost
    waiting.set()
    late.wait()
    assert not late.lost


def test_a_job_that_was_interrupted_is_lost():
    def interrupted():
        raise KeyboardInterrupt

    def failing():
        raise ValueError("no")

    lost, failed = background.Job(interrupted), background.Job(failing)
    with pytest.raises(KeyboardInterrupt):
        lost.wait()
    with pytest.raises(ValueError, match="no"):
        failed.wait()
    assert lost.lost
    assert not failed.lost


def test_structures_that_compute_the_same_share_what_is_being_compiled(stats, monkeypatch):
    monkeypatch.setattr(policy, "STALL", 60.0)
    monkeypatch.setattr(policy, "PART", 1.0)
    a, w = arrays()
    warm(tape.Variable(a), w)
    for dead in range(6):
        x = tape.Variable(a)
        unread = [tnp.sin(x * (k + 2.0)) for k in range(dead)]
        loss = chain(tnp, x, w)
        del unread
        loss.backward()
    assert (stats.compiles, stats.hits) == (1, 3)


# -- meetings -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """A process that begins now."""
    monkeypatch.setattr(policy, "CLOCK", trie._Clock())
    monkeypatch.setattr(policy, "TIME", policy._Time())
    return policy.CLOCK


def meet(meetings, clock, runs=1, seconds=0.001):
    clock.now += runs
    meetings.count()
    meetings.pay(seconds)


@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.8])
def test_a_program_is_begun_at_the_second_meeting_and_interpreted_meanwhile(seconds, clock):
    meetings, rent = policy.Meetings(0), 0.01
    meet(meetings, clock, seconds=rent)
    assert not meetings.worthwhile(seconds)
    meet(meetings, clock, seconds=rent)
    assert meetings.worthwhile(seconds)
    meetings.begin(seconds)
    count = 0
    while meetings.patience() == (0.0, False):
        meet(meetings, clock, seconds=rent)
        count += 1
    waits = min(STALL, PART * seconds)
    assert (seconds - waits) / rent == pytest.approx(count, abs=2)
    assert waits < LIMIT  # so that a run that waits finds what was foreseen rightly


@pytest.mark.parametrize(
    ("times", "runs", "rent", "price", "bought"),
    [
        (1, 1, 1.0, 0.3, True),  # less than one run
        (1, 1, 1.0, 0.5, False),
        (2, 1, 0.1, 1.1, True),  # it came back at once: less than a few
        (2, 1, 0.1, 1.3, False),
        (2, 50, 0.1, 1.1, False),  # not soon
        (3, 1, 0.1, 1.1, False),  # the second step only: later ones wait for nothing so long
    ],
)
def test_what_takes_little_beside_interpreting_it_is_compiled_at_once(times, runs, rent, price, bought, clock):
    meetings = policy.Meetings(0)
    for _ in range(times):
        meet(meetings, clock, runs=runs)
    assert meetings.at_once(rent, lambda: price) == bought


def test_what_nothing_compiles_as_quickly_as_is_not_even_priced(clock):
    meetings = policy.Meetings(0)
    meet(meetings, clock)
    assert not meetings.at_once(costs.PROGRAM, pytest.fail)


def test_large_products_run_compiled_from_their_second_step_on(stats):
    a, w = jnp.ones((next(WIDTHS) // 2, 1000), jnp.float32), tape.Variable(jnp.full((1000, 1000), 1e-3))

    def step():
        w.grad = None
        (a @ w).mean().backward()
        return w.grad.numpy()

    first = step()
    assert ran(stats) == (True, 0, 0)
    for bought in (1, 0):
        np.testing.assert_allclose(step(), first, rtol=1e-5)
        assert ran(stats) == (False, bought, 1 - bought)


def test_a_big_program_is_begun_when_interpretation_has_cost_a_share_and_not_waited_for(clock):
    meetings, seconds, rent = policy.Meetings(0), 5.0, 0.02
    count = 0
    while not meetings.worthwhile(seconds):
        meet(meetings, clock, seconds=rent)
        count += 1
    assert count == pytest.approx(seconds / policy.SHARE / rent, abs=1)
    meetings.begin(seconds)
    count = 0
    while (found := meetings.patience()) == (0.0, False):
        meet(meetings, clock, seconds=rent)
        count += 1
    assert found == (policy.LIMIT, True)
    assert rent * count + policy.RUN * count + policy.STALL == pytest.approx(seconds, abs=0.05)
    meetings.change(seconds)
    assert policy.TIME.now == pytest.approx(meetings._done)


def test_programs_wait_for_each_other(clock):
    first, second = policy.Meetings(0), policy.Meetings(0)
    for meetings in (first, second, first, second):
        meet(meetings, clock)
        meetings.pay(2.0)
    for meetings in (first, second):
        assert meetings.worthwhile(2.0)
        meetings.begin(2.0)
    first.pay(1.99)
    assert first.patience() == (policy.LIMIT, True)
    assert second.patience() == (0.0, False)
    second.pay(2.0)
    assert second.patience() == (policy.LIMIT, True)


def test_a_program_waits_for_others_no_longer_than_until_interpretation_has_paid_for_it(clock):
    others, last = [policy.Meetings(0) for _ in range(5)], policy.Meetings(0)
    for meetings in (*others, last):
        meetings.pay(1.0)
        meetings.begin(2.0)
    meet(last, clock, seconds=1.99)
    assert last.patience() == (0.0, False)
    meet(last, clock, seconds=0.02)
    assert last.patience() == (policy.LIMIT, True)
    last.change(2.0)
    assert policy.TIME.now == pytest.approx(policy.TIME.idle)  # those before it are compiled by then


def test_one_run_in_a_while_waits_for_the_compiler(clock, monkeypatch):
    monkeypatch.setattr(policy, "GAP", 100.0)
    monkeypatch.setattr(policy.time, "monotonic", seconds := iter([1000.0, 1001.0, 1099.0, 1100.0]).__next__)
    late = [policy.Meetings(0) for _ in range(3)]
    for meetings in late:
        meetings.begin(0.0)
    assert [meetings.patience()[0] for meetings in (*late, late[0])] == [policy.LIMIT, 0.0, 0.0, policy.LIMIT]
    with pytest.raises(StopIteration):
        seconds()


def test_what_comes_back_seldom_does_not_wait_at_first(clock):
    meetings = policy.Meetings(0)
    for _ in range(policy.OFTEN):
        assert not meetings.worthwhile(0.1)
        meet(meetings, clock, runs=10_000)
    assert meetings.worthwhile(0.1)
    meetings.begin(0.1)
    meet(meetings, clock, runs=policy.LOOP + 1)
    assert meetings.patience() == (0.0, False)
    meet(meetings, clock, runs=policy.PATIENCE, seconds=0.1)
    assert meetings.patience() == (policy.LIMIT, True)


# -- costs --------------------------------------------------------------------------------------------------------------


def cost(fun, *shapes):
    return costs.cost_of(jax.make_jaxpr(fun)(*[jax.ShapeDtypeStruct(s, np.float32) for s in shapes]).jaxpr)


def test_loops_are_compiled_once_and_run_often():
    def loop(n):
        return cost(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) @ c, None), x, None, n)[0], (64, 64))

    assert loop(10).part == loop(1000).part
    assert loop(1000).run > 50 * loop(10).run > 0


def test_products_take_longer_than_sums():
    product, total = cost(jnp.matmul, (512, 512), (512, 512)), cost(jnp.add, (512, 512), (512, 512))
    assert product.run > 2 * total.run
    image, kernel = (8, 16, 32, 32), (16, 16, 3, 3)
    convolution = cost(lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"), image, kernel)
    assert convolution.run > 2 * cost(jnp.sin, image).run
    assert cost(jnp.linalg.cholesky, (256, 256)).run > 2 * cost(jnp.sin, (256, 256)).run


def test_calls_cost_what_they_call():
    def plain(x):
        return jnp.sin(x) * 2

    assert cost(jax.jit(plain), (3,)).part == cost(plain, (3,)).part == 2 * cost(jnp.sin, (3,)).part


def test_what_runs_quickly_is_compiled_quickly():
    little, much = cost(jnp.sin, (8,)), cost(jnp.sin, (1 << 20,))
    assert little.small
    assert not much.small
    assert little.alone < much.alone


def test_devices_that_came_later_are_seen(monkeypatch):
    assert devices.there_are_several() == (jax.device_count() > 1)
    monkeypatch.setattr(jax, "device_count", lambda: 4)  # as after jax.extend.backend.clear_backends()
    assert devices.there_are_several()
