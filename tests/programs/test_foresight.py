"""A look and the sweep that follows become one program, and nothing that users see tells whether they are."""

import gc
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop.optax
import tape
import tape.numpy as tnp
from tape.programs import foresight, numbers, policy

X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
W = np.linspace(-0.5, 0.5, 16, dtype=np.float32).reshape(4, 4)
B = np.linspace(0.1, 0.4, 4, dtype=np.float32)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Have programs take over as soon as they may."""
    monkeypatch.setattr(numbers, "_COMPILE", 0.0)
    monkeypatch.setattr(numbers, "_COMPILE_ENTRY", 0.0)
    monkeypatch.setattr(policy, "GAP", 0.0)
    monkeypatch.setattr(policy, "LIMIT", 60.0)
    monkeypatch.setattr(numbers, "LIMIT", 60.0)


@pytest.fixture
def asked(monkeypatch):
    """Return the list that has an item for each run that was foreseen, and for each time that one was asked for."""
    counted = []
    ahead, right = foresight.Leading._ahead, foresight.Leading.right
    monkeypatch.setattr(foresight.Leading, "_ahead", lambda self, given: [counted.append("foreseen"), ahead(self, given)][1])
    monkeypatch.setattr(foresight.Leading, "right", lambda self: [counted.append("right"), right(self)][1])
    return counted


@pytest.fixture
def leaders(monkeypatch):
    """Return the list of those that have come to foresee something."""
    found, take = [], foresight.Leading._take
    monkeypatch.setattr(foresight.Leading, "_take", lambda self, *given: [found.append(self), take(self, *given)][1])
    return found


MODELS = itertools.count()


def model():
    """Return Variables, and a function of them that gives a loss: the same one for each model, of another structure."""
    w, b, signs = tape.Variable(W), tape.Variable(B), next(MODELS)

    def loss(x=X):
        y = tnp.tanh(x @ w + b)
        for _ in range(2 * signs):
            y = -y
        return (y * y).mean()

    return w, b, loss


def gradients(*variables):
    found = [None if v.grad is None else np.asarray(v.grad.value) for v in variables]
    for v in variables:
        v.grad = None
    return found


def step(w, b, loss):
    value = loss()
    looked = float(value)
    value.backward()
    return looked, *gradients(w, b)


def foreseeing(take, *arguments):
    """Run a step until what follows its look is foreseen."""
    for _ in range(300):
        if tape.stats().reasons["a sweep that follows a look"]:
            break
        take(*arguments)
    assert tape.stats().reasons["a sweep that follows a look"] == 1


def reference(w, b, x=X):
    return jax.value_and_grad(lambda w, b: (jnp.tanh(x @ w + b) ** 2).mean(), (0, 1))(w, b)


def test_a_look_runs_what_follows(stats, asked):
    made = model()
    foreseeing(step, *made)
    del asked[:]
    for turn in range(6):
        looked, *found = step(*made)
        value, expected = reference(made[0].value, made[1].value)
        np.testing.assert_allclose(looked, value, rtol=1e-6)
        for g, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(g, right, rtol=1e-5, atol=1e-7)
        made[0].value = made[0].value * (0.9 + 0.01 * turn)
    assert asked == ["foreseen", "right"] * 6
    assert stats.reasons["a sweep that follows a look"] == 1


def hooked(w, b, value, _):
    seen = []
    with_hook = b.register_hook(lambda g: seen.append(float(g.sum())) or 2 * g)
    value.backward()
    with_hook.remove()
    return seen


def seeded(w, b, value, _):
    value.backward(3.0)


def twice(w, b, value, _):
    value.backward(retain_graph=True)
    value.backward()


def released(w, b, value, _):
    value.backward()
    try:
        value.backward()
    except tape.errors.ReleasedTapeError as error:
        return type(error).__name__


def recorded(w, b, value, _):
    (g,) = tape.gradients(value, [w], create_graph=True)
    (g * g).sum().backward()


def only_one(w, b, value, _):
    value.backward(inputs=[b])


def asked_for(w, b, value, _):
    return np.asarray(tape.gradients(value, b).value)


def rebound(w, b, value, _):
    w.value = 3 * w.value
    value.backward()


def frozen(w, b, value, _):
    b.requires_grad_(False)
    value.backward()
    b.requires_grad_(True)


def added(w, b, value, _):
    b.grad = tape.constant(np.ones(4, np.float32))
    value.backward()


def squared(w, b, value, _):
    (value * value).backward()


def another_look(w, b, value, _):
    other = float((w * w).sum())
    value.backward()
    return other


def unswept(w, b, value, _):
    return float(value)


def not_recording(w, b, value, _):
    with tape.no_grad():
        value.backward()


def unchained(w, b, value, _):
    value.unchain()
    try:
        value.backward()
    except tape.errors.TapeError as error:
        return type(error).__name__


def out_of_turn(w, b, value, loss):
    other = loss(2 * X)
    looked = float(other)
    value.backward()
    return looked


BETWEEN = [hooked, seeded, twice, released, recorded, only_one, asked_for, rebound, frozen, added, squared, another_look]
BETWEEN += [unswept, not_recording, unchained, out_of_turn]


@pytest.mark.parametrize("deviate", BETWEEN, ids=lambda f: f.__name__)
def test_whatever_is_done_between(deviate, stats):
    """The same as without foresight: the deviation, and the steps after it."""

    def ran(prepare):
        made = model()
        prepare(step, *made)
        w, b, loss = made
        value = loss()
        found = [float(value), deviate(w, b, value, loss), *gradients(w, b)]
        del value
        for _ in range(3):
            found += [*step(*made), float(w.value.sum())]
        return found

    with_foresight = ran(foreseeing)
    without = ran(lambda take, *made: [take(*made) for _ in range(3)])
    assert len(with_foresight) == len(without)
    for a, b in zip(with_foresight, without, strict=True):
        if a is None or isinstance(a, str):
            assert a == b
        else:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_a_sweep_of_what_was_looked_at_before(asked, stats):
    """What waits is of one run: the same program on the arrays of another one runs itself."""
    made = model()
    w, b, loss = made
    foreseeing(step, *made)
    other = loss(2 * X)
    float(other)
    while asked[-2:] != ["foreseen", "right"]:
        step(*made)
    del asked[:]
    value = loss()
    float(value)
    other.backward()
    for found, right in zip(gradients(w, b), reference(W, B, 2 * X)[1], strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-7)
    value.backward()
    for found, right in zip(gradients(w, b), reference(W, B)[1], strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-7)
    assert asked == ["foreseen"]


def test_wrong_guesses_become_rare(asked, stats):
    made = model()
    foreseeing(step, *made)
    del asked[:]
    for _ in range(40):
        float(made[2]())
    assert asked == ["foreseen"]  # and nobody came
    for _ in range(foresight.FEW * foresight.DEARER):
        step(*made)
    assert asked == ["foreseen"]
    step(*made)
    assert asked == ["foreseen", "foreseen", "right"]


def test_what_waits_goes_with_what_was_looked_at(stats):
    made = model()
    foreseeing(step, *made)
    gc.collect()
    before = len(jax.live_arrays())
    value = made[2]()
    float(value)
    assert foresight._WAITING
    del value
    assert not foresight._WAITING
    assert len(jax.live_arrays()) == before


def test_nothing_waits_after_the_sweep(stats):
    made = model()
    foreseeing(step, *made)
    gc.collect()
    kept = made[2]()
    float(kept)
    kept.backward()
    assert not foresight._WAITING
    gradients(*made[:2])


def test_what_is_large_is_not_foreseen(stats, monkeypatch):
    monkeypatch.setattr(foresight, "BYTES", 8)
    made = model()
    for _ in range(60):
        step(*made)
    assert not stats.reasons["a sweep that follows a look"]


def test_a_program_that_fails_is_given_up(stats, leaders):
    made = model()
    foreseeing(step, *made)
    ran = []

    def failing(*_):
        ran.append(1)
        msg = "no memory"
        raise RuntimeError(msg)

    (leader,) = leaders
    leader._joint = failing
    for _ in range(5):
        looked, *found = step(*made)
        value, expected = reference(W, B)
        np.testing.assert_allclose(looked, value, rtol=1e-6)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-7)
    assert len(ran) == 1


def test_an_interrupted_look_can_be_repeated(stats, leaders):
    made = model()
    foreseeing(step, *made)
    (leader,) = leaders
    joint = leader._joint

    def interrupted(*given):
        leader._joint = joint
        raise KeyboardInterrupt

    leader._joint = interrupted
    value = made[2]()
    with pytest.raises(KeyboardInterrupt):
        float(value)
    assert float(value) == pytest.approx(float(reference(W, B)[0]), rel=1e-6)
    value.backward()
    np.testing.assert_allclose(gradients(made[1])[0], reference(W, B)[1][1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_an_update_that_follows_is_foreseen_with_it(name, stats, asked, monkeypatch):
    def trained(turns=40):
        w, b, loss = model()
        rule = optax.sgd(0.1, momentum=0.9) if name == "sgd" else optax.adam(0.1)
        optimizer = interop.optax.Optimizer([w, b], rule)
        seen = []
        for _ in range(turns):
            value = loss()
            seen.append(float(value))
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*seen, np.asarray(w.value), np.asarray(b.value)]

    found = trained()
    if tape.layout.NATIVE is not None:  # in Python it is a program of its own
        assert "right" in asked
    monkeypatch.setattr(foresight, "BYTES", -1)
    for a, b in zip(found, trained(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


def test_a_profile_sees_each_program_where_it_is_asked_for(stats, asked):
    made = model()
    foreseeing(step, *made)
    del asked[:]
    with tape.profile():
        step(*made)
    assert not asked


def test_an_evaluation_between_steps(stats):
    """A loop that also looks at what it never sweeps gets the right gradients, and goes on."""
    made = model()
    foreseeing(step, *made)
    for _ in range(3):
        for _ in range(4):
            float(made[2]())
        looked, *found = step(*made)
        value, expected = reference(W, B)
        np.testing.assert_allclose(looked, value, rtol=1e-6)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-7)


def test_what_is_computed_in_another_structure_is_foreseen_of_its_own_values(stats, asked):
    w, other, b = tape.Variable(W), tape.Variable(B), tape.Variable(B)

    def step(dropped):
        w.grad = b.grad = None
        product = X @ w
        if dropped:
            other * 2.0  # a leaf between those of the loss, and an entry that nobody reads
        loss = tnp.sin(product + b).mean()
        looked = float(loss)
        loss.backward()
        return looked, w.grad.numpy(), b.grad.numpy()

    step(dropped=False)
    step(dropped=False)
    expected = step(dropped=False)  # by programs
    other.value = 3.0 * other.value
    for _ in range(100):
        for found, right in zip(step(dropped=True), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-7)
    assert asked[-2:] == ["foreseen", "right"]
