"""Arrays as operands: small ones of NumPy enter a program as they are, as copies; the results are those of arrays of JAX."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.lax
import tape.numpy as tnp
from tape import layout
from tape.errors import TapeTypeError
from tape.graph.constants import COPIES, copied
from tape.graph.scope import LOCAL
from tape.recording import template

A = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3) / 3


@pytest.fixture
def known():
    """A NumPy array whose kind is known."""
    n = A.copy()
    _ = tape.constant(A) * n
    assert copied(n) is not None
    return n


TRACES = {
    "jit": tape.jit,
    "checkpoint": tape.checkpoint,
    "vmap": lambda f: lambda x: tape.vmap(f)(x[None])[0],
    "scan": lambda f: lambda x: tape.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
}


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_what_happens_to_an_operand_while_a_function_is_traced_is_not_seen(trace):
    room = np.zeros(1024 + 64, np.uint8)  # on an address from which XLA reads in place
    n = room[-room.ctypes.data % 64 :][:1024].view(np.float32)[:6].reshape(2, 3)

    def step(x):
        for i in range(3):
            n[:] = i
            x = x + n
        return x

    np.testing.assert_allclose(trace(step)(tape.constant(A)), A + 3, rtol=1e-6)


def test_what_happens_to_an_operand_later_is_not_seen(known):
    x = tape.Variable(A)
    for _ in range(4):  # interpreted, compiled, found again
        known[:] = A
        y = x * known
        known[:] = 7.0
        z = (y * y).sum()
        known[:] = 8.0
        np.testing.assert_allclose(float(z), (A**4).sum(), rtol=1e-6)
        z.backward()
        np.testing.assert_allclose(x.grad.value, 2 * A**3, rtol=1e-6)
        x.grad = None


def test_sweeps_read_the_copy_as_often_as_they_come(known):
    x = tape.Variable(A)
    for _ in range(3):
        y = tnp.sin(x * known)
        first = tape.gradients(y.sum(), x, create_graph=True)
        known[:] = 0.0
        second = tape.gradients(first.sum(), x)
        known[:] = A
        np.testing.assert_allclose(first.value, np.cos(A * A) * A, rtol=1e-5)
        np.testing.assert_allclose(second.value, -np.sin(A * A) * A * A, rtol=1e-5)


def test_an_operand_of_several_ops_is_one_input(known):
    x = tape.Variable(A)
    for _ in range(3):
        y = tnp.tanh(known * x) + known - x * known
        leaves = len(y._segment.leaves)
        y.sum().backward()
        np.testing.assert_allclose(x.grad.value, A / np.cosh(A * A) ** 2 - A, rtol=1e-5)
        x.grad = None
    assert leaves == 2, "the Variable and the array, once the ops are known"


def _written(n):
    n[1, 2] = 7.0


def _signed(n):
    n[0] = -n[0]


def _turned(n):
    n[:] = n[::-1].copy()


@pytest.mark.parametrize("write", [_written, _signed, _turned, lambda n: n.fill(np.nan)])
def test_an_operand_that_is_written_to_between_two_ops_is_two_inputs(known, write):
    x = tape.Variable(A)
    known[0] = 0.0
    before = known.copy()
    after = before.copy()
    write(after)
    for _ in range(3):
        known[:] = before
        y = x * known
        write(known)
        z = tnp.copysign(y, known)
        np.testing.assert_array_equal(z.value, np.copysign(A * before, after))


def test_operands_that_look_alike_are_told_apart(known):
    """By what they are: another array at the same place, dtype of the same size, shape of the same bytes."""
    x = tape.Variable(np.zeros((), np.float32))
    for number in range(40):  # memory is used again
        n = np.full((2, 3), number, np.float32)
        np.testing.assert_array_equal((x + n).value, n)
        np.testing.assert_array_equal((x + n.reshape(3, 2)).value, n.reshape(3, 2))
        np.testing.assert_array_equal((x + n.view(np.int32)).value, n.view(np.int32).astype(np.float32))
        np.testing.assert_array_equal((x + n.T).value, n.T)


@pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")
def test_a_copy_is_found_again_in_c(known):
    x, names = tape.Variable(A), []
    for _ in range(3):
        (x * known + known).sum().backward()
    y = x * known
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        y += known
    finally:
        sys.setprofile(None)
    assert "in_trace" in names
    assert "copied" not in names


@pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")
def test_an_array_is_copied_in_c(known):
    x, wide, names = tape.Variable(A), np.asfortranarray(A, np.float64), []
    for _ in range(3):
        (x * A.copy() + wide[:] + wide).sum().backward()
    fresh = A.copy()
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        y = x * fresh
        y += wide[:]
        y += wide
    finally:
        sys.setprofile(None)
    fresh[:], wide[:] = 0, 0
    assert "in_trace" in names
    assert "copied" not in names
    np.testing.assert_array_equal(y.value, A * A + A + A)


@pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")
def test_a_ufunc_of_numpy_is_found_again_in_c(known):
    x, names = tape.Variable(A), []
    for _ in range(3):
        np.add(known * x, np.sin(x)).sum().backward()
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        y = known * x
        y = np.add(y, np.sin(x))
    finally:
        sys.setprofile(None)
    assert "array_ufunc" not in names
    np.testing.assert_allclose(y.value, A * A + np.sin(A), rtol=1e-6)
    np.testing.assert_array_equal(np.add(A.tolist(), x).value, 2 * A)
    np.testing.assert_array_equal(np.add(x, 1, dtype=np.float16).value, A.astype(np.float16) + 1)
    np.testing.assert_array_equal(x.__array_ufunc__(np.add, "__call__", x, known).value, 2 * A)
    np.testing.assert_array_equal(np.add.reduce(x).value, A.sum(axis=0))
    with pytest.raises(ValueError, match="add"):
        np.add(known[0, :2], x)
    with pytest.raises(TypeError):
        np.add(x, known, out=known)


def test_no_more_copies_are_remembered_than_there_are_to_be(known):
    x, n = tape.Variable(A), [A.copy() + i for i in range(COPIES.limit + 5)]
    for a in n:
        y = x * a
    assert len(COPIES) <= COPIES.limit
    assert {id(a) for a in n[-5:]} <= set(COPIES)
    np.testing.assert_array_equal(y.value, A * n[-1])


def test_a_copy_lies_in_order_and_nobody_writes_to_it(known):
    cell, _ = copied(known)
    y = tape.Variable(A) * np.asfortranarray(A)
    for copy in (cell[0], y._segment.leaves[-1][0]):
        assert copy.flags.c_contiguous
        assert not copy.flags.writeable


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint16", "bool", "complex64", "complex128"])
def test_dtypes_are_those_of_jax(dtype):
    n = np.ones((2, 3), dtype)
    for _ in range(3):
        by_tape, by_jax = tape.constant(A) * n, jnp.asarray(A) * jnp.asarray(n)
        assert by_tape.dtype == by_jax.dtype
        np.testing.assert_array_equal(by_tape.value, by_jax)


def test_64_bits_count_where_they_are_allowed(known):
    n = A.astype(np.float64) / 3
    x = tape.constant(A)
    for _ in range(3):
        assert (x * n).dtype == np.float32
        with jax.enable_x64(True):
            inside = x * n
            assert inside.dtype == np.float64
        np.testing.assert_array_equal(inside.value, A.astype(np.float64) * n)
        np.testing.assert_array_equal((x * n).value, A * n.astype(np.float32))


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.grad(lambda a: f(a).sum())], ids=["jit", "vmap", "grad"])
def test_under_a_transformation_of_jax(known, transform):
    row = A[0].copy()
    _ = tape.constant(A[0]) * row
    for _ in range(2):
        by_tape = transform(lambda a: (tape.Variable(a) * row).value)(jnp.asarray(A[:1]))
        by_jax = transform(lambda a: a * jnp.asarray(row))(jnp.asarray(A[:1]))
        np.testing.assert_allclose(by_tape, by_jax, rtol=1e-6)


def test_a_compiled_step_and_eager_mode(known):
    x = tape.Variable(A)
    step = tape.jit(lambda v: (v * known).sum())
    for _ in range(2):
        np.testing.assert_allclose(float(step(x)), (A * A).sum(), rtol=1e-6)
        with tape.eager():
            np.testing.assert_allclose((x * known).value, A * A, rtol=1e-6)


def test_op_hooks_are_given_arrays(known):
    class Seeing(tape.OpHook):
        def __init__(self):
            self.seen = []

        def forward_preprocess(self, op, inputs):
            self.seen += [v.value for v in inputs]

    hook = Seeing()
    with tape.hooks(hook):
        _ = tape.constant(A) * known
    assert len(hook.seen) == 2
    assert all(isinstance(value, jax.Array) for value in hook.seen)


class Special(np.ndarray):
    pass


@pytest.mark.parametrize(
    "value",
    [np.ones(1 << 15, np.float32), np.ones((2, 3), np.float32).view(Special), np.array(["a"]), np.array([None])],
    ids=["large", "subclass", "text", "objects"],
)
def test_others_are_made_arrays_at_once(value):
    for _ in range(2):
        if value.dtype.kind == "f":
            _ = tape.constant(1.0) * value
        assert copied(value) is None


def test_a_program_is_compiled_once_for_all_arrays_of_a_shape():
    x = tape.Variable(A)

    def step(n):
        y = ((x * n).sum() + tnp.where(n > 0, x, n).sum()) * 2
        return float(y)

    for i in range(3):
        step(A + i)
    before = tape.stats().compiles
    for i in range(5):
        np.testing.assert_allclose(step(A + i), 2 * ((A * (A + i)).sum() + A.sum()), rtol=1e-5)
    assert tape.stats().compiles == before


def test_an_array_of_jax_is_an_operand_as_it_is():
    x = tape.Variable(A)
    a = jnp.asarray(A)
    for _ in range(3):
        y = x * a
        assert any(cell[0] is a for cell in LOCAL.segment().leaves)
        np.testing.assert_allclose(y.detach().value, A * A, rtol=1e-6)


def test_arrays_held_by_value_are_told_apart_by_dtype():
    """Several of the dtypes that NumPy itself does not know go by one name there, and have the same bytes."""
    x = tape.Variable(np.arange(20, dtype=np.float32))
    for dtype in ("int4", "uint4"):
        with pytest.raises(TapeTypeError, match=rf"'ml_dtypes\.{dtype}'"):
            tape.numpy.split(x, np.array([5], jnp.dtype(dtype)))
    assert template.Baked(np.array([1], jnp.int4)) == template.Baked(np.array([1], jnp.int4))
    assert template.Baked(np.array([1], jnp.int4)) != template.Baked(np.array([1], jnp.uint4))
