"""``inputs=`` and ``ignore=`` as pytrees: the gradients come back in the same tree."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
import pytest

import tape


class Pair(NamedTuple):
    w: object
    b: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: object
    b: object


W, B = np.array([1.0, 2.0, 3.0], np.float32), np.float32(2.0)


def made():
    return tape.Variable(W), tape.Variable(B)


def loss(w, b):
    return ((w - 1.5) ** 2).sum() * b**2


WANTED = jax.grad(loss, argnums=(0, 1))(W, B)  # the same formula on arrays


@pytest.mark.parametrize(
    "build",
    [
        lambda w, b: {"w": w, "b": b},
        lambda w, b: [[w], b],
        lambda w, b: (w, {"b": (b, None)}),
        Pair,
        Layer,
        lambda w, b: {"layers": [Layer(w, b), Pair(w, b)]},
    ],
)
@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_come_in_the_tree_of_the_inputs(build, create_graph):
    w, b = made()
    for _ in range(2):
        found = tape.gradients(loss(w, b), build(w, b), create_graph=create_graph)
        wanted = build(*WANTED)
        same = jax.tree.map(lambda g, e: g.shape == e.shape and bool(np.allclose(g.value, e)), found, wanted, is_leaf=_is_variable)
        assert all(jax.tree.leaves(same))
        assert jax.tree.structure(same) == jax.tree.structure(wanted)


def _is_variable(x):
    return isinstance(x, tape.Variable)


def test_a_flat_sequence_gives_a_tuple_and_one_variable_one_gradient():
    w, b = made()
    for inputs in ([w, b], (w, b), iter([w, b]), {"w": w, "b": b}.values()):
        found = tape.gradients(loss(w, b), inputs)
        assert type(found) is tuple
        assert len(found) == 2
    assert _is_variable(tape.gradients(loss(w, b), w))
    assert tape.gradients(loss(w, b), []) == ()


def test_unconnected_inputs_in_a_tree():
    w, b = made()
    found = tape.gradients((w * w).sum(), {"w": w, "b": b}, unconnected="none")
    assert found["b"] is None
    assert found["w"].tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(tape.errors.UnconnectedError):
        tape.gradients((w * w).sum(), {"w": w, "b": b})


def test_other_sweeps_take_trees_too():
    w, b = made()
    loss(w, b).backward(inputs={"w": [w]})
    assert b.grad is None
    assert np.allclose(w.grad.value, WANTED[0])
    w, b = made()
    tape.backward(loss(w, b), ignore={"b": (b,)})
    assert b.grad is None
    assert np.allclose(w.grad.value, WANTED[0])
    w, b = made()
    assert [leaf for leaf, _ in tape.stream_gradients(loss(w, b), inputs={"b": b})] == [b]
    with pytest.raises(tape.errors.TapeTypeError, match=r"stream_gradients: inputs\['b'\] must be a tape.Variable"):
        tape.stream_gradients(loss(w, b), inputs={"b": 3.0})
