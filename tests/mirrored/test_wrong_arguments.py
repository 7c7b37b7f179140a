"""Wrong arguments to every function of the namespaces: what is raised is a TapeError, and derives from a builtin."""

import importlib

import numpy as np
import pytest

import tape
import tape.lax
import tape.nn
import tape.numpy as tnp
import tape.scipy
from tape.errors import TapeError
from tape.namespaces.namespace import Namespace
from tests.daily import NIGHTLY, share

V = tape.Variable(np.arange(6, dtype=np.float32).reshape(2, 3))
U = tape.Variable(np.ones(2, np.float32))

CALLS = {
    "nothing": lambda f: f(),
    "text": lambda f: f("text"),
    "a dict": lambda f: f({"a": V}),
    "a generator": lambda f: f(v for v in (V, U)),
    "too many": lambda f: f(V, V, U, V, V, V, V, V, V, V),
    "text as well": lambda f: f(V, "text"),
    "an object": lambda f: f(V, object()),
    "an axis out of range": lambda f: f(V, axis=9),
    "a named axis": lambda f: f(V, axis="rows"),
    "dim=": lambda f: f(V, dim=0),
}
SPACES = ["numpy", "numpy.linalg", "numpy.fft", "nn", "nn.initializers", "lax", "lax.linalg", "random"]
SPACES += [f"scipy.{name}" for name in ("special", "linalg", "stats", "signal", "ndimage", "interpolate", "integrate", "optimize")]
# What is no TapeError, and why.
EXCEPTIONS = {
    ("numpy", "load", "text"): FileNotFoundError,  # the file system says it
    ("numpy", "save", "text"): None,  # writes a file of this name
    ("numpy", "savez", "text"): None,
}


@pytest.mark.filterwarnings("ignore")  # of deprecations in JAX
@pytest.mark.parametrize("space", SPACES)
def test_a_wrong_argument_is_a_tape_error(space, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(f"tape.{space}")
    names = Namespace(f"tape.{space}", f"jax.{space}")
    others = []
    for k, name in enumerate(names.names):
        function = getattr(module, name)
        if names.category(name) in {"module", "passed"} or not callable(function):
            continue
        for what, call in share([*CALLS.items()][0 if NIGHTLY else k % 4 :]):
            try:
                call(function)
            except TapeError as e:
                if len(type(e).__mro__) < 5:  # itself, TapeError, a builtin, Exception, ...
                    others.append((name, what, "no builtin"))
            except Exception as e:  # noqa: BLE001 - this is what is looked for
                if not isinstance(e, EXCEPTIONS.get((space, name, what)) or ()):
                    others.append((name, what, f"{type(e).__name__}: {e}"[:100]))
    assert not others


METHODS = {
    "text": lambda f: f("text"),
    "a dict": lambda f: f({"a": V}),
    "too many": lambda f: f(V, V, U, V, V, V, V, V, V, V),
    "an object": lambda f: f(object()),
    "an axis out of range": lambda f: f(axis=9),
    "a named axis": lambda f: f(axis="rows"),
    "dim=": lambda f: f(dim=0),
    "dim= and keepdim=": lambda f: f(dim=0, keepdim=True),
}


def test_a_wrong_argument_to_a_method_is_a_tape_error():
    from tape.variables.methods import _METHODS

    others = []
    for name in (*_METHODS, "repeat", "compress", "choose"):
        for what, call in METHODS.items():
            try:
                call(getattr(V, name))
            except TapeError:
                continue
            except Exception as e:  # noqa: BLE001
                others.append((name, what, f"{type(e).__name__}: {e}"[:100]))
    assert not others


@pytest.mark.parametrize(
    ("call", "builtin", "words"),
    [
        (lambda: tnp.matmul(V, U), TypeError, ["matmul", "(2, 3)", "(2,)", "float32"]),
        (lambda: V @ U, TypeError, ["matmul", "(2, 3)", "(2,)"]),
        (lambda: V + tape.constant([1, 2]), ValueError, ["add", "(2, 3)", "(2,)", "float32 and int32"]),
        (lambda: tape.nn.glu(V), ValueError, ["glu", "divisible by 2", "(2, 3)"]),
        (lambda: tape.nn.glu(U[:1]), ValueError, ["glu", "(1,)"]),
        (lambda: tnp.concatenate([V] * 9 + [U]), TypeError, ["concatenate", "(2, 3), (2, 3)", "..."]),
        (lambda: tape.lax.scan(lambda c, x: (c @ x, x), V, U), ValueError, ["matmul", "(2, 3) and ()"]),
        (lambda: tnp.unique("text"), TypeError, ["unique"]),
        (lambda: tnp.stack([V], out=V), NotImplementedError, ["stack", "out"]),
        (lambda: V.sum(axis="rows"), NameError, ["sum", "unbound", "(2, 3)"]),
    ],
)
def test_a_message_names_the_function_and_the_shapes(call, builtin, words):
    with pytest.raises(TapeError) as caught:
        call()
    assert isinstance(caught.value, builtin)
    assert [w for w in words if w not in str(caught.value)] == []


def test_an_op_known_for_arrays_looks_at_a_number():
    """``bins`` as an array is an input; as a number it has to be known."""
    v = V.detach()
    assert tnp.histogram(v, tape.constant([0.0, 3.0, 6.0]))[0].tolist() == [3.0, 3.0]
    assert tnp.histogram(v, 2)[0].tolist() == [3.0, 3.0]


SPELLED = {
    "mean dim": (lambda: V.mean(dim=0), "mean: there is no argument dim=; use axis="),
    "mean keepdim": (lambda: V.mean(0, keepdim=True), "mean: there is no argument keepdim=; use keepdims="),
    "numpy.sum": (lambda: tnp.sum(V, dim=1), "sum: there is no argument dim=; use axis="),
    "softmax": (lambda: tape.nn.softmax(V, dim=1), "softmax: there is no argument dim=; use axis="),
    "concatenate": (lambda: tnp.concatenate([V, V], dim=0), "use axis="),
    "var": (lambda: V.var(unbiased=False), "use ddof="),
    "repeat": (lambda: V.repeat(2, dim=0), "use axis="),
    "unique": (lambda: tnp.unique(V, dim=0), "use axis="),
    "zeros": (lambda: tnp.zeros(3, requires_grad=True), "tape.Variable(...)"),
    "zero_grad": (lambda: V.zero_grad(set_to_none=True), "use zero_grad()"),
    "gradient": (lambda: V.backward(gradient=V), "backward: there is no argument gradient=; use the seed as the first argument"),
    "retain_graph by its place": (lambda: V.backward(V, True), "give the options by their names"),
    "grad_tensors": (lambda: tape.backward([V], grad_tensors=[V]), "backward: there is no argument grad_tensors=; use grad_outputs="),
    "allow_unused": (
        lambda: tape.gradients(V, V, allow_unused=True),
        'gradients: there is no argument allow_unused=; use unconnected="none"',
    ),
    "is_grads_batched": (lambda: tape.gradients(V, V, is_grads_batched=True), "use tape.vmap(lambda seed: tape.gradients("),
    "in_dims": (lambda: tape.vmap(abs, in_dims=0), "vmap: there is no argument in_dims=; use in_axes="),
    "view": (lambda: V.view(3, 2), "use x.reshape(3, 2)"),
    "view of one": (lambda: V.view(-1), "use x.reshape(-1)"),
    "view of a tuple": (lambda: V.view((3, 2)), "use x.reshape((3, 2))"),
}


@pytest.mark.parametrize("spelled", SPELLED)
def test_spellings_of_pytorch_are_answered_by_ours(spelled):
    call, words = SPELLED[spelled]
    with pytest.raises(TapeError) as caught:
        call()
    assert isinstance(caught.value, TypeError)
    assert words in str(caught.value)


def test_an_error_that_a_function_of_the_users_raises_in_a_sweep_is_none_of_ours():
    y = V * 1
    y.register_hook(lambda: None)
    with pytest.raises(TypeError, match="positional") as caught:
        y.sum().backward()
    assert not isinstance(caught.value, TapeError)


@pytest.mark.parametrize(
    ("name", "ours"),
    [("fix", "tape.numpy.trunc"), ("cat", "tape.numpy.concatenate"), ("relu", "tape.nn.relu"), ("in1d", "tape.numpy.isin")],
)
def test_a_function_of_other_libraries_is_answered_by_ours(name, ours):
    with pytest.raises(TapeError) as caught:
        getattr(tnp, name)
    assert str(caught.value).endswith(f"no attribute {name!r}; use {ours}")  # the note on its page is no part of it
    assert isinstance(caught.value, AttributeError)
    assert not hasattr(tnp, name)
    with pytest.raises(AttributeError, match=f"use {ours}"):
        getattr(tape, name)
