"""Op hooks: each entry once, forward and backward, in order, in every way of execution; and nothing changes unless they say so."""

import contextlib
import gc
import inspect
import random
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import interop
import tape
import tape.numpy as tnp
from tape import modes
from tape.errors import GradientDtypeError, GradientShapeError, RuleError, TapeRuntimeError, TapeTypeError
from tape.graph import scope, segment
from tape.hooking import observing
from tape.op_hooks.showing import values_of
from tape.sweeps import plan, sweep
from tests.random_programs.execution import check
from tests.random_programs.program_strategy import make_program
from tests.tiers import by_xla


class Log(tape.OpHook):
    """Writes down every call."""

    def __init__(self, name="", traceable=False):
        self.calls = []
        self.name = name
        self.traceable = traceable

    def forward_preprocess(self, op, inputs):
        self.calls.append((f"{self.name}forward before", op.name, [v.shape for v in inputs]))

    def forward_postprocess(self, op, inputs, outputs):
        assert isinstance(inputs, tuple)
        self.calls.append((f"{self.name}forward after", op.name, [v.shape for v in outputs]))

    def backward_preprocess(self, op, output_grads):
        self.calls.append((f"{self.name}backward before", op.name, [None if g is None else g.shape for g in output_grads]))

    def backward_postprocess(self, op, input_grads):
        self.calls.append((f"{self.name}backward after", op.name, [None if g is None else g.shape for g in input_grads]))

    def taken(self):
        calls, self.calls = self.calls, []
        return calls

    def names(self, side):
        return [name for what, name, _ in self.calls if what == f"{self.name}{side}"]


class Square(tape.Function):
    """The square; its forward records a product."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved
        return 2 * x * g


def step(x, w):
    a, b = tnp.split(x, 2)
    (tnp.exp(a) * w + a).sum().backward()
    return b


BY_HAND = [
    ("forward before", "split", [(2,)]),
    ("forward after", "split", [(1,), (1,)]),
    ("forward before", "exp", [(1,)]),
    ("forward after", "exp", [(1,)]),
    ("forward before", "multiply", [(1,), ()]),
    ("forward after", "multiply", [(1,)]),
    ("forward before", "add", [(1,), (1,)]),
    ("forward after", "add", [(1,)]),
    ("forward before", "sum", [(1,)]),
    ("forward after", "sum", [()]),
    ("backward before", "sum", [()]),
    ("backward after", "sum", [(1,)]),
    ("backward before", "add", [(1,)]),
    ("backward after", "add", [(1,), (1,)]),
    ("backward before", "multiply", [(1,)]),
    ("backward after", "multiply", [(1,), ()]),
    ("backward before", "exp", [(1,)]),
    ("backward after", "exp", [(1,)]),
    ("backward before", "split", [(1,), None]),
    ("backward after", "split", [(2,)]),
]


@pytest.mark.usefixtures("tier")
def test_contract_24_op_hooks_are_called_in_order_at_every_repetition():
    x, w = tape.Variable([1.0, 2.0]), tape.Variable(3.0)
    log = Log()
    for watched in (False, True, True, False, False, True, False, True):
        x.grad = w.grad = None
        with log if watched else contextlib.nullcontext():
            step(x, w)
        assert log.taken() == (BY_HAND if watched else [])
        np.testing.assert_allclose(x.grad.numpy(), [3 * np.e + 1, 0], rtol=1e-6)
        np.testing.assert_allclose(w.grad.numpy(), np.e, rtol=1e-6)


@pytest.mark.usefixtures("tier")
def test_contract_24_op_hooks_of_a_sweep_are_those_active_when_it_runs():
    x = tape.Variable(3.0)
    log = Log()
    with log:
        y = x * x
    y.backward()
    assert [c[:2] for c in log.taken()] == [("forward before", "multiply"), ("forward after", "multiply")]
    for _ in range(3):
        y = x * x
        with log:
            assert float(tape.gradients(y, x)) == 6
        assert [c[:2] for c in log.taken()] == [("backward before", "multiply"), ("backward after", "multiply")]


def test_contract_24_several_hooks_are_called_outer_first_and_each_once():
    x = tape.Variable(3.0)
    calls = []
    a, b = Log("a "), Log("b ")
    a.calls = b.calls = calls
    with tape.hooks(a, b), a, tape.hooks(b, a, ops="multiply"):
        (x * x).backward()
    order = ["forward before", "forward after", "backward before", "backward after"]
    assert [c[0] for c in calls] == [f"{who} {what}" for what in order for who in "ab"]


def test_contract_24_a_sweep_with_create_graph_is_seen_too():
    x = tape.Variable(3.0)
    log = Log()
    with log:
        y = x**3
        g = tape.gradients(y, x, create_graph=True)
        first = log.taken()
        h = tape.gradients(g, x)
        second = log.taken()
    assert [c[0] for c in first] == [
        "forward before",
        "forward after",
        "backward before",
        "backward after",
    ]  # what it writes is not recorded
    assert second
    assert {c[0] for c in second} == {"backward before", "backward after"}
    assert (float(g), float(h)) == (27, 18)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_contract_24_what_a_hook_does_is_differentiable_with_create_graph(times):
    class Cubed(tape.OpHook):
        def backward_postprocess(self, op, input_grads):
            return [None if g is None else g**3 for g in input_grads]

    for _ in range(times):
        x = tape.Variable(2.0)
        with tape.hooks(Cubed(), ops=tnp.sin):
            g = tape.gradients(tnp.sin(x), x, create_graph=True)  # cos(x)^3
        np.testing.assert_allclose(float(g), np.cos(2.0) ** 3, rtol=1e-6)
        np.testing.assert_allclose(float(tape.gradients(g, x)), -3 * np.cos(2.0) ** 2 * np.sin(2.0), rtol=1e-5)


# -- what they are told, and what they may do -----------------------------------------------------------------------------------


def test_an_op_says_what_it_is_and_where_it_was_recorded():
    seen = []

    class See(tape.OpHook):
        def forward_postprocess(self, op, inputs, outputs):
            seen.append(op)

        def backward_preprocess(self, op, output_grads):
            seen.append(op)

    x = tape.Variable([[1.0, 2.0]])

    def lines():
        return inspect.currentframe().f_back.f_lineno

    for _ in range(2):  # the same structure from two lines
        with See():
            x.sum(axis=1).sum().backward(), (first := lines())
            x.sum(axis=1).sum().backward(), (second := lines())
        found, seen[:] = list(seen), []
        assert [(op.name, op.params) for op in found[:2]] == [("sum", {"axis": 1}), ("sum", {})]
        assert [op.where for op in found] == [(__file__, first)] * 4 + [(__file__, second)] * 4
        assert f"sum, recorded at {__file__}:{first}" in repr(found[0])


def test_an_entry_recorded_while_no_hook_was_active_has_the_line_that_was_first():
    seen = []

    class See(tape.OpHook):
        def backward_preprocess(self, op, output_grads):
            seen.append(op.where)

    x = tape.Variable([[0.5, 2.5]])
    y, line = tnp.tanh(x).sum(axis=0).sum(), inspect.currentframe().f_lineno
    with See():
        y.backward()
    assert seen == [(__file__, line)] * 3


@pytest.mark.parametrize("ops", ["sin", ("sin", "no such"), {"sin"}, tnp.sin, [tnp.sin], "op of a Variable"])
def test_hooks_for_one_op(ops):
    x = tape.Variable(1.0)
    log = Log()
    with tape.hooks(log, ops=tnp.sin(x).op if ops == "op of a Variable" else ops):
        (tnp.sin(x) * tnp.cos(x)).backward()
    assert {c[1] for c in log.calls} == {"sin"}
    assert len(log.calls) == 4


def test_hooks_decorate_and_nest_and_belong_to_their_thread():
    log = Log()

    @tape.hooks(log)
    def product(x):
        return x * x

    x = tape.Variable(2.0)
    product(x)
    x * x
    assert len(log.taken()) == 2
    with contextlib.suppress(ZeroDivisionError), log, log:
        1 / 0
    x * x
    assert not log.taken()
    with log:
        other = threading.Thread(target=lambda: x * x)
        other.start()
        other.join()
    assert not log.taken()


def test_a_hook_left_while_others_entered_later_are_still_on_leaves_those():
    first, second = Log(), Log()
    x = tape.Variable(2.0)
    first.__enter__()
    with tape.hooks(second):
        first.__exit__(None, None, None)
        x * x
        assert len(second.taken()) == 2
    first.taken()
    x * x
    assert not first.calls
    assert not second.calls


def test_a_hook_left_without_being_entered_is_refused():
    with pytest.raises(TapeRuntimeError, match="hooks"):
        Log().__exit__(None, None, None)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("method", ["backward_preprocess", "backward_postprocess"])
def test_contract_10_what_a_hook_writes_into_is_read_by_nobody_else(method):
    class Writes(tape.OpHook):
        pass

    def write(self, op, gradients):
        if op.name == "add":
            gradients[0][0] = 5

    setattr(Writes, method, write)
    x, y, z = (tape.Variable(np.ones(2, np.float32)) for _ in range(3))
    with tape.hooks(Writes()):
        gradients = tape.gradients((x + y) - z * -1, (x, y, z), np.ones(2, np.float32))
    changed = [5, 1]
    expected = [changed, changed if method == "backward_preprocess" else [1, 1], [1, 1]]
    np.testing.assert_array_equal([g.value for g in gradients], expected)


def test_replacements_are_what_the_sweep_goes_on_with():
    class Scale(tape.OpHook):
        def backward_preprocess(self, op, output_grads):
            return [g * 2 for g in output_grads] if op.name == "exp" else None

        def backward_postprocess(self, op, input_grads):
            return [None, np.float32(100)] if op.name == "multiply" else None

    for _ in range(3):
        x, w = tape.Variable(0.0), tape.Variable(5.0)
        with Scale():
            (tnp.exp(x) * w).backward()
        assert (float(x.grad), float(w.grad)) == (10, 100)


BAD = {
    "shape": ("after", lambda g: [jnp.zeros(3), None], GradientShapeError, ["shape (3,)", "shape ()"]),
    "dtype": ("after", lambda g: [jnp.zeros((), jnp.int32), None], GradientDtypeError, ["int32", "float32"]),
    "number": ("after", lambda g: [None], RuleError, ["returned 1 gradients for 2"]),
    "empty": ("after", lambda g: (), RuleError, ["returned 0 gradients for 2"]),
    "no tuple": ("after", lambda g: g[0], GradientDtypeError, ["Variable", "tuple of 2"]),
    "none there": ("after", lambda g: [None, 1.0], RuleError, ["position 1", "none to replace"]),
    "forward": ("forward", lambda g: g, TapeTypeError, ["only look"]),
    "false": ("forward", lambda g: False, TapeTypeError, ["bool", "only look"]),
}


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("case", BAD)
def test_contract_13_a_hook_that_returns_what_does_not_fit_changes_nothing(case):
    side, returned, error, parts = BAD[case]

    class Bad(tape.OpHook):
        def forward_postprocess(self, op, inputs, outputs):
            return returned(outputs) if side == "forward" else None

        def backward_postprocess(self, op, input_grads):
            return returned(input_grads) if op.name == "multiply" else None

    x, c = tape.Variable(2.0), tape.constant(3.0)
    x.grad = 1.0
    with pytest.raises(error) as caught, Bad():
        (x * c).backward()
    assert all(part in str(caught.value) for part in parts)
    note = caught.value.__notes__[0]
    assert "Bad." in note
    assert __file__ in note
    assert float(x.grad) == 1
    (x * c).backward()
    assert float(x.grad) == 4


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("method", ["forward_preprocess", "forward_postprocess", "backward_preprocess", "backward_postprocess"])
def test_contract_13_an_exception_in_a_hook_leaves_all_as_it_was(method):
    def fail(self, op, *_):
        if op.name == "sin":
            msg = "in the hook"
            raise ZeroDivisionError(msg)

    failing = type("Failing", (tape.OpHook,), {method: fail})()
    x = tape.Variable(2.0)
    for _ in range(2):
        y = x * x
        with pytest.raises(ZeroDivisionError) as caught, failing:
            tnp.sin(y).backward()
        assert f"Failing.{method} for sin, recorded at {__file__}:" in caught.value.__notes__[0]
        assert x.grad is None
        assert scope.LOCAL.scope.observer is None
        assert not scope.LOCAL.scope.unseen
        y.backward()
        assert float(x.grad) == 4
        x.grad = None


# -- which entries they see ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_a_function_is_one_op_around_those_of_its_forward():
    x = tape.Variable([1.0, 2.0])
    log = Log()
    for _ in range(2):
        with log:
            y = Square.apply(x).sum()
            y.backward()
        assert [c[:2] for c in log.taken()] == [
            ("forward before", "Square"),
            ("forward before", "multiply"),
            ("forward after", "multiply"),
            ("forward after", "Square"),
            ("forward before", "sum"),
            ("forward after", "sum"),
            ("backward before", "sum"),
            ("backward after", "sum"),
            ("backward before", "Square"),
            ("backward after", "Square"),
        ]
        with log, tape.no_grad():
            Square.apply(x)
        assert [c[1] for c in log.taken()] == ["multiply", "multiply"]  # no entry of the function


def test_a_function_that_leaves_out_gradients():
    class Left(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return None

    x = tape.Variable(2.0)
    log = Log()
    with log:
        assert tape.gradients(Left.apply(x * x), x, unconnected="none") is None
    assert [c for c in log.calls if "backward" in c[0]] == [("backward before", "Left", [()]), ("backward after", "Left", [None])]


def test_functions_that_take_functions_are_one_op():
    w = tape.Variable(2.0)
    xs = tape.constant([1.0, 2.0, 3.0])
    log = Log()
    entries = {
        "scan": lambda: tape.lax.scan(lambda c, x: (c * w + x, x), tape.constant(0.0), xs)[0],
        "cond": lambda: tape.lax.cond(tape.constant(1) > 0, lambda: w * w, lambda: w),
        "checkpoint(<lambda>)": lambda: tape.checkpoint(lambda v: tnp.sin(v) * v)(w),
        "<lambda>": lambda: interop.lift(lambda v: jnp.sin(v) * v)(w),
    }
    for name, fun in entries.items():
        for _ in range(3):
            with log:
                fun().backward()
            assert [c[1] for c in log.taken() if c[1] != "greater"] == [name] * 4


def test_batched_sweeps_show_one_row_at_a_time():
    log = Log()
    with log:
        found = tape.jacrev(lambda x: tnp.sin(x) * 2)(jnp.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(found, np.diag(2 * np.cos([1.0, 2.0, 3.0])), rtol=1e-6)
    assert [shape for what, name, shape in log.calls if what == "backward before" and name == "sin"] == [[(3,)]] * 3


def test_what_hooks_record_and_sweep_themselves_is_not_seen():
    class Curious(Log):
        def forward_postprocess(self, op, inputs, outputs):
            super().forward_postprocess(op, inputs, outputs)
            v = tape.Variable(1.0)
            (v * v).backward()

        def backward_preprocess(self, op, output_grads):
            super().backward_preprocess(op, output_grads)
            tape.grad(lambda v: tnp.sin(v) * v)(1.0)

    x = tape.Variable(1.0)
    log = Curious()
    with log:
        (x + x).backward()
    assert [c[1] for c in log.calls] == ["add"] * 4


def test_ops_that_cannot_be_recorded_are_not_seen():
    log = Log()
    with log, pytest.raises(TapeTypeError):
        tape.Variable([1.0, 2.0]) + tape.Variable([1.0, 2.0, 3.0])
    assert not log.calls


def test_nothing_is_kept_after_a_hook():
    log = Log()
    x = tape.Variable([1.0, 2.0])
    gc.disable()
    try:
        with log:
            y = x * x
            alive = weakref.ref(y._segment)
            y.sum().backward()
            del y
            x.grad = None
            assert alive() is None
    finally:
        gc.enable()


# -- compiled functions -------------------------------------------------------------------------------------------------------


class Doubling(tape.OpHook):
    """Doubles what ``sin`` gives to its input."""

    traceable = True

    def backward_postprocess(self, op, input_grads):
        return [2 * g for g in input_grads] if op.name == "sin" else None


def test_a_compiled_function_runs_uncompiled_while_a_hook_is_to_see_values():
    w = tape.Variable(np.float32(3.0))

    @tape.jit
    def train():
        loss = tnp.sin(w) * w
        loss.backward()
        w.value = w.value - w.grad.value
        w.grad = None
        return loss

    log = Log()
    values = []
    for watched in (False, True, True, False, True, False):
        with log if watched else contextlib.nullcontext():
            values.append(float(train()))
        names = [c[1] for c in log.taken()]
        assert names == (["sin"] * 2 + ["multiply"] * 4 + ["sin"] * 2 if watched else [])
    x, expected = 3.0, []
    for _ in values:
        expected.append(np.sin(x) * x)
        x -= np.sin(x) + x * np.cos(x)
    np.testing.assert_allclose(values, expected, rtol=1e-4)
    assert train.cache_info().traces == 1


def test_a_hook_that_works_on_traced_values_is_compiled_with_the_function():
    w = tape.Variable(1.0)

    @tape.jit
    def slope():
        return tape.gradients(tnp.sin(w), w)

    hook = Doubling()
    for watched in (False, True, True, False, True):
        with hook if watched else contextlib.nullcontext():
            np.testing.assert_allclose(float(slope()), np.cos(1.0) * (2 if watched else 1), rtol=1e-6)
    assert slope.cache_info().traces == 2
    assert "the op hooks: absent -> Doubling" in slope.explain()


def test_a_compiled_function_under_hooks_of_other_ops_is_another_program():
    w = tape.Variable(1.0)
    slope = tape.jit(lambda: tape.gradients(tnp.sin(w) * 3, w))
    hook, log = Doubling(), Log()
    for _ in range(2):
        for ops, times in ((None, 2), ("sin", 2), ("cos", 1)):
            with tape.hooks(hook, ops=ops):
                np.testing.assert_allclose(float(slope()), np.cos(1.0) * 3 * times, rtol=1e-6)
    for seen in (4, 8):  # one of two hooks is to see values
        with hook, log:
            slope()
        assert log.names("forward before") == ["sin", "multiply"] * (seen // 4)


def test_a_compiled_function_with_gradients_shows_what_is_in_it_or_itself():
    x = tape.Variable(1.0)
    compiled = tape.jit(lambda v: tnp.sin(v) * 3)
    plain, log, traced, doubling = np.cos(1.0) * 3, Log(), Log(traceable=True), Doubling()
    for _ in range(3):
        y = compiled(x)
        with log:
            np.testing.assert_allclose(float(tape.gradients(y, x)), plain, rtol=1e-6)
        assert [c[1] for c in log.taken()] == ["<lambda>"] * 2
        with traced, doubling:
            np.testing.assert_allclose(float(tape.gradients(compiled(x), x)), 2 * plain, rtol=1e-6)
    assert [c[1] for c in traced.calls] == ["sin", "sin", *["multiply"] * 4, "sin", "sin"]  # when traced, once


@pytest.mark.parametrize("jit", [tape.jit, jax.jit])
def test_hooks_inside_a_compiled_function_are_compiled_with_it(jit):
    log = Log()

    @jit
    def slope(x):
        v = tape.Variable(x.value if isinstance(x, tape.Variable) else x)
        with tape.hooks(log, Doubling()):
            g = tape.gradients(tnp.sin(v), v)
        return g.value

    for x in (0.0, 1.0, 2.0):
        np.testing.assert_allclose(np.asarray(tape.Variable(slope(x)).value), 2 * np.cos(x), rtol=1e-6)
    assert [c[1] for c in log.calls] == ["sin"] * 4


def test_hooks_around_a_function_of_jax_run_when_it_is_traced():
    log = Log()

    @jax.jit
    def slope(x):
        return tape.grad(lambda v: tnp.sin(v) * 3)(x)

    with log:
        for x in (0.0, 1.0):
            np.testing.assert_allclose(slope(x), 3 * np.cos(x), rtol=1e-6)
    assert [c[1] for c in log.calls] == ["sin", "sin", *["multiply"] * 4, "sin", "sin"]


# -- random tapes -------------------------------------------------------------------------------------------------------------


OPS = {
    "add": (lambda xp, a, b: a + b, 2),
    "multiply": (lambda xp, a, b: a * b, 2),
    "subtract": (lambda xp, a, b: a - b, 2),
    "negative": (lambda xp, a: -a, 1),
    "flip": (lambda xp, a: xp.flip(a), 1),
    "cumsum": (lambda xp, a: xp.cumsum(a), 1),
    "maximum": (lambda xp, a, b: xp.maximum(a, b), 2),
}


@st.composite
def tapes(draw):
    """A list of (op, positions of its operands); positions 0 to 2 are two leaves and a constant."""
    lines = []
    for i in range(draw(st.integers(1, 7))):
        name = draw(st.sampled_from(sorted(OPS)))
        lines.append((name, [draw(st.integers(0, i + 2)) for _ in range(OPS[name][1])]))
    return lines


def run_lines(xp, lines, values, ops=OPS):
    values = list(values)
    for name, operands in lines:
        values.append(ops[name][0](xp, *[values[i] for i in operands]))
    return values[-1]


def swept_lines(lines):
    """The lines that a sweep from the last one reaches, last first: those that it depends on and that depend on a leaf."""
    able = [True, True, False]
    for _, operands in lines:
        able.append(any(able[i] for i in operands))
    reached, found = {len(able) - 1}, []
    for number in reversed(range(3, len(able))):
        if number in reached and able[number]:
            found.append(lines[number - 3][0])
            reached.update(lines[number - 3][1])
    return found


LEAVES = [np.float64([1.0, -2.0, 3.0]), np.float64([2.0, 1.0, -1.0]), np.float64([3.0, 2.0, 5.0])]


def swept(lines, hook, ops=OPS):
    x, w = (tape.Variable(a) for a in LEAVES[:2])
    with hook or contextlib.nullcontext():
        y = run_lines(tnp, lines, [x, w, tape.constant(LEAVES[2])], ops)
        if not y.requires_grad:
            return None
        tape.backward(y, [np.float64([1.0, 2.0, -1.0])])
    return [None if v.grad is None else v.grad.numpy() for v in (x, w)]


@given(tapes(), st.sampled_from(["lazy", "eager"]))
def test_every_entry_once_and_nothing_changes_bit_for_bit(lines, tier):
    with jax.enable_x64(True), tape.eager() if tier == "eager" else contextlib.nullcontext():
        plain = swept(lines, None)
        again = swept(lines, None)
        for _ in range(2):
            log = Log()
            watched = swept(lines, log)
            if plain is None:
                assert watched is None
                assert log.names("forward before") == [name for name, _ in lines]
                continue
            assert log.names("forward before") == log.names("forward after") == [name for name, _ in lines]
            assert log.names("backward before") == log.names("backward after") == swept_lines(lines)
            for a, b, c in zip(plain, again, watched, strict=True):  # whole numbers: every order of additions gives the same bits
                assert (a is None) == (b is None) == (c is None)
                assert a is None or (a.tobytes() == b.tobytes() == c.tobytes())


ROUNDING = {
    "add": (lambda xp, a, b: xp.sin(a) + xp.exp(-b * b), 2),
    "multiply": (lambda xp, a, b: a * b / 3, 2),
    "subtract": (lambda xp, a, b: xp.tanh(a) - b / (1 + b * b), 2),
    "negative": (lambda xp, a: -xp.sqrt(a * a + 1), 1),
    "flip": (lambda xp, a: xp.flip(a) * 0.1, 1),
    "cumsum": (lambda xp, a: xp.cumsum(a) / 7, 1),
    "maximum": (lambda xp, a, b: xp.maximum(a, b) * 1.1, 2),
}


@given(tapes())
@by_xla()
def test_nothing_changes_where_ops_round(lines):
    """To the last bit where ops run one by one; where XLA makes one program of them, it rounds sums in another order."""
    with jax.enable_x64(True):
        with tape.eager():
            plain, watched = swept(lines, None, ROUNDING), swept(lines, Log(), ROUNDING)
        assert (plain is None) == (watched is None)
        for a, b in zip(plain or (), watched or (), strict=True):
            assert (a is None) == (b is None)
            assert a is None or a.tobytes() == b.tobytes()
        # float64, a dozen ops on values near one: a hook that changed anything would show in the first digits.
        for a, b in zip(plain or (), swept(lines, Log(), ROUNDING) or (), strict=True):
            assert a is None or np.allclose(a, b, rtol=1e-12, atol=1e-13)


class Nosy(tape.OpHook):
    """Sees that each call comes with its other half, and looks at values now and then."""

    def __init__(self):
        self.open = []
        self.calls = 0

    def note(self, op, variables, ends):
        if ends:
            assert self.open.pop() == op.name
        else:
            self.open.append(op.name)
        self.calls += 1
        if not self.calls % 3:
            values_of(variables)

    def forward_preprocess(self, op, inputs):
        self.note(op, inputs, ends=False)

    def forward_postprocess(self, op, inputs, outputs):
        self.note(op, outputs, ends=True)

    def backward_preprocess(self, op, output_grads):
        assert any(g is not None for g in output_grads)
        self.note(op, output_grads, ends=False)

    def backward_postprocess(self, op, input_grads):
        self.note(op, input_grads, ends=True)


@pytest.mark.parametrize("number", [0, 2, 5, 9])
def test_programs_of_all_kinds_agree_with_jax_under_a_hook_that_looks(number):
    hook = Nosy()
    with hook:
        check(make_program(random.Random(number)))  # noqa: S311 - a program by its number
    assert hook.calls
    assert not hook.open


def reversed_order(monkeypatch):
    monkeypatch.setattr(observing.Observer, "of", lambda self, name, of=observing.Observer.of: list(reversed(of(self, name))))


def plans_as_usual(monkeypatch):
    monkeypatch.setattr(sweep, "plan_sweep", lambda *args: plan.plan_sweep(*args[:-1], False))


def replayed_with_hooks(monkeypatch):
    def set_without_epoch(scope_set):
        scope.LOCAL.scope = scope_set

    monkeypatch.setattr(scope, "set_scope", set_without_epoch)
    monkeypatch.setattr(modes, "set_scope", set_without_epoch)


def one_trace_for_all_hooks(monkeypatch):
    monkeypatch.setattr(observing.Observer, "key", property(lambda _: None, lambda *_: None))


def replays_as_usual(monkeypatch):
    monkeypatch.setattr(observing, "_overrides", lambda *_: False)


BUGS = {
    "compiled functions forget who watches": (
        one_trace_for_all_hooks,
        test_a_hook_that_works_on_traced_values_is_compiled_with_the_function,
        (),
    ),
    "sweeps replayed as if nobody watched": (replays_as_usual, test_contract_24_op_hooks_of_a_sweep_are_those_active_when_it_runs, ()),
    "hooks in the opposite order": (reversed_order, test_contract_24_several_hooks_are_called_outer_first_and_each_once, ()),
    "plans without the hooks' steps": (plans_as_usual, test_contract_24_op_hooks_are_called_in_order_at_every_repetition, ()),
    "entries recorded in the quick way": (replayed_with_hooks, test_contract_24_op_hooks_are_called_in_order_at_every_repetition, ()),
    "lines of the first recording": (
        lambda monkeypatch: monkeypatch.setattr(segment.Segment, "lines", property(lambda _: {}, lambda *_: None), raising=False),
        test_an_op_says_what_it_is_and_where_it_was_recorded,
        (),
    ),
    "what a hook records is seen": (
        lambda monkeypatch: monkeypatch.setattr(
            observing, "within", lambda **changes: scope.within(**{k: v for k, v in changes.items() if k != "unseen"})
        ),
        test_what_hooks_record_and_sweep_themselves_is_not_seen,
        (),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug, monkeypatch):
    plant, test, args = BUGS[bug]
    with monkeypatch.context() as patched:
        plant(patched)
        with pytest.raises((AssertionError, RecursionError)):
            test(*args)


def test_no_hook_sees_what_another_one_does_even_if_that_enters_it():
    class Count(tape.OpHook):
        calls = 0

        def forward_preprocess(self, op, inputs):
            self.calls += 1

    class Entering(tape.OpHook):
        def forward_postprocess(self, op, inputs, outputs):
            with count:
                outputs[0] * 2

    count = Count()
    with Entering():
        tnp.sin(tape.Variable(1.0))
    assert count.calls == 0


def test_hooks_see_what_each_op_adds_and_not_the_sum():
    seen = {}

    class See(tape.OpHook):
        def backward_postprocess(self, op, input_grads):
            seen.setdefault(op.name, []).append(float(input_grads[0]))

    with See():
        y = tnp.exp(tape.Variable(np.float32(0)))
        (tnp.sin(y) + tnp.cos(y) + y * 3 + tnp.sqrt(y)).backward()
    assert seen["multiply"] == [3]
    np.testing.assert_allclose([*seen["sin"], *seen["cos"], *seen["sqrt"]], [np.cos(1), -np.sin(1), 0.5], rtol=1e-6)
