"""Contracts 8 and 9: ops with several outputs, and what a backward returns."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import GradientDtypeError, GradientShapeError, RuleError, UnconnectedError
from tests.agreement import close

A, B = np.array([1.0, -2.0, 0.5], np.float32), np.array([3.0, 0.25, -1.0], np.float32)


def equal(variable, expected):
    np.testing.assert_array_equal(np.asarray(variable.value), np.asarray(expected, variable.dtype))


# -- 8: ops with several outputs ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("used", [s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)])
def test_contract_08_any_subset_of_outputs(used):
    """Outputs without a cotangent contribute zeros; the siblings' .grad is not gathered."""
    x = tape.Variable(np.arange(6, dtype=np.float32))
    parts = tnp.split(x * x, 3)
    for p in parts:
        p.retain_grad()
    tape.backward([parts[i] for i in used], [np.full(2, 10.0**i, np.float32) for i in used])
    slopes = np.zeros(3)
    slopes[list(used)] = [10.0**i for i in used]
    equal(x.grad, 2 * np.arange(6) * np.repeat(slopes, 2))
    for i, p in enumerate(parts):
        assert (p.grad is None) == (i not in used)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("materialize", [False, True])
def test_contract_08_a_function_sees_which_cotangents_are_missing(materialize):
    seen = []

    class Pair(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(materialize)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, g, h):
            seen.append((g, h))
            return (0 if g is None else g) * 2 + (0 if h is None else h) * 3

    x = tape.Variable(A)
    _, second = Pair.apply(x)
    second.backward(B)
    equal(x.grad, 3 * B)
    ((g, h),) = seen
    equal(h, B)
    if materialize:
        equal(g, np.zeros(3))
    else:
        assert g is None


def test_contract_08_integer_outputs_beside_floating_ones():
    x = tape.Variable(np.array([0.3, 4.0], np.float32))
    fraction, whole = tnp.frexp(x)
    assert whole.dtype == jnp.int32
    assert not whole.requires_grad
    fraction.backward(np.ones(2))
    close(x.grad, [2.0, 0.125])


# -- 9: what a backward returns ---------------------------------------------------------------------------------------------


def two_inputs(result):
    class Two(tape.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return result(g)

    return Two.apply


@pytest.mark.usefixtures("tier")
def test_contract_09_none_is_no_gradient():
    x, y = tape.Variable(A), tape.Variable(B)
    two_inputs(lambda g: (None, g * 5))(x, y).sum().backward()
    assert x.grad is None
    equal(y.grad, np.full(3, 5.0))
    z = x * 2
    tape.backward([(two_inputs(lambda g: (None, g))(z, y) + z).sum()])
    equal(x.grad, np.full(3, 2.0))  # from the other path only
    with pytest.raises(UnconnectedError):
        tape.gradients(two_inputs(lambda g: (None, g))(x * 2, y).sum(), x)


@pytest.mark.usefixtures("tier")
def test_contract_09_none_on_the_way():
    """What is before gets no gradient from there, and one from elsewhere as if that were all there is; no hook in between is called."""
    stop, passing, seen = two_inputs(lambda g: (None, g)), two_inputs(lambda g: (g, None)), []
    x, y = tape.Variable(A), tape.Variable(B)
    way = passing(tnp.sin(passing(x, y)), y)  # which had to give x what comes back to it
    way.register_hook(seen.append)
    stop(way, y).sum().backward()
    assert x.grad is None
    assert not seen
    first, second = interop.lift(lambda a, b: (a * b, jnp.sin(a) * b))(x, y)
    given = tape.gradients((stop(first, y) + second).sum(), [x, y])  # of two cotangents that are written down, one comes
    close(given, (np.cos(A) * B, np.sin(A) + 1))


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        (lambda g: g, RuleError, "Two.backward returned 1 gradients for 2"),
        (lambda g: (g, g, g), RuleError, "Two.backward returned 3 gradients for 2"),
        (lambda g: (), RuleError, "Two.backward returned 0 gradients for 2"),
        (lambda g: (g, g[:2]), GradientShapeError, r"shape \(2,\) for argument 1, which has shape \(3,\)"),
        (lambda g: (g.sum(), g), GradientShapeError, r"shape \(\) for argument 0"),
        (lambda g: (g.astype("float16"), g), GradientDtypeError, "float16 for argument 0, which has dtype float32"),
        (lambda g: (g, np.ones(3, np.int32)), GradientDtypeError, "int32 for argument 1"),
        (lambda g: ("g", g), GradientDtypeError, "str as the gradient of argument 0"),
    ],
)
def test_contract_09_a_wrong_backward_names_function_and_argument(result, error, words):
    x, y = tape.Variable(A), tape.Variable(B)
    out = two_inputs(result)(x, y).sum()
    with pytest.raises(error, match=words):
        out.backward()
    assert x.grad is y.grad is None
