"""Contract 21: forward products refuse what a backward or a hook computed of its cotangent outside the tape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp

X = np.array([0.3, 0.5], np.float32)
TIMES = np.linspace(0, 1, 5, dtype=np.float32)

LOSING = {
    "a recorded factor": lambda x, g: tnp.cos(x) * g.value,
    "a sum": lambda x, g: tnp.cos(x) * g + 0 * jnp.asarray(g.value),
    "everything": lambda x, g: jnp.cos(x.value) * g.value,
}
KEEPING = {
    "recorded": lambda x, g: tnp.cos(x) * g,
    "a number of the primal": lambda x, g: g * float(np.cos(x.numpy()).sum()),
}
FUNCTIONS = {
    "alone": lambda op, v: op(v),
    "behind an op": lambda op, v: op(v[0] * TIMES + v[1]) - TIMES,
    "before a reduction": lambda op, v: (op(v) ** 2).sum() * TIMES,
}


def sine(backward):
    class Sine(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return tnp.sin(x)

        @staticmethod
        def backward(ctx, g):
            return backward(*ctx.saved, g)

    return Sine.apply


def products(function):
    yield lambda: tape.jacfwd(function)(X)
    yield lambda: tape.jvp(function, (X,), (np.ones_like(X),))[1]
    yield lambda: tape.linearize(function, X)[1](np.ones_like(X))


@pytest.mark.parametrize("where", FUNCTIONS)
@pytest.mark.parametrize("how", LOSING)
def test_contract_21_a_backward_that_reads_its_cotangent_is_refused(how, where):
    op = sine(LOSING[how])
    for product in products(lambda v: FUNCTIONS[where](op, v)):
        with pytest.raises(tape.errors.UnrecordedGradientError, match="no derivative on the tape"):
            product()


@pytest.mark.parametrize("where", FUNCTIONS)
@pytest.mark.parametrize("how", KEEPING)
def test_a_backward_on_the_tape_has_the_product_of_reverse_mode(how, where):
    op = sine(KEEPING[how])

    def function(v):
        return FUNCTIONS[where](op, v)

    jacobian = np.asarray(tape.jacrev(function)(X))
    by_columns, *along = [np.asarray(product()) for product in products(function)]
    np.testing.assert_allclose(by_columns, jacobian, rtol=1e-6)
    for product in along:
        np.testing.assert_allclose(product, jacobian.sum(-1), rtol=1e-5)


def test_contract_21_a_hook_that_reads_its_cotangent_is_refused():
    def function(v):
        y = tnp.sin(v)
        y.register_hook(lambda g: tnp.ones_like(g) * g.value)
        return y * y

    with pytest.raises(tape.errors.UnrecordedGradientError):
        tape.jacfwd(function)(X)


AROUND = {
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(x[None]),
    "tape.jit": lambda f: lambda x: tape.jit(f)(tape.Variable(x)),
    "eager": lambda f: tape.eager()(f),
    "another one": lambda f: lambda x: tape.jvp(f, (x,), (np.ones_like(x),)),
}


@pytest.mark.parametrize("around", AROUND)
def test_contract_21_a_transformation_around_hides_no_read(around):
    op = sine(LOSING["a recorded factor"])

    def product(x):
        return tape.jvp(lambda v: op(2 * v) * v, (x,), (jnp.ones(2),))[1]

    with pytest.raises(tape.errors.UnrecordedGradientError, match="no derivative on the tape"):
        AROUND[around](product)(X)
