"""The optimizer on Variables follows optax on raw arrays, step by step."""

import copy
import pickle
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop.optax
import tape
from tape.errors import TapeTypeError, TapeValueError
from tests.tiers import by_xla

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
    optimizer = interop.optax.Optimizer([x, w], optax.adam(0.5), missing="raise")
    (x * x).backward()
    before = optimizer.state
    with pytest.raises(TapeValueError, match=r"1 of 2 parameters have no gradient, first parameter 1 \('w'"):
        optimizer.step()
    assert all(a is b for a, b in zip(jax.tree.leaves(optimizer.state), jax.tree.leaves(before), strict=True))
    assert (float(x), float(w), float(x.grad)) == (1.0, 2.0, 2.0)


def alone(transformation, value, losses):
    """Train one parameter by the losses that are there, as an optimizer of its own would."""
    x = tape.Variable(value)
    optimizer = interop.optax.Optimizer([x], transformation)
    for loss in losses:
        optimizer.zero_grad()
        if loss is not None:
            loss(x).backward()
            optimizer.step()
    return x, optimizer


def square(x):
    return (x * x).sum()


SKIPS = {"few": [{1}, {2}, {1}, set(), {0, 2}, {1}], "many": [{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, set(), {1}, {0}]}


@pytest.mark.parametrize(
    ("name", "skips", "loss_scale"), [("momentum", "many", None), ("rms", "few", 1024.0), ("rms", "many", 1024.0), ("masked", "few", None)]
)
@by_xla()
def test_a_parameter_without_a_gradient_is_skipped_with_what_optax_keeps_for_it(name, skips, loss_scale, monkeypatch):
    monkeypatch.setattr(interop.optax, "_PATTERNS_LIMIT", 3)  # beyond, one program serves all choices
    transformation = {
        "momentum": optax.sgd(0.1, momentum=0.9),
        "rms": optax.chain(optax.trace(0.5), optax.scale_by_rms(), optax.scale(-0.1)),
        "masked": optax.masked(optax.sgd(0.1, momentum=0.9), [True, True, False]),
    }[name]
    values = [np.float32([1.0, 2.0]), np.float32(3.0), np.float32([[0.5]])]
    params = [tape.Variable(v) for v in values]
    optimizer = interop.optax.Optimizer(params, transformation, loss_scale=loss_scale)
    for skipped in SKIPS[skips]:
        optimizer.zero_grad()
        optimizer.backward(sum((square(p) for i, p in enumerate(params) if i not in skipped), start=tape.constant(0.0)))
        optimizer.step()
    for i, p in enumerate(params):
        single = optax.masked(optax.sgd(0.1, momentum=0.9), [i != 2]) if name == "masked" else transformation
        expected, own = alone(single, values[i], [None if i in skipped else square for skipped in SKIPS[skips]])
        np.testing.assert_allclose(p.numpy(), expected.numpy(), rtol=1e-6)
        theirs = [leaf[i] for leaf in jax.tree.leaves(optimizer.state, is_leaf=lambda x: isinstance(x, list))]
        for a, b in zip(jax.tree.leaves(theirs), jax.tree.leaves(own.state), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_what_optax_counts_for_all_parameters_goes_on():
    x, w = tape.Variable(1.0), tape.Variable(2.0)
    optimizer = interop.optax.Optimizer({"x": x, "w": w}, optax.adam(0.1))
    for _ in range(2):
        optimizer.zero_grad()
        square(x).backward()
        optimizer.step()
    adam = optimizer.state[0]
    assert (int(adam.count), float(adam.mu["w"]), float(adam.nu["w"]), float(w)) == (2, 0.0, 0.0, 2.0)
    assert float(adam.mu["x"]) > 0


def test_a_frozen_parameter_stays_until_it_requires_grad_again():
    x, w = tape.Variable(1.0), tape.Variable(2.0)
    optimizer = interop.optax.Optimizer([x, w], optax.sgd(0.25, momentum=0.5), missing="zero")
    (x * x + w * w).backward()
    w.requires_grad_(False)  # its gradient is there
    optimizer.step()
    assert (float(x), float(w)) == (0.5, 2.0)
    w.requires_grad_(True)
    optimizer.zero_grad()
    (x * x + w * w).backward()
    optimizer.step()
    assert (float(x), float(w)) == (0.0, 1.0)


def test_a_missing_gradient_may_count_as_zero():
    x, w = tape.Variable(1.0), tape.Variable(2.0)
    optimizer = interop.optax.Optimizer([x, w], optax.sgd(0.25, momentum=0.5), missing="zero")
    (x * x + w * w).backward()
    optimizer.step()
    assert (float(x), float(w)) == (0.5, 1.0)
    optimizer.zero_grad()
    (x * x).backward()
    optimizer.step()
    assert (float(x), float(w)) == (0.5 - 0.25 * (0.5 * 2 + 1.0), 1.0 - 0.25 * 0.5 * 4.0)


@pytest.mark.parametrize("missing", ["skip", "zero", "raise"])
def test_a_step_without_any_gradient_is_refused(missing):
    x, w = tape.Variable(1.0, name="x"), tape.Variable(2.0)
    optimizer = interop.optax.Optimizer([x, w], optax.sgd(0.5), missing=missing)
    with pytest.raises(TapeValueError, match=r"2 of 2 parameters have no gradient, first parameter 0 \('x'.*call backward\(\) first"):
        optimizer.step()


def test_a_state_that_optax_cannot_take_apart_is_not_guessed():
    x, w = tape.Variable(1.0), tape.Variable(2.0)
    total = optax.GradientTransformation(lambda p: sum(p), lambda u, s, p=None: (u, s))
    optimizer = interop.optax.Optimizer([x, w], total)
    (x * x).backward()
    with pytest.raises(TapeValueError, match='missing="zero"'):
        optimizer.step()
    assert float(x) == 1.0


def test_a_compiled_step_skips_what_has_no_gradient():
    x, w = tape.Variable(1.0), tape.Variable(2.0)
    optimizer = interop.optax.Optimizer([x, w], optax.sgd(0.25))

    @tape.jit(static_argnums=0)
    def step(both):
        optimizer.zero_grad()
        (x * x + w * w if both else x * x).backward()
        optimizer.step()

    for k in range(6):
        step(k % 2 == 0)
    assert (float(x), float(w)) == (1 / 64, 2 / 8)


def injected(x, learning_rate=0.25, **options):
    return interop.optax.Optimizer([x], optax.inject_hyperparams(optax.sgd)(learning_rate=learning_rate), **options)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_hyperparameter_is_set_where_the_state_hands_it_out(compiled):
    x = tape.Variable(1.0)
    optimizer = injected(x)

    def step():
        optimizer.zero_grad()
        (x * x).backward()
        optimizer.step()

    run = tape.jit(step) if compiled else step
    hyperparams = optimizer.state.hyperparams
    run()
    assert float(x) == 0.5
    hyperparams["learning_rate"] = 0.0  # handed out before the step
    run()
    assert float(x) == 0.5
    optimizer.state.hyperparams.update(learning_rate=tape.constant(0.5))
    run()
    assert float(x) == 0.0
    assert float(optimizer.state.hyperparams["learning_rate"]) == 0.5
    optimizer.state = optax.tree_utils.tree_set(optimizer.state, learning_rate=0.125)
    x.value = np.float32(1.0)
    run()
    assert float(x) == 0.75
    assert type(jax.tree.map(np.asarray, optimizer.state).hyperparams) is dict
    assert pickle.loads(pickle.dumps(optimizer.state)) == optimizer.state  # noqa: S301


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda h: h.__setitem__("rate", 1.0), TapeValueError, r"no hyperparameter 'rate'; .*\['learning_rate'"),
        (lambda h: h.__setitem__("learning_rate", "fast"), TapeTypeError, "must be a number or an array, got str"),
        (lambda h: h.__setitem__("learning_rate", np.ones(2)), TapeValueError, r"shape \(\), got \(2,\)"),
        (lambda h: h.__setitem__("learning_rate", 1j), TapeTypeError, "dtype float32, which complex64"),
        (lambda h: h.pop("learning_rate"), TapeTypeError, "can be set"),
        (lambda h: h.__delitem__("learning_rate"), TapeTypeError, "can be set"),
        (lambda h: h.setdefault("rate", 1.0), TapeTypeError, "can be set"),
    ],
)
def test_a_hyperparameter_that_does_not_fit_is_refused(change, error, words):
    optimizer = injected(tape.Variable(1.0))
    with pytest.raises(error, match=words):
        change(optimizer.state.hyperparams)
    assert float(optimizer.state.hyperparams["learning_rate"]) == 0.25


def test_a_hyperparameter_that_a_schedule_sets_is_refused():
    optimizer = injected(tape.Variable(1.0), learning_rate=optax.linear_schedule(0.5, 0.0, 10))
    with pytest.raises(TapeValueError, match="a schedule sets the hyperparameter 'learning_rate'"):
        optimizer.state.hyperparams["learning_rate"] = 0.1


@pytest.mark.parametrize(
    "change", [lambda p: p["b"].append(tape.Variable(1.0)), lambda p: p.update(a=tape.Variable(1.0)), lambda p: p.pop("a")]
)
def test_parameters_that_are_exchanged_are_noticed(change):
    params = {"a": tape.Variable(1.0), "b": [tape.Variable(2.0)]}
    optimizer = interop.optax.Optimizer(params, optax.sgd(0.5))
    (params["a"] * params["b"][0]).backward()
    change(params)
    with pytest.raises(TapeValueError, match=r"holds others since .*make a new one: Optimizer\(optimizer\.parameters"):
        optimizer.step()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["deepcopy", "pickle"])  # noqa: S301
@pytest.mark.parametrize("name", ["sgd", "adamw", "clip", "multi"])
def test_an_optimizer_is_copied_and_pickled_with_its_parameters(name, again):
    variables = jax.tree.map(tape.Variable, START)
    optimizer = interop.optax.Optimizer(variables, TRANSFORMATIONS[name](), loss_scale=None if name == "sgd" else 256.0, missing="zero")

    def steps(variables, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            optimizer.backward(loss(variables, X, Y))
            optimizer.step()
        return [v.numpy() for v in jax.tree.leaves(variables, is_leaf=lambda v: isinstance(v, tape.Variable))]

    before = steps(variables, optimizer)
    others, other = again({"variables": variables, "optimizer": optimizer}).values()
    assert others is other.parameters
    expected = steps(variables, optimizer)
    for a, b in zip(steps(others, other), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(before, expected, strict=True))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["deepcopy", "pickle"])  # noqa: S301
def test_an_optimizer_is_copied_and_pickled_where_a_parameter_was_frozen(again):
    x, w = tape.Variable(1.0), tape.Variable(2.0)
    optimizer = interop.optax.Optimizer([x, w], optax.sgd(0.25, momentum=0.5))
    w.requires_grad_(False)
    other = again(optimizer)
    a, b = other.parameters
    assert (a.requires_grad, b.requires_grad, w.requires_grad) == (True, False, False)
    (a * a * b).backward()
    other.step()
    assert (float(a), float(b)) == (0.0, 2.0)


def test_a_transformation_that_cannot_be_pickled_says_what_to_do():
    x = tape.Variable(1.0)
    lock = threading.Lock()  # cannot be pickled
    optimizer = interop.optax.Optimizer([x], optax.sgd(lambda count: 0.1 if lock else 0.2))
    with pytest.raises(TapeTypeError, match=r"pickle \(optimizer\.parameters, optimizer\.state, optimizer\.scaling\)"):
        pickle.dumps(optimizer)
    copied = copy.deepcopy(optimizer)
    (copied.parameters[0] * 2).backward()
    copied.step()
    assert (float(copied.parameters[0]), float(x)) == (np.float32(0.8), 1.0)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda x: ([], optax.sgd(1.0)), TapeValueError, "no parameters"),
        (lambda x: ([x, np.ones(2)], optax.sgd(1.0)), TapeTypeError, "parameter 1 must be a tape.Variable, got ndarray"),
        (lambda x: ([x, *jax.tree.leaves([x])], optax.sgd(1.0)), TapeValueError, "parameter 1 .* is given twice"),
        (
            lambda x: (types.SimpleNamespace(parameters=lambda: [x]), optax.sgd(1.0)),
            TapeTypeError,
            r"SimpleNamespace; pass its parameters\(\)",
        ),
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


def test_an_unknown_choice_is_refused():
    with pytest.raises(TapeValueError, match="missing must be one of 'skip', 'zero', 'raise', got 'none'"):
        interop.optax.Optimizer([tape.Variable(1.0)], optax.sgd(1.0), missing="none")


def test_a_line_search_needs_the_loss_and_its_function():
    """What the message says works, and is what optax alone does."""

    def f(p):
        return ((p["w"] - 1.5) ** 2).sum() * p["b"] ** 2 + (p["b"] - 1) ** 2

    start = {"w": np.array([1.0, 2.0, 3.0], np.float32), "b": np.float32(2.0)}
    parameters = jax.tree.map(tape.Variable, start)
    optimizer = interop.optax.Optimizer(parameters, optax.lbfgs())
    f(parameters).backward()
    with pytest.raises(tape.errors.TapeTypeError, match=r"'value', 'grad', and 'value_fn'.*value_fn=interop.lower\(f\)"):
        optimizer.step()
    plain, transformation = jax.tree.map(jax.numpy.asarray, start), optax.lbfgs()
    state = transformation.init(plain)
    for _ in range(4):
        optimizer.zero_grad()
        loss = f(parameters)
        loss.backward()
        optimizer.step(value=loss, grad=jax.tree.map(lambda p: p.grad, optimizer.parameters), value_fn=interop.lower(f))
        value, gradient = jax.value_and_grad(f)(plain)
        updates, state = transformation.update(gradient, state, plain, value=value, grad=gradient, value_fn=f)
        plain = optax.apply_updates(plain, updates)
    for name, array in plain.items():
        np.testing.assert_allclose(parameters[name].value, array, rtol=1e-5)
    with pytest.raises(tape.errors.TapeTypeError, match="use zero_grad\\(\\)"):
        optimizer.zero_grad(set_to_none=True)


def test_a_search_may_differentiate_more_than_the_loss_of_its_closure():
    def update(updates, state, params, *, value_fn, **_):
        slope = jax.grad(lambda params: 3 * value_fn(params))(params)
        return jax.tree.map(lambda g: -g, slope), state

    w = tape.Variable(2.0)
    optimizer = interop.optax.Optimizer([w], optax.GradientTransformationExtraArgs(lambda _: (), update))

    def closure():
        optimizer.zero_grad()
        loss = w * w
        loss.backward()
        return loss

    assert float(optimizer.step(closure)) == 4
    assert float(w) == 2 - 3 * 4


def test_parameters_without_a_gradient_have_no_part_in_what_is_computed_of_all():
    """Also once there were so many choices of them that one program serves all further ones."""
    parameters = [tape.Variable(np.float32(10 + i)) for i in range(4)]
    optimizer = interop.optax.Optimizer(parameters, optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)))
    for choice in range(1, 15):
        given = [i for i in range(4) if choice >> i & 1]
        optimizer.zero_grad()
        sum(parameters[i] * (i + 1.0) for i in given).backward()
        before = [float(p) for p in parameters]
        optimizer.step()
        norm = np.sqrt(sum((i + 1.0) ** 2 for i in given))
        expected = [x - (i in given) * (i + 1) / norm for i, x in enumerate(before)]
        np.testing.assert_allclose([float(p) for p in parameters], expected, rtol=1e-6)


def test_a_search_begins_each_evaluation_of_its_closure_without_gradients():
    def trained(inside):
        w = tape.Variable(np.array([1.0, -2.0], "float32"))
        optimizer = interop.optax.Optimizer([w], optax.lbfgs())

        def closure():
            if inside:
                optimizer.zero_grad()
            loss = ((w - 1) ** 4).sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.zero_grad()
            optimizer.step(closure)
        return w.numpy()

    np.testing.assert_array_equal(trained(inside=True), trained(inside=False))
