"""Comparison of the systems on one workload: gradients first, then times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.peers import systems
from benchmarks.systems import Jitted, System
from benchmarks.timing import Effort, Times, interleave
from benchmarks.workloads import Workload

__all__ = ["Comparison", "DisagreementError", "agree", "compare", "start", "verify"]

SEED = 0
STEPS = 3  # before results are compared: the tape interprets a structure first and compiles it then
TOLERANCE = 2e-3  # of the norm of an array, in float32


class DisagreementError(AssertionError):
    """Results of two systems differ."""


@dataclass
class Comparison:
    """Times of one workload.

    Attributes:
        name: the workload.
        times: microseconds per step, by system; the reference first.
        failures: what went wrong in a system that is not timed for it.

    """

    name: str
    times: dict[str, Times] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def agree(found: list[Any], expected: list[Any], who: str) -> None:
    """Raise if two lists of arrays differ by more than rounding."""
    if len(found) != len(expected):
        msg = f"{who} returned {len(found)} arrays, not {len(expected)}"
        raise DisagreementError(msg)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a.shape != b.shape:
            msg = f"{who}: array {i} has shape {a.shape}, not {b.shape}"
            raise DisagreementError(msg)
        error, size = np.linalg.norm((a - b).ravel()), np.linalg.norm(b.ravel())
        if not error <= TOLERANCE * size + 1e-6:
            msg = f"{who}: array {i} (shape {a.shape}) differs by {error:.3g} where its norm is {size:.3g}"
            raise DisagreementError(msg)


def stepping_of(workload: Workload, system: System, parameters: Any) -> Callable[..., Any]:
    """Return the step of a workload in one system."""
    if workload.trains:
        return system.training(workload.program, parameters, workload.optimizer)
    return system.step(workload.program, parameters)


def start(workload: Workload, system: System, *, tiny: bool) -> tuple[Callable[[], Any], list[Any]]:
    """Run a workload's first steps in one system; return the step and what it returned."""
    arrays, data = workload.make(np.random.default_rng(SEED), tiny)
    parameters, data = system.parameters(arrays), system.given(data, workload.operands)
    stepping = stepping_of(workload, system, parameters)

    def step() -> Any:
        return stepping(*data)

    for _ in range(STEPS):
        results = step()
    system.wait(results)
    return step, system.numpy(results)


def suited(workload: Workload, names: Iterable[str] | None = None) -> dict[str, System]:
    """Return the systems that have what a workload needs."""
    chosen = systems() if names is None else {name: s for name, s in systems().items() if name in names}
    return {name: s for name, s in chosen.items() if not workload.needs & s.lacks and name not in workload.skips}


def verify(workload: Workload, *, tiny: bool, names: Iterable[str] | None = None) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Start a workload in all suited systems and compare their results with those of hand-written JAX, the first.

    Returns:
        The steps that gave the right results, and for each other system what went wrong.

    """
    reference, expected = start(workload, systems()[Jitted.name], tiny=tiny)
    steps, failures = {Jitted.name: reference}, {}
    for name, system in suited(workload, names).items():
        if name == Jitted.name:
            continue
        try:
            step, found = start(workload, system, tiny=tiny)
            agree(found, expected, name)
            steps[name] = step
        except Exception as e:  # noqa: BLE001 - whatever a system raises is its result, and the others are still of interest
            failures[name] = f"{type(e).__name__}: {e}"
    return steps, failures


def compare(workload: Workload, effort: Effort, names: Iterable[str] | None = None) -> Comparison:
    """Time a workload in all suited systems whose results are right."""
    steps, failures = verify(workload, tiny=False, names=names)
    times = interleave({name: (step, systems()[name].wait, systems()[name].learnt) for name, step in steps.items()}, effort)
    return Comparison(workload.name, times, failures)
