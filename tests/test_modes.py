"""Modes around everything that Python can call or suspend, in every order of entering and leaving, in threads and in traces."""

import asyncio
import contextlib
import functools
import inspect
import threading

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

import interop
import tape
from tape.errors import TapeRuntimeError, TapeTypeError

X = tape.Variable(2.0)


def recording():
    return (X * 2).requires_grad


def at_once():
    return (X + 1)._cell[0] is not None


@pytest.fixture(autouse=True)
def _restored():
    """Every test leaves the modes as it found them."""
    assert recording()
    yield
    assert recording()
    assert not at_once()


# -- what is decorated -------------------------------------------------------------------------------------------------------


def test_generators_run_in_the_mode_and_their_callers_in_their_own():
    @tape.no_grad()
    def numbers(n):
        for i in range(n):
            assert not recording()
            got = yield i
            assert not recording()
            assert got == 10 * i
        return "end"

    assert inspect.isgeneratorfunction(numbers)
    running = numbers(3)
    assert recording()
    assert next(running) == 0
    assert recording()
    assert running.send(0) == 1
    with tape.no_grad():
        assert running.send(10) == 2
        assert not recording()
    assert recording()
    with pytest.raises(StopIteration) as end:
        running.send(20)
    assert end.value.value == "end"


def test_generators_keep_the_modes_that_they_entered_themselves():
    @tape.no_grad()
    def nested():
        yield recording()
        with tape.enable_grad():
            yield recording()
            with tape.eager():
                yield recording(), at_once()
            yield recording(), at_once()
        yield recording()

    with tape.no_grad():
        running = nested()
        seen = []
        for item in running:
            seen.append(item)
            assert not recording()
            with tape.enable_grad():
                assert recording()
    assert seen == [False, True, (True, True), (True, False), False]


def test_eager_generators():
    @tape.eager()
    def steps():
        yield at_once()
        yield at_once()

    seen = [(item, at_once()) for item in steps()]
    assert seen == [(True, False), (True, False)]


def test_errors_thrown_into_a_generator_meet_it_in_its_mode():
    seen = []

    @tape.no_grad()
    def careful():
        try:
            yield 1
        except ZeroDivisionError:
            seen.append(recording())
            yield 2
        finally:
            seen.append(recording())

    running = careful()
    assert next(running) == 1
    assert running.throw(ZeroDivisionError) == 2
    assert recording()
    running.close()
    assert seen == [False, False]
    with pytest.raises(StopIteration):
        next(running)
    broken = careful()
    next(broken)
    with pytest.raises(KeyError, match="passed on"):
        broken.throw(KeyError("passed on"))
    assert seen == [False] * 3


def test_a_generator_that_is_dropped_is_closed_in_its_mode():
    seen = []

    @tape.no_grad()
    def endless():
        try:
            while True:
                yield
        finally:
            seen.append(recording())

    for _ in endless():
        break
    assert seen == [False]
    never = endless()
    del never
    assert seen == [False]


def test_generators_that_delegate():
    @tape.enable_grad()
    def inner():
        got = yield recording()
        return got, recording()

    @tape.no_grad()
    def outer():
        result = yield from inner()
        yield result, recording()

    running = outer()
    assert next(running) is True
    assert recording()
    assert running.send("sent") == (("sent", True), False)
    running.close()


def test_coroutines_run_in_the_mode_and_other_tasks_do_not():
    seen = []

    @tape.no_grad()
    async def off(name):
        for _ in range(3):
            assert not recording()
            await asyncio.sleep(0)
            seen.append(name)
        try:
            await failing()
        except ZeroDivisionError:
            assert not recording()
        return recording()

    async def failing():
        await asyncio.sleep(0)
        assert not recording()
        raise ZeroDivisionError

    @tape.set_grad_enabled(True)
    async def on(name):
        for _ in range(3):
            assert recording()
            await asyncio.sleep(0)
            seen.append(name)
        return recording()

    async def plain():
        for _ in range(6):
            assert recording()
            await asyncio.sleep(0)

    async def main():
        return await asyncio.gather(off("a"), on("b"), off("c"), plain())

    assert inspect.iscoroutinefunction(off)
    assert asyncio.run(main()) == [False, True, False, None]
    assert seen[:4] == ["a", "b", "c", "a"]  # they did take turns


def test_coroutines_that_are_cancelled():
    seen = []

    @tape.no_grad()
    async def waits():
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(recording())

    async def main():
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return recording()

    assert asyncio.run(main()) is True
    assert seen == [False]


def test_asynchronous_generators():
    seen = []

    @tape.no_grad()
    async def numbers(n):
        try:
            for i in range(n):
                await asyncio.sleep(0)
                assert not recording()
                try:
                    yield i
                except ZeroDivisionError:
                    yield recording()
        finally:
            seen.append(recording())

    async def main():
        found = []
        async for i in numbers(3):
            assert recording()
            found.append(i)
        running = numbers(3)
        assert await anext(running) == 0
        assert await running.athrow(ZeroDivisionError) is False
        assert await anext(running) == 1
        await running.aclose()
        return found

    assert inspect.isasyncgenfunction(numbers)
    assert asyncio.run(main()) == [0, 1, 2]
    assert seen == [False, False]


class Model:
    def __init__(self):
        self.scale = 3

    @tape.no_grad()
    def method(self, x, *, times=1):
        """Multiply."""
        return x * self.scale * times, recording()

    @tape.no_grad()
    @classmethod
    def above(cls):
        return cls, recording()

    @classmethod
    @tape.no_grad()
    def below(cls):
        return cls, recording()

    @tape.no_grad()
    @staticmethod
    def static(x):
        return x, recording()

    @property
    @tape.no_grad()
    def shown(self):
        return recording()

    @tape.no_grad()
    def __call__(self):
        return recording()

    @tape.no_grad()
    def items(self):
        yield recording()


def test_methods():
    model = Model()
    made, flag = model.method(X, times=2)
    assert (float(made), flag, made.requires_grad) == (12.0, False, False)
    assert Model.method.__doc__ == "Multiply."
    assert str(inspect.signature(Model.method)) == "(self, x, *, times=1)"
    assert model.above() == Model.below() == (Model, False)
    assert model.static(5) == Model.static(5) == (5, False)
    assert model.shown is False
    assert model() is False
    assert list(model.items()) == [False]


class Steps:
    def __call__(self):
        yield recording()


def test_objects_that_are_called():
    assert list(tape.no_grad()(Steps())()) == [False]
    assert list(tape.no_grad()(functools.partial(Steps.__call__, None))()) == [False]
    assert tape.no_grad()(functools.partial(recording))() is False
    assert tape.no_grad()(len)([1, 2]) == 2
    assert tape.no_grad()(lambda: recording())() is False


@pytest.mark.parametrize(
    ("decorate", "words"),
    [
        (lambda: tape.no_grad()(Model), "no_grad: a mode decorates a function, got the class Model; decorate its methods"),
        (lambda: tape.eager()(Model), "eager: a mode decorates a function, got the class Model"),
        (lambda: tape.no_grad()(Model.shown), "no_grad: a mode decorates a function, got property"),
        (lambda: tape.enable_grad()(3), "enable_grad: a mode decorates a function, got int"),
        (lambda: tape.no_grad(recording), r"write @tape.no_grad\(\), with parentheses"),
        (lambda: tape.eager(recording), r"write @tape.eager\(\), with parentheses"),
        (lambda: tape.set_grad_enabled(recording), "with parentheses"),
        (lambda: tape.set_grad_enabled(1), "enabled must be True or False, got int"),
    ],
)
def test_refusals(decorate, words):
    with pytest.raises(TapeTypeError, match=words):
        decorate()


@pytest.mark.parametrize(
    "statement",
    ["tape.set_grad_enabled(False)", "tape.set_grad_enabled(enabled=flag)", "tape.set_grad_enabled(*[flag]); flag = None"],
)
@pytest.mark.parametrize("setting", ["{}", "def f(flag):\n    {}\nf(flag)", "for _ in range(50): {}"])
def test_a_mode_that_stands_alone_as_in_pytorch_is_refused(statement, setting):
    with pytest.raises(TapeRuntimeError, match=r"write `with tape.set_grad_enabled\(False\):`"):
        exec(setting.format(statement), {"tape": tape, "flag": False})  # noqa: S102 - a statement is what is tested


@pytest.mark.parametrize("name", ["detect_anomaly", "eager", "reproducible", "log_compiles"])
def test_other_modes_that_stand_alone_are_refused(name):
    mode = getattr(tape, name)
    with pytest.raises(TapeRuntimeError, match=rf"write `with tape.{name}\(\):`"):
        mode()
    assert mode() is not mode()


def test_a_mode_whose_value_goes_somewhere_is_taken():
    for _ in range(50):  # as often as Python needs to specialize its instructions
        mode = tape.set_grad_enabled(False)
        modes = [mode, tape.set_grad_enabled(enabled=True), functools.partial(tape.set_grad_enabled, False)()]
        with contextlib.ExitStack() as stack:
            stack.enter_context(tape.set_grad_enabled(False))
            assert not recording()
            stack.enter_context(modes[1])
            assert recording()
        with tape.set_grad_enabled(False), modes[2]:
            assert not recording()
        modes.append(tape.set_grad_enabled(True))


def test_one_object_many_times():
    mode = tape.no_grad()

    @mode
    def countdown(n):
        assert not recording()
        return countdown(n - 1) if n else recording()

    with mode:
        assert countdown(5) is False
        with tape.enable_grad(), mode:
            assert not recording()
        with tape.enable_grad():
            assert recording()
            assert countdown(2) is False
            assert recording()
        assert not recording()


# -- leaving in another order, or in another thread --------------------------------------------------------------------------


def suspended(mode):
    """Return a generator that has entered a mode in a with statement, and is suspended there."""

    def body():
        with mode:
            yield

    running = body()
    next(running)
    return running


def test_a_mode_left_before_one_that_was_entered_later():
    first = suspended(tape.no_grad())
    assert not recording()
    with tape.enable_grad():
        first.close()
        assert recording()
    assert recording()  # and not what the second one found
    first, second, third = (suspended(tape.set_grad_enabled(flag)) for flag in (False, True, False))
    second.close()
    assert not recording()
    first.close()
    assert not recording()
    third.close()
    assert recording()


MODES = st.sampled_from(["no_grad", "enable_grad"])


@hypothesis.given(st.lists(st.tuples(st.booleans(), MODES, st.integers(0, 5)), max_size=12))
def test_modes_that_are_left_in_any_order(steps):
    """The mode is that of the last entered that was not left; without any, the one from before."""
    on = []
    for enters, name, which in steps:
        if enters or not on:
            mode = getattr(tape, name)()
            mode.__enter__()
            on.append((mode, name == "enable_grad"))
        else:
            on.pop(which % len(on))[0].__exit__(None, None, None)
        assert recording() is (on[-1][1] if on else True)
    while on:
        on.pop(0)[0].__exit__(None, None, None)
    assert recording()


def in_thread(function):
    """Call ``function`` in a thread of its own and return what it raises, or None."""
    found = []

    def run():
        try:
            function()
        except Exception as error:  # noqa: BLE001 - to be looked at
            found.append(error)
        found.append(recording())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found.pop() is True
    return found[0] if found else None


def test_leaving_in_another_thread_is_refused():
    mode = tape.no_grad()
    with mode:
        error = in_thread(lambda: mode.__exit__(None, None, None))
        assert isinstance(error, TapeRuntimeError)
        assert "no_grad: left in a thread that did not enter it" in str(error)
        assert "decorate generators" in str(error)
        assert not recording()
    assert recording()
    with pytest.raises(TapeRuntimeError, match="or twice"):
        mode.__exit__(None, None, None)
    running = suspended(tape.eager())
    error = in_thread(running.close)
    assert isinstance(error, TapeRuntimeError)
    assert at_once()  # this thread has not left it
    tape.modes.eager._entered.entries[-1].mode.__exit__(None, None, None)


def test_a_decorated_generator_may_go_on_in_another_thread():
    @tape.no_grad()
    def steps():
        for _ in range(3):
            with tape.enable_grad():
                yield recording()
            yield recording()

    running = steps()
    seen = [next(running)]
    assert in_thread(lambda: seen.append(next(running))) is None
    assert in_thread(lambda: seen.append(next(running))) is None
    seen.extend(running)
    assert seen == [True, False] * 3


# -- results made without recording, and traces ------------------------------------------------------------------------------


def test_results_made_without_recording():
    x = tape.Variable(np.ones(3, np.float32))
    with tape.no_grad():
        made = [x * 2, x.sum(), x[0], tape.numpy.sin(x), *tape.numpy.split(x, 3), x.at[0].set(1.0), tape.checkpoint(lambda v: v * v)(x)]
        made.append(tape.jit(lambda v: v * v)(x))
        made.append(interop.lift(lambda v: v * v)(x))
        assert all(not v.requires_grad and v.is_leaf and v.op is None for v in made)
        assert x.requires_grad
        own = tape.Variable(1.0)
        assert own.requires_grad  # a leaf is what it is made as
        assert not (own * x).requires_grad
    assert (made[0] * x).requires_grad


def test_a_mode_inside_tape_jit():
    @tape.jit
    def step(x, w):
        with tape.no_grad():
            constant = x * w
        with tape.no_grad(), tape.enable_grad():
            recorded = x * w
        assert not constant.requires_grad
        assert recorded.requires_grad
        return constant * w, recorded * w, constant

    for _ in range(3):
        x, w = tape.Variable(2.0), tape.Variable(3.0)
        cut, whole, constant = step(x, w)
        assert not constant.requires_grad
        assert cut.requires_grad
        assert float(tape.gradients(cut, w, retain_graph=True)) == 6.0
        assert float(tape.gradients(whole, w, retain_graph=True)) == 12.0
        with pytest.raises(tape.errors.UnconnectedError):  # as without tape.jit, though the step is one entry
            tape.gradients(cut, x, retain_graph=True)
        assert float(tape.gradients(cut, x, unconnected="zero")) == 0.0


def test_a_mode_around_tape_jit():
    @tape.no_grad()
    @tape.jit
    def off(x):
        return x * x

    @tape.jit
    @tape.no_grad()
    def inside(x):
        return x * x

    on = tape.jit(lambda x: x * x)
    for _ in range(3):
        assert not off(X).requires_grad
        assert not inside(X).requires_grad
        assert on(X).requires_grad
        with tape.no_grad():
            assert not on(X).requires_grad
        with tape.no_grad(), tape.enable_grad():
            assert on(X).requires_grad


def test_generators_and_modes_under_jax():
    @tape.no_grad()
    def squares(v):
        yield v * v
        yield v * v * v

    def total(x):
        v = tape.Variable(x)
        return sum((v * s for s in squares(v)), tape.constant(0.0)).value

    for transform in (lambda f: f, jax.jit):
        assert float(transform(jax.grad(total))(2.0)) == 4 + 8
        np.testing.assert_array_equal(transform(jax.vmap(jax.grad(total)))(np.float32([1.0, 2.0])), [2.0, 12.0])
    assert float(jax.grad(interop.lower(lambda x: sum(x * s for s in squares(x))))(2.0)) == 4 + 8


def test_a_mode_that_is_left_on_in_a_trace_of_jax_is_restored():
    def broken(x):
        v = tape.Variable(x)
        with tape.no_grad():
            w = v * v
            raise ZeroDivisionError(w.shape)

    for transform in (jax.jit, jax.grad, tape.jit):
        with pytest.raises(ZeroDivisionError):
            transform(broken)(1.0)
        assert recording()
