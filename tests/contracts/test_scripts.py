"""Contracts 1 to 6, 10 to 16, 20 and 21 at once: random scripts agree with a second tape that has no caches, at every meeting of a
structure.

A script runs until it is interpreted, compiled, replayed and recalled; then scripts that differ from it in one thing, with those caches
warm.
"""

import contextlib
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tape.graph import trie
from tape.rules import table
from tape.sweeps import accumulation, differentiation, emission, sweep
from tests.contracts.reference import Tape, Value, Variable
from tests.contracts.running import play, play_all
from tests.contracts.scripts import make_script

CHECKS = settings(
    max_examples=max(10, settings().max_examples // 5),
    deadline=None,
    phases=[phase for phase in Phase if phase is not Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)


@CHECKS
@given(st.integers(0, 1 << 40))
@example(114793)  # a result with a hook is unchained, and swept from
def test_scripts_agree_with_the_reference(seed):
    play_all(random.Random(seed))  # noqa: S311


# -- the reference is right -------------------------------------------------------------------------------------------------


def computed(t, x, w):
    """A function with every op of the reference."""
    p, s = t.pair(t.sin(x), w)
    h = t.put(t.sub(t.mul(p, x), t.neg(s)), t.scale(t.first(t.add(w, x)), 0.5))
    h = t.take(h, np.array([2, 0, 1]))
    return t.sum(t.mul(t.cos(h), t.spread(t.sum(x), (3,))))


def computed_by_jax(x, w):
    p, s = jnp.sin(x) * w, jnp.sin(jnp.sin(x))
    h = p * x + s
    h = h.at[0].set(0.5 * (w + x)[0])[jnp.array([2, 0, 1])]
    return jnp.sum(jnp.cos(h) * jnp.sum(x))


def test_the_reference_agrees_with_jax_grad():
    """Values, first derivatives, and second ones by its own sweep of its own sweep."""
    a, b, v = (np.cos(np.arange(3) + k) for k in (0.0, 1.0, 2.0))
    t = Tape()
    x, w = Variable(Value(a)), Variable(Value(b))
    x.become_leaf(a)
    w.become_leaf(b)
    y = Variable(computed(t, x.value, w.value))
    gx, gw = t.gradients([y], [x, w], [None], create_graph=True)
    hx, hw = t.gradients([gx], [x, w], [Value(v)])
    with jax.enable_x64(True):
        grad = jax.grad(computed_by_jax, argnums=(0, 1))
        # float64 on both sides, sums of three terms: some thousand roundings are allowed, a wrong rule is far outside.
        np.testing.assert_allclose(y.value.array, computed_by_jax(a, b), rtol=1e-12)
        for ours, theirs in zip((gx, gw), grad(a, b), strict=True):
            np.testing.assert_allclose(ours.value.array, theirs, rtol=1e-12)
        second = jax.vjp(lambda x, w: grad(x, w)[0], a, b)[1](jnp.asarray(v))
        for ours, theirs in zip((hx, hw), second, strict=True):
            np.testing.assert_allclose(ours.value.array, theirs, rtol=1e-12)


# -- the power of the property ------------------------------------------------------------------------------------------------


def keep_last(a, b, *_):
    return a if b is None else b


def first_only(gradients, targets, original=accumulation.additions):
    return original(gradients, targets)[:1]


def sweeps(**wanted):
    """Tell scripts whose backward() calls have a certain option."""
    names = ("roots", "seeds", "inputs", "ignore", "retain", "create")

    def fits(script):
        return any(kind == "backward" and all(args[names.index(k)] for k in wanted) for kind, _, args in script.events)

    return fits


def anything(script):
    return len(script.leaves) > 1


PLANTED = {
    "a sum is its last term": (emission, "add", keep_last, anything),
    "what is ignored is swept": (sweep.Sweep, "_blocked", lambda *_: frozenset(), sweeps(ignore=True)),
    "what is swept is not released": (sweep.Sweep, "releasing", lambda _: contextlib.nullcontext(), anything),
    "one gradient of several is kept": (differentiation, "additions", first_only, sweeps()),
    "hooks do not replace": (emission, "run_hooks", lambda _, gradient: gradient, lambda s: any(e[0] == "hook" for e in s.events)),
}


def play_some(count, fits):
    for seed in range(count):
        script = make_script(random.Random(seed))  # noqa: S311
        if fits(script):
            play(script, 1)


def forget():
    trie._ROOTS.clear()
    table._revision += 1


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug, monkeypatch):
    owner, name, wrong, fits = PLANTED[bug]
    forget()
    monkeypatch.setattr(owner, name, wrong)
    try:
        with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever the bug leads to
            play_some(400, fits)
    finally:
        monkeypatch.undo()
        forget()
