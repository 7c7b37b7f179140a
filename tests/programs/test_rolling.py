"""Rolled programs give what their entries give one by one, and do not grow with the turns of their loops."""

import random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tape.graph.repeats import Repeat, repeats
from tape.graph.trie import Step
from tape.ops.kernel import Op
from tape.programs import costs, rolling, turns
from tape.programs.interpretation import evaluate
from tape.programs.loops import Flow, find

INNER = [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ([1] * 100, [Repeat(0, 1, 100)]),
        ([9, 8, *[1, 2, 3, 4, 5, 6, 7] * 10, 8, 9], [Repeat(2, 7, 10)]),
        (([0, *INNER * 10, 11, 12, 13]) * 20, [Repeat(0, 84, 20)]),
        ([0, *INNER * 10, 11, *range(20, 60), *INNER[::-1] * 5], [Repeat(1, 8, 10), Repeat(122, 8, 5)]),
        ([1, 2] * 5, []),
        (list(range(100)), []),
        (INNER * 2, []),
        ([], []),
    ],
)
def test_repeats(line, expected):
    assert repeats(line) == expected


def test_repeats_are_what_they_say():
    rng = random.Random(0)  # noqa: S311
    for _ in range(300):
        line = []
        while len(line) < 200:
            line += [rng.randrange(4) for _ in range(rng.randrange(1, 12))] * rng.choice([1, 1, 2, 3, 5, 12])
        end = 0
        for found in repeats(line):
            assert found.start >= end
            end = found.end
            turn = line[found.start : found.start + found.period]
            assert line[found.start : end] == turn * found.turns


A = jax.ShapeDtypeStruct((3,), np.float32)
OPS = {
    "sin": Op("sin", jnp.sin),
    "mix": Op("mix", lambda x, y: 0.7 * x + 0.3 * y),
    "mul": Op("mul", lambda x, y: jnp.tanh(x * y)),
    "two": Op("two", lambda x, y: (jnp.cos(x), x - 0.5 * y)),
    "scaled": Op("scaled", lambda x, h: x + 0.1 * h),
    "ones": Op("ones", lambda: jnp.ones(3, jnp.float32)),
}


class Written(NamedTuple):
    entries: list
    slots: list
    leaves: list
    keep: list


class Writer:
    """Writes entries, as recording does."""

    def __init__(self, seed):
        self.rng = random.Random(seed)  # noqa: S311
        self.entries, self.slots, self.leaves, self.n = [], [], [], 0
        self.avals = {}

    def leaf(self, value):
        self.slots.append(self.n)
        self.leaves.append(value)
        self.avals[self.n] = jax.typeof(value)
        self.n += 1
        return self.n - 1

    def array(self):
        return self.leaf(jnp.asarray([self.rng.uniform(-1, 1) for _ in range(3)], jnp.float32))

    def entry(self, name, *inputs, op=None):
        kernel = (op or OPS[name]).kernel(tuple(self.avals[s] for s in inputs))
        slots = tuple(range(self.n, self.n + len(kernel.out_avals)))
        self.avals.update(zip(slots, kernel.out_avals, strict=True))
        self.n += len(slots)
        self.entries.append(Step(kernel, inputs, slots, None, len(self.entries) + 1))
        return slots

    def written(self, keep):
        return Written(self.entries, self.slots, self.leaves, list(keep))


def plain(w):
    return evaluate(w.entries, dict(zip(w.slots, w.leaves, strict=True)), w.keep, lambda e: e.kernel.inline)


def rolled(w, monkeypatch):
    monkeypatch.setattr(rolling, "MANY", 0)
    monkeypatch.setattr(rolling, "FEW", 0)
    monkeypatch.setattr(rolling, "UNROLLED", 0)
    found = rolling.rolled(w.entries, w.slots, w.keep, w.leaves)
    return found, None if found is None else found(*w.leaves)


def agree(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(jax.random.key_data(a), jax.random.key_data(b))
        else:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def random_source(rng, j, period, known, rows):
    """What one input of the entry number ``j`` of a turn reads."""
    kinds = ["back", "back", "outside", "leaf", "first", *(["same", "same"] if j else []), *(["row"] if rows else [])]
    kind = rng.choice(kinds)
    if kind == "same":
        return kind, rng.randrange(j)
    if kind == "back":
        return kind, rng.randrange(period), rng.choice([1, 1, 1, 2, 3]), rng.choices(known, k=3)
    if kind == "outside":
        return kind, rng.choice(known)
    if kind == "row":
        return kind, rng.choice(rows), rng.choice([-1, 1]), rng.randrange(3)
    return (kind, rng.randrange(period), rng.choice(known)) if kind == "first" else (kind,)


def random_entry(rng, j, period, known, rows):
    name = rng.choice(["sin", "mix", "mul", "two", "scaled", "mix"] + (["ones"] if j else []))
    count = {"sin": 1, "ones": 0, "scaled": 1}.get(name, 2)
    return name, [random_source(rng, j, period, known, rows) for _ in range(count)]


def random_program(seed):
    """Some loops behind each other, the later ones reading the earlier ones' rows in any order, with odd entries in between."""
    w = Writer(seed)
    rng = w.rng
    known = [w.array() for _ in range(3)]
    rows = []  # of each result of a turn, by turn
    for _ in range(rng.randrange(1, 4)):
        for _ in range(rng.randrange(4)):
            known += w.entry("mix", *rng.choices(known, k=2))
        turns, period = rng.randrange(5, 12), rng.randrange(7, 12)
        body = [random_entry(rng, j, period, known, rows) for j in range(period)]
        made = []
        odd = rng.choice([None, None, rng.randrange(turns)])  # one turn reads something else
        for t in range(turns):
            made.append([])
            for name, sources in body:
                inputs = []
                for kind, *about in sources:
                    if kind == "same":
                        inputs.append(made[t][about[0]])
                    elif kind == "back":
                        i, k, initial = about
                        inputs.append(made[t - k][i] if t >= k else initial[t])
                    elif kind == "outside":
                        inputs.append(about[0] if odd != t else known[0])
                    elif kind == "leaf":
                        inputs.append(w.array())
                    elif kind == "row":
                        column, step, first = about
                        inputs.append(column[(first + step * t) % len(column)])
                    else:
                        inputs.append(made[0][about[0]] if t else about[1])
                if name == "scaled":
                    inputs.append(w.leaf(rng.uniform(0, 1)))
                made[t].append(rng.choice(w.entry(name, *inputs)) if name != "two" else w.entry(name, *inputs)[1])
        rows += [[turn[j] for turn in made] for j in range(period)]
        known += [made[-1][-1], made[rng.randrange(turns)][rng.randrange(period)]]
    keep = rng.sample([s for column in rows for s in column], 3)
    if rng.random() < 0.3:
        keep += [s for s in rows[0] if s not in keep]
    return w.written([*keep, *[s for s in known[-1:] if s not in keep]])


@pytest.mark.parametrize("seed", range(16))
def test_random_loops(seed, monkeypatch):
    w = random_program(seed)
    with jax.disable_jit():  # a scan is a Python loop then
        found, values = rolled(w, monkeypatch)
    if found is not None:  # no turns of a program may read alike
        agree(values, plain(w))


def test_random_loops_are_loops_mostly():
    loops = [find(Flow(w.entries, w.keep)) for w in map(random_program, range(16))]
    assert sum(map(bool, loops)) > 12


def chain(w, body, turns, carried):
    """Write ``turns`` of a body that returns the slots that the next one carries; return all of these."""
    made = [carried]
    for _ in range(turns):
        made.append(body(*made[-1]))
    return made


PADDED = 7  # entries that make a turn long enough to be seen


def padded(w, slot):
    for _ in range(PADDED):
        (slot,) = w.entry("sin", slot)
    return slot


def weak_time(w):
    add = Op("add", lambda t, h: t + h)

    def body(x, t):
        (t,) = w.entry("later", t, w.leaf(0.25), op=add)
        return padded(w, w.entry("scaled", x, t)[0]), t

    return chain(w, body, 8, (w.array(), w.leaf(0.0)))[-1]


def keys(w):
    split = Op("split", lambda k: tuple(jax.random.split(k)))
    noise = Op("noise", lambda k: jax.random.normal(k, (3,)))

    def body(key, x):
        key, used = w.entry("split", key, op=split)
        (e,) = w.entry("noise", used, op=noise)
        return key, padded(w, w.entry("mix", x, e)[0])

    made = chain(w, body, 6, (w.leaf(jax.random.key(3)), w.array()))
    return *made[-1], made[2][0]


def nothing(w):
    join = Op("join", lambda x, y: x + 2 * y)
    empty = w.leaf(jnp.zeros((0, 4)))

    def body(x):
        (x,) = w.entry("join", x, empty, op=join)
        for _ in range(PADDED):
            (x,) = w.entry("join", x, x, op=join)
        return (x,)

    return [made[0] for made in chain(w, body, 5, (empty,))[1:]]


def every_number(w):
    divided = Op("divided", lambda a, b: a + 1 / b)
    scaled = Op("by", lambda x, *ys: x + sum(jnp.real(y) * 0.125 for y in ys))

    def body(x):
        numbers = [w.leaf(v) for v in (True, 3, 0.1, -0.0, 1e30, 2 - 1j, np.float16(0.3), np.int8(-4), np.float32(1e-3))]
        (y,) = w.entry("by", padded(w, x), *numbers[:4], *numbers[5:], op=scaled)
        (z,) = w.entry("divided", y, numbers[4], op=divided)
        return (z,)

    last = chain(w, body, 6, (w.array(),))[-1]
    w.leaf(1e300)  # nobody reads it, nor does its dtype hold it
    return last


def several_inside(w):
    """Loops in a loop."""

    def body(x):
        for _ in range(5):
            x = w.entry("mix", padded(w, x), other)[0]
        return (w.entry("sin", w.entry("mul", x, other)[0])[0],)

    other = w.array()
    return [made[0] for made in chain(w, body, 4, (w.array(),))[2:]]


def from_the_first(w):
    """All turns read what the first one made."""
    x = w.array()
    first = None
    for _ in range(8):
        (y,) = w.entry("mul", x, x if first is None else first)
        first = y if first is None else first
        x = padded(w, y)
    return (x,)


STACK = Op("stack", lambda *rows: jnp.stack(rows))
ACROSS = Op("across", lambda *rows: jnp.stack(rows, 1))
ROWS = Op("rows", lambda array: tuple([array[i] for i in range(array.shape[0])]))
PARTS = Op("parts", lambda array: tuple(jnp.split(array, array.shape[0] // 3)))
JOINED = Op("joined", lambda *rows: jnp.concatenate(rows))
OTHER_ROWS = Op("rows", lambda array: tuple([array[i - 1] for i in range(array.shape[0])]))


def put_together(w):
    """What a loop gives is put together, in several orders, and taken apart again for another loop."""
    rows = [made[0] for made in chain(w, lambda x: (padded(w, x),), 8, (w.array(),))]
    orders = (rows, rows[::-1], rows[::2], [rows[-1], *rows[:3], w.array()], [rows[2]] * 4)
    arrays = [w.entry("stack", *order, op=STACK)[0] for order in orders]
    (across,) = w.entry("across", *rows, op=ACROSS)
    results = []
    for array, op in ((arrays[0], ROWS), (arrays[1], ROWS), (arrays[0], OTHER_ROWS), (w.entry("sin", arrays[0])[0], ROWS)):
        apart = w.entry("rows", array, op=op)
        x = w.array()
        for row in apart:
            (x,) = w.entry("mix", padded(w, x), row)
        results += [x, apart[2]]
    (joined,) = w.entry("joined", *rows, op=JOINED)
    x = w.array()
    for part in w.entry("parts", joined, op=PARTS):
        (x,) = w.entry("mix", padded(w, x), part)
    return *arrays, across, joined, *results, x


def keys_put_together(w):
    follow = Op("follow", lambda k: jax.random.fold_in(k, 3))
    noise = Op("noise", lambda x, k: x + jax.random.normal(k, (3,)))
    twice = chain(w, lambda k: w.entry("follow", *w.entry("follow", k, op=follow), op=follow), 24, (w.leaf(jax.random.key(3)),))
    rows = [made[0] for made in twice]
    apart = [w.entry("rows", *w.entry("stack", *order, op=STACK), op=ROWS) for order in (rows, rows[::-1])]
    results = []
    for read in (*apart, rows[::-1]):
        x = w.array()
        for key in read:
            (x,) = w.entry("noise", padded(w, x), key, op=noise)
        results.append(x)
    return results


WRITTEN = [weak_time, keys, nothing, every_number, several_inside, from_the_first, put_together, keys_put_together]


@pytest.mark.parametrize("write", WRITTEN, ids=lambda f: f.__name__)
@pytest.mark.parametrize("compiles", [False, True])
def test_loops_of(write, compiles, monkeypatch):
    w = Writer(1)
    w = w.written(write(w))
    monkeypatch.setattr(rolling, "MANY", 0)
    monkeypatch.setattr(rolling, "FEW", 0)
    monkeypatch.setattr(rolling, "UNROLLED", 0)
    found = rolling.rolled(w.entries, w.slots, w.keep, w.leaves)
    assert found is not None
    if compiles:
        values = found(*w.leaves)
    else:
        with jax.disable_jit():
            values = found(*w.leaves)
    agree(values, plain(w))


def jaxpr_size(found, leaves):
    ((function, arguments),) = found.compiling(leaves)
    return len(str(function.trace(*arguments).jaxpr).splitlines())


def test_a_program_does_not_grow_with_turns(monkeypatch):
    monkeypatch.setattr(rolling, "MANY", 0)
    monkeypatch.setattr(rolling, "FEW", 0)
    monkeypatch.setattr(rolling, "UNROLLED", 0)
    sizes = []
    for length in (20, 200):
        w = Writer(0)
        x, other = w.array(), w.array()
        steps = []
        for _ in range(length):
            (x,) = w.entry("scaled", padded(w, w.entry("mix", x, other)[0]), w.leaf(0.5))
            steps.append(x)
        y = x
        for step in reversed(steps):  # as a sweep does
            (y,) = w.entry("mul", padded(w, y), step)
        w = w.written([y])
        found = rolling.rolled(w.entries, w.slots, w.keep, w.leaves)
        sizes.append(jaxpr_size(found, w.leaves))
        agree(found(*w.leaves), plain(w))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("together", [STACK, JOINED])
@pytest.mark.parametrize("backwards", [False, True])
def test_rows_are_put_together_and_taken_apart_at_once(together, backwards, monkeypatch):
    monkeypatch.setattr(rolling, "MANY", 0)
    monkeypatch.setattr(rolling, "FEW", 0)
    monkeypatch.setattr(rolling, "UNROLLED", 0)
    sizes = []
    for length in (20, 60):
        w = Writer(0)
        rows = [made[0] for made in chain(w, lambda x: (padded(w, x),), length, (w.array(),))[1:]]  # noqa: B023
        (array,) = w.entry("together", *rows[:: -1 if backwards else 1], op=together)
        x = w.array()
        for row in w.entry("apart", *w.entry("sin", array), op=ROWS if together is STACK else PARTS)[::-1]:
            (x,) = w.entry("mix", padded(w, x), row)
        w = w.written([array, x])
        found = rolling.rolled(w.entries, w.slots, w.keep, w.leaves)
        sizes.append(jaxpr_size(found, w.leaves))
        agree(found(*w.leaves), plain(w))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(("most", "counts"), [(1 << 24, [40, 41]), (0, [40, 40])])
def test_rows_are_put_together_with_what_a_first_or_last_turn_reads_unless_they_are_large(most, counts, monkeypatch):
    monkeypatch.setattr("tape.programs.loops._LARGE", most)
    w = Writer(0)
    states = [w.array()]
    for _ in range(40):
        (x,) = w.entry("sin", states[-1])
        states += w.entry("mix", x, states[-1])
    g = w.array()
    for state in states[::-1]:  # the last turn reads the leaf
        (x,) = w.entry("mul", g, state)
        (g,) = w.entry("scaled", x, g)
    w = w.written([g])
    assert [loop.count for loop in find(Flow(w.entries, w.keep))] == counts
    found, values = rolled(w, monkeypatch)
    assert found is not None
    agree(values, plain(w))


def test_entries_with_effects_are_in_no_loop(monkeypatch):
    heard = []
    monkeypatch.setattr(rolling, "MANY", 0)
    monkeypatch.setattr(rolling, "FEW", 0)
    monkeypatch.setattr(rolling, "UNROLLED", 0)

    def loud(x):
        jax.debug.callback(lambda v: heard.append(float(v)), x[0], ordered=True)
        return x

    w = Writer(0)
    x = w.array()
    says = Op("loud", loud)
    for i in range(12):
        x = padded(w, x)
        if i >= 6:
            (x,) = w.entry("loud", x, op=says)
    w = w.written([x])
    found = rolling.rolled(w.entries, w.slots, w.keep, w.leaves)
    loops = find(Flow(w.entries, w.keep))
    assert all(e.kernel.name == "sin" for loop in loops for e in w.entries[loop.start : loop.end])
    jax.block_until_ready(found(*w.leaves))
    jax.effects_barrier()
    first = heard.copy()
    heard.clear()
    plain(w)
    jax.effects_barrier()
    assert len(first) == 6
    np.testing.assert_allclose(first, heard, rtol=1e-5)


@pytest.mark.parametrize("scale", [None, "called"])
def test_weights_of_layers(scale, monkeypatch):
    """A weight for each turn is stacked, or the turns are called."""
    monkeypatch.setattr(rolling, "MANY", 0)
    monkeypatch.setattr(rolling, "FEW", 0)
    monkeypatch.setattr(rolling, "UNROLLED", 0)
    if scale:
        monkeypatch.setattr(rolling, "_LONG", 0)
        monkeypatch.setattr(costs, "CALL", 0)
        monkeypatch.setattr(costs, "OPERAND", 0)
    for layers in (4, 6):
        w = Writer(0)
        weights = [w.array() for _ in range(layers)]
        x = w.array()
        hidden = []
        for weight in weights:
            hidden.append(x)
            (x,) = w.entry("scaled", padded(w, w.entry("mul", x, weight)[0]), w.leaf(0.5))
        y = x
        gradients = []
        for h, weight in zip(hidden[::-1], weights[::-1], strict=True):
            (g,) = w.entry("mul", y, h)
            gradients.append(g)
            (y,) = w.entry("mul", padded(w, y), weight)
        w = w.written([y, *gradients])
        found = rolling.rolled(w.entries, w.slots, w.keep, w.leaves)
        before = len(turns._BODIES)
        agree(found(*w.leaves), plain(w))
        assert (len(found.compiling(w.leaves)) > 1) is (scale is not None)
        if layers == 6 and scale:
            assert len(turns._BODIES) == before


def convolved(x, m):
    return jax.lax.conv(x[None, :, None], m.T[:, :, None], (1,), "SAME")[0, :, 0]


CONVOLUTION = Op("convolution", lambda x, m: jnp.tanh(convolved(x, m)))
PRODUCT = Op("product", lambda x, m: jnp.tanh(x @ m))
GATED = Op("gated", lambda x, y: jax.nn.relu(x) * y)
PULLED = Op("pulled", lambda g, y, m: convolved(g * (1 - y * y), m.T))
PRODUCED = Op("produced", lambda g, y, m: (g * (1 - y * y)) @ m.T)
GRADIENT = Op("gradient", lambda g, x, y: jnp.outer(x, g * (1 - y * y)))
PLUS = Op("plus", jnp.add)


@pytest.mark.parametrize("case", ["layers", "trained in it", "shared", "not trained", "deep", "products", "gates"])
def test_layers_are_written_out(case, monkeypatch):
    """Layers with convolutions run faster so.  Where turns share a matrix, or a way branches, this would be compiled for long."""
    monkeypatch.setattr(rolling, "MANY", 0)
    monkeypatch.setattr(rolling, "_SHARE", 10_000)  # that loops of such small matrices pay
    if case == "deep":
        monkeypatch.setattr(rolling, "UNROLLED", 0)
    w = Writer(0)
    matrices = [w.leaf(jnp.asarray(np.random.default_rng(i).normal(size=(3, 3)), jnp.float32)) for i in range(60)]
    if case == "shared":
        matrices = matrices[:1] * 60
    values = [w.array()]
    for matrix in matrices:
        values += w.entry("layer", values[-1], matrix, op=PRODUCT if case == "products" else CONVOLUTION)
        if case == "gates":
            (gate,) = w.entry("plus", values[-2], *w.entry("gated", values[-2], values[-1], op=GATED), op=PLUS)
            values[-1] = gate
    g, kept = w.array(), []
    for i in reversed(range(60)):
        if case != "not trained":
            kept += w.entry("gradient", g, values[i], values[i + 1], op=GRADIENT)
            if case == "shared":
                kept = [kept[0] if len(kept) == 1 else w.entry("plus", *kept, op=PLUS)[0]]
        (g,) = w.entry("pulled", g, values[i + 1], matrices[i], op=PRODUCED if case == "products" else PULLED)
    if case == "trained in it":
        kept = [w.entry("plus", m, gradient, op=PLUS)[0] for m, gradient in zip(matrices, reversed(kept), strict=True)]
    w = w.written([g, *kept])
    assert len(w.entries) > rolling.FEW
    found = rolling.rolled(w.entries, w.slots, w.keep, w.leaves)
    assert (found is None) is (case in ("layers", "trained in it"))
    if found is not None:
        agree(found(*w.leaves), plain(w))


SLOW = Op("slow", lambda x: jnp.stack([x[:2].sum(), x[1:].max(), x.sum()]))


@pytest.mark.parametrize("slow", [False, True])
def test_what_would_take_long_to_compile_is_a_loop(slow):
    """The operations of a turn are small, and there are few of them: what they take to compile decides."""
    kind = SLOW if slow else Op("part", jnp.sin)
    w = Writer(0)
    x, other = w.array(), w.array()
    for _ in range(20):
        for _ in range(PADDED):
            (x,) = w.entry("part", x, op=kind)
        (x,) = w.entry("mul", *w.entry("scaled", x, w.leaf(0.5)), other)
    w = w.written([x])
    assert rolling.FEW < len(w.entries) < rolling.MANY
    found = rolling.rolled(w.entries, w.slots, w.keep, w.leaves)
    assert (found is not None) is slow
    assert (len(rolling.written(w.entries)) < len(w.entries)) is slow
    if slow:
        agree(found(*w.leaves), plain(w))


NORMED = Op("normed", lambda x: x / jnp.sqrt((x * x).sum() + 1))


def short_turns(case):
    """Write a loop of turns of two entries, and what reads their results turn by turn."""
    w = Writer(0)
    x, other = w.array(), w.array()
    rows = []
    for _ in range(200 if case == "many" else 40):
        (x,) = w.entry("normed", x, op=NORMED) if case == "sums" else w.entry("sin", x)
        (x,) = w.entry("mul", x, other)
        rows.append(x)
    if case == "swept":
        for row in reversed(rows):
            (x,) = w.entry("slow", *w.entry("mul", x, row), op=SLOW)
    return w.written([x])


@pytest.mark.parametrize(("case", "loops"), [("fused", 0), ("sums", 1), ("many", 1), ("swept", 2)])
def test_short_turns_are_written_out_only_where_xla_fuses_them(case, loops, monkeypatch):
    monkeypatch.setattr(rolling, "MANY", 0)
    monkeypatch.setattr(rolling, "FEW", 0)
    w = short_turns(case)
    found = rolling.rolled(w.entries, w.slots, w.keep, w.leaves)
    assert (found is not None) is (loops > 0)
    if found is not None:
        ((function, arguments),) = found.compiling(w.leaves)
        assert str(function.trace(*arguments).jaxpr).count("= scan[") == loops
        agree(found(*w.leaves), plain(w))
