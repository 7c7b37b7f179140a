"""What is known of a subject: where it is looked at, how exactly, and what was measured there.

The parts of a check read it, and yield findings.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.testing.findings import Finding, doubt, fail, line
from tape.testing.marks import scale_of
from tape.testing.precise import Precise, equations
from tape.testing.probes import Probes
from tape.testing.subject import Subject

_SAMPLERS = {"random_gamma"}  # they reject some candidates, and are differentiated implicitly


def finest(dtypes: Sequence[Any]) -> float:
    """Return the largest relative error of rounding among some dtypes."""
    finfo: Any = jnp.finfo
    return max(float(finfo(dtype).eps) for dtype in dtypes)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What is known of one subject; each stage of a check replaces it by one that has more.

    Attributes:
        traced: its arrays, as it is traced: constants of half precision would be rounded in the program.
        value_jaxpr: the function; None where JAX cannot trace it.
        value: the same in double precision, without its rules.
        explore: whether there is a rule to be tested; JAX's derivative of a function without rules is the reference.
        large: whether the program takes long to compile.
        iterates: whether it has loops that approach something.
        settles: whether its loops have arrived somewhere at the given point.
        adrift: points at which they have not.
        rule: the derivative under test in double precision.
        native_rule: its jaxpr in the function's own dtypes.
        by_differences: whether these alone are the reference.
        measured: values and gradients of reference ("y", "r") and rule ("rule_y", "g"), per array, for all pairs and their twins.
        seen: the pairs at which the function is finite.
        eager: the gradients that were computed op by op (:func:`tape.testing.native.differentiate`), if any.

    """

    subject: Subject
    against: Sequence[str]
    seed: int
    rtol: float
    traced: list[jax.Array]
    shapes: list[Any]
    value_jaxpr: Any
    value: Any
    explore: bool
    large: bool
    probes: Probes
    iterates: bool
    settles: bool
    adrift: set[int]
    measurement: Any
    by_differences: bool
    rule: Any = None
    native_rule: Any = None
    measured: dict[str, list[np.ndarray]] = dataclasses.field(default_factory=dict)
    seen: list[int] = dataclasses.field(default_factory=list)
    eager: list[list[np.ndarray]] | None = None

    @functools.cached_property
    def eps(self) -> float:
        """How exact the function's own dtypes are."""
        return finest([x.dtype for x in [*self.subject.leaves, *self.subject.outputs]])

    @property
    def fine(self) -> float:
        """How exact what it rounds is held to be: half precision is held to what single precision rounds."""
        return float(np.finfo(np.float64 if self.eps < 1e-12 else np.float32).eps)

    @property
    def tiny(self) -> float:
        """The smallest change that means something, where values underflow."""
        return float(np.finfo(np.float64 if self.eps < 1e-12 else np.float32).tiny) / self.fine

    @property
    def untraced(self) -> bool:
        """Whether it runs on concrete values alone."""
        return self.value_jaxpr is None

    @functools.cached_property
    def nearby(self) -> int:
        """The first pair at a point nearby."""
        return next(b for b, pair in enumerate(self.probes.pairs) if pair.point == 1)

    @functools.cached_property
    def sparse(self) -> set[int]:
        """The pairs whose cotangent is that of one output alone."""
        return {b for b, pair in enumerate(self.probes.pairs) if pair.why.endswith("alone")}

    @property
    def drawn(self) -> bool:
        """Whether it returns samples, which move otherwise than their distribution."""
        return not self.untraced and any(eqn.primitive.name in _SAMPLERS for eqn in equations(self.value_jaxpr.jaxpr))

    @property
    def asks_values(self) -> bool:
        """Whether the function's values say what its derivative is."""
        return "numeric" in self.against and not self.drawn

    def precise(self, closed: jaxapi.ClosedJaxpr) -> Precise:
        """Return a jaxpr to be evaluated as the function is."""
        precise = Precise(closed)
        precise.further, precise.most = self.value.further, self.value.most
        return precise

    def raises(self, error: Exception) -> Finding:
        """Return that the derivative cannot be computed: a fault of the rule where there is one."""
        ruled = isinstance(self.subject.fun, (jax.custom_jvp, jax.custom_vjp)) or (self.explore and not self.untraced)
        return (fail if ruled else doubt)(None, "raises", f"the derivative raises {line(error)}")

    def at(self, b: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the point and the cotangent of a pair."""
        pair = self.probes.pairs[b]
        return self.probes.points[pair.point], self.probes.cotangents[pair.cotangent]

    def native(self, b: int) -> tuple[list[jax.Array], list[jax.Array]]:
        """Return the point and the cotangent of a pair in the function's own dtypes."""
        x, ct = self.at(b)
        return self.probes.native(x, self.subject.leaves), self.probes.native(ct, self.subject.outputs)

    def details(self, argument: int, b: int) -> dict[str, Any]:
        """Return what a finding says of a pair."""
        at = self.at(b)[0][argument]
        return {
            "why": self.probes.pairs[b].why,
            "expected": self.measured["r"][argument][2 * b],
            "got": self.measured["g"][argument][2 * b],
            "at": at,
            "pair": b,
        }

    def one_by_one(self, singles: Sequence[tuple[Any, Any]]) -> dict[str, list[np.ndarray]]:
        """Compute rule and reference for points with their cotangents, by the program that is there."""
        return self.measurement.compare([x for x, _ in singles], [ct for _, ct in singles])  # type: ignore[no-any-return]

    def tolerance(self, r: np.ndarray, twin: np.ndarray, floor: np.ndarray | float) -> np.ndarray:
        """Return how far a right derivative may be off in double precision: what a nudge of the point changes, and a share."""
        with np.errstate(invalid="ignore"):
            change = np.abs(r - twin)
            size = np.where(np.isfinite(r), np.abs(r), 0)
            jump = change > 1e-4 * (size + np.abs(twin)) + 1e-6 * (np.sqrt(np.mean(size**2)) if size.size else 0)  # a kink, not rounding
        change = np.where(np.isfinite(change) & ~jump, change, 0)
        typical = np.sqrt(np.mean(change**2)) if change.size else 0.0
        if self.iterates and size.size:  # when to stop is decided for all elements together
            floor = floor + self.rtol * np.sqrt(np.mean(size**2))
        return np.asarray(20 * change + 20 * typical + self.rtol * np.abs(r) + floor)

    def floor(self, b: int, x: np.ndarray) -> np.ndarray:
        """Return what rounding of the function's values alone can make of a gradient that is zero."""
        _, cts = self.at(b)
        size = sum(float(np.abs(y[2 * b] * c).sum()) for y, c in zip(self.measured["y"], cts, strict=True))
        return np.asarray(1e3 * np.finfo(float).eps * size / scale_of(x))
