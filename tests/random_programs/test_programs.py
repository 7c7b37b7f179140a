"""Random programs give the same values, first and second derivatives on the tape as in JAX, and wrong rules and engines are noticed."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import random
import re

import jax
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tape.graph import trie
from tape.ops import building
from tape.programs import execution, program
from tape.recording.record import handle
from tape.rules import table
from tape.sweeps import emission, plan, sweep
from tests import idle
from tests.daily import share
from tests.random_programs.execution import MismatchError, check, fails_like
from tests.random_programs.minimal import minimal
from tests.random_programs.program_strategy import make_program, programs

CI_EXAMPLES = 100  # in fifty, three of the wrong rules and engines below go unseen
_COUNTED = itertools.count(1)


@settings(
    max_examples=max(settings().max_examples, CI_EXAMPLES if "CI" in os.environ else 0),
    deadline=None,  # compiling takes most of the time
    phases=[phase for phase in Phase if phase is not Phase.shrink],  # minimal() does it
    suppress_health_check=[HealthCheck.too_slow],
)
@given(programs())
def test_a_program_agrees_with_jax(drawn):
    if next(_COUNTED) % 500 == 0:  # each takes a dozen of the 65 530 mappings that Linux lets a process have
        idle.settle()
        forget()
        jax.clear_caches()
        gc.collect()
    try:
        check(drawn)
    except Exception as error:
        check(minimal(drawn, fails_like(error)))
        raise


# -- the power of the property ------------------------------------------------------------------------------------------


@functools.cache
def example(number):
    """One of as many programs as are drawn in CI, with a memory for its references."""
    return make_program(random.Random(number)), {}  # noqa: S311


def noticed(pattern, errors=MismatchError):
    """First example that matches a pattern and fails; the others have nothing to do with what was planted."""
    for number in range(CI_EXAMPLES):
        drawn, references = example(number)
        if not re.search(pattern, drawn.reproducer()):
            continue
        try:
            check(drawn, references)
        except errors:
            return number
    pytest.fail("no example noticed it")


def forget():
    """Have everything recorded, planned and compiled anew."""
    trie._ROOTS.clear()
    table._revision += 1


@contextlib.contextmanager
def planted():
    forget()
    try:
        yield
    finally:
        forget()


def scaled(rule):
    def times(grad):
        if callable(grad):
            return lambda: times(grad())
        return None if grad is None else grad * 1.001

    def vjp(ct, out, *ins, **params):
        grads = rule.vjp(ct, out, *ins, **params)
        return tuple(map(times, grads if isinstance(grads, (tuple, list)) else (grads,)))

    return vjp


RULES = {
    "tanh": r"np\.tanh",
    "logistic": r"nn\.sigmoid",
    "mul": r"v\d+ \* v\d+",
    "sub": r"v\d+ - v\d+",
    "dot_general": r"v\d+ @ v|einsum",
    "reduce_sum": r"np\.sum",
    "gather": r"np\.take\(",
    "broadcast_in_dim": r"broadcast_to",
    "select_n": r"np\.where",
    "sort": r"np\.sort",
}


@pytest.mark.parametrize("name", share(list(RULES), 3))
def test_a_rule_scaled_by_one_thousandth_is_noticed(name, monkeypatch):
    rule = next(r for r in table.registered() if str(r.primitive) == name)
    monkeypatch.setattr(table, "_given", {})
    with planted():
        table.defvjp(rule.primitive, scaled(rule))
        found = noticed(RULES[name])
        monkeypatch.undo()
    check(*example(found))


def keep_last(a, b):
    return a if b is None else b


def backwards(hooks, gradient, original=emission.run_hooks):
    return original(dict(reversed(hooks.items())), gradient)


def newest_value(segment, state, slot, leaf_index, original=emission.forward_handle):
    """The leaf as it is now, not as it was when the entry was recorded."""
    origin = segment.origins.get(slot)
    if hasattr(origin, "ref") and slot in leaf_index and origin.ref() is not None:
        return handle(None, state.table[slot], origin.ref()._cell)
    return original(segment, state, slot, leaf_index)


def twice(self, segment, cotangents, original=sweep.Sweep._sweep_segment):
    original(self, segment, dict(cotangents))
    original(self, segment, cotangents)


def all_but_last(*args, original=plan.active_slots):
    return frozenset(sorted(original(*args))[:-1])


def first_leaves(self, state, leaves, original=execution.Program._compile):
    """A program that remembers the arguments with which it was compiled."""
    original(self, state, leaves)
    run = self._compiling.run
    self._compiling = self._compiling._replace(run=lambda *_: run(*leaves), part=None)


def all_but_one(cells, original=program.held):
    """All that is held, but for the last one."""
    return original(cells)[:-1]


def forget_total(_builder, _total, term):
    """Sum that is its last term."""
    return term


ENGINES = {
    "accumulation is dropped": (emission, "add", keep_last, r"v", MismatchError),
    "hooks run in the opposite order": (emission, "run_hooks", backwards, r"register_hook", MismatchError),
    "residuals follow a rebound leaf": (emission, "forward_handle", newest_value, r"\.value = ", MismatchError),
    "segments are swept twice": (sweep.Sweep, "_sweep_segment", twice, r"v", MismatchError),
    "a slot is taken for inactive": (plan, "active_slots", all_but_last, r"v", (MismatchError, LookupError)),
    "a VJP forgets the sum that it adds to": (building.JaxprBuilder, "add", forget_total, r"v", MismatchError),
    "a compiled program is stale": (execution.Program, "_compile", first_leaves, r"mode: lazy", MismatchError),
    "a Variable's value is not kept": (program, "held", all_but_one, r"mode: lazy", Exception),
}


@pytest.mark.parametrize("bug", ENGINES)
def test_a_wrong_engine_is_noticed(bug, monkeypatch):
    owner, name, wrong, pattern, errors = ENGINES[bug]
    with planted():
        monkeypatch.setattr(owner, name, wrong)
        found = noticed(pattern, errors)
        monkeypatch.undo()
    check(*example(found))


def test_a_failing_program_prints_as_source_that_runs():
    drawn, _ = example(0)
    with contextlib.suppress(SystemExit):  # no root requires grad
        exec(compile(repr(drawn), "reproducer", "exec"), {"print": lambda *_: None})  # noqa: S102
