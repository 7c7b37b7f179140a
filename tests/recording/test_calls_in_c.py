"""Calls of ``tape.jit`` like the one before, by the recorder in C: they run no Python of the tape's, and whatever changed counts."""

import gc
import itertools
import sys
import threading
import tracemalloc
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape import layout
from tape.errors import ExecutionError
from tape.graph import meters
from tape.jitting.binding import STATE, Binding
from tape.jitting.jitted import Jitted

B = np.linspace(-0.7, 1.9, 31, dtype=np.float32)
FEW = {"in_trace", "configuration"}  # the second one where a setting has changed since
native = pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")


class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray


def called(function, *args, **kwargs):
    """Return which functions of the library's Python a call runs, by name, and what it returns."""
    names = []
    root = tape.__file__.removesuffix("__init__.py")

    def see(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(root):
            names.append(frame.f_code.co_qualname)

    sys.setprofile(see)
    try:
        result = function(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return set(names), result


def known(function, *args, **kwargs):
    """Call a function until the recorder in C knows the call; return what it gives."""
    for _ in range(3):
        result = function(*args, **kwargs)
    names, result = called(function, *args, **kwargs)
    assert layout.NATIVE is None or names <= FEW, names
    return result


def settled(function, *args, **kwargs):
    """The same where a part of it is Python's: what it returns is an argument."""
    for _ in range(3):
        function(*args, **kwargs)
    names, _ = called(function, *args, **kwargs)
    assert layout.NATIVE is None or "Jitted.__call__" not in names, names


class Model:
    def __init__(self):
        self.w = tape.Variable(B)
        self.seen = tape.constant(0)
        self.parts = {"scale": tape.constant(np.float32(2.0)), "list": [tape.Variable(B * 0.5)]}


def trained(model, optimize=True):
    @tape.jit
    def step(x):
        loss = (tnp.sin(model.w * x) * model.parts["scale"] + model.parts["list"][0]).sum()
        loss.backward()
        gradient = model.w.grad.value
        if optimize:
            with tape.no_grad():
                model.w.value -= 0.1 * model.w.grad
            model.w.grad = model.parts["list"][0].grad = None
            model.seen.value = model.seen + 1
        return loss.detach(), tape.constant(gradient)

    return step


def test_a_training_step_calls_no_python_and_does_what_python_does():
    one, other = Model(), Model()
    step, plain = trained(one), trained(other).__wrapped__
    x = jnp.asarray(B * 0.25)
    for _ in range(3):
        step(x)
        plain(x)
    for _ in range(4):
        names, (loss, gradient) = called(step, x)
        assert layout.NATIVE is None or names <= FEW, names
        right = plain(x)
        np.testing.assert_allclose(loss.value, right[0].value, rtol=1e-6)
        np.testing.assert_allclose(gradient.value, right[1].value, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one.w.value, other.w.value, rtol=1e-6)
        assert one.w.grad is other.w.grad is None
        assert (loss.requires_grad, loss.is_leaf, one.w.is_leaf, one.w.requires_grad) == (False, True, True, True)
    assert int(one.seen.value) == int(other.seen.value) == 7
    assert step.cache_info() == (7, 1, 1)


TREES = {
    "positions": (lambda a, b: a * 2 + b, (B, 1.0), {}),
    "keywords": (lambda a, *, b, c: a * b - c, (B,), {"c": 2.0, "b": 3.0}),
    "a list": (lambda p: p[0] * p[1][0] + p[1][1], ([B, (B + 1, 2.0)],), {}),
    "a dictionary": (lambda p: p["w"] * p["b"], ({"w": B, "b": 3.0},), {}),
    "a named tuple": (lambda p: p.left - p.right, (Pair(B, 2 * B),), {}),
    "an array": (lambda p: p + 1, (jnp.asarray(B),), {}),
    "nothing": (lambda p: p + 1 if p is not None else tape.constant(B), (None,), {}),
    "several results": (lambda p: {"a": p + 1, "b": [p * 2, None]}, (B,), {}),
    "one of its own": (lambda p: (p, p + 1), (tape.constant(B),), {}),
}


@pytest.mark.parametrize("tree", TREES)
def test_arguments_and_results_of_all_forms(tree):
    fun, args, kwargs = TREES[tree]
    step = tape.jit(fun)
    right = jax.tree.leaves(fun(*args, **kwargs))
    for _ in range(3):
        step(*args, **kwargs)
    names, result = called(step, *args, **kwargs)
    assert layout.NATIVE is None or "Jitted.__call__" not in names
    for found, wanted in zip(jax.tree.leaves(result), right, strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-6)
    if tree == "one of its own":
        assert result[0] is args[0]
    if tree == "keywords":
        found = step(args[0], b=5.0, c=7.0)  # in another order
        np.testing.assert_allclose(found.value, B * 5 - 7, rtol=1e-6)


# What another call is given: arguments, and what they give.
OTHERS = {
    "values": lambda: ((jnp.asarray(B * 3), 0.5), B * 1.5),
    "shape": lambda: ((jnp.asarray(B[:7]), 0.5), B[:7] * 0.5),
    "dtype": lambda: ((jnp.asarray(B, jnp.float16), 0.5), B.astype(np.float16) * np.float16(0.5)),
    "weak type": lambda: ((jnp.asarray(2.0), 0.5), np.float32(1.0)),
    "an integer": lambda: ((jnp.asarray(B), 2), B * 2),
    "a number of NumPy": lambda: ((jnp.asarray(B), np.float32(0.25)), B * 0.25),
    "an array of NumPy": lambda: ((B, 0.5), B * 0.5),
    "a Variable": lambda: ((tape.constant(B), 0.5), B * 0.5),
    "a tuple": lambda: (((jnp.asarray(B), 2), 0.5), None),
    "one more": lambda: ((jnp.asarray(B), 0.5, 1.0), B * 0.5),
    "one less": lambda: ((jnp.asarray(B),), B),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_argument_is_another_call(other):
    step = tape.jit(lambda a, b=1.0, *_: a * b if hasattr(a, "dtype") else tape.constant(0.0))
    known(step, jnp.asarray(B), 0.5)
    args, right = OTHERS[other]()
    for _ in range(3):
        found = step(*args)
        if right is not None:
            np.testing.assert_allclose(found.value, right, rtol=1e-6)
            assert found.dtype == right.dtype
    if other == "weak type":
        assert (step(*args) * jnp.ones(3, jnp.float16)).dtype == jnp.float16
    np.testing.assert_allclose(step(jnp.asarray(B), 0.5).value, B * 0.5, rtol=1e-6)


@pytest.mark.parametrize(
    "what",
    [
        "mode",
        "bits",
        "rule",
        "hook",
        "op hook",
        "rebound",
        "item",
        "missing",
        "gradient",
        "dtype",
        "pending",
        "kept",
        "twice",
        "stranger",
        "frozen",
    ],
)
def test_a_call_is_another_one_where_what_it_works_on_has_changed(what):
    one, other = Model(), Model()
    step, plain = trained(one, optimize=False), trained(other, optimize=False).__wrapped__
    x, added = jnp.asarray(B + 0.5), []

    def both():
        for model in (one, other):
            model.w.grad = model.parts["list"][0].grad = None
        return step(x), plain(x)

    def same():
        (found, gradient), right = both()
        np.testing.assert_allclose(found.value, right[0].value, rtol=1e-5)
        np.testing.assert_allclose(gradient.value, right[1].value, rtol=1e-5, atol=1e-6)
        for a, b in ((one.w, other.w), (one.parts["list"][0], other.parts["list"][0])):
            assert (a.grad is None) == (b.grad is None)
            if b.grad is not None:
                np.testing.assert_allclose(a.grad.value, b.grad.value, rtol=1e-5, atol=1e-6)
        return found, right[0]

    for _ in range(4):
        same()
    models = one, other
    if what == "mode":
        frozen = tape.jit(lambda: one.w * 2)
        assert frozen().requires_grad
        with tape.no_grad():
            assert not known(frozen).requires_grad
        assert frozen().requires_grad
    elif what == "bits":
        wide = tape.jit(lambda n: n * 1.0)
        assert known(wide, 2.0).dtype == np.float32
        with jax.enable_x64(True):
            _ = (tape.Variable(np.float64(1.5)) * 2.0).value  # a segment begins with the new settings
            assert wide(2.0).dtype == np.float64
            assert known(wide, 2.0).dtype == np.float64
        assert wide(2.0).dtype == np.float32
    elif what == "rule":
        own = tape.rules.table.lookup(jax.lax.sin_p).vjp
        try:
            tape.rules.defvjp(jax.lax.sin_p, lambda ct, out, x, **_: 5.0 * ct)
            same()
        finally:
            tape.rules.defvjp(jax.lax.sin_p, own)
    elif what == "hook":
        handles = [m.w.register_hook(lambda g: g * 3.0) for m in models]
        same()
        for handle in handles:
            handle.remove()
    elif what == "op hook":

        class Seen(tape.OpHook):
            def forward_preprocess(self, op, inputs):
                added.append(str(op))

        one.w.grad = one.parts["list"][0].grad = None
        with tape.hooks(Seen()):
            step(x)
        assert any(name.startswith("sin") for name in added)
        one.w.grad = one.parts["list"][0].grad = None
    elif what == "rebound":
        for m in models:
            m.w = tape.Variable(B * 4)
    elif what == "item":
        for m in models:
            m.parts["list"][0] = tape.Variable(B * 7)
    elif what == "missing":
        for m in models:
            del m.parts["scale"]
        for function in (step, plain):
            with pytest.raises(KeyError):
                function(x)
        for m in models:
            m.parts["scale"] = tape.constant(np.float32(4.0))
    elif what == "gradient":
        for _ in range(3):
            for function in (step, plain):
                function(x)  # adds
            np.testing.assert_allclose(one.w.grad.value, other.w.grad.value, rtol=1e-5, atol=1e-6)
    elif what == "dtype":
        for m in models:
            m.parts["scale"] = tape.constant(np.float16(3.0))
    elif what == "frozen":
        for m in models:
            m.parts["list"][0].requires_grad_(False)
    elif what == "pending":
        for m in models:
            m.parts["scale"] = tape.constant(np.float32(1.5)) + 1.0
    elif what == "kept":
        keep = [(m.w.value, m.parts["scale"].value) for m in models]
        same()
        np.testing.assert_array_equal(keep[0][0], B)
    elif what == "twice":
        first = tape.jit(lambda a, b: tape.gradients((a * b).sum(), a))
        u, v = tape.Variable(B), tape.Variable(B * 2)
        np.testing.assert_allclose(known(first, u, v).value, B * 2, rtol=1e-6)
        np.testing.assert_allclose(first(u, u).value, B * 2, rtol=1e-6)
        np.testing.assert_allclose(known(first, v, u).value, B, rtol=1e-6)
        np.testing.assert_allclose(first(v, v).value, B * 4, rtol=1e-6)
    else:
        pair = tape.jit(lambda a, b: (a * 2, b * 3))
        known(pair, x, x)  # arrays may be one
        total = tape.constant(np.float32(0.0))

        @tape.jit
        def adds(v):
            total.value = total + v
            return v * 2

        v = tape.constant(np.float32(1.0))
        known(adds, v)
        before = float(total)
        found = adds(total)  # what it writes to is the argument, too
        assert (float(found), float(total)) == (2 * 2 * before, 2 * before)
    for _ in range(3):
        same()


def test_other_shapes_kinds_and_names_are_other_calls():
    step = tape.jit(lambda a, **more: (a if isinstance(a, tape.Variable) else None, a * sum(more.values()) + ("d" in more)))
    short = B[:7].copy()
    for make in (tape.constant, np.asarray, jnp.asarray):
        settled(step, make(B), c=2.0, b=3.0)
        found = step(make(short), c=2.0, b=3.0)[1]
        assert found.shape == short.shape
        np.testing.assert_allclose(found.value, short * 5, rtol=1e-6)
        settled(step, make(B), c=2.0, b=3.0)
        np.testing.assert_allclose(step(make(B), c=2.0, d=3.0)[1].value, B * 5 + 1, rtol=1e-6)
        settled(step, make(B), c=2.0, b=3.0)
        with pytest.raises(TypeError):
            step(make(B), 2.0, 3.0)
    u, v = tape.constant(B), tape.constant(B * 2)
    for _ in range(3):
        assert step(u, c=2.0, b=3.0)[0] is u
    found = step(v, c=2.0, b=3.0)
    assert found[0] is v
    np.testing.assert_allclose(found[1].value, B * 10, rtol=1e-6)
    frozen = tape.jit(lambda a: a * 2)
    settled(frozen, u)
    assert frozen(tape.Variable(B)).requires_grad


def test_inside_of_a_transformation_the_function_is_traced():
    w = tape.constant(B)
    step = tape.jit(lambda x: tnp.sin(x) * w)
    x = jnp.asarray(B)
    known(step, x)
    np.testing.assert_allclose(jax.jit(lambda: step(x).value)(), np.sin(B) * B, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda y: step(x).value + y)(jnp.zeros(2))[1], np.sin(B) * B, rtol=1e-6)
    y = tape.Variable(B)
    g = tape.gradients(step(y).sum(), y)
    np.testing.assert_allclose(g.value, np.cos(B) * B, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(known(step, x).value, np.sin(B) * B, rtol=1e-6)


def test_inside_of_a_transformation_nothing_traced_is_assigned():
    w = tape.constant(B)

    @tape.jit
    def step(x):
        w.value = w + x

    known(step, 1.0)
    jax.jit(lambda y: (step(1.0), y)[1])(jnp.asarray(B))
    np.testing.assert_allclose(w.value, B + 5, rtol=1e-6)
    known(step, 1.0)
    np.testing.assert_allclose(w.value, B + 9, rtol=1e-6)


def test_gradients_are_read_and_cleared():
    w = tape.Variable(B)

    @tape.jit
    def step():
        with tape.no_grad():
            w.value -= 0.5 * w.grad
        w.grad = None

    for turn in range(6):
        w.grad = tape.constant(B * turn)
        names, _ = called(step)
        assert layout.NATIVE is None or turn < 2 or names <= FEW, names
        assert w.grad is None
    np.testing.assert_allclose(w.value, B * (1 - 7.5), rtol=1e-5)
    with pytest.raises(TypeError):
        step()  # there is none


def test_what_can_be_differentiated_is_recorded():
    w = tape.Variable(B)
    step = tape.jit(lambda x: (tnp.sin(x * w)).sum())
    for _ in range(5):
        loss = step(2.0)
        assert loss.requires_grad
        g = tape.gradients(loss, w)
        np.testing.assert_allclose(g.value, 2 * np.cos(2 * B), rtol=1e-5, atol=1e-6)


def test_a_buffer_that_somebody_holds_is_not_given_away():
    w = tape.constant(B)

    @tape.jit(donate_state=True)
    def step(x):
        w.value = w + x

    for _ in range(4):
        step(1.0)
    names, _ = called(step, 1.0)
    assert layout.NATIVE is None or names <= FEW
    held = w.value
    step(1.0)
    np.testing.assert_allclose(held, B + 5, rtol=1e-6)  # it is still there
    del held
    other = w.detach()
    step(1.0)
    np.testing.assert_allclose(other.value, B + 6, rtol=1e-6)
    for _ in range(2):
        cell = w._cell
        before = np.array(cell[0])
        step(1.0)
        np.testing.assert_allclose(cell[0], before, rtol=1e-6)
        del cell
    np.testing.assert_allclose(w.value, B + 9, rtol=1e-6)


@pytest.mark.parametrize("error", [jax.errors.JaxRuntimeError("out of memory"), KeyboardInterrupt()], ids=["run", "interrupt"])
def test_where_the_program_fails_nothing_is_assigned(monkeypatch, error):
    model = Model()
    step, x = trained(model), jnp.asarray(B)
    known(step, x)
    before = model.w._cell, model.seen._cell

    def broken(*_):
        raise error

    binding = step._quick[0]
    with monkeypatch.context() as patched:
        patched.setattr(binding, "executable", broken)
        with pytest.raises(ExecutionError if isinstance(error, Exception) else KeyboardInterrupt) as caught:
            step(x)
    assert (model.w._cell, model.seen._cell) == before
    assert not isinstance(error, Exception) or caught.value.__cause__ is error
    step(x)
    assert int(model.seen.value) == 5


def test_who_measures_sees_the_call(monkeypatch):
    step = tape.jit(lambda x: x * 2)
    known(step, jnp.asarray(B))
    seen = []

    def measured(what, _, run, *inputs):
        seen.append(what)
        return run(*inputs)

    monkeypatch.setitem(meters.METERS, "test", None)
    monkeypatch.setattr("tape.jitting.binding.measured", measured)
    step(jnp.asarray(B))
    assert seen == ["step"]


def test_a_call_waits_while_another_thread_traces():
    w = tape.constant(B)
    step = tape.jit(lambda x: w * x)
    known(step, 2.0)
    found, began = [], threading.Event()

    def work():
        began.set()
        found.append(step(3.0))

    thread = threading.Thread(target=work)
    with STATE:  # as who traces: what Variables hold meanwhile is not theirs
        own, w._cell = w._cell, ["traced"]
        thread.start()
        began.wait()
        thread.join(0.2)
        assert not found
        w._cell = own
    thread.join()
    np.testing.assert_allclose(found[0].value, B * 3, rtol=1e-6)


def test_several_threads_call_one_step():
    total = [tape.constant(np.float32(0.0)) for _ in range(2)]
    steps = []
    for each in total:

        @tape.jit
        def step(x, each=each):
            each.value = each + x
            return each * 1.0

        known(step, 1.0)
        steps.append(step)
    failed = []

    def work(k):
        for _ in range(300):
            try:
                steps[k](1.0)
            except Exception as e:  # noqa: BLE001 - shown below
                failed.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [float(t) for t in total] == [304.0, 304.0]


@native
def test_nothing_is_kept_of_calls():
    model = Model()
    step, x = trained(model), jnp.asarray(B)
    plain = tape.jit(lambda a, *, b: {"sum": a["w"] + b, "one": [a["w"]]})
    known(step, x)
    objects = [step, x, model.w, model.seen, model.w._place, step._quick, step._quick[0], plain, None.__class__, Binding]

    def references(turns):
        for _ in range(turns):
            step(x)
            plain({"w": x}, b=2.0)
        gc.collect()
        return [sys.getrefcount(o) for o in objects], tracemalloc.get_traced_memory()[0]

    references(3)
    tracemalloc.start()
    try:
        found = [references(40) for _ in range(5)]
    finally:
        tracemalloc.stop()
    assert found[-1][0] == found[1][0]
    assert min(after[1] - before[1] for before, after in itertools.pairwise(found)) < 40 * 16


@native
@pytest.mark.parametrize("field", ["_edges", "_pinned", "_looked", "_read", "_written", "_cleared", "_donated", "_places"])
def test_a_binding_of_another_form_is_left_to_python(field):
    model = Model()
    step, x = trained(model), jnp.asarray(B)
    known(step, x)
    binding = step._quick[0]
    own = getattr(binding, field)
    setattr(binding, field, tuple(own))
    names, _ = called(step, x)
    assert "Jitted.__call__" in names


def test_the_methods_of_compiled_functions_are_what_they_were():
    step = tape.jit(lambda x: x + 1)
    assert Jitted.__call__.__name__ == "__call__"
    assert Jitted.__call__.__doc__
    assert float(Jitted.__call__(step, 2.0)) == 3.0
    with pytest.raises(TypeError):
        step(1, 2, 3)
