"""Gradient flow: what arrives at each entry in a sweep from some roots."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape.graph.scope import within
from tape.insight.notes import Lone
from tape.programs.program import look
from tape.sweeps.seeds import require_grad, seeds_of, wide
from tape.sweeps.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.graph.segment import Handle
    from tape.insight.reading import Reading


def cotangents(function: str, reading: Reading, roots: Sequence[Handle]) -> dict[int, Any]:
    """Return for each entry that gradients from the roots reach the gradient of its first result that gets one; nothing is released.

    ReleasedTapeError: the tape was released.
    """
    for root in roots:
        require_grad(function, "outputs", root)
    targets: dict[Any, int] = {}
    for entry, place in zip(reading.entries, reading.places, strict=True):
        if not entry.requires_grad or isinstance(place, Lone):
            continue
        part, number = place
        segment = part.ref()
        step = reading.steps_of(part)[number]
        if segment is None:
            continue
        for slot in step.slots[: step.kernel.visible]:
            if part.state.table[slot].kind.requires_grad:
                targets[segment, slot] = entry.number
    found: dict[int, Any] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(within(notes=None))
        settings = stack.enter_context(wide(roots))
        seeds, _ = seeds_of(function, list(roots), None)
        sweep = Sweep(list(targets), (), create_graph=False)
        sweep.run(roots, seeds, settings, leaf_hooks=False)
        for target, gradient in sweep.gradients.items():
            if target in targets:
                found.setdefault(targets[target], gradient)
        return {number: look(gradient) for number, gradient in sorted(found.items())}


def norms(values: dict[int, Any]) -> dict[int, float]:
    """Return Euclidean norms, at the precision of double; infinite where a value is not finite."""
    found = {}
    for number, value in values.items():
        array = np.abs(np.asarray(jax.device_get(value)))
        wide_array = array.astype(np.float64)
        found[number] = float(np.sqrt(np.sum(wide_array * wide_array))) if np.isfinite(wide_array).all() else float("inf")
    return found
