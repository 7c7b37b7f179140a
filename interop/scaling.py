"""Loss scales: a seed large enough that gradients of low precision do not underflow, divided out again before the update.

Whether the gradients are finite is decided where they are, in the program of the step: the host waits for nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tape.errors import TapeTypeError, TapeValueError


@dataclasses.dataclass(frozen=True)
class DynamicLossScale:
    """A loss scale that falls where gradients overflow, and grows while they do not.

    Args:
        initial: the scale of the first step.
        growth: what it is multiplied by after ``interval`` steps in a row with finite gradients.
        backoff: what it is multiplied by after a step whose gradients were not finite (such a step is skipped).
        interval: that number of steps.
        minimum: it does not fall below.

    Raises:
        TapeValueError: ``initial`` or ``minimum`` is not positive and finite, ``growth`` is below 1, ``backoff`` is not in (0, 1], or
            ``interval`` is not a positive integer.

    Example:
        >>> import interop.optax
        >>> interop.optax.DynamicLossScale(initial=1024).interval
        2000

    """

    initial: float = 2.0**15
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    minimum: float = 1.0

    def __post_init__(self) -> None:
        for name, holds, wanted in (
            ("initial", _positive(self.initial), "a positive finite number"),
            ("growth", _positive(self.growth) and self.growth >= 1, "a finite number of at least 1"),
            ("backoff", _positive(self.backoff) and self.backoff <= 1, "in (0, 1]"),
            ("interval", _positive(self.interval) and int(self.interval) == self.interval, "a positive integer"),
            ("minimum", _positive(self.minimum), "a positive finite number"),
        ):
            if not holds:
                msg = f"DynamicLossScale: {name} must be {wanted}, got {getattr(self, name)!r}"
                raise TapeValueError(msg)


class LossScaleState(NamedTuple):
    """What a loss scale has come to, as scalar arrays.

    Attributes:
        scale: the present scale (float32).
        good_steps: steps with finite gradients since it changed (int32).
        skipped: steps that were skipped, because a gradient was not finite (int32).

    """

    scale: Any
    good_steps: Any
    skipped: Any


def _positive(x: Any) -> bool:
    return isinstance(x, (int, float, np.number)) and not isinstance(x, bool) and bool(math.isfinite(x) and x > 0)


def policy_of(loss_scale: Any) -> DynamicLossScale:
    """Return how a scale given by the user behaves: a number stays as it is."""
    if isinstance(loss_scale, DynamicLossScale):
        return loss_scale
    if isinstance(loss_scale, bool) or not isinstance(loss_scale, (int, float, np.number)):
        msg = f"Optimizer: loss_scale must be a number, a DynamicLossScale or None, got {type(loss_scale).__name__}"
        raise TapeTypeError(msg)
    if not _positive(loss_scale):
        msg = f"Optimizer: loss_scale must be positive and finite, got {loss_scale!r}"
        raise TapeValueError(msg)
    return DynamicLossScale(float(loss_scale), growth=1.0, backoff=1.0, minimum=float(loss_scale))


def started(policy: DynamicLossScale) -> LossScaleState:
    """Return the state before the first step."""
    return LossScaleState(np.float32(policy.initial), np.int32(0), np.int32(0))


def following(policy: DynamicLossScale, state: LossScaleState, finite: Any) -> LossScaleState:
    """Return the state after a step."""
    good = jnp.where(finite, state.good_steps + 1, 0)
    grows = good >= policy.interval
    grown = state.scale * policy.growth
    kept = jnp.where(grows & jnp.isfinite(grown), grown, state.scale)
    scale = jnp.where(finite, kept, jnp.maximum(state.scale * policy.backoff, policy.minimum))
    return LossScaleState(
        scale.astype(jnp.float32),
        jnp.where(grows, 0, good).astype(jnp.int32),
        (state.skipped + jnp.where(finite, 0, 1)).astype(jnp.int32),
    )


def widened(tree: Any) -> Any:
    """Return a pytree with its arrays of 16 bits in float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4 else x, tree)


def unscaled(gradients: Sequence[Any], scale: Any) -> list[Any]:
    """Divide gradients by the scale, those of 16 bits in float32."""
    return [g / scale.astype(g.real.dtype) for g in widened(list(gradients))]


def all_finite(gradients: Sequence[Any]) -> Any:
    """Tell, by a scalar array, whether all numbers in all gradients are finite."""
    return jnp.stack([jnp.isfinite(g).all() for g in gradients]).all()


def chosen(finite: Any, new: Any, old: Any) -> Any:
    """Return ``new`` where all gradients were finite, otherwise ``old``, in the dtypes of ``old``."""

    def choose(a: Any, b: Any) -> Any:
        return jnp.where(finite, a if a.dtype == b.dtype else a.astype(b.dtype), b) if isinstance(a, jax.Array) else a

    return jax.tree.map(choose, new, old)
