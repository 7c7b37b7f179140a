"""Steps of ``tape.jit`` meet Variables in containers and attributes that had none when they were traced."""

import collections
import enum
import functools
import gc
import math
import sys
import types
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape


class Layer:
    def __init__(self, value):
        self.w = tape.Variable(value)
        self.bias = None

    def __call__(self, x):
        return x * self.w if self.bias is None else x * self.w + self.bias


class Model:
    def __init__(self):
        self.layers = [Layer(2.0), Layer(3.0)]
        self.mask = None
        self.scales = {"a": tape.Variable(0.5)}
        self.queue = collections.deque([tape.constant(1.0)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        x = x * sum(self.scales.values()) + sum(self.queue)
        return x if self.mask is None else x * self.mask


CHANGES = [
    lambda m: None,
    lambda m: m.layers.append(Layer(5.0)),
    lambda m: setattr(m.layers[0], "bias", tape.Variable(1.0)),
    lambda m: setattr(m.layers[0], "bias", tape.Variable(7.0)),
    lambda m: setattr(m, "mask", tape.constant([0.0, 1.0])),
    lambda m: m.scales.update(b=tape.Variable(0.25)),
    lambda m: setattr(m, "mask", None),
    lambda m: m.layers.pop(),
    lambda m: m.layers.insert(0, Layer(11.0)),
    lambda m: m.queue.append(tape.constant(4.0)),
    lambda m: setattr(m.layers[1], "bias", 0.5),
    lambda m: m.scales.pop("a"),
]


@pytest.mark.parametrize("wrap", [lambda m: tape.jit(m), lambda m: tape.jit(lambda x: m(x))], ids=["model", "closure"])
def test_what_a_model_gets_between_calls_is_met(wrap):
    def outcomes(wrap):
        model = Model()
        step = wrap(model)
        for change in CHANGES:
            change(model)
            y = step(tape.constant([1.0, 2.0]))
            y.sum().backward()
            yield y.tolist(), [layer.w.grad.tolist() for layer in model.layers], [s.grad.tolist() for s in model.scales.values()]

    assert list(outcomes(wrap)) == list(outcomes(lambda model: model))


class Filling:
    """Its steps put Variables into what they read."""

    def __init__(self):
        self.last, self.rows, self.table = (
            None,
            [tape.Variable(1.0), tape.Variable(2.0)],
            {"a": tape.Variable(1.0), "b": tape.Variable(2.0)},
        )

    def remember(self, x):
        y = x if self.last is None else x * 2
        self.last = x * 1
        return y

    def list(self, x):
        y = sum(v * 1 for v in self.rows) * x
        self.rows[0] = x * 1
        return y

    def dict(self, x):
        y = sum(v * 1 for v in self.table.values()) * x
        self.table["a"] = x * 1
        return y


@pytest.mark.parametrize("order", [(0.5, None, None, 0.5, None), ("a", None, ()), (None, 0.5, None)])
def test_nothing_stands_where_a_number_stood(order):
    def outcomes(wrap):
        state = Filling()
        step = wrap(state.remember)
        for last in order:
            state.last = last
            yield [step(tape.constant(x)).tolist() for x in (3.0, 5.0)]

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


def test_an_attribute_is_gone_where_none_stood():
    class Counted:
        pass

    def step(x):
        y = x * (2 if hasattr(state, "last") else 3)
        state.last = y
        return y

    state = Counted()
    jitted = tape.jit(step)
    for _ in range(3):
        state.last = None
        assert jitted(tape.constant(1.0)).item() == 2.0
        del state.last
        assert jitted(tape.constant(1.0)).item() == 3.0


def test_what_a_step_with_arrays_in_places_costs_grows_as_their_number_does():
    """Each of them was looked for in all of the tree that the place holds."""

    def calls(count):
        state = types.SimpleNamespace(p={f"l{i:02}": [jnp.ones(()), jnp.zeros(())] for i in range(count)})

        @tape.jit
        def step(x):
            p = jax.tree.map(tape.Variable, state.p)
            grads = tape.gradients(sum((w * x + b).sum() for w, b in p.values()), p)
            state.p = jax.tree.map(lambda w, g: w - 0.1 * g.value, state.p, grads)

        x = tape.constant(1.0)
        for _ in range(3):
            step(x)
        called = []
        sys.setprofile(lambda frame, event, _: called.append(frame) if event == "call" else None)
        try:
            step(x)
        finally:
            sys.setprofile(None)
        assert step.cache_info().traces == 1
        return len(called)

    few, more, many = calls(2), calls(12), calls(42)
    assert many - more <= 3.2 * (more - few)


def test_arrays_that_a_step_replaces_are_known_by_their_keys():
    """A checkpoint brings them in another order, or with others beside them."""

    def outcomes(wrap):
        state = types.SimpleNamespace(p={"a": jnp.float32(2.0), "b": [jnp.float32(3.0), jnp.float32(1.0)]})

        def step(x):
            a, (b, c) = state.p["a"], state.p["b"]
            state.p = {k: a + 1 if k == "a" else [b + 2, c] if k == "b" else p for k, p in state.p.items()}
            return a * 100 + b * 10 + c + x

        step = wrap(step)
        yield from [step(tape.constant(0.0)).item() for _ in range(3)]
        for new in ({"A": jnp.float32(7.0), **state.p}, dict([*state.p.items()][::-1]), {**state.p, "c": jnp.float32(8.0)}):
            state.p = new
            yield from [step(tape.constant(0.0)).item() for _ in range(2)]
            yield list(state.p)
        state.p["b"].reverse()
        yield from [step(tape.constant(0.0)).item() for _ in range(2)]

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


def test_a_step_takes_the_arrays_of_each_call_and_lets_go_of_those_before():
    state = types.SimpleNamespace(w=jnp.ones(3), m=[jnp.zeros(3)], scale=jnp.ones(()))

    @tape.jit(static_argnames="train")
    def step(x, *, train):
        if train:
            state.m = [0.5 * state.m[0] + x.value]
            state.w = state.w - state.m[0]
        return (state.w * state.scale * x).sum()

    x = tape.constant(jnp.ones(3))
    arrays = []
    for train in (True, True, False, True, True, False, True):
        step(x, train=train)
        arrays += [weakref.ref(state.w), weakref.ref(state.m[0])] if train else []
        gc.collect()
        there = {id(ref()) for ref in arrays[:-4]}  # the step's own inputs go when it is called again
        assert there <= {*map(id, (None, state.w, state.m[0]))}
    state.scale = jnp.asarray(2.0)
    expected = 2.0 * state.w.sum()
    assert step(x, train=False).item() == expected
    state.w = jnp.ones(3, "int32")
    assert step(x, train=False).item() == 6.0


class Mode(enum.Enum):
    TRAIN, TEST = range(2)


def _true():
    return True


def _false():
    return False


_chosen = _true
_PARTIAL = [functools.partial(bool, flag) for flag in (False, True)]


def _closing(w, flag):
    return (lambda: w) if flag else (lambda: (w, None)[1])


class Yes:
    def __init__(self, w=None):
        self.w = w

    def says(self):
        return self.w is None or self.w.ndim == 0


class No(Yes):
    def says(self):
        return not super().says()


class Settings:
    rate = 0.5

    class Inner:
        flag = True


FLAGS = {
    "an attribute": (lambda o: o.flag, lambda o, x: setattr(o, "flag", x)),
    "an attribute of an object's class": (lambda o: o.shared.flag, lambda o, x: setattr(type(o.shared), "flag", x)),
    "an attribute where the class has one": (
        lambda o: o.shared.flag,
        lambda o, x: vars(o.shared).pop("flag", None) if x else setattr(o.shared, "flag", x),
    ),
    "an attribute of a class": (lambda o: Settings.Inner.flag, lambda o, x: setattr(Settings.Inner, "flag", x)),
    "a mode of a class": (
        lambda o: o.shared.mode is Mode.TRAIN,
        lambda o, x: setattr(type(o.shared), "mode", Mode.TRAIN if x else Mode.TEST),
    ),
    "an attribute of a layer": (lambda o: o.layers[1].flag, lambda o, x: setattr(o.layers[1], "flag", x)),
    "an item": (lambda o: o.options["flag"], lambda o, x: o.options.update(flag=x)),
    "other options": (lambda o: o.options["flag"], lambda o, x: setattr(o, "options", {"flag": x})),
    "a mode": (lambda o: o.mode is Mode.TRAIN, lambda o, x: setattr(o, "mode", Mode.TRAIN if x else Mode.TEST)),
    "a name": (lambda o: o.name == "train", lambda o, x: setattr(o, "name", "train" if x else "test")),
    "names": (lambda o: "a" in o.names, lambda o, x: setattr(o, "names", ("a", "b") if x else ("b",))),
    "names in a list": (lambda o: "a" in o.listed, lambda o, x: o.listed.__setitem__(0, "a" if x else "c")),
    "names in another list": (lambda o: "a" in o.listed, lambda o, x: setattr(o, "listed", ["a"] if x else ["b", "c"])),
    "one name more": (lambda o: len(o.listed) == 2, lambda o, x: o.listed.__setitem__(slice(None), ["a", "b"] if x else ["a"])),
    "a set": (lambda o: 2 not in o.frozen, lambda o, x: o.frozen.discard(2) if x else o.frozen.add(2)),
    "another set": (lambda o: 2 not in o.frozen, lambda o, x: setattr(o, "frozen", {1} if x else {2})),
    "a nested option": (lambda o: o.options["inner"]["flag"], lambda o, x: o.options["inner"].update(flag=x)),
    "a type": (lambda o: o.dtype is np.float32, lambda o, x: setattr(o, "dtype", np.float32 if x else np.float16)),
    "a function": (lambda o: o.function(), lambda o, x: setattr(o, "function", _true if x else _false)),
    "a function in a dict": (lambda o: o.functions["f"](), lambda o, x: o.functions.update(f=_true if x else _false)),
    "a function in a list": (
        lambda o: all(f() for f in o.checks),
        lambda o, x: o.checks.__setitem__(slice(None), [_true] if x else [_true, _false]),
    ),
    "a global function": (lambda o: _chosen(), lambda o, x: globals().update(_chosen=_true if x else _false)),
    "a partial function": (lambda o: o.function(), lambda o, x: setattr(o, "function", _PARTIAL[x])),
    "a library's function": (
        lambda o: o.activation(0.0) == 0.0,
        lambda o, x: setattr(o, "activation", math.sin if x else math.cos),
    ),
    "an object of another class": (lambda o: o.rule.says(), lambda o, x: setattr(o, "rule", Yes() if x else No())),
    "an object of another class with Variables": (
        lambda o: o.model.says(),
        lambda o, x: setattr(o, "model", Yes(o.layers[0].w) if x else No(o.layers[0].w)),
    ),
    "an object of another class where the class has one": (
        lambda o: o.shared.rule.says(),
        lambda o, x: vars(o.shared).pop("rule", None) if x else setattr(o.shared, "rule", No()),
    ),
    "a function with Variables": (lambda o: o.closure() is not None, lambda o, x: setattr(o, "closure", o.closures[x])),
    "a name that is computed": (lambda o: getattr(o, f"{'flag':s}"), lambda o, x: setattr(o, "flag", x)),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_another_one_between_calls(name):
    read, write = FLAGS[name]

    def outcomes(wrap):
        o = types.SimpleNamespace(
            flag=True, layers=[Layer(1.0), types.SimpleNamespace(flag=True)], options={"flag": True, "rate": 0.5}, mode=Mode.TRAIN
        )
        o.options["inner"] = {"flag": True}
        o.shared = type("Shared", (), {"flag": True, "mode": Mode.TRAIN, "rule": Yes()})()
        o.name, o.names, o.listed, o.frozen, o.dtype, o.function = "train", ("a", "b"), ["a", "b"], set(), np.float32, _true
        o.functions, o.checks, o.activation, o.rule, o.model = {"f": _true}, [_true], math.sin, Yes(), Yes(o.layers[0].w)
        o.closures = [_closing(o.layers[0].w, flag) for flag in (False, True)]
        step = wrap(lambda x: o.layers[0](x) * (2 if read(o) else 3))
        for flag in (True, False, False, True, False):
            write(o, flag)
            yield step(tape.constant(2.0)).item()
        if wrap is tape.jit:
            assert step.cache_info().traces == 2

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


def test_a_flag_that_a_step_sets_is_set_at_every_call():
    def outcomes(wrap):
        o = types.SimpleNamespace(w=tape.Variable(2.0), phase="first", ready=False)

        def function(x):
            y = x * o.w if o.phase == "first" and not o.ready else x * o.w * o.w
            o.phase, o.ready = "second", True
            return y

        step = wrap(function)
        for i in range(8):
            if i in (3, 6):
                o.phase, o.ready = "first", False
            yield step(tape.constant(1.0)).item(), o.phase, o.ready

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


def _has(o):
    return hasattr(o, "bias")


def _gets(o):
    return getattr(o, "bias", None) is not None


def _tries(o):
    try:
        return o.bias.ndim == 0
    except AttributeError:
        return False


@pytest.mark.parametrize("has", [_has, _gets, _tries])
def test_an_attribute_comes_where_none_was(has):
    def outcomes(wrap):
        layer = Layer(2.0)
        step = wrap(lambda x: layer.w * x + layer.bias if has(layer) else layer.w * x)
        for bias in (None, 1.0, 2.0, None, 3.0):
            if bias is not None:
                layer.bias = tape.Variable(bias)
            elif hasattr(layer, "bias"):
                del layer.bias
            yield step(tape.constant(1.0)).item()

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


RATES = {
    "an attribute": (lambda o: o.rate, lambda o, x: setattr(o, "rate", x)),
    "an item": (lambda o: o.options["rate"], lambda o, x: o.options.update(rate=x)),
    "a row": (lambda o: o.rows[0], lambda o, x: o.rows.__setitem__(0, x)),
    "an attribute of a class": (lambda o: Settings.rate, lambda o, x: setattr(Settings, "rate", x)),
    "an attribute where the class has one": (
        lambda o: o.shared.rate,
        lambda o, x: vars(o.shared).pop("rate", None) if x == 0.5 else setattr(o.shared, "rate", x),
    ),
    "a global": (lambda o: _RATE, lambda o, x: globals().update(_RATE=x)),
}
_RATE = 0.5


def test_an_attribute_comes_where_the_class_has_an_array():
    class Layer:
        rate = jnp.float32(0.5)

    def outcomes(wrap):
        layer = Layer()
        step = wrap(lambda x: x * layer.rate)
        for rate in (None, 2.0, 3.0, None):
            vars(layer).clear()
            vars(layer).update({} if rate is None else {"rate": jnp.float32(rate)})
            yield step(tape.constant(1.0)).item()

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("number", [0.5, np.float32(0.5)])
def test_a_variable_comes_where_a_number_was(name, number):
    read, write = RATES[name]

    def outcomes(wrap):
        o = types.SimpleNamespace(w=tape.Variable(2.0), options={}, rows=[None, "rate"], shared=Settings())
        Settings.rate = 0.5
        step = wrap(lambda x: o.w * x * read(o))
        for rate in (number, tape.constant(0.25), number, tape.constant(0.125), jnp.float32(2.0)):
            write(o, rate)
            yield step(tape.constant(1.0)).item()

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


def test_what_is_initialized_at_the_first_call_is_so_once():
    class Norm:
        def __init__(self):
            self.scale, self.initialized = tape.Variable(jnp.ones(())), False

        def __call__(self, x):
            if not self.initialized:
                self.scale.value = 1 / x
                self.initialized = True
            return x * self.scale

    def outcomes(wrap):
        norm = Norm()
        step = wrap(lambda x: norm(x))
        return [step(tape.constant(jnp.float32(x))).item() for x in (2.0, 4.0, 8.0, 8.0)]

    assert outcomes(tape.jit) == outcomes(lambda step: step) == [1.0, 2.0, 4.0, 4.0]


class Module:
    """One as users write it, whose parameters are what its attributes are."""

    def __init__(self, **parts):
        self.__dict__.update(parts)

    def by_vars(self):
        for part in vars(self).values():
            yield from [part] if isinstance(part, tape.Variable) else part.by_vars() if isinstance(part, Module) else []

    def by_dict(self):
        return [part for name, part in self.__dict__.items() if name.startswith("w")]

    def by_dir(self):
        return [part for name in dir(self) if isinstance(part := getattr(self, name), tape.Variable)]


@pytest.mark.parametrize("way", ["by_vars", "by_dict", "by_dir"])
def test_a_module_has_one_more_parameter(way):
    def outcomes(wrap):
        module = Module(w=tape.Variable(1.0), part=Module(w=tape.Variable(2.0)))
        step = wrap(lambda x: sum([w * x for w in getattr(module, way)()], start=x * 0))
        for name, part in (("w2", tape.Variable(4.0)), ("count", 1), ("w3", tape.Variable(8.0)), ("part2", Module(w=tape.Variable(16.0)))):
            yield [step(tape.constant(x)).item() for x in (1.0, 2.0)]
            setattr(module, name, part)
        module.part.bias = tape.Variable(32.0)
        yield [step(tape.constant(x)).item() for x in (1.0, 2.0)]

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


def test_a_tuple_is_replaced_by_a_longer_one():
    def outcomes(wrap):
        state = types.SimpleNamespace(layers=(tape.Variable(1.0), (tape.Variable(2.0), "linear")))
        step = wrap(lambda x: sum([(w[0] if isinstance(w, tuple) else w) * x for w in state.layers], start=x * 0))
        for i in range(3):
            yield [step(tape.constant(x)).item() for x in (1.0, 2.0)]
            state.layers = (*state.layers, tape.Variable(4.0 * 2**i))
        state.layers = state.layers[1:]
        yield [step(tape.constant(x)).item() for x in (1.0, 2.0)]

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


def test_a_step_that_replaces_variables_and_arrays_lets_go_of_both():
    state = types.SimpleNamespace(w=tape.Variable(jnp.ones(3)), m=jnp.zeros(3))

    @tape.jit
    def step(x):
        state.m = 0.9 * state.m + tape.gradients((state.w * x).sum(), state.w).value
        state.w = tape.Variable((state.w - 0.1 * state.m).detach())

    replaced = []
    for _ in range(6):
        step(tape.constant(jnp.ones(3)))
        replaced.append(weakref.ref(state.w))
    gc.collect()
    assert [ref() for ref in replaced[:-2]] == [None] * 4


@pytest.mark.parametrize("way", ["remember", "list", "dict"])
def test_a_step_may_write_into_what_changes_between_calls(way):
    def outcomes(wrap):
        state = Filling()
        step = wrap(getattr(state, way))
        for x, last in enumerate((None, 0.5, None, "a", tape.constant(7.0), ())):
            state.last = last
            yield step(tape.constant(x + 3.0)).tolist()
            yield step(tape.constant(x + 2.0)).tolist()
            state.rows += [tape.Variable(5.0 + x)] * (x % 2)
            state.table[f"c{x}"] = tape.Variable(7.0 + x)
            yield step(tape.constant(x + 1.0)).tolist()
            del state.table["b" if x == 0 else f"c{x - 1}"]
            yield [v.tolist() for v in (*state.rows, *state.table.values(), state.last) if isinstance(v, tape.Variable)]

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


@pytest.mark.parametrize("empty", [list, dict, collections.deque])
@pytest.mark.parametrize("kept", ["closure", "attribute", "item"])
def test_containers_without_anything_are_met_once_they_get_variables(empty, kept):
    def outcomes(wrap):
        layers, w = empty(), tape.Variable(2.0)
        holder, outer = types.SimpleNamespace(layers=layers), [layers]

        @wrap
        def step(x):
            there = {"closure": lambda: layers, "attribute": lambda: holder.layers, "item": lambda: outer[0]}[kept]()
            for layer in there.values() if isinstance(there, dict) else there:
                x = x * layer
            return x * w

        for value in (None, None, 3.0, 5.0, None):
            if value is not None and isinstance(layers, dict):
                layers[value] = tape.Variable(value)
            elif value is not None:
                layers.append(tape.Variable(value))
            y = step(tape.constant(1.0))
            y.backward()
            held = layers.values() if isinstance(layers, dict) else layers
            yield float(y), float(w.grad), [float(layer.grad) for layer in held]

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


SHELF = None


def _total(held):
    if held is None or isinstance(held, tape.Variable):
        return 0.0 if held is None else held
    return sum(held.values() if isinstance(held, dict) else held)


def _in_closure(first):
    held, w = first, tape.Variable(2.0)

    def put(x):
        nonlocal held
        held = x

    return lambda x: x * w + x * _total(held), put


def _in_module(first):
    global SHELF
    SHELF, w = first, tape.Variable(2.0)

    def put(x):
        global SHELF  # noqa: PLW0603 - what is tested
        SHELF = x

    return lambda x: x * w + x * _total(SHELF), put


def _in_attribute(first):
    held = types.SimpleNamespace(first=first, w=tape.Variable(2.0))
    return lambda x: x * held.w + x * _total(held.first), lambda x: setattr(held, "first", x)


def _in_item(first):
    held = {"first": first, "w": tape.Variable(2.0)}
    return lambda x: x * held["w"] + x * _total(held["first"]), lambda x: held.__setitem__("first", x)


def _in_item_alone(first):
    held, w = {"first": first}, tape.Variable(2.0)
    return lambda x: x * w + x * _total(held["first"]), lambda x: held.__setitem__("first", x)


class _Slotted:
    __slots__ = ("empty", "first", "w")

    def __init__(self):
        self.first = None


class _WithDefault:
    first = None


def _class():
    return type("Shared", (), {"first": None})


@pytest.mark.parametrize("make", [_Slotted, _WithDefault, _class])
def test_an_attribute_of_a_slot_or_a_class_that_was_none_is_met(make):
    held = make()
    held.w = tape.Variable(2.0)
    step = tape.jit(lambda x: x * held.w if held.first is None or hasattr(held, "empty") else x * held.w + held.first)
    x = tape.constant(1.0)
    assert float(step(x)) == 2.0
    for value in (3.0, 5.0):
        held.first = tape.Variable(value)
        y = step(x)
        y.backward()
        assert (float(y), float(held.first.grad)) == (2.0 + value, 1.0)
    held.first = None
    assert float(step(x)) == 2.0
    assert step.cache_info().traces == 2


@pytest.mark.parametrize("place", [_in_closure, _in_module, _in_attribute, _in_item, _in_item_alone])
@pytest.mark.parametrize("kind", [None, list, tuple, dict])
def test_what_is_put_where_nothing_was_is_met(place, kind):
    def holding(v):
        return v if kind is None else {"v": v} if kind is dict else kind([v])

    step, put = place(None if kind is None else kind())
    compiled = tape.jit(step)
    x = tape.constant(1.0)
    assert float(compiled(x)) == 2.0
    for value in (3.0, 5.0):
        v = tape.Variable(value)
        put(holding(v))
        y = compiled(x)
        y.backward()
        assert (float(y), float(v.grad)) == (2.0 + value, 1.0)
    assert compiled.cache_info().traces == 2


def test_a_record_of_numbers_that_begins_without_any_is_no_reason_to_compile_a_step():
    state = types.SimpleNamespace(w=tape.Variable([1.0, 2.0]), losses=[], notes={})
    step = tape.jit(lambda x: (x * state.w).sum())
    for i in range(20):
        state.losses.append(float(step(tape.constant([1.0, 1.0]))))
        state.notes[i] = i
    assert step.cache_info().kept == 1
    assert step.cache_info().traces <= 2


def test_what_a_step_does_not_read_is_no_reason_to_compile_it():
    state = types.SimpleNamespace(held={"w": tape.Variable([1.0, 2.0])}, losses=[], best=None)
    step = tape.jit(lambda x: (x * state.held["w"]).sum())
    for i in range(300):
        state.held[f"note {i}"] = i  # traced again, to the same program
        state.losses.append(float(step(tape.constant([1.0, 1.0]))))
        state.best = min(state.losses)
    assert set(state.losses) == {3.0}
    assert step.cache_info().kept == 1
    step = tape.jit(lambda x: (x * state.held["w"]).sum())
    for _ in range(3):
        state.losses.append(float(step(tape.constant([1.0, 1.0]))))
    assert step.cache_info().traces == 1


def test_a_step_of_more_variables_than_numbers_that_are_one_object_is_bound_once(monkeypatch):
    rows = [tape.Variable(float(i)) for i in range(300)]
    step = tape.jit(lambda: sum(rows))
    assert float(step()) == 44850.0
    with monkeypatch.context() as patch:
        patch.setattr(type(step), "_bind", None)
        assert float(step()) == 44850.0
    rows.append(tape.Variable(0.5))
    np.testing.assert_array_equal(step().detach(), 44850.5)


def test_an_object_whose_attributes_are_a_view_is_looked_through():
    """As proxies of classes have: a step may reach one in the globals of another library."""

    class Proxy:
        @property
        def __dict__(self):
            return types.MappingProxyType({"first": None})

    held, w = Proxy(), tape.Variable(2.0)
    step = tape.jit(lambda x: x * w if getattr(held, "first", None) is None else x)
    assert [float(step(tape.constant(x))) for x in (1.0, 3.0)] == [2.0, 6.0]


def test_objects_that_a_step_moves_between_places_are_moved_at_each_call():
    def networks():
        return [types.SimpleNamespace(w=tape.Variable(x)) for x in (1.0, 10.0, 100.0)]

    def swap(o, x):
        o.a, o.b = o.b, o.a
        return o.a.w * x

    def rotate(o, x):
        o.all.append(o.all.pop(0))
        return o.all[0].w * x

    def updates(o, x):
        (o.a.w * x).backward()
        with tape.no_grad():
            o.a.w -= o.a.w.grad
        o.a.w.grad = None
        o.d["on"], o.d["off"] = o.d["off"], o.d["on"]
        o.a, o.b = o.b, o.a
        return o.d["on"].w + o.c.w

    for step in (swap, rotate, updates):
        told = []
        for wrap in (lambda f: f, tape.jit):
            a, b, c = networks()
            o = types.SimpleNamespace(a=a, b=b, c=c, all=[a, b, c], d={"on": a, "off": c})
            compiled = wrap(lambda x, o=o, step=step: step(o, x))
            told.append([float(compiled(tape.constant(x))) for x in (1.0, 2.0, 3.0, 4.0, 5.0)])
            o.a, o.c = o.c, o.a  # somebody else does
            told[-1] += [float(compiled(tape.constant(x))) for x in (1.0, 2.0, 3.0)]
            told[-1] += [[a, b, c].index(x) for x in (o.a, o.b, o.c, *o.all, *o.d.values())]
        assert told[0] == told[1]


def test_dicts_come_into_the_order_that_a_step_gives_them_at_each_call():
    def step(memory, x):
        key, oldest = memory.popitem(last=False)
        memory[key] = oldest * 0.5 + x
        memory.move_to_end("b")
        return sum(v * 10.0**i for i, v in enumerate(memory.values()))

    def again(memory, x):
        memory["a"] = memory.pop("a") + x
        return sum(v * 10.0**i for i, v in enumerate(memory.values()))

    for function, traces in ((step, 4), (again, 2)):
        told = []
        for wrap in (lambda f: f, tape.jit):
            memory = collections.OrderedDict((k, tape.constant(float(i))) for i, k in enumerate("abc"))
            compiled = wrap(lambda x, memory=memory, function=function: function(memory, x))
            told.append([(float(compiled(tape.constant(x))), *memory) for x in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)])
        np.testing.assert_allclose([t[0] for t in told[0]], [t[0] for t in told[1]], rtol=1e-6)
        assert [t[1:] for t in told[0]] == [t[1:] for t in told[1]]
        assert compiled.cache_info().traces <= traces


def test_what_another_name_stands_for_too_is_found_where_the_step_looks_for_it():
    nets = [types.SimpleNamespace(w=tape.Variable(x)) for x in (1.0, 10.0, 100.0)]
    o = types.SimpleNamespace(first=nets[0], second=nets[1], all=[*nets])
    compiled = tape.jit(lambda x: o.all[1].w * x)
    told = []
    for _ in range(4):
        told.append(float(compiled(tape.constant(1.0))))
        o.all.append(o.all.pop(0))
    o.second = nets[0]
    assert [*told, float(compiled(tape.constant(1.0)))] == [10.0, 100.0, 1.0, 10.0, 100.0]


def test_what_hooks_keep_is_state_of_the_step_that_calls_them():
    told = []
    for wrap in (lambda f: f, tape.jit):
        w, state = tape.Variable(2.0), {}
        scale = {"by": tape.constant(0.5)}

        def updates(p, state=state):
            with tape.no_grad():
                state["m"] = 0.5 * state.get("m", 0.0) + p.grad
                p -= 0.1 * state["m"]
            p.grad = None

        w.register_hook(lambda g, scale=scale: g * scale["by"])
        w.register_post_accumulate_grad_hook(updates)

        def step(x, w=w):
            ((w * x - 1) ** 2).backward()
            return w * 1.0

        compiled = wrap(step)
        for x in (1.0, 2.0, 3.0):
            compiled(tape.constant(x))
            told.append((float(w), float(state["m"])))
        scale["by"] = tape.constant(0.125)
        for x in (1.0, 2.0, 3.0):
            compiled(tape.constant(x))
            told.append((float(w), float(state["m"])))
    np.testing.assert_allclose(told[:6], told[6:], rtol=1e-6)


class Shared:
    """What the methods below read, by a global name."""

    scale = None


shared = Shared()


class Trainer:
    def __init__(self, x=None):
        self.scaled = None if x is None else self.loss(x)

    def step(self, x):
        return self.loss(x)

    def loss(self, x):
        return x if shared.scale is None else x * shared.scale

    @staticmethod
    def alone(x):
        return Trainer().loss(x)

    @property
    def scale(self):
        return shared.scale

    def __matmul__(self, x):
        return self.loss(x)


USES = {
    "method": lambda t: t.step,
    "another method": lambda t: lambda x: t.step(x),
    "static method": lambda t: lambda x: Trainer.alone(x),
    "made in the step": lambda t: lambda x: Trainer(x).scaled,
    "property": lambda t: lambda x: x if t.scale is None else x * t.scale,
    "operator": lambda t: lambda x: t @ x,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("first", [None, 2.0], ids=["None", "a Variable"])
def test_what_methods_read_that_a_step_calls_is_met(use, first):
    """By globals of their own, which neither the step nor the object has."""
    step = tape.jit(USES[use](Trainer()))
    try:
        for scale in (first, 3.0, 5.0, None, 7.0):
            shared.scale = None if scale is None else tape.Variable(scale)
            y = step(tape.constant([1.0, 2.0]))
            assert y.tolist() == [1.0 if scale is None else scale, 2.0 if scale is None else 2 * scale]
            if scale is not None:
                y.sum().backward()
                assert float(shared.scale.grad) == 3.0
    finally:
        shared.scale = None


class Options:
    def __init__(self, scale=None):
        self.scale, self.others = scale, []


@pytest.mark.parametrize("how", ["attribute", "dict", "cell"])
def test_an_object_in_the_place_of_one_that_held_nothing_is_met(how):
    w, held = tape.Variable([1.0, 2.0]), types.SimpleNamespace(options=Options(), table={"options": Options()})
    cell = Options()

    def of():
        return {"attribute": lambda: held.options, "dict": lambda: held.table["options"], "cell": lambda: cell}[how]()

    def function(x):
        options = of()
        return sum(options.others, x * w if options.scale is None else x * w * options.scale)

    step = tape.jit(function)
    for scale, others in ((None, []), (None, []), (3.0, []), (None, []), (None, [5.0]), (7.0, [1.0, 2.0]), (None, [])):
        cell = Options(None if scale is None else tape.Variable(scale))
        cell.others += [tape.constant(x) for x in others]
        held.options = held.table["options"] = cell
        y = step(tape.constant([1.0, 1.0]))
        assert y.tolist() == [(scale or 1.0) * x + sum(others) for x in (1.0, 2.0)]
        if scale is not None:
            y.sum().backward()
            assert float(cell.scale.grad) == 3.0


class Masked:
    def __init__(self):
        self.w, self.mask = tape.Variable([1.0, 2.0]), jnp.zeros(())

    def __call__(self, x):
        return x * self.w if self.mask.shape != x.shape else x * self.w * self.mask

    def item(self, x):
        masks = vars(self)
        return x * masks["w"] if isinstance(masks["mask"], jax.Array) and masks["mask"].shape == () else x * self.w * self.mask


@pytest.mark.parametrize("use", [lambda m: m, lambda m: m.item], ids=["attribute", "item"])
def test_what_comes_where_the_step_only_asked_for_the_shape_of_an_array_is_met(use):
    model = Masked()
    step = tape.jit(use(model))
    scalar, vector = jnp.ones(()), jnp.array([0.0, 3.0])
    for mask in (jnp.zeros(()), scalar, vector, scalar, tape.Variable([5.0, 7.0]), scalar, tape.constant([1.0, 0.0]), vector):
        model.mask = mask
        y = step(tape.constant([1.0, 1.0]))
        expected = [1.0, 2.0] if mask is scalar or mask.shape == () else [float(mask[0]), 2 * float(mask[1])]
        assert y.tolist() == expected
        if isinstance(mask, tape.Variable) and mask.requires_grad:
            y.sum().backward()
            assert mask.grad.tolist() == [1.0, 2.0]
    assert step.cache_info().traces <= 5


class Looped:
    """What its ``__init__`` and its loop assign to, its step does not read."""

    def __init__(self):
        self.w = tape.Variable([1.0, 2.0])
        self.state, self.log, self.act = "start", None, abs
        self.step = tape.jit(self._step)

    def _step(self, x):
        loss = (self.w * x).sum()
        loss.backward()
        self.w.zero_grad()
        return loss

    def fit(self):
        for i in range(4):
            loss = self.step(jnp.float32(i)).item()
            self.state, self.act, self.log = f"step {i}", lambda x: x, {"loss": loss}
        return loss


def test_what_is_only_assigned_to_has_no_step_traced_again():
    trainer = Looped()
    assert trainer.fit() == 9.0
    assert trainer.step.cache_info().traces == 1


class Choosing:
    """Its step calls what an attribute holds."""

    def __init__(self):
        self.w = tape.Variable([1.0, 2.0])
        self.loss = self.squared

    def squared(self, x):
        return (x * x).sum()

    def halved(self, x):
        return (x / 2).sum()

    def step(self, x):
        return self.loss(self.w * x)


def _scaling(k):
    return lambda x: (x * k).sum()


def _doing(k):
    return lambda x: x.sum() if k is True else (3 * x).sum()


def _calling(f):
    return lambda x: f(x) + 1


def _of_itself():
    those = []
    those.append(lambda x: (x * len(those)).sum())
    return those[0]


REMADE = {  # functions that are made anew at each call, of the same or of other parts, and how often a step is traced for them
    "methods": (lambda model, i: model.squared if i % 3 else model.halved, 2),
    "closures": (lambda _, i: _scaling(2.0 + i % 2), 2),
    "numbers that are equal": (lambda _, i: _doing((True, 1, 1.0)[i % 3]), 3),
    "defaults": (lambda _, i: lambda x, *, k=i % 2: (x * k).sum(), 2),
    "partials": (lambda _, i: functools.partial(lambda k, x: (x * k).sum(), 3.0 + i % 2), 2),
    "partials by names": (lambda _, i: functools.partial(lambda x, **by: sum([x.sum() * k for k in by.values()]), **{"ab"[i % 2]: 3.0}), 2),
    "in one another": (lambda _, i: _calling(_scaling(i % 2)), 2),
    "of Variables": (lambda _, i: _scaling(tape.constant(float(i))), 1),
    "of itself": (lambda _, i: _of_itself(), 9),
}


@pytest.mark.parametrize("way", REMADE)
def test_functions_that_are_made_anew_are_told_apart_by_what_they_are_made_of(way):
    remade, traces = REMADE[way]
    one, other = Choosing(), Choosing()
    step = tape.jit(one.step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tape.errors.TapeWarning)  # of functions that are never the same
        for i in range(9):
            one.loss, other.loss = remade(one, i), remade(other, i)
            x = jnp.float32(i + 1)
            assert step(x).item() == other.step(x).item(), i
    assert step.cache_info().traces == traces


def test_attributes_that_may_come_are_looked_for_at_few_objects():
    """Code that asks for many names is not asked of each of many objects at each call."""
    layers = [types.SimpleNamespace(w=tape.constant(1.0), name=str(i)) for i in range(40)]
    others = [types.SimpleNamespace(kind="data", number=i) for i in range(400)]

    @tape.jit
    def step(x):
        results = [
            layer.w * x
            + getattr(layer, "bias", 0.0)
            + getattr(layer, "scale", 0.0)
            + getattr(layer, "shift", 0.0)
            + getattr(layer, "gain", 0.0)
            for layer in layers
        ]
        return sum(results) + len(others)

    assert step(2.0).item() == 480.0
    (entries,) = step._entries.values()
    assert len(entries[0].bindings[0].setting.edges) < 2000
    layers[3].bias = tape.constant(5.0)
    assert step(2.0).item() == 485.0
