"""Steps of ``tape.jit`` call methods: what classes hold may be others between calls, and so may the classes of objects."""

import functools
import weakref

import jax.numpy as jnp
import pytest

import tape
from tape import layout
from tape.jitting import classes


def _classes():
    """Return a class and its base, of which no other test has seen anything."""

    class Base:
        def __init__(self):
            self.w = tape.Variable(2.0)

        def inherited(self, x):
            return self.w * x

        def extended(self, x):
            return self.w * x

    class Model(Base):
        def forward(self, x):
            return self.w * x

        def extended(self, x):
            return super().extended(x) + 1

        def __call__(self, x):
            return self.w * x

        @property
        def double(self):
            return self.w * 2

        @functools.cached_property
        def once(self):
            return 3.0

        @staticmethod
        def activation(x):
            return x * 2

        @classmethod
        def scaled(cls, x):
            return x * 2

        by_two = functools.partialmethod(forward)
        activate = staticmethod(jnp.sign)
        kind = "plain"

    return Model, Base


def _times(k):
    return lambda self, x: self.w * x * k


LIBRARY = {5.0: jnp.abs, 7.0: jnp.square}

# What a step does with a model, and what becomes of the model, its class and the base of that, for each of some numbers.
METHODS = {
    "a method": (lambda m, x: m.forward(x), lambda m, c, b, k: setattr(c, "forward", _times(k))),
    "a method of a base": (lambda m, x: m.inherited(x), lambda m, c, b, k: setattr(b, "inherited", _times(k))),
    "a method that was a base's": (lambda m, x: m.inherited(x), lambda m, c, b, k: setattr(c, "inherited", _times(k))),
    "a method of a base that is extended": (lambda m, x: m.extended(x), lambda m, c, b, k: setattr(b, "extended", _times(k))),
    "a special method": (lambda m, x: m(x), lambda m, c, b, k: setattr(c, "__call__", _times(k))),
    "a property": (lambda m, x: m.double * x, lambda m, c, b, k: setattr(c, "double", property(lambda self: self.w * k))),
    "a static method": (lambda m, x: m.activation(x) * m.w, lambda m, c, b, k: setattr(c, "activation", staticmethod(lambda x: x * k))),
    "a method of the class": (lambda m, x: m.scaled(x) * m.w, lambda m, c, b, k: setattr(c, "scaled", classmethod(lambda cls, x: x * k))),
    "a partial method": (lambda m, x: m.by_two(x), lambda m, c, b, k: setattr(c, "by_two", functools.partialmethod(_times(k)))),
    "a library's function": (lambda m, x: m.activate(x) * m.w, lambda m, c, b, k: setattr(c, "activate", staticmethod(LIBRARY[k]))),
    "a name": (
        lambda m, x: m.w * x * 2 if type(m).kind == "plain" else m.w * x * len(type(m).kind),
        lambda m, c, b, k: setattr(c, "kind", "x" * int(k)),
    ),
    "a method of the object": (lambda m, x: m.forward(x), lambda m, c, b, k: setattr(m, "forward", lambda x: m.w * x * k)),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_put_in_place_of_another_between_calls(name):
    use, replace = METHODS[name]

    def outcomes(wrap):
        kind, base = _classes()
        model = kind()
        step = wrap(lambda x: use(model, x))
        yield [step(jnp.float32(3.0)).item() for _ in range(2)]
        for k in (5.0, 7.0):
            replace(model, kind, base, k)
            yield [step(jnp.float32(3.0)).item() for _ in range(2)]
        if wrap is tape.jit:
            assert step.cache_info().traces == 3

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


def test_a_property_of_a_class_of_classes_is_looked_through():
    class Registry(type):
        @property
        def bias(cls):
            return cls.given

    class Model(metaclass=Registry):
        given = None

    step = tape.jit(lambda x: x if Model.bias is None else x + Model.bias)
    assert step(1.0).item() == 1.0
    for value in (2.0, 4.0):
        Model.given = tape.Variable(value)
        assert step(1.0).item() == 1.0 + value
    assert step.cache_info().traces == 2


def test_an_object_becomes_one_of_another_class_between_calls():
    class Train:
        def __init__(self):
            self.w = tape.Variable(2.0)

        def __call__(self, x):
            return self.w * x

    class Evaluate(Train):
        def __call__(self, x):
            return self.w * x + 100

    layers = [Train(), Train()]
    step = tape.jit(lambda x: layers[1](layers[0](x)))
    for kind, expected in ((Train, 12.0), (Evaluate, 112.0), (Train, 12.0), (Evaluate, 112.0)):
        layers[1].__class__ = kind
        assert [step(3.0).item() for _ in range(2)] == [expected] * 2
    assert step.cache_info().traces == 2
    assert step.reasons[1] == "state class of layers[1]: Train -> Evaluate"


def test_what_methods_are_there_costs_a_step_no_look_for_each_object():
    class Layer:
        def __init__(self):
            self.w = tape.constant(1.0)

        def forward(self, x):
            return self.w * x

    def looks(count):
        layers = [Layer() for _ in range(count)]
        step = tape.jit(lambda x: sum(layer.forward(x) for layer in layers))
        step(1.0)
        (entries,) = step._entries.values()
        return len(entries[0].bindings[0]._edges)

    assert looks(20) - looks(10) == 20  # where each is, and its Variable


@pytest.mark.skipif(layout.NATIVE is None, reason="there is no recorder in C")
def test_classes_are_compared_in_c_as_in_python():
    class Other:
        pass

    x = Other()
    for rows in ((), ((x, Other, {}, ("a",)),), ((x, int, {}, ()),), ((x, Other, {"a": 1}, ("b", "a")),), ((x, Other, {"a": 1}, ("b",)),)):
        assert layout.NATIVE.are_alike(rows, None) is classes._are_all_alike(rows, None)
    with pytest.raises(TypeError, match="are a tuple"):
        layout.NATIVE.are_alike((1,), None)


class Kept:
    """A descriptor that keeps what each object has for its attribute."""

    def __init__(self, keeping, key):
        self.held, self.key = keeping(), key

    def __get__(self, instance, owner=None):
        return self.held.get(self.key(instance))

    def __set__(self, instance, value):
        self.held[self.key(instance)] = value


@pytest.mark.parametrize(
    "keeping", [(dict, id), (weakref.WeakKeyDictionary, lambda x: x), (dict, lambda x: "all")], ids=["id", "weak", "one"]
)
def test_what_descriptors_keep_is_met(keeping):
    class Model:
        w, training = Kept(*keeping), Kept(*keeping)

    model = Model()
    model.w, model.training = tape.Variable(2.0), True
    step = tape.jit(lambda x: model.w * x if model.training else model.w * x * 10)
    for value, training in ((2.0, True), (3.0, True), (3.0, False), (4.0, True)):
        model.w, model.training = tape.Variable(value), training
        y = step(jnp.float32(1.0))
        y.backward()
        assert (y.item(), model.w.grad.item()) == ((value, 1.0) if training else (value * 10, 10.0))
    assert step.cache_info().traces == 2
