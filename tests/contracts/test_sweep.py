"""Contracts 7, 10 to 12, 15, 16 and 19: what one sweep does."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tape
import tape.numpy as tnp
from tape.errors import UnconnectedError
from tests.agreement import close
from tests.contracts.counting import counted

A, B = np.array([1.0, -2.0, 0.5], np.float32), np.array([3.0, 0.25, -1.0], np.float32)


def equal(variable, expected):
    np.testing.assert_array_equal(np.asarray(variable.value), np.asarray(expected, variable.dtype))


# -- 7: each entry's VJP exactly once ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_contract_07_each_vjp_runs_once_in_twelve_diamonds():
    """4 096 paths, 12 counted entries."""
    x = y = tape.Variable(1.5)
    calls = []
    for _ in range(12):
        apply, seen = counted()
        calls.append(seen)
        y = apply(y) * 0.5
        y = y + y
    y.backward()
    assert [len(seen) for seen in calls] == [1] * 12
    equal(x.grad, 1.0)


def test_contract_07_a_sweep_writes_a_number_of_entries_linear_in_the_tape():
    counts = []
    for n in (10, 20):
        x = y = tape.Variable(1.0)
        for _ in range(n):
            y = y * x + y
        float(y)
        tape.stats().reset()
        float(tape.gradients(y, x))
        counts.append(tape.stats().executed)
    assert counts[1] <= 2.2 * counts[0]
    assert counts[0] < 100


@pytest.mark.usefixtures("tier")
def test_contract_07_sixty_doublings():
    x = y = tape.Variable(1.0)
    for _ in range(60):
        y = y + y
    y.backward()
    equal(x.grad, 2.0**60)
    equal(y, 2.0**60)


def test_contract_07_last_recorded_first():
    order = []
    x = tape.Variable(1.0)
    parts = []
    for i in range(5):
        apply, _ = counted(lambda g, i=i: order.append(i) or g)
        parts.append(apply(x))
    tape.backward([parts[i] for i in (2, 0, 4, 1, 3)])
    assert order == [4, 3, 2, 1, 0]
    equal(x.grad, 5)


def test_contract_07_a_chain_of_100_000_ops():
    """Iterative, and in bounded segments: neither recursion nor a program that grows."""
    x = y = tape.Variable(1.0)
    half = tape.constant(0.5)
    for _ in range(50_000):
        y = y * half
        y = y + half
    equal(y, 1.0)
    compiled = tape.stats().compiles
    y.backward()
    equal(x.grad, 0.0)  # 0.5**50 000
    assert tape.stats().compiles - compiled < 20
    x = y = tape.Variable(2.0)
    for _ in range(100_000):
        y = y * 1.0
    g = tape.gradients(y, x)
    del y
    equal(g, 1.0)


# -- 10: accumulation ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_contract_10_the_case_where_in_place_sums_go_wrong():
    """SINGA yields 12 here: the cotangent of c*c is accumulated into the one that a and b share."""
    a = tape.Variable(0.0)
    c = tape.Variable(3.0)
    b = tnp.sin(a)
    (c * c + (a + b)).sum().backward()
    equal(c.grad, 6)
    equal(a.grad, 2)


@pytest.mark.usefixtures("tier")
def test_contract_10_one_cotangent_for_two_leaves_is_two_gradients():
    x, y = tape.Variable(A), tape.Variable(B)
    s = x + y
    s.backward(np.ones(3), retain_graph=True)
    held = x.grad
    assert x.grad is not y.grad
    s.backward(np.ones(3))
    equal(held, np.ones(3))  # the old gradient, not what was added to it
    equal(x.grad, np.full(3, 2.0))
    x.grad[0] = 50.0
    equal(y.grad, np.full(3, 2.0))


# -- 11: snapshots ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("when", ["before the run", "after it", "between sweeps"])
def test_contract_11_rebinding_a_leaf_does_not_change_gradients(when):
    x = tape.Variable(3.0)
    y = x * x
    if when != "before the run":
        equal(y, 9)
    if when == "between sweeps":
        y.backward(retain_graph=True)
        x.zero_grad()
    x.value = 10.0
    y.backward()
    equal(x.grad, 6)
    equal(y, 9)
    (x * x).backward()
    equal(x.grad, 26)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("looked", [True, False])
def test_contract_11_numpy_operands_are_copied_when_recorded(looked):
    buffer = np.zeros(64, np.float32)
    start = (-buffer.ctypes.data % 64) // 4
    data = buffer[start : start + 3]
    data[:] = B
    x = tape.Variable(A)
    made = tape.Variable(data)
    results = [x * data, data * x, tnp.multiply(data, x), np.multiply(data, x), x * made]
    y = x.at[:].add(data)
    if looked:
        for r in results:
            float(r.sum())
    data[:] = 1000.0
    for r in results:
        equal(r, A * B)
        equal(tape.gradients(r.sum(), x), B)
    equal(y, A + B)


def test_contract_11_assigning_elements_leaves_entries_as_they_were():
    x = tape.Variable(A)
    y = x * 1
    z = y * y
    y[0] = 100.0
    w = y * y
    tape.backward(z.sum(), retain_graph=True)
    equal(x.grad, 2 * A)
    x.zero_grad()
    w.sum().backward()
    equal(x.grad, 2 * A * [0, 1, 1])


# -- 12: leaves accumulate -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_contract_12_leaves_accumulate_over_sweeps():
    x = tape.Variable(A)
    for k in range(1, 4):
        (x * x).sum().backward()
        equal(x.grad, 2 * A * k)
    x.zero_grad()
    assert x.grad is None
    x.grad = B
    (x * x).sum().backward()
    equal(x.grad, B + 2 * A)


@pytest.mark.usefixtures("tier")
def test_contract_12_gradients_touches_no_grad():
    x, w = tape.Variable(A), tape.Variable(B)
    h = x * w
    h.retain_grad()
    x.grad = B
    tape.gradients(h.sum(), [x, h], retain_graph=True)
    equal(x.grad, B)
    assert w.grad is h.grad is None


# -- 15: unconnected inputs --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_contract_15_unconnected_inputs():
    x, w = tape.Variable(A, name="x"), tape.Variable(B, name="w")
    c = tape.constant(A)
    y = (x * c).sum()
    with pytest.raises(UnconnectedError, match=r"inputs\[1\] \('w', shape \(3,\), dtype float32\)"):
        tape.gradients(y, [x, w])
    with pytest.raises(UnconnectedError):
        tape.gradients(y, [x, c], retain_graph=True)
    gx, gw, gc = tape.gradients(y, [x, w, c], unconnected="zero", retain_graph=True)
    equal(gx, A)
    equal(gw, np.zeros(3))
    equal(gc, np.zeros(3))
    gx, gw, gc = tape.gradients(y, [x, w, c], unconnected="none")
    equal(gx, A)
    assert gw is gc is None
    with pytest.raises(ValueError, match="unconnected must be"):
        tape.gradients(y, x, unconnected="zeros")


def test_contract_15_an_input_out_of_reach_keeps_its_grad():
    x, w, z = tape.Variable(A), tape.Variable(A), tape.Variable(A)
    z.grad = B
    for _ in range(3):
        x.grad = None
        tape.backward((x * x).sum(), inputs=[x, w, z])
        equal(x.grad, 2 * A)
        assert w.grad is None
        equal(z.grad, B)


def test_contract_15_unconnected_through_what_has_no_gradient():
    x = tape.Variable(A)
    y = (tnp.floor(x) * 1.0).sum()
    equal(tape.gradients(y, x, unconnected="zero", retain_graph=True), np.zeros(3))
    cut = (x.detach() * x).sum()
    equal(tape.gradients(cut, x), A)
    with tape.no_grad():
        z = x * x
    equal(tape.gradients(z.sum(), x, unconnected="zero"), np.zeros(3))
    assert tape.gradients(z.sum(), x, unconnected="none") is None


# -- 16: inputs= and ignore= --------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    outputs=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    inputs=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    looked=st.booleans(),
    twice=st.booleans(),
)
def test_contract_16_subsets_and_orders_of_outputs_and_inputs(outputs, inputs, looked, twice):
    """Every choice of roots and inputs (repeated too) gives what the Jacobian by hand gives; retained, it gives it twice."""
    a, b, c = 2.0, 3.0, 5.0
    va, vb, vc = (tape.Variable(v) for v in (a, b, c))
    p = va * vb
    q = p + vc
    variables = [va, vb, vc, p, q]
    roots = [p * 1, q * vc, q * q, p * vc]
    #            da               db              dc             dp         dq
    jacobian = [
        [b, a, 0, 1, 0],
        [b * c, a * c, c + (a * b + c), c, c],
        [2 * (a * b + c) * b, 2 * (a * b + c) * a, 2 * (a * b + c), 2 * (a * b + c), 2 * (a * b + c)],
        [b * c, a * c, a * b, c, 0],
    ]
    if looked:
        float(roots[outputs[0]])
    for _ in range(1 + twice):
        found = tape.gradients([roots[i] for i in outputs], [variables[j] for j in inputs], unconnected="zero", retain_graph=True)
        for j, g in zip(inputs, found, strict=True):
            equal(g, sum(jacobian[i][j] for i in outputs))


@pytest.mark.usefixtures("tier")
def test_contract_16_a_root_that_is_ignored_receives_nothing():
    x, w = tape.Variable(np.float32(3)), tape.Variable(np.float32(2))
    tape.backward([x, x * w], ignore=[x])
    assert (x.grad, float(w.grad)) == (None, 3)


@pytest.mark.usefixtures("tier")
def test_contract_16_an_input_given_twice_receives_its_gradient_once():
    x = tape.Variable(np.float32(3))
    h = x * x
    (h * 2).backward(inputs=[x, h, x, h])
    assert (float(x.grad), float(h.grad)) == (12, 2)


@pytest.mark.usefixtures("tier")
def test_contract_16_only_inputs_receive_grad_and_only_paths_to_them_are_swept():
    x, w = tape.Variable(2.0), tape.Variable(3.0)
    on_path, seen_on = counted()
    off_path, seen_off = counted()
    h = on_path(x) * off_path(w)
    y = h * h
    y.backward(inputs=[x, h])
    equal(x.grad, 2 * 6 * 3)
    equal(h.grad, 12)
    assert w.grad is None
    assert (len(seen_on), len(seen_off)) == (1, 0)


@pytest.mark.usefixtures("tier")
def test_contract_16_ignored_variables_stop_the_sweep():
    x, w = tape.Variable(2.0), tape.Variable(3.0)
    apply, seen = counted()
    h = apply(x * x)
    k = h * w
    y = k + h * 5 + x
    y.backward(ignore=[k], retain_graph=True)
    equal(x.grad, 5 * 4 + 1)
    assert w.grad is None
    x.zero_grad()
    y.backward(ignore=h, retain_graph=True)
    equal(x.grad, 1)
    equal(w.grad, 4)
    x.zero_grad()
    y.backward(ignore=(x, w))
    assert x.grad is None
    equal(w.grad, 4)
    assert len(seen) == 1  # neither behind an ignored Variable nor where only ignored leaves are left


# -- 19: reproducible ------------------------------------------------------------------------------------------------------


def test_contract_19_gradients_are_the_same_bit_for_bit():
    """Interpreted, compiled and found again: runs of one tier are equal bit for bit."""
    rng = np.random.default_rng(0)
    w = [rng.standard_normal((8, 8)).astype(np.float32) for _ in range(4)]
    runs, compiled = [], []
    for _ in range(6):
        hits = tape.stats().hits
        ws = [tape.Variable(a) for a in w]
        h = tape.constant(w[0])
        branches = [tnp.tanh(h @ v) for v in ws]
        (sum(branches[1:], branches[0]) ** 2).mean().backward()
        runs.append([np.asarray(v.grad.value) for v in ws])
        compiled.append(tape.stats().hits > hits)
    assert compiled[-2:] == [True, True]
    for i, j in itertools.pairwise(range(6)):
        for a, b in zip(runs[i], runs[j], strict=True):
            if compiled[i] == compiled[j]:
                np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_contract_16_results_of_several_segments_are_asked_for_or_ignored():
    """In each of them a result has the same number."""
    for _ in range(3):
        x = tape.Variable(A)
        h = x * 2
        float(h.sum())
        k = h * h
        float(k.sum())
        y = (k * h).sum()
        of_h, of_x = tape.gradients(y, (h, x), retain_graph=True)
        close(of_h, 3 * (2 * A) ** 2)
        close(of_x, 6 * (2 * A) ** 2)
        close(tape.gradients(y, k, retain_graph=True), 2 * A)
        y.backward(ignore=[k], retain_graph=True)
        close(x.grad, 2 * (2 * A) ** 2)
        x.grad = None
        y.backward(ignore=[h], inputs=[k], retain_graph=True)
        close(k.grad, 2 * A)
        y.backward(ignore=[h])
        assert x.grad is None
