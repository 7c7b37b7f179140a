"""Variations: structures never met before whose loops are known from others, as those of sequences of ever other lengths.

When a loop comes with another number of turns than before, its body is compiled in the background; from some runs later on, whatever has
that loop calls the body for each turn and runs only the rest entry by entry.  Nothing of that depends on how long compiling takes.  Where
NumPy is soon through with most kernels (:mod:`tape.ops.hosting`), it has run them all before loops are found, and bodies called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from tape.accounts.records import Change, Site
from tape.graph.trie import CLOCK, Step
from tape.ops.kernel import Kernel
from tape.ops.running import HOSTED
from tape.programs import background
from tape.programs.interpretation import on_one_device
from tape.programs.loops import Flow, Loop, find
from tape.programs.telling import begun, told
from tape.programs.turns import Body, Call, Calls, body_of, described, turns_of

FEWEST = 64  # entries; fewer are soon interpreted
WORK = 1.2e-5  # seconds that each of them is to keep NumPy busy on average, what is light not counted, for calls to take less
AFTER = 6  # runs after the compiler began with a body, it is used


def known(
    entries: Sequence[Step],
    kernels: Iterable[Kernel],
    slots: Sequence[int],
    keep: Sequence[int],
    leaves: Sequence[Any],
    site: Site | None = None,
    *,
    home: bool,
) -> Calls | None:
    """Return what runs entries, from leaves of some slots to the values kept, by bodies of loops that are known; None where none is.

    ``home`` is what :func:`tape.programs.interpretation.at_home` says of the leaves.
    """
    if len(entries) < FEWEST:
        return None
    if home:
        work = {kernel: kernel.rent - HOSTED for kernel in kernels if not kernel.is_light}
        if (sum([work.get(e.kernel, 0.0) for e in entries]) if work else 0.0) < WORK * len(entries):
            return None
    if any(kernel.pinned for kernel in kernels) or not all(map(on_one_device, leaves)):
        return None
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return None
    flow = Flow(entries, keep)
    values = dict(zip(slots, leaves, strict=True))
    loops = [loop for loop in find(flow) if _is_ready(body_of(loop), loop, flow, values, site)]
    if not loops:
        return None
    calls: list[Call] = []
    for start, end, loop in flow.around(loops):
        calls += map(_alone, entries[start:end])
        calls += () if loop is None else turns_of(flow, loop, values)
    return Calls(calls, slots, keep, flow)


def _alone(entry: Step) -> Call:
    """Return the call of one entry."""
    executable = entry.kernel.executable
    return Call(executable, executable, entry.inputs, entry.slots, entry=True)


def _is_ready(body: Body, loop: Loop, flow: Flow, leaves: dict[int, Any], site: Site | None) -> bool:
    """Tell whether a loop's body is compiled by now; have that done where the loop has another length than before."""
    if body.job is None:
        if body.turns not in (0, loop.count):
            there = described(leaves, flow.entries[: loop.start])
            arguments = [there[s] for s in turns_of(flow, loop, leaves)[0].inputs]
            change = Change("turns", "a loop came with another number of turns", "one turn is compiled, for any number of them")
            body.begun, body.job = CLOCK.now, background.compiling(body.compiled, arguments)
            told(body.job, begun("turn", site, [e.kernel.name for e in loop.turn], change))
        body.turns = loop.count
        return False
    if CLOCK.now - body.begun < AFTER:
        return False
    try:
        body.job.wait()
    except Exception:  # noqa: BLE001 - the compiler refuses the whole: each entry on its own may well run
        return False
    return True
