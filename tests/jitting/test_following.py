"""Steps go along with state that is replaced, by themselves or from outside, and see where it is not as it was."""

import copy
import dataclasses
import gc
import types
import weakref
from typing import NamedTuple

import jax.numpy as jnp
import pytest

import tape
from tape.jitting import jitted


class Adam(NamedTuple):
    weights: list
    moments: list
    count: tape.Variable


@dataclasses.dataclass
class Layer:
    w: tape.Variable
    b: tape.Variable
    steep: bool = True

    def __call__(self, x):
        return self.w * x + self.b if self.steep else self.w * x - self.b


class Owner:
    pass


def _moved(w, g):
    return tape.Variable((w - 0.125 * g).detach())


def _dicts():
    state = Owner()
    state.p = {k: tape.Variable(1.0 + i) for i, k in enumerate("abc")}
    state.m = {k: tape.constant(0.0) for k in state.p}

    def step(x):
        loss = sum(w * w * x for w in state.p.values())
        g = tape.gradients(loss, state.p)
        state.m = {k: 0.5 * state.m[k] + g[k] for k in g}
        state.p = {k: _moved(w, state.m[k]) for k, w in state.p.items()}
        return loss.detach()

    return state, step


def _items():
    state, _ = _dicts()

    def step(x):
        loss = sum(w * w * x for w in state.p.values())
        for k, g in tape.gradients(loss, state.p).items():
            state.p[k] = _moved(state.p[k], g)
        return loss.detach()

    return state, step


def _named_tuples():
    state = types.SimpleNamespace(s=Adam([tape.Variable(1.0), tape.Variable(2.0)], [tape.constant(0.0)] * 2, tape.constant(0.0)))

    def step(x):
        loss = sum(w * w * x for w in state.s.weights)
        g = tape.gradients(loss, state.s.weights)
        moments = [0.5 * m + d for m, d in zip(state.s.moments, g, strict=True)]
        weights = [_moved(w, m) for w, m in zip(state.s.weights, moments, strict=True)]
        state.s = Adam(weights, [m.detach() for m in moments], state.s.count + 1)
        return loss.detach()

    return state, step


def _objects():
    state = Owner()
    state.layers = [Layer(tape.Variable(1.0), tape.Variable(0.5)), Layer(tape.Variable(2.0), tape.Variable(0.25))]

    def step(x):
        y = x
        for layer in state.layers:
            y = layer(y)
        leaves = [v for layer in state.layers for v in (layer.w, layer.b)]
        g = iter(tape.gradients(y, leaves))
        state.layers = [dataclasses.replace(layer, w=_moved(layer.w, next(g)), b=_moved(layer.b, next(g))) for layer in state.layers]
        return y.detach()

    return state, step


def _arrays():
    state = Owner()
    state.p, state.average = {k: jnp.asarray(1.0 + i) for i, k in enumerate("abc")}, [jnp.asarray(0.0)]

    def step(x):
        p = {k: tape.Variable(w) for k, w in state.p.items()}
        loss = sum(w * w * x for w in p.values())
        g = tape.gradients(loss, p)
        state.p = {k: _moved(w, g[k]).value for k, w in p.items()}
        state.average = [(0.5 * state.average[0] + loss).value]
        return loss.detach()

    return state, step


_MADE = {"dicts": _dicts, "items": _items, "named tuples": _named_tuples, "objects": _objects, "arrays": _arrays}


@pytest.mark.parametrize("name", _MADE)
def test_a_step_that_replaces_its_state_is_bound_once_and_computes_what_python_does(name, monkeypatch):
    _, plain = _MADE[name]()
    _, fun = _MADE[name]()
    step, x = tape.jit(fun), tape.constant(0.25)
    expected = [plain(x).item() for _ in range(8)]
    got = [step(x).item() for _ in range(4)]
    monkeypatch.setattr(jitted, "Reach", None)  # by which everything would be looked for
    got += [step(x).item() for _ in range(4)]
    assert got == pytest.approx(expected)


@pytest.mark.parametrize("name", _MADE)
def test_a_step_lets_go_of_the_state_that_it_replaces(name):
    state, fun = _MADE[name]()
    step, x = tape.jit(fun), tape.constant(0.25)
    gone = []
    for _ in range(6):
        step(x)
        value = next(iter(vars(state).values()))
        first = value[0] if isinstance(value, (list, tuple)) else value["a"]
        gone.append(weakref.ref(first.w if isinstance(first, Layer) else first[0] if isinstance(first, list) else first))
        del value, first
    gc.collect()
    assert [ref() for ref in gone[2:-2]] == [None] * 2  # the first ones are those with which it was traced again


def _other_keys(state):
    state.p = {k: tape.Variable(3.0) for k in "abd"}
    state.m = {k: tape.constant(0.0) for k in state.p}


def _one_more(state):
    state.p["d"], state.m["d"] = tape.Variable(3.0), tape.constant(0.0)


def _new_ones(state):
    state.p = {k: tape.Variable(3.0) for k in state.p}


def _one_in_place(state):
    state.p["b"] = tape.Variable(3.0)


def _a_value(state):
    state.p["b"].value = jnp.asarray(3.0)


def _a_frozen_one(state):
    state.m = {k: tape.Variable(1.0) for k in state.m}


def _another_shape(state):
    state.p = {k: tape.Variable(jnp.ones(())) if k == "a" else tape.Variable(jnp.asarray(2)[()] * 1.5) for k in state.p}


def _a_copy(state):
    state.p = copy.copy(state.p)


def _one_for_both(state):
    v = tape.Variable(3.0)
    state.m = dict.fromkeys(state.m, v)


def _results(state):
    state.m = {k: 2.0 * w for k, w in state.p.items()}


_CHANGES = [_other_keys, _one_more, _new_ones, _one_in_place, _a_value, _a_frozen_one, _another_shape, _a_copy, _one_for_both, _results]


@pytest.mark.parametrize("change", _CHANGES)
def test_a_step_sees_what_is_put_into_places_from_outside(change):
    (other, plain), (state, fun) = _dicts(), _dicts()
    step, x = tape.jit(fun), tape.constant(0.25)
    for i in range(8):
        if i in (3, 5):
            change(other)
            change(state)
        assert step(x).item() == pytest.approx(plain(x).item())
        assert {k: v.item() for k, v in state.m.items()} == pytest.approx({k: v.item() for k, v in other.m.items()})


def test_state_from_before_is_as_it_was_and_can_be_put_back():
    (other, plain), (state, fun) = _dicts(), _dicts()
    step, x = tape.jit(fun), tape.constant(0.25)
    kept, kept_too, held = [], [], []
    for i in range(9):
        kept.append((other.p, other.m))
        kept_too.append((state.p, state.m))
        held.append(sum(w * w * w for w in state.p.values()))
        if i in (4, 6):
            (other.p, other.m), (state.p, state.m) = kept[i - 3], kept_too[i - 3]
        assert step(x).item() == pytest.approx(plain(x).item())
    for (p, _), (q, _), cubes in zip(kept, kept_too, held, strict=True):
        assert [w.item() for w in q.values()] == pytest.approx([w.item() for w in p.values()])
        assert [g.item() for g in tape.gradients(cubes, [*q.values()])] == pytest.approx([3 * w.item() ** 2 for w in p.values()])


def test_a_tuple_keeps_the_variable_that_another_place_no_longer_holds():
    state, v = Owner(), tape.Variable(2.0)
    state.fixed, state.v = (v,), v
    step = tape.jit(lambda x: 10 * x * state.fixed[0] + state.v)
    x = tape.constant(1.0)
    assert step(x).item() == 22.0
    for value in (7.0, 8.0):
        state.v = tape.Variable(value)
        assert step(x).item() == 20.0 + value


def test_a_container_that_has_come_to_stand_in_two_places_is_one():
    state = Owner()
    state.p, state.q = {"w": tape.Variable(1.0)}, {"w": tape.Variable(2.0)}

    def fun(x):
        state.p["w"] = tape.Variable((state.p["w"] + x).detach())
        return 10 * state.p["w"].detach() + state.q["w"].detach()

    step, x = tape.jit(fun), tape.constant(1.0)
    assert [step(x).item() for _ in range(3)] == [22.0, 32.0, 42.0]
    state.p = state.q
    assert [step(x).item() for _ in range(3)] == [33.0, 44.0, 55.0]


def test_a_variable_that_a_dict_has_as_a_key_is_not_found_by_another_one():
    state = Owner()
    state.w = tape.Variable(2.0)
    state.rates = {state.w: tape.constant(3.0)}
    step, x = tape.jit(lambda x: x * state.rates[state.w] * state.w), tape.constant(1.0)
    assert [step(x).item() for _ in range(2)] == [6.0, 6.0]
    state.w = tape.Variable(5.0)
    with pytest.raises(KeyError):
        step(x)


def test_flags_are_seen_in_objects_that_are_replaced():
    state, fun = _objects()
    step, x = tape.jit(fun), tape.constant(0.5)
    other, plain = _objects()
    for i in range(8):
        if i % 3 == 2:
            for s in (state, other):
                s.layers = [dataclasses.replace(layer, steep=not layer.steep) for layer in s.layers]
        assert step(x).item() == pytest.approx(plain(x).item())


def test_two_steps_of_one_function_take_turns_on_state_that_one_of_them_replaces(monkeypatch):
    state, _ = _dicts()

    @tape.jit(static_argnames="train")
    def step(x, *, train):
        if train:
            state.p = {k: tape.Variable((w + x).detach()) for k, w in state.p.items()}
        return sum(state.p.values()).detach()

    x = tape.constant(1.0)
    assert [step(x, train=i % 2 == 0).item() for i in range(4)] == [9.0, 9.0, 12.0, 12.0]
    monkeypatch.setattr(jitted, "Reach", None)
    assert [step(x, train=i % 2 == 0).item() for i in range(4)] == [15.0, 15.0, 18.0, 18.0]


def test_a_step_that_raises_has_replaced_nothing():
    state, _ = _dicts()
    state.stopped = False

    def fun(x):
        state.p = {k: tape.Variable((w + x).detach()) for k, w in state.p.items()}
        if state.stopped:
            message = "stopped"
            raise ValueError(message)
        return sum(state.p.values()).detach()

    step, x = tape.jit(fun), tape.constant(1.0)
    assert [step(x).item() for _ in range(3)] == [9.0, 12.0, 15.0]
    before, state.stopped = state.p, True
    with pytest.raises(ValueError, match="stopped"):
        step(x)
    state.p, state.stopped = before, False
    assert [step(x).item() for _ in range(3)] == [18.0, 21.0, 24.0]
