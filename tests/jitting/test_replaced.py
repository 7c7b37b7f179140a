"""Steps of ``tape.jit`` read what leads to no Variable: options in options, and containers of nothing but None or numbers."""

import dataclasses
import enum
import types
from typing import NamedTuple

import jax.numpy as jnp
import pytest

import tape


class Holder:
    def __init__(self, **held):
        vars(self).update(held)


@dataclasses.dataclass(frozen=True)
class Inner:
    flag: object = True
    scale: object = None


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    depth: int = 2


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner


def _rectified(x):
    return x * 2


class Rule:
    def __call__(self, x):
        return x


class Stricter(Rule):
    def __call__(self, x):
        return x * 3


# What a step reads of what stands in ``m.options`` (or the list that is there), and how that is made.
OPTIONS = {
    "dataclasses": (lambda o: o.inner.flag, lambda flag: Outer(Inner(flag))),
    "dicts": (lambda o: o["a"]["b"]["flag"], lambda flag: {"a": {"b": {"flag": flag}}}),
    "namespaces": (lambda o: o.a.b.flag, lambda flag: types.SimpleNamespace(a=types.SimpleNamespace(b=types.SimpleNamespace(flag=flag)))),
    "a list in a dict": (lambda o: o["a"][0]["flag"], lambda flag: {"a": [{"flag": flag}]}),
    "a tuple": (lambda o: o[1].a.flag, lambda flag: (0, Holder(a=Holder(flag=flag)))),
    "slots": (lambda o: o.inner.inner.flag, lambda flag: Slotted(Slotted(Holder(flag=flag)))),
    "functions": (lambda o: o.a.act(1) == 2, lambda flag: Holder(a=Holder(act=_rectified if flag else abs))),
    "objects that are called": (lambda o: o.a.rule(1) == 1, lambda flag: Holder(a=Holder(rule=Rule() if flag else Stricter()))),
    "nothing": (lambda o: o.inner.scale is None, lambda flag: Outer(Inner(scale=None if flag else 2.0))),
    "one more": (lambda o: "b" not in o["a"]["names"], lambda flag: {"a": {"names": ("a",) if flag else ("a", "b")}}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_in_options_are_replaced_as_a_whole(name):
    read, made = OPTIONS[name]
    m = Holder(w=tape.Variable(3.0), options=made(True))
    step = tape.jit(lambda x: m.w * x if read(m.options) else m.w * x * 10)
    for flag in (True, True, False, False, True, False):
        m.options = made(flag)
        assert [step(jnp.float32(2.0)).item() for _ in range(2)] == [6.0 if flag else 60.0] * 2
    assert step.cache_info().traces == 2


def test_a_variable_comes_into_what_is_replaced():
    m = Holder(w=tape.Variable(3.0), options=Outer())
    step = tape.jit(lambda x: m.w * x if m.options.inner.scale is None else m.w * x * m.options.inner.scale)
    for scale in (None, 2.0, None, 5.0):
        m.options = Outer(Inner(scale=None if scale is None else tape.Variable(scale)))
        y = step(jnp.float32(1.0))
        assert y.item() == 3.0 * (scale or 1.0)
        y.backward()
        assert scale is None or m.options.inner.scale.grad.item() == 3.0
    assert step.cache_info().traces == 2


Mode = enum.Enum("Mode", "TRAIN TEST")


class Pair(NamedTuple):
    first: object
    second: object


KEY = Holder()

# A container, the key by which a step looks there, and what it then takes of it.
CONTAINERS = {
    "a list of None": (lambda: [None, None], 1),
    "a list in a list": (lambda: [[None], [None]], (1, 0)),
    "a dict in a dict": (lambda: {"a": {"w": None}}, ("a", "w")),
    "a dict by numbers": (lambda: {0: None, 1: None}, 1),
    "a dict by objects": (lambda: {KEY: None}, KEY),
    "a dict by members": (lambda: {Mode.TRAIN: None}, Mode.TRAIN),
    "a dict by names that are computed": (lambda: {"layer_0": None}, f"layer_{len('')}"),
    "a list of numbers": (lambda: [1.0, 1.0], 1),
    "a list of NumPy's": (lambda: [jnp.ones(()).item(), 1], 0),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_variable_comes_into_a_container_that_had_none(name):
    made, key = CONTAINERS[name]
    container = made()
    keys = key if isinstance(key, tuple) else (key,)
    inner = container
    for k in keys[:-1]:
        inner = inner[k]

    def function(x):
        found = container
        for k in keys:
            found = found[k]
        return x * 1 if found is None else x * found

    step = tape.jit(function)
    assert step(jnp.float32(3.0)).item() == 3.0
    for value in (2.0, 5.0):
        inner[keys[-1]] = v = tape.Variable(value)
        y = step(jnp.float32(3.0))
        y.backward()
        assert (y.item(), v.grad.item()) == (3.0 * value, 3.0)
    assert step.cache_info().traces == 2


@pytest.mark.parametrize("kind", [lambda *x: x, Pair], ids=["tuple", "named tuple"])
def test_a_state_begins_as_a_tuple_of_nothing(kind):
    m = Holder(state=kind(None, None), w=tape.Variable(2.0))

    def outcomes(wrap):
        step = wrap(lambda x: m.w * x if m.state[0] is None else m.w * x + m.state[0] * m.state[1])
        for value in (None, 3.0, None, 4.0):
            m.state = kind(None, None) if value is None else kind(tape.Variable(value), tape.Variable(1.0))
            yield step(jnp.float32(1.0)).item()
        if wrap is tape.jit:
            assert step.cache_info().traces == 2

    assert list(outcomes(tape.jit)) == list(outcomes(lambda f: f))


def test_records_that_grow_and_options_that_are_made_anew_are_no_reason_to_trace_a_step():
    m = Holder(w=tape.Variable(2.0), losses=[], options={"a": {"flag": True, "rate": 0.5}}, log=[0.0])

    @tape.jit
    def step(x):
        if m.losses is None or m.log is None:
            return x
        return m.w * x * m.options["a"]["rate"] if m.options["a"]["flag"] else x

    for i in range(20):
        m.losses.append(step(1.0).item())
        m.log.append(i)
        m.options = {"a": {"flag": True, "rate": 0.5}}
    assert step.cache_info().traces <= 2


class Adding:
    def __init__(self, k):
        self.k = k

    def __call__(self, x):
        return x + self.k


# What a step reads of some list, and what is put there one after the other.
GROWING = {
    "arrays": (lambda them, x: sum([(x * y).sum() for y in them], x), [jnp.full(2, i) for i in range(4)]),
    "arrays with numbers": (lambda them, x: sum([(x * y).sum() * k for y, k in them], x), [(jnp.full(2, i), 0.5) for i in range(4)]),
    "as many as there are": (lambda them, x: x * 10 if len(them) > 2 else x, [jnp.float32(i) for i in range(4)]),
    "numbers that it goes through": (lambda them, x: sum([x for _ in them], x), [0.5, 1.5, 2.5, 3.5]),
    "as many numbers": (lambda them, x: x * 10 if len(them) > 2 else x, [0.5, 1.5, 2.5, 3.5]),
    "objects that are called": (lambda them, x: [x := f(x) for f in them][-1] if them else x, [Adding(float(i)) for i in range(4)]),
}


@pytest.mark.parametrize("name", GROWING)
def test_a_list_grows_and_is_cleared_between_calls(name):
    use, further = GROWING[name]
    w = tape.Variable(2.0)

    def outcomes(wrap):
        them = []
        step = wrap(lambda x: use(them, w * x))
        for x in further:
            yield [step(jnp.float32(3.0)).item() for _ in range(2)]
            them.append(x)
        yield step(jnp.float32(3.0)).item()
        them.clear()
        yield step(jnp.float32(3.0)).item()
        if wrap is tape.jit:
            assert step.cache_info().traces <= len(further) + 1

    assert list(outcomes(tape.jit)) == list(outcomes(lambda f: f))


def test_a_list_that_grows_is_traced_for_its_length_where_code_asks_for_that_alone():
    m = Holder(w=tape.Variable(2.0), losses=[], rows=[1, 2])
    step = tape.jit(lambda x: m.w * x * len(m.rows) if m.losses is not None else x)
    for _ in range(6):
        m.losses.append(step(1.0).item())
    assert step.cache_info().traces <= 2
    m.rows.append(3)
    assert step(1.0).item() == 6.0


def test_a_module_that_a_function_closes_over_is_looked_at():
    module = types.ModuleType("of_a_user")
    module.act, module.scale = (lambda x: x * 2), None
    step = tape.jit(lambda x: module.act(x) if module.scale is None else module.act(x) * module.scale)
    assert step(1.0).item() == 2.0
    module.act = lambda x: x * 5
    assert step(1.0).item() == 5.0
    module.scale = tape.Variable(3.0)
    assert step(1.0).item() == 15.0


def test_a_slot_that_was_empty_is_filled():
    class Layer:
        __slots__ = ("bias", "w")

        def __init__(self):
            self.w = tape.Variable(2.0)

        def __call__(self, x):
            return self.w * x + (self.bias if hasattr(self, "bias") else 0.0)

    layer = Layer()
    step = tape.jit(lambda x: layer(x))
    assert step(1.0).item() == 2.0
    layer.bias = tape.Variable(5.0)
    assert step(1.0).item() == 7.0
    del layer.bias
    assert step(1.0).item() == 2.0
    assert step.cache_info().traces == 2
