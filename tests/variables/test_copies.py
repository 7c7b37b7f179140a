"""``copy.deepcopy`` and ``pickle`` of Variables take and refuse the same, and keep the same."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
from tape.errors import TapeValueError

WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda v: pickle.loads(pickle.dumps(v))}  # noqa: S301 - our own bytes


class Looped(tape.Variable):
    """One whose attributes lead back to it."""


def test_a_deep_copy_of_what_leads_to_itself_leads_to_itself():
    v = Looped(1.0)
    v.around = [v]
    copied = copy.deepcopy(v)
    assert copied is not v
    assert copied.around[0] is copied


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: tape.Variable([1.0, 2.0], name="w"),
        lambda: tape.Variable([1.0, 2.0], requires_grad=False),
        lambda: tape.Variable(jnp.ones(2, jnp.bfloat16)),
        lambda: tape.Variable(3),
        lambda: tape.Variable(jnp.asarray(2.0)),
        lambda: tape.constant([1.0]) * 2,
        lambda: (tape.Variable([1.0]) * 2).detach().requires_grad_(),
        lambda: tape.Variable(1 + 2j),
    ],
)
def test_a_copy_is_the_same_leaf(make, way):
    v = make()
    copied = WAYS[way](v)
    assert copied is not v
    assert (copied.is_leaf, copied.requires_grad, copied.name, copied.weak_type) == (True, v.requires_grad, v.name, v.weak_type)
    assert copied.dtype == v.dtype
    np.testing.assert_array_equal(copied.numpy(), v.numpy())


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_is_copied_as_what_it_is(way):
    x = tape.Variable([1.0, 2.0])
    (x * x).sum().backward()
    copied = WAYS[way](x)
    np.testing.assert_array_equal(copied.grad.numpy(), [2.0, 4.0])
    copied.grad = copied.grad * 2
    np.testing.assert_array_equal(x.grad.numpy(), [2.0, 4.0])
    for gradient in (x.grad, WAYS[way](x).grad, WAYS[way](x.grad)):  # taken without recording, and no constant
        with pytest.raises(tape.errors.UnrecordedGradientError):
            (gradient * x).sum().backward()
    x.grad = None
    (x * x).sum().backward(create_graph=True)
    assert x.grad.requires_grad
    assert not WAYS[way](x).grad.requires_grad  # its past stays with the original


@pytest.mark.parametrize("way", WAYS)
def test_what_was_frozen_keeps_its_gradient(way):
    x = tape.Variable([1.0, 2.0])
    (x * x).sum().backward()
    x.requires_grad_(False)
    copied = WAYS[way](x)
    assert not copied.requires_grad
    np.testing.assert_array_equal(copied.grad.numpy(), x.grad.numpy())


@pytest.mark.parametrize("way", WAYS)
def test_keys_are_copied(way):
    key = tape.Variable(jax.random.key(3, impl="rbg"))
    copied = WAYS[way](key)
    assert copied.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(copied.value), jax.random.key_data(key.value))


@pytest.mark.parametrize("way", WAYS)
def test_what_has_a_past_is_refused(way):
    x = tape.Variable([1.0, 2.0]) * 2
    with pytest.raises(TapeValueError, match=rf"{way}: .*shape \(2,\).*has a past, which a copy would lose; write .*\(x\.detach\(\)\)"):
        WAYS[way](x)
    copied = WAYS[way](x.detach())
    np.testing.assert_array_equal(copied.numpy(), [2.0, 4.0])


@pytest.mark.parametrize("way", WAYS)
def test_shared_variables_stay_shared(way):
    w = tape.Variable([1.0])
    copied = WAYS[way]({"a": w, "b": [w]})
    assert copied["a"] is copied["b"][0]


class Weight(tape.Variable):
    """A user's own."""

    def __init__(self, value, group):
        super().__init__(value)
        self.group = group


@pytest.mark.parametrize("way", [*WAYS, "copy"])
def test_a_copy_has_the_class_and_the_attributes_of_the_original(way):
    w = Weight([1.0, 2.0], ["a"])
    (w * w).sum().backward()
    copied = (WAYS | {"copy": copy.copy})[way](w)
    assert type(copied) is Weight
    assert copied.group == ["a"]
    assert (copied.group is w.group) == (way == "copy")
    (copied * 3).sum().backward()
    np.testing.assert_array_equal(copied.grad.numpy(), [3.0, 3.0] if way == "copy" else [5.0, 7.0])
    np.testing.assert_array_equal(w.grad.numpy(), [2.0, 4.0])
