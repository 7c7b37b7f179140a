"""How a long loop with looks is parted into programs: the same few parts, whatever its length."""

import random

import pytest

from tape.sweeps.sweep import SHORT, Parting, together


class Turn:
    """What a plan is, as far as this is concerned."""

    def __init__(self, name, size):
        self.name = name
        self.instructions = [None] * size


def parts(turns):
    """Return the names of what is swept together, last turn first."""
    found, written = Parting(), [""]
    for i, plan in enumerate(turns):
        if found.ends(plan, len(turns) - 1 - i):
            written.append("")
        written[-1] += plan.name
    return written


@pytest.mark.parametrize(("size", "several"), [(1, 8), (16, 8), (17, 4), (32, 4), (33, 2), (64, 2), (65, 1), (1000, 1)])
def test_small_turns_are_swept_together(size, several):
    assert together(size) == several
    x = Turn("x", size)
    assert set(parts([x] * 51)) == {"x", "x" * several}


def test_a_short_loop_is_one_program():
    x = Turn("x", 100)
    for n in range(1, SHORT + 1):
        assert parts([x] * n) == ["x" * n]


@pytest.mark.parametrize("size", [10, 20, 50, 200])
def test_lengths_do_not_make_parts(size):
    x = Turn("x", size)
    met = {part for n in range(SHORT + 1, 100) for part in parts([x] * n)}
    assert len(met) <= 2
    for n in range(SHORT + 1, 100):
        assert len("".join(parts([x] * n))) == n
        assert parts([x] * n).count("x") <= together(size) or together(size) == 1


def test_turns_with_two_looks():
    a, b = Turn("a", 20), Turn("b", 10)
    met = {part for n in range(SHORT, 60) for part in parts([a, b] * n)}
    assert met == {"a", "b", "ab"}


def test_turns_that_branch():
    """However the branches follow one another, there are few programs: as many as turns swept together, for each branch."""
    a, b, c = Turn("a", 30), Turn("b", 10), Turn("c", 100)
    draws = random.Random(0)  # noqa: S311 - no secret
    met = set()
    for _ in range(300):
        turns = draws.choices([a, b, c], [5, 3, 1], k=draws.randrange(SHORT + 1, 60))
        assert "".join(parts(turns)) == "".join(turn.name for turn in turns)
        met.update(parts(turns)[1:])
    assert met <= {"a" * n for n in range(1, 5)} | {"b" * n for n in range(1, 9)} | {"c"}


def test_what_does_not_repeat_is_not_parted():
    layers = [Turn(str(i), 100) for i in range(30)]
    assert len(parts(layers)) == 1
