"""Variables where JAX takes arrays: what is raised says what to write, and what is shown can be shown."""

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import interop
import tape
import tape.numpy as tnp
from tape.errors import TapeError

X = np.array([1.0, 2.0, 3.0], np.float32)


def cubes(v):
    return (v * v * v).sum()


@pytest.mark.parametrize("transformation", [jax.grad, jax.value_and_grad])
@pytest.mark.parametrize("make", [tape.Variable, tape.constant])
def test_grad_of_jax_on_a_variable(transformation, make):
    with pytest.raises(TapeError, match=r"use tape\.grad\(f\)\(x\).*jax\.grad\(interop\.lower\(f\)\)\(x\.value\)"):
        transformation(cubes)(make(X))
    with pytest.raises(TapeError, match="stands where JAX takes an array"):
        transformation(lambda a: cubes(make(a)))(X)


@pytest.mark.parametrize("index", [1, [0, 2], [True, False, True]])
def test_an_index_of_a_raw_array_is_named(index):
    x, i = jax.device_put(X), tape.constant(index)
    with pytest.raises(TapeError, match=r"write x\[i\.value\], or tape\.constant\(x\)\[i\]"):
        x[i]
    np.testing.assert_array_equal(x[i.value], X[np.asarray(index)])
    np.testing.assert_array_equal(tape.constant(x)[i].value, X[np.asarray(index)])


@pytest.mark.parametrize("name", ["hessian", "jacfwd", "jacrev"])
def test_jacobians_of_jax_on_a_variable(name):
    x = tape.Variable(X)
    with pytest.raises(TapeError, match=r"shape \(3,\).*use tape\.hessian\(f\)\(x\).*interop\.lower\(f\)"):
        getattr(jax, name)(cubes)(x)
    by_jax = jax.jacrev if name == "jacfwd" else getattr(jax, name)  # a lowered function has reverse mode
    ours, lowered = getattr(tape, name)(cubes)(x), by_jax(interop.lower(cubes))(x.value)
    np.testing.assert_allclose(ours.value, lowered, rtol=1e-6)
    assert getattr(jax, name)(cubes)(x.detach()).shape == lowered.shape  # a constant loses nothing


def test_ravel_pytree():
    tree = {"w": tape.Variable(X), "b": [tape.Variable(2.0)]}
    with pytest.raises(TapeError, match=r"ravel_pytree.*would lose its gradient; use tape\.numpy\.concatenate"):
        ravel_pytree(tree)
    flat = tnp.concatenate([v.ravel() for v in jax.tree.leaves(tree)])
    assert flat.tolist() == [2.0, 1.0, 2.0, 3.0]
    assert tape.gradients((flat * flat).sum(), tree)["w"].tolist() == [2.0, 4.0, 6.0]
    with tape.no_grad():
        again, back = ravel_pytree(tree)
    assert again.tolist() == flat.tolist()
    assert back(again)["b"][0].shape == ()


def test_eval_shape_shows_shapes():
    x = tape.Variable(X)
    found = jax.eval_shape(lambda v: {"y": v * 2, "s": v.sum()}, x)
    assert repr(found["y"]) == "Variable(<float32[3]>)"
    assert (found["s"].shape, found["s"].dtype) == ((), np.float32)
    assert isinstance(jax.tree.leaves(found["y"])[0], jax.ShapeDtypeStruct)
    for use in (lambda v: v.value, float, np.asarray, lambda v: (v + 1).value, lambda v: v.item()):
        with pytest.raises(TapeError, match=r"jax\.eval_shape"):
            use(found["s"])


def test_the_flag_is_set_by_a_method():
    x = tape.Variable(X)
    with pytest.raises(TapeError, match=r"use x\.requires_grad_\(False\)") as caught:
        x.requires_grad = False
    assert isinstance(caught.value, AttributeError)
    assert x.requires_grad
    assert not x.requires_grad_(False).requires_grad


def test_operators_of_jax_leave_it_to_the_variable_however_they_ask():
    def _operator_of_older_releases(v):
        return hasattr(v, "__jax_array__")

    def _operator_of_newer_releases(v):
        return getattr(v, "__jax_array__", None) is not None

    for v in (tape.Variable(X), tape.constant(X)):
        assert not _operator_of_older_releases(v)
        assert not _operator_of_newer_releases(v)
        assert isinstance(jax.numpy.asarray(X) * v, tape.Variable)
