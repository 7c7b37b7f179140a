"""What a check comes upon: gradients that are not the reference's, and what became of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Finding", "Suspect"]


@dataclasses.dataclass(slots=True)
class Finding:
    """One disagreement.

    Attributes:
        kind: where it shows: first, second, forward, vmap, jit, repeat, structure, value, native or raises.
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
