"""Every public function of the mirrored namespaces has JAX's value, gradient and second derivative, looked at before the sweep or not.

A function is differentiated with the arguments in ``tests/mirrored/samples.py``, or stands in ``LEFT_OUT`` with the reason; so that a
function that a JAX release adds cannot be forgotten.  By day each twelfth is held to both orders.  Of the others those are compiled and
compared that the tape records differently from JAX, or that have a derivative of their own: where it records the same primitives with the
same operands, the value is JAX's, and the gradient is made of rules that ``tests/rules`` holds to JAX; its shapes and dtypes are looked at.
The nightly run compiles all, also those that take long, both ways, and in single precision too.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tape.mirrored.composed import SLOPES
from tape.mirrored.reduced import REDUCED
from tests.daily import NIGHTLY, share
from tests.mirrored.beside_jax import DIFFERENTIATED, EVERY, Sample, agree, recorded_as_jax_does, reference, steps, swept
from tests.mirrored.left_out import IN_SECOND_ORDER, LEFT_OUT, ROUNDED, SLOW

SECOND = set(share([case for case in DIFFERENTIATED if case not in IN_SECOND_ORDER and (NIGHTLY or case not in SLOW)], 12))


@pytest.mark.parametrize(("source", "name"), DIFFERENTIATED)
def test_derivatives(source, name):
    """In double precision, all in one program: it is compiled once, and what JAX and the tape do alike is one thing in it."""
    ways = (False, True) if NIGHTLY else (DIFFERENTIATED.index((source, name)) % 2 == 1,)
    with jax.enable_x64(True):
        sample = Sample(source, name, "float64")
        if not NIGHTLY and (source, name) not in SECOND and recorded_as_jax_does(sample):
            _, *gradients = jax.eval_shape(lambda inputs: swept(sample, False, inputs, *ways), sample.inputs)
            assert [(g.shape, g.dtype) for g in gradients] == [(x.shape, x.dtype) for x in sample.inputs]
            return

        @jax.jit
        def everything(inputs):
            return reference(sample, (source, name) in SECOND, inputs), [
                swept(sample, (source, name) in SECOND, inputs, looked) for looked in ways
            ]

        expected, found = everything(sample.inputs)
        for derivatives in found:
            agree(derivatives, expected, 1e-5 if (source, name) in ROUNDED else 1e-8)


OWN = [(s, n) for table in (SLOPES, REDUCED) for s in table for n in table[s] if n != "gelu"]  # which has its own if it is asked to


@pytest.mark.parametrize(("source", "name"), OWN)
def test_a_derivative_of_its_own_is_compared(source, name):
    assert not recorded_as_jax_does(Sample(source, name, "float32"))


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: jnp.sum(y - x * 2.0, axis=0),
        lambda x, y: jnp.sum(x - x * 2.0, axis=0),
        lambda x, y: jnp.sum(x - y * 3.0, axis=0),
        lambda x, y: jnp.sum(x - y * np.float32([2.0, 2.0, 3.0]), axis=0),
        lambda x, y: jnp.sum(x - y * 2.0, axis=1),
        lambda x, y: jnp.sum(x + y * 2.0, axis=0),
        lambda x, y: (jnp.sum(x - y * 2.0, axis=0), x)[1],
    ],
)
def test_another_program_is_not_taken_for_the_same(other):
    x = jnp.ones((3, 3))
    first, again, differs = [
        steps(jax.make_jaxpr(f)(x, x))
        for f in (
            lambda x, y: jnp.sum(x - y * 2.0, axis=0),
            jax.jit(lambda x, y: jnp.sum(x - jax.jit(lambda y: y * 2.0)(y), axis=0)),
            other,
        )
    ]
    assert first == again
    assert first != differs


IN_SINGLE = [case for case in DIFFERENTIATED if case != ("jax.scipy.special", "bessel_jn")]  # JAX's recurrence overflows there: NaN


@pytest.mark.parametrize(("source", "name"), share(IN_SINGLE, 48))
def test_derivatives_in_single_precision(source, name):
    """As a user runs them, outside any transformation."""
    second = (source, name) not in IN_SECOND_ORDER | SLOW
    sample = Sample(source, name, "float32")
    expected = jax.jit(functools.partial(reference, sample, second))(sample.inputs)
    for looked in (False, True):
        agree(swept(sample, second, sample.inputs, looked), expected, 2e-3)


def test_what_is_left_out_is_listed_once():
    left = [(source, name) for table in LEFT_OUT.values() for source, listed in table.items() for name in listed]
    assert len(left) == len(set(left))
    assert not (IN_SECOND_ORDER | SLOW).intersection(left)


def listed(reason):
    return [(source, name) for source, names in LEFT_OUT[reason].items() for name in sorted(names) if (source, name) in EVERY]


def test_what_takes_or_gives_no_floats_does_so():
    for source, name in listed("no floats come in"):
        assert not Sample(source, name, "float32").inputs, (source, name)
    for source, name in listed("no floats come out"):
        sample = Sample(source, name, "float32")
        assert sample.inputs, (source, name)
        assert not jax.eval_shape(sample.theirs, sample.inputs), (source, name)
