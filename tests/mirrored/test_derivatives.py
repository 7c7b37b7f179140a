"""Every public function of the mirrored namespaces has JAX's value, gradient and second derivative, looked at before the sweep or not.

A function is differentiated with the arguments in ``tests/mirrored/samples.py``, or stands in ``LEFT_OUT`` with the reason; so that a
function that a JAX release adds cannot be forgotten.  By day each fourth is held to the second order, as the rules that all are made of are
in ``tests/rules``; the nightly run does so with all, also those that compile slowly, both ways, and in single precision too.
"""

import functools

import jax
import pytest

from tests.daily import NIGHTLY, share
from tests.mirrored.beside_jax import DIFFERENTIATED, EVERY, Sample, agree, reference, swept
from tests.mirrored.left_out import IN_SECOND_ORDER, LEFT_OUT, ROUNDED, SLOW

SECOND = set(share([case for case in DIFFERENTIATED if case not in IN_SECOND_ORDER and (NIGHTLY or case not in SLOW)]))


@pytest.mark.parametrize(("source", "name"), DIFFERENTIATED)
def test_derivatives(source, name):
    """In double precision, all in one program: it is compiled once, and what JAX and the tape do alike is one thing in it."""
    ways = (False, True) if NIGHTLY else (DIFFERENTIATED.index((source, name)) % 2 == 1,)
    with jax.enable_x64(True):
        sample = Sample(source, name, "float64")

        @jax.jit
        def everything(inputs):
            return reference(sample, (source, name) in SECOND, inputs), [
                swept(sample, (source, name) in SECOND, inputs, looked) for looked in ways
            ]

        expected, found = everything(sample.inputs)
        for derivatives in found:
            agree(derivatives, expected, 1e-5 if (source, name) in ROUNDED else 1e-8)


@pytest.mark.parametrize(("source", "name"), share(DIFFERENTIATED, 24))
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
