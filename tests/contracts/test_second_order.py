"""Contract 21: where a second derivative would be lost, the sweep raises, and says on which line the gradient was taken."""

import copy
import inspect

import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import LostGradientError, UnrecordedGradientError
from tape.ops import kinds

A = np.array([1.0, -2.0, 0.5], np.float32)


def by_gradients(x):
    return tape.gradients((x**3).sum(), x), inspect.currentframe().f_lineno


def by_backward(x):
    (x**3).sum().backward()
    return x.grad, inspect.currentframe().f_lineno - 1


def by_two_sweeps(x):
    (x**3).sum().backward(create_graph=True)
    (x**3).sum().backward()
    return x.grad, inspect.currentframe().f_lineno - 1


def by_a_long_way(x):
    """Through segments that ran before."""
    y = x
    for _ in range(3):
        y = tnp.sin(y) * y
        float(y.sum())
    return tape.gradients(y.sum(), x), inspect.currentframe().f_lineno


def by_retaining(x):
    y = tnp.sin(x)
    y.retain_grad()
    (y**3).sum().backward()
    return y.grad, inspect.currentframe().f_lineno - 1


def by_a_hook_that_records(x):
    y = tnp.sin(x)
    y.register_hook(lambda g: g * 1)
    return tape.gradients((y**3).sum(), x), inspect.currentframe().f_lineno


def by_streaming(x):
    y = (x**3).sum()
    ((_, g),) = list(tape.stream_gradients(y))
    return g, inspect.currentframe().f_lineno - 1


def by_a_compiled_step(x):
    return tape.jit(lambda v: tape.gradients((v**3).sum(), v))(x), inspect.currentframe().f_lineno


WAYS = [by_gradients, by_backward, by_two_sweeps, by_a_long_way, by_retaining, by_a_hook_that_records, by_streaming, by_a_compiled_step]

USES = {
    "itself": lambda _, g: g.sum(),
    "in a product": lambda x, g: (x * g).sum(),
    "after other ops": lambda x, g: (x * tnp.sin(2 * g)[::-1]).sum(),
    "after a look": lambda x, g: (x * (g * float(g.sum()))).sum(),
    "copied": lambda x, g: (x * copy.copy(g) * copy.deepcopy(g)).sum(),
    "captured by a loop": lambda x, g: tape.lax.scan(lambda c, _: (c * g, None), x, None, length=2)[0].sum(),
    "captured by a checkpoint": lambda x, g: tape.checkpoint(lambda c: c * g)(x).sum(),
    "lifted": lambda x, g: interop.lift(lambda c, g: (c * g).sum())(x, g),
    "an argument of a compiled function": lambda x, g: tape.jit(lambda c, g: (c * g).sum())(x, g),
    "captured by a compiled function": lambda x, g: tape.jit(lambda c: (c * g).sum())(x),
    "selected": lambda x, g: (x[:1] * tnp.unique(g)[0]).sum(),
    "written": lambda x, g: written(x, g).sum(),
    "a value of a transform": lambda x, g: (x * tape.value_and_grad(lambda v: (v**2).sum())(g)[0]).sum(),
    "a gradient of a transform": lambda x, g: (x * tape.grad(lambda v: (v**3).sum())(g)).sum(),
    "a seed": lambda x, g: (x * tape.gradients(x**2, x, grad_outputs=g, create_graph=True)).sum(),
    "padding": lambda x, g: (x * tnp.pad(tape.constant(A[:2]), (0, 1), constant_values=g[0])).sum(),
}
UNNAMED = {"a value of a transform", "a gradient of a transform"}  # these are taken anew, on the line of the use


def written(x, g):
    z = x * 1
    z[0] = g[0]
    return z


PAIRS = [(way, "in a product") for way in WAYS] + [(by_gradients, use) for use in USES if use != "in a product"]


@pytest.mark.parametrize(("way", "use"), PAIRS)
def test_contract_21_the_error_names_the_line_where_the_gradient_was_taken(way, use):
    for _ in range(2):  # found again on the trie, and replayed
        x = tape.Variable(A)
        g, line = way(x)
        root = USES[use](x, g)
        before = x.grad
        with pytest.raises(UnrecordedGradientError, match="create_graph=True") as raised:
            root.backward()
        assert x.grad is before
        if use not in UNNAMED:
            assert f"without recording at {__file__}:{line} " in str(raised.value)


# -- hooks --------------------------------------------------------------------------------------------------------------


RAW = {
    "value": lambda g: jnp.clip(g.value, -5, 5),
    "numpy": lambda g: np.clip(np.asarray(g.value), -5, 5),
}


def penalty(x, hook):
    """The gradient by x of the sum of the gradient of sum(x**4), a hook on the way."""
    y = x * x
    y.register_hook(hook)
    z = (y * y).sum()
    return tape.gradients(tape.gradients(z, x, create_graph=True).sum(), x)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("kind", ["value", "numpy"])
def test_contract_21_a_hook_that_returns_an_array_of_its_own_making_cuts_and_is_told_so(kind):
    with pytest.raises(UnrecordedGradientError, match=r"returned an array that it computed outside the tape.*tape\.constant"):
        penalty(tape.Variable(A), RAW[kind])


def test_contract_21_raw_functions_and_values_refuse_what_they_would_make_a_constant():
    x = tape.Variable(A)
    g, _ = by_gradients(x)
    with pytest.raises(LostGradientError, match="gradient that was taken without recording"):
        interop.lift(lambda c: (c * g.value).sum())(x)
    with pytest.raises(LostGradientError, match="gradient that was taken without recording"):
        tnp.arange(g[0] * 0, 3.0)
    constant = g.detach()
    interop.lift(lambda c: (c * constant.value).sum())(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), 3 * A**2, rtol=1e-6)


def test_messages_without_a_line_are_sentences_too():
    assert "without recording (or" in kinds.why_unrecorded(unrecorded=True)
    assert kinds.why_unrecorded("because") == "because"
    assert kinds.why_unrecorded("because", ("a.py", 3)) == "because (it was made at a.py:3)"
