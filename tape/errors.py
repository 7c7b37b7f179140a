"""Every error class of the library: each derives from :class:`TapeError` and from the builtin that a user would expect.

A message says what happened, which value it happened to (shape, dtype), and what to do about it.
"""

from __future__ import annotations

import numpy as np

__all__ = [
    "ConcretizationError",
    "ExecutionError",
    "GradientDtypeError",
    "GradientMismatch",
    "GradientShapeError",
    "LeakedTracerError",
    "LostGradientError",
    "NonFiniteError",
    "OutOfMemoryError",
    "ReleasedTapeError",
    "RuleError",
    "SeedDtypeError",
    "SeedError",
    "TapeError",
    "TapeIndexError",
    "TapeOverflowError",
    "TapeRuntimeError",
    "TapeTypeError",
    "TapeValueError",
    "UnconnectedError",
    "UnrecordedGradientError",
    "check_flag",
    "wrap",
]


class TapeError(Exception):
    """Base class of everything that this library raises on purpose."""


class TapeTypeError(TapeError, TypeError):
    """An argument has the wrong type or dtype."""


class TapeValueError(TapeError, ValueError):
    """An argument has the right type but a value or shape that does not fit."""


class TapeOverflowError(TapeError, OverflowError):
    """A Python number does not fit the dtype that it would get."""


class TapeIndexError(TapeError, IndexError):
    """An index does not fit the shape of the Variable."""


class TapeRuntimeError(TapeError, RuntimeError):
    """The tape is not in a state that allows what was asked."""


class SeedError(TapeValueError):
    """A root needs a seed, or the seed given does not fit it (shape)."""


class SeedDtypeError(TapeTypeError):
    """A seed's dtype does not fit its root: a complex seed for a real root."""


class UnconnectedError(TapeValueError):
    """No differentiable path leads from the outputs to an input."""


class LostGradientError(TapeTypeError):
    """An operation would silently take a Variable that requires grad for a constant."""


class ConcretizationError(TapeTypeError):
    """A value was looked at where only its shape and dtype are known."""


class LeakedTracerError(TapeRuntimeError):
    """A value that exists only inside a JAX transformation would be stored in a Variable from outside."""


class ExecutionError(TapeRuntimeError):
    """An op that was recorded failed when it ran: a callback raised, or XLA did."""


class NonFiniteError(TapeError, FloatingPointError):
    """An op made a NaN or an infinity under ``tape.detect_anomaly``, ``jax.debug_nans`` or ``jax.debug_infs``, which forbid that."""


class OutOfMemoryError(TapeError, MemoryError):
    """There was not enough memory to run what is pending; it stays pending."""


class ReleasedTapeError(TapeRuntimeError):
    """A sweep reached a part of the tape that an earlier sweep released."""


class UnrecordedGradientError(TapeRuntimeError):
    """A gradient taken without ``create_graph=True`` was differentiated."""


class RuleError(TapeRuntimeError):
    """A VJP rule or a custom backward returned the wrong number of gradients."""


class GradientShapeError(RuleError, ValueError):
    """A VJP rule or a custom backward returned a cotangent of the wrong shape."""


class GradientDtypeError(RuleError, TypeError):
    """A VJP rule or a custom backward returned a cotangent of the wrong dtype."""


class GradientMismatch(TapeError, AssertionError):  # noqa: N818 - it is a finding, as AssertionError's subclasses are
    """A derivative under test is not the function's; ``report`` says where, by how much, and what kind of wrong it is."""

    def __init__(self, report: object) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        """Show the report."""
        return str(self.report)


class InconclusiveGradientError(TapeError, AssertionError):
    """A property test reached a verdict on none of its examples, so that it tested nothing."""


def check_flag(function: str, argument: str, given: object) -> None:
    """Raise TapeTypeError where an argument that is True or False is something else, which could be meant otherwise than Python takes it."""
    if not isinstance(given, (bool, np.bool_)):
        msg = f"{function}: {argument} must be True or False, got {type(given).__name__}"
        raise TapeTypeError(msg)


def wrap(error: Exception, what: str) -> TapeError | None:
    """Return the TapeError that says what JAX's TypeError, ValueError or IndexError says; None for any other."""
    for builtin, ours in (
        (TypeError, TapeTypeError),
        (IndexError, TapeIndexError),
        (OverflowError, TapeOverflowError),
        (ValueError, TapeValueError),
    ):
        if isinstance(error, builtin):
            return ours(f"{what}: {error}")
    return None
