"""A step sees that a Variable has been replaced, whichever way leads to it."""

import collections
import contextvars
import copy
import dataclasses
import enum
import functools
import importlib
import sys
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
from tape.callables import methods, reach


class Plain:
    pass


class Base:
    model = types.SimpleNamespace()

    class Inner:
        pass


class Derived(Base):
    @classmethod
    def get(cls):
        return cls.weight


class Heir(Base):
    """What has no weight of its own, whatever other tests give to classes."""


class Member(enum.Enum):
    ONE = 1


class Slotted:
    __slots__ = ("weight",)


MODULE, PACKAGE, FOREIGN = types.ModuleType("weights"), types.ModuleType("package"), types.ModuleType("jaxnets")
PACKAGE.weights = MODULE
FOREIGN.__dict__.update(Model=type("Model", (), {"__module__": "jaxnets"}))
ONE = tape.constant(jnp.ones(()))
BOX, LIST, QUEUE, CONTEXT = {}, [None], collections.deque(maxlen=1), contextvars.ContextVar("weight")
PLAIN, DERIVED, HEIR, SLOTTED, MODEL, SPACE = Plain(), Derived(), Heir(), Slotted(), FOREIGN.Model(), types.SimpleNamespace()
VIEW, PARTIAL = types.MappingProxyType(BOX), jax.tree_util.Partial(lambda box: box["weight"], BOX)
REFERENCE, MANY = weakref.ref(PLAIN), [Plain() for _ in range(3000)]
MUCH = [[(float(i), i) for i in range(150_000)], {"weight": None}]


@functools.lru_cache
def remembered():
    return BOX["weight"]


@functools.cache
def kept(name):
    return Plain()


@functools.lru_cache(maxsize=2)
def kept_latest(name):
    return Plain()


def in_cache(cache):
    def put(v):
        cache.cache_clear()
        for name in ("other", "weight", "other"):
            cache(name)
        cache("weight").own = v

    return put


def function():
    return function.weight


def defaulted(first=None, weight=None):
    return weight if first is ONE else None


def as_default(v):
    defaulted.__defaults__ = (ONE, v)


def in_box(v):
    BOX["weight"] = v


WAYS = {
    "attribute": (lambda: PLAIN.weight, lambda v: setattr(PLAIN, "weight", v)),
    "attribute of a class": (lambda: Plain.weight, lambda v: setattr(Plain, "weight", v)),
    "attribute of a class in a class": (lambda: Base.Inner.weight, lambda v: setattr(Base.Inner, "weight", v)),
    "attribute of a function": (function, lambda v: setattr(function, "weight", v)),
    "attribute of a module": (lambda: MODULE.weight, lambda v: setattr(MODULE, "weight", v)),
    "attribute of a module in a package": (lambda: PACKAGE.weights.weight, lambda v: setattr(MODULE, "weight", v)),
    "attribute of an inherited class": (lambda: HEIR.weight, lambda v: setattr(Base, "weight", v)),
    "behind much data": (lambda: MUCH[1]["weight"], lambda v: MUCH[1].update(weight=v)),
    "cache": (lambda: kept("weight").own, in_cache(kept)),
    "cache of the latest": (lambda: kept_latest("weight").own, in_cache(kept_latest)),
    "class method": (lambda: Derived.get(), lambda v: setattr(Derived, "weight", v)),
    "context variable": (CONTEXT.get, CONTEXT.set),
    "default of a function": (defaulted, as_default),
    "dict": (lambda: BOX["weight"], in_box),
    "enumeration": (lambda: Member.ONE.weight, lambda v: setattr(Member.ONE, "weight", v)),
    "far away": (lambda: MANY[2900].weight, lambda v: setattr(MANY[2900], "weight", v)),
    "function that remembers": (lambda: remembered.__wrapped__(), in_box),
    "globals()": (lambda: globals()["weight"], lambda v: globals().update(weight=v)),
    "list": (lambda: LIST[0], lambda v: LIST.__setitem__(0, v)),
    "method of a class": (lambda: DERIVED.get(), lambda v: setattr(Derived, "weight", v)),
    "module called like one of ours": (lambda: MODEL.weight, lambda v: setattr(MODEL, "weight", v)),
    "namespace": (lambda: SPACE.weight, lambda v: setattr(SPACE, "weight", v)),
    "object of a class": (lambda: Base.model.own, lambda v: setattr(Base.model, "own", v)),
    "object of a class, replaced": (lambda: Base.model.own, lambda v: setattr(Base, "model", types.SimpleNamespace(own=v))),
    "partial": (lambda: PARTIAL(), in_box),
    "queue": (lambda: QUEUE[0], QUEUE.append),
    "read-only view": (lambda: VIEW["weight"], in_box),
    "slot": (lambda: SLOTTED.weight, lambda v: setattr(SLOTTED, "weight", v)),
    "sys.modules": (lambda: sys.modules[__name__].weight, lambda v: globals().update(weight=v)),
    "weak reference": (lambda: REFERENCE().weight, lambda v: setattr(PLAIN, "weight", v)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_replaced_variable_is_seen(way):
    get, put = WAYS[way]
    put(tape.Variable(jnp.ones(())))

    @tape.jit
    def step(x):
        weight = get()
        loss = weight * x
        loss.backward()
        weight.value = weight.value - 0.1 * weight.grad.value
        weight.grad = None
        return loss

    assert [step(1.0).item() for _ in range(3)] == pytest.approx([1.0, 0.9, 0.8])
    put(tape.Variable(jnp.full((), 10.0)))
    assert [step(1.0).item() for _ in range(2)] == pytest.approx([10.0, 9.9])
    assert get().item() == pytest.approx(9.8)
    assert step.cache_info().traces <= 3, step.explain()  # a value that was assigned may be of a weak type no more


def test_what_is_too_far_away_to_be_looked_at_is_warned_of(monkeypatch):
    MANY[2900].weight = tape.Variable(jnp.ones(()))
    monkeypatch.setattr(reach, "_LIMIT", 1000)
    step = tape.jit(lambda: MANY[2900].weight * 2.0)
    with pytest.warns(tape.errors.TapeWarning, match=r"uses 1 Variables? beyond those: should one be replaced"):
        assert step().item() == 2.0


def test_a_queue_that_gets_a_variable_in_a_step_is_refused():
    @tape.jit
    def step(x):
        BOX["queue"].append(x * 2)

    BOX["queue"] = collections.deque()
    with pytest.raises(tape.errors.LeakedTracerError, match="a deque that outlives it"):
        step(tape.Variable(jnp.ones(())))
    assert not BOX.pop("queue")


def test_defaults_are_told_apart():
    first, second = tape.Variable(2.0), tape.Variable(3.0)

    @tape.jit
    def step(x, a=first, b=second):
        a.value = a.value + 1
        return x * a - b

    with tape.no_grad():
        assert [step(1.0).item() for _ in range(2)] == [0.0, 1.0]
    assert second.item() == 3.0


def swapped(state):
    state.a, state.b = state.b, state.a
    return state.b


def turned(state):
    state.pair = (state.pair[1], state.pair[0])
    return state.pair[1]


def reversed_in_place(state):
    state.rows.reverse()
    return state.rows[1]


def put_back(state):
    before, state.a = state.a, state.b
    return before


def passed_on(state):
    before, state.rows[0], state.table["c"] = state.rows[0], state.table["c"], state.a
    return before


@pytest.mark.parametrize("move", [swapped, turned, reversed_in_place, put_back, passed_on])
def test_a_step_moves_arrays_between_places(move):
    def outcomes(wrap):
        a, b = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])
        state = types.SimpleNamespace(a=a, b=b, pair=(a, b), rows=[a, b], table={"c": b})
        step = wrap(lambda x: x * move(state))
        for change in ({}, {}, {"a": a * 5}, {"b": b * 7, "pair": (b * 2, a * 3)}, {"pair": (a, b, a)}, {"rows": [b, a * 9]}, {}):
            vars(state).update(change)
            yield step(tape.constant([1.0, 1.0])).tolist()
            yield jax.tree.map(lambda x: x.tolist(), vars(state))

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


def _by_seed(x, number):
    return tape.gradients([x + 1.0], [x], [number])[0]


def _by_hook(x, number):
    y = x * 2.0
    y.retain_grad()
    y.register_hook(lambda g: number)
    y.backward()
    return y.grad


def _by_backward(x, number):
    class Fixed(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, g):
            return number

    return tape.gradients(Fixed.apply(x), x)


@pytest.mark.parametrize("kind", [float, np.float32])
@pytest.mark.parametrize("way", [_by_seed, _by_hook, _by_backward, lambda x, number: tape.stop_gradient(number)])
def test_a_gradient_that_was_given_as_a_number_is_an_input(way, kind):
    step = tape.jit(lambda x, g: x * g)
    for number in (0.5, 1.5, 2.5):
        x = tape.Variable(np.float32(3.0))
        assert float(step(x, way(x, kind(number)))) == 3.0 * number


def _put_attribute(state):
    state.best = state.rows[0]


def _put_item(state):
    state.table["best"] = state.rows[0]


def _put_row(state):
    state.rows[1] = state.rows[0]


@pytest.mark.parametrize("put", [_put_attribute, _put_item, _put_row])
def test_a_variable_that_is_put_where_it_is_already_is_put_there_later(put):
    """While the step is traced, nothing tells that from a place that it leaves alone."""
    first, other = tape.Variable(jnp.ones(())), tape.Variable(jnp.zeros(()))
    state = types.SimpleNamespace(rows=[first, first], best=first, table={"best": first})
    step = tape.jit(lambda: put(state))
    for best in (first, first, other, first, other, other):
        state.best = state.table["best"] = state.rows[1] = best
        step()
        assert {_put_attribute: state.best, _put_item: state.table["best"], _put_row: state.rows[1]}[put] is first
    state.rows[0] = other
    step()
    assert {_put_attribute: state.best, _put_item: state.table["best"], _put_row: state.rows[1]}[put] is other
    assert step.cache_info().traces <= 4, step.explain()


@dataclasses.dataclass(frozen=True)
class State:
    w: object
    sums: object = None
    name: str = "state"


@dataclasses.dataclass(frozen=True, slots=True)
class StateOfSlots:
    w: object
    sums: object = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class RegisteredState:
    w: object
    sums: object = None


@pytest.mark.parametrize("kind", [State, StateOfSlots, RegisteredState])
def test_an_object_of_a_dataclass_that_a_step_makes_is_made_at_every_call(kind):
    found = []
    for wrap in (lambda step: step, tape.jit):
        held = types.SimpleNamespace(state=kind(tape.Variable(1.0), [{"g": jnp.zeros(())}]), within=None)

        @wrap
        def step(x, held=held):
            old = held.state
            loss = (old.w * x) ** 2
            gradient = tape.gradients(loss, old.w)
            held.state = dataclasses.replace(
                old, w=tape.Variable((old.w - 0.1 * gradient).detach()), sums=[{"g": old.sums[0]["g"] + gradient}]
            )
            held.within = {"old": (kind(gradient), x)}
            return kind(loss, [x * 2])

        found.append([])
        for i in range(6):
            if i == 4:
                held.state = kind(tape.Variable(2.0), [{"g": jnp.ones(())}])
            result = step(float(i))
            assert type(result) is type(held.state) is kind
            state, (within, x) = held.state, held.within["old"]
            found[-1].append([float(v) for v in (result.w, result.sums[0], state.w, state.sums[0]["g"], within.w, x)])
        assert getattr(held.state, "name", "state") == "state"
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_an_object_of_a_dataclass_that_was_there_before_stays_itself():
    state = types.SimpleNamespace(a=State(tape.Variable(1.0)), b=State(tape.Variable(2.0)))
    a, b = state.a, state.b

    @tape.jit
    def step():
        state.a, state.b = state.b, state.a

    for _ in range(2):
        step()
        assert state.a is b
        assert state.b is a
        step()
        assert state.a is a
        assert state.b is b


def test_a_function_with_a_variable_of_the_trace_is_refused_at_the_first_call():
    def step(x):
        doubled = x * 2
        return lambda: doubled

    with pytest.raises(tape.errors.TapeTypeError, match=r"type function, in which a Variable is .*dataclass or registered pytree"):
        tape.jit(step)(1.0)


class Made:
    def __init__(self, w, rest=None):
        self.w, self.rest = w, rest


class MadeOfSlots:
    __slots__ = ("rest", "w")

    def __init__(self, w, rest=None):
        self.w, self.rest = w, rest


class MadeThatTakesNoMore(Made):
    def __setattr__(self, name, content):
        assert name not in vars(self)
        super().__setattr__(name, content)


@pytest.mark.parametrize("kind", [Made, MadeOfSlots, MadeThatTakesNoMore, lambda w, rest=None: types.SimpleNamespace(w=w, rest=rest)])
def test_an_object_that_a_step_makes_is_made_at_every_call(kind):
    found = []
    for wrap in (lambda step: step, tape.jit):
        net = kind(tape.Variable(2.0), kind(tape.Variable(3.0)))
        held = types.SimpleNamespace(net=net, best=None, twice=None, log=[])

        @wrap
        def step(x, held=held):
            net = held.net
            loss = net.w * net.w * x * net.rest.w
            loss.backward()
            net.w.value, net.w.grad, net.rest.w.grad = net.w.value - 0.01 * net.w.grad.value, None, None
            held.best = copy.deepcopy(net)
            made = kind(loss.detach(), ["kept"])
            held.twice = (made, made, net)
            return kind(net.w * x, made)

        found.append([])
        kept = []
        for i in range(4):
            result = step(tape.constant(1.0 + i))
            result.w.backward()
            kept.append((held.best, held.twice[0], result.rest))
            result.rest.rest.append(i)
            assert type(result) is type(held.best) is type(held.net)
            assert held.twice[0] is held.twice[1]
            assert held.twice[2] is held.net is net
            assert result.rest is held.twice[0]
            values = [held.net.w, held.best.w, held.best.rest.w, held.net.w.grad, held.twice[0].w, result.w]
            found[-1].append([*map(float, values), list(result.rest.rest), held.best.w.requires_grad])
            held.net.w.grad = None
            if i == 2:
                held.best.w.value = held.best.w.value + 1
        assert len({*map(id, [x for listed in kept for x in listed])}) == 8
    assert found[0] == found[1]


def test_an_object_that_holds_itself_can_be_made_in_a_step():
    held = types.SimpleNamespace()

    @tape.jit
    def step(x):
        held.state = State(x * 2)
        object.__setattr__(held.state, "sums", held.state)

    step(1.0)
    assert float(held.state.w) == 2.0


class Table(dict):
    pass


@pytest.mark.parametrize("kind", [dict, Table, lambda items: collections.defaultdict(float, items), collections.OrderedDict])
@pytest.mark.parametrize(
    "key", [lambda name, p: name, lambda name, p: p, lambda name, p: id(p), lambda name, p: name if name == "w" else 1]
)
def test_a_dict_that_a_step_makes_keeps_its_order_and_its_keys(kind, key):
    found = []
    for wrap in (lambda step: step, tape.jit):
        parameters = {"w": tape.Variable(1.0), "b": tape.Variable(2.0)}
        held = types.SimpleNamespace(sums=kind({key(n, p): jnp.zeros(()) for n, p in parameters.items()}), within=None)

        @wrap
        def step(x, parameters=parameters, held=held):
            loss = sum((p - x) ** 2 * n for n, p in enumerate(parameters.values(), 1))
            gradients = dict(zip(parameters, tape.gradients(loss, [*parameters.values()]), strict=True))
            held.sums = kind({key(n, p): held.sums[key(n, p)] + gradients[n] for n, p in parameters.items()})
            held.within = ({"z": {"y": loss.detach(), "x": x}},)
            with tape.no_grad():
                for p, total in zip(parameters.values(), held.sums.values(), strict=True):
                    p.value = p - 0.1 * total
            return kind({key(n, p): gradients[n] for n, p in parameters.items()})

        found.append([])
        for i in range(6):
            if i == 4:
                parameters["w"] = tape.Variable(3.0)
                held.sums = kind({key(n, p): jnp.ones(()) for n, p in parameters.items()})
            returned = step(float(i))
            wanted = [key(n, p) for n, p in parameters.items()]
            assert all(a is b or a == b for made in (returned, held.sums) for a, b in zip(made, wanted, strict=True))
            assert type(returned) is type(held.sums) is type(kind({}))
            assert [*held.within[0]["z"]] == ["y", "x"]
            found[-1].append([float(v) for d in (returned, held.sums, parameters, held.within[0]["z"]) for v in d.values()])
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_a_step_can_make_sets_and_deques_of_variables():
    w = tape.Variable(2.0)
    held = types.SimpleNamespace()

    @tape.jit
    def step(x):
        held.recent = collections.deque([w * x, x], maxlen=2)
        held.met = {w, x * 3}
        return collections.deque([x * 5], maxlen=1), collections.deque([x])

    for i in range(3):
        x = tape.Variable(float(i))
        (five,), (same,) = step(x)
        assert same is x
        assert [float(v) for v in held.recent] == [2.0 * i, i]
        assert held.recent.maxlen == 2
        assert float(five) == 5.0 * i
        assert w in held.met
        assert sorted(map(float, held.met)) == sorted([2.0, 3.0 * i])


def test_a_step_finds_dicts_among_its_arguments_in_their_order():
    def total(batch, **more):
        values = [*batch[0].values(), *batch[1]["inner"].values(), *more.values()]
        return sum(v * 10**i for i, v in enumerate(values))

    step = tape.jit(total)
    for keys in ("ab", "ba", "ba", "ab"):
        for names in ("xy", "yx", "yx"):
            inner = collections.defaultdict(int, {k: np.float32(ord(k) % 7) for k in names})
            batch, more = ({k: tape.constant(float(ord(k) % 7)) for k in keys}, {"inner": inner}), {k: float(ord(k) % 7) for k in names}
            assert float(step(batch, **more)) == float(total(batch, **more))
    assert step.cache_info().traces == 4, step.explain()
    assert "order of keys" in step.explain()


BEHIND = {"factor": tape.constant(1.0)}


class Scaled:
    """What leads to a Variable by its methods only."""

    def run(self, x):
        return self._inner(x)

    def _inner(self, x):
        return x * BEHIND["factor"]

    @classmethod
    def of_class(cls, x):
        return x * BEHIND["factor"]

    @staticmethod
    def of_none(x):
        return x * BEHIND["factor"]

    @property
    def factor(self):
        return BEHIND["factor"]

    @functools.cached_property
    def table(self):
        return BEHIND["factor"]

    @tape.enable_grad()
    def decorated(self, x):
        return x * BEHIND["factor"]

    def __matmul__(self, x):
        return x * BEHIND["factor"]


class ScaledOp(tape.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        return g * BEHIND["factor"]


SCALED = Scaled()


def _of_a_class_made_here():
    factor = types.SimpleNamespace(now=tape.constant(1.0))

    class Local:
        def run(self, x):
            return x * factor.now

    def put(x):
        factor.now = x

    return lambda x: Local().run(x), put


@pytest.mark.parametrize(
    "way",
    [
        SCALED.run,
        lambda x: SCALED.run(x),
        lambda x: Scaled().run(x),
        lambda x: Scaled.run(SCALED, x),
        lambda x: Scaled.of_class(x),
        lambda x: SCALED.of_none(x),
        lambda x: x * SCALED.factor,
        lambda x: x * Scaled().table,
        lambda x: SCALED.decorated(x),
        lambda x: SCALED @ x,
        lambda x: ScaledOp.apply(x),
        None,
    ],
)
def test_a_variable_behind_a_method_is_looked_up_anew(way):
    way, put = (way, lambda x: BEHIND.update(factor=x)) if way is not None else _of_a_class_made_here()
    put(tape.constant(1.0))
    w = tape.Variable(3.0)
    step = tape.jit(lambda: tape.gradients(way(w), w))
    for factor in (1.0, 1.0, 2.0, 5.0, 5.0):
        put(tape.constant(factor))
        assert float(step()) == factor
    assert step.cache_info().traces == 1, step.explain()


def test_what_a_backward_stores_is_stored_at_every_call():
    BEHIND["count"] = tape.constant(0)

    class Counted(ScaledOp):
        @staticmethod
        def backward(ctx, g):
            BEHIND["count"] = BEHIND["count"] + 1
            return g

    w = tape.Variable(3.0)
    step = tape.jit(lambda: tape.gradients(Counted.apply(w), w))
    for i in range(4):
        step()
        assert int(BEHIND["count"]) == i + 1


class Slots:
    __slots__ = ("__weakref__", "key", "mean", "total", "w")


@dataclasses.dataclass(slots=True)
class SlotsOfFields:
    w: object = None
    mean: object = None
    total: object = None
    key: object = None


class Shared:
    w = mean = total = key = None

    @classmethod
    def all(cls):
        return cls


class Descended(Shared):
    pass


class ByObject(Shared):
    pass


def _read(at, x):
    loss = (at.w * x + at.mean) ** 2
    at.w.grad = None
    loss.backward()
    at.mean = 0.5 * at.mean + x
    at.total = at.total + at.w.grad.value
    at.w = tape.Variable((at.w - 0.1 * at.w.grad).detach())
    at.key, key = tape.random.split(at.key)
    return loss.detach() + tape.random.uniform(key)


@pytest.mark.parametrize(
    "make", [Slots, SlotsOfFields, lambda: Shared, lambda: Shared.all(), lambda: Descended, lambda: type("Here", (), {})]
)
def test_what_a_step_puts_into_slots_and_classes_is_put_there_at_every_call(make):
    found = []
    for wrap in (lambda step: step, tape.jit):
        at = make()
        at.w, at.mean, at.total, at.key = tape.Variable(2.0), tape.constant(0.0), jnp.zeros(()), jax.random.key(0)
        step = wrap(lambda x, at=at: _read(at, x))
        found.append([])
        for i in range(6):
            if i == 3:
                at.w, at.total, at.key = tape.Variable(1.0), jnp.ones(()), jax.random.key(1)
            result = step(float(i))
            found[-1].append([float(v) for v in (result, at.w, at.mean, at.total)])
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert step.cache_info().traces <= 3, step.explain()


def test_an_array_of_a_class_that_an_object_reads_is_read_anew():
    one = ByObject()
    step = tape.jit(lambda x: x * one.mean)
    for value in (1.0, 2.0, 2.0, 3.0, 4.0):
        ByObject.mean = jnp.full((), value)
        assert float(step(1.0)) == value
    assert step.cache_info().traces == 2


def _put_array(state):
    state.best = state.now


def _put_array_in_a_row(state):
    state.rows[1] = state.rows[0]


def _put_array_in_an_item(state):
    state.table["best"] = state.now


def _swap_arrays(state):
    state.best, state.now = state.now, state.best


def _shift_arrays(state):
    state.rows[1], state.rows[0] = state.rows[0], state.now


def _new_rows(state):
    state.rows = [state.now, state.rows[0]]


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize(
    "put", [_put_array, _put_array_in_a_row, _put_array_in_an_item, _swap_arrays, _shift_arrays, _new_rows, lambda _: None]
)
def test_one_array_in_several_places_is_put_from_each_into_others_at_every_call(put, reads):
    found = []
    for wrap in (lambda step: step, tape.jit):
        zero = jnp.zeros(())
        state = types.SimpleNamespace(best=zero, now=zero, rows=[zero, zero], table={"best": zero}, w=tape.Variable(1.0))

        @wrap
        def step(x, state=state):
            put(state)
            return state.w * x + (state.now if reads else 0)

        found.append([])
        for i in range(8):
            result = step(float(i))
            found[-1].append([float(v) for v in (result, state.best, state.now, *state.rows, state.table["best"])])
            if i != 2:
                state.now = jnp.full((), i + 1.0)
            if i in (3, 5):
                state.rows[0] = jnp.full((), 10.0 * i)
            if i == 6:
                state.best = state.now = state.rows[1] = jnp.full((), 77.0)
    assert found[0] == found[1]
    assert step.cache_info().traces <= 4, step.explain()


def test_a_step_can_look_at_an_array_that_is_in_several_places():
    one = jnp.ones(())
    state = types.SimpleNamespace(best=one, now=one, w=tape.Variable(1.0))
    step = tape.jit(lambda x: state.w * x + float(state.now))
    assert [float(step(x)) for x in (2.0, 3.0)] == [3.0, 4.0]


def _hooked(x, kept):
    y = x * 1.0
    y.register_hook(kept)
    return y


class Kept(tape.Function):
    @staticmethod
    def forward(ctx, x, kept):
        ctx.kept = kept
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        ctx.kept(g)
        return g


@pytest.mark.parametrize("through", [_hooked, Kept.apply])
def test_what_is_stored_while_results_of_a_step_are_swept_is_plain_or_says_that_it_was_traced(through):
    state = types.SimpleNamespace(shapes=[], last=None, gradients=[])

    def kept(g):
        state.shapes.append(g.shape)
        state.last = "swept"
        state.gradients.append(g)

    w = tape.Variable(2.0)
    step = tape.jit(lambda x: through(w * x, kept) ** 2)
    for i in range(3):
        step(tape.constant(1.0 + i)).backward()
        assert (state.shapes, state.last, len(state.gradients)) == ([()], "swept", 1)
        with pytest.raises(tape.errors.LeakedTracerError, match="only inside a JAX transformation"):
            float(state.gradients[0])
    assert float(w.grad) == 2 * 2 * (1 + 4 + 9)


def test_functions_of_other_compilers_may_be_named_in_a_step():
    """Those of Cython have a class with a ``__globals__`` of its own."""
    normal = np.random.RandomState.normal
    step = tape.jit(lambda x: x * isinstance(normal, type(np.random.RandomState.rand)))
    assert float(step(tape.constant(2.0))) == 2.0


@pytest.mark.parametrize("installed", [False, True])
def test_methods_of_packages_are_looked_through_where_no_installer_has_put_them(installed, tmp_path, monkeypatch):
    """Installers leave a note beside each package, also in a folder of the user's choice (``pip install --target``)."""
    name = f"package_{installed}".lower()
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("class Model:\n    def __call__(self, x):\n        return x\n")
    if installed:
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module(name).Model
    assert [found for found, *_ in methods.methods(model)] == ([] if installed else ["__call__"])


def test_a_method_that_a_class_got_since_another_step_met_it_is_looked_through():
    state = types.SimpleNamespace(w=None)

    class Model:
        def loss(self, x):
            return x

    def scaled(_, x):
        return x if state.w is None else x * state.w

    model = Model()
    assert float(tape.jit(lambda x: model.loss(x))(tape.constant(2.0))) == 2.0
    Model.loss = scaled
    step = tape.jit(lambda x: model.loss(x))
    for w in (None, 3.0, 5.0):
        state.w = None if w is None else tape.Variable(w)
        assert float(step(tape.constant(2.0))) == (2.0 if w is None else 2 * w)
