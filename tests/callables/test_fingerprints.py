"""Rules of the user's in a traced program are called when it is differentiated: what they read then is part of what the program is."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
from tape.callables.fingerprints import fingerprint

SCALE = 1.0
BOX = types.SimpleNamespace(inner={"scale": 1.0})
TABLE = np.ones((100, 100))
CONSTANT, TRAINED, PENDING = tape.constant(1.0), tape.Variable(1.0), tape.Variable(1.0)


def custom(backward):
    fun = jax.custom_vjp(lambda x: x * 1.0)
    fun.defvjp(lambda x: (x * 1.0, None), backward)
    return fun


of_a_global = custom(lambda _, g: (g * SCALE,))
of_a_table = custom(lambda _, g: (g * TABLE[7, 7].astype("float32"),))
of_a_box = custom(lambda _, g: (g * BOX.inner["scale"],))


def helper(g):
    return g * SCALE


of_a_helper = custom(lambda _, g: (helper(g),))


@jax.custom_jvp
def of_a_jvp(x):
    return x * 1.0


@of_a_jvp.defjvp
def _(primals, tangents):
    return of_a_jvp(*primals), tangents[0] * SCALE


class Reversal:
    """As for adversarial training of domains, whose factor grows from epoch to epoch."""

    factor = 1.0

    def __call__(self, x):
        return custom(lambda _, g: (g * self.factor,))(x)

    def by_a_method(self, x):
        return custom(self._backward)(x)

    def by_a_property(self, x):
        return custom(lambda _, g: (g * self.whole,))(x)

    def _backward(self, _, g):
        return (g * self.factor,)

    @property
    def whole(self):
        return self.factor * 1.0


class Rule:
    factor = 1.0

    def __call__(self, _, g):
        return (g * self.factor,)


class Further(Rule):
    """Its method takes what nothing else names."""

    settings = types.SimpleNamespace(steps=1.0)

    def __call__(self, _, g):
        return (self.scaled(g),)

    def scaled(self, g):
        return g * self.settings.steps


def scaled(_, g, scale):
    return (g * scale,)


REVERSAL, RULE, FURTHER = Reversal(), Rule(), Further()
READING = {
    "an attribute": REVERSAL,
    "an attribute, by a method": REVERSAL.by_a_method,
    "an attribute, by a property": REVERSAL.by_a_property,
    "a global": of_a_global,
    "a global, by a helper": of_a_helper,
    "a global, in a JVP": of_a_jvp,
    "an array that is written into": of_a_table,
    "an item of a global": of_a_box,
    "itself": lambda x: custom(RULE)(x),
    "an attribute of an attribute, by a method": lambda x: custom(FURTHER)(x),
    "a default": lambda x: custom(lambda _, g, scale=SCALE: (g * scale,))(x),
    "a keyword's default": lambda x: custom(lambda _, g, *, scale=SCALE: (g * scale,))(x),
    "a keyword": lambda x: custom(functools.partial(scaled, scale=SCALE))(x),
    "a constant": custom(lambda _, g: (g * CONSTANT.value,)),
    "a Variable": custom(lambda _, g: (g * TRAINED.value,)),
    "a Variable that waits": custom(lambda _, g: (g * PENDING.value,)),
}
WAYS = {
    "lift": lambda f, x: interop.lift(lambda a: f(a))(x),
    "lift of jit": lambda f, x: interop.lift(jax.jit(lambda a: f(a)))(x),
    "checkpoint": lambda f, x: tape.checkpoint(lambda v: interop.lift(lambda a: f(a))(v))(x),
    "scan": lambda f, x: tape.lax.scan(lambda c, _: (interop.lift(lambda a: f(a))(c), None), x, None, length=1)[0],
    "cond": lambda f, x: tape.lax.cond(True, lambda v: interop.lift(lambda a: f(a))(v), lambda v: v, x),
}


def put(scale, monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", scale)
    monkeypatch.setitem(BOX.inner, "scale", scale)
    monkeypatch.setattr(REVERSAL, "factor", scale)
    monkeypatch.setattr(RULE, "factor", scale)
    monkeypatch.setattr(FURTHER.settings, "steps", scale)
    CONSTANT.value = TRAINED.value = scale
    with tape.no_grad():
        waiting = PENDING
        waiting *= 0.0
        waiting += scale
    TABLE[...] = scale


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("read", READING)
def test_what_a_rule_reads_is_read_anew_with_each_trace(read, way, monkeypatch):
    x = tape.Variable(2.0)
    met = []
    for scale in (1.0, 2.0, 5.0, 2.0):
        put(scale, monkeypatch)
        met.append(tape.gradients(WAYS[way](READING[read], x), x).item())
    assert met == [1.0, 2.0, 5.0, 2.0]


def test_programs_are_one_where_what_their_rules_read_is_the_same(monkeypatch):
    def program():
        return jax.make_jaxpr(lambda x: REVERSAL.by_a_property(of_a_box(REVERSAL(x))))(1.0)

    first = fingerprint(program())
    assert first == fingerprint(program())
    monkeypatch.setattr(REVERSAL, "name", "what no rule reads", raising=False)
    assert first == fingerprint(program())
    put(2.0, monkeypatch)
    assert first != fingerprint(program())


def test_what_leads_back_to_itself_or_to_much_has_an_end(monkeypatch):
    ring = [1.0]
    ring += [ring, {"ring": ring}, REVERSAL]
    monkeypatch.setattr(REVERSAL, "factor", ring, raising=False)
    monkeypatch.setattr(REVERSAL, "whole_", list(range(10_000)), raising=False)
    rules = [custom(lambda _, g: (g * REVERSAL.factor[0] * len(REVERSAL.whole_),)) for _ in range(2)]
    first, second = (fingerprint(jax.make_jaxpr(rule)(jnp.ones(2))) for rule in rules)
    assert first == second


def test_equal_programs_whose_results_form_other_trees_are_two():
    given = tape.Variable(2.0)
    for make in (tuple, list, lambda ab: dict(zip("ab", ab, strict=True)), tuple):
        results = interop.lift(lambda x, make=make: make((x * 2, x * 3)))(given)  # of one name
        assert type(results) is type(make((1, 2)))
