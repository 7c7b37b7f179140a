"""``tape.jit``: a compiled step leaves behind what the same function leaves behind when it is not compiled."""

import collections
import contextlib
import copy
import functools
import gc
import itertools
import linecache
import pickle
import sys
import threading
import types
import weakref
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop.optax
import tape
import tape.numpy as tnp
from tape.errors import (
    ConcretizationError,
    LeakedTracerError,
    ReleasedTapeError,
    TapeRuntimeError,
    TapeTypeError,
    TapeValueError,
    UnrecordedGradientError,
)
from tape.jitting import arguments
from tape.jitting.binding import Binding
from tests import agreement

X = np.array([0.5, -1.0, 2.0], np.float32)
W = np.array([1.5, 0.25, -0.75], np.float32)

close = functools.partial(agreement.close, rtol=1e-6, atol=0)


def state(v):
    """What can be seen of a Variable."""
    grad = None if v.grad is None else np.asarray(v.grad.value)
    return np.asarray(v.value), grad, v.requires_grad, v.is_leaf, v.dtype


def same_state(a, b):
    for x, y in zip(state(a), state(b), strict=True):
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            np.testing.assert_allclose(x, y, rtol=1e-6)
        else:
            assert x == y


class Model:
    """What a step works on; every test makes two of them."""

    def __init__(self):
        self.w = tape.Variable(W, name="w")
        self.b = tape.Variable(np.float32(0.5))
        self.mean = tape.constant(np.zeros(3, np.float32))
        self.count = tape.constant(0)
        self.extra = {"layers": [tape.Variable(W * 2), tape.Variable(W * 3)]}
        self.optimizer = interop.optax.Optimizer([self.w, self.b], optax.adam(0.1))

    def variables(self):
        return [self.w, self.b, self.mean, self.count, *self.extra["layers"]]


def sgd(m, x):
    loss = ((x * m.w + m.b) ** 2).sum()
    loss.backward()
    for p in (m.w, m.b):
        p.value = p.value - 0.1 * p.grad.value
        p.grad = None
    return loss


def accumulate(m, x):
    (m.w * x).sum().backward()
    (m.w * m.b).sum().backward()
    return m.w.grad


def zero_first(m, x):
    m.w.zero_grad()
    m.b.grad = None
    tnp.sin(x * m.w + m.b).sum().backward()  # not tanh, of whose derivative 1 - y**2 rounding takes digits


def adam(m, x):
    m.optimizer.zero_grad()
    loss = ((x * m.w + m.b) ** 2).mean()
    loss.backward()
    m.optimizer.step()
    return loss


def running_mean(m, x):
    m.mean.value = 0.9 * m.mean.value + 0.1 * jnp.asarray(x)
    m.count.value = m.count.value + 1
    return m.mean * 2


def rebinding_item(m, x):
    m.mean[1] = x[0]
    m.mean[0] = m.mean[1] * 2
    return m.mean


def attribute(m, x):
    m.count += 1
    m.mean = m.mean * 0.5 + x
    return m.count * 2


def container(m, x):
    m.extra["layers"][0] = (m.extra["layers"][0] * 0.5).detach()
    m.extra["last"] = (m.w * x).detach()


def whole_list(m, x):
    m.extra["layers"] = [(v + x).detach() for v in m.extra["layers"]]


def second_order(m, x):
    y = (m.w**3 * x).sum()
    (g,) = tape.gradients(y, [m.w], create_graph=True)
    (g**2).sum().backward()
    return g


def assigns_gradient(m, x):
    m.w.grad = m.w.detach() * x if m.w.grad is None else m.w.grad * 2


def several_results(m, x):
    return {
        "same": m.w,
        "array": m.w.value * 2,
        "text": "hi",
        "none": None,
        "number": 3,
        "new": (m.w.detach() + x, tape.Variable([1.0, 2.0])),
    }


def without_gradient(m, x):
    with tape.no_grad():
        y = m.w * x
    return y, tape.stop_gradient(m.w), (m.w * x).detach()


def flags(m, x):
    m.b.requires_grad_(False)
    (m.w * m.b).sum().backward()


def transforms_inside(m, x):
    return tape.grad(lambda a: (a**3).sum())(jnp.asarray(x)), tape.value_and_grad(lambda a: (a * m.w.detach()).sum())(m.mean)


def control_flow(m, x):
    y, _ = tape.lax.scan(lambda c, a: (c * m.w + a, None), m.w * 1.0, jnp.asarray([x, x]))
    y = tape.lax.cond(y.sum() > 0, lambda: y * 2, lambda: y * 3)
    y.sum().backward()
    return y.detach()


STEPS = [
    sgd,
    accumulate,
    zero_first,
    adam,
    running_mean,
    rebinding_item,
    attribute,
    container,
    whole_list,
    second_order,
    assigns_gradient,
    several_results,
    without_gradient,
    flags,
    transforms_inside,
    control_flow,
]


def same_result(a, b):
    leaves_a, tree_a = jax.tree.flatten(a, is_leaf=lambda v: isinstance(v, tape.Variable))
    leaves_b, tree_b = jax.tree.flatten(b, is_leaf=lambda v: isinstance(v, tape.Variable))
    assert tree_a == tree_b
    for x, y in zip(leaves_a, leaves_b, strict=True):
        assert type(x) is type(y)
        if isinstance(x, tape.Variable):
            same_state(x, y)
        elif isinstance(x, (jax.Array, np.ndarray)):
            np.testing.assert_allclose(x, y, rtol=1e-6)
        else:
            assert x == y


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_a_compiled_step_leaves_behind_what_the_step_does(step):
    plain, compiled = Model(), Model()
    jitted = tape.jit(lambda x: step(compiled, x))
    for i in range(4):
        x = jnp.asarray(X + i)
        same_result(jitted(x), step(plain, tape.constant(x)))
        for a, b in zip(plain.variables(), compiled.variables(), strict=True):
            same_state(a, b)
        assert set(plain.extra) == set(compiled.extra)
        if "last" in plain.extra:
            same_state(plain.extra["last"], compiled.extra["last"])
    assert jitted.cache_info().traces <= 2  # gradients may be None at first
    same_result(jax.tree.leaves(compiled.optimizer.state), jax.tree.leaves(plain.optimizer.state))


@pytest.mark.parametrize("step", [sgd, adam, running_mean, container], ids=lambda f: f.__name__)
def test_steady_state_is_one_program(step, stats):
    m = Model()
    jitted = tape.jit(lambda x: step(m, x))
    for _ in range(3):
        jitted(X)
    stats.reset()
    for _ in range(5):
        jitted(X)
    assert stats.compiles == stats.recorded == 0
    assert stats.hits == 5


# -- arguments --------------------------------------------------------------------------------------------------------


def test_arguments_arrive_as_variables_and_results_keep_their_form():
    seen = []

    @tape.jit
    def f(a, b, *, c, d=None):
        seen.extend(type(v) for v in (a, b["x"], c))
        assert d is None
        return a + b["x"] + c, {"k": [a]}

    total, rest = f(jnp.asarray(X), {"x": X}, c=2.0)
    assert seen == [tape.Variable] * 3
    close(total, X + X + 2)
    close(rest["k"][0], X)
    assert total.dtype == jnp.float32
    assert not total.requires_grad


def test_a_variable_among_the_arguments_is_itself():
    @tape.jit
    def step(parameters, x):
        loss = sum((p * x).sum() for p in parameters.values())
        loss.backward()
        for p in {id(p): p for p in parameters.values()}.values():
            p.value = p.value - 0.5 * p.grad.value
            p.zero_grad()
        return parameters["a"]

    first = {"a": tape.Variable(W), "b": tape.Variable(X)}
    assert step(first, X) is first["a"]
    close(first["a"], W - 0.5 * X)
    second = {"a": tape.Variable(X), "b": tape.Variable(W)}
    assert step(second, X) is second["a"]
    close(second["b"], W - 0.5 * X)
    close(first["a"], W - 0.5 * X)
    assert step.cache_info().traces == 1
    one = tape.Variable(W)
    step({"a": one, "b": one}, X)  # the same Variable twice is another structure
    close(one, W - 0.5 * 2 * X)
    assert step.cache_info().traces == 2


def test_an_argument_that_is_also_captured():
    w, v = tape.Variable(W), tape.Variable(X)

    @tape.jit
    def step(p):
        p.value = p.value * 2
        return w.value + 0

    for p, expected in ((w, W * 2), (v, W * 2), (w, W * 4), (v, W * 4)):
        close(step(p), expected)
    close(v, X * 4)


def test_an_argument_that_is_also_captured_is_not_taken_for_what_is_captured():
    x, y = tape.Variable(2.0), tape.Variable(10.0)
    add, slope = tape.jit(lambda p: p + y), tape.jit(lambda p: tape.gradients(p * y, p))
    assert [float(add(p)) for p in (y, x, y, x)] == [20.0, 12.0, 20.0, 12.0]
    assert [float(slope(p)) for p in (x, y, x, y)] == [10.0, 20.0, 10.0, 20.0]
    assert [tape.jit(add.__wrapped__)(p).item() for p in (y, x)] == [20.0, 12.0]
    x, y = x * 1, y * 1  # no leaves, and beside others
    scaled = tape.jit(lambda p, d: (p + y) * d["q"])
    assert [float(scaled(x, {"q": y})), float(scaled(y, {"q": x}))] == [120.0, 40.0]


def test_arguments_from_a_container_that_the_step_reaches_are_traced_twice_at_most():
    class Model:
        def __init__(self):
            self.w = tape.Variable(2.0)
            self.batches = [tape.constant([1.0 * i, 2.0]) for i in range(6)]

        @tape.jit
        def step(self, x):
            ones = np.ones(2000, np.float32)  # other objects at each trace
            return ((x * self.w).sum() * ones)[0], 0.37 * x.size

        @tape.jit
        def against_the_last(self, x):
            return (x * self.batches[-1]).sum()

    model = Model()
    for x in (*model.batches, *model.batches[::-1], tape.constant([7.0, 1.0])):
        assert float(model.step(x)[0]) == 2.0 * float(x.sum())
        assert float(model.against_the_last(x)) == float((x * model.batches[-1]).sum())
    assert model.step.cache_info().traces == 2
    assert model.against_the_last.cache_info().traces == 3  # another one where it is the last itself
    model.batches.pop()  # the one before is met as the last now, where it was only one among others
    last = model.batches[-1]
    for x in (last, model.batches[1], tape.constant([7.0, 1.0])):
        assert float(model.against_the_last(x)) == float((x * last).sum())


def _times(y, factor):
    y = y * 1
    y.register_hook(lambda g: g * factor)
    return y * 1


def _named(y, name):
    y.name = name
    return y


@pytest.mark.parametrize(
    "instead",
    [
        lambda y, i: y.detach() if i == 1 else y,
        lambda y, i: y.detach().requires_grad_() if i == 1 else y.detach(),
        lambda y, i: y * np.array([1.0 + (i == 1), 2.0], np.float32),
        lambda y, i: y.sum() * np.arange(2000 + 10 * (i == 1), 4000 + 10 * (i == 1), dtype=np.float32),
        lambda y, i: _times(y, 2.0 + (i == 1)),
        lambda y, i: _named(y, "second" if i == 1 else "other"),
        lambda y, i: (y, -0.0 if i == 1 else 0.0),
    ],
    ids=["detached", "leaf", "constant", "large", "hook", "name", "zero"],
)
def test_what_is_done_for_one_argument_in_a_container_only_is_not_done_for_others(instead):
    model = types.SimpleNamespace(w=tape.Variable([2.0, 3.0]), batches=[tape.Variable([1.0 + i, 2.0]) for i in range(4)])

    def step(x):
        return instead(x * model.w, [x is b for b in model.batches].index(True))

    def outcome(call, x):
        leaves = jax.tree.leaves(call(x), is_leaf=lambda v: isinstance(v, tape.Variable))
        y = leaves[0]
        if y.requires_grad:
            y.backward(tnp.ones(y.shape))
        grads = [v.grad if v.grad is None else v.grad.tolist() for v in (model.w, x, y)]
        model.w.zero_grad()
        x.zero_grad()
        return y.tolist(), grads, y.requires_grad, y.is_leaf, y.name, *map(repr, leaves[1:])

    compiled = tape.jit(step)
    assert [outcome(compiled, x) for x in model.batches] == [outcome(step, x) for x in model.batches]
    assert compiled.cache_info()[1:] == (4, 2)  # each is traced, since the step asks which one it is; two programs


def slopes_of_slopes(call):
    """First and second derivatives of a function of a leaf and an input, at three inputs, and what became of the leaf."""
    w, grads = tape.Variable(W), []
    for scale in (1.0, -0.5, 0.25):
        v = tape.Variable(X * np.float32(scale))
        slopes = tape.gradients(call(w, v), [w, v], create_graph=True)
        sum((g * g).sum() for g in slopes).backward()
        grads += [w.value, w.grad.value, v.grad.value, *slopes]
        w.grad = None
        w.value = W
    return grads


@pytest.mark.parametrize(
    "assign",
    [
        lambda w, v: w.__setitem__(0, v[0] * 0.5),
        lambda w, v: w.__isub__(v * 0.1),
        lambda w, v: setattr(w, "value", (v * w).value),
    ],
    ids=["item", "in place", "value"],
)
def test_second_derivatives_by_a_leaf_that_the_step_assigns_to_before_it_reads_it_again(assign):
    def step(w, v):
        before = tnp.sin(w * v).sum()
        with tape.no_grad():
            assign(w, v)
        return before + tnp.tanh(w * v).sum() * w.sum()

    for a, b in zip(slopes_of_slopes(tape.jit(step)), slopes_of_slopes(step), strict=True):
        close(a, b, rtol=1e-5)


@pytest.mark.parametrize(
    "constant",
    [
        lambda w, v: (w * v).value,
        lambda w, v: jnp.sin((w * v).value),
        lambda w, v: tape.constant(w * v),
        lambda w, v: tape.Variable(w) * 2,
        lambda w, v: copy.copy(w) * copy.deepcopy(v),
        lambda w, v: tape.gradients((w * w * v).sum(), w).value,
        lambda w, v: jnp.sin(tape.gradients((w * w * v).sum(), v)),
        lambda w, v: tape.lax.scan(lambda c, r: (c * w.value * r, None), v, tnp.arange(1.0, 3.0))[0],
        lambda w, v: (w.requires_grad_(False) * w * v, w.requires_grad_())[0],
    ],
    ids=["value", "raw JAX", "constant", "leaf", "copies", "gradient", "raw JAX of a gradient", "scan", "flag"],
)
def test_second_derivatives_take_what_leaves_the_tape_in_a_step_for_constant(constant):
    def step(w, v):
        return tnp.sin(w * v * constant(w, v)).sum()

    for a, b in zip(slopes_of_slopes(tape.jit(step)), slopes_of_slopes(step), strict=True):
        close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("pending", [False, True])
def test_a_sweep_to_what_a_value_from_outside_depends_on_is_refused(pending):
    def gradient(c, b):
        return tape.gradients((c * b * b).sum(), c)

    def into_grad(c, b):
        (c * b * b).sum().backward(inputs=[c])

    def streamed(c, b):
        return [g for _, g in tape.stream_gradients((c * b * b).sum(), inputs=[c])]

    c, w = tape.Variable(X), tape.Variable(W)
    for b in (c * 2, (c * 2)[0] * w[0]):
        if not pending:
            _ = b.value
        for step in (gradient, into_grad, streamed):
            for call in (lambda: tape.jit(step)(c, b), tape.jit(lambda: step(c, b))):  # noqa: B023
                with pytest.raises(TapeRuntimeError, match="computed outside"):
                    call()
        close(tape.jit(gradient)(c, b.detach()), b.value * b.value)
    assert c.grad is None
    b = w * 2  # depends on another
    close(tape.jit(lambda: gradient(c, b))(), 4 * W * W)
    d = b * 3
    with pytest.raises(TapeRuntimeError, match="computed outside"):
        tape.jit(lambda: tape.gradients((b * d).sum(), b))()


def test_a_trace_is_not_used_again_for_what_a_sweep_in_it_would_leave_out():
    def gradient(c, b):
        return tape.gradients((c * b * b).sum(), c)

    c, w, held = tape.Variable(X), tape.Variable(W), {}
    of_both, of_b, of_none = tape.jit(gradient), tape.jit(lambda b: gradient(c, b)), tape.jit(lambda: gradient(c, held["b"]))

    def by_holder(b):
        held["b"] = b
        return of_none()

    for step in (lambda b: of_both(c, b), of_b, by_holder):
        for b in (w, w * 2, w, w * 3):
            close(step(b), b.value * b.value)
        for b in (c * 2, w * c):
            with pytest.raises(TapeRuntimeError, match="computed outside"):
                step(b)
            close(step(w * 2), 4 * W * W)
    assert [f.cache_info().traces for f in (of_both, of_b, of_none)] == [1, 1, 1]


def test_a_sweep_without_a_gradient_in_the_trace_is_not_taken_for_one_through_what_is_outside():
    """Contract 15: what depends on no input at the first call may do so at a later one; a leaf has no place in the graph before it is a root."""
    w, held = tape.Variable(W), {}

    def gradient(a):
        return tape.gradients(a, w, X, unconnected="zero")

    def of_held():
        return gradient(held["a"])

    compiled = tape.jit(of_held)

    def by_holder(a):
        held["a"] = a
        return compiled()

    for step in (tape.jit(gradient), by_holder):
        close(step(tape.Variable(X)), 0 * W)
        close(step(tape.Variable(X) * 2), 0 * W)
        for a in (w * 2, tnp.sin(w)):
            with pytest.raises(TapeRuntimeError, match="computed outside"):
                step(a)
        close(step(w), X)


def test_two_handles_of_one_result_are_two_inputs_at_the_next_call():
    """They have one value, and one place in the graph, where the step is traced; nothing says so of those of later calls."""
    w, held = tape.Variable(W), {}
    y, z = tnp.sin(w), tnp.cos(w)

    def product(a, b):
        return tnp.square(a) * b

    def of_held():
        return product(held["a"], held["b"])

    def of_one(b):
        return product(y, b)

    def with_gradient(b):
        return product(y.grad, b)

    compiled = tape.jit(of_held)

    def by_holder(a, b):
        held.update(a=a, b=b)
        return compiled()

    for step in (tape.jit(product), by_holder):
        for a, b in ((y, copy.copy(y)), (y, z), (z, y), (copy.copy(z), z), (y, copy.copy(y))):
            found = step(a, b)
            close(found, a.value**2 * b.value)
            grads = tape.gradients(found.sum(), (a, b), retain_graph=True)
            same = 3 * a.value**2
            one = a._segment is b._segment and a._place is b._place
            for g, expected in zip(grads, (same, same) if one else (2 * a.value * b.value, a.value**2), strict=True):
                close(g, expected)
    for by_gradient in (False, True):
        step = tape.jit(with_gradient if by_gradient else of_one)
        for grad, b in ((y, copy.copy(y)), (z, y), (z, copy.copy(z)), (y, z)):
            y.grad = grad if by_gradient else None
            close(step(b), (grad if by_gradient else y).value ** 2 * b.value)


def test_a_sweep_to_another_handle_of_its_root_has_its_gradient_at_later_calls_too():
    w = tape.Variable(W)
    y, z = tnp.sin(w), tnp.cos(w)

    def gradient(a):
        return tape.gradients(tnp.square(a).sum(), y, unconnected="zero", retain_graph=True)

    one, other = 2 * y.value, 0 * W
    for calls in ([(z, other), (copy.copy(y), one), (y, one)], [(copy.copy(y), one), (z, other), (y, one)]):
        step = tape.jit(gradient)
        for a, expected in calls:
            close(step(a), expected)


def test_an_argument_is_stored_also_where_the_one_of_the_first_call_was_there_already():
    x, w, held = tape.Variable(X), tape.Variable(W), {}
    held["at"] = x
    store = tape.jit(lambda v: held.update(at=v))
    for v in (x, w, w, x):
        store(v)
        assert held["at"] is v
    held["at"] = w
    store(x)
    assert held["at"] is x
    assert store.cache_info().traces == 2


def test_a_seed_from_outside_is_the_present_one_at_each_call():
    w, seed = tape.Variable(W), tape.constant(X)

    @tape.jit
    def step():
        w.grad = None
        (w * w).backward(seed)
        return tape.gradients(w * w, w, grad_outputs=seed), tape.gradients((w * 3, w), w, grad_outputs=(seed, seed))

    for _ in range(3):
        first, second = step()
        for g, expected in ((w.grad, 2 * W), (first, 2 * W), (second, 4)):
            close(g, expected * np.asarray(seed.detach()))
        seed.value = seed.value + 1


def test_an_argument_is_stored_also_where_another_trace_with_the_same_program_stored_nothing():
    model = types.SimpleNamespace(a=tape.Variable(X), b=tape.Variable(W), c=tape.Variable(X), held=tape.Variable(W))

    def put(v, w):
        model.held = v

    store = tape.jit(put)
    for v, w in ((model.a, model.a), (model.b, model.a), (model.b, model.b), (model.c, model.c), (model.c, model.a)):
        store(v, w)
        assert model.held is v


@pytest.mark.parametrize(
    ("look", "seen", "others"),
    [
        (lambda v: v.requires_grad, True, lambda v: [v.detach()]),
        (lambda v: v.is_leaf, True, lambda v: [v * 2, v.detach() * 2]),
        (lambda v: v.op is None, True, lambda v: [v * 2]),
        (lambda v: v.shape == X.shape, True, lambda v: [v.sum()]),
        (lambda v: v.dtype == "float32", True, lambda v: [v.astype("float16")]),
        (len, len(X), lambda v: [tape.Variable([1.0] * 5)]),
        (lambda v: (v.ndim, v.size, v.nbytes), (1, len(X), 4 * len(X)), lambda v: [tape.Variable([1.0] * 5)]),
        (lambda v: v.weak_type, False, lambda v: [tape.Variable(1.0) * 1]),
    ],
)
def test_what_a_variable_is_is_a_part_of_the_step_also_where_its_value_is_not_read(look, seen, others):
    held = {"v": tape.Variable(X)}
    captured = tape.jit(lambda: tape.constant(float(look(held["v"]) == seen)))
    given = tape.jit(lambda v: tape.constant(float(look(v) == seen)))
    leaf = held["v"]
    for v in (leaf, *others(leaf), leaf, *others(leaf)):
        held["v"] = v
        assert [float(captured()), float(given(v))] == [look(v) == seen] * 2


def test_a_flag_is_looked_at_anew_and_a_gradient_is_gathered_in_leaves_only():
    w, c, held = tape.Variable(X), tape.Variable(X), {}
    w.requires_grad_(False)

    @tape.jit
    def double():
        if w.requires_grad:
            with tape.no_grad():
                w[...] = w * 2

    @tape.jit
    def sweep():
        (held["b"] * held["b"]).sum().backward()

    double()
    w.requires_grad_(True)
    double()
    close(w, 2 * X)
    held["b"] = w
    sweep()
    close(w.grad, 4 * X)
    held["b"] = c * 2
    with pytest.raises(TapeRuntimeError, match="computed outside"):
        sweep()


def test_one_variable_as_two_arguments_is_another_structure_in_every_order_of_calls():
    x, w = tape.Variable(X), tape.Variable(W)
    product = tape.jit(lambda a, b: a * b)
    for a, b in [(x, x), (x, w), (w, x), (x, x), (w, w), (x, w)]:
        close(product(a, b), np.asarray(a.value) * np.asarray(b.value))

    def step(a, b):
        a.value = a.value + 1
        return b * 2

    ours, plain = [tape.constant(X), tape.constant(W)], [tape.constant(X), tape.constant(W)]
    compiled = tape.jit(step)
    for i, j in [(0, 1), (0, 1), (0, 0), (1, 0), (0, 0), (1, 1), (0, 1)]:
        close(compiled(ours[i], ours[j]), step(plain[i], plain[j]).value)
        for v, expected in zip(ours, plain, strict=True):
            close(v, expected.value)


def test_an_argument_that_is_read_and_also_assigned_to():
    w, v = tape.constant(W), tape.constant(X)

    @tape.jit
    def step(p):
        w.value = w.value * 2
        return p + 0

    for p, expected in ((v, X), (v, X), (w, W * 8), (v, X)):
        close(step(p), expected)
    close(w, W * 16)


def test_gradients_are_new_variables_at_every_call():
    w = tape.Variable(W)
    step = tape.jit(lambda x: (w * x).sum().backward())
    clear = tape.jit(lambda x: (w.zero_grad(), w * 0 + x)[1].detach())
    step(X)
    step(X)
    for n in range(2, 5):
        old = w.grad
        step(X)
        close(old, n * X)
        close(w.grad, (n + 1) * X)
    for _ in range(3):
        w.grad = X
        close(clear(X), X)
        assert w.grad is None


@pytest.mark.parametrize("after", ["nothing", "a sweep", "looks first", "an update", "puts back"])
def test_a_step_that_clears_gradients_first_is_one_whether_or_not_there_are_any(after):
    """``zero_grad(); backward(); step()``: the first call meets no gradients, and all others do."""

    def made():
        w, kept = tape.Variable(W), [None]

        def step(x):
            if after == "looks first" and w.grad is not None:
                x = x * 2
            w.zero_grad()
            if after == "puts back":
                w.grad = kept[0]
            if after not in {"nothing", "puts back"}:
                (w * w * x).sum().backward()
            if after == "an update":
                w.value = w.value - 0.1 * w.grad.value

        return w, kept, step

    (w, kept, plain), (v, held, step) = made(), made()
    compiled = tape.jit(step)
    for given in (None if after == "nothing" else W * 3, W * 3, None, "as it is", W * 5, "as it is", None):
        for u, old in ((w, kept), (v, held)):
            if given is None:
                u.grad = None
            elif not isinstance(given, str):
                u.grad = given
                old[:] = [u.grad] if after == "puts back" else old
        plain(X)
        compiled(X)
        assert (v.grad is None) == (w.grad is None)
        if w.grad is not None:
            close(v.grad, w.grad.value)
        close(v, w.value)
    assert (compiled.cache_info().traces == 1) == (after != "looks first")


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("change", ["scaled", "an element", "updated too"])
def test_a_gradient_from_before_that_is_written_to(change, held):
    """Clipping what was gathered before: the step changes what it has not made, and which no name outside refers to."""

    def made():
        w = tape.Variable(np.array([1.0, 2.0, 3.0], np.float32))
        (w * w).sum().backward()
        gradient = w.grad if held else None

        def step(a):
            g = w.grad if gradient is None else gradient
            if change == "an element":
                g[1] = a
                return
            with tape.no_grad():
                g *= a
                if change == "updated too":
                    w.value = (w - 0.5 * w.grad).value

        return w, gradient, step

    (w, g, plain), (v, h, step) = made(), made()
    compiled = tape.jit(step)
    for k in range(4):
        a = np.float32(0.5 + k)
        plain(a)
        compiled(a)
        np.testing.assert_allclose(v.grad.value, w.grad.value, rtol=1e-6)
        np.testing.assert_allclose(v.value, w.value, rtol=1e-6)
        if held:
            assert v.grad is h
            np.testing.assert_allclose(h.value, g.value, rtol=1e-6)


@pytest.mark.parametrize("way", [lambda f: f, tape.jit])
def test_a_gradient_that_is_replaced_and_returned_is_the_one_from_before(way):
    v = tape.Variable(W)
    v.grad = X

    @way
    def step():
        before = v.grad
        v.grad = before * 2
        return before

    for k in range(3):
        close(step(), X * 2**k)
        close(v.grad, X * 2 ** (k + 1))


@pytest.mark.parametrize("way", [lambda f: f, tape.jit])
def test_contract_03_a_gradient_that_is_assigned_inside_is_a_seed(way):
    w, c = tape.Variable(2.0), tape.constant([2.0])
    y = w * w

    @way
    def step(x):
        z = w * 5
        z.grad = x * 7
        y.grad = x * 3
        c[0] = w
        c.grad = x * tnp.ones(1) * 4
        return z

    z = step(1.0)
    tape.backward([y, z, c])
    assert float(w.grad) == 4 * 3 + 5 * 7 + 4


def test_gradients_are_cleared_and_read_where_they_are_now():
    a, b, w = tape.Variable(W), tape.Variable(W), tape.Variable(W)
    step = tape.jit(lambda p: setattr(p, "grad", None))
    for p in (a, b, a):
        p.grad = X
        step(p)
        assert p.grad is None
    y = w * 2
    clear, read = tape.jit(lambda: setattr(y, "grad", None)), tape.jit(lambda: y.grad * 1)
    for k in range(3):
        y.grad = X * k
        close(read(), X * k)
        clear()
        assert y.grad is None
        y[0] = 1.0  # from here on it is another one
    read_of = tape.jit(lambda v: v.grad * 1)
    w.grad = tape.constant(X)
    assert not read_of(w).requires_grad
    w.grad = tape.Variable(X)
    assert read_of(w).requires_grad


@pytest.mark.parametrize("way", [lambda f: f, tape.jit])
def test_a_leaf_that_is_made_inside_brings_its_gradient(way):
    w = tape.Variable(W)

    @way
    def step(x):
        y = (w * x).detach().requires_grad_()
        (y * y).sum().backward()
        return y

    for _ in range(2):
        close(step(X).grad, 2 * W * X)


@pytest.mark.parametrize("way", [lambda f: f, tape.jit])
def test_results_beside_one_that_is_differentiable_are_what_they_are(way):
    w = tape.Variable(W)

    @way
    def step(x):
        y = w * x
        return tape.gradients((w * w).sum(), w), y, y, y.detach().value

    for _ in range(2):
        g, y, again, array = step(X)
        assert y is again
        assert isinstance(array, jax.Array)
        close(array, W * X)
        with pytest.raises(UnrecordedGradientError, match="create_graph=True"):
            (g * y).sum().backward()
    with tape.no_grad():
        y, again = way(lambda: (2 * w,) * 2)()
    assert y is again


@pytest.mark.parametrize("way", [lambda f: f, tape.jit])
def test_a_parameter_that_becomes_a_result_gets_the_gradient_of_what_was_read_before(way):
    v, w = tape.Variable(X), tape.Variable(W)

    @way
    def step():
        loss = (w * w).sum()
        w.requires_grad_(False)
        w[0] = v[0] * 2
        return loss

    seen = {}
    w.register_hook(lambda g: seen.update(g=g.value))
    step().backward(retain_graph=True)
    close(seen["g"], 2 * W)
    w.sum().backward()
    close(v.grad, [2, 0, 0])


def test_a_parameter_that_is_assigned_before_it_is_read_gets_the_gradient():
    w = tape.Variable(W)

    @tape.jit
    def f(x):
        w.value = x.value * 2
        return (w * w).sum()

    for _ in range(2):
        w.grad = None
        f(X).backward()
        close(w.grad, 4 * X)


def test_static_arguments_that_are_equal_and_not_the_same_have_programs_of_their_own():
    @tape.jit(static_argnames="by")
    def f(x, by):
        return x * by[0][0] if isinstance(by, tuple) else tnp.copysign(x, by)

    x = tape.constant(np.arange(3, dtype=np.int32))
    for by, dtype in ((((2,),), "int32"), (((2.0,),), "float32"), (((True,),), "int32"), (((1,),), "int32"), (((2.0,),), "float32")):
        assert f(x, by=by).dtype == dtype
    close(f(x, by=((1,),)), [0, 1, 2])
    for by in (0.0, -0.0, 0.0):
        close(f(X, by=by), np.copysign(X, by))


def test_static_arguments():
    traces = []

    @tape.jit(static_argnums=0, static_argnames="mode")
    def f(n, x, mode="a"):
        traces.append((n, mode))
        return x * n if mode == "a" else x + n

    close(f(2, X), X * 2)
    close(f(2, X), X * 2)
    close(f(3, X, mode="b"), X + 3)
    close(f(3, X, mode="b"), X + 3)
    close(f(n=2, x=X, mode="b"), X + 2)
    close(f(2.0, X), X * 2)  # another type is another program
    assert traces == [(2, "a"), (3, "b"), (2, "b"), (2.0, "a")]
    with pytest.raises(TapeTypeError, match="cannot be hashed"):
        f([1], X)
    with pytest.raises(TapeTypeError, match="static_argnums"):
        f(1, "text")


def test_static_arguments_from_the_end():
    f = tape.jit(lambda *xs: xs[0] * len(xs[-1]), static_argnums=-1)
    close(f(X, "four"), X * 4)
    close(f(X, X, "three"), X * 5)


def test_an_array_of_what_a_hook_looked_at_is_no_constant_of_a_step():
    twice = tape.jit(lambda g: g * 2)
    w = tape.Variable(W)
    y = w * w
    y.register_hook(lambda g: twice(g.value))
    loss = (y * y).sum()
    for _ in range(2):
        g = tape.gradients(loss, w, create_graph=True)
        with pytest.raises(UnrecordedGradientError, match="second derivative"):
            g.sum().backward()


def test_keys_and_other_dtypes():
    key = tape.constant(jax.random.key(3))

    @tape.jit
    def draw(n):
        new, sub = tape.random.split(key)
        key.value = new.value
        return tape.random.normal(sub, (3,)) * n, n > 1

    expected = jax.random.key(3)
    for _ in range(2):
        expected, sub = jax.random.split(expected)
        sample, flag = draw(2)
        close(sample, jax.random.normal(sub, (3,)) * 2)
        assert bool(flag)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: tape.jit(3), TapeTypeError, ["expected a function", "int"]),
        (lambda: tape.jit(lambda x: x, static_argnums="x"), TapeTypeError, ["static_argnums", "int"]),
        (lambda: tape.jit(lambda x: x, static_argnums=1), TapeValueError, ["argument 1", "1 positional"]),
        (lambda: tape.jit(lambda x: x, static_argnames="y"), TapeValueError, ["'y'", "x"]),
        (lambda: tape.jit(lambda x: x, static_argnums=0, donate_argnums=0), TapeValueError, ["static and donated"]),
        (lambda: tape.jit(lambda x: x)(object()), TapeTypeError, ["object", "static_argnums"]),
    ],
)
def test_wrong_uses(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


# -- gradients through a call -------------------------------------------------------------------------------------------


def test_gradients_flow_through_a_call():
    w, x = tape.Variable(W), tape.Variable(X)
    f = tape.jit(lambda a: tnp.sin(a * w).sum())
    for _ in range(3):
        w.grad = x.grad = None
        y = f(x * 2) * 3
        assert y.requires_grad
        y.backward()
        close(w.grad, 3 * 2 * X * np.cos(2 * X * W))
        close(x.grad, 3 * 2 * W * np.cos(2 * X * W))
    (g,) = tape.gradients(f(x), [x], create_graph=True)
    (h,) = tape.gradients(g.sum(), [x])
    close(h, -(W**2) * np.sin(X * W))
    (mixed,) = tape.gradients(tape.gradients(f(x), x, create_graph=True).sum(), [w])
    close(mixed, np.cos(X * W) - X * W * np.sin(X * W), rtol=1e-5)


@pytest.mark.parametrize("which", [0, 1])
def test_one_of_two_results_is_swept(which):
    w = tape.Variable(W)
    tape.jit(lambda: ((w * w).sum(), (3 * w).sum()))()[which].backward()
    close(w.grad, 2 * W if which == 0 else np.full(3, 3.0))


def test_second_derivatives_go_through_results_and_what_the_sweep_reads():
    def f(x, exp, sin):
        a = sin(x)
        return exp(a) * a, a * 2

    w = tape.Variable(0.7)
    y, _ = tape.jit(lambda: f(w, tnp.exp, tnp.sin))()
    (g,) = tape.gradients(y, [w], create_graph=True)

    def plain(x):
        return f(x, jnp.exp, jnp.sin)[0]

    close(tape.gradients(g * y, w), jax.grad(lambda x: jax.grad(plain)(x) * plain(x))(0.7), rtol=1e-5)


def test_a_call_is_recorded_and_stays_pending(stats):
    w = tape.Variable(W)
    f = tape.jit(lambda a: a * w)
    f(w * 2)
    stats.reset()
    y = f(w * 2).sum()
    assert stats.recorded
    assert not stats.flushes
    y.backward()
    close(w.grad, 4 * W)


def test_state_and_gradients_together():
    w, mean = tape.Variable(W), tape.constant(np.zeros(3, np.float32))

    @tape.jit
    def normalize(x):
        centre = (x * w).detach()
        mean.value = 0.5 * mean.value + centre.value
        return x * w - mean

    expected = np.zeros(3, np.float32)
    for i in range(3):
        expected = 0.5 * expected + X * W
        y = normalize(tape.constant(X))
        close(y, X * W - expected)
        close(mean, expected)
        y.sum().backward()
        close(w.grad, X * (i + 1))


@pytest.mark.parametrize("way", [lambda f: f, tape.jit])
def test_a_gradient_taken_without_recording_may_be_cut_inside(way):
    w = tape.Variable(2.0)
    g = tape.gradients(w * w, w)
    way(lambda: g.unchain())()
    (g * w).backward()
    assert float(w.grad) == 4.0


def test_what_cuts_a_gradient_inside_cuts_it_outside():
    w = tape.Variable(W)

    class Scaled(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 100

    @tape.jit
    def f():
        with tape.no_grad():
            a = w * 3
        b = w * w.detach() + tape.Variable(w.value * 5)
        h = w * 7
        h.register_hook(lambda g: g * 10)
        return a + b + h + Scaled.apply(w)

    for _ in range(2):
        w.grad = None
        f().sum().backward()
        close(w.grad, W + 70 + 100)


def test_a_result_that_retains_its_gradient_inside_lets_gradients_through():
    x = tape.Variable(3.0)

    @tape.jit
    def step(v):
        y = v * 2
        y.retain_grad()
        z = y * y
        z.backward(retain_graph=True)
        return y, z, y.grad

    for _ in range(3):
        x.grad = None
        y, z, inside = step(x)
        assert float(inside) == 12.0
        assert float(x.grad) == 24.0
        y.backward(retain_graph=True)
        assert float(x.grad) == 24.0 + 2.0
        assert float(y.grad) == 12.0 + 1.0
        with pytest.raises(tape.errors.LostGradientError, match="computed of it"):  # the gradient that y retains would be 26
            (y + z).backward()


class _Product(tape.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        ctx.factor = y
        return x * y * y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved
        return g * ctx.factor**2, 2 * g * x * ctx.factor


@pytest.mark.parametrize("saved", [lambda y, w: _Product.apply(y, w), lambda y, w: _Product.apply(w, y)], ids=["attribute", "saved"])
@pytest.mark.parametrize("written", ["value", "in place", "not"])
def test_second_derivatives_through_what_a_function_saved_of_an_assigned_leaf(saved, written):
    def second(wrap):
        w, y = tape.Variable(W), tape.Variable(W * 0.5 + 1)

        @wrap
        def step(y):
            if written == "value":
                w.value = w.value * 0.9
            elif written == "in place":
                with tape.no_grad():
                    w.__isub__(0.1 * w)
            return (saved(y, w) ** 2).sum()

        gradients = tape.gradients(step(y), [w, y], create_graph=True)
        return [*gradients, *tape.gradients(sum((g * g).sum() for g in gradients), [w, y])]

    for plain, compiled in zip(second(lambda f: f), second(tape.jit), strict=True):
        close(compiled, plain, rtol=1e-5)


class _Interrupt:
    """Raises at the n-th thing that Python does in the modules of tape.jit, as Ctrl-C may; ``over`` if it did not come to that."""

    def __init__(self, n):
        self.left = n
        self.over = True

    def __call__(self, frame, event, arg):
        if event == "call" and "jitting" not in frame.f_code.co_filename:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if "with " in line:  # tracing comes between the end of its block and __exit__, and no signal does
            return self
        self.left -= 1
        if self.left < 0 and self.over:
            self.over = False
            raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("way", ["plain", "donated", "recorded"])
def test_an_interrupted_call_has_done_all_or_nothing(way):
    w, total = tape.Variable(np.zeros(3)), tape.Variable(0.0, requires_grad=False)
    held = {"mean": tape.constant(np.zeros(3))}

    @functools.partial(tape.jit, donate_state=way == "donated")
    def step(x):
        loss = (w * x).sum()
        (w.sum() * 1.0).backward()
        w.value = (w + 1.0).value
        total.value = (total + 1.0).value
        held["mean"] = held["mean"] + 1.0
        return loss if way == "recorded" else loss.detach()

    x = tape.Variable(np.ones(3))
    n, interrupt = 0, _Interrupt(0)
    while not interrupt.over or n < 3:
        step(x)
        step(x)  # so that the next call is like the one before it
        done, interrupt, before = float(total), _Interrupt(n), sys.gettrace()
        sys.settrace(interrupt)
        try:
            step(x)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        got = {float(total), *w.tolist(), *w.grad.tolist(), *held["mean"].tolist()}
        assert got in ({done}, {done + 1}), f"{got} at {n}"
        n += 1
    assert n > 50


def test_a_result_that_retains_its_gradient_inside_retains_it_outside():
    kept = {"h": None}

    def returned(x):
        h = tnp.sin(x) * 1.1
        h.retain_grad()
        return h

    def swept(x):
        h = returned(x)
        (h * h).sum().backward(retain_graph=True)
        return h

    def stored(x):
        kept["h"] = returned(x)
        return kept["h"] * 2

    def written():
        v[0] = 5.0
        v.retain_grad()

    for function in (returned, swept, stored):
        got = []
        for step in (function, tape.jit(function)):
            x = tape.Variable(W)
            for _ in range(3):
                h = step(x)
                h = kept["h"] if function is stored else h
                (h**3).sum().backward(retain_graph=True)
                (h**2).sum().backward()
                got += [h.grad, x.grad]
        for plain, compiled in zip(got[:6], got[6:], strict=True):
            close(compiled, plain, rtol=1e-5)
    for step in (written, tape.jit(written)):
        v = tape.Variable(W) * 2
        step()
        (v * v).sum().backward()
        close(v.grad, 2 * v.value)

    @tape.jit
    def both(x):
        h = returned(x)
        return h, (h * h).sum()

    h, loss = both(tape.Variable(W))
    with pytest.raises(tape.errors.LostGradientError, match="another result of the same call, which both has computed of it"):
        loss.backward()


@pytest.mark.parametrize(
    "ask",
    [
        lambda h: h.retain_grad(),
        lambda h: h.register_hook(lambda g: g * 2),
        lambda h: h.unchain(),
        lambda h: None,
    ],
    ids=["retained", "hook", "cut", "target"],
)
def test_the_gradient_of_a_result_without_what_others_have_computed_of_it_inside_is_refused(ask):
    def features(x):
        h = tnp.tanh(x * w)
        return h, (h * h).sum(), x.sum()

    compiled = tape.jit(features)
    w = tape.Variable(W)
    for _ in range(2):
        x = tape.Variable(X)
        h, loss, other = compiled(x)
        ask(h)
        targets = None if ask.__code__.co_names else [h]
        with pytest.raises(tape.errors.LostGradientError, match=r"another result of the same call, which features has computed of it"):
            tape.backward((h**3).sum() + loss, inputs=targets)
        assert x.grad is h.grad is None
        x = tape.Variable(X)
        h, loss, other = compiled(x)
        ask(h)
        ((h**3).sum() + other).backward()  # of which it knows all
        right = tape.Variable(X)
        again, _, other = features(right)
        ask(again)
        ((again**3).sum() + other).backward()
        close(x.grad, right.grad, rtol=1e-5)
        assert (h.grad is None) == (again.grad is None)


def test_a_released_or_unrecorded_result_raises_when_it_is_swept():
    w = tape.Variable(W)

    @tape.jit
    def step():
        older = (w * 3).sum()  # which nothing releases
        loss = (w * w).sum()
        g = tape.gradients(loss, w, retain_graph=True)
        loss.backward()
        return loss, (w * g).sum(), loss + older

    for _ in range(2):
        w.grad = None
        loss, product, both = step()
        assert loss.requires_grad
        assert product.requires_grad
        assert not loss.is_leaf
        with pytest.raises(ReleasedTapeError, match="retain_graph=True"):
            both.backward()
        with pytest.raises(ReleasedTapeError, match="retain_graph=True"):
            loss.backward()
        with pytest.raises(ReleasedTapeError, match="retain_graph=True"):
            tape.gradients(loss * 2, w)
        with pytest.raises(UnrecordedGradientError, match="create_graph=True"):
            product.backward()
        close(w.grad, 2 * W)
        close(loss + 1, (W * W).sum() + 1)


def test_backward_that_would_go_on_outside_is_an_error():
    w = tape.Variable(W)
    h = w * 2
    step = tape.jit(lambda: (h * h).sum().backward())
    with pytest.raises(TapeRuntimeError, match="computed outside"):
        step()
    assert w.grad is None
    f = tape.jit(lambda a: tape.gradients((a * a).sum(), a))  # but a gradient with respect to it is fine
    close(f(h), 4 * W)
    close(tape.jit(lambda: tape.gradients((h * h).sum(), h))(), 4 * W)


def test_post_accumulate_and_leaf_hooks_run_when_traced():
    w = tape.Variable(W)
    w.register_hook(lambda g: g * 3)
    w.register_post_accumulate_grad_hook(lambda v: setattr(v, "value", v.value - v.grad.value))
    step = tape.jit(lambda x: (w * x).sum().backward())
    step(X)
    close(w, W - 3 * X)
    f = tape.jit(lambda x: (w * x).sum())
    w.grad = None
    f(X).backward()
    close(w.grad, 3 * X)  # once


def test_a_hook_registered_or_removed_later_is_noticed():
    w = tape.Variable(W)
    step = tape.jit(lambda x: (w * x).sum().backward())
    gradient = tape.jit(lambda x: tape.gradients((w * x).sum(), w))

    def gradients():
        w.grad = None
        step(X)
        close(w.grad, gradient(X))
        return w.grad

    close(gradients(), X)
    handle = w.register_hook(lambda g: g * 5)
    close(gradients(), X * 5)
    assert "hooks" in step.explain()
    handle.remove()
    close(gradients(), X)
    seen = []
    handle = w.register_post_accumulate_grad_hook(lambda v: seen.append(v is w))
    w.grad = None
    step(X)
    assert seen == [True]


# -- what makes a new trace -----------------------------------------------------------------------------------------------


def test_reasons_for_a_new_trace(monkeypatch):
    w = tape.Variable(W, name="w")
    holder = {"v": w}

    def f(x, y=0):
        return (x * holder["v"]).sum().backward()

    step = tape.jit(f)
    step(jnp.ones(3))
    step(jnp.ones((2, 3)))
    step(jnp.ones(3))
    w.grad = None
    step(jnp.ones(3))
    holder["v"] = tape.Variable(np.float32(2.0), name="s")
    step(jnp.ones(3))
    with tape.no_grad(), pytest.raises(TapeValueError):
        step(jnp.ones(3))
    lines = step.explain().splitlines()
    assert lines[0] == "trace 1: first call"
    assert "argument 0: shape (3,), dtype float32 -> shape (2, 3), dtype float32" in lines[1]
    assert "captured Variable 'w': grad: None -> shape (3,), dtype float32" in lines[2]
    assert "captured Variable 's'" in lines[3]
    assert len(lines) == 4
    with monkeypatch.context() as narrow:
        narrow.setenv("COLUMNS", "50")
        narrow.setattr(sys.stdout, "isatty", lambda: True)
        narrower = step.explain().splitlines()
    assert max(map(len, narrower)) <= 50
    assert " ".join(line.strip() for line in narrower) == " ".join(lines)
    assert step.cache_info().traces == 4
    step.clear_cache()
    assert step.cache_info().kept == 0
    assert tape.jit(f).explain() == "not traced yet"


TOTAL = tape.Variable(0.0, requires_grad=False)


def rebound_names():
    """Return steps that bind a name outside of them anew, each with a function that says what the name holds."""
    total = tape.Variable(0.0, requires_grad=False)

    def of_a_closure(x, *, weight=2.0):
        nonlocal total
        total = total + x.detach()
        return total * x * weight

    def of_the_module(x, *, weight=2.0):
        global TOTAL  # noqa: PLW0603 - what is tested
        TOTAL = TOTAL + x.detach()
        return TOTAL * x * weight

    def of_the_function(x, *, weight=2.0):
        of_the_function.total = of_the_function.total + x.detach()
        return of_the_function.total * x * weight

    of_the_function.total = tape.Variable(0.0, requires_grad=False)
    return [(of_a_closure, lambda: total), (of_the_module, lambda: TOTAL), (of_the_function, lambda: of_the_function.total)]


def made_when_missing(state, x):
    state["total"] = x * 2 if state.get("total") is None else state["total"] + x


def made_by_default(state, x):
    state.setdefault("total", tape.constant(1.0))
    state["total"] = state["total"] * 2 + x


def a_number_at_first(state, x):
    state["total"] = state.get("total", 0.5) * 2 + x


def rows_that_are_empty_at_first(state, x):
    state["rows"] = [x, *state.get("rows", [])][:2]


@pytest.mark.parametrize("given", [{}, {"total": None, "rows": []}], ids=["missing", "empty"])
@pytest.mark.parametrize("step", [made_when_missing, made_by_default, a_number_at_first, rows_that_are_empty_at_first])
def test_what_a_step_puts_where_nothing_was_is_there_at_the_next_call(step, given):
    if given and step in {made_by_default, a_number_at_first}:
        given = {"other": None}
    state, plain = dict(given), dict(given)
    compiled = tape.jit(lambda x: step(state, x))
    for x in (1.0, 2.0, 3.0, 4.0):
        compiled(tape.constant(x))
        step(plain, tape.constant(x))
        assert jax.tree.map(float, state) == jax.tree.map(float, plain)
    state.clear()
    state.update(given)  # begins anew, with the program that did
    traces = compiled.cache_info().traces
    compiled(tape.constant(1.0))
    plain.clear()
    plain.update(given)
    step(plain, tape.constant(1.0))
    assert jax.tree.map(float, state) == jax.tree.map(float, plain)
    assert compiled.cache_info().traces == traces


def draws(state, x):
    state["key"], key = jax.random.split(state["key"])
    return x * tape.random.uniform(key)


def averages(state, x):
    state["mean"] = 0.9 * state["mean"] + 0.1 * x.value
    return x * state["mean"]


def averages_from_nothing(state, x):
    state["none"] = x.value if state["none"] is None else state["none"] * 0.5 + x.value
    return x * state["none"]


def moments(state, x):
    m, (v, w) = state["moments"]
    state["moments"] = Moments(m * 0.5 + x.value, (v + 1, (w * x).detach()))
    return x * m * v + w


def array_of_numpy(state, x):
    state["numpy"] = state["numpy"] + x.value
    return x * state["numpy"]


def exchanged(state, x):
    state["mean"], state["other"] = state["other"] + 1, state["mean"] + x.value
    return x * state["mean"]


def unread(state, x):
    state["none"] = x.value * 2
    return x * 3


Moments = collections.namedtuple("Moments", "first rest")  # noqa: PYI024 - nothing to say of types


@pytest.mark.parametrize("step", [draws, averages, averages_from_nothing, moments, array_of_numpy, exchanged, unread])
def test_arrays_that_a_step_replaces_are_read_anew_at_every_call(step):
    def made():
        zero, one = jnp.zeros(()), jnp.ones(())
        rest = (one, tape.constant(one))
        return {"key": jax.random.key(7), "mean": zero, "other": zero, "none": None, "moments": Moments(zero, rest), "numpy": np.zeros(())}

    def plain(state):
        key = state["key"]
        return [float(x) for x in jax.tree.leaves({**state, "key": jax.random.uniform(key)})]

    states = made(), made()
    compiled = tape.jit(lambda x: step(states[0], x))
    for turn in range(5):
        if turn == 3:  # another value from outside
            for state in states:
                state["mean"] = jnp.float32(0.75)
        xs = [tape.Variable(1.0 + turn) for _ in states]
        found, right = compiled(xs[0]), step(states[1], xs[1])
        assert float(found) == pytest.approx(float(right), rel=1e-6)
        found.backward()
        right.backward()
        assert float(xs[0].grad) == pytest.approx(float(xs[1].grad), rel=1e-6)
        assert plain(states[0]) == pytest.approx(plain(states[1]), rel=1e-6)
    assert compiled.cache_info().traces <= 2


_READ = jnp.ones(3)


def _attributes(model):
    return lambda x: x * model.a + model.pair[0] * model.pair[1] + model.rows[0] + tape.random.uniform(model.key, (3,)) * model.w


def _looks(model):
    return lambda x: x * model.a if np.asarray(model.a)[0] > 0 else x - model.a


def _lifts(model):
    inner = interop.lift(lambda x: x * model.a)
    return lambda x: (inner(x) * model.w, tape.checkpoint(lambda x: tnp.sin(x * model.a))(x))


def _loops(model):
    nested = tape.jit(lambda x: x * model.a)
    return lambda x: nested(tape.lax.scan(lambda c, _: (c * model.a, model.pair[0].sum()), x, None, length=2)[0])


def _also_replaces(model):
    def step(x):
        y = x * model.pair[0] * model.a
        model.pair = (model.pair[0] + 1, model.pair[1])
        return y

    return step


@pytest.mark.parametrize(
    ("make", "traces"), [(_attributes, 6), (_looks, 6), (_lifts, 3), (_loops, 4), (_also_replaces, 3), (lambda _: lambda x: x * _READ, 2)]
)
def test_arrays_that_are_replaced_outside_are_read_anew(make, traces):
    ones = jnp.ones(3)

    def outcomes(wrap):
        w = tape.Variable([1.0, 2.0, 3.0])
        model = types.SimpleNamespace(a=ones, pair=(ones, 2), rows=[ones], key=jax.random.key(0), w=w)
        step = wrap(make(model))
        changes = [{}, {"a": 2 * ones}, {}, {"a": -3 * ones}, {"pair": (5 * ones, 2)}, {"key": jax.random.key(1)}, {"rows": [4 * ones]}]
        changes += [{"a": jnp.ones(1)}, {"a": 6 * ones}, {"pair": (7 * ones, 2)}, {"key": jax.random.key(2)}]
        for i, change in enumerate(changes):
            globals()["_READ"] = (i + 1) * ones
            vars(model).update(change)
            x = tape.Variable([0.5, -1.0, 2.0])
            results = jax.tree.leaves(step(x), is_leaf=lambda v: isinstance(v, tape.Variable))
            yield [*results, *tape.gradients([y.sum() for y in results], [x, w], unconnected="zero")], step

    for found, right in zip(outcomes(tape.jit), outcomes(lambda step: step), strict=True):
        for a, b in zip(found[0], right[0], strict=True):
            close(a, b.value, rtol=1e-5)
    assert found[1].cache_info().traces <= traces


def test_what_jax_does_not_flatten_may_stand_in_a_place():
    model = types.SimpleNamespace(given=({len: 1, max: 2}, jnp.full(3, 2.0)), two=jnp.ones(3), scale=tape.Variable(3.0))
    step = tape.jit(lambda x: x * model.given[1] * model.two * model.scale)
    for n in (2, 5, 7):
        model.two = jnp.full(3, float(n))
        np.testing.assert_array_equal(step(tape.constant(1.0)).numpy(), np.full(3, 6.0 * n))
    model.two = ({len: 1, max: 2}, 1)
    with pytest.raises(TypeError):
        step(tape.constant(1.0))


def test_views_of_dicts_in_places_are_nothing_that_jax_warns_of():
    parts = {"a": jnp.ones(3), "b": jnp.ones(3)}
    model = types.SimpleNamespace(given=(parts.values(), parts.keys(), jnp.full(3, 2.0)), scale=tape.Variable(3.0))
    step = tape.jit(lambda x: x * model.given[2] * sum(model.given[0]) * model.scale)
    for n in (2, 5, 7):
        model.given = (*model.given[:2], jnp.full(3, float(n)))
        np.testing.assert_array_equal(step(tape.constant(1.0)).numpy(), np.full(3, 6.0 * n))


def test_an_array_of_another_shape_in_a_place_that_gets_others_is_another_program():
    state = {"rows": jnp.zeros(1)}

    def step(x):
        state["rows"] = jnp.append(state["rows"], x.value)
        return x * state["rows"].sum()

    compiled = tape.jit(step)
    assert [float(compiled(tape.constant(2.0))) for _ in range(3)] == [4.0, 8.0, 12.0]
    assert "captured array \"state['rows']\": shape (1,), dtype float32 -> shape (2,)" in compiled.explain()
    state["rows"] = "none"
    with pytest.raises(TypeError):
        compiled(tape.constant(2.0))
    assert state == {"rows": "none"}


@pytest.mark.parametrize("made", [jnp.zeros, lambda n: tape.constant(jnp.zeros(n))], ids=["array", "Variable"])
def test_what_a_step_has_replaced_goes(made):
    state = {"rows": made(1013)}  # no other test has arrays so long

    def step(x):
        state["rows"] = state["rows"] + (x if isinstance(state["rows"], tape.Variable) else x.value)
        return x * 3

    compiled = tape.jit(step)
    for _ in range(12):
        compiled(tape.constant(1.0))
    gc.collect()
    assert sum(x.shape == (1013,) for x in jax.live_arrays()) <= 3  # the newest, what the latest call read, and what was there at first


class _Model:
    def __init__(self, state, weight=None):
        self.state, self.weight = state, tape.constant(W) if weight is None else weight


def _stepped(model):
    """Return a step that replaces state, as an array where it is one; compiled, and as it is."""

    def step(x):
        model[0].weight.value = model[0].weight.value + 1
        if isinstance(model[0].state, tape.Variable):
            model[0].state = (model[0].state * 0.5 + x * model[0].weight).detach()
        else:
            model[0].state = model[0].state * 0.5 + (x * model[0].weight).value
        return x.sum() + model[0].state.sum()

    return tape.jit(step), step


@pytest.mark.parametrize("made", [jnp.zeros, lambda n: tape.constant(jnp.zeros(n))], ids=["array", "Variable"])
def test_places_of_a_step_are_not_searched_for_at_every_call(made, monkeypatch):
    compiled, _ = _stepped([_Model(made(3))])
    for _ in range(3):
        compiled(tape.constant(X))
    monkeypatch.setattr("tape.jitting.jitted.Reach", None)
    for _ in range(3):
        compiled(tape.constant(X))


def _another(model):
    model[0] = _Model(type(model[0].state)(model[0].state) if isinstance(model[0].state, tape.Variable) else model[0].state + 1)


def _another_weight(model):
    model[0].weight = tape.constant(W + 1)


def _other_state(model):
    model[0].state = model[0].state * 3


def _longer(model):
    model[0].state = tnp.stack([model[0].state] * 2) if isinstance(model[0].state, tape.Variable) else jnp.stack([model[0].state] * 2)


def _of_the_other_kind(model):
    state = model[0].state
    model[0].state = state.value if isinstance(state, tape.Variable) else tape.constant(state)


def _the_weight(model):
    model[0].state = model[0].weight


def _the_same_object_again(model):
    model[:] = [_Model(model[0].state, model[0].weight)]


@pytest.mark.parametrize("made", [jnp.zeros, lambda n: tape.constant(jnp.zeros(n))], ids=["array", "Variable"])
@pytest.mark.parametrize(
    "change", [_another, _another_weight, _other_state, _longer, _of_the_other_kind, _the_weight, _the_same_object_again]
)
def test_a_step_sees_what_is_put_into_its_places_between_calls(made, change):
    expected, found = [], []
    for which, answers in ((1, expected), (0, found)):
        model = [_Model(made(3))]
        step = _stepped(model)[which]
        for turn in range(6):
            if turn == 3:
                before = model[0]
                change(model)
            answers += [step(tape.constant(X)).numpy(), np.asarray(jax.device_get(getattr(model[0].state, "value", model[0].state)))]
            if turn == 5:
                answers.append(np.asarray(getattr(before.state, "value", before.state)))
    for f, e in zip(found, expected, strict=True):
        close(f, e)


def test_a_step_is_bound_anew_where_an_argument_is_what_it_writes_to():
    model, alike = [_Model(tape.constant(jnp.zeros(3)))], [_Model(tape.constant(jnp.zeros(3)))]
    (compiled, _), (_, step) = _stepped(model), _stepped(alike)
    for _ in range(3):
        compiled(tape.constant(X))
        step(tape.constant(X))
    for _ in range(2):
        close(compiled(model[0].weight).numpy(), step(alike[0].weight).numpy())
        close(model[0].state.numpy(), alike[0].state.numpy())


def test_state_by_parameters_is_found_by_these_and_not_by_their_values():
    def made():
        parameters = [tape.Variable(jnp.zeros(3)) for _ in range(3)]
        return parameters, {p: tape.constant(jnp.full(3, 0.1 * i)) for i, p in enumerate(parameters)}

    def step(parameters, state, x):
        loss = sum([((p - x * (i + 1)) ** 2).sum() for i, p in enumerate(parameters)])
        for p, g in zip(parameters, tape.gradients(loss, parameters), strict=True):
            state[p] = state[p] * 0.9 + g
            p.value = (p - 0.1 * state[p]).value
        return loss

    (parameters, state), (others, other_state) = made(), made()
    compiled = tape.jit(lambda x: step(parameters, state, x))
    for turn in range(5):
        if turn == 3:  # the order of a dict does not matter
            state[parameters[0]] = state.pop(parameters[0])
        assert float(compiled(tape.constant(1.0))) == pytest.approx(float(step(others, other_state, tape.constant(1.0))), rel=1e-6)
        for p, other in zip(parameters, others, strict=True):
            np.testing.assert_allclose(state[p].value, other_state[other].value, rtol=1e-6)
    assert compiled.cache_info().traces <= 2


@pytest.mark.parametrize("which", range(3))
def test_names_outside_of_the_function_hold_what_it_binds_them_to(which):
    step, held = rebound_names()[which]
    before = {*vars(step)}
    compiled = tape.jit(step)
    x = tape.Variable(3.0)
    start = float(held())
    for turn in (1, 2, 3):
        y = compiled(x)
        assert float(held()) == start + 3.0 * turn
        assert float(y) == 6.0 * float(held())
    y.backward()
    assert float(x.grad) == 2.0 * float(held())
    assert {*vars(step)} == before
    assert compiled.cache_info().traces == 1


def test_changes_of_captured_variables():
    m = types.SimpleNamespace(w=tape.Variable(W))
    traces = []

    @tape.jit
    def f(x):
        traces.append(1)
        return m.w * x

    close(f(X), W * X)
    m.w.value = X
    close(f(X), X * X)
    m.w = tape.Variable(W * 5)  # rebound to another one of its kind
    close(f(X), W * 5 * X)
    assert len(traces) == 1
    m.w.requires_grad_(False)
    assert not f(X).requires_grad
    assert len(traces) == 2
    m.w = tape.Variable(np.float32(4.0))
    close(f(X), 4 * X)
    assert len(traces) == 3
    with tape.no_grad():
        assert not f(X).requires_grad
    with jax.enable_x64(True):
        assert f(np.float64(1.0)).dtype == jnp.float64


def test_python_values_are_part_of_the_program():
    scale = [2.0]
    f = tape.jit(lambda x: x * scale[0])
    close(f(X), X * 2)
    scale[0] = 3.0
    close(f(X), X * 2)


def test_variables_that_share_a_value_may_part():
    a = tape.constant(W)
    w = tape.Variable(W)
    w.grad = a  # the gradient and the Variable are one value
    f = tape.jit(lambda: a * 10 + w.grad)
    close(f(), W * 11)
    a.value = X
    close(f(), X * 10 + W)


def test_copies_of_a_captured_result_lead_to_its_past_when_it_is_gone():
    w = tape.Variable(W)
    y, beside = w * w, (w * 3).sum()
    both = [y, copy.copy(y)]
    float(beside)
    step = tape.jit(lambda: both[0] * both[1])
    close(step().detach(), W**4)
    z = both.pop()
    both.clear()
    del y, step
    gc.collect()
    beside.backward()
    z.sum().backward()
    close(w.grad, 3 + 2 * W)


def test_captures_that_no_guess_finds():
    w, other = tape.Variable(W), tape.Variable(X)
    find = {"w": w}.__getitem__
    pending = [other * 2]
    f = tape.jit(lambda: find("w") * pending.__getitem__(0))
    close(f(), W * X * 2)
    w.value = X
    close(f(), X * X * 2)
    step = tape.jit(lambda: setattr(find("w"), "value", find("w").value + 1))
    step()
    step()
    close(w, X + 2)


def test_captures_behind_iterators():
    w, other = tape.Variable(W), tape.Variable(X)
    ws, pending = itertools.repeat(w), itertools.repeat(other * 2)  # which do not say what they hold
    f = tape.jit(lambda: next(ws) * next(pending))
    close(f(), W * X * 2)
    w.value = X
    close(f(), X * X * 2)
    g = tape.jit(lambda x: x * 2 if next(ws).grad is None else x * 3)
    for given, times in ((None, 2), (W, 3), (None, 2)):
        w.grad = given
        close(g(X), X * times)
    others = iter([w * k for k in range(9)])  # pending, and another one at each trace
    with pytest.raises(LeakedTracerError, match="met other Variables at each"):
        tape.jit(lambda: next(others) * 3)()


# -- errors -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", [float, bool, lambda v: v.item(), lambda v: v.numpy(), lambda v: [0.0][v > 0]])
def test_looking_at_a_value_is_an_error(look):
    w = tape.Variable(1.0)
    pending = w * 2

    @tape.jit
    def f():
        w.value = w.value + 1
        w.grad = w.value
        return look((w * w).sum())

    with pytest.raises(ConcretizationError):
        f()
    assert float(w) == 1.0
    assert w.grad is None
    assert float(pending) == 2.0


def test_an_exception_leaves_everything_as_it_was():
    m = Model()

    def failing(x):
        sgd(m, x)
        m.count += 1
        m.extra["last"] = m.w * 2
        m.mean[0] = 5.0
        m.b.requires_grad_(False)
        message = "on purpose"
        raise KeyError(message)

    w, count = m.w, m.count
    with pytest.raises(KeyError, match="on purpose"):
        tape.jit(failing)(X)
    assert (m.w, m.count) == (w, count) if False else (m.w is w and m.count is count)
    assert "last" not in m.extra
    close(m.w, W)
    close(m.mean, np.zeros(3))
    assert m.w.grad is None
    assert m.b.requires_grad
    y = m.w * 2
    y.grad = X

    def clears():
        y.grad = None
        raise KeyError

    with pytest.raises(KeyError):
        tape.jit(clears)()
    y.backward()  # the gradient that was assigned is the seed, as before
    close(m.w.grad, 2 * X)


def test_the_heap_is_searched_for_what_escaped_only_when_it_is_used(monkeypatch):
    searched = []
    search = gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda *objects: searched.append(objects) or search(*objects))

    @tape.jit
    def step(x):
        setattr(step, "twice", x * 2)  # noqa: B010 - a place that nobody watches
        return x * x

    close(step(tape.Variable(3.0)), 9)
    assert not searched
    with pytest.raises(LeakedTracerError, match="now kept as 'twice'"):
        float(step.twice)
    assert searched


@pytest.mark.parametrize("fails", [False, True])
def test_a_variable_that_escapes_is_named_when_it_is_used(fails):
    kept = []

    class Keeper:
        @staticmethod
        def keep(v):
            kept.append(v)

    @tape.jit
    def f(x):
        y = x * 2
        vars(Keeper)["keep"](y)  # a way that nobody sees
        return jnp.sin(y.value) + (1 // (not fails))

    with contextlib.suppress(ZeroDivisionError):
        f(X)
    for use in (lambda v: v + 1, lambda v: v.value, float, lambda v: (v * v).sum()):
        with pytest.raises(LeakedTracerError, match=r"shape \(3,\).*made at .*test_jit.py"):
            use(kept[0])


def test_a_list_outside_takes_no_traced_variable():
    losses = []

    @tape.jit
    def f(x):
        losses.append(x * 2)

    with pytest.raises(LeakedTracerError, match="losses"):
        f(X)
    assert losses == []


# -- around it ------------------------------------------------------------------------------------------------------------------


def test_methods():
    class Counter:
        def __init__(self, start):
            self.total = tape.constant(start)

        @tape.jit
        def add(self, x, *, twice=False):
            """Add."""
            self.total += x * 2 if twice is not False else x
            return self.total

        @tape.jit(static_argnums=1)
        def scaled(self, n):
            return self.total * n

    a, b = Counter(1.0), Counter(10.0)
    for _ in range(2):
        a.add(2.0)
        b.add(3.0)
    assert (float(a.total), float(b.total)) == (5.0, 16.0)
    assert float(a.scaled(3)) == 15.0
    assert a.add is a.add
    assert Counter.add.__doc__ == "Add."
    c = copy.copy(a)
    c.add(1.0)
    assert (float(a.total), float(c.total)) == (5.0, 6.0)
    d = copy.deepcopy(a)
    d.add(2.0)
    assert (float(a.total), float(d.total)) == (5.0, 7.0)
    ref = weakref.ref(b)
    del b
    gc.collect()
    assert ref() is None


def test_methods_of_classes():
    class Model:
        scale = tape.Variable(3.0)

        @classmethod
        @tape.jit
        def scaled(cls, x):
            return cls.scale * x

    class Larger(Model):
        scale = tape.Variable(5.0)

        @classmethod
        @tape.jit
        def scaled(cls, x):
            return super().scaled(x) + 1.0

    for _ in range(2):
        assert [float(m.scaled(2.0)) for m in (Model, Larger, Model())] == [6.0, 11.0, 6.0]
    with pytest.raises(TapeTypeError, match="static_argnums"):
        tape.jit(lambda kind, x: x)(float, 2.0)
    Model.scale = tape.Variable(4.0)
    Model.scaled(2.0).backward()
    assert (float(Model.scaled(2.0)), float(Model.scale.grad)) == (8.0, 2.0)


async def _coroutine(x):
    return x


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: (y * 2 for y in [x]), "generator"),
        (lambda x: {"all": map(abs, [x])}, "map"),
        (_coroutine, "coroutine"),
        (lambda x: lambda: x * 2, "function"),
        (lambda x: x.sum, "method"),
        (lambda x: functools.partial(tnp.add, x), "partial"),
        (lambda x: collections.UserList([x]), "UserList"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine", "ignore:Python iterable")
def test_objects_of_one_call_are_not_returned(function, kind):
    step = tape.jit(function)
    for _ in range(2):
        with pytest.raises(TapeTypeError, match=f"an object of type {kind}, .* every call would return this one"):
            step(tape.Variable(2.0))


def test_objects_that_know_no_argument_are_returned():
    w = tape.Variable(1.0)
    holder = types.SimpleNamespace(a=None)

    @tape.jit
    def step(x):
        holder.a = x
        return holder, lambda: w * 3, len

    for value in (1.0, 2.0):
        x = tape.Variable(value)
        same, triple, _ = step(x)
        assert same is holder
        assert holder.a is x
        assert float(triple()) == 3.0


def test_what_a_caller_writes_to_the_next_one_does_not_see():
    step = tape.jit(lambda x: (np.zeros(2), {1}, x))
    for _ in range(3):
        zeros, numbers, _ = step(1.0)
        assert (zeros.tolist(), numbers) == ([0.0, 0.0], {1})
        zeros += 1
        numbers.add(2)


def test_arguments_by_name_keep_their_names_in_any_order():
    step = tape.jit(lambda *, b, a: a - b)
    one, five = jnp.float32(1), jnp.float32(5)
    for given in ({"b": one, "a": five}, {"a": five, "b": one}, {"b": tape.Variable(1.0), "a": five}):
        for _ in range(3):
            assert float(step(**given)) == 4
    assert step.cache_info().traces == 2


class Pair(NamedTuple):
    first: object
    second: object


SEVEN, ONE = np.float32(7), jnp.float32(1)


@pytest.mark.parametrize(
    ("tree", "others"),
    [
        ([SEVEN, ONE], [(SEVEN, ONE), [ONE, SEVEN], [SEVEN], [SEVEN, ONE, ONE], [SEVEN, [ONE]], [SEVEN, None]]),
        ({"b": SEVEN, "a": ONE}, [{"a": SEVEN, "b": ONE}, {"a": ONE}, {"a": ONE, "c": SEVEN}, {"a": ONE, "b": SEVEN, "c": ONE}]),
        (Pair(SEVEN, {"x": [ONE]}), [Pair({"x": [ONE]}, SEVEN), (SEVEN, {"x": [ONE]}), Pair(SEVEN, {"x": (ONE,)}), Pair(SEVEN, {"x": []})]),
        ((None, ONE, 2.0), [(ONE, None, 2.0), (None, ONE, 3.0), (None, ONE, 2), (None, ONE, True), (None, ONE), (None, SEVEN, 2.0)]),
    ],
)
def test_trees_are_recognised_by_their_structure(tree, others):
    def numbered(value):  # tells every structure and place apart
        leaves, structure = jax.tree.flatten(value, is_leaf=lambda x: isinstance(x, tape.Variable))
        return sum([(k + 2) * x for k, x in enumerate(leaves)], len(str(structure)) * 1.0)

    step = tape.jit(numbered)
    for other in (*others, *others):
        for given in (tree, tree, other):
            close(step(given), numbered(given))


@pytest.mark.parametrize(
    "function", [lambda x: (x * x).sum(), lambda x: (x.detach() * 2).sum(), lambda x: tape.gradients((x * x).sum(), x)]
)
def test_arguments_of_the_first_call_do_not_live_as_long_as_the_program(function):
    step = tape.jit(function)
    x = tape.Variable(X)
    step(x)
    ref = weakref.ref(x)
    del x
    gc.collect()
    assert ref() is None
    step(tape.Variable(X))
    assert step.cache_info().traces == 1


def test_nested_and_inside_other_transformations():
    w = tape.Variable(W)
    inner = tape.jit(lambda x: x * w)
    outer = tape.jit(lambda x: inner(inner(x)).sum())
    outer(X).backward()
    close(w.grad, 2 * X * W)
    close(jax.jit(lambda x: inner(x).value)(X), X * W)
    pure = tape.jit(lambda x: tnp.sin(x) * 2)
    close(jax.vmap(lambda x: pure(x).value)(X), np.sin(X) * 2)
    close(jax.grad(lambda x: pure(x).value)(X[0]), np.cos(X[0]) * 2)
    close(tape.grad(lambda x: pure(x).sum())(jnp.asarray(X)), np.cos(X) * 2)
    close(tape.hessian(lambda x: pure(x).sum())(jnp.asarray(X)), np.diag(-np.sin(X) * 2))
    y, _ = tape.lax.scan(lambda c, a: (c + pure(a), None), tnp.zeros(3), jnp.asarray([X, X]))
    close(y, np.sin(X) * 4)
    step = tape.jit(lambda: setattr(w, "value", w.value * 2))
    with pytest.raises(LeakedTracerError):
        jax.jit(lambda x: (setattr(w, "value", x), step()))(W)
    tape.jit(lambda: [step() for _ in range(3)] and None)()
    close(w, W * 8)
    with tape.eager():
        close(inner(tape.constant(X)), X * W * 8)
    with jax.disable_jit():
        assert float(tape.jit(lambda x: x * float(x))(3.0)) == 9.0


def test_a_step_in_its_steady_state_is_seen_to_be_inside_a_transformation():
    total, w = tape.constant(np.float32(0.0)), tape.Variable(W)

    @tape.jit
    def step():
        total.value = total.value + 1
        (w * w).sum().backward()

    for _ in range(3):
        step()
        w.grad = None
    with pytest.raises(LeakedTracerError):
        jax.jit(lambda x: (setattr(total, "value", x * 1.0), step()))(1.0)
    values = jax.jit(lambda x: (w.detach() * 2).value + x)(1.0)  # what is concrete stays so
    close(values, W * 2 + 1)
    assert float(total) == 3.0
    said = tape.jit(lambda: (jax.debug.callback(lambda: seen.append(1)), w.detach() * 2)[1])
    seen = []
    for _ in range(3):
        said()
    traced = jax.jit(lambda x: said().value + x)
    close(traced(1.0), W * 2 + 1)
    jax.effects_barrier()
    assert len(seen) == 4
    for donate in (True, False):
        v = tape.Variable(np.float32(1.0))
        plus = tape.jit(lambda v=v: setattr(v, "value", v.value + 1), donate_state=donate)
        for _ in range(3):
            plus()
        try:
            jax.jit(lambda x, plus=plus: (plus(), x)[1])(1.0)  # adds concretely, or says that it cannot
        except LeakedTracerError:
            assert float(v) == 4.0
        else:
            assert float(v) == 5.0


@pytest.mark.parametrize("way", [lambda f: f, tape.jit])
def test_a_variable_that_becomes_another_keeps_the_gradient_that_it_is_given_then(way):
    w = tape.Variable(W)
    c = (w * 2).detach()

    @way
    def step():
        c[0] = w[1]
        c.grad = w.detach() * 3

    for _ in range(3):
        step()
        close(c.grad, 3 * W)
        assert c.requires_grad


@pytest.mark.parametrize(
    "used",
    [lambda v, w: 0.0, lambda v, w: v * 1, lambda v, w: (v * w, tnp.sin(v))[1], lambda v, w: v.value * w],
    ids=["not before", "before", "twice before", "by its value"],
)
@pytest.mark.parametrize("inside", [True, False])
def test_a_constant_that_becomes_a_leaf_in_a_step_gets_its_gradient(used, inside):
    def outcomes(wrap):
        v, w = tape.constant(2.0), tape.Variable(3.0)

        @wrap
        def step():
            before = used(v, w)
            v.requires_grad_()
            y = v * w * v + before * v
            return y.backward() if inside else y

        for _ in range(3):
            y = step()
            if not inside:
                y.backward()
            yield v.grad.item(), w.grad.item(), v.requires_grad
            v.grad = None
            v.requires_grad_(False)

    assert list(outcomes(tape.jit)) == list(outcomes(lambda step: step))


def test_leaves_that_a_recorded_step_makes_are_leaves():
    w = tape.Variable(3.0)
    step = tape.jit(lambda x: (w * x, tape.Variable(x.value * 2), x.detach()))
    for _ in range(2):
        y, leaf, constant = step(tape.constant(2.0))
        assert leaf.is_leaf
        assert (leaf.requires_grad, constant.requires_grad) == (True, False)
        (y * leaf * leaf * constant).backward()
        assert leaf.grad.item() == 96.0


@pytest.mark.parametrize(
    "step",
    [
        lambda c, w: c.requires_grad_(),
        lambda c, w: c.detach(),
        lambda c, w: c.value,
        lambda c, w: (c.detach(), 2 * w),
        lambda c, w: setattr(w, "value", c.value),
    ],
    ids=["becomes a leaf", "detached", "its array", "beside another", "assigned"],
)
def test_a_pending_capture_that_is_a_result_as_it_is_runs_first(step):
    results = []
    for way in (lambda f: f, tape.jit):
        pending, w = tape.constant(W) * 2, tape.Variable(W)
        result = way(lambda c=pending, w=w: step(c, w))()
        results.append([np.asarray(x.value if isinstance(x, tape.Variable) else x) for x in (*jax.tree.leaves(result), pending, w)])
    for ours, expected in zip(*results, strict=True):
        close(ours, expected)


def test_a_pending_capture_runs_first_and_the_rest_stays_pending(stats):
    w = tape.Variable(W)
    a, b = w * 2, w * 3
    unrelated = tnp.sin(b)
    step = tape.jit(lambda: setattr(w, "value", (w * a.detach()).value))
    step()
    close(w, W * W * 2)
    close(unrelated, np.sin(W * 3))


def test_donated_state_takes_no_buffer_that_somebody_holds():
    w = tape.Variable(W)
    step = tape.jit(lambda: setattr(w, "value", w.value * 2), donate_state=True)
    step()
    old = w.value
    y = w * 3  # pending: it will read the old buffer
    step()
    step()
    close(old, W * 2)
    close(y, W * 6)
    close(w, W * 8)
    buffer = weakref.ref(w.value)
    pointer = w.value.unsafe_buffer_pointer()
    step()
    assert buffer() is None
    assert w.value.unsafe_buffer_pointer() == pointer
    w.grad = jnp.asarray(X) + 0
    tape.jit(lambda: setattr(w, "value", w.value + w.grad.value), donate_state=True)()
    close(w, W * 16 + X)
    close(w.grad, X)  # it is only read


def test_donated_arguments():
    step = tape.jit(lambda p, x: setattr(p, "value", p.value + x.value), donate_argnums=0)
    w = tape.Variable(W)
    step(w, X)
    step(w, X)
    close(w, W + 2 * X)
    x = jnp.asarray(X) + 0
    take = tape.jit(lambda x: x * 2, donate_argnames="x")
    close(take(x), X * 2)
    assert x.is_deleted()
    a, b = jnp.asarray(X) + 0, jnp.asarray(W) + 0
    close(tape.jit(lambda *, a, b: a[0] + b, donate_argnames="b")(b=b, a=a), X[0] + W)
    assert b.is_deleted()
    assert not a.is_deleted()
    with pytest.raises(TapeValueError, match="does not assign"):
        tape.jit(lambda p: p.detach() * 2, donate_argnums=0)(w)
    with pytest.raises(TapeValueError, match="differentiable"):
        tape.jit(lambda p, x: p * x, donate_argnums=1)(w, x * 0 if False else jnp.asarray(X))


def test_no_tracer_is_left_over():
    m = Model()
    with jax.checking_leaks():
        step = tape.jit(lambda x: adam(m, x))
        step(jnp.asarray(X))
        tape.jit(lambda x: m.w * x)(jnp.asarray(X)).sum().backward()
    gc.collect()
    step(jnp.asarray(X))


def test_old_traces_are_forgotten(monkeypatch):
    from tape.jitting import jitted

    monkeypatch.setattr(jitted, "_STEPS_LIMIT", 3)
    f = tape.jit(lambda x: x + 1)
    for n in range(1, 6):
        close(f(np.ones(n, np.float32)), np.full(n, 2.0))
    assert f.cache_info() == (5, 5, 3) or f.cache_info().kept == 3


def test_threads():
    shared = tape.Variable(W)
    failures = []

    def work(k):
        try:
            mine = tape.Variable(X * k)
            step = tape.jit(lambda x: setattr(mine, "value", mine.value + (shared * x).value))
            common(X)
            for _ in range(10):
                step(X)
                close(common(jnp.asarray(X)), X * W)
            close(mine, X * k + 10 * W * X, rtol=1e-5)
        except BaseException as e:  # noqa: BLE001 - told below
            failures.append(e)

    common = tape.jit(lambda x: shared.detach() * x)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []


def test_the_program_is_that_of_jax():
    rng = np.random.default_rng(0)
    layers = [(tape.Variable(rng.normal(size=(4, 4)).astype("f")), tape.Variable(np.zeros(4, "f"))) for _ in range(3)]

    def loss(parameters, x, namespace):
        for w, b in parameters:
            x = namespace.tanh(x @ w + b)
        return (x * x).mean()

    @tape.jit
    def step(x):
        value = loss(layers, x, tnp)
        value.backward()
        return value

    x = jnp.ones((2, 4))
    values = [(w.value, b.value) for w, b in layers]
    ours = step.lower(x).compile().cost_analysis()
    jaxs = jax.jit(jax.value_and_grad(lambda p, x: loss(p, x, jnp))).lower(values, x).compile().cost_analysis()
    assert ours["flops"] == jaxs["flops"]
    assert layers[0][0].grad is None


@tape.jit
def halved(x):
    return x / 2


class Stepping:
    def __init__(self):
        self.w = tape.Variable(2.0)
        self.step = tape.jit(self.product)
        self.step(1.0)

    def product(self, x):
        return self.w * x


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])  # noqa: S301 - just made
def test_it_is_copied_and_pickled_as_functions_are(copied):
    assert copied(halved) is halved is copy.copy(halved)
    m = Model.__new__(Model)
    m.w = tape.Variable(W)
    close(copied(m).w, W)
    one = Stepping()
    other = copied(one)
    other.w.value = 3.0
    assert [float(s.step(2.0)) for s in (one, other)] == [4.0, 6.0]
    with pytest.raises((AttributeError, pickle.PicklingError), match=r"lambda"):
        pickle.dumps(tape.jit(lambda x: x))


def test_ctrl_c_leaves_all_that_a_step_writes_or_nothing():
    variables = [tape.Variable(np.full(3, k, np.float32)) for k in range(3)]

    @tape.jit
    def step():
        with tape.no_grad():
            for v in variables:
                v.value = v.value + 1
        return variables[0]  # nothing new: the recorder in C leaves it to Python, which Ctrl-C can interrupt

    def interrupted(line):
        """Take a step that is interrupted at a line of what puts the results where they belong; tell whether it was."""
        met = 0

        def trace(frame, event, _):
            nonlocal met
            if frame.f_code in {Binding._deliver.__code__, Binding._write.__code__} and event == "line":
                met += 1
                if met == line:
                    raise KeyboardInterrupt
            return trace

        old = sys.gettrace()
        sys.settrace(trace)
        try:
            step()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(old)
        return False

    step()
    step()
    line, seen = 1, set()
    while line < 100:
        before = float(variables[0][0])
        if not interrupted(line):
            break
        after = [float(v[0]) - k for k, v in enumerate(variables)]
        assert after in ([before] * 3, [before + 1] * 3)
        seen.add(after[0] - before)
        line += 1
    assert seen == {0, 1}


def test_a_hook_inside_is_a_part_of_the_first_derivative_which_the_second_one_differentiates():
    def cube(x):
        square = x * x
        square.register_hook(lambda g: 2 * g)
        return square * x

    for fun, second in ((tape.jit(cube), 30.0), (cube, 36.0)):  # of 5 x^2; outside, the hook sees what the second sweep gives the square
        x = tape.Variable(3.0)
        slope = tape.gradients(fun(x), x, create_graph=True)
        assert (float(slope), float(tape.gradients(slope, x))) == (45.0, second)


@pytest.mark.parametrize("way", ["returned", "array", "in place"])
@pytest.mark.parametrize("swept", [swept for n in (1, 2, 3) for swept in itertools.combinations(range(3), n)])
def test_hooks_inside_are_called_where_the_results_that_are_swept_come(swept, way):
    noise = np.array([0.1, 0.2, 0.3], np.float32)

    def shifted(gradient):
        if way == "in place":
            gradient += noise
            return None
        return gradient + noise if way == "returned" else jnp.asarray(noise)

    def step(x):
        inner = tnp.sin(x * w)
        square = inner * inner
        square.register_hook(shifted)  # on the way from the first result only
        inner.register_hook(lambda g: 2 * g + 1)  # from the first two
        return square.sum(), tnp.exp(inner).sum(), (3 * x).sum()

    found = []
    for fun in (step, tape.jit(step)):
        x, w = tape.Variable(X), tape.Variable(W)
        for _ in range(2):
            results = fun(x)
            found.append(tape.gradients([results[i] for i in swept], [x, w], unconnected="none"))
    for gradients in found[1:]:
        for a, b in zip(found[0], gradients, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                close(b, a)


class Halved:
    def __call__(self, gradient):
        return gradient[:1]


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        (lambda g: g[:2], tape.errors.GradientShapeError, "<lambda>"),
        (lambda g: g.astype(jnp.float16), tape.errors.GradientDtypeError, "<lambda>"),
        (Halved(), tape.errors.GradientShapeError, "Halved object"),
    ],
)
def test_a_hook_that_gives_another_type_is_refused_by_its_name_whatever_is_swept(wrong, error, named):
    def step(x):
        square = x * x
        square.register_hook(wrong)
        return square.sum(), x.sum()

    with pytest.raises(error, match=named):
        tape.jit(step)(tape.Variable(X))


def test_what_is_computed_at_compile_time_is_known_in_a_step():
    @tape.jit
    def step(x):
        pending = tape.constant(2.0) * 3
        with jax.ensure_compile_time_eval():
            return x * float(pending) * float((tape.constant([1.0, 2.0]) * 3).sum())

    assert float(step(2.0)) == 108.0


def test_sweeps_come_to_ops_with_effects_in_a_step():
    seen = []
    shown = interop.lift(lambda x: (jax.debug.callback(lambda y: seen.append(float(y)), x, ordered=True), jnp.sin(x))[1])
    w = tape.Variable(0.5)

    def step(x, inside):
        loss = (shown(w * x) * 3).sum()  # it is recorded at once
        if inside:
            loss.backward()
        return loss

    for inside in (False, True):
        w.zero_grad()
        loss = tape.jit(step, static_argnums=1)(2.0, inside)
        if not inside:
            loss.backward()
        assert w.grad is not None
        close(w.grad.value, 6 * np.cos(1.0))
        close(loss.value, 3 * np.sin(1.0))
    jax.effects_barrier()
    assert seen == [1.0, 1.0]


def test_results_of_one_traced_value_have_a_seed_each():
    shown = interop.lift(lambda x: (jax.debug.callback(lambda _: None, x), x)[1])
    w = tape.Variable(3.0)
    y, same = tape.jit(lambda: (w * w, shown(w * w)))()
    assert float(tape.gradients(y + 10 * same, w)) == 66.0

    @tape.jit
    def both():
        y = w * w
        return y, shown(y)

    y, same = both()
    assert float(tape.gradients(y + 10 * same, w)) == 66.0


def test_numpy_arguments_of_known_shapes_are_put_on_the_device_by_the_program_alone(monkeypatch):
    """A step that binds a name anew is looked for at each call, and what it is given is compared with what it was traced for."""
    state = {"mean": tape.constant(W)}

    @tape.jit
    def step(x):
        state["mean"] = state["mean"] * 0.5 + x
        return state["mean"] * 2

    expected = W
    for given in (X, X + 1, X.astype(np.float64), X[:1] * X):
        step(given)
        expected = expected * 0.5 + np.asarray(given, np.float32)
    monkeypatch.setattr(arguments, "known_array", None)
    for given in (X, X.astype(np.float64)):
        expected = expected * 0.5 + np.asarray(given, np.float32)
        close(step(given), expected * 2)
    monkeypatch.undo()
    with jax.enable_x64(True):
        assert step(X.astype(np.float64)).dtype == np.float64
    with pytest.raises(TapeTypeError):
        step(np.array(["a"]))


def _as_gradient(z):
    x = tape.Variable(np.zeros(3, np.float32))
    x.grad = z
    return x.grad


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("as_another", [copy.copy, _as_gradient])
def test_gradients_flow_through_another_handle_of_what_was_computed_outside(as_another, captured):
    """The step computes nothing of it, and must not take it for what only leaves of its own led to."""
    w = tape.Variable(W)
    z = w * w
    other = tape.jit(lambda: as_another(z))() if captured else tape.jit(as_another)(z)
    assert other is not z
    close(tape.gradients(other.sum(), w, retain_graph=True), 2 * W)
    held = tape.Variable(X)
    tape.jit(lambda: setattr(held, "grad", z))()
    close(tape.gradients((held.grad * held).sum(), w), 2 * W * X)


def test_a_gradient_in_vain_does_not_hinder_another_handle_of_what_was_computed_outside():
    w, x = tape.Variable(W), tape.Variable(X)
    z = w * w

    @tape.jit
    def step():
        tape.gradients(x.sum(), z, unconnected="zero")
        x.grad = z

    step()
    close(tape.gradients(x.grad.sum(), w), 2 * W)


@pytest.mark.parametrize("wrap", [lambda step: step, tape.jit])
def test_what_a_step_records_by_itself_is_recorded_where_nothing_else_is(wrap):
    """Contract 23: contexts nest, also where the outer one is around the call of a step."""
    w = tape.Variable(W)

    @wrap
    def step(x):
        with tape.enable_grad():
            y = w * x
        return y, y * 2.0

    for _ in range(3):
        with tape.no_grad():
            y, doubled = step(X)
        assert y.requires_grad
        assert not doubled.requires_grad
        close(tape.gradients(y.sum(), w), X)
