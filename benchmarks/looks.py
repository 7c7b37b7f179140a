"""Loops that look at a value in every turn: an integrator until an event, a line search, a decoder, a rollout.

The reference is what a user of JAX writes for speed: the same Python loop around a jitted step, and a sweep that calls the jitted pullback
of the step for each turn, last to first.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tape
import tape.numpy as tnp
from benchmarks.workloads import Loop, Run, normal

__all__ = ["LENGTHS", "WORKLOADS", "ball"]

WIDTH = 16
TOKENS = 24
TARGET = np.asarray([3.0, 0.0], "float32")


def _parameters(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[Any]:
    return [normal(rng, *shape) for shape in shapes]


def _taken(parameters: list[Any]) -> list[Any]:
    """Return the gradients of Variables, and clear them."""
    gradients = [p.grad.value for p in parameters]
    for p in parameters:
        p.grad = None
    return gradients


# A ball falls until it meets the ground; its force is the gradient of a potential.

HEIGHT = 10.0
SECONDS = 1.4  # that it falls, about


def ball(turns: int) -> Loop:
    """Return the ball that falls for about so many turns."""
    dt = SECONDS / turns
    start = [np.float32(9.8), np.float32(0.002), np.asarray([0.0, HEIGHT], "float32"), np.asarray([1.0, 0.0], "float32")]

    def taped() -> Run:
        parameters: list[Any] = [tape.Variable(jnp.asarray(x)) for x in start]
        gravity, spring, q0, v0 = parameters

        def forward() -> tuple[int, Any]:
            q, v, count = q0, v0, 0
            while float(q[1]) > 0:
                energy = gravity * q[1] + spring * (q * q).sum() ** 2
                v = v - dt * tape.gradients(energy, q, create_graph=True)
                q = q + dt * v
                count += 1
            return count, q

        def sweep(q: Any) -> list[Any]:
            ((q - TARGET) ** 2).sum().backward()
            return _taken(parameters)

        return forward, sweep

    def jitted() -> Run:
        gravity, spring, q0, v0 = (jnp.asarray(x) for x in start)

        def energy(q: Any, gravity: Any, spring: Any) -> Any:
            return gravity * q[1] + spring * (q * q).sum() ** 2

        def turn(gravity: Any, spring: Any, q: Any, v: Any) -> tuple[Any, Any]:
            v = v - dt * jax.grad(energy)(q, gravity, spring)
            return q + dt * v, v

        def looked(*state: Any) -> tuple[Any, Any, Any]:
            q, v = turn(*state)
            return q, v, q[1]

        step = jax.jit(looked)

        def pulled(gravity: Any, spring: Any, q: Any, v: Any, totals: Any, cotangents: Any) -> Any:
            g, s, *cts = jax.vjp(turn, gravity, spring, q, v)[1](cotangents)
            return (totals[0] + g, totals[1] + s), tuple(cts)

        pullback = jax.jit(pulled)
        last = jax.jit(jax.grad(lambda q: ((q - TARGET) ** 2).sum()))
        zero = jnp.float32(0.0)

        def forward() -> tuple[int, Any]:
            q, v, height, path = q0, v0, HEIGHT, []
            while float(height) > 0:
                path.append((q, v))
                q, v, height = step(gravity, spring, q, v)
            return len(path), (q, path)

        def sweep(state: Any) -> list[Any]:
            q, path = state
            totals, cotangents = (zero, zero), (last(q), jnp.zeros_like(v0))
            for q, v in reversed(path):
                totals, cotangents = pullback(gravity, spring, q, v, totals, cotangents)
            return [*totals, *cotangents]

        return forward, sweep

    return Loop(f"ball until an event, {turns} turns", taped, jitted)


# Gradient descent with a line search: every trial is looked at.  After so many steps what a step gains is lost in rounding; a search that
# found nothing would go on for ever, should a trial's loss be rounded otherwise than the one to beat.

STEPS = 8
LEAST = 2.0**-20


def _line_search() -> Loop:
    rng = np.random.default_rng(0)
    a, b = normal(rng, 64, WIDTH), (rng.normal(size=64) > 0).astype("float32") * 2 - 1
    w0 = normal(rng, WIDTH, scale=1.0)

    def loss(xp: Any, w: Any, a: Any, b: Any) -> Any:
        return xp.mean(xp.log1p(xp.exp(-b * (a @ w)))) + 1e-3 * (w @ w)

    def taped() -> Run:
        x, y = tape.constant(a), tape.constant(b)

        def forward() -> tuple[int, Any]:
            w, count = tape.Variable(w0), 0
            for _ in range(STEPS):
                value = loss(tnp, w, x, y)
                value.backward()
                g, size = w.grad, 4096.0
                assert g is not None
                with tape.no_grad():
                    enough, slope = float(value), float(g @ g)
                    while size > LEAST:
                        count += 1
                        trial = w - size * g
                        if float(loss(tnp, trial, x, y)) <= enough - 1e-4 * size * slope:
                            break
                        size *= 0.5
                w.value = trial.value
                w.grad = None
            return count, w

        return forward, lambda w: [w.value]

    def jitted() -> Run:
        x, y = jnp.asarray(a), jnp.asarray(b)

        @jax.jit
        def begin(w: Any) -> Any:
            value, g = jax.value_and_grad(lambda w: loss(jnp, w, x, y))(w)
            return value, g, g @ g

        @jax.jit
        def attempt(w: Any, g: Any, size: Any) -> Any:
            trial = w - size * g
            return trial, loss(jnp, trial, x, y)

        def forward() -> tuple[int, Any]:
            w, count = jnp.asarray(w0), 0
            for _ in range(STEPS):
                value, g, slope = begin(w)
                enough, slope, size = float(value), float(slope), 4096.0
                while size > LEAST:
                    count += 1
                    trial, reached = attempt(w, g, size)
                    if float(reached) <= enough - 1e-4 * size * slope:
                        break
                    size *= 0.5
                w = trial
            return count, w

        return forward, lambda w: [w]

    return Loop("line search", taped, jitted)


# A recurrent decoder whose next input is the token that it finds most likely.

CELL = ((TOKENS, WIDTH), (WIDTH, WIDTH), (WIDTH,), (WIDTH, TOKENS))


def _decoder(turns: int = 60) -> Loop:
    arrays = _parameters(np.random.default_rng(1), *CELL)

    def cell(xp: Any, p: list[Any], h: Any, token: Any) -> tuple[Any, Any]:
        h = xp.tanh(h @ p[1] + p[0][token] + p[2])
        return h, h @ p[3]

    def taped() -> Run:
        parameters = [tape.Variable(x) for x in arrays]
        h0 = tape.constant(np.zeros(WIDTH, "float32"))

        def forward() -> tuple[int, Any]:
            h, token, total = h0, 0, tape.constant(0.0)
            for _ in range(turns):
                h, logits = cell(tnp, parameters, h, token)
                token = int(tnp.argmax(logits))
                total = total - tape.nn.log_softmax(logits)[token]
            return turns, total

        def sweep(total: Any) -> list[Any]:
            total.backward()
            return _taken(parameters)

        return forward, sweep

    def jitted() -> Run:
        parameters = [jnp.asarray(x) for x in arrays]
        h0, zero = jnp.zeros(WIDTH), jnp.float32(0.0)

        def turn(p: list[Any], h: Any, total: Any, token: Any) -> tuple[Any, Any]:
            h, logits = cell(jnp, p, h, token)
            return h, total - jax.nn.log_softmax(logits)[jnp.argmax(logits)]

        @jax.jit
        def step(p: list[Any], h: Any, total: Any, token: Any) -> tuple[Any, Any, Any]:
            new, total = turn(p, h, total, token)
            return new, total, jnp.argmax(new @ p[3])

        @jax.jit
        def pullback(p: list[Any], h: Any, token: Any, totals: Any, ct: Any) -> Any:
            terms, ct = jax.vjp(lambda p, h: turn(p, h, zero, token), p, h)[1]((ct, jnp.float32(1.0)))
            return jax.tree.map(jnp.add, totals, terms), ct

        def forward() -> tuple[int, Any]:
            h, token, total, path = h0, 0, zero, []
            for _ in range(turns):
                path.append((h, token))
                h, total, found = step(parameters, h, total, token)
                token = int(found)
            return turns, path

        def sweep(path: Any) -> list[Any]:
            totals, ct = [jnp.zeros_like(p) for p in parameters], jnp.zeros(WIDTH)
            for h, token in reversed(path):
                totals, ct = pullback(parameters, h, token, totals, ct)
            return totals

        return forward, sweep

    return Loop("decoder, argmax of each step", taped, jitted)


# A policy acts in an environment that is plain NumPy; its probabilities are looked at for each action.

OBSERVED = 4
NET = ((OBSERVED, WIDTH), (WIDTH,), (WIDTH, 2))


def _rollout(turns: int = 60) -> Loop:
    arrays = _parameters(np.random.default_rng(2), *NET)
    rng = np.random.default_rng(3)
    dynamics, push = (0.4 * normal(rng, OBSERVED, OBSERVED)).astype("float32"), normal(rng, OBSERVED, scale=1.0)
    draws = rng.random(turns)

    def policy(xp: Any, nn: Any, p: list[Any], x: Any) -> Any:
        return nn.log_softmax(xp.tanh(x @ p[0] + p[1]) @ p[2])

    def moved(x: Any, action: int) -> Any:
        return dynamics @ x + (push if action else -push)

    def taped() -> Run:
        parameters = [tape.Variable(x) for x in arrays]

        def forward() -> tuple[int, Any]:
            x, taken, rewards = push, [], []
            for draw in draws:
                logs = policy(tnp, tape.nn, parameters, x)
                action = int(draw > np.exp(float(logs[0])))
                taken.append(logs[action])
                x = moved(x, action)
                rewards.append(float(x[0]))
            return turns, (taken, rewards)

        def sweep(state: Any) -> list[Any]:
            taken, rewards = state
            loss = sum(log * reward for log, reward in zip(taken, rewards, strict=True))
            loss.backward()
            return _taken(parameters)

        return forward, sweep

    def jitted() -> Run:
        parameters = [jnp.asarray(x) for x in arrays]
        step = jax.jit(lambda p, x: policy(jnp, jax.nn, p, x)[0])

        @jax.jit
        @jax.grad
        def total(p: list[Any], xs: Any, actions: Any, rewards: Any) -> Any:
            logs = jax.vmap(lambda x: policy(jnp, jax.nn, p, x))(xs)
            return jnp.sum(jnp.take_along_axis(logs, actions[:, None], 1)[:, 0] * rewards)

        def forward() -> tuple[int, Any]:
            x, xs, actions, rewards = push, [], [], []
            for draw in draws:
                action = int(draw > np.exp(float(step(parameters, x))))
                xs.append(x)
                actions.append(action)
                x = moved(x, action)
                rewards.append(float(x[0]))
            return turns, (np.stack(xs), np.asarray(actions), np.asarray(rewards, "float32"))

        return forward, lambda path: total(parameters, *path)

    return Loop("rollout, an action of each step", taped, jitted)


WORKLOADS: tuple[Loop, ...] = (ball(350), _line_search(), _decoder(), _rollout())
LENGTHS = (100, 1000, 5000)  # turns of a ball
