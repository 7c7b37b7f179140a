"""An attribute that a Variable does not have: the error says what to write instead."""

import copy
import pickle

import pytest

import tape

REPAIRS = {
    "exp": "tape.numpy.exp(variable)",
    "softmax": "tape.nn.softmax(variable)",
    "norm": "tape.numpy.linalg.norm(variable)",
    "rsqrt": "tape.lax.rsqrt(variable)",
    "erf": "tape.lax.erf(variable)",
    "unsqueeze": "tape.numpy.expand_dims(variable, axis)",
    "data": "variable.value",
    "clone": "variable.copy()",
    "add_": "variable.value = ...",
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


@pytest.mark.parametrize("name", ["wombat", "_private", "__cuda_array_interface__", "float32"])
def test_what_nobody_has_is_an_ordinary_error(name):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'$"):
        getattr(tape.Variable(1.0), name)


def test_copies_and_pickles_ask_for_nothing():
    v = tape.Variable(1.0)
    for made in (copy.copy(v), copy.deepcopy(v), pickle.loads(pickle.dumps(v))):  # noqa: S301 - its own pickle
        assert float(made) == 1.0
