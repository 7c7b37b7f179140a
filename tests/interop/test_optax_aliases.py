"""Every alias and wrapper of the optax that is installed takes the steps of raw optax under ``jax.jit``, to the last bit."""

import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import interop
import tape
from tape.errors import TapeTypeError, TapeValueError
from tests.daily import share

STEPS = 20
RANDOM = np.random.default_rng(0)
SHAPES = {"w": (3, 2), "b": (2,), "s": ()}
START = {name: np.asarray(RANDOM.normal(size=shape), np.float32) for name, shape in SHAPES.items()}
GRADIENTS = [{name: np.asarray(RANDOM.normal(size=shape), np.float32) for name, shape in SHAPES.items()} for _ in range(STEPS)]


def aliases():
    """What takes a learning rate and makes a transformation, in the optax that is here."""
    for module in (optax, optax.contrib):
        for name, found in sorted(vars(module).items()):
            if not name.startswith("_") and inspect.isfunction(found) and "learning_rate" in inspect.signature(found).parameters:
                yield f"{module.__name__}.{name}"


NOT_ALONE = {  # those that need more than a learning rate: arguments, or other tests
    "optax.lbfgs": "a line search: below",
    "optax.scale_by_learning_rate": None,
    "optax.contrib.scale_by_madgrad": None,
    "optax.noisy_sgd": {"key": 0} if "key" in inspect.signature(optax.noisy_sgd).parameters else None,
    "optax.polyak_sgd": "below",
    "optax.contrib.momo": "below",
    "optax.contrib.momo_adam": "below",
    "optax.contrib.dpsgd": "its gradients have an axis of examples: below",
    "optax.contrib.galore": {"rank": 2},
    "optax.contrib.scale_by_galore": {"rank": 2},
    "optax.contrib.schedule_free": {"base_optimizer": optax.sgd(0.1)},
    "optax.contrib.sophia": "it evaluates the loss: below",
    "optax.sm3": "it takes no scalar: below",
}
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 0.1, 5, STEPS)
MASK = {"w": True, "b": False, "s": True}
LABELS = {"w": "a", "b": "b", "s": "a"}
WRAPPERS = {
    "schedule": lambda: optax.adamw(SCHEDULE),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE, weight_decay=0.1),
    "inject_stateful_hyperparams": lambda: (
        optax.inject_stateful_hyperparams(optax.sgd)(learning_rate=optax.injectable_constant_schedule(0.1))
        if hasattr(optax, "injectable_constant_schedule")
        else optax.sgd(0.1)
    ),
    "multi_transform": lambda: optax.multi_transform({"a": optax.adam(0.1), "b": optax.sgd(0.5, momentum=0.9)}, LABELS),
    "partition": lambda: getattr(optax, "partition", optax.multi_transform)({"a": optax.adam(0.1), "b": optax.set_to_zero()}, LABELS),
    "masked": lambda: optax.masked(optax.lion(0.1), MASK),
    "freeze": lambda: optax.chain(optax.sgd(0.1), optax.masked(optax.set_to_zero(), MASK)),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 3),
    "MultiSteps as a transformation": lambda: optax.MultiSteps(optax.adam(0.1), 3).gradient_transformation(),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(0.1), 3),
    "apply_every": lambda: optax.chain(optax.apply_every(3), optax.sgd(0.1)),
    "flatten": lambda: optax.flatten(optax.adam(0.1)),
    "clipping": lambda: optax.chain(optax.clip_by_global_norm(0.3), optax.clip(0.1), optax.adaptive_grad_clip(0.2), optax.sgd(0.1)),
    "ema": lambda: optax.chain(optax.ema(0.9), optax.centralize(), optax.zero_nans(), optax.sgd(0.1)),
    "named_chain": lambda: optax.named_chain(("trace", optax.trace(0.9)), ("scale", optax.scale(-0.1))),
    "conditionally": lambda: optax.conditionally_transform(optax.sgd(0.1), lambda step: step % 2 == 0),
    "keep_params_nonnegative": lambda: optax.chain(optax.sgd(0.1), optax.keep_params_nonnegative()),
    "noise": lambda: optax.chain(optax.add_noise(0.1, 0.5, 3), optax.sgd(0.1)),
    "mechanize": lambda: optax.contrib.mechanize(optax.sgd(0.1)),
    "sam": lambda: optax.contrib.sam(optax.sgd(0.1), optax.chain(optax.contrib.normalize(), optax.sgd(0.05)), sync_period=2),
    "split_real_and_imaginary": lambda: optax.contrib.split_real_and_imaginary(optax.adam(0.1)),
    "lbfgs without a search": lambda: optax.lbfgs(0.1, linesearch=None),
    "float16 moments": lambda: optax.adam(0.1, mu_dtype=jnp.bfloat16),
}


def raw(x):
    """An array as what makes it: bytes, dtype, and whether it is weak."""
    data = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return np.asarray(data).tobytes(), str(x.dtype), getattr(x, "weak_type", False), np.shape(x)


class Beside:
    """Optax on arrays, as its users compile it, and the optimizer on Variables."""

    def __init__(self, make, start=START, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transformation = make()
            self.variables = jax.tree.map(tape.Variable, start)
            self.optimizer = interop.optax.Optimizer(self.variables, transformation, **options)
            self.arrays = jax.tree.map(jnp.asarray, start)
            self.state = transformation.init(self.arrays)
        extended = transformation if isinstance(transformation, optax.MultiSteps) else optax.with_extra_args_support(transformation)

        def step(arrays, state, gradients, extra):
            updates, state = extended.update(gradients, state, arrays, **extra)
            return optax.apply_updates(arrays, updates), state

        self.compiled = jax.jit(step)

    def step(self, gradients, **extra):
        self.arrays, self.state = self.compiled(self.arrays, self.state, gradients, extra)
        for name, gradient in gradients.items():
            self.variables[name].grad = gradient
        self.optimizer.step(**extra)

    def check(self):
        for name, variable in self.variables.items():
            assert raw(variable.value)[:2] == raw(self.arrays[name])[:2], name
        ours, theirs = map(jax.tree_util.tree_leaves_with_path, (self.optimizer.state, self.state))
        assert [raw(x) for _, x in ours] == [raw(x) for _, x in theirs]


@pytest.mark.parametrize("name", share(list(aliases())))
def test_every_alias_steps_as_optax_does(name):
    more = NOT_ALONE.get(name, {})
    if isinstance(more, str):
        return
    factory = getattr(optax.contrib if ".contrib." in name else optax, name.rpartition(".")[2])
    both = Beside(lambda: factory(learning_rate=0.1, **(more or {})))
    for gradients in GRADIENTS:
        both.step(gradients)
        both.check()


@pytest.mark.parametrize("name", share(list(WRAPPERS), 2))
def test_every_wrapper_steps_as_optax_does(name):
    both = Beside(WRAPPERS[name])
    for k, gradients in enumerate(GRADIENTS):
        both.step({n: g * np.float32(np.nan if k == 7 and name == "apply_if_finite" else 1) for n, g in gradients.items()})
        both.check()


def test_what_needs_more_than_gradients_steps_as_optax_does():
    for make in (
        optax.polyak_sgd,
        lambda: optax.contrib.momo(0.1),
        lambda: optax.contrib.momo_adam(0.1),
        lambda: optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=2)),
    ):
        both = Beside(make)
        for k, gradients in enumerate(GRADIENTS):
            both.step(gradients, value=np.float32(1 / (k + 1) + (k % 3)))
            both.check()
    both = Beside(lambda: optax.sm3(0.1), {n: x for n, x in START.items() if x.ndim})
    for gradients in GRADIENTS:
        both.step({n: g for n, g in gradients.items() if g.ndim})
        both.check()


def test_hyperparameters_that_are_set_between_steps_count():
    both = Beside(lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=0.1, weight_decay=0.0))
    for k, gradients in enumerate(GRADIENTS):
        rate = np.float32(0.1 / (k + 1))
        both.state.hyperparams["learning_rate"] = jnp.asarray(rate)
        both.optimizer.state.hyperparams["learning_rate"] = rate
        both.step(gradients)
    both.check()


def loss(p):
    return ((p["w"] - 1.5) ** 2).sum() * (1 + p["b"][0] ** 2) + (p["b"] * p["s"] - 1).sum() ** 2


@pytest.mark.parametrize("make", [optax.lbfgs, lambda: optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(15))])
def test_line_searches_step_as_optax_does(make):
    both, transformation = Beside(make), make()

    @jax.jit
    def step(arrays, state):
        value, gradients = jax.value_and_grad(loss)(arrays)
        updates, state = transformation.update(gradients, state, arrays, value=value, grad=gradients, value_fn=loss)
        return optax.apply_updates(arrays, updates), state

    variables, optimizer = both.variables, both.optimizer
    closing = Beside(make)
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        closing.optimizer.zero_grad()
        value = loss(closing.variables)
        value.backward()
        return value

    for _ in range(4):
        both.arrays, both.state = step(both.arrays, both.state)
        optimizer.zero_grad()
        value = loss(variables)
        value.backward()
        optimizer.step(value=value, grad=jax.tree.map(lambda p: p.grad, variables), value_fn=interop.lower(loss))
        first = closing.optimizer.step(closure)
        np.testing.assert_allclose(float(first), float(value), rtol=1e-5)
        for name, array in both.arrays.items():
            np.testing.assert_allclose(variables[name].value, array, rtol=2e-5)
            np.testing.assert_allclose(closing.variables[name].value, array, rtol=2e-5)
    assert calls >= 8


def test_a_closure_that_fails_in_a_search_changes_nothing():
    both = Beside(optax.lbfgs)
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        if calls > 1:
            msg = "no loss today"
            raise RuntimeError(msg)
        value = loss(both.variables)
        value.backward()
        return value

    with pytest.raises(Exception, match="no loss today"):
        both.optimizer.step(closure)
    assert calls == 2
    both.check()


def test_a_closure_is_called_once_where_nothing_is_searched():
    both = Beside(lambda: optax.adam(0.1))
    calls = []

    def closure():
        both.optimizer.zero_grad()
        value = sum((v * GRADIENTS[len(calls)][name]).sum() for name, v in both.variables.items())
        value.backward()
        calls.append(value)
        return value

    for gradients in GRADIENTS[:5]:
        with tape.no_grad():  # the closure records all the same
            assert both.optimizer.step(closure) is calls[-1]
        both.arrays, both.state = both.compiled(both.arrays, both.state, gradients, {})
        both.check()


def test_lookahead_trains_the_fast_parameters_and_keeps_the_slow_ones():
    transformation = optax.lookahead(optax.sgd(0.1, momentum=0.9), 3, 0.5)
    variables = jax.tree.map(tape.Variable, START)
    optimizer = interop.optax.Optimizer(optax.LookaheadParams.init_synced(variables), transformation)
    arrays = optax.LookaheadParams.init_synced(jax.tree.map(jnp.asarray, START))
    state = transformation.init(arrays)

    @jax.jit
    def step(arrays, state, gradients):
        updates, state = transformation.update(gradients, state, arrays)
        return optax.apply_updates(arrays, updates), state

    for gradients in GRADIENTS:
        arrays, state = step(arrays, state, gradients)
        for name, gradient in gradients.items():
            variables[name].grad = gradient
        optimizer.step()
        for name, variable in variables.items():
            assert raw(variable.value)[:2] == raw(arrays.fast[name])[:2]
            assert raw(optimizer.parameters.slow[name].value)[:2] == raw(arrays.slow[name])[:2]


def test_groups_have_their_own_hyperparameters():
    body, head = tape.Variable(START["w"]), tape.Variable(START["b"])
    groups = [{"params": iter([body])}, {"params": {"head": head}, "learning_rate": 0.5, "momentum": 0.5}]
    optimizer = interop.optax.Optimizer(*interop.optax.parameter_groups(groups, optax.sgd, learning_rate=0.1))
    own = [Beside(lambda: optax.sgd(0.1), {"w": START["w"]}), Beside(lambda: optax.sgd(0.5, momentum=0.5), {"b": START["b"]})]
    for k, gradients in enumerate(GRADIENTS):
        if k == 10:
            for group in optimizer.param_groups:
                group["learning_rate"] *= 0.5
            states = [one.state for one in own]
            own = [Beside(lambda: optax.sgd(0.05), own[0].arrays), Beside(lambda: optax.sgd(0.25, momentum=0.5), own[1].arrays)]
            for one, state in zip(own, states, strict=True):
                one.state, one.optimizer.state = state, state
        body.grad, head.grad = gradients["w"], gradients["b"]
        optimizer.step()
        own[0].step({"w": gradients["w"]})
        own[1].step({"b": gradients["b"]})
        np.testing.assert_allclose(body.value, own[0].arrays["w"], rtol=1e-6)
        np.testing.assert_allclose(head.value, own[1].arrays["b"], rtol=1e-6)
    assert [sorted(group) for group in optimizer.param_groups] == [["learning_rate", "params"], ["learning_rate", "momentum", "params"]]
    assert optimizer.param_groups[1]["params"]["head"] is head
    (single,) = interop.optax.Optimizer([body], optax.sgd(0.1)).param_groups
    assert single["params"] == [body]


def test_groups_skip_what_has_no_gradient():
    body, head = tape.Variable(START["w"]), tape.Variable(START["b"])
    groups = [{"params": [body]}, {"params": {"head": head}, "learning_rate": 0.5}]
    optimizer = interop.optax.Optimizer(*interop.optax.parameter_groups(groups, optax.sgd, learning_rate=0.1, momentum=0.5))
    own = [Beside(lambda: optax.sgd(0.1, momentum=0.5), {"w": START["w"]}), Beside(lambda: optax.sgd(0.5, momentum=0.5), {"b": START["b"]})]
    for k, gradients in enumerate(GRADIENTS[:6]):
        body.grad, head.grad = gradients["w"], gradients["b"] if k % 3 else None
        optimizer.step()
        own[0].step({"w": gradients["w"]})
        if k % 3:
            own[1].step({"b": gradients["b"]})
        np.testing.assert_allclose(body.value, own[0].arrays["w"], rtol=1e-6)
        np.testing.assert_allclose(head.value, own[1].arrays["b"], rtol=1e-6)


def test_a_state_goes_on_from_its_dictionary():
    one, other = Beside(lambda: optax.adamw(SCHEDULE)), Beside(lambda: optax.adamw(SCHEDULE))
    for gradients in GRADIENTS[:7]:
        one.step(gradients)
    other.optimizer.load_state_dict({name: np.asarray(x) for name, x in one.optimizer.state_dict().items()})
    for name, v in other.variables.items():
        v.value = one.variables[name].value
    other.arrays, other.state = one.arrays, one.state
    for gradients in GRADIENTS[7:]:
        other.step(gradients)
        other.check()
    assert {"state.0.count", "state.0.mu.w", "state.2.count"} <= set(one.optimizer.state_dict())


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"state.0.more": 1.0}, TapeValueError, "unknown 'state.0.more'"),
        ({"state.0.trace.w": np.ones((3, 2), np.float32)}, TapeValueError, r"must have shape \(2, 3\), got \(3, 2\)"),
        ({"state.0.trace.w": np.ones((2, 3), np.int32)}, TapeTypeError, "must have dtype float32, got int32"),
    ],
)
def test_a_dictionary_that_does_not_fit_the_state_changes_nothing(change, error, words):
    w = tape.Variable(np.ones((2, 3), np.float32))
    optimizer = interop.optax.Optimizer({"w": w}, optax.sgd(0.1, momentum=0.5))
    before = optimizer.state_dict()
    with pytest.raises(error, match=words):
        optimizer.load_state_dict({**{name: x + 1 for name, x in before.items()}, **change})
    after = optimizer.state_dict()
    assert all(np.array_equal(after[name], x) for name, x in before.items())


def test_a_changed_copy_of_the_state_is_refused_once():
    w = tape.Variable(1.0)
    optimizer = interop.optax.Optimizer({"w": w}, optax.sgd(0.5, momentum=0.5))
    state = optimizer.state
    state[0].trace["w"] = jnp.ones(())
    w.grad = 1.0
    with pytest.raises(TapeValueError, match="was not assigned"):
        optimizer.step()
    optimizer.step()
    assert float(w) == 0.5


def test_groups_keep_their_parameters_and_optimizers_their_kind_of_scale():
    w = tape.Variable(1.0)
    optimizer = interop.optax.Optimizer([w], optax.inject_hyperparams(optax.sgd)(0.5))
    (group,) = optimizer.param_groups
    assert len(group) == len(list(group)) == 2
    with pytest.raises(TapeTypeError, match="parameters of a group stay as they are"):
        group["params"] = []
    with pytest.raises(TapeTypeError, match="this optimizer has no loss scale"):
        optimizer.scaling = interop.optax.LossScaleState(2.0, 0, 0)


def test_sophia_evaluates_the_loss_that_it_is_given():
    if not hasattr(optax.contrib, "sophia"):
        pytest.skip("this optax has none")

    def loss(arrays):
        return sum(jnp.sum(jnp.sin(x) ** 2) for x in jax.tree.leaves(arrays))

    transformation = optax.contrib.sophia(0.1, update_interval=2)
    variables = jax.tree.map(tape.Variable, START)
    optimizer = interop.optax.Optimizer(variables, transformation)
    arrays = jax.tree.map(jnp.asarray, START)
    state = transformation.init(arrays)

    @jax.jit
    def step(arrays, state, gradients):
        updates, state = transformation.update(gradients, state, arrays, obj_fn=loss)
        return optax.apply_updates(arrays, updates), state

    for gradients in GRADIENTS[:6]:
        arrays, state = step(arrays, state, gradients)
        for name, gradient in gradients.items():
            variables[name].grad = gradient
        optimizer.step(obj_fn=loss)
    for name, array in arrays.items():
        np.testing.assert_array_equal(variables[name].value, array)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dpsgd_steps_by_gradients_of_each_example():
    if not hasattr(optax.contrib, "dpsgd"):
        pytest.skip("this optax has none")
    transformation = optax.contrib.dpsgd(0.1, l2_norm_clip=0.5, noise_multiplier=0.1, seed=0)
    examples = np.asarray(RANDOM.normal(size=(5, 3)), np.float32)

    def loss(w, x):
        return ((w * x) ** 2).sum()

    w = tape.Variable(START["w"][:, 0])
    each = tape.vmap(tape.grad(loss), in_axes=(None, 0))(w, tape.constant(examples))
    with pytest.raises(tape.errors.TapeError, match="shape"):  # .grad is of the shape of its Variable
        w.grad = each.detach()
    update = interop.lift(transformation.update)
    array, state = w.value, transformation.init(w.value)
    ours = state
    for _ in range(3):
        each = tape.vmap(tape.grad(loss), in_axes=(None, 0))(w, tape.constant(examples))
        change, ours = update(each.detach(), ours, w.detach())
        w.value = (w.detach() + change).value
        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(array, examples)
        change, state = transformation.update(gradients, state, array)
        array = array + change
        np.testing.assert_allclose(w.numpy(), array, rtol=1e-5)


def test_a_state_that_was_changed_and_not_assigned_is_refused():
    variables = jax.tree.map(tape.Variable, START)
    optimizer = interop.optax.Optimizer(variables, optax.adam(0.1))
    for name, gradient in GRADIENTS[0].items():
        variables[name].grad = gradient
    optimizer.step()
    before = variables["w"].numpy()
    optimizer.state[0].mu["w"] = jnp.zeros((3, 2))
    with pytest.raises(tape.errors.TapeValueError, match=r"holds others now, and was not assigned.*optimizer.state = state"):
        optimizer.step()
    np.testing.assert_array_equal(variables["w"].numpy(), before)
    state = optimizer.state
    state[0].mu["w"] = jnp.zeros((3, 2))
    optimizer.state = state
    assert not optimizer.state[0].mu["w"].any()
    optimizer.step()
    dict(optimizer.state[0].mu).pop("w")  # a copy of one's own may be anything
    optimizer.step()
    optimizer = interop.optax.Optimizer(variables, optax.inject_hyperparams(optax.adam)(0.1))
    optimizer.state.hyperparams["learning_rate"] = 0.5
    optimizer.step()
    optimizer.step()
