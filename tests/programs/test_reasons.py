"""``tape.stats()`` says why programs are compiled."""

import jax
import jax.numpy as jnp
import numpy as np

import interop
import tape
import tape.numpy as tnp

A = np.array([1.0, -2.0, 0.5], np.float32)


def reasons(step, times=6):
    """Why the programs of a step were compiled, when it is repeated."""
    tape.stats().reset()
    for _ in range(times):
        step()
    return tape.stats().reasons


def program(x):
    return (tnp.arctan(x) * tnp.expm1(x) - tnp.log1p(x * x)).sum()


def test_each_reason():
    x = tape.constant(A)
    assert reasons(lambda: program(x).value) == {"new structure": 1}
    assert reasons(lambda: program(x).value) == {}
    y = tape.constant(np.ones((2, 2), np.float32))
    assert reasons(lambda: program(y).value) == {"new shape or dtype: float32[3], then float32[2,2]": 1}

    def held():
        parts = tnp.arctan(y), tnp.expm1(y), tnp.log1p(y * y)
        return (parts[0] * parts[1] - parts[2]).sum().value

    assert sum(reasons(held).values()) == 1

    def other():
        with jax.default_matmul_precision("float32"):
            program(y).value

    assert reasons(other) == {"other settings of JAX": 1}
    assert "reasons" in repr(tape.stats())


def test_what_is_held():
    x = tape.constant(A)

    def step(keep):
        a = tnp.arctan(x * 17)
        b = tnp.expm1(a)
        if not keep:
            del a
        return b.value

    reasons(lambda: step(keep=False))
    assert reasons(lambda: step(keep=True)) == {"other results are held": 1}


def test_a_function_made_anew_that_is_another_program():
    x = tape.constant(A)
    for k in range(3):

        def named(a, k=k):
            return jnp.sin(a) * float(k)

        found = reasons(lambda named=named: interop.lift(named)(x).value)
        (reason,) = found
        assert found[reason] == 1
        assert reason == "new structure" if k == 0 else reason.startswith(f"another function or parameter in named (first at {__file__}:")


def test_a_divisor_that_follows_from_a_shape_is_told_as_the_shape():
    """The sweep of a mean reads one number, and divides by how many there are: nobody could give that as an array."""
    w = tape.Variable(np.ones(4, np.float32))
    tape.stats().reset()
    for n in (5, 11, 7, 13, 17):
        y = tnp.tanh(np.ones((n, 4), np.float32) @ w).mean()
        y.value  # so that the sweep is a run of its own
        y.backward()
    said = " ".join(str(tape.stats()).split())
    assert "the shape of what vjp_mean" in said
    assert "a number that is part of vjp_mean" not in said
