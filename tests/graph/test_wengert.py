"""Walks and the sweep know nothing of ops: they are tested on lists of entries that have inputs and slots, and nothing else."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from tape.graph.wengert import Constant, accumulate, active, backwards, closure, last_uses, leading, needed, producers, sweep
from tape.ops.linear import flatten


class Entry(NamedTuple):
    name: str
    inputs: tuple
    slots: tuple


TWO = Constant(2.0, None)
# Slots 0 and 1 are inputs; b gives two, and nothing that e gives is read.
LIST = [
    Entry("a", (0, TWO), (2,)),
    Entry("b", (2, 1), (3, 4)),
    Entry("c", (1,), (5,)),
    Entry("d", (3, 3, 2), (6,)),
    Entry("e", (6, 5), (7,)),
]


def names(entries):
    return "".join(e.name for e in entries)


def test_needed_are_the_entries_behind_some_slots_in_order():
    reached = {6}
    assert names(needed(LIST, reached)) == "abd"
    assert reached - {TWO} == {6, 3, 2, 1, 0}
    assert names(needed(LIST, {0, 1})) == ""


def test_backwards_goes_where_the_caller_leads():
    reached = {7}
    walked = ""
    for entry in backwards(LIST, reached):
        walked += entry.name
        if entry.name != "d":
            reached.update(entry.inputs)
    assert walked == "edc"


def test_active_is_what_depends_on_the_start_but_for_what_is_held_back():
    assert active(LIST, [0], lambda e: e.slots) == {0, 2, 3, 4, 6, 7}
    assert active(LIST, [1], lambda e: () if e.name == "c" else e.slots[:1]) == {1, 3, 6, 7}


def test_leading_stops_at_what_is_known_and_looks_at_the_rest_only():
    makers = producers(LIST)
    entries, read = leading([6], makers, {2: "known", 0: "input", 1: "input"})
    assert (names(entries), read) == ("bd", {2, 1})
    assert leading([4, 6], makers, [3, 4, 2])[1] == {3, 4, 2}


def test_last_uses():
    assert {s: i for s, i in last_uses(LIST).items() if s is not TWO} == {0: 0, 1: 2, 2: 3, 3: 3, 5: 4, 6: 4}


def test_closure_grows_what_it_is_told_of_and_keeps_the_rest():
    assert closure([True, False, False, True], lambda f: [False, f[0], f[1]]) == [True, True, True, True]
    assert closure([False, False, True], lambda f: [False, f[0]]) == [False, False, True]


class Symbolic:
    """Cotangents are texts; the sweep ends at the entry ``end``."""

    def __init__(self, end=None):
        self.end = end
        self.met = []

    def arrive(self, entry, cotangents):
        self.met.append((entry.name, cotangents))
        return None if entry.name == self.end else cotangents

    def pull(self, entry, cotangents, wanted, totals):
        joined = "".join(ct or "-" for ct in cotangents)
        return [(s, f"{entry.name}{i}({joined})") for i, (s, flag) in enumerate(zip(entry.inputs, wanted, strict=True)) if flag]

    def add(self, entry, total, term):
        return f"{total}+{term}"


def test_a_sweep_meets_each_entry_once_last_to_first_and_adds_up():
    emitter, totals = Symbolic(), {6: "s", 4: "t"}
    sweep(LIST, totals, active(LIST, [0], lambda e: e.slots), emitter)
    assert [name for name, _ in emitter.met] == ["d", "b", "a"]
    assert emitter.met[1] == ("b", ["d0(s)+d1(s)", "t"])
    assert totals == {0: "a0(d2(s)+b0(d0(s)+d1(s)t))"}


def test_a_sweep_goes_no_further_than_the_emitter_lets_it():
    emitter, totals = Symbolic(end="b"), {3: "s", 5: "u"}
    sweep(LIST, totals, {0, 1, 2, 3, 5}, emitter)
    assert [name for name, _ in emitter.met] == ["c", "b"]
    assert totals == {1: "c0(u)"}


def test_seeds_of_one_slot_are_added():
    totals = {}
    accumulate(totals, [(3, "s"), (5, "t"), (3, "u")], Symbolic())
    assert totals == {3: "s+u", 5: "t"}


@pytest.mark.parametrize("n", [0, 5000])
def test_lists_may_be_long(n):
    chain = [Entry("x", (i,), (i + 1,)) for i in range(n)]
    assert len(leading([n], producers(chain), [0])[0]) == n
    emitter, totals = Symbolic(end=None), {n: ""}
    emitter.pull = lambda entry, cotangents, wanted, totals: [(entry.inputs[0], "")]
    sweep(chain, totals, range(n + 1), emitter)
    assert totals == {0: ""}


def test_a_jaxpr_is_such_a_list():
    listed = flatten(jax.make_jaxpr(jax.jit(lambda x, y: (jnp.sin(x) * 2.0, y)))(1.0, 2.0))
    assert [str(e.primitive) for e in listed.entries] == ["sin", "mul"]
    assert listed.outputs == (3, 1)
    assert [str(e.primitive) for e in needed(listed.entries, {3})] == ["sin", "mul"]
