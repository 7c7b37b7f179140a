"""What of the repetitions runs by day: CI's `nightly` part runs them all."""

import os

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def share(cases, every=4):
    """By day the first of the cases and each ``every``-th after it, by night all: the same ones each day."""
    return cases if NIGHTLY else cases[::every]


def pairs(first, second, every=4):
    """Pairs of both: by night all, by day each ``every``-th on shifted diagonals, so that each of either is met where there are so many."""
    first, second = list(first), list(second)
    return [(a, b) for i, a in enumerate(first) for j, b in enumerate(second) if NIGHTLY or (i + j) % every == 0]
