"""What a loop only adds up is added up behind it at once, and is the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tape
import tape.numpy as tnp
from tape.ops.kernel import Op
from tape.programs import totals
from tests.programs.test_columns import where
from tests.programs.test_rolling import Writer, agree, padded, plain, rolled

TURNS = 10


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Have small sums be worth it, too."""
    monkeypatch.setattr(totals, "LEAST", 1)


def times(a, b):
    """Return ``a.T @ b`` as rules write it."""
    return lax.dot_general(a, b, (((0,), (0,)), ((), ())))


MIX = Op("mix", lambda ct, x: 0.6 * ct + 0.4 * jnp.tanh(x))
ADDED = {
    "transposed": lambda total, ct, x: total + times(x, ct).T,
    "as it is": lambda total, ct, x: total + times(ct, x),
    "on the left": lambda total, ct, x: times(ct, x) + total,
    "taken away": lambda total, ct, x: total + -times(ct, x),
    "in another form": lambda total, ct, x: total + jnp.broadcast_to(times(ct, x).reshape(1, 3, 3), (1, 3, 3))[0],
}


def matrix(w, *shape):
    return w.leaf(jnp.asarray(np.random.default_rng(w.n).normal(size=shape), jnp.float32))


def summing(op, *, rows, further=lambda w, total, ct: None):
    """Write a loop that adds something up over its turns; ``rows`` says in which order it reads what a loop before has left."""
    w = Writer(1)
    line, h = [], matrix(w, 2, 3)
    for _ in range(TURNS):
        (h,) = w.entry("scaled", padded(w, h), w.leaf(w.rng.uniform(-5, 5)))
        line.append(h)
    total, ct, kept = matrix(w, 3, 3), matrix(w, 2, 3), []
    for x in rows(line):
        (ct,) = w.entry("mix", padded(w, ct), x, op=MIX)
        (total,) = w.entry("total", total, ct, x, op=op)
        kept.append(further(w, total, ct))
    return w.written([total, ct, *[s for s in kept if s is not None]])


ORDERS = {"forwards": lambda line: line, "backwards": lambda line: line[::-1], "some": lambda line: line[1:-1][::-1]}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ADDED)
def test_products_are_added_up_behind_the_loop(name, order, monkeypatch):
    w = summing(Op("total", ADDED[name]), rows=ORDERS[order])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    outside, inside = where(calls, w.leaves, "dot_general")
    assert (outside, inside) == ([(3, 3)], [])


def test_of_what_the_turn_before_has_left(monkeypatch):
    product = Op("total", lambda total, h, x: total + times(h, x))
    w = Writer(2)
    total, h = matrix(w, 3, 3), matrix(w, 2, 3)
    for _ in range(TURNS):
        x = matrix(w, 2, 3)
        (total,) = w.entry("total", total, h, x, op=product)
        (h,) = w.entry("mix", padded(w, h), x, op=MIX)
    w = w.written([total, h])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    assert where(calls, w.leaves, "dot_general")[1] == []


def test_over_several_entries(monkeypatch):
    parts = [Op("dot", lambda ct, x: times(x, ct)), Op("turned", jnp.transpose), Op("sum", lambda a, b: a + b)]
    w = Writer(3)
    total, ct = matrix(w, 3, 3), matrix(w, 2, 3)
    for _ in range(TURNS):
        x = matrix(w, 2, 3)
        (ct,) = w.entry("mix", padded(w, ct), x, op=MIX)
        (p,) = w.entry("dot", ct, x, op=parts[0])
        (p,) = w.entry("turned", p, op=parts[1])
        (total,) = w.entry("sum", p, total, op=parts[2])
    w = w.written([total])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    assert where(calls, w.leaves, "dot_general")[1] == []


SCALED = Op("scaled", lambda ct, total: ct + 1e-3 * total[0])
STAYING = {
    "twice the total": lambda total, ct, x: total + total + times(ct, x),
    "times the total": lambda total, ct, x: total * (1 + times(ct, x)),
    "the difference": lambda total, ct, x: times(ct, x) - total,
    "of what is not linear": lambda total, ct, x: total + jnp.abs(times(ct, x)),
    "with what is made there": lambda total, ct, x: total + times(jnp.sin(ct), x),
    "one for each": lambda total, ct, x: total + lax.dot_general(ct, x, (((), ()), ((0,), (0,))))[0],
    "with what all turns read": lambda total, ct, x: total + times(ct, jnp.ones((2, 3))),
    "a sum": lambda total, ct, x: total + (ct * x).sum(),
    "of large rows": ADDED["as it is"],
    "of rows as large as the sum": ADDED["as it is"],
}


@pytest.mark.parametrize("name", STAYING)
def test_what_is_no_such_sum_is_right(name, monkeypatch):
    w = summing(Op("total", STAYING[name]), rows=ORDERS["backwards"])
    if name == "of large rows":
        monkeypatch.setattr(totals, "MOST", 4 * 6 * TURNS - 1)
    if name == "of rows as large as the sum":  # six numbers beside nine
        monkeypatch.setattr(totals, "LEAST", 2)
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    outside, inside = where(calls, w.leaves, "dot_general")
    assert (len(outside), len(inside)) == (0, int(name != "a sum"))


def test_what_is_read_meanwhile_stays(monkeypatch):
    total = Op("total", ADDED["as it is"])
    for further in (
        lambda w, total, ct: total,  # each is kept
        lambda w, total, ct: w.entry("scaled", ct, total, op=SCALED)[0],  # each is read
    ):
        w = summing(total, rows=ORDERS["backwards"], further=further)
        calls, values = rolled(w, monkeypatch)
        agree(values, plain(w))
        assert len(where(calls, w.leaves, "dot_general")[1]) == 1


def test_sums_share_the_rows_that_are_kept_for_the_larger_one(monkeypatch):
    monkeypatch.setattr(totals, "LEAST", 2)  # six numbers for nine are too many, but not where they are there
    w, product = Writer(5), Op("total", ADDED["as it is"])
    small, large, ct = matrix(w, 3, 3), matrix(w, 3, 12), matrix(w, 2, 3)
    for _ in range(TURNS):
        (ct,) = w.entry("mix", padded(w, ct), matrix(w, 2, 3), op=MIX)
        (small,) = w.entry("total", small, ct, matrix(w, 2, 3), op=product)
        (large,) = w.entry("total", large, ct, matrix(w, 2, 12), op=product)
    w = w.written([small, large])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    assert where(calls, w.leaves, "dot_general")[1] == []


def twice(y, fun):
    """Return a value, and what is made of it."""
    return y, fun(y)


BATCHED = (((), ()), ((0,), (0,)))
FURTHER = {
    "the turn before the last": (lambda total, ct: total + times(ct, ct), (3, 3), 2),
    "the total for something else": (lambda total, ct: (total + times(ct, ct), jnp.sin(total)), (3, 3), 1),
    "the sum for something else": (lambda total, ct: twice(total + times(ct, ct), jnp.sin), (3, 3), 1),
    "the total as it is": (lambda total, ct: (total + times(ct, ct), total), (3, 3), 1),
    "the sum as two results": (lambda total, ct: twice(total + times(ct, ct), lambda y: y), (3, 3), 1),
    "a product for each": (lambda total, ct: total + lax.dot_general(ct, ct, BATCHED), (2, 3, 3), 1),
}


@pytest.mark.parametrize("name", FURTHER)
def test_what_reads_more_than_the_last_total_stays(name, monkeypatch):
    fun, shape, back = FURTHER[name]
    op, w = Op("total", fun), Writer(4)
    made, ct = [(matrix(w, *shape),) for _ in range(back)], matrix(w, 2, 3)
    for _ in range(TURNS):
        (ct,) = w.entry("mix", padded(w, ct), matrix(w, 2, 3), op=MIX)
        made.append(w.entry("total", made[-back][0], ct, op=op))
    w = w.written(made[-1])
    calls, values = rolled(w, monkeypatch)
    agree(values, plain(w))
    assert len(where(calls, w.leaves, "dot_general")[1]) == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_a_recurrent_network_twice(compiled, monkeypatch):
    rng = np.random.default_rng(0)
    inner, outer, bias = (rng.normal(size=s) * 0.4 for s in ((5, 5), (4, 5), (5,)))
    rows = rng.normal(size=(24, 3, 4))

    def loss(numpy, p):
        h = numpy.zeros((3, 5))
        for x in rows:
            h = numpy.tanh(h @ p[0] + x @ p[1] + p[2])
        return (h * h).sum()

    expected = jax.grad(lambda p: sum((g * g).sum() for g in jax.grad(lambda p: loss(jnp, p))(p)))

    def step():
        for v in variables:
            v.grad = None
        slopes = tape.gradients(loss(tnp, variables), variables, create_graph=True)
        sum((g * g).sum() for g in slopes).backward()
        return [v.grad.value for v in variables]

    with jax.enable_x64(True):
        variables = [tape.Variable(jnp.asarray(a)) for a in (inner, outer, bias)]
        run = tape.jit(step) if compiled else step
        for _ in range(4):
            found = run()
        for ours, theirs in zip(found, expected([jnp.asarray(a) for a in (inner, outer, bias)]), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)
