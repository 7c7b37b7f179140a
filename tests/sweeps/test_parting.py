"""How a long loop with looks is parted into programs: the same few parts, whatever its length."""

import random

import pytest

from tape.sweeps.parting import SHORT, Parting, together


class Turn:
    """What a plan is, as far as this is concerned."""

    def __init__(self, name, seconds):
        self.name = name
        self.seconds = seconds


def parts(turns):
    """Return the names of what is swept together, last turn first."""
    found, written = Parting(), [""]
    for i, plan in enumerate(turns):
        if found.ends(plan, len(turns) - 1 - i):
            written.append("")
        written[-1] += plan.name
    return written


@pytest.mark.parametrize(("seconds", "several"), [(0.0, 8), (0.04, 8), (0.05, 4), (0.08, 4), (0.09, 2), (0.17, 2), (0.18, 1), (3.0, 1)])
def test_turns_that_compile_soon_are_swept_together(seconds, several):
    assert together(seconds) == several
    x = Turn("x", seconds)
    assert set(parts([x] * 63)) == {"x" * n for n in (1, 2, 4, 8) if n <= several}


def test_a_short_loop_is_one_program():
    x = Turn("x", 0.3)
    for n in range(1, SHORT + 1):
        assert parts([x] * n) == ["x" * n]


@pytest.mark.parametrize("seconds", [0.03, 0.06, 0.14, 0.6])
def test_lengths_do_not_make_parts(seconds):
    x = Turn("x", seconds)
    met = {part for n in range(SHORT + 1, 100) for part in parts([x] * n)}
    assert met <= {"x" * n for n in (1, 2, 4, 8) if n <= together(seconds)}
    for n in range(SHORT + 1, 100):
        assert len("".join(parts([x] * n))) == n
        assert len(parts([x] * n)) <= n // together(seconds) + 4


def test_turns_with_two_looks():
    a, b = Turn("a", 0.06), Turn("b", 0.03)
    met = {part for n in range(SHORT, 60) for part in parts([a, b] * n)}
    assert met == {"a", "b", "ab"}


def test_turns_that_branch():
    """However the branches follow one another, there are few programs: as many as turns swept together, for each branch."""
    a, b, c = Turn("a", 0.08), Turn("b", 0.03), Turn("c", 0.3)
    draws = random.Random(0)  # noqa: S311 - no secret
    met = set()
    for _ in range(300):
        turns = draws.choices([a, b, c], [5, 3, 1], k=draws.randrange(SHORT + 1, 60))
        assert "".join(parts(turns)) == "".join(turn.name for turn in turns)
        met.update(parts(turns)[1:])
    assert met <= {"a" * n for n in range(1, 5)} | {"b" * n for n in range(1, 9)} | {"c"}


def test_what_does_not_repeat_is_not_parted():
    layers = [Turn(str(i), 0.3) for i in range(30)]
    assert len(parts(layers)) == 1
