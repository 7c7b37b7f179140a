"""What a step does to the Python around it, it does at each call as the bare function would: a script runs with both, and tells the same."""

import collections
import contextvars
import copy
import dataclasses
import functools
import heapq
import itertools
import operator
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape


class Model:
    def __init__(self, number):
        self.w, self.number = tape.Variable(float(number)), number


def _told(x):
    """Return what a script tells, without Variables."""
    if isinstance(x, (list, tuple)):
        return [_told(y) for y in x]
    return float(x) if isinstance(x, tape.Variable) else x.number if isinstance(x, Model) else x


def _same_for(script, calls=6, traces=None):
    made = []

    def compiled(fun):
        made.append(tape.jit(fun))
        return made[-1]

    right, found = (_told(script(wrap, calls)) for wrap in (lambda fun: fun, compiled))
    assert found == right
    assert traces is None or made[0].cache_info().traces <= traces


def _with(o, function):
    """Return a script that calls a step on an object, and tells what it returns and what the object holds."""

    def script(wrap, calls):
        held = o()
        step = wrap(lambda x: function(held, x))
        for i in range(calls):
            yield step(tape.constant(i + 1.0)), list(vars(held).values())

    return lambda wrap, calls: list(script(wrap, calls))


def _pair():
    return types.SimpleNamespace(a=Model(1), b=Model(2))


def _swaps(o, x):
    o.a, o.b = o.b, o.a
    return o.a, o.a.w * x


def _returns_in_a_tree(o, x):
    o.a, o.b = o.b, o.a
    return [o.a, (o.b, o.b.w * x)]


def _stores_what_is_elsewhere(o, x):
    o.b = o.a
    return o.b.w * x


def _stores_it_in_a_tuple(o, x):
    o.b = (o.a, o.a.w * x)
    return o.b


def _turns_a_tuple(o, x):
    o.pair = o.pair[::-1]
    return o.pair[0], o.pair[0].w * x


def _alternates(o, x):
    o.current = o.b if o.current is o.a else o.a
    return o.current.w * x


def _goes_on(o, x):
    o.at = o.at.next
    return o.at, o.at.w * x


def _turns_a_list(o, x):
    o.models.append(o.models.pop(0))
    return o.models[0], o.models[0].w * x


def _a_ring():
    o = types.SimpleNamespace(at=Model(1))
    o.at.next = Model(2)
    o.at.next.next = Model(3)
    o.at.next.next.next = o.at
    return o


MOVES = {
    "swaps": (_pair, _swaps),
    "returns in a tree": (_pair, _returns_in_a_tree),
    "stores what is elsewhere": (_pair, _stores_what_is_elsewhere),
    "stores it in a tuple": (_pair, _stores_it_in_a_tuple),
    "turns a tuple": (lambda: types.SimpleNamespace(pair=(Model(1), Model(2))), _turns_a_tuple),
    "alternates": (lambda: types.SimpleNamespace(**vars(o := _pair()), current=o.a), _alternates),
    "goes on": (_a_ring, _goes_on),
    "turns a list": (lambda: types.SimpleNamespace(models=[Model(1), Model(2), Model(3)]), _turns_a_list),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_step_returns_and_stores_the_objects_that_stand_where_it_looks(name):
    _same_for(_with(*MOVES[name]), traces=2)


def test_an_object_that_was_replaced_is_returned():
    def script(wrap, calls):
        o = _pair()
        step = wrap(lambda x: (o.a, o.a.w * x, o.b))
        for i in range(calls):
            yield step(tape.constant(2.0))
            o.a = Model(i)
            o.b = Model(10 * i)

    _same_for(lambda *args: list(script(*args)), traces=1)


def test_containers_of_a_step_stay_the_same_ones():
    def script(wrap, calls):
        o = types.SimpleNamespace(a=[tape.Variable(1.0)], b={"w": tape.Variable(2.0)}, c=None)
        kept = o.a

        def function(x):
            o.a, o.b["w"] = o.a, o.b["w"] * x
            o.c = o.a
            return o.b, o.a[0] * x

        step = wrap(function)
        for i in range(calls):
            b, y = step(tape.constant(2.0))
            yield b is o.b, o.c is kept, y, b["w"]
            kept[0] = tape.Variable(10.0 * i)

    _same_for(lambda *args: list(script(*args)), traces=2)


@dataclasses.dataclass
class Pair:
    first: object
    second: object


def _makes_for_two_places(o, x):
    if o.by_name is None:
        made = {"m": x * o.w}
        o.by_name, o.state = {"w": made}, [made]
    made = o.state[0]
    made["m"] = made["m"] + x
    return o.by_name["w"]["m"] * 1


def _makes_twice_in_one(o, x):
    made = [x * o.w]
    o.state = (made, {"again": made})
    made[0] = made[0] + 1


def _makes_to_store_and_return(o, x):
    o.state = {"m": x * o.w, "in": [x * 2]}
    return o.state, o.state["in"]


def _makes_one_in_another(o, x):
    inner = [x * o.w]
    o.state, o.by_name = {"m": inner, "n": Pair(inner, x)}, inner
    return Pair(o.state, inner)


def _containers(x):
    """Return the containers in something, each as often as it stands there."""
    contents = x.values() if isinstance(x, dict) else vars(x).values() if isinstance(x, Pair) else x if isinstance(x, (list, tuple)) else ()
    here = [] if isinstance(x, tuple) or not contents else [x]
    return [*here, *[c for content in contents for c in _containers(content)]]


@pytest.mark.parametrize("function", [_makes_for_two_places, _makes_twice_in_one, _makes_to_store_and_return, _makes_one_in_another])
def test_a_container_that_a_step_makes_is_one_wherever_it_puts_it(function):
    def script(wrap, calls):
        o = types.SimpleNamespace(w=tape.Variable(3.0), state=None, by_name=None)
        step = wrap(lambda x: function(o, x))
        for i in range(calls):
            found = _containers((step(tape.constant(i + 1.0)), o.state, o.by_name))
            for n, made in enumerate(found):  # who writes to one writes to all that are it
                if isinstance(made, dict) and "m" in made:
                    made["m"] = tape.constant(float(n))
            values = [v for made in found for v in (made.values() if isinstance(made, dict) else made if isinstance(made, list) else ())]
            yield [[a is b for b in found] for a in found], [v for v in values if isinstance(v, tape.Variable)]

    _same_for(lambda *args: list(script(*args)))


def test_what_a_lifted_function_keeps_is_no_part_of_a_step():
    scale = tape.constant([2.0, 3.0]).value
    inner = interop.lift(lambda x: x * scale)
    step = tape.jit(lambda x: inner(x) + 1)
    assert [step(tape.constant([x, x])).value.tolist() for x in (1.0, 2.0, 3.0)] == [[3.0, 4.0], [5.0, 7.0], [7.0, 10.0]]
    assert step.cache_info().traces == 1


def _a_result(v, w, x):
    y = v.grad = w * x
    return y


def _a_result_of_two(v, w, x):
    y = v.grad = w.grad = w * v * x
    return y


def _a_captured_one(v, w, x):
    v.grad = w
    return x * w


def _a_captured_one_that_is_assigned_to(v, w, x):
    v.grad = w
    w.value = w.value + 1
    return x * w


def _an_argument(v, w, x):
    v.grad = x
    return x * w


def _another_gradient(v, w, x):
    (w**3 * x).backward(create_graph=True)
    v.grad = w.grad
    w.grad = None
    return w * x


def _that_of_a_result(v, w, x):
    y, z = w * x, v * x
    y.grad = z
    return y, z


def _a_leaf_made_inside(v, w, x):
    y = v.grad = tape.Variable(3.0)
    return y, w * x


def _a_copy(v, w, x):
    y = w * x
    return y, copy.copy(y)


GRADIENTS = (
    _a_result,
    _a_result_of_two,
    _a_captured_one,
    _a_captured_one_that_is_assigned_to,
    _an_argument,
    _another_gradient,
    _that_of_a_result,
    _a_leaf_made_inside,
    _a_copy,
)


@pytest.mark.parametrize("function", GRADIENTS)
def test_what_a_step_assigns_to_a_gradient_is_where_it_is_in_the_graph(function):
    def script(wrap, calls):
        v, w = tape.Variable(2.0), tape.Variable(5.0)
        step = wrap(lambda x: function(v, w, x))
        for i in range(calls):
            x = tape.Variable(i + 1.0)
            results = step(x)
            y, z = results if isinstance(results, tuple) else (results, None)
            met = [m for m in (y, y.grad, v.grad, w.grad, z) if m is not None]
            yield met
            for root in met[:4]:  # but for what was computed of another result inside: that cannot be seen
                yield tape.gradients(root, [m for m in (*met[:4], v, w, x) if m is not root], unconnected="none", retain_graph=True)
            v.grad = w.grad = None

    _same_for(lambda *args: list(script(*args)))


def test_a_sweep_that_would_go_to_a_leaf_made_inside_says_so():
    w, kept = tape.Variable(2.0), types.SimpleNamespace(leaf=None)

    def function(x):
        if kept.leaf is None:
            kept.leaf = tape.Variable(3.0)
        return w * x * kept.leaf, w * x

    step = tape.jit(function)
    y, z = step(tape.constant(1.0))
    with pytest.raises(tape.errors.LostGradientError, match="leaf that was made in it and outlives it"):
        y.backward()
    z.backward()
    assert w.grad.item() == 1
    y, _ = step(tape.constant(1.0))
    y.backward()
    assert (w.grad.item(), kept.leaf.grad.item()) == (4, 2)


RATES = [1.0, 1.0, 3.0, 2.0, 2.0, 0.0]
LOOKS = {
    "an attribute": (lambda o: float(o.rate), lambda o, x: setattr(o, "rate", x)),
    "a flag": (lambda o: 2.0 if o.rate else 1.0, lambda o, x: setattr(o, "rate", x)),
    "an item": (lambda o: o.list[0].item(), lambda o, x: o.list.__setitem__(0, x)),
    "an item of an inner dict": (lambda o: float(o.dict["inner"]["rate"]), lambda o, x: o.dict["inner"].update(rate=x)),
    "another inner dict": (lambda o: float(o.dict["inner"]["rate"]), lambda o, x: o.dict.update(inner={"rate": x})),
    "another object": (lambda o: float(o.inner.rate), lambda o, x: setattr(o, "inner", types.SimpleNamespace(rate=x))),
    "a tuple": (lambda o: float(o.pair[0]), lambda o, x: setattr(o, "pair", (x, 1))),
    "an index": (lambda o: [5.0, 6.0, 7.0, 8.0][o.index], lambda o, x: setattr(o, "index", x.astype(int))),
    "an array": (lambda o: float(np.asarray(o.array).sum()), lambda o, x: setattr(o, "array", jnp.full(3, x))),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_step_that_looks_at_an_array_is_another_one_where_that_was_replaced(name):
    look, put = LOOKS[name]

    def script(wrap, calls):
        one = jnp.ones(())
        o = types.SimpleNamespace(rate=one, list=[one], dict={"inner": {"rate": one}}, inner=types.SimpleNamespace(rate=one), pair=(one, 1))
        o.index, o.array, o.key, o.mean = jnp.array(1), jnp.ones(3), jax.random.key(0), jnp.zeros(())

        def function(x):
            o.mean = o.mean + x.value
            return x * look(o) + tape.random.uniform(o.key) * 0

        step = wrap(function)
        for rate in RATES[:calls]:
            put(o, jnp.array(rate))
            o.key, _ = jax.random.split(o.key)  # which is no more than an input
            yield step(tape.constant(2.0)), o.mean.item()

    _same_for(lambda *args: list(script(*args)), traces=7)


def test_arrays_that_a_step_does_not_read_may_be_replaced():
    o = types.SimpleNamespace(rate=jnp.ones(()), mask=jnp.ones(3), w=tape.Variable(2.0), pair=(jnp.ones(2), 1))
    step = tape.jit(lambda x: x * o.w * len(o.mask) if o.rate.shape == () and o.pair[1] else x)
    for i in range(6):
        assert step(tape.constant(1.0)).item() == 6
        o.rate, o.mask, o.pair = jnp.array(1.0 * i), jnp.full(3, i), (jnp.full(2, i), 1)
    assert step.cache_info()[1:] == (2, 1)
    o.mask = jnp.ones(5)
    assert step(tape.constant(1.0)).item() == 10


def test_dicts_in_a_tuple_stay_the_same_ones_where_arrays_in_them_are_replaced():
    def script(wrap, calls):
        o = types.SimpleNamespace(pair=({"a": jnp.ones(()), "n": jnp.zeros(())}, jnp.ones(())))

        def function(x):
            o.pair[0]["n"] = o.pair[0]["n"] + o.pair[0]["a"]
            return x * o.pair[0]["a"] * o.pair[1]

        step = wrap(function)
        for i in range(calls):
            yield step(tape.constant(2.0)), o.pair[0]["n"].item()
            o.pair[0]["a"] = jnp.array(1.0 * i)
            if i == 3:
                o.pair = o.pair[0], jnp.array(3.0)

    _same_for(lambda *args: list(script(*args)))


def _numbered(kind):
    return types.SimpleNamespace(all=kind(tape.Variable(float(i)) for i in range(6)), done=[], models=[Model(i) for i in range(6)])


def _pops(o, x):
    return o.all.pop() * x


def _pops_left(o, x):
    return o.all.popleft() * x


def _moves_on(o, x):
    o.done.append(o.models.pop(0))
    return o.done[-1].w * x


def _inserts(o, x):
    if len(o.models) < 8:
        o.models.insert(0, o.models[-1])
    return o.models[0].w * x


def _takes_an_item(o, x):
    return o.inbox.pop("w") * x


def _takes_an_attribute(o, x):
    y = o.inbox["w"] * x
    del o.inbox
    return y


def _pops_an_array(o, x):
    return o.arrays.pop(0) * x


CONTAINERS = {
    "pops": (lambda: _numbered(list), _pops),
    "pops left": (lambda: _numbered(collections.deque), _pops_left),
    "moves on": (lambda: _numbered(list), _moves_on),
    "inserts": (lambda: _numbered(list), _inserts),
    "pops an array": (lambda: types.SimpleNamespace(arrays=[jnp.float32(i) for i in range(6)]), _pops_an_array),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_lists_that_a_step_makes_longer_or_shorter_are_so_at_each_call(name):
    made, function = CONTAINERS[name]

    def script(wrap, calls):
        o = made()
        step = wrap(lambda x: function(o, x))
        for i in range(calls):
            y = step(tape.constant(i + 1.0))
            yield y, [[float(x) if isinstance(x, jax.Array) else x for x in held] for held in vars(o).values()]

    _same_for(lambda *args: list(script(*args)))


@pytest.mark.parametrize("function", [_takes_an_item, _takes_an_attribute])
def test_what_a_step_removes_is_removed_at_each_call(function):
    def script(wrap, calls):
        o = types.SimpleNamespace()
        step = wrap(lambda x: function(o, x))
        for i in range(calls):
            o.inbox = {"w": tape.Variable(i + 1.0)}
            yield step(tape.constant(2.0)), sorted(vars(o)), sorted(getattr(o, "inbox", ()))

    _same_for(lambda *args: list(script(*args)), traces=1)


def test_sets_of_variables_that_a_step_fills_are_filled_at_each_call():
    def script(wrap, calls):
        w, seen, met, xs = tape.Variable(2.0), set(), set(), [tape.Variable(float(i)) for i in range(calls)]

        def function(x):
            met.add(x)
            y = x * w if w in seen else x * w * 10
            seen.add(w)
            return y

        step = wrap(function)
        for i in range(calls):
            yield step(xs[i]), len(seen), len(met)
            if i == 3:
                seen.discard(w)

    _same_for(lambda *args: list(script(*args)))


def _in_an_attribute(o):
    if o.model is None:
        o.model = Model(7)
    return o.model


def _in_a_new_attribute(o):
    if not hasattr(o, "new"):
        o.new = Model(7)
    return o.new


def _in_a_dict(o):
    return o.dict.setdefault("model", Model(7))


def _in_a_defaultdict(o):
    return o.default["model"]


def _in_a_list(o):
    if not o.list:
        o.list.append(Model(7))
    return o.list[0]


def _in_a_cache(o):
    return o.cache()


@pytest.mark.parametrize(
    "model", [_in_an_attribute, _in_a_new_attribute, _in_a_dict, _in_a_defaultdict, _in_a_list, _in_a_cache], ids=lambda f: f.__name__[1:]
)
def test_a_model_that_a_step_makes_where_there_was_none_is_its_state(model):
    def script(wrap, calls):
        o = types.SimpleNamespace(model=None, dict={}, list=[], default=collections.defaultdict(lambda: Model(7)))
        o.cache = functools.lru_cache(lambda: Model(7))

        def function(x, train):
            w = model(o).w
            loss = w * x
            if train:
                loss.backward()
                w.value, w.grad = w.value - 0.5 * w.grad.value, None
            return loss

        train, evaluate = (wrap(functools.partial(function, train=train)) for train in (True, False))
        for i in range(calls):
            yield train(tape.constant(2.0)), evaluate(tape.constant(1.0)), model(o).w.item()
            model(o).w.value = model(o).w.value + i

    _same_for(lambda *args: list(script(*args)), traces=2)


def _averaged(o, x):
    if o.model is None:
        o.model = Model(7)
        o.average = Model(1)
    o.average.w = (0.5 * o.average.w + 0.5 * o.model.w).detach()
    return o.model.w * x + o.average.w


def _scaled_where_there_is_a_scale(o, x):
    if o.model is None:
        o.model = Model(7)
        o.scale = tape.Variable(3.0)
    return o.model.w * x if o.scale is None else o.model.w * x * o.scale


@pytest.mark.parametrize("function", [_averaged, _scaled_where_there_is_a_scale], ids=lambda f: f.__name__[1:])
def test_what_a_step_makes_beside_a_model_that_it_makes_is_there_as_well(function):
    def script(wrap, calls):
        o = types.SimpleNamespace(model=None, scale=None)

        def step(x):
            loss = function(o, x)
            loss.backward()
            o.model.w.value, o.model.w.grad = o.model.w.value - 0.5 * o.model.w.grad.value, None
            return loss

        step = wrap(step)
        for _ in range(calls):
            yield step(tape.constant(2.0)), o.model.w.item()

    _same_for(lambda *args: list(script(*args)))


@pytest.mark.parametrize("key", [lambda p: p, lambda p: (p, "momentum")], ids=["itself", "in a tuple"])
def test_what_is_kept_by_a_variable_that_a_step_makes_is_its_state(key):
    def script(wrap, calls):
        o = types.SimpleNamespace(w=None)
        momentum = {}

        def function(x):
            if o.w is None:
                o.w = tape.Variable(7.0)
            loss = o.w * x
            loss.backward()
            with tape.no_grad():
                m = momentum[key(o.w)] = 0.5 * momentum[key(o.w)] + o.w.grad if key(o.w) in momentum else o.w.grad.detach()
                o.w -= 0.5 * m
            o.w.grad = None
            return loss

        step = wrap(function)
        for i in range(calls):
            yield step(tape.constant(2.0)), o.w.item(), len(momentum), momentum[key(o.w)].item()
            if i == 3:
                o.w = None

    _same_for(lambda *args: list(script(*args)))


def _sorts(o, x):
    o.pairs.sort(key=operator.itemgetter(0))
    return o.pairs[0][1] * x


def _takes_the_least(o, x):
    priority, number, w = heapq.heappop(o.pairs)
    heapq.heappush(o.pairs, (priority + 3, number, w))
    return w * x


@pytest.mark.parametrize("function", [_sorts, _takes_the_least])
def test_numbers_by_which_variables_are_sorted_are_those_that_are_there(function):
    def script(wrap, calls):
        o = types.SimpleNamespace(pairs=[(1, 1, tape.Variable(1.0)), (3, 0, tape.Variable(3.0)), (2, 2, tape.Variable(2.0))])
        heapq.heapify(o.pairs)
        if function is _sorts:
            o.pairs = [(n, w) for n, _, w in o.pairs]
        step = wrap(lambda x: function(o, x))
        for i in range(calls):
            yield step(tape.constant(2.0)), [number for number, *_ in o.pairs]
            if function is _sorts:
                o.pairs.reverse()
                if i == 2:
                    o.pairs[0] = (0, tape.Variable(10.0))

    _same_for(lambda *args: list(script(*args)))


MODULE = types.ModuleType("weights_of_a_module")
CONTEXT = contextvars.ContextVar("weight")


def _of_a_module(o):
    import weights_of_a_module

    return weights_of_a_module.weight


WAYS = {
    "module": (_of_a_module, lambda o, v: setattr(MODULE, "weight", v)),
    "name of globals": (lambda o: globals()["_WEIGHT"], lambda o, v: globals().update(_WEIGHT=v)),
    "context variable": (lambda o: CONTEXT.get(), lambda o, v: CONTEXT.set(v)),
    "computed name": (lambda o: getattr(o, f"{o.which}_weight"), lambda o, v: setattr(o, "first_weight", v)),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_variable_is_seen_where_none_stood(name, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULE.__name__, MODULE)
    get, put = WAYS[name]

    def script(wrap, calls):
        o = types.SimpleNamespace(which="first")
        put(o, None)
        step = wrap(lambda x: x if (w := get(o)) is None else w * x)
        for i in range(calls):
            yield step(tape.constant(2.0))
            put(o, tape.Variable(i + 1.0) if i < 3 else None)

    _same_for(lambda *args: list(script(*args)), traces=2)


class HandMadeAdam:
    def __init__(self, w):
        self.w, self.m, self.t = w, tape.constant(jnp.zeros(())), 0

    def step(self, g):
        self.t += 1
        self.m.value = 0.9 * self.m + 0.1 * g
        self.w.value = self.w - 0.1 * self.m / (1 - 0.9**self.t)


def test_a_number_of_python_that_a_step_counts_on_is_warned_of():
    """It would go on with the bias correction of its first call."""
    optimizer, calls = HandMadeAdam(tape.Variable(jnp.ones(()))), types.SimpleNamespace(count=0)

    @tape.jit
    def step(x):
        calls.count += 1  # by itself, to see how often it is traced
        loss = (optimizer.w * x) ** 2
        with tape.no_grad():
            optimizer.step(tape.gradients(loss, optimizer.w))
        return loss

    with pytest.warns(tape.errors.TapeWarning, match=r"step changes optimizer\.t from 0 to 1, a number of Python") as caught:
        losses = [step(tape.constant(jnp.ones(()))) for _ in range(3)]
    assert (len(caught), calls.count, optimizer.t, len(losses)) == (1, 1, 1, 3)


class AdamThatCounts(HandMadeAdam):
    def step(self, g):
        self.t.value = self.t + 1
        self.m.value = 0.9 * self.m + 0.1 * g
        self.w.value = self.w - 0.1 * self.m / (1 - 0.9**self.t)


def test_a_constant_counts_at_each_call():
    def outcomes(wrap):
        optimizer = AdamThatCounts(tape.Variable(jnp.ones(())))
        optimizer.t = tape.constant(0)

        def step(x):
            with tape.no_grad():
                optimizer.step(2 * optimizer.w * x)

        step = wrap(step)
        for _ in range(4):
            step(tape.constant(jnp.ones(())))
            yield optimizer.t.item(), round(optimizer.w.item(), 5)

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


def test_a_step_that_is_traced_again_for_what_it_made_counts_once():
    made = types.SimpleNamespace(model=None, count=0)

    @tape.jit
    def step(x):
        made.count += 1
        if made.model is None:
            made.model = types.SimpleNamespace(w=tape.Variable(2.0))
        return made.model.w * x

    for _ in range(2):
        assert step(tape.constant(3.0)).item() == 6.0
    assert made.count == 1


def test_what_a_step_raises_that_makes_something_each_time_it_is_traced_is_raised():
    state, number = types.SimpleNamespace(), itertools.count()

    class Net:
        def __init__(self):
            self.w = tape.Variable(2.0)

    def step(x):
        n = next(number)
        if n == 3:
            msg = "a user's"
            raise ValueError(msg)
        setattr(state, f"net{n}", Net())
        for i in range(n + 1):
            setattr(state, f"average{i}", tape.constant(getattr(state, f"net{i}").w.value * 1))
        return sum(getattr(state, f"net{i}").w * x for i in range(n + 1))

    with pytest.raises(ValueError, match="a user's"):
        tape.jit(step)(1.0)
