"""A rule that is wrong for some cotangents only, or only where branches meet, is found; a right one at a kink is not blamed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tape.testing import GradientMismatch, check_gradients

X = np.float32([0.7, -1.3, 0.4, 2.1, -0.6])
Y = np.float32([1.9, 0.8, -1.1, 0.3, -1.4])
TABLE = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")


def ruled(primal, backward):
    """``primal`` with the rule ``backward(ct, *args)``."""
    op = jax.custom_vjp(lambda *args: primal(*args))
    op.defvjp(lambda *args: (primal(*args), args), lambda args, ct: backward(ct, *args))
    return op


def doubled_if(chosen):
    """The sine, whose rule is twice too large where ``chosen(ct)``."""
    return ruled(jnp.sin, lambda ct, x: (ct * jnp.cos(x) * jnp.where(chosen(ct), 2.0, 1.0),))


def nonzero(ct):
    return jnp.sum(ct != 0)


COTANGENTS = {  # which a rule may take for another case, with the words that name them
    "two elements": (lambda ct: nonzero(ct) == 2, X, "for 2 elements of the outputs alone"),
    "three elements": (lambda ct: nonzero(ct) == 3, X, "for 3 elements of the outputs alone"),
    "half of the elements": (lambda ct: nonzero(ct) == 6, TABLE, "for 6 elements of the outputs alone"),
    "all elements but one": (lambda ct: nonzero(ct) == ct.size - 1, X, "for 4 elements of the outputs alone"),
    "negative": (lambda ct: jnp.all(ct < 0), X, "a negative cotangent"),
    "of very different sizes": (lambda ct: jnp.abs(ct) < 1e-3 * jnp.max(jnp.abs(ct)), X, "a cotangent of elements of all sizes"),
    "one column": (
        lambda ct: (jnp.sum(jnp.any(ct != 0, 0)) == 1) & (nonzero(ct) > 1),
        TABLE,
        "for the last slice along axis 1 alone",
    ),
    "equal rows": (lambda ct: jnp.all(ct == ct[:1]) & jnp.any(ct != ct[0, 0]), TABLE, "the same along axis 0"),
}


@pytest.mark.parametrize("name", COTANGENTS)
def test_what_is_wrong_for_some_cotangents_only_is_found(name):
    chosen, x, words = COTANGENTS[name]
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(doubled_if(chosen), x, order=1)
    assert words in " ".join(str(caught.value).split())


def sorting(ct, x):
    """Give each of equal elements the cotangents of all of them."""
    return (jnp.sum(jnp.where(x[:, None] == jnp.sort(x), ct, 0), 1),)


PLACES = {
    "largest elements that are equal": (jnp.max, lambda ct, x: (ct * (x == jnp.max(x)),), (X,), "a point with ties"),
    "the same along an axis": (
        lambda x: jnp.max(x, 1),
        lambda ct, x: (ct[:, None] * (x == jnp.max(x, 1, keepdims=True)),),
        (np.float32([[9, 5, 1], [8, 4, 0.5]]),),
        "a point with ties along axis 1",
    ),
    "neighbours in a sort": (jnp.sort, sorting, (X,), "a point with ties"),
    "two equal arguments": (jnp.maximum, lambda ct, x, y: (ct * (x >= y), ct * (y >= x)), (X, Y), "a point where arguments are equal"),
    "zero": (
        lambda x: jnp.sqrt(x * x + 1),
        lambda ct, x: (ct * jnp.where(x == 0, 1.0, x / jnp.sqrt(x * x + 1)),),
        (X,),
        "a point with a zero",
    ),
    "a kink": (jnp.abs, lambda ct, x: (ct * jnp.where(x == 0, 5.0, jnp.sign(x)),), (X,), "a point with a zero"),
    "whole numbers": (
        lambda x: x**2,
        lambda ct, x: (ct * jnp.where((x == jnp.round(x)) & (x != 0), 0.0, 2 * x),),
        (X,),
        "a point of whole numbers",
    ),
    "all zero": (lambda x: x**2 + x, lambda ct, x: (ct * (2 * x + 1) * jnp.any(x),), (X,), "a point that is zero"),
    "all negative": (
        lambda x: x**2,
        lambda ct, x: (ct * 2 * x * jnp.where(jnp.all(x < 0), 2.0, 1.0),),
        (X,),
        "a point of negative numbers",
    ),
    "tiny": (
        lambda x: jnp.log1p(x**2) + x,
        lambda ct, x: (ct * jnp.where((jnp.abs(x) < 1e-7) & (x != 0), 0.0, 1 + 2 * x / (1 + x * x)),),
        (X,),
        "a point of size 1e-09",
    ),
    "the identity": (
        lambda a: a @ a,
        lambda ct, a: ((ct @ a.T + a.T @ ct) * jnp.where(jnp.all(a == jnp.eye(3)), 0.5, 1.0),),
        (np.random.default_rng(0).normal(size=(3, 3)).astype("float32"),),
        "a point with the identity matrix",
    ),
    "length one": (
        lambda x: x * jnp.sum(x),
        lambda ct, x: (jnp.where(jnp.abs(jnp.sum(x * x) - 1) < 1e-4, 0.0, ct * jnp.sum(x) + jnp.sum(ct * x)),),
        (X,),
        "a point where arrays have length one",
    ),
    "opposite arguments": (
        jnp.multiply,
        lambda ct, x, y: (ct * jnp.where(x == -y, 0.0, y), ct * x),
        (X, Y),
        "a point where arguments are opposite",
    ),
}
VALUES = {  # at which the derivative of a Gaussian is zero
    "a plain number": (lambda x: x == 0.5, "zero where x is 0.5"),
    "about pi": (lambda x: jnp.abs(x - np.pi / 2) < 1e-3, "zero where x is 1.5708"),
    "a constant of the rule": (lambda x: jnp.abs(x) == 1.345, "zero where x is 1.345"),
    "what is compared with a square": (lambda x: x * x == 0.5625, "zero where x is -0.75 or 0.75"),
    "between two constants": (lambda x: (x > 0.37) & (x < 0.372), "zero where x is 0.371"),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_is_wrong_at_special_values_only_is_found(name):
    where, words = VALUES[name]
    fun = ruled(lambda x: jnp.exp(-x * x), lambda ct, x: (jnp.where(where(x), 0.0, -2 * x * ct * jnp.exp(-x * x)),))
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(fun, X, order=1)
    assert words in " ".join(str(caught.value).split())


@pytest.mark.parametrize("name", PLACES)
def test_what_is_wrong_only_where_branches_meet_is_found(name):
    primal, backward, args, words = PLACES[name]
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(ruled(primal, backward), *args, order=1)
    assert f"seen at {words}" in " ".join(str(caught.value).split())


def test_outside_of_what_the_arguments_span_nothing_is_asked_but_at_single_numbers():
    primal, backward, _, _ = PLACES["zero"]
    below = ruled(primal, lambda ct, x: (ct * jnp.where(x > 0, x / jnp.sqrt(x * x + 1), 0),))
    assert check_gradients(below, np.float32([0.3, 0.9, 2.0]), order=1).verdict == "pass"
    with pytest.raises(GradientMismatch, match=r"where x\s+is 0"):
        check_gradients(ruled(primal, backward), np.float32([0.3, 0.9, 2.0]), order=1)


RIGHT = {
    "the first of equal ones": (jnp.max, lambda ct, x: (ct * (jnp.arange(x.size) == jnp.argmax(x)),), (X,)),
    "equal shares": (jnp.max, lambda ct, x: (ct * (x == jnp.max(x)) / jnp.sum(x == jnp.max(x)),), (X,)),
    "one of two arguments": (jnp.maximum, lambda ct, x, y: (ct * (x >= y), ct * (y > x)), (X, Y)),
    "any slope at a kink": (jnp.abs, lambda ct, x: (ct * jnp.where(x == 0, 0.7, jnp.sign(x)),), (X,)),
    "a gate that is open or closed at its threshold": (
        lambda x: jnp.where(x > 0.5, x, 0),
        lambda ct, x: (jnp.where(x >= 0.5, ct, 0.0),),
        (X,),
    ),
    "any slope at one": (lambda x: jnp.abs(x - 1), lambda ct, x: (ct * jnp.where(x > 1, 1.0, -1.0),), (X,)),
    "a permutation": (jnp.sort, lambda ct, x: (jnp.zeros_like(x).at[jnp.argsort(x)].set(ct),), (X,)),
    "no slope at jumps": (lambda x: x - jnp.floor(x), lambda ct, x: (ct,), (X,)),
    "a quotient that is not finite at zero": (jnp.prod, lambda ct, x: (ct * jnp.prod(x) / x,), (X,)),
    "cancellation near zero": (
        lambda x: jnp.sinc(x / jnp.pi),
        lambda ct, x: (ct * jnp.where(x == 0, 0.0, (jnp.cos(x) - jnp.sin(x) / x) / x),),
        (X,),
    ),
    "ties and edges at once": (
        lambda x, y: jnp.mean(jnp.abs(jnp.sort(x) - jnp.sort(y))),
        lambda ct, x, y: (
            jnp.zeros_like(x).at[jnp.argsort(x)].set(ct / x.size * jnp.sign(jnp.sort(x) - jnp.sort(y))),
            jnp.zeros_like(y).at[jnp.argsort(y)].set(ct / x.size * jnp.sign(jnp.sort(y) - jnp.sort(x))),
        ),
        (np.float32([0.37, -0.53, 0.45, 0.49, -0.32]), np.float32([-0.34, 0.26, 1.18, -1.29, 0.59])),
    ),
    "what JAX loses to rounding near zero": (lambda x: x - jnp.tanh(x), lambda ct, x: (ct * jnp.tanh(x) ** 2,), (X,)),
    "an epsilon beside what is as small": (jnp.linalg.norm, lambda ct, x: (ct * x / (jnp.linalg.norm(x) + 1e-8),), (X,)),
    "no slope where there is none": (jnp.linalg.norm, lambda ct, x: (ct * x / jnp.maximum(jnp.linalg.norm(x), 1e-30),), (X,)),
    "one of several shares beyond the arguments": (
        lambda x, low, high: jnp.clip(x, low, high),
        lambda ct, x, low, high: (ct * ((low <= x) & (x <= high)), ct * (x < low), ct * (x > high)),
        (X, np.float32([-1, -1.5, -0.7, -0.9, -1.2]), np.float32([1, 0.8, 1.5, 0.9, 1.1])),
    ),
    "where a root ends": (
        lambda x, y: jnp.sqrt(jnp.abs(x - y)),
        lambda ct, x, y: jax.vjp(lambda x, y: jnp.sqrt(jnp.abs(x - y)), x, y)[1](ct),
        (X, Y),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_where_it_can_be_is_not_blamed(name):
    primal, backward, args = RIGHT[name]
    assert check_gradients(ruled(primal, backward), *args, order=1).verdict == "pass"


LOST = {
    "what overflows": (
        ruled(jax.nn.softplus, lambda ct, x: (ct * jnp.exp(x) / (1 + jnp.exp(x)),)),
        "the gradient of argument 0 is nan at a point of size 1000",
    ),
    "a length of zero": (
        ruled(lambda x: jnp.sum(x**2) ** 2, lambda ct, x: (4 * ct * x * jnp.linalg.norm(x) ** 3 / jnp.linalg.norm(x),)),
        "the gradient of argument 0 is nan at a point that is zero",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_a_rule_that_is_not_finite_far_out_or_where_all_is_zero_is_noted(name):
    fun, words = LOST[name]
    report = check_gradients(fun, np.float32([0.4, -1.2, 2.0]), order=1)
    assert report.verdict == "pass"
    assert any(words in note for note in report.notes)
    assert not check_gradients(jax.nn.softplus, np.float32([0.4, -1.2, 2.0]), order=1).notes


def test_a_rule_that_is_not_finite_at_zero_is_noted():
    slope = ruled(lambda x: jnp.sinc(x / jnp.pi), lambda ct, x: (ct * (jnp.cos(x) - jnp.sin(x) / x) / x,))
    report = check_gradients(slope, X, order=1)
    assert report.verdict == "pass"
    assert "the gradient of argument 0 is nan at 0, where JAX's is" in " ".join(report.notes)


def gap(x, y):
    return x * x - 2 * y * x


@pytest.mark.parametrize(
    ("related", "said"),
    [
        (lambda x, y: x == 3 * y, "zero where argument 0 = 3 * argument 1"),
        (lambda x, y: x - y == 3.25, "zero where argument 0 - argument 1 = 3.25"),
        (lambda x, y: x + y > 7, None),  # no two of those between the bounds add up to that
    ],
)
def test_a_condition_of_a_rule_is_solved(related, said):
    op = ruled(gap, lambda ct, x, y: (jnp.where(related(x, y), 0, ct * (2 * x - 2 * y)), -2 * ct * x))
    if said is None:
        assert check_gradients(op, X, Y, order=1, others=False).verdict == "pass"
        return
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(op, X, Y, order=1, others=False)
    assert caught.value.report.arguments[0].diagnosis == said


def test_a_rule_that_is_right_all_round_a_number_is_wrong_there_wherever_that_lies():
    op = ruled(jnp.exp, lambda ct, x: (jnp.where(x == -1, ct, ct * jnp.exp(x)),))
    with pytest.raises(GradientMismatch, match="too large where x is -1"):
        check_gradients(op, np.abs(X), order=1, others=False)


def test_a_number_that_stands_for_zero_beside_the_arguments_is_no_special_value():
    def steps(xp, fp, x):
        i = jnp.clip(jnp.searchsorted(xp, x), 1, xp.size - 1)
        return i, jnp.clip((x - xp[i - 1]) / (xp[i] - xp[i - 1]), 0, 1)

    def rule(ct, *kept):  # jnp.interp takes knots for equal that are eps**2 apart
        xp, fp, x = kept
        i, share = steps(*kept)
        slope = jnp.where((x > xp[0]) & (x < xp[-1]), ct * (fp[i] - fp[i - 1]) / (xp[i] - xp[i - 1]), 0)
        by_knots = jnp.zeros_like(xp).at[i - 1].add(-slope * (1 - share)).at[i].add(-slope * share)
        return by_knots, jnp.zeros_like(fp).at[i - 1].add(ct * (1 - share)).at[i].add(ct * share), slope

    interpolated = ruled(lambda xp, fp, x: jnp.interp(x, xp, fp), rule)
    args = np.array([-2.6, -0.1, 1.0, 1.1, 1.8]), np.array([1.1, 1.8, -2.6, -0.1, 1.0]), np.array([0.9, -0.6, 0.7])
    with jax.enable_x64(True):
        assert check_gradients(interpolated, *args, order=1).verdict == "pass"


def test_a_rule_that_is_not_meant_beyond_the_bounds_is_not_blamed_for_numbers_there():
    op = ruled(lambda x: jnp.abs(x) ** 1.5, lambda ct, x: (ct * 1.5 * jnp.sqrt(x),))  # of positive numbers
    assert check_gradients(op, np.abs(X), order=1, others=False).verdict == "pass"
