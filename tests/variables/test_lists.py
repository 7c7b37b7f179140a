"""Lists beside Variables: compared elementwise, arrays to NumPy's functions, refused by the other operators."""

import operator

import jax
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.errors import TapeError

X = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("other", [[1.0, 2.5, 2.0], (1, 2, 4), [[1.0], [2.0]], [2.0]])
def test_comparisons_are_elementwise(compare, other):
    x = tape.Variable(X)
    for found, wanted in ((compare(x, other), compare(X, np.array(other))), (compare(other, x), compare(np.array(other), X))):
        assert found.dtype == bool
        np.testing.assert_array_equal(found.value, wanted)


def test_lists_of_variables_compare_by_value():
    x = tape.Variable(X)
    assert (x == [x[0], 2.0, tape.constant(4.0)]).tolist() == [True, True, False]
    assert 2.0 in x
    assert hash(x) == id(x)
    assert len({x, tape.Variable(X)}) == 2


def test_what_is_no_number_is_not_equal():
    x = tape.Variable(X)
    for other in ("text", None, {"a": 1}, {1.0}, object()):
        assert (x == other) is False
        assert (x != other) is True


def test_what_fits_no_comparison_is_refused():
    x = tape.Variable(X)
    for other, words in (([1.0, 2.0], "(2,)"), (["text"], "equal"), ([[1], [1, 2]], "equal")):
        with pytest.raises(TapeError) as caught:
            x == other  # noqa: B015
        assert words in str(caught.value)


ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul, operator.mod, operator.pow, operator.floordiv]


@pytest.mark.parametrize("operate", ARITHMETIC)
@pytest.mark.parametrize("other", [[1.0, 2.0, 3.0], (1, 2, 3), "text", None, {"a": 1}])
def test_other_operators_refuse_what_is_no_array(operate, other):
    x = tape.Variable(X)
    with pytest.raises(TapeError) as caught:
        operate(x, other)
    assert isinstance(caught.value, TypeError)
    assert type(other).__name__ in str(caught.value)
    assert "(3,)" in str(caught.value)
    if isinstance(other, list):
        assert "tape.numpy.asarray(operand)" in str(caught.value)
        np.testing.assert_allclose(operate(x, tnp.asarray(other)).value, operate(X, np.array(other)), rtol=1e-6)
    if other != "text":  # which formats by %
        with pytest.raises(TypeError):
            operate(other, x)


def test_a_list_is_extended_by_a_variable():
    found = [0]
    found += tape.Variable(X)
    assert [float(v) for v in found] == [0.0, 1.0, 2.0, 3.0]


def test_what_knows_variables_itself_is_asked():
    class Other:
        def __radd__(self, variable):
            return "asked"

    assert tape.Variable(X) + Other() == "asked"


CALLS = {
    "allclose": lambda x: np.allclose(x, [1, 2, 3]),
    "allclose of a tuple": lambda x: np.allclose((1, 2, 4), x),
    "isclose": lambda x: np.isclose(x, [1, 2, 4]),
    "array_equal": lambda x: np.array_equal(x, [1, 2, 3]),
    "add": lambda x: np.add(x, [1, 2, 3]),
    "maximum": lambda x: np.maximum([2, 2, 2], x),
    "outer": lambda x: np.add.outer(x, [1, 2]),
    "dot": lambda x: np.dot(x, [1, 2, 3]),
    "where": lambda x: np.where([True, False, True], x, [0, 0, 0]),
    "concatenate": lambda x: np.concatenate([x, [1.0, 2.0]]),
    "average": lambda x: np.average(x, weights=[1, 2, 3]),
    "interp": lambda x: np.interp(x, [0, 1, 5], [1, 2, 3]),
    "quantile": lambda x: np.quantile(x, [0.1, 0.5], axis=(0,)),
    "searchsorted": lambda x: np.searchsorted(x, [1.5, 2.5]),
    "meshgrid": lambda x: np.meshgrid(x, [1, 2]),
    "reshape": lambda x: np.reshape(x, [3, 1]),
    "roll": lambda x: np.roll(x, (1,)),
    "tensordot": lambda x: np.tensordot(x, [1, 2, 3], ([0], [0])),
}


@pytest.mark.parametrize("call", CALLS)
def test_functions_of_numpy_take_lists_for_arrays(call):
    found, wanted = CALLS[call](tape.Variable(X)), CALLS[call](X)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(list(wanted) if isinstance(wanted, tuple) else wanted), strict=True):
        np.testing.assert_allclose(jax.device_get(ours), theirs, rtol=1e-6)


def test_gradients_flow_past_and_out_of_lists():
    x, y = tape.Variable(X), tape.Variable(2.0)
    assert tape.gradients(np.dot(x, [1.0, 2.0, y]), y).item() == 3.0
    assert tape.gradients(np.dot(x, [1.0, 2.0, y]), x).tolist() == [1.0, 2.0, 2.0]


def test_device_get_gives_numpy_arrays():
    x = tape.Variable(X)
    found = jax.device_get({"x": x, "y": [x * 2, tape.constant(1), 3.0], "a": X})
    assert [type(v) for v in jax.tree.leaves(found)] == [np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]
    np.testing.assert_array_equal(found["y"][0], X * 2)
    assert [type(jax.device_get(leaf)) for leaf in jax.tree.leaves([x, x])] == [np.ndarray] * 2
    assert x.requires_grad
    same = jax.device_put(x)
    assert isinstance(same, tape.Variable)
