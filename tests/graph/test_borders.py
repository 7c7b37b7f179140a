"""Updates and what follows them: one program, until ever other structures follow."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp

STEPS = 800
RNG = np.random.default_rng(0)
WEIGHTS = [RNG.normal(size=(3, 3)).astype(np.float32) * 0.3 for _ in range(6)]
X = RNG.normal(size=(2, 3)).astype(np.float32)


def _loss(numpy, drawn, w, h):
    for layer, on in zip(w, drawn, strict=False):
        if on:
            h = h + numpy.tanh(h @ layer)
    return ((h @ w[-1]) ** 2).sum()


def _recorded(drawn):
    """Yield the loss of each step, whose layers are drawn, and how many structures were met so far."""
    w = [tape.Variable(x) for x in WEIGHTS]
    for now in drawn:
        loss = _loss(tnp, now, w, tape.constant(X))
        for v in w:
            v.grad = None
        loss.backward()
        with tape.no_grad():
            for v in w:
                if v.grad is not None:
                    v -= 0.01 * v.grad  # noqa: PLW2901 - in place
        yield float(loss), tape.stats().programs


def _expected(drawn):
    @functools.partial(jax.jit, static_argnums=0)
    def step(now, w):
        loss, grads = jax.value_and_grad(lambda w: _loss(jnp, now, w, X))(w)
        return loss, [a - 0.01 * g for a, g in zip(w, grads, strict=True)]

    w = [jnp.asarray(x) for x in WEIGHTS]
    for now in drawn:
        loss, w = step(now, w)
        yield float(loss)


@pytest.mark.parametrize("by_chance", [True, False])
def test_steps_that_differ_by_chance_come_to_few_structures(by_chance):
    """Of five layers that are dropped or not there are 6 updates and 6 forward passes, and some hundreds of one after the other."""
    drawn = [tuple(row) for row in np.random.default_rng(1).random((STEPS, 5)) < 0.5] if by_chance else [(True,) * 5] * STEPS
    before = tape.stats().flushes["update"]
    losses, met = zip(*_recorded(drawn), strict=True)
    np.testing.assert_allclose(losses, [*_expected(drawn)], rtol=1e-4)
    parted = tape.stats().flushes["update"] - before
    assert parted > STEPS / 3 if by_chance else not parted
    assert met[-1] - met[3 * STEPS // 4] < STEPS / 80
