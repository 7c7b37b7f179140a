"""What the turns of a loop compute of rows that are there before is computed of all of them at once, outside of it, and is the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal

import tape
import tape.numpy as tnp
from tape.ops.kernel import Op
from tape.programs import columns
from tests.programs.test_rolling import PADDED, Writer, agree, padded, plain, rolled

TURNS = 12
WIDE = jnp.linspace(-0.5, 0.7, 3, dtype=jnp.float32)


def equations(jaxpr, *, looped=False):
    """Return the equations of a jaxpr that its results need, and of those in it, each with whether it is in the body of a loop."""
    needed, line = {v for v in jaxpr.outvars if not isinstance(v, Literal)}, []
    for eqn in reversed(jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            needed |= {v for v in eqn.invars if not isinstance(v, Literal)}
            line.append((eqn, looped))
            inside = eqn.params.get("jaxpr")
            if inside is not None:
                line += equations(getattr(inside, "jaxpr", inside), looped=looped or eqn.primitive.name == "scan")
    return line


def where(calls, leaves, name):
    """Return the shapes of what a primitive gives outside of loops, and in their bodies."""
    ((function, arguments),) = calls.compiling(leaves)
    listed = [(e, inside) for e, inside in equations(jax.make_jaxpr(function)(*arguments).jaxpr) if e.primitive.name == name]
    return tuple([e.outvars[0].aval.shape for e, inside in listed if inside is looped] for looped in (False, True))


def forwards(w, turns=TURNS):
    """Write a loop whose turns each leave a row; return their slots."""
    rows, x = [], w.array()
    for _ in range(turns):
        (x,) = w.entry("scaled", padded(w, x), w.leaf(w.rng.uniform(-5, 5)))
        rows.append(x)
    return rows


def following(w, op, *lines, ct=None):
    """Write a loop that reads a row of each line in its turns, as a sweep does; return what it ends with."""
    ct = w.array() if ct is None else ct
    for read in zip(*lines, strict=True):
        (ct,) = w.entry("op", padded(w, ct), *read, op=op)
    return ct


SLOPE = Op("slope", lambda ct, x: ct * jnp.cos(x))
WAYS = {
    "forwards": lambda rows: rows,
    "backwards": lambda rows: rows[::-1],
    "without the ends": lambda rows: rows[1:-1],
    "each second": lambda rows: rows[::2],
    "each second backwards": lambda rows: rows[::-2],
}


@pytest.mark.parametrize("way", WAYS)
def test_it_stands_outside_of_the_loop(way, monkeypatch):
    w = Writer(1)
    rows = forwards(w)
    w = w.written([following(w, SLOPE, WAYS[way](rows)), rows[3]])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    assert where(calls, w.leaves, "cos") == ([(TURNS, 3)], [])


def test_loops_that_read_the_same_share_it(monkeypatch):
    w = Writer(2)
    rows = forwards(w)
    ct = following(w, SLOPE, rows[::-1])
    (ct,) = w.entry("mix", ct, ct)
    ct = following(w, SLOPE, rows[1:], ct=ct)
    w = w.written([ct])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    assert where(calls, w.leaves, "cos") == ([(TURNS, 3)], [])


def test_of_few_of_many_rows_it_is_computed_of_these(monkeypatch):
    w = Writer(3)
    rows, ct = forwards(w, 60), None
    for read in (rows[10:19], rows[17:9:-1], rows[10:24:2], rows[20:9:-2], rows[10:23], rows[10:22:2]):
        ct = following(w, SLOPE, read, ct=ct)
        (ct,) = w.entry("mix", ct, ct)
    w = w.written([ct, rows[-1]])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    outside, inside = where(calls, w.leaves, "cos")
    assert (sorted(outside), inside) == ([(6, 3), (6, 3), (7, 3), (8, 3), (9, 3), (13, 3)], [])


OPERANDS = {
    "through cheap ones": (Op("op", lambda ct, x: ct * jnp.exp(-x * x)), lambda rows: [rows], "exp"),
    "of two columns": (Op("op", lambda ct, x, y: ct * jnp.arctan2(x, y)), lambda rows: [rows, rows], "atan2"),
    "with a number": (Op("op", lambda ct, x: ct * jnp.log(x + 3.5)), lambda rows: [rows], "log"),
    "with an array that all turns read": (Op("op", lambda ct, x: ct * jnp.exp(x - WIDE)), lambda rows: [rows], "exp"),
    "to other dtypes": (Op("op", lambda ct, x: ct * jnp.sin(x.astype(jnp.float16)).astype(jnp.float32)), lambda rows: [rows], "sin"),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_operands(name, monkeypatch):
    op, lines, primitive = OPERANDS[name]
    w = Writer(4)
    w = w.written([following(w, op, *lines(forwards(w)))])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    outside, inside = where(calls, w.leaves, primitive)
    assert (TURNS, 3) in outside
    assert len(inside) == (PADDED if primitive == "sin" else 0) * 2  # those that read what is carried


WEIGHTS = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)), jnp.float32)
RIGHT = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3)), jnp.float32)
PRODUCTS = {
    "of a row": lambda ct, x: ct + (x @ WEIGHTS).sum(),
    "with a row on the right": lambda ct, x: ct + (RIGHT @ x).sum(),
    "of a matrix": lambda ct, x: ct + (jnp.stack([x, 2 * x]) @ WEIGHTS).sum(),
    "with a matrix on the right": lambda ct, x: ct + (RIGHT @ x[:, None]).sum(),
    "of matrices, one by one": lambda ct, x: ct + jnp.einsum("bi,bij->bj", jnp.tile(x, (2, 1)), jnp.stack([WEIGHTS, WEIGHTS + 1])).sum(),
}

STAYING = {"of a matrix", "of matrices, one by one"}  # of rows that are put together first


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_what_all_turns_read(name, monkeypatch):
    w = Writer(8)
    w = w.written([following(w, Op("op", PRODUCTS[name]), forwards(w))])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    outside, inside = where(calls, w.leaves, "dot_general")
    assert len(outside) + len(inside) == 1
    assert bool(inside) == (name in STAYING)


def test_what_a_turn_makes_of_columns_counts_as_one(monkeypatch):
    w = Writer(5)
    rows, half, ct = forwards(w), Op("half", lambda x: 0.5 * x), w.array()
    for x in rows:
        (y,) = w.entry("half", x, op=half)
        (ct,) = w.entry("op", padded(w, ct), y, op=SLOPE)
    w = w.written([ct])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    assert where(calls, w.leaves, "cos") == ([(TURNS, 3)], [])


def test_what_is_to_stay_in_the_loop_stays(monkeypatch):
    angle = Op("op", lambda ct, x, y: ct * jnp.arctan2(x, y))
    w = Writer(6)
    rows = forwards(w)
    ct = following(w, angle, rows[1:], rows[:-1])  # rows of two turns
    (ct,) = w.entry("mix", ct, ct)
    ct = following(w, Op("op", lambda ct, x: ct * jnp.square(x)), rows, ct=ct)  # cheaper than to read it
    w = w.written([ct])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    assert where(calls, w.leaves, "atan2") == ([], [(3,)])
    assert where(calls, w.leaves, "square") == ([], [(3,)])
    w = Writer(7)
    w = w.written([following(w, SLOPE, forwards(w))])
    monkeypatch.setattr(columns, "MOST", 4 * 3 * TURNS - 1)  # large arrays
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    assert where(calls, w.leaves, "cos") == ([], [(3,)])


def test_rows_at_other_distances_are_not_taken_for_each_other(monkeypatch):
    w, ct = Writer(9), None
    rows, more = forwards(w), forwards(w, 2 * TURNS)
    for lines in ((rows[:6], rows[::2]), (more[:TURNS], rows), (more[::2], rows)):
        ct = following(w, Op("op", lambda ct, x, y: ct * jnp.arctan2(x, y)), *lines, ct=ct)
        (ct,) = w.entry("mix", ct, ct)
    w = w.written([ct])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    assert where(calls, w.leaves, "atan2")[0] == []


def test_equations_with_other_parameters_are_not_taken_for_each_other(monkeypatch):
    def op(ct, x):
        return ct + sum(jnp.sin(100 * x.astype(dtype)).astype(jnp.float32) * k for k, dtype in enumerate((jnp.float16, jnp.bfloat16), 1))

    w = Writer(10)
    w = w.written([following(w, Op("op", op), forwards(w))])
    _, values = rolled(w, monkeypatch)
    agree(values, plain(w))


def test_a_method_of_runge_and_kutta_twice():
    def solved(numpy, x, a):
        for _ in range(25):
            k = a * numpy.sin(x)
            k = a * numpy.sin(x + 0.05 * k)
            x = x + 0.1 * k
        return (x * x).sum()

    start, at = np.linspace(-1, 2, 5), 0.7

    @tape.jit
    def step(x, a):
        first = tape.gradients(solved(tnp, x, a), x, create_graph=True)
        (first * first).sum().backward()
        return x.grad.value, a.grad.value

    expected = jax.grad(lambda x, a: (jax.grad(solved, 1)(jnp, x, a) ** 2).sum(), (0, 1))
    with jax.enable_x64(True):
        found = step(tape.Variable(jnp.asarray(start)), tape.Variable(jnp.asarray(at)))
        for ours, theirs in zip(found, expected(jnp.asarray(start), jnp.asarray(at)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
