"""Rules of the user's in a traced program are called when it is differentiated: what they read then is part of what the program is."""

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


REVERSAL, RULE = Reversal(), Rule()
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
