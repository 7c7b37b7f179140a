"""What a check comes upon: gradients that are not the reference's, and what became of them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np


@dataclasses.dataclass(slots=True)
class Finding:
    """One disagreement.

    Attributes:
        kind: where it shows: first, second, forward, vmap, variant, jit, repeat, structure, value, native or raises.
        argument: number of the differentiated array; None where it is none of them.
        verdict: fail, inaccurate or inconclusive.
        message: what was seen.
        why: at which point, with which cotangent.

    """

    kind: str
    argument: int | None
    verdict: str
    message: str
    why: str = ""
    expected: np.ndarray | None = None
    got: np.ndarray | None = None
    at: np.ndarray | None = None
    pair: int | None = None


@dataclasses.dataclass(slots=True)
class Suspect:
    """A gradient that is not the reference's."""

    pair: int
    argument: int
    bad: np.ndarray
    ratio: np.ndarray


class Vote(NamedTuple):
    """What one independent derivative says of the one under test."""

    argument: int
    who: str
    says: str


class Note(NamedTuple):
    """What could not be checked, in words."""

    text: str


class LeftOut(NamedTuple):
    """What was not checked, since the function is a large program."""

    what: str


Item = Finding | Vote | Note | LeftOut  # what a part of a check yields


def fail(argument: int | None, kind: str, message: str, **details: Any) -> Finding:
    """Return something that is wrong."""
    return Finding(kind, argument, "fail", message, **details)


def doubt(argument: int | None, kind: str, message: str, **details: Any) -> Finding:
    """Return something that cannot be decided."""
    return Finding(kind, argument, "inconclusive", message, **details)


def infinite() -> Finding:
    """Return that there is no value at the given point."""
    return doubt(None, "first", "the function's value is not finite at the given point")


def line(error: Exception) -> str:
    """Return an error as one line."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
