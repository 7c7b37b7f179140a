"""Steps of ``tape.jit`` that ask which Variable an argument is do what they do uncompiled, in every order of calls."""

import operator
import types

import numpy as np
import pytest

import tape


class Optimizer:
    def __init__(self, parameters):
        self.parameters = parameters
        self.state = {p: tape.Variable([float(i), 1.0]) for i, p in enumerate(parameters)}

    def is_last(self, p):
        return p is self.parameters[-1]

    def update(self, p):
        velocity = self.state[p]
        velocity.value = velocity.value * 0.5 + p.value
        p.value = p.value - velocity.value * (2 if self.is_last(p) else 1)

    def scaled(self, p):
        return p * (2 if self.is_last(p) else 1)


def decaying(parameters):
    decay = {parameters[1]: 0.5}
    return lambda p: setattr(p, "value", p.value - decay.get(p, 0.0) * p.value)


def freezing(parameters):
    frozen = {parameters[1]}
    return lambda p: None if p in frozen else setattr(p, "value", p.value - 1)


def freezing_listed(parameters):
    frozen = [parameters[1]]
    return lambda p: None if any(p is q for q in frozen) else setattr(p, "value", p.value - 1)


def by_number(parameters):
    scale = {id(parameters[1]): 0.5}
    return lambda p: p * scale.get(id(p), 1.0)


def by_function(parameters):
    return lambda p: p * 10 if operator.is_(p, parameters[1]) else p * 1


def by_two_numbers(parameters):
    slow, fast = {parameters[0]: 0.5}, {parameters[1]: 2.0}
    return lambda p: p * slow.get(p, 1.0) + fast.get(p, 0.0)


class Chooser:
    def __init__(self, parameters):
        self.parameters = parameters

    @staticmethod
    def same(p, q):
        return p is q

    def factor(self, p):
        return 2 if self.same(p, self.parameters[-1]) else 1


def by_a_method(parameters):
    chooser = Chooser(parameters)
    return lambda p: p * chooser.factor(p)


MADE = {
    "two containers": by_two_numbers,
    "static method": by_a_method,
    "what is assigned": lambda ps: lambda p: setattr(p, "value" if p is ps[1] else "grad", p.value * 2),
    "is": lambda ps: lambda p: p * 10 if p is ps[1] else p * 1,
    "is not": lambda ps: lambda p: (p * p).sum() if p is not ps[1] else (p * p * p).sum(),
    "function": by_function,
    "decay": decaying,
    "set": freezing,
    "list": freezing_listed,
    "number": by_number,
    "optimizer": lambda ps: Optimizer(ps).update,
    "method": lambda ps: Optimizer(ps).scaled,
}


@pytest.mark.parametrize("order", [(0, 2, 1, 2, 1), (0, 1, 2, 0, 1), (1, 0, 2, 1), (2, 3, 1, 0, 3), (3, 1, 3, 2, 0)])
@pytest.mark.parametrize("way", MADE)
def test_a_step_may_ask_which_variable_an_argument_is(way, order):
    def outcome(wrap):
        parameters = [tape.Variable([1.0 + i, 2.0]) for i in range(4)]
        parameters, other = parameters[:3], parameters[3]  # which the step does not reach
        step = wrap(MADE[way](parameters))
        seen = []
        for i in order:
            if i == 3 and way == "optimizer":
                continue
            p = [*parameters, other][i]
            p.grad = None
            y = step(p)
            if y is not None:
                y.sum().backward()
                seen.append((y.tolist(), p.grad.tolist()))
            seen.append([q.tolist() for q in (*parameters, other)])
        return seen

    assert outcome(tape.jit) == outcome(lambda step: step)


def test_constants_and_other_questions_are_not_asked_of_identities():
    model = types.SimpleNamespace(batches=[tape.constant([1.0 * i, 2.0]) for i in range(6)], mode=None)

    @tape.jit
    def step(x):
        flag = x is None or model.mode is not None
        return x * 2 if "mode" in vars(model) and not flag else x

    for x in (*model.batches, tape.constant([7.0, 1.0])):
        np.testing.assert_array_equal(step(x), 2 * x.value)
    assert step.cache_info().traces == 2


def test_programs_of_arguments_in_other_places_are_compiled_once():
    batches = [tape.constant([1.0 * i, 2.0]) for i in range(6)]
    step = tape.jit(lambda x: x * 10 if x is batches[1] else x * 1)
    for _ in range(3):
        for i, x in enumerate(batches):
            assert step(x).tolist() == (x.value * (10 if i == 1 else 1)).tolist()
    assert step.cache_info()[1:] == (6, 2)


@pytest.mark.parametrize("kind", ["set", "frozenset", "dict", "numbers"])
def test_what_captured_variables_are_looked_up_in_may_change_between_calls(kind):
    a, b, c = variables = [tape.Variable(10.0**i) for i in range(3)]
    state = types.SimpleNamespace(frozen=None)

    def changed(frozen):
        if kind == "frozenset":
            state.frozen = frozenset(frozen)
            return
        if state.frozen is None:
            state.frozen = {} if kind == "dict" else set()
        state.frozen.clear()
        state.frozen.update(dict.fromkeys(frozen, 1) if kind == "dict" else map(id, frozen) if kind == "numbers" else frozen)

    def total():
        return sum((v for v in variables if (id(v) if kind == "numbers" else v) not in state.frozen), start=tape.constant(0.0))

    step = tape.jit(total)
    for _ in range(2):
        for frozen in ([a], [a, b], [b], [b], [], [c, a], [a]):
            changed(frozen)
            assert float(step()) == float(total()), frozen
    assert step.cache_info().traces == 5, step.explain()


def by_the_best(state, x):
    return x * 10 if x is state.best else x * 1


def by_table(state, x):
    return x * state.best if x in state.table else x * 1


def by_set(state, x):
    return x * 5 if x in state.chosen else x * state.best


def by_list(state, x):
    return x * (10 if any(x is y for y in state.listed) else 1)


def by_id(state, x):
    return x * (3 if id(x) in state.numbers else 1) + state.best


@pytest.mark.parametrize("ask", [by_the_best, by_table, by_set, by_list, by_id])
def test_what_an_argument_is_compared_with_may_change_between_calls(ask):
    def seen(wrap):
        a, b, c, d = [tape.constant(float(i)) for i in range(1, 5)]
        state = types.SimpleNamespace(best=a, table={d: 1}, chosen={d}, listed=[], numbers={id(a): 1})
        step = wrap(lambda x: ask(state, x))
        yield step(b).tolist()
        for best, chosen, x in (
            (a, [], c),
            (c, [c], b),
            (c, [c], c),
            (c, [b], c),
            (b, [b, a], b),
            (b, [b], c),
            (d, [a], a),
            (d, [], d),
            (a, [b], a),
        ):
            state.best = best
            state.table.clear()
            state.table.update(dict.fromkeys(chosen, 1))
            state.chosen = frozenset(chosen)
            state.listed[:] = chosen
            state.numbers = {id(v): 1 for v in chosen} or state.numbers
            yield step(x).tolist()

    assert list(seen(tape.jit)) == list(seen(lambda step: step))


@pytest.mark.parametrize("first", [True, False])
def test_a_step_may_ask_whether_the_variables_in_two_places_are_one(first):
    best, latest = tape.Variable(1.0), tape.Variable(2.0)
    state = types.SimpleNamespace(p={"w": best if first else latest}, pair=(tape.Variable(3.0), best))
    step = tape.jit(lambda x: 10 * x if state.pair[1] is state.p["w"] else 20 * x)
    x = tape.constant(1.0)
    for one in (first, not first, first, not first):
        state.p["w"] = best if one else latest
        assert step(x).item() == (10.0 if one else 20.0)
        state.p["w"] = best if one else tape.Variable(4.0)
        assert step(x).item() == (10.0 if one else 20.0)
