"""The optimizer on Variables follows optax on raw arrays, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop.optax
import tape
from tape.errors import TapeTypeError, TapeValueError

X = np.array([[1.0, -2.0], [0.5, 0.25], [3.0, 1.0]], np.float32)
Y = np.array([[1.0], [0.0], [2.0]], np.float32)
START = {"layer": {"w": np.array([[0.3], [-0.7]], np.float32), "b": np.zeros(1, np.float32)}, "scale": np.float32(1.5)}


def loss(params, x, y):
    out = (x @ params["layer"]["w"] + params["layer"]["b"]) * params["scale"]
    return ((out - y) ** 2).mean()


TRANSFORMATIONS = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.05),
    "adamw": lambda: optax.adamw(optax.cosine_decay_schedule(0.1, 5), weight_decay=0.01),
    "clip": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.scale_by_rms(), optax.scale(-0.1)),
    "multi": lambda: optax.multi_transform({"fast": optax.sgd(0.5), "frozen": optax.set_to_zero()}, {"layer": "fast", "scale": "frozen"}),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_steps_equal_those_of_optax(name):
    transformation = TRANSFORMATIONS[name]()
    params = jax.tree.map(jnp.asarray, START)
    state = transformation.init(params)
    variables = jax.tree.map(tape.Variable, START)
    optimizer = interop.optax.Optimizer(variables, transformation)
    for _ in range(6):
        gradients = jax.grad(loss)(params, X, Y)
        updates, state = transformation.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        optimizer.zero_grad()
        loss(variables, X, Y).backward()
        optimizer.step()
        ours = jax.tree.map(lambda v: v.value, variables, is_leaf=lambda v: isinstance(v, tape.Variable))
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(params), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    for a, b in zip(jax.tree.leaves(optimizer.state), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    assert jax.tree.structure(optimizer.state) == jax.tree.structure(state)


def test_extra_arguments_reach_the_transformation():
    x = tape.Variable(np.float32(2.0))
    optimizer = interop.optax.Optimizer(x, optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()))
    value = x * x
    value.backward()
    optimizer.step(value=value)
    np.testing.assert_allclose(float(x), 1.6, rtol=1e-6)


def test_steps_compile_once():
    x = tape.Variable(np.ones(3, np.float32))
    optimizer = interop.optax.Optimizer([x], optax.adam(0.1))
    for k in range(8):
        if k == 5:
            tape.stats().reset()
        optimizer.zero_grad()
        (x * x).sum().backward()
        optimizer.step()
    stats = tape.stats()
    assert (stats.compiles, stats.interpreted, stats.hits) == (0, 0, 3)  # sweep and update are one program
    assert stats.flushes == {"step": 3}
    assert x.is_leaf
    assert x.requires_grad


def train(steps, between=lambda loss, x: None):
    """Train x by gradient descent and return the values seen by ``between``, which runs after every backward pass, and x."""
    x = tape.Variable(np.array([1.0, 2.0], np.float32))
    optimizer = interop.optax.Optimizer([x], optax.sgd(0.25))
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        seen.append(between(loss, x))
        optimizer.step()
        np.testing.assert_array_equal(x.value * 4, x.grad.value)  # x became x / 2, and the gradient 2 x stays there
        assert float(loss) == float((x.value**2).sum()) * 4
    return seen, x.value


def test_what_is_looked_at_between_backward_and_step_is_there():
    expected = np.array([1.0, 2.0]) / 2**6
    np.testing.assert_array_equal(train(6)[1], expected)
    losses, values = train(6, lambda loss, _: float(loss))
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(losses, 5.0 / 4.0 ** np.arange(6))
    gradients, values = train(6, lambda _, x: x.grad.numpy())
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(gradients, 2 * np.array([1.0, 2.0]) / 2.0 ** np.arange(6)[:, None])


def test_gradients_changed_before_the_step_are_those_that_count():
    x = tape.Variable(np.float32(1.0))
    optimizer = interop.optax.Optimizer([x], optax.sgd(1.0))
    for k in range(6):
        optimizer.zero_grad()
        (x * 3.0).backward()
        x.grad = x.grad * 0.5
        optimizer.step()
        assert float(x) == 1.0 - 1.5 * (k + 1)


def test_a_backward_pass_waits_only_where_one_step_uses_all_its_gradients():
    x, w = tape.Variable(np.float32(2.0)), tape.Variable(np.float32(3.0))
    optimizer = interop.optax.Optimizer([x], optax.sgd(0.5))
    for sole in (False, True):
        for k in range(6):
            if k == 3:
                tape.stats().reset()
            x.value, w.grad = np.float32(2.0), None
            optimizer.zero_grad()
            (x * x * (3.0 if sole else w)).backward()
            assert sole or float(w.grad) == 4.0
            optimizer.step()
            assert (float(x.grad), float(x)) == (12.0, -4.0)
        assert tape.stats().flushes == ({"step": 3} if sole else {"backward": 3, "step": 3})


@pytest.mark.parametrize("held", [False, True])
def test_a_backward_pass_that_no_step_follows_is_run_by_the_next_or_by_nobody(held):
    x = tape.Variable(np.float32(2.0))
    optimizer = interop.optax.Optimizer([x], optax.sgd(0.5))
    losses = []
    for k in range(9):
        if k == 3:
            tape.stats().reset()
        optimizer.zero_grad()
        loss = x * x
        loss.backward()
        if held:
            losses.append(loss)
        del loss
    assert tape.stats().flushes == ({"backward": 3} if held else {})
    assert float(x.grad) == 4.0
    optimizer.step()
    assert float(x) == 0.0
    assert set(map(float, losses)) <= {4.0}


def test_micro_batches_add_up():
    x = tape.Variable(np.float32(8.0))
    optimizer = interop.optax.Optimizer([x], optax.sgd(0.25))
    for k in range(5):
        optimizer.zero_grad()
        for factor in (0.5, 1.5, 1.0):
            (x * x * factor).backward()
        assert float(x.grad) == 6 * float(x)
        optimizer.step()
        assert float(x) == 8.0 * (-0.5) ** (k + 1)


def test_an_update_that_fails_changes_nothing():
    broken = False

    def check(u):
        if broken:
            msg = "no update today"
            raise ValueError(msg)
        return u

    def update(updates, state, params=None):
        del params
        checked = jax.pure_callback(check, jax.ShapeDtypeStruct((), np.float32), updates[0])
        return [-checked], state + 1

    x = tape.Variable(np.float32(1.0))
    optimizer = interop.optax.Optimizer([x], optax.GradientTransformation(lambda _: jnp.zeros(()), update))
    for _ in range(5):
        optimizer.zero_grad()
        (x * 0.5).backward()
        optimizer.step()
    broken = True
    before = (float(x), float(optimizer.state))
    optimizer.zero_grad()
    (x * 0.5).backward()
    with pytest.raises(tape.errors.TapeError, match="no update today"):
        optimizer.step()
    assert (float(x), float(optimizer.state)) == before == (-1.5, 5.0)
    assert float(x.grad) == 0.5
    broken = False
    optimizer.step()
    assert float(x) == -2.0


def test_a_state_is_restored():
    def steps(optimizer, x, count):
        for _ in range(count):
            optimizer.zero_grad()
            (x * x).sum().backward()
            optimizer.step()
        return x.numpy()

    x = tape.Variable([1.0, -2.0])
    optimizer = interop.optax.Optimizer([x], optax.adam(0.1))
    steps(optimizer, x, 2)
    kept, value = optimizer.state, x.numpy()
    expected = steps(optimizer, x, 3)
    y = tape.Variable(value)
    other = interop.optax.Optimizer([y], optax.adam(0.1))
    other.state = kept
    np.testing.assert_array_equal(steps(other, y, 3), expected)
    optimizer.state = jax.tree.map(tape.constant, kept)  # Variables will do
    x.value = value
    np.testing.assert_array_equal(steps(optimizer, x, 3), expected)


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize(
    ("state", "words"),
    [
        (lambda _: 3, r"must be a pytree as optax's transformation makes it.*ScaleByAdamState.*got int; assign what \.state"),
        (lambda _: None, "got PyTreeDef"),
        (lambda s: s[0], r"got PyTreeDef\(CustomNode\(namedtuple\[ScaleByAdamState"),
        (lambda s: jax.tree.map(lambda a: jnp.zeros((3, *a.shape)), s), r"state\[0\]\.count must have shape \(\), got \(3,\)"),
        (lambda s: jax.tree.map(lambda a: jnp.zeros(3) if a.shape else a, s), r"state\[0\]\.mu\[0\] must have shape \(2,\), got \(3,\)"),
    ],
)
def test_a_state_of_something_else_is_refused(state, words, stepped):
    x = tape.Variable([1.0, -2.0])
    optimizer = interop.optax.Optimizer([x], optax.adam(0.1))
    if stepped:
        (x * x).sum().backward()
        optimizer.step()
    before = optimizer.state
    with pytest.raises(TapeValueError, match=words):
        optimizer.state = state(before)
    assert all(a is b for a, b in zip(jax.tree.leaves(optimizer.state), jax.tree.leaves(before), strict=True))


def test_parameters_may_be_an_iterator_and_are_iterated():
    x, w = tape.Variable(1.0), tape.Variable(2.0)
    optimizer = interop.optax.Optimizer(iter([x, w]), optax.sgd(0.5))
    assert list(map(id, optimizer)) == [id(x), id(w)]
    (x * w).backward()
    optimizer.step()
    assert (float(x), float(w)) == (0.0, 1.5)
    optimizer.zero_grad()
    assert x.grad is w.grad is None


def test_a_missing_gradient_changes_nothing():
    x, w = tape.Variable(1.0, name="x"), tape.Variable(2.0, name="w")
    optimizer = interop.optax.Optimizer([x, w], optax.adam(0.5))
    (x * x).backward()
    before = optimizer.state
    with pytest.raises(TapeValueError, match=r"1 of 2 parameters have no gradient, first parameter 1 \('w'"):
        optimizer.step()
    assert all(a is b for a, b in zip(jax.tree.leaves(optimizer.state), jax.tree.leaves(before), strict=True))
    assert (float(x), float(w), float(x.grad)) == (1.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda x: ([], optax.sgd(1.0)), TapeValueError, "no parameters"),
        (lambda x: ([x, np.ones(2)], optax.sgd(1.0)), TapeTypeError, "parameter 1 must be a tape.Variable, got ndarray"),
        (lambda x: ([x * 1], optax.sgd(1.0)), TapeValueError, "must be a leaf"),
        (lambda x: ([tape.constant(1.0)], optax.sgd(1.0)), TapeValueError, "requires grad"),
        (lambda x: ({"a": x, "b": x}, optax.sgd(1.0)), TapeValueError, "twice"),
        (lambda x: ([x], optax.sgd), TapeTypeError, "GradientTransformation, got function"),
    ],
)
def test_errors(make, error, words):
    x = tape.Variable(1.0)
    with pytest.raises(error, match=words):
        interop.optax.Optimizer(*make(x))
