"""A loop whose tape grows without end is told of, once; what is unrolled on purpose is not."""

import pathlib
import warnings

import jax
import numpy as np
import pytest

import tape
from tape.errors import TapeWarning
from tape.programs import growth

X = np.float32([[1.0, -2.0], [0.5, 0.25]])
TURNS = 8


def loss(params):
    return ((tape.numpy.tanh(X @ params["w"]) + params["b"]) ** 2).mean()


def start():
    return {"w": tape.Variable(np.float32([0.3, -0.7])), "b": tape.Variable(np.float32(0.1))}


def gradients(params, **options):
    return dict(zip(params, tape.gradients(loss(params), list(params.values()), **options), strict=True))


def mapped(params, look):
    value = loss(params)
    found = dict(zip(params, tape.gradients(value, list(params.values())), strict=True))
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, found)  # HERE
    if look:
        float(value)
    return params


def by_hand(params, look):
    found = gradients(params)
    if look:
        float(found["b"])
    return {k: p - 0.1 * found[k] for k, p in params.items()}  # HERE


def asked(params, look):
    tape.backward(loss(params), inputs=list(params.values()))
    if look:
        float(params["b"])
    return jax.tree.map(lambda p: p - 0.1 * p.grad, params)  # HERE


def transformed(params, look):
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, tape.grad(loss)(params))  # HERE
    if look:
        float(params["b"])
    return params


def summed(carried, look):
    params, total = carried
    value = loss(params)
    value.backward()
    with tape.no_grad():
        for p in params.values():
            p -= 0.1 * p.grad  # noqa: PLW2901
            p.grad = None
    total = total + value  # HERE
    if look:
        float(total)
    return params, total


def averaged(carried, look):
    params, total = carried
    value = loss(params)
    total = 0.5 * total + 0.5 * value  # HERE
    value.backward()
    if look:
        float(total)
    return params, total


BEGIN = {summed: lambda: (start(), 0.0), averaged: lambda: (start(), tape.constant(0.0))}


def run(turn, turns, *, look, carried=None):
    carried = carried or BEGIN.get(turn, start)()
    for _ in range(turns):
        carried = turn(carried, look)
    for v in jax.tree.leaves(carried, is_leaf=lambda v: isinstance(v, tape.Variable)):
        v.block_until_ready()
    return carried


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(growth, "LIMIT", TURNS)


LINES = pathlib.Path(__file__).read_text().splitlines()


@pytest.mark.parametrize("turn", [mapped, by_hand, asked, transformed, summed, averaged])
def test_a_loop_that_grows_is_told_of_at_its_line(turn, impatient):
    words = r"a tape that grows: \w+ at .*test_growth\.py:\d+ depends on what the same loop made.*8 or more"
    with pytest.warns(TapeWarning, match=words) as told:
        run(turn, 5 * TURNS, look=True)
    marks = {"# HERE" in LINES[w.lineno - 1] for w in told}
    assert marks == {True}


def test_a_loop_that_runs_by_its_length_alone_is_told_of(monkeypatch):
    monkeypatch.setattr(growth, "LIMIT", 2)  # segments, of many turns each
    with pytest.warns(TapeWarning, match="a tape that grows"):
        run(by_hand, 120, look=False)


def test_it_is_told_once(impatient):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        run(by_hand, 60, look=True)
    assert len(told) == 1


def test_whoever_holds_the_first_parameters_may_go_back_to_them_if_no_entry_refuses(impatient):
    first = {k: tape.Variable(v.value) for k, v in start().items()}
    loss(run(mapped, 3 * TURNS, look=True, carried=first)).backward()
    assert np.isfinite(first["w"].grad.numpy()).all()
    with pytest.warns(TapeWarning, match="a tape that grows"):
        run(by_hand, 3 * TURNS, look=True, carried=first)


def repaired_in_place(params, look):
    found = gradients(params)
    with tape.no_grad():
        for k, p in params.items():
            p -= 0.1 * found[k]  # noqa: PLW2901
    if look:
        float(params["b"])
    return params


def repaired_anew(params, look):
    found = gradients(params)
    if look:
        float(found["b"])
    return jax.tree.map(lambda p, g: (p - 0.1 * g).detach().requires_grad_(), params, found)


def repaired_sum(carried, look):
    params, total = carried
    value = loss(params)
    value.backward()
    if look:
        float(value)
    return params, total + value.detach()


BEGIN[repaired_sum] = BEGIN[summed]


@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("turn", [repaired_in_place, repaired_anew, repaired_sum])
def test_what_is_advised_does_not_grow(turn, look, impatient):
    before = tape.stats().live_entries
    carried = run(turn, 40, look=look)
    assert tape.stats().live_entries <= before + 2
    del carried


def test_repairs_compute_the_same():
    expected = run(mapped, 5, look=True)
    for turn in (repaired_in_place, repaired_anew):
        found = run(turn, 5, look=False)
        for k, v in expected.items():
            np.testing.assert_allclose(found[k].numpy(), v.numpy(), rtol=1e-6)


def test_unrolled_loops_are_not_told_of():
    x = y = tape.Variable(1.0)
    for k in range(1500):
        y = y * 0.999
        if k % 20 == 0:
            float(y)
    y.backward()
    assert abs(float(x.grad) - 0.999**1500) < 1e-5
    params = start()
    state, total = tape.constant(np.zeros(2, np.float32)), 0.0
    for k in range(200):  # truncated backpropagation through time
        state = tape.numpy.tanh(X @ params["w"] + state)
        value = (state * state).sum()
        total += float(value)
        if k % 10 == 9:
            value.backward()
            state = state.detach()
    assert total > 0


@pytest.mark.parametrize("first_order", [False, True])
def test_inner_loops_that_are_differentiated_are_not_told_of(first_order, impatient):
    outer = start()
    params = outer
    for _ in range(6 * TURNS):
        found = gradients(params, create_graph=not first_order)
        params = {k: p - 0.1 * (found[k].detach() if first_order else found[k]) for k, p in params.items()}
        float(params["b"])
    loss(params).backward()
    assert np.isfinite(outer["w"].grad.numpy()).all()


def test_many_layers_that_are_asked_for_at_once_are_no_loop():
    x = tape.Variable(1.0)
    layers = [x]
    for _ in range(200):
        layers.append(tape.numpy.sin(layers[-1]))
    found = tape.gradients(layers[-1], layers[1:], retain_graph=True)
    assert len(found) == 200
    y = layers[-1]
    for _ in range(3):
        y = y * 2
        float(y)
    y.backward()
    assert float(x.grad) > 0
