"""An attribute that a Variable does not have: the error says what to write instead."""

import copy
import importlib
import pickle

import jax
import numpy as np
import pytest

import interop
import tape
import tape.nn
import tape.numpy

REPAIRS = {
    "exp": "tape.numpy.exp(variable)",
    "softmax": "tape.nn.softmax(variable)",
    "norm": "tape.numpy.linalg.norm(variable)",
    "rsqrt": "tape.lax.rsqrt(variable)",
    "erf": "tape.lax.erf(variable)",
    "unsqueeze": "tape.numpy.expand_dims(variable, axis)",
    "data": "variable.value",
    "clone": "variable.copy()",
    "clamp": "variable.clip(min, max)",
    "where": "tape.numpy.where(condition, variable, other)",
    "select": "variable.take(index, axis)",
    "bernoulli": "tape.random.bernoulli(key, variable)",
    "multinomial": "tape.random.categorical(key, tape.numpy.log(variable))",
    "polygamma": "tape.scipy.special.polygamma(n, variable)",
    "add_": "variable.value = ...",
    "zero_": "x.zero_grad() for the gradient of x",
    "masked_fill_": "variable.value = ...",
    "index_add_": "variable.value = ...",
    "index_add": "variable.at[index].add(value)",
    "detach_": "variable.unchain()",
    "assign": "variable.value = ...",
    "creator": "variable.op",
}


@pytest.mark.parametrize("name", REPAIRS)
def test_a_method_of_other_libraries_is_answered_by_what_to_write(name):
    v = tape.Variable([1.0, 2.0])
    assert not hasattr(v, name)
    with pytest.raises(AttributeError) as caught:
        getattr(v, name)
    assert f"has no attribute {name!r}; use" in str(caught.value)
    assert REPAIRS[name] in str(caught.value)
    assert (caught.value.name, caught.value.obj) == (name, v)


M = np.array([[2.0, -1.5], [0.5, 3.0]], np.float32)
N = np.array([[1.0, 2.0], [-3.0, 0.25]], np.float32)
SORTED = np.sort(M)
GIVEN = {  # names in advice
    "a": N,
    "b": N.T,
    "axis": 1,
    "axis1": 0,
    "axis2": 1,
    "bins": 2,
    "destination": 1,
    "end": N,
    "high": 3,
    "index": np.array([[1], [0]]),
    "k": 2,
    "key": jax.random.key(0),
    "kth": 0,
    "length": 1,
    "low": 1,
    "mean": 0.5,
    "n": 2,
    "new_shape": (2, 3),
    "other": N,
    "p": 0.5,
    "q": 0.5,
    "rate": 2.0,
    "repeats": 2,
    "shape": (4,),
    "shift": 1,
    "source": 0,
    "start": 1,
    "std": 2.0,
    "value": 2.0,
    "weight": 0.25,
}
ADVISED = {  # what the advice gives, beside what NumPy does
    "H": M.T,
    "add": M + N,
    "addcdiv": M + 2 * N / N.T,
    "addcmul": M + 2 * N * N.T,
    "addmm": M + N @ N.T,
    "adjoint": M.T,
    "allclose": False,
    "atan2": np.arctan2(M, N),
    "bmm": M @ N,
    "bool": M.astype(bool),
    "diag_embed": M[..., None] * np.eye(2),
    "dist": np.linalg.norm(M - N),
    "div": M / N,
    "eq": M == N,
    "fix": np.trunc(M),
    "flat": M.ravel(),
    "fmod": np.fmod(M, N),
    "frac": M - np.trunc(M),
    "ge": M >= N,
    "histc": [2, 2],
    "hypot": np.hypot(M, N),
    "index_fill": np.full((2, 2), 2.0),
    "inverse": np.linalg.inv(M),
    "is_complex": False,
    "kthvalue": SORTED[:, 1],
    "lerp": M + 0.25 * (N - M),
    "logcumsumexp": np.logaddexp.accumulate(M, axis=1),
    "logdet": np.log(np.linalg.det(M)),
    "lt": M < N,
    "matmul": M @ N,
    "matrix_power": M @ M,
    "maximum": np.maximum(M, N),
    "mm": M @ N,
    "movedim": M.T,
    "msort": np.sort(M, axis=0),
    "mul": M * N,
    "narrow": M[1:2],
    "ne": M != N,
    "neg": -M,
    "new_ones": np.ones(4),
    "new_full": np.full(4, 2.0),
    "new_tensor": 2.0,
    "new_zeros": np.zeros(4),
    "outer": np.outer(M, N),
    "pinverse": np.linalg.inv(M),
    "prelu": np.where(M > 0, M, 0.25 * M),
    "put": [[2.0, 2.0], [0.5, 3.0]],
    "quantile": np.quantile(M, 0.5),
    "remainder": np.remainder(M, N),
    "repeat_interleave": np.repeat(M, 2),
    "resize": np.resize(M, (2, 3)),
    "roll": np.roll(M, 1),
    "scatter": [[2.0, 2.0], [2.0, 3.0]],
    "sgn": np.sign(M),
    "solve": np.linalg.solve(M, N),
    "sub": M - N,
    "swapdims": M.T,
    "take_along_dim": [[-1.5], [0.5]],
    "unflatten": M.ravel(),
}


@pytest.mark.parametrize("name", ADVISED)
def test_what_is_said_to_be_written_does_it(name):
    v = tape.Variable(M)
    with pytest.raises(AttributeError, match="; use ") as caught:
        getattr(v, name)
    advice = str(caught.value).partition("; use ")[2]
    y = eval(advice, {"tape": tape, "variable": v, **GIVEN})  # noqa: S307 - what a reader of the message writes
    np.testing.assert_allclose(jax.device_get(y), ADVISED[name], rtol=1e-5, atol=1e-6)


def test_what_is_said_to_be_written_for_cross_does_it():
    """By vectors of three: newer versions of JAX refuse those of two, as NumPy's do."""
    v, b = tape.Variable(np.float32([1, 2, 3])), np.float32([4, 5, 6])
    with pytest.raises(AttributeError, match="; use ") as caught:
        v.cross
    y = eval(str(caught.value).partition("; use ")[2], {"tape": tape, "variable": v, "other": b, "b": b})  # noqa: S307
    np.testing.assert_allclose(jax.device_get(y), [-3, 6, -3])


@pytest.mark.parametrize("name", ["bernoulli_", "exponential_", "normal_", "random_", "uniform_"])
def test_what_is_drawn_in_place_is_assigned(name):
    v = tape.Variable(M)
    with pytest.raises(AttributeError, match="; use ") as caught:
        getattr(v, name)
    exec(str(caught.value).partition("; use ")[2], {"tape": tape, "variable": v, **GIVEN})  # noqa: S102
    assert v.dtype == M.dtype
    assert v.shape == M.shape
    assert not np.array_equal(v.numpy(), M)


@pytest.mark.parametrize("name", ["sigmoid_", "erf_", "lerp_", "bmm_", "copy_", "logit_"])
def test_what_works_in_place_is_answered_by_assignments(name):
    with pytest.raises(AttributeError, match=r"an augmented assignment .* or variable\.value = \.\.\."):
        getattr(tape.Variable(M), name)


@pytest.mark.parametrize(
    ("where", "name", "repair"),
    [
        (tape, "tensor", "tape.Variable(value)"),
        (tape, "GradientTape", "tape.gradients(outputs, inputs)"),
        (tape, "elementwise_grad", "tape.grad(lambda x: function(x).sum())"),
        (tape, "optim", "interop.optax.Optimizer(parameters, transformation)"),
        (tape, "exp", "tape.numpy.exp"),
        (tape, "gradcheck", "tape.testing.check_gradients(function, *inputs)"),
        (tape, "set_detect_anomaly", "tape.detect_anomaly()"),
        (tape, "save", "interop.save(path, state)"),
        (tape, "func", "tape.grad"),
        (tape.nn, "functional", "tape.nn.relu(x)"),
        (tape.nn, "Linear", "interop.equinox.Module(module)"),
        (tape.numpy, "tensor", "tape.numpy.asarray"),
        (tape.numpy, "mm", "tape.numpy.matmul"),
        (tape, "div", "tape.numpy.divide"),
        (tape, "clip_grad_norm_", "optax.clip_by_global_norm"),
        (tape, "tree", "jax.tree"),
        (tape, "debug", "jax.debug.print"),
        (tape.nn, "dropout", "tape.numpy.where(tape.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), 0.0)"),
        (interop, "flax", "interop.nnx.Module(module)"),
        (interop, "haiku", "interop.lift(transformed.apply)"),
    ],
)
def test_a_name_of_other_libraries_is_answered_by_what_to_write(where, name, repair):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; use ") as caught:
        getattr(where, name)
    assert repair in str(caught.value)
    words = repair.partition("(")[0].split(".")  # what it names is there
    try:
        found = importlib.import_module(words[0])
        for word in words[1:]:
            found = getattr(found, word)
    except tape.errors.TapeImportError as e:  # a bridge whose package is not installed, as beside a wheel
        pytest.skip(str(e))
    assert callable(found) or found is jax.tree


@pytest.mark.parametrize("name", ["wombat", "_private", "__cuda_array_interface__", "float32"])
def test_what_nobody_has_is_an_ordinary_error(name):
    with pytest.raises(AttributeError) as caught:
        getattr(tape.Variable(1.0), name)
    assert str(caught.value).endswith(f"has no attribute '{name}'")  # without advice


@pytest.mark.parametrize("where", ["numpy", "nn", "numpy.linalg", "lax", "scipy.special", "random"])
def test_every_name_of_jax_is_there_or_an_attribute_error(where):
    v = tape.Variable(1.0)
    for name in dir(importlib.import_module(f"jax.{where}")):
        if not hasattr(v, name):  # nothing else is raised
            with pytest.raises(tape.errors.TapeAttributeError, match=f"no attribute '{name}'"):
                getattr(v, name)


def test_copies_and_pickles_ask_for_nothing():
    v = tape.Variable(1.0)
    for made in (copy.copy(v), copy.deepcopy(v), pickle.loads(pickle.dumps(v))):  # noqa: S301 - its own pickle
        assert float(made) == 1.0
