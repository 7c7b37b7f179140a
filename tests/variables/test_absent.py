"""An attribute that a Variable does not have: the error says what to write instead."""

import copy
import importlib
import pickle

import pytest

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
    assert callable(found)


@pytest.mark.parametrize("name", ["wombat", "_private", "__cuda_array_interface__", "float32"])
def test_what_nobody_has_is_an_ordinary_error(name):
    with pytest.raises(AttributeError) as caught:
        getattr(tape.Variable(1.0), name)
    assert str(caught.value).endswith(f"has no attribute '{name}'")  # without advice


def test_copies_and_pickles_ask_for_nothing():
    v = tape.Variable(1.0)
    for made in (copy.copy(v), copy.deepcopy(v), pickle.loads(pickle.dumps(v))):  # noqa: S301 - its own pickle
        assert float(made) == 1.0
