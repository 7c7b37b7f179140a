"""Callables are traced once for what they depend on, and again whenever any of that changed."""

import collections
import contextlib
import dataclasses
import enum
import functools
import gc
import hashlib
import itertools
import math
import operator
import random
import sys
import time
import types
import typing
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import interop
import tape
import tape.lax
import tape.nn
import tape.numpy as tnp
from tape.bounded import Bounded
from tape.callables import fingerprints, purity, snapshot, traces
from tape.graph.scope import LOCAL
from tape.graph.watcher import NOBODY
from tape.recording import record

X = jnp.array([0.3, 0.7, 1.2])
W = jnp.array([0.5, 1.5, -0.4])
SCALE = 2.0
SHIFT = tape.Variable(W)
HELPERS = types.ModuleType("helpers")


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Start from nothing known, and from names that the namespaces have made."""
    monkeypatch.setattr(traces, "_KNOWN", {})
    _ = (
        tnp.sin,
        tnp.cos,
        tnp.tanh,
        tnp.sum,
        tape.lax.map,
        tape.lax.scan,
        tape.lax.cond,
        tape.lax.fori_loop,
        tape.lax.while_loop,
        tape.nn.relu,
    )
    return traces._KNOWN


def traced(run):
    """How often ``run()`` traces a callable."""
    before = tape.stats().traces
    run()
    return tape.stats().traces - before


def settled(run):
    """How often ``run()`` traces a callable once it has run."""
    run()
    run()
    return traced(run)


def test_a_function_made_anew_is_traced_once():
    w = tape.Variable(W)
    first = traced(lambda: tape.lax.map(lambda a: tnp.sin(a * w), X))
    assert first == 1

    def run():
        return tape.lax.map(lambda a: tnp.cos(a * w), X)

    assert settled(run) == 0
    np.testing.assert_allclose(run().value, jax.lax.map(lambda a: jnp.cos(a * W), X), rtol=1e-6)


class Cell:
    def __init__(self, w):
        self.w = w
        self.power = 2

    @property
    def squared(self):
        return self.w**self.power

    def body(self, c, a):
        return self.step(c, a), None

    def step(self, c, a):
        return tnp.tanh(c * self.squared + a)

    __call__ = body


class State(typing.NamedTuple):
    h: typing.Any
    n: typing.Any


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@dataclasses.dataclass
class Options:
    rate: float
    mode: Mode = Mode.FAST

    def scaled(self, x):
        return x * self.rate if self.mode is Mode.FAST else x / self.rate


class Finding:
    """A namespace that looks a name up once."""

    def __getattr__(self, name):
        found = self.__dict__[name] = getattr(tnp, name)
        return found


class Settings:
    depth = 2.0


class Spec:
    """What JAX and NumPy take attributes of by themselves."""

    def __init__(self):
        self.shape, self.dtype, self.total = (2,), np.dtype(np.float32), 1.0

    def sum(self, **_):
        return self.total


@jax.tree_util.register_pytree_node_class
class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second

    def tree_flatten(self):
        return (self.first, self.second), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def _rnn(w):
    p = {"w": w, "layers": [w, 2.0]}

    def cell(h, x):
        h = tape.nn.relu(h * p["w"] + x * p["layers"][1])
        return h, h

    return lambda: tape.lax.scan(cell, X, X)


def _namedtuple(w):
    def cell(state, x):
        return State(state.h * w + x, state.n + 1), state._replace(h=x).h

    return lambda: tape.lax.scan(cell, State(X, 0), X)


def _dataclass(w):
    options = Options(3.0)
    return lambda: tape.lax.map(lambda a: options.scaled(a) * w, X)


def _passed_around(w):
    layers = [Cell(w), Cell(w)]

    def body(c, a):
        for layer in layers:
            c = layer.step(c, a)
        return c, None

    return lambda: tape.lax.scan(body, X, X)


def _partial(w):
    return lambda: tape.lax.map(functools.partial(lambda k, a: a * k * w, 3), X)


def _checkpointed(w):
    block = tape.checkpoint(lambda a: tnp.sin(a * w), policy=tape.checkpoint_policies.dots_saveable)
    return lambda: tape.lax.scan(lambda c, a: (block(c) + a, None), X, X)


def _math_and_numpy(w):
    table = np.array([1.0, 2.0], np.float32)
    return lambda: tape.lax.map(lambda a: a * w * math.sqrt(2) + np.sqrt(3) + table[0] + SCALE * jnp.pi, X)


REPEATED = {
    "checkpoint": lambda w: lambda: tape.checkpoint(lambda a: tnp.sin(a * w))(X),
    "checkpoint with a policy": lambda w: (
        lambda: tape.checkpoint(lambda a: tnp.sin(a * w), policy=tape.checkpoint_policies.save_only_these_names("a"))(X)
    ),
    "checkpoint inside": _checkpointed,
    "cond": lambda w: lambda: tape.lax.cond(w.sum() > 0, lambda a: tnp.sin(a) * w, lambda a: a * w, X),
    "dataclass": _dataclass,
    "fori_loop": lambda w: lambda: tape.lax.fori_loop(0, 3, lambda i, c: tnp.sin(c * w) + i, X),
    "gradients": lambda w: lambda: tape.vmap(tape.grad(lambda a: tnp.sin(a * w).sum()))(X),
    "global Variable": lambda _: lambda: tape.lax.map(lambda a: a * SHIFT, X),
    "Hessians": lambda w: lambda: tape.vmap(tape.hessian(lambda a: tnp.sin(a * w).sum()))(X),
    "Jacobians": lambda w: lambda: tape.vmap(tape.jacrev(lambda a: tnp.sin(a * w)))(X),
    "Jacobians by columns": lambda w: lambda: tape.vmap(tape.jacfwd(lambda a: tnp.sin(a * w)))(X),
    "math and numpy": _math_and_numpy,
    "method": lambda w: functools.partial(lambda cell: tape.lax.scan(cell.body, X, X), Cell(w)),
    "object that is called": lambda w: functools.partial(lambda cell: tape.lax.scan(cell, X, X), Cell(w)),
    "objects passed around": _passed_around,
    "named tuple": _namedtuple,
    "namespace that finds names": lambda w: functools.partial(lambda xp: tape.lax.map(lambda a: xp.sin(a * w), X), Finding()),
    "nested": lambda w: lambda: tape.lax.scan(lambda c, a: (tape.lax.cond(a > 0.5, lambda: c * w, lambda: c), None), X, X),
    "partial": _partial,
    "RNN": _rnn,
    "vectorize": lambda w: lambda: tnp.vectorize(lambda a, b: a * b + tnp.sum(w))(X, X),
    "while_loop": lambda w: lambda: tape.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * w, c[1] + 1), (w, 0)),
}


@pytest.mark.parametrize("make", REPEATED.values(), ids=REPEATED)
def test_what_is_understood_is_traced_no_more(make):
    assert settled(make(tape.Variable(W))) == 0


def test_jacobians_made_anew_are_those_of_what_there_is_by_now():
    with jax.enable_x64(True):
        x, w = np.linspace(0.3, 1.2, 6).reshape(2, 3), tape.Variable(np.linspace(0.5, 1.5, 3))
        for name, factor in itertools.product(["jacrev", "jacfwd", "hessian", "jacrev"], [1.0, 2.0, 2.0]):
            w.value = w.value * 1.25

            def of(xp, w, a, factor=factor, total=name == "hessian"):
                y = xp.sin(a * w) * factor
                return y.sum() if total else xp.concatenate([y, a * y])

            def loss(w, of=of, name=name):
                return (jax.vmap(getattr(jax, name)(lambda a: of(jnp, w, a)))(x) ** 2).sum()

            w.zero_grad()
            ours = (tape.vmap(getattr(tape, name)(lambda a, of=of: of(tnp, w, a)))(x) ** 2).sum()
            ours.backward()
            theirs = jax.value_and_grad(loss)(w.value)
            for found, right in zip((ours, w.grad), theirs, strict=True):
                np.testing.assert_allclose(found.value, right, rtol=1e-12)


def test_what_an_object_that_makes_attributes_up_holds_by_now():
    """Only what code takes from it counts, and what it does not hold may be anything."""
    w, xp = tape.Variable(W), Finding()

    def run():
        return tape.lax.map(lambda a: xp.sin(a * w), X).value

    np.testing.assert_allclose(run(), np.sin(np.outer(X, W)), rtol=1e-6)
    assert settled(run) == 0
    xp.cos = tnp.cos
    assert traced(run) == 0
    xp.sin = tnp.cos
    assert traced(run) == 1
    np.testing.assert_allclose(run(), np.cos(np.outer(X, W)), rtol=1e-6)
    del xp.sin
    np.testing.assert_allclose(run(), np.sin(np.outer(X, W)), rtol=1e-6)


def _counter(w):
    count = 0

    def body(a):
        nonlocal count
        count += 1
        return a * w + count

    return lambda: tape.lax.map(body, X)


def _appending(w):
    seen = []

    def body(a):
        seen.append(1)
        return a * w

    return lambda: tape.lax.map(body, X)


def _leaving(w):
    last = tape.Variable(0.0)

    def body(a):
        nonlocal last
        last = a * w
        return last

    return lambda: tape.lax.map(body, X)


def _left_unread(w):
    last = None

    def store(a):
        nonlocal last
        last = a * w
        return a * w

    return lambda: tape.lax.map(store, X)


class Remembering:
    def __init__(self):
        self.calls = 0

    def __call__(self, a):
        self.calls += 1
        return a


class Lazy:
    def __getattr__(self, name):
        return random.random()  # noqa: S311 - no secrets


class Doubled(tape.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def _generator(w):
    numbers = itertools.count()
    return lambda: tape.lax.map(lambda a: a * w + next(numbers), X)


def _large(w):
    table = np.ones(5000, np.float32)
    return lambda: tape.lax.map(lambda a: a * w + table[0], X)


@functools.lru_cache
def remembered(x):
    return x


def _importing(a):
    import tape.numpy as n

    return n.sin(a)


REFUSED = {
    "append": _appending,
    "attribute by a name made up": lambda w: functools.partial(
        lambda o: tape.lax.map(lambda a: a * w * operator.attrgetter("po" + "wer")(o), X), Cell(w)
    ),
    "attribute set": lambda _: functools.partial(tape.lax.map, Remembering(), X),
    "attributes made when asked": lambda w: functools.partial(lambda o: tape.lax.map(lambda a: a * w + o.anything, X), Lazy()),
    "callback": lambda w: lambda: tape.lax.map(lambda a: (jax.debug.callback(lambda: None), a * w)[1], X),
    "clock": lambda w: lambda: tape.lax.map(lambda a: a * w + time.time(), X),
    "counter": _counter,
    "dictionary with a default": lambda w: functools.partial(
        lambda d: tape.lax.map(lambda a: a * w + d["n"], X), collections.defaultdict(int)
    ),
    "Function": lambda w: lambda: tape.lax.map(lambda a: Doubled.apply(a * w), X),
    "generator": _generator,
    "getattr": lambda w: functools.partial(lambda o, name: tape.lax.map(lambda a: a * getattr(o, name), X), Cell(w), "w"),
    "import": lambda _: lambda: tape.lax.map(_importing, X),
    "large array": _large,
    "left behind": _leaving,
    "left behind and not read": _left_unread,
    "lru_cache": lambda w: lambda: tape.lax.map(lambda a: a * w + remembered(1), X),
    "print": lambda w: lambda: tape.lax.map(lambda a: (print(), a * w)[1], X),
    "random": lambda w: lambda: tape.lax.map(lambda a: a * w + random.random(), X),  # noqa: S311 - no secrets
    "random of NumPy": lambda w: lambda: tape.lax.map(lambda a: a * w + np.random.rand(), X),  # noqa: NPY002
    "random generator": lambda w: functools.partial(lambda r: tape.lax.map(lambda a: a * w + r.random(), X), random.Random(0)),  # noqa: S311 - no secrets
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_is_not_understood_is_traced_every_time(make, capsys):
    assert settled(make(tape.Variable(W))) >= 1


def helper(x):
    return x * 2


def sized(a):
    return a * sized.size


class World:
    """Whatever a callable can depend on; ``run`` uses all of it, and a change of any must be seen."""

    rate = 3.0

    def __init__(self):
        self.w, self.v = tape.Variable(W), tape.Variable(X * 2)
        self.shared = [self.w, self.v]
        self.plain = {"a": 1.0, "names": ["sin"], "state": State(1.0, 2)}
        self.options = Options(0.5)
        self.table = np.array([1.0, 2.0], np.float32)
        self.array = X
        self.x = X
        self.reverse = False
        self.mode = Mode.FAST
        self.layers = [Cell(self.v)]
        self.body, self.set_offset = self._make()
        self.other = lambda a: a
        self.pair = Pair(1.0, 2.0)
        self.spec = Spec()
        self.gate = types.SimpleNamespace(grad=1.0)
        self.steps = 0
        self.decorated = tape.checkpoint(lambda a: tnp.tanh(a * self.w))

    def _make(self):
        offset = 1.0

        def set_offset(value):
            nonlocal offset
            offset = value

        def body(c, a, scale=2.0, *, power=2):
            for layer in self.layers:
                c = layer.step(c, a)
            found = c * self.shared[0] + helper(a) * SCALE + HELPERS.factor * self.shared[1]
            function = tnp.sin if "sin" in self.plain["names"] else tnp.cos
            found = function(found * offset) * self.rate + self.plain["a"] * scale**power + self.plain["state"].h
            found = self.options.scaled(found) + self.table[1] + tnp.tanh(self.array).sum() + tape.constant(self.array)
            found = found + self.other(a) + c * SHIFT
            found = found + jnp.ones_like(self.spec).sum() * np.sum(self.spec)
            found = found * Settings.depth + sum(jax.tree.leaves(jax.tree.map(lambda x: x * 2, self.pair)))
            found = found + float("1.5" in f"{self.options}") + self.gate.grad * (2.0 if self.w.grad is None else 3.0)
            return self.decorated(found), found if self.mode is Mode.FAST else -found

        return body, set_offset

    def run(self):
        """Return the results of a scan over all this."""
        return tape.lax.scan(self.body, self.w, self.x, reverse=self.reverse)

    def results(self):
        """Return the values and gradients of that."""
        last, outputs = self.run()
        leaves = list(dict.fromkeys([v for v in (*self.shared, SHIFT) if v.requires_grad]))
        gradients = tape.gradients(last.sum() + (outputs * outputs).sum(), leaves, unconnected="zero")
        return [np.asarray(v.value) for v in (last, outputs, *gradients)]


def _global_scale(_, n):
    globals()["SCALE"] = 2.0 + n


def _global_helper(_, n):
    globals()["helper"] = [lambda x: x * 2, lambda x: x * 3, tnp.sin][n]


def _swap(world, _):
    world.shared.reverse()


def _same(world, _):
    world.shared[1] = world.shared[0]


def _code(world, n):
    """Give a function other code, in place; a closure's has to read what it holds."""
    here = [lambda a: a, lambda a: a * 7, lambda a: a - 1]
    holding = [lambda a: a * n, lambda a: a * (7 + n), lambda a: a - n]
    world.other.__code__ = (holding if world.other.__closure__ else here)[n].__code__


CHANGES = {
    "array": lambda world, n: setattr(world, "array", X + n),
    "attribute": lambda world, n: setattr(world.options, "rate", 0.5 + n),
    "attribute of a class": lambda _, n: setattr(Settings, "depth", 2.0 + n),
    "child of a tree": lambda world, n: setattr(world.pair, "second", 2.0 + n),
    "class attribute": lambda _, n: setattr(World, "rate", 3.0 + n),
    "constant": lambda world, n: world.shared.__setitem__(1, world.shared[1].detach().requires_grad_(n != 1)),
    "default": lambda world, n: setattr(world.body, "__defaults__", (2.0 + n,)),
    "dictionary": lambda world, n: world.plain.update(a=[1.0, -0.0, 0.0][n]),
    "dtype": lambda world, n: setattr(world, "x", X.astype([jnp.float32, jnp.float16, jnp.int32][n])),
    "function": lambda world, n: setattr(world, "other", [lambda a: a, lambda a: -a, lambda a: a + n][n]),
    "function's attribute": lambda world, n: (setattr(world, "other", sized), setattr(sized, "size", n)),
    "function's code": _code,
    "global": _global_scale,
    "global function": _global_helper,
    "gradient": lambda world, n: setattr(world.w, "grad", [None, tape.constant(W), tape.constant(X)][n]),
    "keyword default": lambda world, n: setattr(world.body, "__kwdefaults__", {"power": 2 + n}),
    "length": lambda world, n: setattr(world, "x", jnp.concatenate([X] * (n + 1))),
    "list": lambda world, n: world.plain["names"].__setitem__(0, ["sin", "cos", "tan"][n]),
    "member": lambda world, n: setattr(world, "mode", [Mode.FAST, Mode.SLOW, Mode.FAST][n]),
    "method": lambda _, n: setattr(Cell, "step", [STEP, lambda _, c, a: c + a, lambda self, c, a: c * self.w - a][n]),
    "module": lambda _, n: setattr(HELPERS, "factor", [1.5, 2, True][n]),
    "more layers": lambda world, n: setattr(world, "layers", [Cell(world.v)] * n),
    "named tuple": lambda world, n: world.plain.update(state=State(1.0 + n, 2)),
    "nonlocal": lambda world, n: world.set_offset(1.0 + n),
    "NumPy array": lambda world, n: world.table.__setitem__(1, 2.0 + n),
    "number": lambda world, n: world.shared.__setitem__(1, tape.constant([2.0, 3.0, -0.0][n])),
    "one Variable for two": _same,
    "option": lambda world, n: setattr(world.options, "mode", [Mode.FAST, Mode.SLOW, Mode.FAST][n]),
    "other Variable": lambda world, n: world.shared.__setitem__(1, tape.Variable(W + n)),
    "pending Variable": lambda world, n: world.shared.__setitem__(1, world.w * n),
    "property": lambda _, n: setattr(Cell, "squared", [SQUARED, property(lambda self: self.w), property(lambda _: 2.0)][n]),
    "rebound": lambda world, n: setattr(world.w, "value", W * (n + 1)),
    "shape": lambda world, n: world.shared.__setitem__(1, tape.Variable([2.0, jnp.ones(1), jnp.ones(3)][n])),
    "static": lambda world, n: setattr(world, "reverse", bool(n)),
    "summed by NumPy": lambda world, n: setattr(world.spec, "total", 1.0 + n),
    "shape of an object": lambda world, n: setattr(world.spec, "shape", (2 + n,)),
    "swap": _swap,
}
STEP, SQUARED = Cell.step, Cell.squared


@pytest.fixture(autouse=True, scope="module")
def unbounded():
    """No op is forgotten meanwhile: the tests tell equal programs by the identity of their ops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprints._OPS, "limit", 1 << 30)
        yield


def _restore():
    HELPERS.factor = 1.5
    World.rate, Cell.step, Cell.squared, Settings.depth = 3.0, STEP, SQUARED, 2.0
    globals()["SCALE"], globals()["helper"] = 2.0, HELPER


HELPER = helper


@contextlib.contextmanager
def forgotten():
    """Have every callable be traced."""
    kept, traces._KNOWN = traces._KNOWN, {}
    try:
        yield
    finally:
        traces._KNOWN = kept


class RecordedError(Exception):
    """Instead of a record."""


def entry(run):
    """What a call would record: the op, which is the same one for the same program, the kinds of its inputs, and their values or cells."""
    plain = record.record

    def stop(op, inputs):
        if LOCAL.scope.trace is NOBODY:
            raise RecordedError(op, inputs)
        return plain(op, inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "record", stop)
        with pytest.raises(RecordedError) as info:
            run()
    op, inputs = info.value.args
    return op, [v._place.kind for v in inputs], [v._cell if v._cell[0] is None else v._cell[0] for v in inputs]


def agrees(run):
    """Whether a call records what it would if it were traced."""
    ours = entry(run)
    with forgotten():
        theirs = entry(run)
    if ours[:2] == theirs[:2]:
        return all(a is b or np.array_equal(a, b) for a, b in zip(ours[2], theirs[2], strict=True))
    return alike(ours, theirs)


def alike(ours, theirs):
    """Whether two entries are the same function of the same values, which may enter in another order."""
    inputs = [[known_as(v) for v in values] for _, _, values in (ours, theirs)]
    if sorted(inputs[0]) != sorted(inputs[1]):
        return False
    for seed in range(3):
        results = []
        for (op, kinds, values), names in zip((ours, theirs), inputs, strict=True):
            arrays = [drawn(v, name, kind.aval, seed) for v, name, kind in zip(values, names, kinds, strict=True)]
            results.append(op.kernel_of(tuple(kinds)).inline(*arrays))
        if not all(np.allclose(a, b, rtol=1e-5, equal_nan=True) for a, b in zip(*results, strict=True)):
            return False
    return True


def known_as(value):
    """What tells inputs apart: a cell that waits for its value, or the value."""
    return str(id(value)) if isinstance(value, list) else f"{jax.typeof(value)} {np.asarray(value).tobytes()}"


def drawn(value, name, aval, seed):
    """Another value for an input, the same one for the same input."""
    if not jnp.issubdtype(aval.dtype, jnp.inexact):
        return value
    number = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:4], "little")
    return jnp.asarray(np.random.default_rng(number).standard_normal(aval.shape), aval.dtype)


@given(st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 2), st.booleans()), min_size=1, max_size=4))
def test_every_change_is_seen(changes):
    _restore()
    try:
        world = World()
        for name, n, grad in [("global", 0, True), *changes]:
            CHANGES[name](world, n)
            with tape.set_grad_enabled(grad):
                assert agrees(world.run), name
    finally:
        _restore()


BLIND = {"array": "array", "atom": "static", "inexact": "attribute", "member": "member", "numpy": "NumPy array"}


@pytest.mark.parametrize("category", BLIND)
def test_planted_blindness_is_seen(category, monkeypatch):
    monkeypatch.setattr(snapshot.Snapshot, f"_{category}", lambda *_: None)
    _restore()
    world = World()
    assert agrees(world.run)
    CHANGES[BLIND[category]](world, 1)
    assert not agrees(world.run)


@pytest.mark.parametrize("name", ["constant", "nonlocal", "rebound", "shape"])
def test_values_and_gradients_after_a_change(name):
    _restore()
    world = World()
    world.results()
    world.results()
    CHANGES[name](world, 1)
    found = world.results()
    with forgotten():
        expected = world.results()
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_callable_that_asks_whether_its_argument_requires_grad_is_traced_for_both():
    def call(x):
        return tape.checkpoint(lambda c: c * 2 if c.requires_grad else c * 3)(x)

    x = tape.Variable(1.0)
    for grad, result in ((False, 3.0), (True, 2.0), (False, 3.0)):
        with tape.set_grad_enabled(grad):
            assert float(call(x)) == result


def test_a_lifted_function_made_anew_is_traced_once(monkeypatch):
    runs = []
    lift = sys.modules["interop.lift"]
    monkeypatch.setattr(lift, "_jaxpr", functools.partial(lambda plain, *args: runs.append(1) or plain(*args), lift._jaxpr))
    x, scale, array = tape.Variable(X), 2.0, W

    def run(power):
        return interop.lift(lambda a, n: jnp.sin(a * array) * scale + (a if n == "linear" else a * a))(x, power)

    for _ in range(3):
        np.testing.assert_allclose(run("linear").value, jnp.sin(X * W) * 2 + X, rtol=1e-5)
    assert len(runs) == 1
    np.testing.assert_allclose(run("square").value, jnp.sin(X * W) * 2 + X * X, rtol=1e-5)
    scale = 3.0
    np.testing.assert_allclose(run("square").value, jnp.sin(X * W) * 3 + X * X, rtol=1e-5)
    array = W * 2
    np.testing.assert_allclose(run("square").value, jnp.sin(X * W * 2) * 3 + X * X, rtol=1e-5)
    assert len(runs) == 4
    constant = tape.constant(W)
    for n in (1, 2):
        constant.value = W * n
        found = interop.lift(lambda a: a * constant.value)(x)
        np.testing.assert_allclose(found.value, X * W * n, rtol=1e-5)


def test_arrays_and_callables_are_let_go():
    array = jnp.ones(7)
    ref = weakref.ref(array)
    kept = weakref.ref(body := lambda a, array=array: a * array.sum())
    tape.lax.map(body, X)
    tape.lax.map(body, X)
    del array, body
    gc.collect()
    assert ref() is None
    assert kept() is None


def test_what_is_known_is_bounded(monkeypatch):
    monkeypatch.setattr(traces, "_KNOWN", Bounded("traces", 4))
    for i in range(10):
        tape.lax.map(lambda a, i=i: a * float(i), X)
    assert len(traces._KNOWN) == 4


def test_the_world_is_understood():
    """Else nothing above is tested."""
    _restore()
    world = World()
    assert settled(world.run) == 0


def test_what_the_code_does_not_name_does_not_matter():
    _restore()
    world = World()
    world.run()
    world.steps += 1
    world.history = [np.ones(5000)]
    assert traced(world.run) == 0


@pytest.mark.parametrize(
    "name", ["attribute of a class", "child of a tree", "gradient", "method", "option", "shape of an object", "summed by NumPy"]
)
def test_a_change_is_seen(name):
    _restore()
    try:
        world = World()
        world.run()
        world.run()
        CHANGES[name](world, 1)
        assert traced(world.run) > 0
        assert agrees(world.run)
    finally:
        _restore()


@pytest.mark.parametrize("name", ["relu", "log_sigmoid", "relu6"])
def test_equal_programs_are_one_op_when_they_are_traced_anew(name):
    """What JAX closes the rule of a ``custom_jvp`` over is made at each trace; else each of them would be compiled anew."""
    w = tape.Variable(W)
    activation = getattr(tape.nn, name)

    def run():
        return tape.checkpoint(lambda a: activation(a * w))(X)

    with forgotten():
        first = entry(run)[0]
    with forgotten():
        assert entry(run)[0] is first


def by_scan(f):
    return lambda x: tape.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("way", [by_scan, tape.checkpoint, tape.vmap, tape.jit, interop.lift])
def test_an_array_that_is_changed_after_the_call_is_no_longer_what_was_called_with(way, shape):
    """JAX takes arrays of NumPy without axes into jaxprs as they are: until it runs, and wherever else the same number is met."""
    for _ in range(2):
        scale = np.full(shape, 2.0, np.float32)
        x = tape.Variable(np.ones((3, 3), np.float32))
        y = way(lambda x, scale=scale: x * scale)(x)
        scale[...] = 7.0
        y.sum().backward()
        np.testing.assert_array_equal(y.value, np.full((3, 3), 2.0))
        np.testing.assert_array_equal(x.grad.value, np.full((3, 3), 2.0))


def test_what_the_tape_makes_at_every_call_is_not_looked_for_in_all_modules(monkeypatch):
    w = tape.Variable(np.ones(3, np.float32))
    for turn in range(4):
        if turn == 3:
            monkeypatch.setattr(purity, "_is_listed", lambda value: pytest.fail(f"looks for {value}"))
        tape.vmap(lambda x: (w * x).sum())(np.ones((2, 3), np.float32)).sum().backward()
        tape.checkpoint(lambda x: (w * x).sum())(np.ones(3, np.float32)).backward()
