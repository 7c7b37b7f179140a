"""Values of NumPy become arrays of JAX: by a program of their shape when that comes often, which no run compiles itself."""

import threading
import time
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.programs import background, handing, interpretation
from tests import idle
from tests.platforms import AT_HOME

SHAPE = (3, 107)


def test_a_program_of_a_shape_is_compiled_in_the_background(monkeypatch):
    called = []
    put = handing._put

    class Put:
        lower = staticmethod(put.lower)

        def __call__(self, *arrays):
            called.append(len(arrays))
            return put(*arrays)

    monkeypatch.setattr(handing, "_put", Put())
    values = [np.ones(SHAPE, np.float32), np.asarray(3.0)]
    avals = [jax.typeof(jnp.zeros(SHAPE)), jax.typeof(3.0)]
    for _ in range(handing._OFTEN // 2 + 1):
        handing.to_jax(values, avals)
    assert 2 not in called
    idle.settle()
    made, number = handing.to_jax(values, avals)
    assert called.count(2) == 1
    values[0][:] = 2.0
    np.testing.assert_array_equal(made, np.ones(SHAPE))
    assert (made.dtype, made.weak_type, made.committed) == (jnp.float32, False, False)
    assert (float(number), number.dtype, number.weak_type, number.committed) == (3.0, jnp.float32, True, False)


def test_values_of_a_run_are_put_in_one_call(monkeypatch):
    called = []
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda *args: called.append(args) or put(*args))
    values = [np.full((n, 111), n, np.float32) for n in (2, 3, 4)]
    made = handing.to_jax(values, [jax.typeof(x) for x in values])
    assert len(called) == 1
    for x, y in zip(made, values, strict=True):
        np.testing.assert_array_equal(x, y)
        assert not x.committed


@pytest.mark.skipif(not AT_HOME, reason="NumPy computes nothing")
def test_what_hands_over_the_results_of_a_structure_is_compiled_before_it(monkeypatch):
    begun = []
    compiling = background.compiling
    monkeypatch.setattr(background, "compiling", lambda f, args: begun.append((f, len(args))) or compiling(f, args))
    x = tape.Variable(np.ones((3, 113), np.float32))
    for _ in range(2):
        a, b = tnp.sin(x), tnp.cos(x)
        a.block_until_ready()
    del a, b
    assert begun[0] == (handing._put, 2)
    assert len(begun) == 2
    assert begun[1][0] is not handing._put


@pytest.mark.parametrize("rows", [3, interpretation.SMALL // 8 + 1])
def test_what_only_sweeps_read_is_handed_to_jax_where_it_is_big(rows, stats):
    def loss(xp, x, w):
        return xp.exp((x @ w)[1:] / 4.0 + xp.flip(x @ w, 0)[1:]).sum()

    a, b = np.linspace(-1, 1, 4 * rows, dtype=np.float32).reshape(rows, 4), np.ones((4, 2), np.float32)
    x, w = tape.Variable(a), tape.Variable(b)
    y = loss(tnp, x, w)
    np.testing.assert_allclose(y.value, loss(jnp, a, b), rtol=1e-5)
    assert stats.interpreted
    kept = [cell[0] for cell in y._segment.run.saved.values() if cell is not y._cell]
    assert kept
    assert all(isinstance(value, jax.Array) == (value.nbytes > interpretation.SMALL or not AT_HOME) for value in kept)
    gradients = tape.gradients(y, [x, w], retain_graph=True)
    again = tape.gradients(y, [x, w], create_graph=True)
    expected = jax.grad(lambda x, w: loss(jnp, x, w), argnums=(0, 1))(a, b)
    for ours, second, theirs in zip(gradients, again, expected, strict=True):
        assert isinstance(ours.value, jax.Array)
        np.testing.assert_allclose(ours.value, theirs, rtol=1e-5)
        np.testing.assert_allclose(second.value, theirs, rtol=1e-5)
    second = tape.gradients((again[1] ** 2).sum(), w)
    theirs = jax.grad(lambda w: (jax.grad(lambda w: loss(jnp, a, w))(w) ** 2).sum())(b)
    np.testing.assert_allclose(second.value, theirs, rtol=1e-4)


def turns(xp, w, x, late=0.0, look=float):
    """Return the loss of a loop that looks at a value in each turn; its last turn, to which sweeps come first, reads ``late``."""
    taken = []
    for turn in range(12):
        logs = xp.tanh(x * w + (late if turn == 11 else 1.0))
        look(logs[0])
        taken.append(logs[1])
        x = x * 0.9
    return xp.stack(taken).sum()


@pytest.mark.skipif(not AT_HOME, reason="NumPy computes nothing")
def test_what_a_sweep_hands_from_turn_to_turn_stays_with_numpy(monkeypatch):
    given = []
    to_jax = interpretation.to_jax
    monkeypatch.setattr(interpretation, "to_jax", lambda values, avals: given.append(len(values)) or to_jax(values, avals))
    w = tape.Variable(np.linspace(0.1, 1.0, 231, dtype=np.float32))
    loss = turns(tnp, w, np.linspace(-1.0, 1.0, 231, dtype=np.float32))
    given.clear()
    loss.backward()
    assert sum(given) < 4, "the turns' cotangents, and the total after each of them"
    assert isinstance(w.grad.value, jax.Array)


class Twice(tape.Function):
    seen: ClassVar = []

    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, g):
        Twice.seen += [g, g * 2.0]
        return Twice.seen[-1]


@pytest.mark.parametrize("kind", ["leaf", "hook", "function", "gradients"])
def test_what_a_sweep_gives_to_users_is_an_array_of_jax(kind):
    """Also what was final turns before the sweep ended, and what a hook saw, or has computed, on the way."""
    a, x = np.linspace(0.1, 1.0, 237, dtype=np.float32), np.linspace(-1.0, 1.0, 237, dtype=np.float32)
    w, late = tape.Variable(a), tape.Variable(np.full((237,), 0.5, np.float32))
    seen = Twice.seen = []
    if kind == "hook":
        w.register_hook(lambda g: seen.append(g))
        late.register_hook(lambda g: seen.extend([g, g + 1.0]))
    further = Twice.apply(late) * 0.5 if kind == "function" else late * 1.0
    if kind == "hook":
        further.register_hook(lambda g: seen.extend([g, g * 3.0]))
    loss = turns(tnp, w, x, further)
    if kind == "gradients":
        found = tape.gradients(loss, [w, late])
    else:
        loss.backward()
        found = [w.grad, late.grad]
    expected = jax.grad(lambda w, late: turns(jnp, w, x, late, look=lambda v: v), argnums=(0, 1))(a, np.asarray(late.value))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.value, theirs, rtol=1e-5, atol=1e-6)
    assert len(seen) == {"hook": 5, "function": 2}.get(kind, 0)
    assert all(isinstance(v.value, jax.Array) for v in (*found, *seen))


def test_what_hands_values_over_is_compiled_first():
    begun, going, order = threading.Event(), threading.Event(), []
    background.submit(lambda: (begun.set(), going.wait(10)))
    begun.wait(10)
    jobs = [background.submit(lambda n=n: order.append(n)) for n in range(4)]
    assert [background.hastened(job) for job in jobs[2:]] == jobs[2:]
    going.set()
    idle.settle()
    assert all(job.made for job in jobs)
    assert order == [2, 3, 0, 1]


def test_what_a_run_waits_for_is_compiled_next():
    begun, going, order = threading.Event(), threading.Event(), []
    background.submit(lambda: (begun.set(), going.wait(10)))
    begun.wait(10)
    others = [background.submit(lambda n=n: (order.append(n), time.sleep(0.2))) for n in range(4)]
    awaited = background.submit(lambda: order.append("awaited"))
    assert not awaited.made_within(0.0)
    threading.Timer(0.05, going.set).start()
    assert awaited.made_within(0.6)
    idle.settle()
    assert order == ["awaited", *range(4)]
    assert all(job.made for job in others)


def test_values_that_sweeps_read_share_no_memory_with_what_is_given_away(stats):
    x = tape.Variable(np.ones((3, 4), np.float32))
    y = (tnp.exp(x).T.reshape(2, 6) @ np.ones(6, np.float32)).sum()
    y.value.block_until_ready()
    for cell in y._segment.run.saved.values():
        if isinstance(cell[0], np.ndarray):
            assert cell[0].flags.owndata
            assert cell[0].flags.c_contiguous


def test_a_function_that_packs_is_given_what_is_kept():
    given = []
    x = tape.Variable(np.ones((3, 4), np.float32))
    with tape.saved_value_hooks(lambda value: given.append(value.shape) or value, lambda value: value):
        tnp.exp(x @ tape.constant(np.ones((4, 2), np.float32))).sum().value.block_until_ready()
    assert (3, 2) in given


GIVEN = [
    np.array([1.5, np.inf, np.nan]),
    np.array([2**40 + 5, -1]),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.arange(6, dtype=np.float32).reshape(2, 3).T,
    np.float16([1, 2]),
    np.zeros((0, 3)),
    np.array(3.5),
    2.5,
]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("value", GIVEN, ids=lambda value: f"{getattr(value, 'dtype', 'number')}{np.shape(value)}")
def test_what_comes_often_becomes_the_array_that_it_became_at_first(value, x64):
    def made():
        x = tape.constant(value).value
        return x.dtype, x.shape, x.weak_type, x.committed, x.sharding, np.asarray(x).tobytes()

    with jax.enable_x64(x64):
        first = made()
        for _ in range(handing._OFTEN + 1):
            made()
        idle.settle()
        assert made() == first


@pytest.mark.parametrize("around", [lambda: jax.transfer_guard("disallow"), lambda: jax.debug_nans(True), jax.disable_jit])
def test_arrays_that_come_often_are_taken_under_any_setting(around):
    value = np.full((3, 109), np.nan, np.float32)
    with around():
        for _ in range(handing._OFTEN + 1):
            tape.Variable(value)
        idle.settle()
        made = tape.Variable(value)
    value[:] = 0.0
    assert isinstance(made.value, jax.Array)
    assert np.isnan(made.value).all()


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        [1.0, 2.0],
        (1.0, -0.0),
        [1, 2.5],
        [True, 2],
        [False, True],
        [[1, 2], [3, 4]],
        [(1.0,), (2,)],
        [],
        [[]],
        [1.0, [2.0]],
        [2**31],
        [-(2**31)],
        [-(2**63)],
        [2**63],
        [2**70],
        [3e38, float("nan")],
        [np.float16(1), 2.0],
        [1j, 2.0],
        [np.ones(2), [1.0, 2.0]],
        ["text"],
        [None],
    ],
    ids=str,
)
def test_nested_lists_become_the_array_that_jax_makes_of_them(value, x64):
    def made(make):
        try:
            array = make(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return array.dtype, array.weak_type, array.shape, array.tolist()

    with jax.enable_x64(x64):
        assert str(made(lambda value: tape.constant(value).value)) == str(made(jnp.array))
