"""Every deliberate error: its class, the builtin that a user expects, what it says, and that it changed nothing."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape import errors

A = np.array([1.0, -2.0, 0.5], np.float32)


def scene():
    """A leaf with a gradient, a non-leaf, a constant and integers."""
    x = tape.Variable(A, name="x")
    x.grad = A * 10
    h = x * x
    return x, h, tape.constant(A), tape.constant([1, 2, 3])


def set_(v, name, value):
    setattr(v, name, value)


def put(v, i, y):
    v[i] = y


# name: (what to do, class, builtin, words: what happened, which value, what to do)
CASES = {
    "value of text": (
        lambda x, h, c, i: tape.Variable("text"),
        "TapeTypeError",
        TypeError,
        ["Variable: cannot make an array of str", "pass a number"],
    ),
    "integer that requires grad": (
        lambda x, h, c, i: tape.Variable([1, 2], requires_grad=True),
        "TapeTypeError",
        TypeError,
        ["requires_grad=True", "shape (2,), dtype int32", ".astype('float32')"],
    ),
    "name": (lambda x, h, c, i: tape.Variable(1.0, name=3), "TapeTypeError", TypeError, ["name must be a string, got int"]),
    "value of a non-leaf": (
        lambda x, h, c, i: set_(h, "value", A),
        "TapeValueError",
        ValueError,
        ["cannot assign", "shape (3,), dtype float32", "detach()"],
    ),
    "value of another shape": (lambda x, h, c, i: set_(x, "value", A[:2]), "TapeValueError", ValueError, ["(2,)", "(3,)", "make a new"]),
    "value of another dtype": (
        lambda x, h, c, i: set_(x, "value", A.astype(np.float16)),
        "TapeTypeError",
        TypeError,
        ["float16", "float32", ".astype("],
    ),
    "grad of a constant": (
        lambda x, h, c, i: set_(c, "grad", A),
        "TapeValueError",
        ValueError,
        ["does not require grad", "(3,)", "requires_grad=True"],
    ),
    "grad of another shape": (lambda x, h, c, i: set_(x, "grad", A[:2]), "GradientShapeError", ValueError, ["(2,)", "(3,)"]),
    "grad of another dtype": (
        lambda x, h, c, i: set_(x, "grad", A.astype(np.float16)),
        "GradientDtypeError",
        TypeError,
        ["float16", "float32", ".astype("],
    ),
    "requires_grad_ of integers": (lambda x, h, c, i: i.requires_grad_(), "TapeTypeError", TypeError, ["requires_grad_", "int32"]),
    "requires_grad_(False) of a non-leaf": (
        lambda x, h, c, i: h.requires_grad_(False),
        "TapeValueError",
        ValueError,
        ["leaf", "(3,)", "detach()"],
    ),
    "retain_grad of a constant": (lambda x, h, c, i: c.retain_grad(), "TapeValueError", ValueError, ["retain_grad", "(3,)"]),
    "hook that is no function": (lambda x, h, c, i: h.register_hook(3), "TapeTypeError", TypeError, ["register_hook", "int"]),
    "hook on a constant": (lambda x, h, c, i: c.register_hook(print), "TapeValueError", ValueError, ["register_hook", "(3,)"]),
    "post hook that is no function": (lambda x, h, c, i: x.register_post_accumulate_grad_hook(3), "TapeTypeError", TypeError, ["int"]),
    "post hook on a non-leaf": (
        lambda x, h, c, i: h.register_post_accumulate_grad_hook(print),
        "TapeValueError",
        ValueError,
        ["leaf", "(3,)"],
    ),
    "deepcopy of a non-leaf": (lambda x, h, c, i: copy.deepcopy(h), "TapeValueError", ValueError, ["deepcopy", "(3,)", "detach()"]),
    "len of a scalar": (lambda x, h, c, i: len(h.sum()), "TapeTypeError", TypeError, ["len()", "shape ()"]),
    "iter of a scalar": (lambda x, h, c, i: iter(h.sum()), "TapeTypeError", TypeError, ["iteration", "shape ()"]),
    "float of three": (lambda x, h, c, i: float(h), "TapeTypeError", TypeError, ["float", "(3,)", "index one"]),
    "asarray": (lambda x, h, c, i: np.asarray(h), "LostGradientError", TypeError, ["np.asarray", "(3,)", ".detach()"]),
    "raw jax": (lambda x, h, c, i: jnp.sin(h), "LostGradientError", TypeError, ["raw JAX", "(3,)", "interop.lift"]),
    "x[i] = y of a leaf": (lambda x, h, c, i: put(x, 0, 1.0), "TapeValueError", ValueError, ["x[i] = y", "(3,)", "x.at[i].set"]),
    "gradient into integers": (lambda x, h, c, i: put(i, 0, h[0]), "LostGradientError", TypeError, ["int32", "y.detach()"]),
    "complex into real": (lambda x, h, c, i: put(h, 0, tape.constant(1j)), "TapeTypeError", TypeError, ["complex64", "float32", "y.real"]),
    "index out of range": (lambda x, h, c, i: h[3], "TapeIndexError", IndexError, ["index 3", "length 3", "-3 to 2"]),
    "too many indices": (lambda x, h, c, i: h[0, 0], "TapeIndexError", IndexError, ["too many indices", "(3,)"]),
    "two ellipses": (lambda x, h, c, i: h[..., ...], "TapeIndexError", IndexError, ["Ellipsis"]),
    "mask of another shape": (lambda x, h, c, i: h[np.array([True, False])], "TapeIndexError", IndexError, ["(2,)", "(3,)"]),
    "missing seed": (lambda x, h, c, i: h.backward(), "SeedError", ValueError, ["needs a seed", "(3,)", "ones_like"]),
    "seed of another shape": (lambda x, h, c, i: h.backward(A[:2]), "SeedError", ValueError, ["(2,)", "(3,)", "of the root's shape"]),
    "complex seed": (lambda x, h, c, i: h.backward(A + 1j), "SeedDtypeError", TypeError, ["complex", "float32", "real part"]),
    "seed of text": (lambda x, h, c, i: h.backward("1"), "TapeTypeError", TypeError, ["seed of root 0", "str"]),
    "no roots": (lambda x, h, c, i: tape.backward([]), "TapeValueError", ValueError, ["outputs is empty"]),
    "root that is no Variable": (lambda x, h, c, i: tape.backward(A), "TapeTypeError", TypeError, ["outputs must be", "ndarray"]),
    "second root that is none": (lambda x, h, c, i: tape.backward([h.sum(), 3.0]), "TapeTypeError", TypeError, ["outputs[1]", "float"]),
    "input that is none": (lambda x, h, c, i: tape.gradients(h.sum(), [x, A]), "TapeTypeError", TypeError, ["inputs[1]", "ndarray"]),
    "constant root": (
        lambda x, h, c, i: c.sum().backward(),
        "TapeValueError",
        ValueError,
        ["does not require grad", "shape ()", "requires_grad=True"],
    ),
    "constant input": (
        lambda x, h, c, i: tape.gradients(h.sum(), c),
        "UnconnectedError",
        ValueError,
        ["does not require grad", "(3,)", "requires_grad=True"],
    ),
    "unconnected": (
        lambda x, h, c, i: tape.gradients(h.sum(), tape.Variable(A)),
        "UnconnectedError",
        ValueError,
        ["inputs[0]", "(3,)", 'unconnected="zero"'],
    ),
    "unconnected what": (
        lambda x, h, c, i: tape.gradients(h.sum(), x, unconnected=0),
        "TapeValueError",
        ValueError,
        ["unconnected must be", "got 0"],
    ),
    "number of seeds": (lambda x, h, c, i: tape.backward([h, h], [A]), "SeedError", ValueError, ["2 roots but 1", "per root"]),
    "unrecorded": (
        lambda x, h, c, i: (x * tape.gradients(h.sum(), x, retain_graph=True)).sum().backward(),
        "UnrecordedGradientError",
        RuntimeError,
        ["without recording", "(3,)", "create_graph=True"],
    ),
    "mode of text": (lambda x, h, c, i: tape.set_grad_enabled("no"), "TapeTypeError", TypeError, ["True or False", "str"]),
    "mode on a number": (lambda x, h, c, i: tape.no_grad()(3), "TapeTypeError", TypeError, ["decorates a function", "int"]),
    "shapes": (lambda x, h, c, i: h + np.ones(2, np.float32), "TapeTypeError", TypeError, ["add", "(3,)", "(2,)"]),
    "rule of no primitive": (lambda x, h, c, i: tape.rules.defvjp("sin", print), "TapeTypeError", TypeError, ["Primitive", "str"]),
    "rule that is no function": (
        lambda x, h, c, i: tape.rules.defvjp(jax.extend.core.primitives.sin_p, 3),
        "TapeTypeError",
        TypeError,
        ["sin", "int", "pass rule("],
    ),
    "lift of a number": (lambda x, h, c, i: interop.lift(3), "TapeTypeError", TypeError, ["lift", "int"]),
    "lift with a capture": (
        lambda x, h, c, i: interop.lift(lambda y: y * x)(c),
        "LostGradientError",
        TypeError,
        ["captures", "'x'", "(3,)", ".detach()"],
    ),
    "out=": (lambda x, h, c, i: np.add(h, 1, out=np.ones(3, np.float32)), "TapeTypeError", TypeError, ["np.add", "out="]),
    "reduceat": (lambda x, h, c, i: np.isnat(h), "TapeTypeError", TypeError, ["np.isnat", ".detach()"]),
    "np.add.at of a leaf": (lambda x, h, c, i: np.add.at(x, 0, 1.0), "TapeValueError", ValueError, ["leaf", "x.at[index].add"]),
    "view": (lambda x, h, c, i: h.view("int32"), "LostGradientError", TypeError, ["view", "(3,)", ".detach()"]),
    "stream": (lambda x, h, c, i: h.to_device(None, stream=3), "TapeTypeError", TypeError, ["stream=3"]),
    "newer array api": (lambda x, h, c, i: h.__array_namespace__(api_version="2999.12"), "TapeTypeError", TypeError, ["2999.12"]),
}


@pytest.mark.parametrize("case", CASES)
def test_error(case):
    act, name, builtin, words = CASES[case]
    x, h, c, i = scene()
    with pytest.raises(getattr(errors, name)) as info:
        act(x, h, c, i)
    assert type(info.value) is getattr(errors, name)
    assert isinstance(info.value, builtin)
    assert isinstance(info.value, errors.TapeError)
    for word in words:
        assert word in str(info.value)
    # nothing changed
    np.testing.assert_array_equal(x.value, A)
    np.testing.assert_array_equal(c.value, A)
    np.testing.assert_array_equal(i.value, [1, 2, 3])
    np.testing.assert_array_equal(h.value, A * A)
    np.testing.assert_array_equal(x.grad.value, A * 10)
    assert (h.grad, c.grad) == (None, None)
    assert (x.requires_grad, h.requires_grad, c.requires_grad, x.is_leaf, h.is_leaf) == (True, True, False, True, False)
    (h * c).sum().backward(retain_graph=True)
    np.testing.assert_allclose(x.grad.value, A * 10 + 2 * A * A)
    h.backward(A)
    np.testing.assert_allclose(x.grad.value, A * 10 + 4 * A * A)


def test_a_released_tape():
    x, h, _, _ = scene()
    h.sum().backward()
    held = x.grad.numpy()
    with pytest.raises(errors.ReleasedTapeError, match=r"earlier sweep released.*retain_graph=True") as info:
        (h * 2).sum().backward()
    assert isinstance(info.value, RuntimeError)
    np.testing.assert_array_equal(x.grad.value, held)
    np.testing.assert_array_equal(h.value, A * A)


def test_every_class_is_a_tape_error_and_a_builtin():
    classes = [found for name in errors.__all__ if isinstance(found := getattr(errors, name), type)]
    assert len(classes) > 10
    for found in classes:
        assert issubclass(found, errors.TapeError)
        if found is not errors.TapeError:
            assert issubclass(found, (TypeError, ValueError, IndexError, RuntimeError, ArithmeticError, MemoryError))
        assert found.__doc__


def test_function_errors():
    class Text(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return "text"

    x = tape.Variable(A)
    with pytest.raises(errors.TapeTypeError, match=r"Text\.forward must return Variables or arrays, got str"):
        Text.apply(x)
    with pytest.raises(NotImplementedError):
        tape.Function.apply(x)
    assert tnp.sum(x).requires_grad  # the mode is as it was
