"""Structures that were not met, plans and sweeps that are new: the recorder in C makes of them what Python does."""

import gc
import random
import sys
import types

import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape import jaxapi, layout
from tape.configuration import configuration
from tape.graph import lines, trie, wengert, writing
from tape.graph.scope import LOCAL, close
from tape.graph.trie import State
from tape.graph.wengert import sweep
from tape.ops.kernel import Op
from tape.programs import interpretation, retention
from tape.recording import plain, record
from tape.recording.entering import following
from tape.sweeps import plan
from tape.sweeps.plan import ADD, _Planner, active_slots

pytestmark = pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")

A = np.arange(1.0, 5.0, dtype=np.float32).reshape(2, 2) / 7
SEEDS = range(12)


def recorded(seed, leaves):
    """A program of some entries: values used several times, results of several, integers, constants, what has no derivative."""
    draw = random.Random(seed)  # noqa: S311
    values = list(leaves)
    for _ in range(draw.randrange(3, 25)):
        a, b = draw.choice(values), draw.choice(values)
        kind = draw.randrange(9)
        if kind == 0:
            values += tnp.split(a, 2)
            values = [v if v.shape == (2, 2) else tnp.concatenate([v, v]) for v in values]
        elif kind == 1:
            values.append(a @ b)
        elif kind == 2:
            values.append(a * a)
        elif kind == 3:
            values.append(tape.stop_gradient(a) * b)
        elif kind == 4:
            values.append(tnp.where(a > b, a, b))
        elif kind == 5:
            values.append(a[tnp.argmax(b, axis=0)])
        elif kind == 6:
            values.append(tnp.concatenate([a, b, a])[:2])
        else:
            values.append(draw.choice((tnp.sin, tnp.tanh, tnp.exp))(a) + b)
    return values[-1].sum() + values[-2].sum()


def leaves_of():
    return tape.Variable(A), tape.Variable(A + 1), tape.constant(A)


def told(state):
    """What a state says, but for what it leads to."""
    place = [(p.slot, p.kind, type(p), p.made) for p in state.places]
    several = None if state.several is None else (state.several[0], [p.slot for p in state.several[1]])
    names = "kernel op inputs slots depth n_slots mode ends full hash hazard cut lines quick"
    return place, several, None if state.place is None else state.place.slot, {name: getattr(state, name) for name in names.split()}


def states(seed):
    """The states of a program, from one that nobody has met."""
    close(LOCAL.segment()) if LOCAL.segment() is not None else None
    trie._SEEN.clear()
    root = recorded(seed, leaves_of())
    state, found = root._segment.state, []
    assert [p.slot for p in state.table[: state.n_slots]] == list(range(state.n_slots))
    while state.parent is not None:
        found.append((told(state), state.where is not None and state.where[0] == __file__, state.known))
        state = state.parent
    close(root._segment)
    return found


def parted(seed):
    """:func:`states`, each of which Python asks for."""
    about = {**trie.making(), "op": Op, "axes_are_named": jaxapi.axes_are_named, "named_axes": jaxapi.named_axes}
    layout.NATIVE.continues(**{**about, "room": 0})
    try:
        return states(seed)
    finally:
        layout.NATIVE.continues(**about)


@pytest.mark.parametrize("seed", SEEDS)
def test_states_are_those_of_python(seed, monkeypatch):
    states(seed)  # of each op, what it comes to is known from now on
    trie._ROOTS.clear()
    followed = []
    with monkeypatch.context() as patch:
        patch.setattr(plain, "following", lambda *args: followed.append(following(*args)) or followed[-1])
        whole = states(seed)
    counted = []
    made = trie._formed
    with monkeypatch.context() as patch:
        patch.setattr(trie, "_formed", lambda *args: counted.append(made(*args)) or counted[-1])
        in_c = parted(seed)
    roots = dict(trie._ROOTS)
    monkeypatch.setattr(trie, "_formed", None)
    monkeypatch.setattr(trie, "_extended", None)
    in_python = parted(seed)
    assert roots == trie._ROOTS
    assert whole == in_c == in_python
    assert 0 < len(counted) <= len(whole)
    assert len(followed) < len(counted) / 2  # by Python: what has no form


def test_leaves_made_for_what_python_does_count_as_never_met():
    x = tape.Variable(A)
    close(LOCAL.segment()) if LOCAL.segment() is not None else None
    trie._SEEN.clear()
    trie._ROOTS.clear()
    y = tnp.arctan2(x, tape.constant(A)) * 2  # of which nothing was known
    assert not any(state.known for state in y._segment.state.path())
    assert len(trie._SEEN) == len(y._segment.state.path())


def test_arrays_that_numpy_refuses_are_run_again_in_python():
    def run(entries):
        values = {0: A, 1: np.ones(3, np.float32)}
        return layout.NATIVE.ran(entries, 0, values), interpretation._ran(entries, 0, dict(values)), values

    def step(host, inputs, slots, light=True):
        return trie.Step(types.SimpleNamespace(light=light, _host=host), inputs, slots, None, 1)

    doubled, parted = step(lambda a: a * 2, (0,), (2,)), step(lambda a: (a, -a), (2,), (3, 4))
    refused = step(lambda a, b: a @ b, (0, 1), (5,))
    native, python, values = run([doubled, parted, refused])
    assert native == python == 2
    np.testing.assert_array_equal(values[4], -2 * A)
    assert run([doubled, step(lambda a: a, (7,), (8,))])[:2] == (1, 1)
    assert run([step(None, (0,), (2,), light=False)])[:2] == (0, 0)
    assert run([doubled, step(lambda a: (a,), (2,), (3, 4))])[:2] == (1, 1)
    with pytest.raises(KeyboardInterrupt):
        run([step(lambda a: (_ for _ in ()).throw(KeyboardInterrupt), (0,), (3, 4))])
    with pytest.raises(TypeError, match="entries are in a list"):
        layout.NATIVE.ran((), 0, {})


@pytest.mark.parametrize("seed", SEEDS)
def test_lengths_are_those_of_each_entry(seed):
    root = recorded(seed, leaves_of())
    state = root._segment.state
    last = state.length
    for _ in range(5):
        state = state.parent
    assert state.length.size <= last.size
    assert last.size == sum(step.kernel is not None for step in root._segment.state.path())
    assert last.bytes >= state.length.bytes > 0


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_plans_are_those_of_python(seed, observed):
    root = recorded(seed, leaves_of())
    segment = root._segment
    state, slot = segment.state, root._place.slot
    watched = frozenset([p.slot for p in state.table[: state.n_slots] if p.kind.requires_grad and p.slot % 5 == 0])
    for shown, hooked in ((frozenset(), frozenset()), (watched, frozenset()), (frozenset(), watched)):
        active = active_slots(state, None, frozenset())
        planners = [_Planner(state, (slot,), shown, hooked, observed) for _ in range(2)]
        ends = [{slot: state.n_slots} for _ in planners]
        planners[0].sweep(ends[0], active)
        sweep(planners[1].path, ends[1], active, planners[1])
        assert ends[0] == ends[1]
        in_c, in_python = (
            (p._steps, p._outputs, p._entries, p._count, p._straight, p._hazard, [type(s) for s in p._steps]) for p in planners
        )
        assert in_c == in_python
    table = state.table[: state.n_slots]
    steps = [step for step in planners[0]._steps if step.calls is None]
    if not hooked and not observed:
        results = [writing_of(written, steps, list(table)) for written in (layout.NATIVE.written_lines, writing._written_lines)]
        assert results[0] == results[1]


def writing_of(written, steps, table):
    numbers = {}
    made = written(steps, numbers, table, 7, ("file", 3), trie.PLAIN, trie.UNRECORDED)
    return (
        [(type(s), s.kernel, s.inputs, s.slots, s.where, s.depth) for s in made],
        numbers,
        [(p.slot, p.kind, type(p), p.made) for p in table],
    )


def test_lines_that_a_sweep_writes_are_those_of_python():
    x, y = tape.Variable(A), tape.Variable(A + 1)
    root = (tnp.sin(x) * y + x * x).sum()
    state = root._segment.state
    made = plan.plan_sweep(state, (root._place.slot,), None, frozenset(), frozenset(), frozenset(), None)
    table = [*state.table[: state.n_slots], state.table[root._place.slot]]  # and the seed
    found = [writing_of(written, made.instructions, list(table)) for written in (layout.NATIVE.written_lines, writing._written_lines)]
    assert found[0] == found[1]
    assert len(found[0][0]) == len(made.instructions) > 2
    with pytest.raises(IndexError, match="no value of the tape"):
        writing_of(layout.NATIVE.written_lines, made.instructions, [])


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_needed_is_what_python_finds(seed, monkeypatch):
    root = recorded(seed, leaves_of())
    path, slot = root._segment.state.path(), root._place.slot
    reached, also = {slot}, {slot}
    found = wengert.needed(path, reached)
    monkeypatch.setattr(wengert, "layout", types.SimpleNamespace(NATIVE=None))
    assert found == wengert.needed(path, also)
    assert reached == also
    assert layout.NATIVE.needed([1, 2], {0}) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_what_sweeps_go_through_is_what_python_finds(seed):
    a, b, c = leaves_of()
    root = recorded(seed, (a, b.detach(), b * 2, c))
    state = root._segment.state.severed(frozenset((b * 3)._place.slot for _ in range(seed % 2)))
    path, released = state.path(), frozenset([state.depth - 3] * (seed % 3))
    reached, also = {root._place.slot}, {root._place.slot}
    found = layout.NATIVE.through(path, reached, state.table, state.cut, released)
    assert found == retention._through(path, also, state.table, state.cut, released)
    assert reached == also
    assert found
    for wrong in ([1], state.table, frozenset()), (path, [], frozenset()), (path, state.table, set()):
        with pytest.raises((TypeError, IndexError)):
            layout.NATIVE.through(wrong[0], {root._place.slot}, wrong[1], frozenset(), wrong[2])


def test_a_long_structure_is_made_in_c_until_it_may_be_too_long(monkeypatch):
    x = tape.Variable(A)
    made = []
    known = State.formed
    monkeypatch.setattr(State, "formed", lambda *args: made.append(args) or known(*args))
    monkeypatch.setattr(State, "length", property(lambda _: pytest.fail("nothing so short needs to be looked through")))
    for times in (1, 90):  # the second one is longer than all that was met
        y = x
        for _ in range(times):
            y = tnp.sin(y) + tape.constant(A) * y
    assert y._segment.state.n_slots > 350
    assert len(made) < 5


@pytest.mark.parametrize("turn", [1, 2, 700], ids=["a loop", "a loop of two", "none"])
def test_states_of_a_tape_that_may_be_too_long_are_those_of_python(turn, monkeypatch):
    draw = random.Random(turn)  # noqa: S311
    bodies = [[draw.choice((tnp.sin, tnp.tanh, tnp.exp)) for _ in range(4)] for _ in range(turn)]

    def turns(_, leaves):
        x = leaves[0]
        for k in range(220):
            for fun in bodies[k % turn]:
                x = fun(x) * 0.5
            x = tnp.concatenate(tnp.split(x, 2)) + leaves[1]
        return x.sum()

    monkeypatch.setitem(globals(), "recorded", turns)
    by_python, ran, known, run = [], [], State.formed, plain.run_if_long
    monkeypatch.setattr(State, "formed", lambda *args: by_python.append(args) or known(*args))
    monkeypatch.setattr(plain, "run_if_long", lambda segment: ran.append(told(segment.state)) or run(segment))
    states(0)
    by_python.clear()
    ran.clear()
    trie._ROOTS.clear()
    in_c, full, calls = states(0), ran.copy(), len(by_python)
    ran.clear()
    monkeypatch.setattr(trie, "_formed", None)
    monkeypatch.setattr(trie, "_extended", None)
    assert (in_c, full) == (parted(0), ran)
    assert bool(full) == (turn == 700)
    assert calls < 20  # where it is full, and at what the others have not recorded


def test_a_long_tape_has_one_table_of_places():
    x = tape.constant(A)
    for _ in range(trie.SEGMENT_LIMIT):
        x = tnp.sin(x) * 0.5  # a number enters with each: beyond the limit, Python says how long it is
    state, tables = LOCAL.segment().state, []
    assert state.depth > trie.SEGMENT_LIMIT
    while state.parent is not None:
        tables.append(state.table)
        state = state.parent
    assert len({id(table) for table in tables}) < 4  # where ops are met for the first time
    assert all(place.slot == n for table in tables for n, place in enumerate(table))
    close(LOCAL.segment())


def test_the_line_outside_is_that_of_python(monkeypatch):
    def both():
        return tnp.sin(x)._segment.state.where, x

    x = tape.Variable(A)
    trie._ROOTS.clear()
    first = both()[0]
    monkeypatch.setattr(lines, "layout", types.SimpleNamespace(NATIVE=None))
    trie._SEEN.clear()
    trie._ROOTS.clear()
    close(x._segment) if x._segment is not None else None
    close(LOCAL.segment())
    assert first == both()[0]
    assert first[0] == __file__


def test_the_line_outside_is_found_in_c_for_what_python_records(monkeypatch):
    lines.FOREIGN.clear()
    for known in (False, True):
        if known:
            monkeypatch.setattr(lines, "is_foreign", None)
        op = Op("new", lambda x: x + 1)  # what it comes to is not known, so that State.entry asks
        assert record.record(op, (tape.Variable(A),))._segment.state.where[0] == __file__


def test_a_vjp_that_cannot_be_traced_says_so():
    kernel = types.SimpleNamespace(_cache={}, vjp=lambda *_: None)
    step = trie.Step(kernel, (0,), (1,), None, 1)
    given = plan.Instruction, ADD, plan.FunctionOp, 0, id(configuration())
    with pytest.raises(TypeError, match="a VJP is"):
        layout.NATIVE.planned([step], 0, {1: 2}, frozenset({0}), frozenset(), *given, [], set(), True, 3)
    with pytest.raises(TypeError, match="an entry is a step"):
        layout.NATIVE.planned([None], 0, {1: 2}, frozenset({0}), frozenset(), *given, [], set(), True, 3)


def test_a_shape_that_does_not_fit_is_said_where_it_was():
    x = tape.Variable(A)
    for _ in range(3):
        with pytest.raises(TypeError, match=r"dot_general|matmul"):
            tnp.sin(x) @ tape.constant(np.ones(3, np.float32))


def test_structures_keep_no_reference():
    leaves = leaves_of()

    def counted():
        for seed in SEEDS:
            (recorded(seed, leaves) + leaves[0].sum()).backward()
            leaves[0].grad = leaves[1].grad = None
        trie._ROOTS.clear()
        trie._SEEN.clear()
        gc.collect()
        return [sys.getrefcount(o) for o in leaves], sum(isinstance(o, trie.Step) for o in gc.get_objects())

    for _ in range(3):
        before = counted()
    for _ in range(3):
        after = counted()
    assert after[1] <= before[1]
    assert max(b - a for a, b in zip(before[0][:3], after[0][:3], strict=True)) <= 0
