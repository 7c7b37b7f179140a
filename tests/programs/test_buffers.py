"""Small arrays of NumPy come to a program in buffers: the results are those of ``jax.jit``, and nothing is compiled again because of them."""

import jax
import jax.monitoring
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape import layout
from tape.programs import buffers
from tests import idle

RNG = np.random.default_rng(0)
SHAPES = ((), (3,), (2, 3), (2, 1, 2), (0, 3))
DTYPES = ("bool", "int8", "int32", "uint8", "uint64", "int64", "float16", "float32", "float64", "complex64", "complex128", "bfloat16")


def array(dtype, shape):
    values = RNG.normal(size=shape) * 100
    return (values > 0 if dtype == "bool" else values).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.fixture
def made(monkeypatch):
    """The functions that are given buffers, as they are made."""
    those = []
    original = buffers.Buffered.__init__

    def noting(self, *args, **kwargs):
        original(self, *args, **kwargs)
        those.append(self)

    monkeypatch.setattr(buffers.Buffered, "__init__", noting)
    return those


@pytest.fixture(scope="module")
def listening():
    found = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: found.append(event) if "backend_compile" in event else None
    )
    return found


@pytest.fixture
def compilations(listening):
    """What is compiled meanwhile."""
    listening.clear()
    return listening


def both(fun, arguments, chosen=None, **options):
    """Return a function given buffers, and ``jax.jit`` of it."""
    buffered = buffers.jitted(fun, arguments, range(len(arguments)) if chosen is None else chosen, **options)
    assert isinstance(buffered, buffers.Buffered)
    return buffered, jax.jit(lambda *given: fun(*given))  # compiled on its own


def same(found, wanted):
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.dtype, ours.weak_type, ours.committed) == (theirs.dtype, theirs.weak_type, theirs.committed)
        assert ours.sharding == theirs.sharding
        np.testing.assert_array_equal(ours, theirs)


def listed(*given):
    return [x + x if x.dtype != bool else ~x for x in given]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arguments_are_those_of_jax(dtype, x64):
    with jax.enable_x64(x64), np.errstate(all="ignore"):
        given = [array(dtype, shape) for shape in SHAPES] + [array("float32", (2,)) for _ in range(3)]
        ours, theirs = both(listed, given)
        for _ in range(2):
            same(ours(*given), theirs(*given))
            same(ours.run(*given), theirs(*given))
            given = [array(x.dtype.name, x.shape) for x in given]


@pytest.mark.parametrize(
    "turned",
    [
        lambda x: np.asfortranarray(x),
        lambda x: x[::-1],
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: x.astype(np.float64) * 1e300,
        lambda x: x.view(type("Special", (np.ndarray,), {})),
        lambda x: np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    ],
    ids=["columns", "backwards", "broadcast", "wider", "subclass", "unaligned"],
)
def test_however_an_array_lies(turned):
    given = [array("float32", (4, 3)) for _ in range(4)]
    ours, theirs = both(listed, given)
    for i in range(4):
        turned_ones = [turned(x) if n <= i else x for n, x in enumerate(given)]
        with np.errstate(over="ignore"):
            wanted = theirs(*turned_ones)
        same(ours(*turned_ones), wanted)
        same(buffers.jitted(listed, turned_ones, range(4))(*turned_ones), wanted)


def test_bytes_in_another_order():
    """Which JAX refuses, or takes for those of another number where it has met arrays of the shape."""
    given = [array("float32", (3,)) for _ in range(4)]
    ours, theirs = both(listed, given)
    same(ours(*[x.astype(x.dtype.newbyteorder()) for x in given]), theirs(*given))


def test_what_is_not_chosen_or_large_or_alone_is_an_argument_of_its_own(made):
    large = np.ones(buffers.SMALL + 1, np.uint8)
    given = [large, *[array("float32", (3,)) for _ in range(4)], 2.5, jnp.ones(3), array("int32", (3,)), array("float32", (0,))]
    ours, theirs = both(listed_numbers := lambda *given: [x * 2 for x in given], given, [0, 1, 2, 4, 6, 7, 8])
    same(ours(*given), theirs(*given))
    assert ours._others == (0, 3, 5, 6, 7, 8)
    assert [group[3] for group in ours._groups] == [(1, 2, 4)]
    assert not isinstance(buffers.jitted(listed_numbers, given, [1, 2]), buffers.Buffered)
    assert len(made) == 1


def test_an_argument_that_is_an_array_of_jax_one_day_has_nothing_compiled_again(compilations):
    given = [array("float32", (3,)) for _ in range(4)]
    ours, theirs = both(listed, given)
    same(ours(*given), theirs(*given))
    buffers._joined(*given)
    compilations.clear()
    for places in ((0,), (1, 3), (0, 1, 2, 3)):
        mixed = [jax.device_put(x) if i in places else x for i, x in enumerate(given)]
        same(ours(*mixed), theirs(*mixed))
        same(ours(*given), theirs(*given))
    assert not compilations


def test_an_argument_that_is_bound_or_traced():
    given = [array("float32", (3,)) for _ in range(4)]
    ours, theirs = both(listed, given)
    bound = jax.device_put(given[3], jax.devices()[0])
    same(ours(*given[:3], bound), theirs(*given[:3], bound))
    same(*[jax.jit(lambda x, f=f: f(x, *given[1:]))(given[0]) for f in (ours, theirs)])


def test_buffers_are_new_at_each_call():
    """What runs still may read the one before: XLA does not copy an array that lies as it likes."""
    given = [array("float32", (256,)) for _ in range(4)]
    ours, _ = both(listed, given)
    later = [ours(*[np.full_like(x, n) for x in given]) for n in range(20)]
    for n, results in enumerate(later):
        for result in results:
            np.testing.assert_array_equal(result, 2.0 * n)


def test_donated_arguments_stay_arguments():
    given = [jnp.ones(3), *[array("float32", (3,)) for _ in range(3)], jnp.ones(3) * 2]
    ours, _ = both(lambda a, *x: [a + sum(x)], given, [1, 2, 3], donated=[0])
    (result,) = ours(*given)
    np.testing.assert_array_equal(result, 1 + sum(np.asarray(x) for x in given[1:]))
    assert given[0].is_deleted()
    assert not given[4].is_deleted()


NUMBERS = {
    "floats": lambda n: [0.1 * n, -0.0, 1e300, float("nan"), 1e-46],
    "integers": lambda n: [n, -7, 2**31 - 1, -(2**31)],
    "truths": lambda n: [True, n % 2 == 0, False],
    "of NumPy": lambda n: [np.float32(0.1 * n), np.float64(0.3), 0.7, np.float64(-1e300)],
    "integers of NumPy": lambda n: [np.int32(n), np.int64(-5), 9, np.int64(n)],
    "halves": lambda n: [np.float16(0.1), np.float16(n), np.float16(2.5)],
    "mixed": lambda n: [0.5 * n, 2, True, 0.25, 3, False, 1e-3, n, True, 2 + 1j * n, -0.0 * 1j],
}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_numbers_are_those_of_jax(numbers, x64):
    """Also their weak types, by which they take the dtype of what they meet."""
    with jax.enable_x64(x64), np.errstate(all="ignore"):
        ours, theirs = both(lambda *given: [*listed(*given), *given], numbers(1))
        for n in (1, 2, 2, 3):
            same(ours(*numbers(n)), theirs(*numbers(n)))
            same(ours.run(*numbers(n)), theirs(*numbers(n)))
            same(ours(*numbers(n)[:-1], jax.numpy.asarray(numbers(n)[-1])), theirs(*numbers(n)[:-1], jax.numpy.asarray(numbers(n)[-1])))


@pytest.mark.parametrize("wide", [2**31, -(2**31) - 1, 2**70])
def test_an_integer_that_does_not_fit_is_refused(wide):
    ours, theirs = both(listed, [1, 2, 3])
    same(ours(1, 2, 3), theirs(1, 2, 3))
    for fun in (ours, ours.run, theirs):
        with pytest.raises(OverflowError):
            fun(1, wide, 3)


def test_arrays_of_jax_among_arrays_leave_numbers_alone():
    given = [*[array("float32", (3,)) for _ in range(3)], 0.5, 1.5, 2.5]
    ours, theirs = both(listed, given)
    assert [group[3] for group in ours._groups] == [(0, 1, 2), (3, 4, 5)]
    given[1] = jnp.asarray(given[1])
    same(ours(*given), theirs(*given))


@pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")
@pytest.mark.parametrize("numbers", ["floats", "integers", "truths"])
def test_c_writes_numbers(numbers, monkeypatch):
    given = NUMBERS[numbers]
    ours, theirs = both(listed, given(1))
    monkeypatch.setattr(buffers.Buffered, "run", None)
    for n in range(4):
        with np.errstate(over="ignore"):
            wanted = theirs(*given(n))
        same(ours(*given(n)), wanted)


@pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")
def test_c_fills_buffers(monkeypatch):
    given = [array("float32", shape) for shape in SHAPES] + [array("int32", (3,)) for _ in range(3)]
    ours, theirs = both(listed, given)
    monkeypatch.setattr(buffers.Buffered, "run", None)
    same(ours(*given), theirs(*given))
    with pytest.raises(TypeError, match="NoneType"):
        ours(*given[:-1], jnp.ones(3, jnp.int32))


@pytest.mark.parametrize("wrong", [lambda given: given[:-1], lambda given: ["a", *given[1:]]])
def test_a_call_that_does_not_fit_raises(wrong):
    given = [array("float32", (3,)) for _ in range(4)]
    ours, _ = both(listed, given)
    with pytest.raises((TypeError, IndexError)):
        ours(*wrong(given))


def step(w, rows, xp=tnp):
    h = w[0]
    for row in rows:
        h = xp.tanh(w @ row + h)
    return (h * h).sum()


W = RNG.normal(size=(3, 3)).astype(np.float32)


def settled(run, made):
    """Call ``run`` until a program is given buffers and called."""
    for _ in range(40):
        run()
        idle.settle()
        if made and made[-1]._program._cache_size():
            return
    pytest.fail("nothing is given buffers")


def test_operands_of_ops_are_what_they_were_when_they_were_recorded(made, stats):
    w = tape.Variable(W)
    rows = RNG.normal(size=(6, 3)).astype(np.float32)

    def run():
        rows[:] = RNG.normal(size=(6, 3))
        wanted = jax.value_and_grad(step)(W, rows.copy(), jnp)
        y = step(w, rows)
        rows[:] = np.nan
        np.testing.assert_allclose(y.value, wanted[0], rtol=1e-5)
        rows[:] = 0.0
        y.backward()
        np.testing.assert_allclose(w.grad.value, wanted[1], rtol=1e-4, atol=1e-5)
        w.grad = None

    settled(run, made)
    for _ in range(5):
        run()
    for _ in range(5):
        assert np.isfinite(step(w, rows).value)
        idle.settle()
    stats.reset()
    for turned in (lambda: [tape.constant(r) for r in rows], lambda: [jnp.asarray(r) for r in rows], lambda: list(rows)):
        for _ in range(3):
            rows[:] = RNG.normal(size=(6, 3))
            np.testing.assert_allclose(step(w, turned()).value, step(W, rows, jnp), rtol=1e-5)
    idle.settle()
    assert stats.compiles == 0


def test_what_numpy_computed_at_first_comes_in_no_buffer():
    """It is an array of JAX as soon as that is compiled."""
    operand, computed = np.ones(3), np.ones((3, 3))
    operand.setflags(write=False)
    assert buffers.copies([operand, computed, operand[1:], jnp.ones(3), 2.0, operand]) == [0, 5]


def test_numbers_that_vary_come_in_one_buffer(made, stats):
    """As in an update by hand, with the same numbers for each of several parameters, other ones at each step."""
    w = [tape.Variable(W + n) for n in range(3)]
    expected = [W + n for n in range(3)]
    compiled = jax.jit(lambda w, a, b: (w.T - a * jnp.sin(w)) / (1 + b))

    def run(n):
        for i in range(3):
            w[i] = (w[i].T - 0.1**n * tnp.sin(w[i])) / (1 + 0.2**n)
            expected[i] = compiled(expected[i], 0.1**n, 0.2**n)
            np.testing.assert_allclose(w[i].value, expected[i], rtol=1e-5) if i == 2 else None

    for n in range(1, 40):
        run(n)
        idle.settle()
    assert made
    assert len(made[-1].inside) >= 6
    stats.reset()
    for n in range(1, 8):
        run(n)
    assert stats.compiles == 0


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_arguments_of_compiled_steps(made, dtype):
    w = tape.Variable(W)
    rows = {f"row {i}": array(dtype, (3,)) for i in range(5)}

    @tape.jit
    def train(rows):
        y = step(w, list(rows.values()))
        y.backward()
        w.value = w.value - 0.1 * w.grad.value
        w.grad = None
        return y.detach()

    expected = W
    for turned in (dict, dict, lambda r: {k: jnp.array(v) for k, v in r.items()}, dict):
        for row in rows.values():
            row[:] = array("float32", (3,)) / 50
        value, gradient = jax.value_and_grad(step)(expected, [jnp.asarray(r) for r in rows.values()], jnp)
        y = train(turned(rows))
        for r in rows.values():
            r[:] = 0
        np.testing.assert_allclose(y.value, value, rtol=1e-4)
        expected = expected - 0.1 * gradient
        np.testing.assert_allclose(w.value, expected, rtol=1e-4, atol=1e-5)
    assert len(made) == 1
    assert train.cache_info().traces == 1
    assert "tanh" in train.lower(rows).as_text()


def test_arguments_of_a_differentiable_step_are_what_they_were_at_the_call():
    w = tape.Variable(W)
    rows = [array("float32", (3,)) / 100 for _ in range(5)]
    compiled = tape.jit(lambda rows: step(w, rows))
    for _ in range(6):
        for row in rows:
            row[:] = array("float32", (3,)) / 100
        wanted = jax.value_and_grad(step)(W, [r.copy() for r in rows], jnp)
        y = compiled(rows)
        for r in rows:
            r[:] = 0
        np.testing.assert_allclose(y.value, wanted[0], rtol=1e-5)
        y.backward()
        np.testing.assert_allclose(w.grad.value, wanted[1], rtol=1e-4, atol=1e-5)
        w.grad = None
        idle.settle()


def test_donated_arguments_of_compiled_steps_come_in_no_buffer(made):
    rows = [array("float32", (3,)) for _ in range(5)]
    compiled = tape.jit(lambda rows: [r + 1 for r in rows], donate_argnums=0)
    for r, y in zip(rows, compiled(rows), strict=True):
        np.testing.assert_array_equal(y.value, r + 1)
    assert not made
