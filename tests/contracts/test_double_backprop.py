"""Contracts 20 to 22: derivatives of any order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.errors import TapeError, UnrecordedGradientError
from tests import agreement

A = np.array([1.0, -2.0, 0.5], np.float32)

close = functools.partial(agreement.close, rtol=2e-5, atol=1e-5)


@pytest.mark.usefixtures("tier")
def test_contract_20_derivatives_of_order_one_to_five():
    x = tape.Variable(2.0)
    g = x**5
    for expected in (80.0, 160.0, 240.0, 240.0, 120.0):
        g = tape.gradients(g, x, create_graph=True)
        close(g, expected)


@pytest.mark.usefixtures("tier")
def test_contract_20_mixed_partials_and_hessian_vector_products():
    x, w = tape.Variable(A), tape.Variable(A + 1)

    def f(x, w):
        return (jnp.sin(x) * w * w).sum() + (x * x * x).sum()

    y = (tnp.sin(x) * w * w).sum() + (x * x * x).sum()
    gx, gw = tape.gradients(y, [x, w], create_graph=True)
    v = np.array([1.0, 0.5, -1.0], np.float32)
    mixed = tape.gradients((gx * v).sum(), w, retain_graph=True)
    close(mixed, 2 * np.cos(A) * (A + 1) * v)
    hv = tape.gradients((gx * v).sum(), x, retain_graph=True)
    close(hv, jax.jvp(lambda x: jax.grad(f)(x, A + 1), (A,), (v,))[1])
    close(tape.gradients(gw, x, v), 2 * (A + 1) * np.cos(A) * v)


@pytest.mark.usefixtures("tier")
def test_contract_20_gradient_penalty():
    x, w = tape.constant(A), tape.Variable(np.float32(0.7))

    def penalty(w):
        return jnp.sum(jax.grad(lambda x: jnp.tanh(w * x).sum())(A) ** 2)

    xi = tape.Variable(x)
    g = tape.gradients(tnp.tanh(w * xi).sum(), xi, create_graph=True)
    (g**2).sum().backward()
    close(w.grad, jax.grad(penalty)(0.7))


@pytest.mark.usefixtures("tier")
def test_contract_20_backward_with_create_graph():
    x = tape.Variable(3.0)
    (x * x * x).backward(create_graph=True)
    g = x.grad
    assert g.requires_grad
    x.grad = None
    (g * g).backward()  # d (9 x**4... (3x^2)^2) / dx = 36 x^3
    close(x.grad, 36 * 27)


@pytest.mark.parametrize("looked", [True, False])
def test_contract_20_create_graph_is_independent_of_no_grad(looked):
    x = tape.Variable(2.0)
    y = x**3
    if looked:
        float(y)
    with tape.no_grad():
        g = tape.gradients(y, x, create_graph=True)
        assert g.requires_grad
        h = tape.gradients(g, x)
    close(h, 12)


@pytest.mark.parametrize("times", [1, 3])
def test_contract_20_hooks_that_look_in_a_repeated_second_sweep(times):
    """A structure met again is replayed in one step; hooks that run what is pending must still find its values."""
    for k in range(times + 2):
        x = tape.Variable(np.float32(0.5 + k))
        w = tnp.sin(x)
        y = w * w * w
        g = tape.gradients(y, x, create_graph=True)
        if k >= times:
            w.register_hook(lambda g: print(float(g)))
        h = tape.gradients(g, x, create_graph=True)
        close(h, jax.grad(jax.grad(lambda x: jnp.sin(x) ** 3))(0.5 + k))
        close(tape.gradients(h, x), jax.grad(jax.grad(jax.grad(lambda x: jnp.sin(x) ** 3)))(0.5 + k))


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("saved", ["input", "output"])
def test_contract_20_second_derivatives_of_a_function(saved):
    class Exp(tape.Function):
        @staticmethod
        def forward(ctx, x):
            y = tnp.exp(x)
            ctx.save_for_backward(x if saved == "input" else y)
            return y

        @staticmethod
        def backward(ctx, g):
            (s,) = ctx.saved
            return g * (tnp.exp(s) if saved == "input" else s)

    x = tape.Variable(0.5)
    g = tape.gradients(x * Exp.apply(x), x, create_graph=True)
    h = tape.gradients(g, x, create_graph=True)
    close(h, (2 + 0.5) * np.exp(0.5))
    close(tape.gradients(h, x), (3 + 0.5) * np.exp(0.5))


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("looked", [True, False])
def test_contract_21_differentiating_what_was_not_recorded_raises(looked):
    x = tape.Variable(3.0)
    g = tape.gradients(x**3, x)
    if looked:
        float(g)
    for attempt in (
        lambda: tape.gradients(g, x),
        lambda: g.backward(),
        lambda: tape.gradients(g * 2, x),
        lambda: (x * g).backward(),
        lambda: (tnp.sin(g * 2 + 1) + x * 0 * g).backward(),
    ):
        with pytest.raises(UnrecordedGradientError, match="create_graph=True"):
            attempt()
    assert x.grad is None
    (x * g.detach()).backward()  # the repair
    close(x.grad, 27)


@pytest.mark.parametrize(
    "transform",
    [
        tape.grad,
        tape.value_and_grad,
        tape.jacrev,
        tape.jacfwd,
        lambda f: lambda x: tape.vjp(f, x),
        lambda f: lambda x: tape.jvp(f, (x,), (1.0,)),
        lambda f: lambda x: tape.linearize(f, x),
        lambda f: lambda x: tape.hvp(f, (x,), (1.0,)),
    ],
    ids=["grad", "value_and_grad", "jacrev", "jacfwd", "vjp", "jvp", "linearize", "hvp"],
)
def test_contract_21_transforms_of_what_was_not_recorded_raise(transform):
    with pytest.raises(UnrecordedGradientError, match="create_graph=True"):
        transform(lambda x: tape.gradients(x**3, x))(2.0)
    with pytest.raises(UnrecordedGradientError, match="create_graph=True"):
        transform(lambda x: 2 * tape.gradients(x**3, x) + 1)(2.0)


@pytest.mark.usefixtures("tier")
def test_contract_21_the_gathered_grad_too():
    x = tape.Variable(3.0)
    (x * x).backward()
    with pytest.raises(TapeError):
        (x.grad * x).backward()
    x.value = x.value - 0.1 * x.grad.value
    close(x, 2.4)


@pytest.mark.usefixtures("tier")
def test_contract_22_perturbations_are_not_confused():
    x = tape.Variable(3.0)
    y = tape.Variable(1.0)
    inner = tape.gradients(x + y, y, create_graph=True)
    close(tape.gradients(x * inner, x), 1.0)
    close(tape.grad(lambda x: x * tape.grad(lambda y: x + y)(1.0))(3.0) * tape.constant(1.0), 1.0)
    close(tape.constant(tape.grad(lambda x: x * tape.grad(lambda y: x * y)(2.0))(3.0)), 6.0)
    close(tape.constant(tape.grad(lambda x: x * tape.grad(lambda x: x * x)(x))(3.0)), 12.0)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("inside", [False, True])
def test_contract_21_a_function_of_an_unrecorded_gradient_is_unrecorded(inside):
    """Called by the user, or by the backward of another function during a sweep."""

    class Square(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved
            return Twice.apply(g * x)

    class Twice(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return x + x

        @staticmethod
        def backward(ctx, g):
            return g + g

    x = tape.Variable(3.0)
    g = tape.gradients(Square.apply(x) if inside else x * x, x)
    close(g, 6)
    h = g if inside else Twice.apply(g)
    for attempt in (lambda: tape.gradients(h, x, unconnected="zero"), lambda: tape.gradients(x * h, x)):
        with pytest.raises(UnrecordedGradientError, match="create_graph=True"):
            attempt()
    with tape.no_grad():
        assert not Twice.apply(g).requires_grad
    close(tape.gradients(x * Twice.apply(g.detach()), x), 12)


def test_contract_21_a_root_that_is_the_input_itself_returns_its_seed_without_its_past():
    x, seed = tape.Variable(np.float32(3)), tape.Variable(np.float32(2))
    gradient = tape.gradients(x, x, seed)
    assert not gradient.requires_grad
    with pytest.raises(UnrecordedGradientError):
        tape.gradients(gradient, seed)
    assert float(tape.gradients(tape.gradients(x, x, seed, create_graph=True), seed)) == 1
