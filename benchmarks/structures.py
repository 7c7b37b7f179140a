"""Structures that never come back, as experiments have them: episodes, events, coin flips; each step from the first one on is timed."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import dynamic
from benchmarks.comparison import SEED, Comparison
from benchmarks.peers import systems
from benchmarks.report import Report, Score
from benchmarks.steady import one_thread
from benchmarks.systems import Unjitted
from benchmarks.timing import Effort, Times, quantile
from benchmarks.workloads import Dynamic, normal
from tape.terminal.progress import working_on

__all__ = ["WORKLOADS", "structures"]

FIRST = 10
SYSTEMS = ("tape", "PyTorch", Unjitted.name)
SLOW = 40  # steps of un-jitted JAX, which takes seconds for some
WIDTH = 16


# A GRU over sequences of 5 to 25 items, with a coin flipped at each.


def _make_gru(rng: np.random.Generator) -> list[Any]:
    return [normal(rng, WIDTH, WIDTH) for _ in range(7)] + [normal(rng, WIDTH, scale=0.1) for _ in range(3)]


def _flips(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    while True:
        coins = tuple(rng.integers(2, size=int(rng.integers(5, 26))).tolist())
        yield tuple(normal(rng, WIDTH, scale=1.0) for _ in coins), coins


def _gru(xp: Any, p: list[Any], xs: Any, coins: tuple[int, ...]) -> Any:
    def loss(p: list[Any]) -> Any:
        wz, uz, wr, ur, wh, uh, skip, bz, br, bh = p
        h = xp.tanh(xs[0] @ skip)
        for x, coin in zip(xs, coins, strict=True):
            z = 1.0 / (1.0 + xp.exp(-(x @ wz + h @ uz + bz)))
            r = 1.0 / (1.0 + xp.exp(-(x @ wr + h @ ur + br)))
            new = xp.tanh(x @ wh + (r * h) @ uh + bh)
            h = z * h + (1.0 - z) * new
            if coin:
                h = h + 0.1 * (x @ skip)
        return xp.sum(h * h)

    return xp.value_and_grad(loss, p)


# An episode of policy gradients: what the policy does next depends on what it did, and the episode ends when it fails.


def _make_policy(rng: np.random.Generator) -> list[Any]:
    return [normal(rng, 4, WIDTH), normal(rng, WIDTH, scale=0.1), normal(rng, WIDTH, 2), normal(rng, 2, scale=0.1)]


def _episodes(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    while True:
        luck = tuple(rng.uniform(size=60).tolist())
        noise = tuple(normal(rng, 4, scale=1.0) for _ in luck)
        yield noise, luck, int(rng.integers(3, 7))


def _policy(xp: Any, p: list[Any], observations: Any, luck: tuple[float, ...], bound: int) -> Any:
    def loss(p: list[Any]) -> Any:
        w, b, v, c = p
        chosen, position = [], 0
        for seen, drawn in zip(observations, luck, strict=True):
            scores = xp.tanh(seen @ w + b) @ v + c
            logarithms = scores - xp.log(xp.sum(xp.exp(scores)))
            action = int(drawn > float(xp.exp(xp.cut(logarithms)[0])))
            chosen.append(logarithms[action])
            position += 2 * action - 1
            if abs(position) >= bound:
                break
        gained = xp.stack(chosen)
        rewards = xp.cumsum(xp.ones_like(gained), 0)
        rewards = (rewards - xp.mean(rewards)) / (xp.max(rewards) + 1.0)
        return -xp.sum(gained * rewards)

    return xp.value_and_grad(loss, p)


# A pole on a cart, which is plain NumPy: an episode lasts until it has fallen, and what followed each action is what it is worth.

MOST = 60  # actions


def _starts(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    while True:
        yield tuple(rng.uniform(-0.05, 0.05, size=4).tolist()), tuple(rng.uniform(size=MOST).tolist())


def _pushed(state: Any, force: float) -> Any:
    """Return where cart and pole are a fiftieth of a second later."""
    _, speed, angle, turning = state
    push = (force + 0.05 * turning**2 * np.sin(angle)) / 1.1
    tilting = (9.8 * np.sin(angle) - np.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
    change = speed, push - 0.05 * tilting * np.cos(angle) / 1.1, turning, tilting
    return np.asarray([x + 0.02 * dx for x, dx in zip(state, change, strict=True)], np.float32)


def _pole(xp: Any, p: list[Any], start: tuple[float, ...], luck: tuple[float, ...]) -> Any:
    def loss(p: list[Any]) -> Any:
        w, b, v, c = p
        chosen, state = [], np.asarray(start, np.float32)
        for drawn in luck:
            scores = xp.tanh(xp.operand(state) @ w + b) @ v + c
            logarithms = scores - xp.log(xp.sum(xp.exp(scores)))
            action = int(drawn > np.exp(float(xp.cut(logarithms)[0])))
            chosen.append(logarithms[action])
            state = _pushed(state, 10.0 if action else -10.0)
            if abs(state[2]) > 0.2:
                break
        worth = np.arange(len(chosen), 0, -1, dtype=np.float32)
        worth = (worth - worth.mean()) / (worth.std() + 1e-6)
        return -xp.sum(xp.stack(chosen) * xp.operand(worth)) / len(chosen)

    return xp.value_and_grad(loss, p)


# A ball that falls through air until it meets the ground, which is looked at in every step.


def _make_ball(_: np.random.Generator) -> list[Any]:
    return [np.full((), number, np.float32) for number in (9.81, 0.1, 2.0)]


def _throws(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    while True:
        yield (np.full((), rng.uniform(0.5, 6.0), np.float32),)


def _ball(xp: Any, p: list[Any], height: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        gravity, drag, speed = p
        x, v, along = height, speed, 0.0 * speed
        while float(xp.cut(x)) > 0.0:
            v = v - 0.02 * (gravity + drag * v * xp.abs(v))
            x = x + 0.02 * v
            along = along + 0.02 * xp.exp(-drag * x)
        return along * along

    return xp.value_and_grad(loss, p)


WORKLOADS = (
    replace(dynamic.WORKLOADS[0], name="trees met once"),
    replace(dynamic.WORKLOADS[1], name="sequences met once"),
    Dynamic("GRU with coin flips", _make_gru, _flips, _gru),
    Dynamic("policy gradient", _make_policy, _episodes, _policy),
    Dynamic("pole on a cart", _make_policy, _starts, _pole),
    Dynamic("ball until the ground", _make_ball, _throws, _ball),
)


def _measure(workload: Dynamic, count: int) -> dict[str, list[float]]:
    """Milliseconds of each step; the systems take turns, step by step, on the same data."""
    chosen = {name: system for name, system in systems().items() if name in SYSTEMS}
    steps = {}
    for name, system in chosen.items():
        steps[name] = system.step(workload.program, system.parameters(workload.make(np.random.default_rng(SEED))))
    samples = workload.samples(np.random.default_rng(SEED + 1))
    times: dict[str, list[float]] = {name: [] for name in chosen}
    gc.collect()
    gc.freeze()  # that a step pays for its own garbage, not for what was there
    try:
        for i in range(count):
            sample = next(samples)
            for name, system in chosen.items():
                if name == Unjitted.name and i >= SLOW:
                    continue
                data = system.data(sample)
                gc.collect()
                started = time.perf_counter()
                system.wait(steps[name](*data))
                times[name].append((time.perf_counter() - started) * 1e3)
    finally:
        gc.unfreeze()
    return times


def structures(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Compare steps whose structure is new, or comes back by chance, from the first one on."""
    against, steadiness, longest = {}, {}, {}
    with one_thread():
        for workload in WORKLOADS:
            if chosen and workload.name not in chosen:
                continue
            working_on(workload.name)
            times = _measure(workload, FIRST + (30 if effort.quick else 200))
            rows = [
                {
                    "": name,
                    "p50 ms": quantile(found[FIRST:], 0.5),
                    "p99 ms": quantile(found[FIRST:], 0.99),
                    "longest ms": max(found[FIRST:]),
                    f"first {FIRST}": sum(found[:FIRST]),
                    "longest of these": max(found[:FIRST]),
                }
                for name, found in times.items()
            ]
            report.tabled("structures", f"{workload.name}, each step new", rows)
            steady = {name: found[FIRST:] for name, found in times.items()}
            report.comparisons.setdefault("structures", []).append(
                Comparison(workload.name, {name: Times(tuple(ms * 1e3 for ms in found)) for name, found in steady.items()})
            )
            if "PyTorch" in steady:
                against[workload.name] = quantile([b / a for a, b in zip(steady["tape"], steady["PyTorch"], strict=True)], 0.5)
            steadiness[workload.name] = quantile(steady["tape"], 0.99) / quantile(steady["tape"], 0.5)
            longest[workload.name] = max(times["tape"])
    if against:
        report.scored("structures", Score("PyTorch / tape, per step", against, 1.0, at_least=True))
    report.scored(
        "structures",
        Score("tape, p99 / p50", steadiness, 3.0, 3.0),
        Score("tape, longest step, ms", longest, 250.0, 250.0),
    )
