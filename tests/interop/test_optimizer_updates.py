"""An update found again does what it did before, on what is there now."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop.optax
import tape
from tape import extend, layout
from tape.programs import interpretation

X = np.array([[1.0, -2.0], [0.5, 0.25], [3.0, 1.0]], np.float32)


@pytest.fixture
def found(monkeypatch):
    """Whether each update was found again."""
    answers = []
    again = extend.Update.again

    def noting(self, *given):
        answers.append(again(self, *given))
        return answers[-1]

    monkeypatch.setattr(extend.Update, "again", noting)
    return answers


def loss(a, b):
    return ((X @ a + b) ** 2).mean()


class Beside:
    """The same training by raw optax and by the optimizer, step by step."""

    def __init__(self, transformation):
        self.arrays = [jnp.array([0.3, -0.7]), jnp.array(0.1)]
        self.transformation, self.state = transformation, transformation.init(self.arrays)
        self.variables = [tape.Variable(a) for a in self.arrays]
        self.optimizer = interop.optax.Optimizer(self.variables, transformation)

    def step(self, backward=lambda loss: loss.backward(), gradient=lambda g: g):
        gradients = gradient(list(jax.grad(loss, (0, 1))(*self.arrays)))
        updates, self.state = self.transformation.update(gradients, self.state, self.arrays)
        self.arrays = optax.apply_updates(self.arrays, updates)
        self.optimizer.zero_grad()
        backward(loss(*self.variables))
        self.optimizer.step()
        self.check()

    def check(self):
        for ours, theirs in zip(self.variables, self.arrays, strict=True):
            np.testing.assert_allclose(ours.value, theirs, rtol=1e-5, atol=1e-6)
            assert ours.is_leaf
        for ours, theirs in zip(jax.tree.leaves(self.optimizer.state), jax.tree.leaves(self.state), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [lambda: optax.sgd(0.01), lambda: optax.sgd(0.01, momentum=0.9), lambda: optax.adamw(0.01)])
def test_steps_that_come_back_follow_optax(make):
    both = Beside(make())
    for _ in range(12):
        both.step()


ALONE = """
import jax
import numpy as np, optax, interop.optax, tape
w = tape.Variable(np.ones(3, np.float32))
optimizer = interop.optax.Optimizer([w], optax.adam(0.1))
jax.grad(lambda x: (tape.constant(1.0) * x).value)(1.0)  # leaves nothing behind that would hinder
answers, again = [], tape.extend.Update.again
tape.extend.Update.again = lambda *given: answers.append(again(*given)) or answers[-1]
for _ in range(12):
    optimizer.zero_grad()
    (w * w).sum().backward()
    optimizer.step()
assert answers[-3:] == [True] * 3, answers
"""


def test_steps_are_found_again_after_a_few():
    subprocess.run([sys.executable, "-c", ALONE], check=True)  # noqa: S603 - our own program


def test_an_update_reads_what_users_assigned_since():
    both = Beside(optax.inject_hyperparams(optax.sgd)(learning_rate=0.01, momentum=0.9))
    for _ in range(9):
        both.step()
    both.arrays[0] = jnp.array([2.0, 3.0])
    both.variables[0].value = both.arrays[0]
    both.step()
    both.state.hyperparams["learning_rate"] = jnp.array(0.02)
    both.optimizer.state.hyperparams["learning_rate"] = jnp.array(0.02)
    both.step()
    both.state = jax.tree.map(lambda x: x * 0, both.state)
    both.optimizer.state = both.state
    for _ in range(4):
        both.step()


def test_an_update_reads_the_gradients_that_are_there():
    both = Beside(optax.sgd(0.01, momentum=0.9))
    for _ in range(9):
        both.step()

    def halved(loss):
        loss.backward()
        both.variables[0].grad = both.variables[0].grad * 0.5

    def twice(loss):
        loss.backward(retain_graph=True)
        loss.backward()

    def looked(loss):
        loss.backward()
        float(loss)

    for _ in range(4):
        both.step(halved, lambda g: [g[0] * 0.5, g[1]])
        both.step(twice, lambda g: [g[0] * 2, g[1] * 2])
        both.step(looked)
        both.step()


def test_a_loss_that_is_looked_at_does_not_hinder(found):
    both = Beside(optax.sgd(0.01, momentum=0.9))

    def looked(loss):
        float(loss)
        loss.backward()

    for _ in range(12):
        both.step(looked)
    seen = []

    class Names(tape.OpHook):
        def forward_preprocess(self, op, inputs):
            seen.append(op.name)

    for around in (tape.eager(), tape.hooks(Names())):
        with around:
            both.step(looked)
        assert not found[-1]
        both.step(looked)
    assert "update" in seen


def test_a_parameter_that_is_frozen_stays_as_it_is(found):
    both = Beside(optax.sgd(0.01))
    for _ in range(9):
        both.step()
    before = both.variables[1].value
    both.variables[1].requires_grad_(False)
    loss(*both.variables).backward()
    both.optimizer.step()
    assert not found[-1]
    assert both.variables[1].value == before


def test_a_captured_rate_is_read_anew():
    rate = tape.constant(0.5)
    w = tape.Variable(np.float32(1.0))
    scale = optax.GradientTransformation(lambda _: (), lambda g, state, _=None: (jax.tree.map(lambda x: -x * rate.value, g), state))
    optimizer = interop.optax.Optimizer([w], scale)
    value = 1.0
    for k in range(12):
        if k % 6 == 0:
            rate.value = np.float32(0.5 if k else 0.25)
        optimizer.zero_grad()
        (w * 1.0).backward()
        optimizer.step()
        value -= float(rate)
        assert float(w) == value


def test_two_optimizers_of_one_shape_keep_apart():
    pairs = [Beside(optax.sgd(0.01)), Beside(optax.sgd(0.02))]
    for _ in range(9):
        for both in pairs:
            both.step()


def _rival(xp, generator, discriminator):
    """The losses of two networks whose second one is a part of the first one's loss."""
    fake = xp.tanh(X.astype(np.float64) @ generator)
    judged = lambda points: (xp.tanh(points @ discriminator) ** 2).sum()  # noqa: E731
    return fake, judged(X - 1.0) - judged(jax.lax.stop_gradient(fake) if xp is jnp else fake.detach()), judged


@pytest.mark.parametrize("made_anew", [False, True])
@pytest.mark.parametrize("clears", ["its own", "all"])
def test_a_sweep_through_parameters_of_another_optimizer_waits_for_its_own(made_anew, clears):
    with jax.enable_x64(True):
        g, d = np.array([[0.5, -0.3], [0.2, 0.8]]), np.array([[0.4], [-0.7]])
        variables = [tape.Variable(jnp.asarray(a)) for a in (g, d)]
        makes, judges = (interop.optax.Optimizer([v], optax.sgd(0.05)) for v in variables)

        def step():
            fake, loss, judged = _rival(tape.numpy, *variables)
            judges.zero_grad()
            loss.backward()
            judges.step()
            if made_anew:
                fake, _, judged = _rival(tape.numpy, *variables)
            makes.zero_grad()
            if clears == "all":
                judges.zero_grad()
            judged(fake).backward()
            makes.step()

        for _ in range(14):
            before = tape.stats().flushes["backward"]
            step()
            of_both = jax.grad(lambda d, g=g: _rival(jnp, g, d)[1])(d)
            d = d - 0.05 * of_both
            of_g, of_d = jax.grad(lambda g, d: _rival(jnp, g, d)[2](jnp.tanh(X.astype(np.float64) @ g)), (0, 1))(g, d)
            g = g - 0.05 * of_g
            given = of_d if clears == "all" else of_both + of_d
            for found, right in zip((*variables, variables[1].grad, variables[0].grad), (g, d, given, of_g), strict=True):
                np.testing.assert_allclose(found.value, right, rtol=1e-10, atol=1e-12)
        assert tape.stats().flushes["backward"] == before  # no program of its own


@pytest.mark.parametrize("looks", [False] if layout.NATIVE is None else [False, True])
def test_a_sweep_to_parameters_of_two_optimizers_waits_for_the_first(looks):
    a, b = [jnp.array([0.3, -0.7]), jnp.array(0.1)]
    variables = [tape.Variable(x) for x in (a, b)]
    first, second = (interop.optax.Optimizer([v], optax.sgd(rate)) for v, rate in zip(variables, (0.02, 0.05), strict=True))
    for _ in range(14):
        before = tape.stats().flushes["backward"]
        of_a, of_b = jax.grad(loss, (0, 1))(a, b)
        a, b = a - 0.02 * of_a, b - 0.05 * of_b
        for optimizer in (first, second):
            optimizer.zero_grad()
        found = loss(*variables)
        if looks:
            found.item()
        found.backward()
        second.step()
        first.step()
        for ours, theirs in zip(variables, (a, b), strict=True):
            np.testing.assert_allclose(ours.value, theirs, rtol=1e-5)
    assert tape.stats().flushes["backward"] == before


def test_what_numbers_enter_is_computed_anew(found):
    w, update, assign = tape.Variable(np.float32(1.0)), extend.Update(), extend.Assignment()
    value = 1.0
    for k in range(8):
        w.zero_grad()
        (w * 2.0).backward()
        rate = 0.5**k
        if not update.again([w], []):
            with extend.updating():
                new = [w - rate * w.grad]
                update.note(new)
            assign([w], new)
        value -= rate * 2
        assert float(w) == value
    assert not any(found)


def test_an_update_inside_of_a_compiled_step_or_a_jax_transformation_is_recorded_there():
    both = Beside(optax.sgd(0.01))
    for _ in range(9):
        both.step()
    compiled = tape.jit(lambda: loss(*both.variables).backward())

    @tape.jit
    def step():
        both.optimizer.zero_grad()
        loss(*both.variables).backward()
        both.optimizer.step()

    for _ in range(3):
        step()
        both.optimizer.zero_grad()
        gradients = list(jax.grad(loss, (0, 1))(*both.arrays))
        updates, both.state = both.transformation.update(gradients, both.state, both.arrays)
        both.arrays = optax.apply_updates(both.arrays, updates)
        both.check()
        both.step(lambda _: compiled())


def test_an_update_keeps_no_parameters_alive():
    import gc
    import weakref

    both = Beside(optax.sgd(0.01, momentum=0.9))
    for _ in range(9):
        both.step()
    refs = [weakref.ref(v) for v in both.variables]
    del both
    gc.collect()
    assert not [ref for ref in refs if ref() is not None]


def test_an_update_that_xla_computes_is_not_brought_to_numpy(monkeypatch):
    x = tape.Variable(np.ones((64, 64), np.float32))
    optimizer = interop.optax.Optimizer([x], optax.adam(0.1))
    x.grad = tape.constant(np.ones((64, 64), np.float32))
    optimizer.step()

    def brought(*_):
        pytest.fail("arrays of an update are fetched")

    monkeypatch.setattr(interpretation, "_on_host", brought)
    for _ in range(3):
        x.grad = tape.constant(np.ones((64, 64), np.float32))
        optimizer.step()
    np.testing.assert_allclose(x.numpy(), 0.6, rtol=1e-4)


def test_the_first_step_has_the_structure_of_the_next_ones():
    """So the second one meets it again (and puts it on the trie), and not the third."""
    a, b = tape.Variable(np.array([0.3, -0.7], np.float32)), tape.Variable(np.float32(0.1))
    optimizer = interop.optax.Optimizer([a, b], optax.chain(optax.scale(0.5), optax.adam(0.1)))
    made = []
    for _ in range(3):
        tape.stats().reset()
        optimizer.zero_grad()
        loss(a, b).backward()
        optimizer.step()
        made.append(tape.stats().programs)
    assert made == [1, 1, 0]
