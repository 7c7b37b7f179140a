"""What authors of optimizers need beyond what users do is public, and ours need no more."""

import ast
import pathlib
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
from tape import extend

ROOT = pathlib.Path(__file__).parent.parent.parent


class Momentum:
    """An optimizer as an outsider would write it."""

    def __init__(self, parameters, rate, decay):
        self.parameters = [extend.identity(p) for p in jax.tree.leaves(parameters, is_leaf=extend.is_variable)]
        self.momenta = [tape.constant(jnp.zeros_like(extend.array(p))) for p in self.parameters]
        self.rate, self.decay = rate, decay
        self.assign = extend.Assignment()
        extend.awaiting(self.parameters, owner=object())

    def step(self):
        with extend.updating():
            momenta = [self.decay * m + p.grad for m, p in zip(self.momenta, self.parameters, strict=True)]
            values = [p - self.rate * m for p, m in zip(self.parameters, momenta, strict=True)]
        self.assign([*self.parameters, *self.momenta], [*values, *momenta])
        for p in self.parameters:
            p.zero_grad()


def test_an_optimizer_of_an_outsider_trains_by_one_program_a_step(stats):
    x, goal = np.float32([[1, 2], [3, 4], [5, 7]]), np.float32([1, 0, 2])
    weights = {"w": tape.Variable(jnp.zeros(2)), "b": tape.Variable(jnp.zeros(()))}
    optimizer = Momentum(weights, 0.01, 0.5)

    def loss(w, b):
        return ((x @ w + b - goal) ** 2).mean()

    expected = [jnp.zeros(2), jnp.zeros(())]
    momenta = [jnp.zeros(2), jnp.zeros(())]
    for i in range(8):
        if i == 4:
            stats.reset()
        loss(**weights).backward()
        optimizer.step()
        momenta = [0.5 * m + g for m, g in zip(momenta, jax.grad(loss, (0, 1))(*expected), strict=True)]
        expected = [p - 0.01 * m for p, m in zip(expected, momenta, strict=True)]
    assert (sum(stats.flushes.values()), stats.compiles) == (4, 0)  # forward, sweep and update are one program, found again
    for ours, theirs in zip(weights.values(), expected, strict=True):
        np.testing.assert_allclose(ours.value, theirs, rtol=1e-5)
        assert ours.requires_grad
        assert ours.is_leaf


def test_nothing_is_assigned_where_an_update_fails():
    w = tape.Variable(jnp.ones(2))
    assign = extend.Assignment()
    with pytest.raises(tape.errors.TapeValueError):
        assign([w], [tape.constant(jnp.ones(3))])
    assert w.value.tolist() == [1, 1]
    first = tape.Variable(2.0)
    for wrong in (jnp.ones(3), jnp.ones(2, jnp.int32)):  # its fault shows after that of the first was found right
        with pytest.raises((tape.errors.TapeValueError, tape.errors.TapeTypeError)):
            assign([first, w], [tape.constant(5.0), tape.constant(wrong)])
        assert (float(first), w.value.tolist()) == (2, [1, 1])
    with pytest.raises(ZeroDivisionError), extend.updating():
        raise ZeroDivisionError
    assert (w * w).requires_grad  # recording is on again


def test_a_result_that_is_none_leaves_its_variable():
    a, b = tape.Variable(1.0), tape.Variable(2.0)
    assign = extend.Assignment()
    for _ in range(3):
        with extend.updating():
            new = a * 2
        assign([a, b], [new, None])
    assert (float(a), float(b)) == (8, 2)


def test_an_update_that_leaves_what_it_reads_is_found_again():
    """What :class:`tape.extend.Update` has as its example."""
    w, rate, fixed = tape.Variable(2.0), tape.constant(0.25), tape.Variable(3.0)
    update, assign = extend.Update(), extend.Assignment()
    found = []
    for step in range(6):
        (w * w + fixed).backward()
        found.append(update.again([fixed, w], [rate]))
        if not found[-1]:
            with extend.updating():
                new = [None, w - rate * w.grad, None]
                update.note(new)
            assign([fixed, w, rate], new)
        w.zero_grad()
        fixed.zero_grad()
        if step == 4:
            rate.value = 0.5
    assert found[-3:] == [True] * 3
    assert (float(w), float(fixed), float(rate)) == (0, 3, 0.5)


@pytest.mark.parametrize("steps", [1, 2, 6], ids=["at first", "again", "found"])
def test_ctrl_c_leaves_all_of_an_update_or_nothing(steps, monkeypatch):
    monkeypatch.setattr("tape.extend.update._as_before", lambda *_: False)  # what C does, nothing interrupts
    lines = {}

    def train(interrupted=None):
        """Take steps, the last one interrupted at a line of the assignment, and return what is there then."""
        a, b = tape.Variable(jnp.float32(1)), tape.Variable(jnp.float32(2))
        update, assign = extend.Update(), extend.Assignment()

        def step():
            (a * b).backward()
            if not update.again([a, b], []):
                with extend.updating():
                    new = [a + a.grad, b + b.grad]
                    update.note(new)
                assign([a, b], new)

        def trace(frame, event, _):
            nonlocal met
            if not frame.f_code.co_filename.startswith(str(pathlib.Path(extend.__file__).parent)):
                return trace if frame.f_code.co_name == "step" else None
            if event == "line" and frame.f_code.co_name != "updating":  # tracing comes by its with statement's line, and no signal does
                met += 1
                if met - 1 == interrupted:
                    raise KeyboardInterrupt
            return trace

        met = 0
        for i in range(steps):
            before = (float(a), float(b))
            old = sys.gettrace()
            if i == steps - 1:
                sys.settrace(trace)
            try:
                step()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(old)
            a.zero_grad()
            b.zero_grad()
        lines[interrupted] = met
        return before, (float(a), float(b))

    for _ in range(3):
        before, after = train()
    assert before != after
    seen = {train(i)[1] for i in range(lines[None])}
    assert seen == {before, after}


def test_other_variables_are_not_given_what_does_not_fit():
    a, b = tape.Variable(jnp.ones(2)), tape.Variable(jnp.ones(2, jnp.float16))
    assign = extend.Assignment()
    for _ in range(2):
        with extend.updating():
            new = a * 2
        assign([a], [new])
    with extend.updating():
        new = a * 2  # of the same program
    with pytest.raises(tape.errors.TapeTypeError, match="float16"):
        assign([b], [new])
    assert (a.value.tolist(), b.value.tolist()) == ([4, 4], [1, 1])


def test_an_optimizer_is_not_kept_by_its_parameters():
    w = tape.Variable(1.0)
    optimizer = Momentum([w], 0.1, 0.9)
    ref = weakref.ref(optimizer)
    del optimizer
    assert ref() is None


@pytest.mark.parametrize("name", ["optax", "scaling", "states"])
def test_bridges_need_public_names_only(name):
    tree = ast.parse((ROOT / "interop" / f"{name}.py").read_text())
    found = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module.split(".")[0] == "tape"}
    assert found <= {"tape", "tape.errors"}
    ours = {"_cell", "_extra", "_place", "_segment"}
    assert not [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in ours]


def test_anything_is_described():
    given = (tape.Variable([1.0], name="w"), tape.constant(2), jnp.zeros(3), np.float64(1), np.zeros((0, 2), np.int8), 3.0, None, "x", [1])
    array = "shape {}, dtype {}".format
    expected = ["'w', " + array((1,), "float32"), array((), "int32"), array((3,), "float32"), array((), "float64"), array((0, 2), "int8")]
    assert [extend.describe(x) for x in given] == [*expected, "float", "NoneType", "str", "list"]
