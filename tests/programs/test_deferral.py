"""Gradients that an optimizer's step has used wait until somebody looks, and nothing that users see tells whether they do."""

import copy
import gc
import itertools
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop.optax
import tape
import tape.numpy as tnp
from tape.errors import ExecutionError, ReleasedTapeError
from tape.programs import deferral, numbers

X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
W = np.linspace(-0.5, 0.5, 16, dtype=np.float32).reshape(4, 4)
B = np.linspace(0.1, 0.4, 4, dtype=np.float32)
STEPS = 8  # after which gradients wait


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Have gradients wait as soon as they may."""
    monkeypatch.setattr(numbers, "_COMPILE", 0.0)
    monkeypatch.setattr(numbers, "_COMPILE_ENTRY", 0.0)
    monkeypatch.setattr(numbers, "LIMIT", 60.0)
    monkeypatch.setattr(deferral, "FEW", 1)


MODELS = itertools.count()


class Model:
    """A small model and its optimizer, of another structure each."""

    def __init__(self, transformation=None):
        self.w, self.b, self.signs = tape.Variable(W), tape.Variable(B), 2 * next(MODELS)
        self.optimizer = interop.optax.Optimizer([self.w, self.b], transformation or optax.sgd(0.1, momentum=0.9))

    def loss(self, w, b, xp=jnp):
        y = xp.tanh(X @ w + b)
        for _ in range(self.signs):
            y = -y
        return (y * y).mean()

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss(self.w, self.b, tnp)
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self, steps=STEPS):
        """Return the gradients that the last of some steps has, by JAX."""
        for _ in range(steps):
            before = self.w.value, self.b.value
            self.last = self.step()
        return jax.grad(self.loss, (0, 1))(*before)


def waiting(*variables):
    return [v.grad._cell[0] is None for v in variables]


def trained(*options):
    model = Model(*options)
    expected = model.train()
    assert waiting(model.w, model.b) == [True, True]
    return model, expected


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("transformation", [optax.sgd(0.1), optax.adam(0.01)])
def test_training_is_the_same(transformation, monkeypatch):
    model = Model(transformation)
    model.train(30)
    assert waiting(model.w, model.b) == [True, True]
    monkeypatch.setattr(deferral, "FEW", 1 << 30)
    other = Model(transformation)
    other.train(30)
    assert waiting(other.w, other.b) == [False, False]
    close(model.w.value, other.w.value)
    close(model.b.value, other.b.value)


LOOKS = {
    "value": lambda g: g.value,
    "numpy": np.asarray,
    "method": lambda g: g.numpy(),
    "operand": lambda g: (g * 1.0).value,
    "detached": lambda g: g.detach().value,
    "copied": lambda g: copy.deepcopy(g).value,
    "pickled": lambda g: pickle.loads(pickle.dumps(g)).value,  # noqa: S301 - its own
    "waited for": lambda g: g.block_until_ready().value,
    "op on several": lambda g: tnp.stack([g, g])[1].value,
    "in tape.jit": lambda g: tape.jit(lambda: g * 1.0)().value,
    "given to tape.jit": lambda g: tape.jit(lambda g: g * 1.0)(g).value,
    "in a trace of JAX's": lambda g: jax.jit(lambda: g.value + 0.0)(),
    "given to JAX": lambda g: jax.jit(lambda g: (g * 1.0).value)(g),
    "without recording": lambda g: tape.no_grad()(lambda: g + 0.0)().value,
    "a new leaf": lambda g: g.detach().requires_grad_().value,
    "assigned": lambda g: setattr(v := tape.Variable(np.zeros(g.shape, g.dtype)), "value", g) or v.value,
    "eagerly": lambda g: tape.eager()(lambda: g * 1.0)().value,
    "a tree": lambda g: jax.tree.map(lambda x: x, g).value,
    "in a scan": lambda g: tape.lax.scan(lambda c, _: (c + g, None), g * 0.0, None, 1)[0].value,
    "a gradient of": lambda g: (
        tape.gradients((v := tape.Variable(np.ones(g.shape, g.dtype))) * g.detach(), v, np.ones(g.shape, g.dtype)).value
    ),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_who_looks_finds_the_gradient(look):
    model, (w, b) = trained()
    close(look(model.w.grad), w)
    assert not any(waiting(model.w, model.b))  # both came from one run
    close(model.b.grad.value, b)
    close(model.w.grad.value, w)


def test_it_waits_again_later():
    model, _ = trained()
    model.w.grad.block_until_ready()
    model.train(deferral.DEARER - 1)
    assert waiting(model.w) == [False]
    expected = model.train(2)
    assert waiting(model.w) == [True]
    close(model.w.grad.value, expected[0])
    close(model.b.grad.value, expected[1])


def test_gradients_that_are_kept_get_their_values():
    model, (w, _) = trained()
    kept = model.w.grad
    later = model.train(1)
    assert kept._cell[0] is not None
    close(kept.value, w)
    close(model.w.grad.value, later[0])
    close(model.b.grad.value, later[1])


def test_gradients_add_up():
    model, (w, _) = trained()
    before = model.w.value, model.b.value
    model.loss(model.w, model.b, tnp).backward()
    close(model.w.grad.value, w + jax.grad(model.loss)(*before))


def test_a_second_step_uses_them_again():
    model, (w, _) = trained(optax.sgd(0.1))
    before = model.w.value
    model.optimizer.step()
    close(model.w.value, before - 0.1 * w)


def test_what_waits_is_let_go():
    model = Model()
    losses = [model.step() for _ in range(STEPS)]
    assert waiting(model.w) == [True]
    gc.collect()
    few = tape.stats().live_bytes
    assert tape.memory().nbytes == few
    losses += [model.step() for _ in range(20)]
    gc.collect()
    assert tape.stats().live_bytes <= few  # what other tests left may be gone
    assert tape.memory().nbytes == tape.stats().live_bytes
    model.w.grad.block_until_ready()
    assert tape.stats().live_bytes <= few - W.nbytes


def test_a_released_tape_stays_released():
    model, _ = trained()
    with pytest.raises(ReleasedTapeError):
        model.last.backward()


def test_two_threads_end_their_runs_at_once():
    model, (w, _) = trained()
    program, leaves, _ = model.w.grad._segment.run.deferred
    program.kept.deferral._advance(program, [cell[0] for cell in leaves])  # as the second of them does, after the first
    close(model.w.grad.value, w)


def test_another_thread_looks():
    model, (w, b) = trained()
    found = []
    threads = [threading.Thread(target=lambda v=v: found.append((v, np.asarray(v.grad.value)))) for v in (model.w, model.b) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for v, value in found:
        close(value, w if v is model.w else b)


def test_arrays_that_were_deleted():
    model, _ = trained()
    value = model.w.value
    expected = model.train(1)
    value.delete()
    with pytest.raises(ExecutionError, match="could not be computed again"):
        model.w.grad.value
    with pytest.raises(ExecutionError, match="could not be computed again"):
        model.b.grad.value
    assert expected[0].shape == model.w.shape
    expected = model.train(3)
    close(model.w.grad.value, expected[0])


def test_a_step_does_not_tell_of_arrays_that_an_earlier_one_read():
    model, _ = trained()
    value = model.w.value
    model.train(1)
    held = model.w.grad
    value.delete()
    model.train(3)
    again = Model()
    again.signs = model.signs
    again.train(STEPS + 4)
    close(model.w.value, again.w.value)
    with pytest.raises(ExecutionError, match="could not be computed again"):
        held.value


def test_a_structure_that_computes_the_same_has_its_own_leaves():
    model, other = Model(), tape.Variable(W)
    model.train()

    def loss(w, b, xp=jnp):
        product = X @ w
        if xp is tnp:
            other * 2.0  # a leaf between those of the loss, and an entry that nobody reads
        y = xp.tanh(product + b)
        for _ in range(model.signs):
            y = -y
        return (y * y).mean()

    model.loss = loss
    expected = model.train()
    assert waiting(model.w, model.b) == [True, True]
    close(model.w.grad.value, expected[0])
    close(model.b.grad.value, expected[1])


def test_large_ones_do_not_wait(monkeypatch):
    monkeypatch.setattr(deferral, "BYTES", 64)
    model = Model()
    model.train()
    assert waiting(model.w, model.b) == [False, False]


def test_reproducible_runs_have_them():
    with tape.reproducible():
        model = Model()
        model.train()
    assert waiting(model.w, model.b) == [False, False]


def test_hooks_see_them():
    model, seen = Model(), []
    model.w.register_hook(lambda g: seen.append(np.asarray(g.value)))
    expected = model.train()
    close(seen[-1], expected[0])
    close(model.w.grad.value, expected[0])


def test_what_is_told():
    model, _ = trained()
    kinds = [c.change.kind for c in tape.stats().compilations]
    assert "deferred" in kinds
    assert str(tape.stats())
    assert model.w.grad.shape == W.shape
    assert waiting(model.w) == [True]  # a shape is no look
