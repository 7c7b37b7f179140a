"""A loop that comes with ever other numbers of turns runs by its body, compiled once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.graph import length
from tape.programs import policy, turns, variations
from tests.platforms import at_home

RANDOM = np.random.default_rng(0)
WEIGHTS = 0.25 * RANDOM.normal(size=(4, 4)).astype(np.float32)  # so that tanh is not near its limits, where 1 - tanh^2 cancels
BEGINNING = RANDOM.bit_generator.state


def loss(m, ws, xs):
    """A loop with one weight for each turn, which may all be the same."""
    h = m.zeros((2, 4))
    for i, (w, x) in enumerate(zip(ws, xs, strict=True)):
        z = m.tanh(m.concatenate([x, h], axis=1) @ m.concatenate([w, 0.5 * w], axis=0))
        h = 0.9 * h + z * (1 + 0.01 * i) - 0.1 * z[:, ::-1]
    return (h * h).mean()


def inputs(count):
    return [jnp.asarray(RANDOM.normal(size=(2, 4)), jnp.float32) for _ in range(count)]


@pytest.fixture(autouse=True)
def _own_numbers():
    """Draw the same ones in a test whatever others ran before it."""
    RANDOM.bit_generator.state = BEGINNING


@pytest.fixture
def not_light(monkeypatch):
    """Kernels as of primitives that only XLA has, or of bigger arrays."""
    monkeypatch.setattr(variations, "WORK", 0.0)


def swept(w, xs):
    w.grad = None
    loss(tnp, [w] * len(xs), [tape.constant(x) for x in xs]).backward()
    return w.grad.value


def assert_right(found, w, xs):
    """Compare with JAX's gradient.  It is a sum over the turns, which may cancel: what rounds is its terms."""
    # An array for each turn, not one of all: so JAX compiles the same operations for every number of turns.
    terms = np.stack(jax.grad(lambda ws: loss(jnp, ws, xs))([w] * len(xs)))
    np.testing.assert_array_less(np.abs(found - terms.sum(0)) / np.abs(terms).sum(0), 1e-5)


def test_other_lengths_reuse_the_body(not_light):
    w = tape.Variable(WEIGHTS)
    counts = [8, 11, 9, 14, 7, 12, 10, 13, 16, 21, 19]
    stats = tape.stats()
    interpreted = []
    for count in counts:
        xs = inputs(count)
        stats.reset()
        found = swept(w, xs)
        interpreted.append((stats.interpreted, stats.executed))
        assert_right(found, WEIGHTS, xs)
        assert stats.compiles == 0
    assert all(few == many for few, many in interpreted[: 1 + variations.AFTER])  # which run uses the body does not depend on the compiler
    assert [few for few, _ in interpreted[-3:]] == [interpreted[-1][0]] * 3  # as many for every length
    assert interpreted[-1][0] < interpreted[-1][1] / 4


def test_what_runs_by_turns_takes_its_time_too(not_light, monkeypatch):
    """Its program is waited for when that is predicted to have taken as long as the compiler."""
    monkeypatch.setattr(policy, "STALL", 0.0)
    w = tape.Variable(WEIGHTS[::-1].copy())
    for count in (17, 20, 18, 23, 22, 25, 24, 26, 27):  # which no other test has; one of them has the body compiled
        swept(w, inputs(count))
    xs, stats = inputs(28), tape.stats()
    spent, ran = [], []
    for _ in range(4):
        stats.reset()
        before = policy.TIME.spent
        swept(w, xs)
        spent.append(policy.TIME.spent - before)
        ran.append(stats.interpreted / stats.executed)
    assert all(0 < part < 0.25 for part in ran)
    assert spent == pytest.approx([spent[0]] * 4)
    assert spent[0] > 0
    for _ in range(1 + int(2.0 / spent[0])):
        stats.reset()
        swept(w, xs)
        if not stats.interpreted:
            break
    assert not stats.interpreted


@at_home
def test_loops_of_small_kernels_are_left_to_numpy():
    turns._BODIES.clear()
    w = tape.Variable(WEIGHTS[:, ::-1].copy())
    stats = tape.stats()
    for count in (8, 11, 9, 14, 7, 12, 10, 13, 16, 21, 19):
        xs = inputs(count)
        stats.reset()
        found = swept(w, xs)
        assert stats.interpreted == stats.executed > 64
        assert_right(found, w.value, xs)
    assert not turns._BODIES


@pytest.mark.parametrize(("width", "calls"), [pytest.param(64, False, marks=at_home), (160, True)])
def test_bodies_are_called_where_that_takes_less_than_numpy(width, calls):
    turns._BODIES.clear()
    w = tape.Variable(RANDOM.normal(size=(width, width)).astype(np.float32) / width)
    stats = tape.stats()
    for count in range(31, 43):
        stats.reset()
        w.grad = None
        h = tnp.ones(width)
        for _ in range(count):
            h = tnp.tanh(h @ w) - 0.25 * h
        (h * h).mean().backward()
        assert np.isfinite(w.grad.value).all()
    assert (stats.interpreted < stats.executed / 4, bool(turns._BODIES)) == (calls, calls)


@pytest.mark.parametrize(("rows", "calls"), [pytest.param(4, False, marks=at_home), (32, True)])
def test_products_of_few_rows_are_left_to_numpy(rows, calls):
    turns._BODIES.clear()
    u, w = (tape.Variable(RANDOM.normal(size=(64, 64)).astype(np.float32) / 64) for _ in range(2))
    for count in range(31, 43):
        h = tape.constant(np.zeros((rows, 64), np.float32))
        for x in RANDOM.normal(size=(count, rows, 64)).astype(np.float32):
            h = tnp.tanh(x @ u + h @ w)
        assert all(np.isfinite(g.value).all() for g in tape.gradients((h * h).sum(), [u, w]))
    assert bool(turns._BODIES) == calls


def test_a_loop_of_one_length_leaves_its_body_to_its_program():
    turns._BODIES.clear()
    x = tape.Variable(WEIGHTS)
    for _ in range(6):
        y = x
        for _ in range(15):
            y = tnp.sin(y) @ x - 0.25 * tnp.cos(y) + y / 3
        y.sum().backward()
    assert all(body.job is None for body in turns._BODIES.values())


class Refusing(tape.Function):
    """An identity that fails for big values, when it runs."""

    @staticmethod
    def forward(ctx, x):
        return REFUSING(x)

    @staticmethod
    def backward(ctx, g):
        return g


def refused(x):
    if float(x[0]) > 100:
        msg = "too much"
        raise ValueError(msg)
    return x


REFUSING = interop.lift(lambda x: jax.pure_callback(refused, jax.ShapeDtypeStruct(x.shape, x.dtype), x))


def test_an_entry_that_fails_is_named_though_its_loop_runs_by_turns(not_light):
    def chain(count, x, m=tnp, check=Refusing.apply):
        for _ in range(count):
            x = check(m.sin(x) * 0.1 + m.cos(x) + x * 0.25 - m.tanh(x) * 0.5)
        return x

    start = tape.Variable(np.float32([0.5, 0.5]))
    for count in (10, 12, 14, 9, 16, 11, 13, 15, 17):
        chain(count, start).block_until_ready()
    tape.stats().reset()
    np.testing.assert_allclose(chain(18, start).value, chain(18, np.float32([0.5, 0.5]), np, lambda x: x), rtol=1e-3)
    assert tape.stats().interpreted < tape.stats().executed / 2
    with pytest.raises(tape.errors.ExecutionError, match="too much"):
        chain(19, start * 1e6).value


def run(n, x, scale):
    for _ in range(n):
        x = tnp.tanh(x * scale) + 0.5 * tnp.sin(x) - 0.25 * tnp.cos(x * scale) + x / 7
    return x


@pytest.mark.parametrize("look", [False, True])
def test_long_loops_are_cut_between_turns_into_equal_segments(look, monkeypatch):
    monkeypatch.setattr(length, "LOOP_LIMIT", 2)
    x, scale = tape.Variable(np.float32([0.1, 0.2])), tape.Variable(np.float32(0.7))
    stats = tape.stats()
    for repetition in range(4):
        stats.reset()
        x.grad = scale.grad = None
        y = run(500, x, scale)
        if look:
            y.block_until_ready()
        y.sum().backward()
        if repetition == 0:
            assert stats.flushes["length"] >= 3
            # Most segments have one structure, and so have their sweeps.
            assert stats.programs <= 7

    def jaxed(x, scale):
        def body(x, _):
            return jnp.tanh(x * scale) + 0.5 * jnp.sin(x) - 0.25 * jnp.cos(x * scale) + x / 7, None

        return jax.lax.scan(body, x, None, length=500)[0].sum()

    expected = jax.grad(jaxed, (0, 1))(x.value, scale.value)
    for found, right in zip((x.grad.value, scale.grad.value), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-4)


def gated(h, weights, numpy=tnp):
    z = numpy.tanh(h @ weights)
    return 0.5 * h + z * numpy.sin(h @ weights.T) - 0.25 * z * z + 0.125 * numpy.cos(z)


def test_a_long_loop_that_runs_before_its_sweep_keeps_few_values_of_its_turns():
    rng = np.random.default_rng(0)
    start, weights = (rng.normal(size=s).astype(np.float32) / 4 for s in [(3, 5), (5, 5)])
    h, w = tape.constant(start), tape.Variable(weights)
    for _ in range(70):
        h = gated(h, w)
    y = (h * h).sum()
    assert np.isfinite(float(y))
    assert len(y._segment.run.saved) < 10  # of 140 products
    gradient = tape.gradients(y, w, create_graph=True)
    (gradient**2).sum().backward()

    @jax.grad
    def differentiated(w):
        h, _ = jax.lax.scan(lambda h, _: (gated(h, w, jnp), None), start, None, length=70)
        return (h * h).sum()

    np.testing.assert_allclose(gradient.value, differentiated(weights), rtol=1e-4, atol=1e-6)
    second = jax.grad(lambda w: (differentiated(w) ** 2).sum())(weights)
    np.testing.assert_allclose(w.grad.value, second, rtol=1e-3, atol=1e-5)


def test_a_long_loop_is_one_program_also_where_its_gradient_is_differentiated():
    x, scale = tape.Variable(np.float32([0.1, 0.2])), tape.Variable(np.float32(0.7))
    n = 80  # 800 entries, and as many again for each sweep
    stats = tape.stats()
    for _ in range(6):
        stats.reset()
        x.grad = None
        (gradient,) = tape.gradients(run(n, x, scale).sum(), [x], create_graph=True)
        (gradient * gradient).sum().backward()
        assert stats.flushes == {"backward": 1}

    def once(x):
        def body(x, _):
            return jnp.tanh(x * 0.7) + 0.5 * jnp.sin(x) - 0.25 * jnp.cos(x * 0.7) + x / 7, None

        return jax.lax.scan(body, x, None, length=n)[0].sum()

    expected = jax.grad(lambda x: (jax.grad(once)(x) ** 2).sum())(x.value)
    assert stats.hits == 1
    np.testing.assert_allclose(x.grad.value, expected, rtol=1e-3)


def test_big_values_end_a_segment_sooner(monkeypatch):
    monkeypatch.setattr(length, "BYTES_LIMIT", 1 << 16)
    x, scale = tape.Variable(np.ones(50, np.float32)), tape.constant(0.5)
    stats = tape.stats()
    stats.reset()
    run(300, x, scale).block_until_ready()
    assert stats.flushes["length"] >= 300 * 10 // length.SEGMENT_LIMIT - 1
