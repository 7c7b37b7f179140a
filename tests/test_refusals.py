"""Every refusal: its class, the builtin that a user expects, what it says, and that it is as if the call had not been made."""

import copy
import gc
import importlib
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import primitives

import interop
import interop.optax
import tape
import tape.lax
import tape.numpy as tnp
import tape.random
import tape.testing
from tape import errors
from tape.programs import execution
from tape.programs.program import run_pending
from tape.recording import record

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


def without_optax():
    """Load the module anew where the package is not found."""
    found = {name: sys.modules.pop(name) for name in ("optax", "interop.optax")}
    sys.modules["optax"] = None
    try:
        importlib.import_module("interop.optax")
    finally:
        sys.modules.update(found)


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
    "flag assigned to": (
        lambda x, h, c, i: set_(x, "requires_grad", False),
        "TapeAttributeError",
        AttributeError,
        ["requires_grad", "(3,)", "x.requires_grad_(False)"],
    ),
    "a missing package": (
        lambda x, h, c, i: without_optax(),
        "TapeImportError",
        ImportError,
        ["interop.optax", "pip install 'jax-tape[optax]'"],
    ),
    "an axis without a name": (lambda x, h, c, i: h.sum(axis="n"), "TapeNameError", NameError, ["sum", "unbound axis name", "(3,)"]),
    "out= of a function": (lambda x, h, c, i: tnp.stack([h], out=h), "TapeNotImplementedError", NotImplementedError, ["stack", "out"]),
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
    "del x[i]": (lambda x, h, c, i: x.__delitem__(1), "TapeTypeError", TypeError, ["del x[i]", "(3,)", "tape.numpy.delete"]),
    "gradient into integers": (lambda x, h, c, i: put(i, 0, h[0]), "LostGradientError", TypeError, ["int32", "y.detach()"]),
    "complex into real": (lambda x, h, c, i: put(h, 0, tape.constant(1j)), "TapeTypeError", TypeError, ["complex64", "float32", "y.real"]),
    "index out of range": (lambda x, h, c, i: h[3], "TapeIndexError", IndexError, ["index 3", "length 3", "-3 to 2"]),
    "too many indices": (lambda x, h, c, i: h[0, 0], "TapeIndexError", IndexError, ["too many indices", "(3,)"]),
    "uneven lists as an index": (lambda x, h, c, i: h[[[0, 1], [2]]], "TapeIndexError", IndexError, ["different lengths", "one list"]),
    "a key as an index": (lambda x, h, c, i: h[jax.random.key(0)], "TapeTypeError", TypeError, ["getitem", "key<fry>", "(3,)"]),
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


def op(forward, backward=lambda ctx, g: g, **further):
    """A ``tape.Function`` by its two sides."""
    methods = {"forward": forward, "backward": backward, **further}
    return type("Made", (tape.Function,), {name: staticmethod(method) for name, method in methods.items()}).apply


def batched(vmap):
    """A ``tape.Function`` under ``jax.vmap``."""
    return jax.vmap(lambda a: op(twice, vmap=vmap)(tape.constant(a)).value)(np.stack([A, A]))


def twice(ctx, x):
    return x * 2


def within(mode, call):
    with mode:
        return call()


def boom(x):
    raise ArithmeticError


def failing(x):
    return interop.lift(lambda x: jax.pure_callback(boom, jax.ShapeDtypeStruct(x.shape, x.dtype), x))(x)


def out_of_memory(x):
    """Look at a value where XLA has no memory to compute it."""
    original = execution.Program._run

    def run(self, state, leaves, inner):
        msg = "RESOURCE_EXHAUSTED: out of memory"
        raise RuntimeError(msg)

    execution.Program._run = run
    try:
        with tape.no_grad():
            return (x * 12345.0).value
    finally:
        execution.Program._run = original


def leaked(x):
    """Store a traced value in a Variable from outside."""

    def f(a):
        x.value = a
        return a

    return jax.jit(f)(jnp.asarray(A))


def swept_twice(x):
    y = (x * 3).sum()
    tape.gradients(y, x)
    return tape.gradients(y, x)


def hooked(x):
    return tape.checkpoint(lambda v: (v * 2).register_hook(print) and v)(x)


def sgd(parameters):
    return interop.optax.Optimizer(parameters, optax.sgd(0.1))


TYPE, VALUE, INDEX, OVERFLOW, RUNTIME = (
    ("TapeTypeError", TypeError),
    ("TapeValueError", ValueError),
    ("TapeIndexError", IndexError),
    ("TapeOverflowError", OverflowError),
    ("TapeRuntimeError", RuntimeError),
)
LOST, LOOKED, RULE = ("LostGradientError", TypeError), ("ConcretizationError", TypeError), ("RuleError", RuntimeError)
SHAPE, DTYPE = ("GradientShapeError", ValueError), ("GradientDtypeError", TypeError)
SEED, SEED_DTYPE, UNCONNECTED = ("SeedError", ValueError), ("SeedDtypeError", TypeError), ("UnconnectedError", ValueError)

# what to do, (class, builtin), words
MORE = {
    "sweeps": [
        (lambda x, h, c, i: tape.backward(None), TYPE, ["outputs must be", "NoneType"]),
        (lambda x, h, c, i: tape.backward({"y": h.sum()}), TYPE, ["outputs[0]", "str"]),
        (lambda x, h, c, i: tape.backward("y"), TYPE, ["outputs must be", "str"]),
        (lambda x, h, c, i: tape.backward(h.sum(), inputs=[]), VALUE, ["inputs is empty", "leave it out"]),
        (lambda x, h, c, i: tape.backward(h.sum(), inputs=[x, None]), TYPE, ["inputs[1]", "NoneType"]),
        (lambda x, h, c, i: tape.backward(h.sum(), inputs=c), UNCONNECTED, ["an input (shape (3,)", "requires_grad=True"]),
        (lambda x, h, c, i: tape.backward(h.sum(), ignore=None), TYPE, ["ignore must be", "NoneType"]),
        (lambda x, h, c, i: tape.backward(h.sum(), ignore=[x, "w"]), TYPE, ["ignore[1]", "str"]),
        (lambda x, h, c, i: tape.backward(h.sum(), retain_graph="no"), TYPE, ["backward: retain_graph", "str"]),
        (lambda x, h, c, i: h.sum().backward(retain_graph=0), TYPE, ["backward: retain_graph", "int"]),
        (lambda x, h, c, i: h.sum().backward(create_graph=None), TYPE, ["backward: create_graph", "NoneType"]),
        (lambda x, h, c, i: tape.gradients(h.sum(), x, create_graph="yes"), TYPE, ["gradients: create_graph", "str"]),
        (lambda x, h, c, i: tape.gradients(h.sum(), x, retain_graph=1.0), TYPE, ["gradients: retain_graph", "float"]),
        (lambda x, h, c, i: tape.gradients(h.sum(), None), TYPE, ["inputs must be", "NoneType"]),
        (lambda x, h, c, i: tape.gradients(h.sum(), {"x": [x, 3]}), TYPE, ["inputs['x'][1]", "int"]),
        (lambda x, h, c, i: tape.backward({"y": h.sum()}), TYPE, ["outputs[0]", "list(outputs.values())"]),
        (lambda x, h, c, i: tape.gradients([], x), VALUE, ["outputs is empty"]),
        (lambda x, h, c, i: tape.gradients(c.sum(), x), VALUE, ["gradients: a root", "does not require grad"]),
        (lambda x, h, c, i: swept_twice(x), ("ReleasedTapeError", RuntimeError), ["earlier sweep released", "retain_graph=True"]),
        (lambda x, h, c, i: h.sum().backward(inputs=[x], ignore=3), TYPE, ["ignore must be", "int"]),
    ],
    "seeds": [
        (lambda x, h, c, i: tape.backward([h.sum()], "text"), SEED, ["sequence of 1 seeds", "str"]),
        (lambda x, h, c, i: tape.backward([h.sum()], {"a": 1.0}), SEED, ["sequence of 1 seeds", "dict"]),
        (lambda x, h, c, i: tape.backward([h, h], A), SEED, ["sequence of 2 seeds", "ndarray"]),
        (lambda x, h, c, i: tape.backward([h.sum()], [2**40]), OVERFLOW, ["seed of root 0", "1099511627776"]),
        (lambda x, h, c, i: tape.backward(h, [np.array(["a", "b", "c"])]), TYPE, ["seed of root 0", "<U1", "of numbers"]),
        (lambda x, h, c, i: tape.backward(h, [np.array([1, None, 2])]), TYPE, ["seed of root 0", "object"]),
        (lambda x, h, c, i: tape.backward(h.sum(), [tape.random.key(0)]), SEED_DTYPE, ["seed of root 0", "key", "numbers"]),
        (lambda x, h, c, i: h.backward([1.0, 1.0, 1.0]), TYPE, ["seed of root 0", "list"]),
        (lambda x, h, c, i: tape.gradients(h, x, A[:2]), SEED, ["(2,)", "(3,)"]),
        (lambda x, h, c, i: tape.gradients([h.sum(), h], x, [None, None]), SEED, ["root 1", "ones_like"]),
    ],
    "variables": [
        (lambda x, h, c, i: tape.Variable(None), TYPE, ["Variable:", "NoneType"]),
        (lambda x, h, c, i: tape.Variable([[1.0], [1.0, 2.0]]), TYPE, ["Variable:", "list"]),
        (lambda x, h, c, i: tape.Variable(np.array(["a"])), TYPE, ["Variable:", "<U1", "of numbers"]),
        (lambda x, h, c, i: tape.Variable({"a": 1.0}), TYPE, ["Variable:", "dict"]),
        (lambda x, h, c, i: tape.constant(object()), TYPE, ["Variable:", "object"]),
        (lambda x, h, c, i: tape.Variable(2**40), OVERFLOW, ["Variable:", "1099511627776"]),
        (lambda x, h, c, i: tape.Variable(1.0, requires_grad="no"), TYPE, ["requires_grad must be", "str"]),
        (lambda x, h, c, i: tape.Variable(tape.random.key(0), requires_grad=True), TYPE, ["requires_grad=True", "key"]),
        (lambda x, h, c, i: set_(x, "name", 3), TYPE, ["name must be a string", "int"]),
        (lambda x, h, c, i: set_(x, "value", None), TYPE, ["value:", "NoneType"]),
        (lambda x, h, c, i: set_(x, "value", "text"), TYPE, ["value:", "str"]),
        (lambda x, h, c, i: set_(x, "grad", "text"), TYPE, ["grad:", "str"]),
        (lambda x, h, c, i: set_(x, "grad", A + 1j), DTYPE, ["complex", "float32", ".astype("]),
        (lambda x, h, c, i: x.requires_grad_("no"), TYPE, ["requires_grad_", "str"]),
        (lambda x, h, c, i: c.requires_grad_(None), TYPE, ["requires_grad_", "NoneType"]),
        (lambda x, h, c, i: x.register_hook(None), TYPE, ["register_hook", "NoneType"]),
        (lambda x, h, c, i: c.register_post_accumulate_grad_hook(print), VALUE, ["leaf that requires grad", "(3,)"]),
        (lambda x, h, c, i: jax.jit(lambda a: pickle.dumps(tape.Variable(a)))(A), LOOKED, ["pickle", "(3,)"]),
        (lambda x, h, c, i: leaked(x), ("LeakedTracerError", RuntimeError), ["value:", "(3,)", "return it"]),
    ],
    "indexing": [
        (lambda x, h, c, i: h["text"], TYPE, ["getitem", "string"]),
        (lambda x, h, c, i: h[1.0], TYPE, ["getitem", "integer", "float"]),
        (lambda x, h, c, i: h[c], TYPE, ["getitem", "integer", "float32"]),
        (lambda x, h, c, i: h[0.5:], TYPE, ["bounds of a slice", "float"]),
        (lambda x, h, c, i: h[c[0] :], TYPE, ["bounds of a slice", "Variable"]),
        (lambda x, h, c, i: h[np.array([0]), 0.5:], INDEX, ["too many indices"]),
        (lambda x, h, c, i: h[::0], VALUE, ["step cannot be zero"]),
        (lambda x, h, c, i: h[2**70], INDEX, ["out of range", "length 3"]),
        (lambda x, h, c, i: h[object()], INDEX, ["getitem", "integers"]),
        (lambda x, h, c, i: put(h, 5, 1.0), INDEX, ["index 5", "length 3"]),
        (lambda x, h, c, i: put(h, 1.0, 1.0), TYPE, ["setitem", "integer"]),
        (lambda x, h, c, i: put(h, slice(0, 2), A), VALUE, ["setitem", "float32[3]"]),
        (lambda x, h, c, i: put(h, 0, "text"), TYPE, ["cannot make", "str"]),
        (lambda x, h, c, i: put(h, 0, None), TYPE, ["cannot make", "NoneType"]),
        (lambda x, h, c, i: h.at["text"].set(1.0), TYPE, ["at_set", "string"]),
        (lambda x, h, c, i: h.at[0].set(A), VALUE, ["at_set", "(3,)"]),
        (lambda x, h, c, i: h.at[0].set("text"), TYPE, ["at_set", "text"]),
        (lambda x, h, c, i: h.at[0].set(1.0, mode="nowhere"), VALUE, ["at_set", "nowhere"]),
        (lambda x, h, c, i: h.at[0].apply(3), TYPE, ["apply", "int"]),
    ],
    "operators and methods": [
        (lambda x, h, c, i: h + np.array([None, 1, 2]), TYPE, ["add", "object"]),
        (lambda x, h, c, i: np.array(["a", "b", "c"]) + h, TYPE, ["cannot make", "<U1"]),
        (lambda x, h, c, i: h @ np.ones((2, 2), np.float32), TYPE, ["matmul", "(3,)", "(2,)"]),
        (lambda x, h, c, i: h @ 2.0, VALUE, ["matmul", "ndim"]),
        (lambda x, h, c, i: ~h, TYPE, ["bitwise_not", "float32"]),
        (lambda x, h, c, i: h & 1, TYPE, ["bitwise_and", "float32"]),
        (lambda x, h, c, i: h + 2**70, OVERFLOW, ["1180591620717411303424", "int32"]),
        (lambda x, h, c, i: h.reshape(5), TYPE, ["reshape", "(3,)", "5"]),
        (lambda x, h, c, i: h.sum(axis=3), VALUE, ["sum", "axis 3"]),
        (lambda x, h, c, i: h.mean(wrong=1), TYPE, ["mean", "wrong"]),
        (lambda x, h, c, i: h.astype("float99"), TYPE, ["astype", "float99"]),
        (lambda x, h, c, i: h.view("float99"), TYPE, ["view", "float99"]),
        (lambda x, h, c, i: h.tobytes("Z"), VALUE, ["tobytes", "'Z'"]),
        (lambda x, h, c, i: h.to_device("gpu7"), VALUE, ["to_device", "gpu7"]),
        (lambda x, h, c, i: h.__array_namespace__(api_version=3), TYPE, ["api_version", "3"]),
        (lambda x, h, c, i: np.ones(2, np.float32) in h, TYPE, ["equal", "(3,)", "(2,)"]),
        (lambda x, h, c, i: tape.random.key(0) + 1, TYPE, ["add", "key"]),
    ],
    "conversions": [
        (lambda x, h, c, i: bool(h), VALUE, ["bool", "(3,)", "ambiguous"]),
        (lambda x, h, c, i: int(h), TYPE, ["int", "(3,)", "index one"]),
        (lambda x, h, c, i: complex(h), TYPE, ["complex", "(3,)", "index one"]),
        (lambda x, h, c, i: float(tape.constant(1j)), TYPE, ["float", "complex64", ".real"]),
        (lambda x, h, c, i: int(tape.constant(float("nan"))), VALUE, ["int", "NaN"]),
        (lambda x, h, c, i: int(tape.constant(float("inf"))), OVERFLOW, ["int", "infinity"]),
        (lambda x, h, c, i: range(3)[h[0]], TYPE, ["index", "float32"]),
        (lambda x, h, c, i: h.item(), VALUE, ["item", "(3,)", "size 1"]),
        (lambda x, h, c, i: h.item(7), INDEX, ["item", "index 7"]),
        (lambda x, h, c, i: f"{h:.2f}", TYPE, ["format", "(3,)"]),
        (lambda x, h, c, i: f"{h.sum():zz}", VALUE, ["format", "shape ()"]),
        (lambda x, h, c, i: tape.random.key(0).numpy(), TYPE, ["numpy", "key"]),
        (lambda x, h, c, i: np.asarray(tape.random.key(0)), TYPE, ["np.asarray", "key"]),
        (lambda x, h, c, i: np.array([h[0], h[1]]), LOST, ["np.asarray", ".value"]),
        (lambda x, h, c, i: np.array(h, dtype=np.float64), LOST, ["np.asarray", ".detach()"]),
        (lambda x, h, c, i: np.float32(h.sum()), LOST, ["np.asarray", "shape ()"]),
        (lambda x, h, c, i: np.from_dlpack(h), LOST, ["np.asarray", "(3,)"]),
        (lambda x, h, c, i: np.vectorize(abs)(h), LOST, ["np.asarray", "(3,)"]),
        (lambda x, h, c, i: jnp.array([h[0], h[1]]), LOST, ["raw JAX", "tape.numpy"]),
        (lambda x, h, c, i: jax.jit(jnp.sin)(h), LOST, ["raw JAX", "(3,)"]),
        (lambda x, h, c, i: put(np.zeros(3, np.float32), slice(None), h), LOST, ["np.asarray", "(3,)"]),
        (lambda x, h, c, i: np.copyto(np.zeros(3, np.float32), h), TYPE, ["np.copyto", "NumPy array", ".value"]),
        (lambda x, h, c, i: np.putmask(h, np.ones(3, bool), 0.0), TYPE, ["np.putmask", "tape.numpy.where"]),
        (lambda x, h, c, i: np.place(np.zeros(3), np.ones(3, bool), h), TYPE, ["np.place", "tape.numpy.place", "inplace=False"]),
        (lambda x, h, c, i: np.fill_diagonal(h[:2].reshape(2, 1), 0.0), TYPE, ["np.fill_diagonal", "inplace=False"]),
        (lambda x, h, c, i: np.ones(3, np.float32).__iadd__(h), TYPE, ["np.add", "out="]),
        (lambda x, h, c, i: np.add.at(np.zeros(3, np.float32), [0], h[0]), TYPE, ["np.add.at", "ndarray", "x.at[index]"]),
        (lambda x, h, c, i: jax.jit(lambda v: float(v))(c.sum()), LOOKED, ["float", "tape.lax.cond"]),
        (lambda x, h, c, i: jax.jit(lambda v: np.asarray(v))(c), LOOKED, ["asarray", "not known"]),
        (lambda x, h, c, i: jax.jit(lambda v: v[v > 0])(c), LOOKED, ["mask", "tape.numpy.where"]),
    ],
    "modes": [
        (lambda x, h, c, i: tape.set_grad_enabled(1), TYPE, ["True or False", "int"]),
        (lambda x, h, c, i: tape.eager()(3), TYPE, ["function", "int"]),
        (lambda x, h, c, i: within(tape.no_grad(), (x * x).sum().detach().backward), VALUE, ["does not require grad", "no_grad()"]),
        (lambda x, h, c, i: tape.stop_gradient("text"), TYPE, ["cannot make", "str"]),
    ],
    "transforms": [
        (lambda x, h, c, i: tape.grad(3), TYPE, ["expected a function", "int"]),
        (lambda x, h, c, i: tape.grad(lambda v: v * x)(A), TYPE, ["one number", "(3,)", "tape.jacrev"]),
        (lambda x, h, c, i: tape.grad(lambda v: (v.sum(), v.sum()))(A), TYPE, ["one number", "(), ()", "has_aux"][:2]),
        (lambda x, h, c, i: tape.grad(lambda v: "text")(A), TYPE, ["grad", "str"]),
        (lambda x, h, c, i: tape.grad(lambda v: None)(A), TYPE, ["one number", "nothing"]),
        (lambda x, h, c, i: tape.grad(lambda v: (v > 0).sum())(A), TYPE, ["int32", "floating output"]),
        (lambda x, h, c, i: tape.grad(lambda v: v * 1.0)(3), TYPE, ["int32", "argnums"]),
        (lambda x, h, c, i: tape.grad(lambda v: 1.0)("text"), TYPE, ["str is not an array"]),
        (lambda x, h, c, i: tape.grad(lambda v: v.sum(), argnums=1)(A), VALUE, ["argument 1", "1 positional"]),
        (lambda x, h, c, i: tape.grad(lambda v: v.sum(), argnums=(0, -2))(A), VALUE, ["argument -2", "1 positional"]),
        (lambda x, h, c, i: tape.grad(lambda v: v.sum(), argnums="x")(A), TYPE, ["argnums", "str"]),
        (lambda x, h, c, i: tape.grad(lambda v: v.sum(), argnums=1.0)(A), TYPE, ["argnums", "float"]),
        (lambda x, h, c, i: tape.grad(lambda v: v.sum(), argnums=None)(A), TYPE, ["argnums", "NoneType"]),
        (lambda x, h, c, i: tape.grad(lambda v: (v * 1j).sum())(A), TYPE, ["complex64", "holomorphic=True"]),
        (lambda x, h, c, i: tape.grad(lambda v: v.sum(), holomorphic=True)(A), TYPE, ["complex inputs"]),
        (lambda x, h, c, i: tape.grad(lambda v: v.sum(), has_aux=True)(A), TYPE, ["(output, aux)", "Variable"]),
        (lambda x, h, c, i: tape.value_and_grad(3), TYPE, ["value_and_grad", "int"]),
        (lambda x, h, c, i: tape.vjp(3, A), TYPE, ["vjp", "int"]),
        (lambda x, h, c, i: tape.vjp(lambda v: v * 2, A)[1](A[:2]), SEED, ["(2,)", "(3,)"]),
        (lambda x, h, c, i: tape.vjp(lambda v: v * 2, A)[1](A + 1j), SEED_DTYPE, ["complex", "float32"]),
        (lambda x, h, c, i: tape.vjp(lambda v: (v, v * 2), A)[1](A), TYPE, ["vjp", "structure"]),
        (lambda x, h, c, i: tape.jvp(3, (A,), (A,)), TYPE, ["jvp", "int"]),
        (lambda x, h, c, i: tape.jvp(lambda v: v, A, A), TYPE, ["jvp", "tuples or lists", "ndarray"]),
        (lambda x, h, c, i: tape.jvp(lambda v: v, (A,), (A, A)), TYPE, ["jvp", "one structure"]),
        (lambda x, h, c, i: tape.jvp(lambda v: v, (A,), (A[:2],)), VALUE, ["tangent", "(2,)", "(3,)"]),
        (lambda x, h, c, i: tape.jvp(lambda v: v, (A,), (A.astype(np.float16),)), TYPE, ["tangent", "float16", "float32"]),
        (lambda x, h, c, i: tape.jvp(lambda v: v, (A,), ("text",)), TYPE, ["jvp", "str"]),
        (lambda x, h, c, i: tape.jvp(lambda v: v, (3,), (1,)), TYPE, ["jvp", "int32"]),
        (lambda x, h, c, i: tape.linearize(3, A), TYPE, ["linearize", "int"]),
        (lambda x, h, c, i: tape.linearize(lambda v: v * 2, A)[1](A, A), TYPE, ["linearize", "structure"]),
        (lambda x, h, c, i: tape.jacrev(3), TYPE, ["jacrev", "int"]),
        (lambda x, h, c, i: tape.jacrev(lambda v: v * 1j)(A), TYPE, ["jacrev", "complex64", "holomorphic"]),
        (lambda x, h, c, i: tape.jacrev(lambda v: v, argnums=2)(A), VALUE, ["jacrev", "argument 2"]),
        (lambda x, h, c, i: tape.jacfwd(3), TYPE, ["jacfwd", "int"]),
        (lambda x, h, c, i: tape.jacfwd(lambda v: v * 2)(3), TYPE, ["jacfwd", "int32"]),
        (lambda x, h, c, i: tape.hessian(3), TYPE, ["expected a function", "int"]),
        (lambda x, h, c, i: tape.hvp(lambda v: (v * v).sum(), (A,), (A, A)), TYPE, ["one structure"]),
        (lambda x, h, c, i: tape.hvp(lambda v: (v * v).sum(), (A,), (A[:2],)), VALUE, ["(2,)", "(3,)"]),
        (lambda x, h, c, i: tape.hvp(lambda v: v * v, (A,), (A,)), TYPE, ["one number", "(3,)"]),
    ],
    "tape.jit": [
        (lambda x, h, c, i: tape.jit(3), TYPE, ["jit", "int"]),
        (lambda x, h, c, i: tape.jit(twice, keep_unused="text"), TYPE, ["keep_unused", "str"]),
        (lambda x, h, c, i: tape.jit(twice, donate_state=1), TYPE, ["donate_state", "int"]),
        (lambda x, h, c, i: tape.jit(lambda v: v, static_argnums=3)(A), VALUE, ["static_argnums", "argument 3"]),
        (lambda x, h, c, i: tape.jit(lambda v: v, static_argnums="v")(A), TYPE, ["static_argnums", "str"]),
        (lambda x, h, c, i: tape.jit(lambda v: v, static_argnames="w")(A), VALUE, ["static_argnames", "'w'", "it has v"]),
        (lambda x, h, c, i: tape.jit(lambda v, w: v, static_argnums=1)(A, [1]), TYPE, ["static argument 1", "list", "hashed"]),
        (lambda x, h, c, i: tape.jit(lambda v, w: v, static_argnums=1)(A, c), TYPE, ["static argument 1", "Variable"]),
        (lambda x, h, c, i: tape.jit(lambda v, w: v, static_argnames="w")(A, w=(c,)), TYPE, ["static argument 'w'", "Variable"]),
        (lambda x, h, c, i: tape.jit(lambda v: v, donate_argnums=0, static_argnums=0)(3), VALUE, ["both static and donated"]),
        (lambda x, h, c, i: tape.jit(lambda v: v)("text"), TYPE, ["str", "static_argnums"]),
        (lambda x, h, c, i: tape.jit(lambda v: v if v.sum() > 0 else -v)(c), LOOKED, ["bool", "tape.lax.cond"]),
        (lambda x, h, c, i: tape.jit(lambda v: v + np.ones(2, np.float32))(c), TYPE, ["add", "(3,)", "(2,)"]),
        (
            lambda x, h, c, i: tape.jit(lambda v: v * 2, compiler_options={"no_such": 1})(A),
            ("ExecutionError", RuntimeError),
            ["jit", "no_such"],
        ),
        (lambda x, h, c, i: tape.jit(lambda: (x * h.sum()).sum().backward())(), RUNTIME, ["a sweep inside", "(3,)", "sweep outside"]),
    ],
    "checkpoint": [
        (lambda x, h, c, i: tape.checkpoint(3), TYPE, ["checkpoint", "int"]),
        (lambda x, h, c, i: tape.checkpoint(twice, policy=3), TYPE, ["policy", "int"]),
        (lambda x, h, c, i: tape.checkpoint(twice, prevent_cse=1), TYPE, ["prevent_cse", "int"]),
        (lambda x, h, c, i: tape.checkpoint(twice, static_argnums="text"), TYPE, ["static_argnums", "str"]),
        (lambda x, h, c, i: tape.checkpoint(twice, static_argnums=1.5), TYPE, ["static_argnums", "float"]),
        (lambda x, h, c, i: tape.checkpoint(lambda v: v, static_argnums=2)(x), VALUE, ["argument 2", "1 positional"]),
        (lambda x, h, c, i: tape.checkpoint(lambda v: v, static_argnums=0)(x), TYPE, ["static", "Variable"]),
        (lambda x, h, c, i: tape.checkpoint(lambda v: v * float(v.sum()))(x), LOOKED, ["float", "not known"]),
        (lambda x, h, c, i: hooked(x), RUNTIME, ["hook", "register it outside"]),
        (lambda x, h, c, i: tape.checkpoint_name(x, 3), TYPE, ["checkpoint_name", "int"]),
        (lambda x, h, c, i: tape.checkpoint_name("text", "n"), TYPE, ["cannot make", "str"]),
        (lambda x, h, c, i: tape.checkpoint_scan(3, x, length=4), TYPE, ["checkpoint_scan", "int"]),
        (lambda x, h, c, i: tape.checkpoint_scan(lambda a, b: (a, None), x), VALUE, ["checkpoint_scan", "length"]),
        (lambda x, h, c, i: tape.checkpoint_scan(lambda a, b: (a, None), x, length=-4), VALUE, ["length", "-4"]),
        (lambda x, h, c, i: tape.checkpoint_scan(lambda a, b: (a, None), x, length=4.5), TYPE, ["length", "float"]),
        (lambda x, h, c, i: tape.checkpoint_scan(lambda a, b: (a[:2], None), x, length=4), TYPE, ["carry", "float32[3]"]),
        (lambda x, h, c, i: tape.checkpoint_scan(lambda a, b: (a, None), x, length=4, schedule="z"), VALUE, ["schedule", "'z'"]),
        (lambda x, h, c, i: tape.checkpoint_sequential(3, x), TYPE, ["functions", "int"]),
        (lambda x, h, c, i: tape.checkpoint_sequential([3], x), TYPE, ["functions[0]", "int"]),
        (lambda x, h, c, i: tape.checkpoint_sequential([tnp.sin], x, schedule=0), VALUE, ["schedule", "0"]),
    ],
    "extension": [
        (lambda x, h, c, i: tape.rules.defvjp(primitives.sin_p, None), TYPE, ["sin", "NoneType", "pass rule("]),
        (lambda x, h, c, i: op(lambda ctx, v: "text")(x), TYPE, ["forward must return", "str"]),
        (lambda x, h, c, i: op(lambda ctx, v: None)(x), TYPE, ["forward must return", "NoneType"]),
        (
            lambda x, h, c, i: op(lambda ctx, v: v * h)(x),
            LOST,
            ["Made.forward reads", "shape (3,), dtype float32", "pass it to Made.apply"],
        ),
        (lambda x, h, c, i: op(lambda ctx, v: v * x)(c), LOST, ["Made.forward reads", "'x'", ".detach()"]),
        (lambda x, h, c, i: batched(lambda info, in_dims, x: x), RULE, ["Made.vmap", "(outputs, out_dims)", "Variable"]),
        (lambda x, h, c, i: batched(lambda info, in_dims, x: (x, 5)), RULE, ["Made.vmap", "axis of output 0", "(2, 3)"]),
        (lambda x, h, c, i: batched(lambda info, in_dims, x: ([x], 0)), RULE, ["Made.vmap", "structure"]),
        (lambda x, h, c, i: batched(lambda info, x: (x, 0)), TYPE, ["Made.vmap is called with info, in_dims"]),
        (lambda x, h, c, i: op(twice, lambda ctx, g: (g, g))(x).sum().backward(), RULE, ["2 gradients for 1"]),
        (lambda x, h, c, i: op(twice, lambda ctx, g: g[:2])(x).sum().backward(), SHAPE, ["(2,)", "argument 0", "(3,)"]),
        (lambda x, h, c, i: op(twice, lambda ctx, g: g.astype("float16"))(x).sum().backward(), DTYPE, ["float16", "argument 0"]),
        (
            lambda x, h, c, i: tape.testing.check_gradients(op(twice, lambda ctx, g: g * 3), A, order=1),
            ("GradientMismatch", AssertionError),
            ["3"],
        ),
        (lambda x, h, c, i: op(twice, lambda ctx, g: "text")(x).sum().backward(), DTYPE, ["str", "argument 0"]),
    ],
    "bridges": [
        (lambda x, h, c, i: interop.lift(lambda y: "text")(c), TYPE, ["str"]),
        (lambda x, h, c, i: interop.lift(lambda y: y + jnp.ones(2))(c), TYPE, ["add", "(3,)", "(2,)"]),
        (lambda x, h, c, i: interop.lift(lambda y, z: y)(c, {1, 2}), TYPE, ["static argument", "set"]),
        (lambda x, h, c, i: interop.lower(3), TYPE, ["lower", "int"]),
        (lambda x, h, c, i: interop.lower(lambda v: "text")(A), TYPE, ["lower", "str"]),
        (lambda x, h, c, i: jax.jit(interop.lower(lambda v: v * float(v.sum())))(A), LOOKED, ["float", "not known"]),
        (lambda x, h, c, i: sgd([A]), TYPE, ["parameter 0", "ndarray", "tape.Variable"]),
        (lambda x, h, c, i: sgd([c]), VALUE, ["parameter 0", "leaf that requires grad"]),
        (lambda x, h, c, i: sgd([h]), VALUE, ["parameter 0", "leaf that requires grad"]),
        (lambda x, h, c, i: sgd([x, x]), VALUE, ["parameter 1", "twice"]),
        (lambda x, h, c, i: sgd([]), VALUE, ["no parameters"]),
        (lambda x, h, c, i: interop.optax.Optimizer([x], optax.sgd), TYPE, ["optax.GradientTransformation", "function"]),
        (lambda x, h, c, i: sgd([tape.Variable(1.0)]).step(), VALUE, ["no gradient", "backward() first"]),
        (lambda x, h, c, i: setattr(sgd([x]), "state", 3), VALUE, ["state", "got int", "assign what .state"]),
    ],
    "namespaces": [
        (lambda x, h, c, i: tnp.sin("text"), TYPE, ["sin", "str"]),
        (lambda x, h, c, i: tnp.sin(), TYPE, ["sin", "missing"]),
        (lambda x, h, c, i: tnp.sin([x]), TYPE, ["sin", "list"]),
        (lambda x, h, c, i: tnp.sum(x, wrong=1), TYPE, ["sum", "wrong"]),
        (lambda x, h, c, i: tnp.sum(x, axis=2), VALUE, ["sum", "axis 2"]),
        (lambda x, h, c, i: tnp.stack([x, x[:2]]), VALUE, ["stack", "(3,)", "(2,)"]),
        (lambda x, h, c, i: tnp.concatenate([]), VALUE, ["concatenate"]),
        (lambda x, h, c, i: tnp.einsum("ij,jk->ik", x, x), VALUE, ["einsum", "'ij'"]),
        (lambda x, h, c, i: tnp.split(x, 2), VALUE, ["split"]),
        (lambda x, h, c, i: tnp.linalg.inv(x), VALUE, ["inv", "(3,)"]),
        (lambda x, h, c, i: tnp.zeros(3, dtype="float99"), TYPE, ["zeros", "float99"]),
        (lambda x, h, c, i: tnp.arange(h[0]), LOST, ["arange", ".detach()"]),
        (lambda x, h, c, i: tape.lax.add(x, i), TYPE, ["add", "float32", "int32"]),
        (lambda x, h, c, i: tape.lax.scan(3, x, None, length=3), TYPE, ["scan", "int"]),
        (lambda x, h, c, i: tape.lax.cond(x, lambda v: v, lambda v: v, x), TYPE, ["cond", "(3,)"]),
        (lambda x, h, c, i: tape.lax.cond(True, lambda v: v, lambda v: v[:2], x), TYPE, ["cond", "float32[3]", "float32[2]"]),
        (lambda x, h, c, i: tape.lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 9, x).sum().backward(), VALUE, ["while_loop", "scan"]),
        (lambda x, h, c, i: tape.nn.softmax(x, axis=3), VALUE, ["softmax", "axis 3"]),
        (lambda x, h, c, i: tape.random.normal(3), TYPE, ["normal", "key"]),
        (lambda x, h, c, i: tape.scipy.special.logsumexp(x, axis=4), VALUE, ["logsumexp", "axis 4"]),
    ],
    "runs": [
        (lambda x, h, c, i: failing(x.detach()).value, ("ExecutionError", RuntimeError), ["ArithmeticError"]),
        (lambda x, h, c, i: tape.jit(failing)(c), ("ExecutionError", RuntimeError), ["jit", "nothing was assigned"]),
        (
            lambda x, h, c, i: within(jax.debug_nans(True), lambda: tnp.log(c - 9).value),
            ("NonFiniteError", FloatingPointError),
            ["log"],
        ),
        (lambda x, h, c, i: out_of_memory(c), ("OutOfMemoryError", MemoryError), ["memory"]),
    ],
}
CASES |= {f"{group} {n}": (act, *kinds, words) for group, rows in MORE.items() for n, (act, kinds, words) in enumerate(rows)}


def settle():
    """Run what is pending, so that what nobody refers to is let go."""
    segment = record.LOCAL.segment()
    if segment is not None:
        run_pending(segment, "length")


def modes():
    return record.LOCAL.scope, (tape.Variable(1.0) * 2).requires_grad


def refusal(act, things):
    """What a call raises, without the frames that hold what it made."""
    try:
        act(*things)
    except Exception as error:  # noqa: BLE001 - compared by the caller
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    return None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("looked", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_refusal(case, looked, capfd):
    act, name, builtin, words = CASES[case]
    x, h, c, i = scene()
    if looked:
        np.testing.assert_array_equal(h.value, A * A)
    before = modes()
    settle()
    live = tape.stats().live_entries
    error = refusal(act, (x, h, c, i))
    assert type(error) is getattr(errors, name), error
    assert isinstance(error, builtin)
    assert isinstance(error, errors.TapeError)
    for word in words:
        assert word in str(error)
    # nothing changed
    assert modes() == before
    settle()
    del error
    if name == "NonFiniteError":
        gc.collect()  # JAX's own search for the culprit leaves cycles
    assert tape.stats().live_entries <= live
    np.testing.assert_array_equal(x.value, A)
    np.testing.assert_array_equal(c.value, A)
    np.testing.assert_array_equal(i.value, [1, 2, 3])
    np.testing.assert_array_equal(h.value, A * A)
    np.testing.assert_array_equal(x.grad.value, A * 10)
    assert (h.grad, c.grad, x.name) == (None, None, "x")
    assert (x.requires_grad, h.requires_grad, c.requires_grad, x.is_leaf, h.is_leaf) == (True, True, False, True, False)
    (h * c).sum().backward(retain_graph=True)
    np.testing.assert_allclose(x.grad.value, A * 10 + 2 * A * A)
    h.backward(A)
    np.testing.assert_allclose(x.grad.value, A * 10 + 4 * A * A)


def test_every_class_is_raised():
    """By a row above; the base class by those that derive from it, and what only a search raises in tests/testing/test_properties.py."""
    raised = {name for _, name, _, _ in CASES.values()}
    classes = {n for n in errors.__all__ if isinstance(getattr(errors, n), type) and n != "TapeWarning"}
    assert classes - raised == {"TapeError", "InconclusiveGradientError"}


def test_a_released_tape():
    x, h, _, _ = scene()
    h.sum().backward()
    held = x.grad.numpy()
    with pytest.raises(errors.ReleasedTapeError, match=r"earlier sweep released.*retain_graph=True") as info:
        (h * 2).sum().backward()
    assert isinstance(info.value, RuntimeError)
    np.testing.assert_array_equal(x.grad.value, held)
    np.testing.assert_array_equal(h.value, A * A)


def test_a_released_tape_is_named():
    """What was computed before a loop and enters its loss, here a weight, has the loop's second sweep fail: the message says what it is."""
    x = scene()[0]
    weight = tape.vmap(tape.grad(lambda v: v**3))(x)
    (x * weight).sum().backward()
    named = r"released, vmap\(<lambda>\) \(.*test_refusals\.py:\d+\); .* \.detach\(\) what was computed before"
    for _ in range(3):
        with pytest.raises(errors.ReleasedTapeError, match=named):
            (x * weight).sum().backward()
    slope = tape.gradients((tape.numpy.sin(x) * x).sum(), x, create_graph=True)
    (slope * slope).sum().backward()
    with pytest.raises(errors.ReleasedTapeError, match=r"released, \w+ \(.*test_refusals\.py:\d+\)"):
        (slope * 2).sum().backward()


BUILTINS = (TypeError, ValueError, IndexError, RuntimeError, ArithmeticError, MemoryError, AssertionError)
BUILTINS += (AttributeError, ImportError, NameError)


def test_every_class_is_a_tape_error_and_a_builtin():
    classes = [found for name in errors.__all__ if isinstance(found := getattr(errors, name), type) and not issubclass(found, Warning)]
    assert len(classes) > 10
    for found in classes:
        assert issubclass(found, errors.TapeError)
        if found is not errors.TapeError:
            assert any(issubclass(found, builtin) for builtin in BUILTINS)
        assert found.__doc__
