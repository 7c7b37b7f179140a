"""The checker kills what is wrong, says what it is, and blames nothing that is right."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
from tape.testing import GradientMismatch, check_custom_vjp, check_gradients, check_vjp
from tape.testing.subject import Subject
from tests.daily import share

sys.path.insert(0, __file__.rpartition("/")[0])
from cases import RIGHT, WRONG, M, X, pushed, ruled

sys.path.pop(0)


@pytest.mark.parametrize("name", share(list(WRONG), 2))
def test_what_is_wrong_is_found_and_named(name):
    fun, args, words = WRONG[name]
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(fun, *args)
    report = caught.value.report
    assert report.verdict == "fail"
    assert words in " ".join(str(report).split())
    assert max(len(line) for line in str(report).splitlines() if "cases.py" not in line) <= 100  # JAX may name the file


def test_a_report_fits_the_terminal(monkeypatch):
    scale = jax.custom_vjp(lambda x, w: x * w)
    scale.defvjp(lambda x, w: (x * w, (x, w)), lambda saved, ct: (ct * saved[1], (ct * saved[0])[0]))
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(scale, np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32))
    wide = max(map(len, str(caught.value.report).splitlines()))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("tape.testing.report.is_terminal", lambda: True)
    assert max(map(len, str(caught.value.report).splitlines())) <= 80 < wide <= 100


# What is right, and cannot be told so: nothing in reverse mode is there to compare.
NOT_DIFFERENTIABLE = {"a while loop": "jax.grad refuses a loop whose length is found while it runs"}


@pytest.mark.parametrize("name", share(list(RIGHT), 3))
def test_what_is_right_passes(name):
    fun, args = RIGHT[name]
    report = check_gradients(fun, *args)
    assert report.verdict == ("inconclusive" if name in NOT_DIFFERENTIABLE else "pass"), report


@pytest.mark.parametrize(
    "name",
    share(["a loop that stops when near", "a large loop", "a batch of loops", "a loop that stops at no negative number", "on the host"], 2),
)
def test_what_jax_cannot_differentiate_is_right_at_first_order(name):
    fun, args = RIGHT[name]
    assert check_gradients(fun, *args, order=1).verdict == "pass"


def test_a_second_derivative_that_raises_is_noted():
    fun, args = RIGHT["on the host"]
    report = check_gradients(fun, *args)
    assert report.verdict == "pass"
    assert "the second derivative was not checked: it raises" in str(report)


def test_a_residual_in_single_precision_is_found_in_double_precision():
    fun = ruled(jnp.sin, lambda r, ct: (ct * r[0].astype(ct.dtype),), lambda x: (jnp.sin(x), (jnp.cos(x).astype(jnp.float32),)))
    with jax.enable_x64(True), pytest.raises(GradientMismatch, match="wrong in float64"):
        check_gradients(fun, X.astype(np.float64))


def test_a_report_shows_in_notebooks():
    fun, args, _ = WRONG["no sum"]
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(fun, *args, order=1)
    shown = caught.value.report._repr_html_()
    assert shown.count("<svg") == shown.count("</svg>") == 1
    assert "missing the sum" in shown


@pytest.mark.parametrize("fun", [jnp.sqrt, jnp.cbrt, lambda x: jnp.sqrt(jnp.abs(x))])
def test_an_infinite_derivative_is_inconclusive(fun):
    report = check_gradients(fun, np.float32([0.0, 1.0]))
    assert report.verdict == "inconclusive"
    assert report.arguments[0].index == (0,)
    with pytest.raises(GradientMismatch):
        check_gradients(fun, np.float32([0.0, 1.0]), strict=True)


@pytest.mark.parametrize("lost", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wrong", [False, True])
def test_what_is_not_finite_stays_and_the_rest_is_looked_at(lost, wrong):
    def kept(x):
        return jnp.where(jnp.isfinite(x), x, 0)

    fun = ruled(
        lambda x: jnp.sum(kept(x) ** 3),
        lambda saved, ct: (3 * ct * kept(saved[0]) ** 2 * jnp.where(wrong & (jnp.sum(kept(saved[0])) != 2.25), 2, 1),),
    )
    x = np.float32([0.5, lost, 2.0, -0.25])
    if not wrong:
        assert check_gradients(fun, x).verdict == "pass"
        return
    with pytest.raises(GradientMismatch, match="seen at a point nearby"):
        check_gradients(fun, x)


def test_one_way_of_batching_that_raises_leaves_the_others():
    slope = jax.custom_batching.custom_vmap(lambda x: jnp.cos(x))

    @slope.def_vmap
    def _(size, batched, x):
        if size == 1:
            raise NotImplementedError
        return (0.5 if size == 2 else 1) * jnp.cos(x), True

    fun = ruled(jnp.sin, lambda kept, ct: (ct * slope(kept[0]),))
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(fun, X, order=1)
    said = " ".join(str(caught.value).split())
    assert "twice, though right without it" in said
    assert "not checked under vmap over a batch of one: the derivative raises NotImplementedError" in said


def test_a_value_that_is_wrong_under_vmap_is_found():
    class Doubled(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

        @staticmethod
        def vmap(info, in_dims, x):
            return 3 * x, 0

    with pytest.raises(GradientMismatch, match="the value of the function is"):
        check_gradients(Doubled.apply, X)


def sinc_with_slope(at_zero):
    """Sinc whose derivative is right, but for the derivative of that at zero."""

    def bwd(residuals, ct):
        (x,) = residuals
        safe = jnp.where(x == 0, 1.0, x)
        return (ct * jnp.where(x == 0, at_zero * x, (jnp.cos(jnp.pi * safe) - jnp.sinc(safe)) / safe),)

    return ruled(jnp.sinc, bwd)


@pytest.mark.parametrize("x", [[0.0, 0.4, 0.2], [0.0, 0.4], [0.0, 0.5], [0.0, -0.7, 1.5]])
def test_a_removable_singularity_beside_other_elements_is_judged_by_itself(x):
    """The share of one element is lost in what rounding allows the others: whatever the direction drawn, it is looked at alone."""
    for seed in range(3):
        assert check_gradients(jnp.sinc, np.float32(x), seed=seed).verdict == "pass"
        assert check_gradients(sinc_with_slope(-(np.pi**2) / 3), np.float32(x), seed=seed).verdict == "pass"


@pytest.mark.parametrize("slope", [-1.0, 3.0, -4.0])
def test_a_wrong_slope_at_a_removable_singularity_does_not_pass(slope):
    for seed in range(3):
        try:
            verdict = check_gradients(sinc_with_slope(slope), np.float32([0.0, 0.4, 0.2]), seed=seed).verdict
        except GradientMismatch:
            continue
        assert verdict != "pass"


def test_the_error_is_an_assertion():
    fun, args, _ = WRONG["sign"]
    with pytest.raises(AssertionError):
        check_custom_vjp(fun, *args)


def test_against_jax_alone_takes_stop_gradient_at_its_word():
    fun, args, _ = WRONG["stop_gradient"]
    assert check_gradients(fun, *args, against=("jax",)).verdict == "pass"


def test_first_order_alone():
    fun, args, _ = WRONG["cut"]
    assert check_gradients(fun, *args, order=1).verdict == "pass"


def test_argnums_and_keywords():
    fun = ruled(lambda x, y: x * y, lambda r, ct: (ct * r[1], 2 * ct * r[0]))
    assert check_gradients(fun, X, X, argnums=0).verdict == "pass"
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(fun, X, X)
    assert [a.verdict for a in caught.value.report.arguments] == ["pass", "fail"]
    with pytest.raises(GradientMismatch):
        check_gradients(lambda x, *, y: fun(x, y), X, kwargs={"y": X})


def test_a_vjp_function():
    def vjp(factor):
        return lambda x: (jnp.sin(x), lambda ct: (factor * ct * jnp.cos(x),))

    assert check_vjp(jnp.sin, vjp(1), X).verdict == "pass"
    with pytest.raises(GradientMismatch):
        check_vjp(jnp.sin, vjp(1.001), X)


def test_functions_of_the_tape():
    assert check_gradients(lambda x: tape.numpy.tanh(x) * x, X).verdict == "pass"
    assert check_gradients(lambda x: (x @ x).sum(), tape.Variable(X)).verdict == "pass"


@pytest.mark.parametrize("factor", [1, 1.001])
def test_a_function_with_a_backward(factor):
    class Sine(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return tape.numpy.sin(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved
            return factor * g * tape.numpy.cos(x)

    if factor == 1:
        assert check_gradients(Sine.apply, X).verdict == "pass"
    else:
        with pytest.raises(GradientMismatch) as found:
            check_gradients(Sine.apply, X)
        assert str(found.value).startswith("gradient of Sine: fail")
        assert found.value.report.arguments[0].name == "x"
        assert found.value.report.arguments[0].blame.startswith("the backward of Sine: ")


def test_double_precision():
    fun, args, _ = WRONG["scaled"]
    with jax.enable_x64(True):
        with pytest.raises(GradientMismatch):
            check_gradients(fun, args[0].astype(np.float64))
        assert check_gradients(RIGHT["rule"][0], args[0].astype(np.float64)).verdict == "pass"


def test_options_are_checked():
    with pytest.raises(tape.errors.TapeValueError, match="order"):
        check_gradients(jnp.sin, X, order=3)
    with pytest.raises(tape.errors.TapeValueError, match="against"):
        check_gradients(jnp.sin, X, against="torch")
    with pytest.raises(tape.errors.TapeValueError, match="nothing to differentiate"):
        check_gradients(jnp.sin, 3)
    with pytest.raises(tape.errors.TapeTypeError):
        check_gradients(3, X)


def blame(fun, *args):
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(fun, *args)
    return " ".join(str(caught.value).split())


def test_the_wrong_one_of_several_rules_is_blamed_with_its_line():
    right, wrong = RIGHT["rule"][0], WRONG["scaled"][0]

    def composite(x):
        y = right(x)
        z = wrong(y) * x  # this is the line
        return jax.nn.relu(z) + right(z)

    line = composite.__code__.co_firstlineno + 2
    text = blame(composite, X)
    assert f"test_checking.py:{line}: " in text
    assert "too large everywhere" in text  # of the rule itself: through the rest of the composite it is no pattern


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (
            ruled(
                lambda x, y: jnp.where(x == 0, 0, x * jnp.log(y)), lambda kept, ct: (ct * jnp.log(kept[1]), ct * kept[0] / (kept[1] + 0.1))
            ),
            (np.float32([0.7, -1.3, 0.4]), np.float32([0.6, 1.9, 2.4])),
        ),
        (
            ruled(
                jnp.clip,
                lambda kept, ct: (
                    jnp.where((kept[0] >= kept[1]) & (kept[0] <= kept[2]), ct, 0),
                    jnp.where(kept[0] < kept[1], ct, 0),
                    jnp.zeros_like(ct),
                ),
            ),
            (np.float32([0.1, -1.3, 2.4]), np.float32([-0.5] * 3), np.float32([0.5] * 3)),
        ),
    ],
)
def test_a_right_argument_is_not_blamed_for_a_wrong_one_beside_it(op, args):
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(op, *args)
    assert [a.verdict for a in caught.value.report.arguments] == ["pass"] * (len(args) - 1) + ["fail"]


def test_the_side_of_a_branch_that_is_wrong_is_named():
    @jax.custom_vjp
    def softplus(x):
        return jnp.logaddexp(x, 0.0)

    softplus.defvjp(lambda x: (softplus(x), x), lambda x, ct: (ct * jax.nn.sigmoid(x) * (x > 0.25),))
    assert "zero where x < 0.3" in blame(softplus, np.linspace(-1.0, 1.0, 22, dtype=np.float32))


def test_a_masked_nan_is_traced_to_its_birth():
    text = blame(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0), np.float32([0.0, 1.0, 2.0, -1.0]))
    assert "NaN born at sqrt(-" in text
    assert "masked by where" in text


def test_the_rule_of_a_primitive_of_the_tape_is_blamed():
    primitive = tape.jaxapi.primitive("tanh")
    own = tape.rules.lookup(primitive).vjp
    tape.rules.defvjp(primitive, lambda ct, out, x, **_: (1.001 * ct * (1 - out * out),))
    try:
        assert "primitive tanh" in blame(lambda x: tape.numpy.tanh(x * 1.5) * tape.numpy.exp(x), X)
    finally:
        tape.rules.defvjp(primitive, own)


def test_a_function_that_is_no_function_is_named():
    rng = np.random.default_rng(0)
    state = [0]

    def noisy(x):
        return x * jnp.float32(rng.normal())

    def called_back(x):
        def count(a):
            state[0] += 1
            return a * np.float32(state[0])

        return jax.pure_callback(count, x, x)

    def looks(x):
        return x * jnp.float32(rng.normal()) if x.sum() < 1e3 else x

    for fun in (noisy, called_back, looks):
        with pytest.raises(GradientMismatch, match=r"changes from call to call"):
            check_gradients(fun, X)
    kept = jax.jit(noisy)  # drawn once, when it was traced
    assert check_gradients(kept, X).verdict == "pass"


STRAIGHT = ruled(jnp.round, lambda _, ct: (ct,))


@pytest.mark.parametrize(
    "fun",
    [
        STRAIGHT,
        lambda x: x + jax.lax.stop_gradient(jnp.round(x) - x),
        pushed(jnp.round, lambda p, t: (jnp.round(p[0]), t[0])),
        lambda x: x + tape.stop_gradient(tape.numpy.round(x) - x),
    ],
)
def test_a_straight_through_estimator_is_right_where_values_are_not_asked(fun):
    assert check_gradients(fun, X, against=("jax",)).verdict == "pass"
    with pytest.raises(GradientMismatch):
        check_gradients(fun, X)


def test_a_straight_through_vjp_is_compared_with_jaxs():
    def vjp(factor):
        return lambda x: (STRAIGHT(x), lambda ct: (factor * ct,))

    assert check_vjp(STRAIGHT, vjp(1), X, against=("jax",)).verdict == "pass"
    with pytest.raises(GradientMismatch):
        check_vjp(STRAIGHT, vjp(1.001), X, against=("jax",))


@pytest.mark.parametrize(
    ("fun", "options", "message"),
    [
        (lambda x: (x * 2, "two"), {}, "returned str; return arrays"),
        (lambda x: object(), {}, "returned object; return arrays"),
        (lambda x: x * 2, {"rtol": -1}, "rtol must be a number that is not negative"),
        (lambda x: x * 2, {"rtol": "tight"}, "rtol must be a number that is not negative"),
        (lambda x: x * 2, {"kwargs": [1]}, "kwargs must be the keyword arguments"),
        (lambda x: x * 2, {"vjp": 3}, "vjp must be a function"),
        (lambda x: x * 2, {"domain": 3}, "domain must be bounds"),
        (lambda x: x * 2, {"domain": ("a", "b")}, "domain must be bounds"),
        (lambda x: x * 2, {"against": 3}, "against must be a sequence"),
    ],
)
def test_what_cannot_be_checked_is_named(fun, options, message):
    with pytest.raises(tape.errors.TapeError, match=message):
        check_gradients(fun, X, **options)


@pytest.mark.parametrize("name", ["clipped", "negative cotangents", "under vmap", "traced", "another value", "dtype", "raises"])
def test_what_needs_no_second_opinion_is_found_where_jax_is_taken_at_its_word(name):
    fun, args, _ = WRONG[name]
    with pytest.raises(GradientMismatch):
        check_gradients(fun, *args, against=("jax",))


def test_values_are_asked_for_the_second_derivative():
    def cut(x):  # x**3, whose first derivative is right and whose second is cut; JAX cuts it too
        fixed = jax.lax.stop_gradient(x)
        return fixed**3 + 3 * fixed**2 * (x - fixed)

    assert check_gradients(cut, X, order=1).verdict == "pass"
    with pytest.raises(GradientMismatch, match="right at first order, zero"):
        check_gradients(cut, X)
    assert check_gradients(lambda x: x**3, X).arguments[0].votes["taylor"] == "right"


@pytest.mark.parametrize("name", ["clipped", "under vmap", "traced", "cut", "another value", "dtype"])
def test_a_vjp_function_is_checked_as_closely_as_a_rule(name):
    fun, args, _ = WRONG[name]
    with pytest.raises(GradientMismatch):
        check_vjp(fun, lambda *a: jax.vjp(fun, *a), *args)


@pytest.mark.parametrize("name", ["a tree", "an integer argument", "size zero", "a scalar"])
def test_a_right_vjp_function_of_any_arguments_passes(name):
    fun, args = RIGHT[name]
    assert check_vjp(fun, lambda *a: jax.vjp(fun, *a), *args).verdict == "pass"


INDICES = np.int32([2, 0])


@pytest.mark.parametrize(
    ("value", "cotangent", "words"),
    [
        (lambda x: x[INDICES], lambda _: jnp.ones(2), "has no derivative"),
        (lambda x: x[INDICES], lambda _: jnp.zeros(7), "has no derivative"),
        (lambda x: (x[INDICES],), lambda _: None, "has the structure"),
        (lambda x: x[INDICES][None], lambda _: None, r"shape \(1, 2, 4\)"),
        (lambda x: x[INDICES].astype(jnp.float16), lambda _: None, "dtype float16"),
        (lambda x: x[INDICES], lambda _: None, ""),
        (lambda x: x[INDICES], lambda i: np.zeros(i.shape, tape.jaxapi.float0), ""),
        (lambda x: x[INDICES], jnp.zeros_like, ""),
    ],
)
def test_a_vjp_functions_values_and_cotangents_have_the_right_form(value, cotangent, words):
    def vjp(x, i):
        return value(x), lambda ct: (jnp.zeros_like(x).at[i].add(jnp.asarray(jax.tree.leaves(ct)[0], x.dtype).reshape(2, 4)), cotangent(i))

    if words:
        with pytest.raises(GradientMismatch) as caught:
            check_vjp(lambda x, i: x[i], vjp, M, INDICES, order=1)
        assert re.search(words, " ".join(str(caught.value).split()))
    else:
        assert check_vjp(lambda x, i: x[i], vjp, M, INDICES, order=1).verdict == "pass"


def test_forward_mode_is_the_adjoint_where_jax_is_taken_at_its_word(monkeypatch):
    own = Subject.push
    monkeypatch.setattr(Subject, "push", lambda *a: [1.001 * t for t in own(*a)])
    with pytest.raises(GradientMismatch, match="forward mode"):
        check_gradients(lambda x: tape.numpy.tanh(x) * x, X, against=("jax",))


def test_a_derivative_lost_to_its_dtype_is_in_doubt():
    def softplus(x):
        return jnp.where(x > 50, x, jnp.log(1 + jnp.exp(x)))

    assert check_gradients(softplus, X).verdict == "pass"
    report = check_gradients(softplus, np.float32([100.0, 1.0]), order=1)
    assert report.verdict == "inconclusive"
    assert "not finite in float32, though it exists" in " ".join(str(report).split())
    overflowing = check_gradients(lambda x: x * x * 100, np.float16([30.0, 1.0]), order=1)
    assert "value is not finite" in " ".join(str(overflowing).split())


def wrong_beyond(bound):
    """A square whose rule is off by more and more for large arguments."""
    return ruled(lambda x: x**2, lambda r, ct: (ct * 2 * r[0] * (1 + jnp.maximum(jnp.abs(r[0]) - bound, 0)),))


@pytest.mark.parametrize("domain", [(-np.inf, np.inf), (-10.0, 10.0), [(-10.0, 10.0)]])
def test_what_is_wrong_beyond_the_arguments_is_noted_and_fails_only_in_the_domain(domain):
    report = check_gradients(wrong_beyond(4), X)
    assert report.verdict == "pass"
    assert any("domain=(low, high)" in note for note in report.notes)
    with pytest.raises(GradientMismatch):
        check_gradients(wrong_beyond(4), X, domain=domain)
    assert not check_gradients(wrong_beyond(4), X, domain=[(-3.5, 3.5)]).notes


def branching(fun, slope, condition, other):
    """``fun`` with its ``slope``, but for ``other`` where the argument meets a condition."""
    return ruled(fun, lambda r, ct: (ct * jnp.where(condition(r[0]), other(r[0]), slope(r[0])),))


HALF = np.float32([0.3, 0.7, 1.9])
BEHIND = {
    "a number": (branching(lambda x: x**2, lambda x: 2 * x, lambda x: jnp.abs(x) > 4, jnp.ones_like), X, "where |x| > 4"),
    "a sum": (branching(jnp.sin, jnp.cos, lambda x: jnp.sum(x * x) > 50, lambda x: -jnp.cos(x)), X, "sign flipped"),
    "a sign": (branching(jnp.sin, jnp.cos, lambda x: x < 0, lambda x: 0.5 * jnp.cos(x)), HALF, "2x too small where x < 0"),
    "a cutoff of the function": (
        ruled(lambda x: jnp.where(x < 2.5, x**-6.0, 0), lambda r, ct: (-6 * ct * r[0] ** -7.0,)),
        HALF + 0.5,
        "not zero, though the derivative is where x > 2.5",
    ),
    "a bound of a table": (
        branching(lambda x: jnp.log1p(jnp.exp(x)), jax.nn.sigmoid, lambda x: x > 20, jnp.zeros_like),
        X,
        "zero where x > 20",
    ),
}


@pytest.mark.parametrize("name", BEHIND)
def test_what_is_wrong_behind_a_condition_of_the_rule_beyond_the_arguments_is_found(name):
    fun, x, words = BEHIND[name]
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(fun, x, order=1)
    assert words in " ".join(str(caught.value.report).split())
    assert check_gradients(fun, x, order=1, domain=(float(x.min()), float(x.max()))).verdict == "pass"


GUARDS = {
    "against another sign": branching(lambda x: jnp.sqrt(x + 1e-3), lambda x: 0.5 / jnp.sqrt(x + 1e-3), lambda x: x < 0, jnp.zeros_like),
    "against a division by zero": branching(jnp.sin, jnp.cos, lambda x: jnp.abs(x) < 1e-3, jnp.zeros_like),
    "against what overflows": branching(jax.nn.sigmoid, jax.grad(lambda x: jax.nn.sigmoid(x).sum()), lambda x: x > 30, jnp.zeros_like),
    "where there is no value": branching(lambda x: jnp.arccos(x / 4), lambda x: -1 / jnp.sqrt(16 - x * x), lambda x: x > 4, jnp.ones_like),
    "where the function turns": branching(
        lambda x: jnp.minimum(x, 4) ** 2, lambda x: 2 * x, lambda x: x >= 4, lambda x: jnp.where(x > 4, 0.0, 8.0)
    ),
    "by another formula": branching(
        lambda x: jnp.log1p(jnp.exp(-x)), lambda x: -jnp.exp(-x) / (1 + jnp.exp(-x)), lambda x: x > 12, lambda x: -jnp.exp(-x)
    ),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_rule_that_guards_beyond_the_arguments_passes(name):
    assert check_gradients(GUARDS[name], HALF, order=1).verdict == "pass"


@pytest.mark.parametrize("factor", [1, 1.01])
def test_a_function_of_symmetric_matrices_is_held_to_those(factor):
    a = np.float32([[3, 1, 0.5], [1, 2, -0.3], [0.5, -0.3, 2.5]])

    def rule(r, ct):  # reads what the function makes symmetric as it is
        return (factor * ct * jnp.linalg.inv(r[0]),)

    log_determinant = ruled(lambda a: 2 * jnp.log(jnp.diagonal(jnp.linalg.cholesky(a))).sum(), rule)
    if factor == 1:
        report = check_gradients(log_determinant, a)
        assert report.verdict == "pass"
        assert any("where matrices are not symmetric" in note for note in report.notes)
    else:
        with pytest.raises(GradientMismatch):
            check_gradients(log_determinant, a)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_signs_that_differ_between_arguments_are_looked_at(order):
    x, y = np.float32([0.7, 1.9, 3.1]), np.float32([0.9, 1.3, 0.6])

    def remainder(*args):
        return ruled(lambda a, b: jnp.mod(a, b), lambda r, ct: (ct, -ct * jnp.trunc(r[0] / r[1])))(*(args[i] for i in order))

    report = check_gradients(remainder, *([x, y][i] for i in order))
    assert any("alone has another sign" in note for note in report.notes)
    with pytest.raises(GradientMismatch):
        check_gradients(remainder, *([x, y][i] for i in order), domain=(-4.0, 4.0))


@pytest.mark.parametrize("twice", [1, 2])
def test_one_variable_as_two_arguments_is_looked_at(twice):
    class Product(tape.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.same = x is y
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved
            return (twice * g * x, twice * g * x) if ctx.same else (g * y, g * x)

    def assigning(x, y):
        z = Product.apply(x, y)
        x = x * 1
        x[0] = 3.0
        return z + x

    for fun in (Product.apply, assigning):
        if twice == 1:
            assert check_gradients(fun, X, X + 1).verdict == "pass"
            continue
        with pytest.raises(GradientMismatch) as caught:
            check_gradients(fun, X, X + 1)
        said = "wrong where one Variable is given as x and y, though right for two that are equal"
        assert said in " ".join(caught.value.report.failures[0].diagnosis.split())


def test_a_domain_is_checked():
    for domain in ((1.0, 1.0), [(2.0, 1.0)]):
        with pytest.raises(tape.errors.TapeValueError, match="low < high"):
            check_gradients(jnp.sin, X, domain=domain)
    with pytest.raises(tape.errors.TapeValueError, match="bounds for 2 arguments"):
        check_gradients(jnp.sin, X, domain=[(0.0, 1.0), None])


def test_points_nearby_stay_within_what_the_arguments_span():
    def inside(x):  # it looks at its argument, so that no one tells it what it does not span
        assert isinstance(x, jax.core.Tracer) or (float(x.min()) > 0.099 and float(x.max()) < 0.951)
        return jnp.log1p(-x)

    fun = ruled(inside, lambda r, ct: (-ct / (1 - r[0]),))
    assert check_gradients(fun, np.float32([0.1, 0.4, 0.7, 0.95]), order=1).verdict == "pass"


def scaled_erfc(x):
    """exp(x**2) erfc(x) by a continued fraction, for x > 1."""
    found = x
    for k in range(60, 0, -1):
        found = x + k / 2 / found
    return 1 / found / np.float32(np.sqrt(np.pi))


def test_a_formula_that_loses_digits_is_inaccurate_and_not_wrong():
    def rule(factor):
        return lambda r, ct: (factor * ct * (2 * r[0] * scaled_erfc(r[0]) - np.float32(2 / np.sqrt(np.pi))),)

    x = np.float32([3.0, 20.0, 60.0])  # at 60, 1e-4 of either term remains
    report = check_gradients(ruled(scaled_erfc, rule(1)), x, order=1)
    assert report.verdict == report.arguments[0].verdict == "inaccurate"
    assert "loses digits" in report.arguments[0].diagnosis
    with pytest.raises(GradientMismatch):
        check_gradients(ruled(scaled_erfc, rule(1)), x, order=1, strict=True)
    with pytest.raises(GradientMismatch):
        check_gradients(ruled(scaled_erfc, rule(1.05)), x, order=1)


def test_what_one_output_lacks_far_beneath_the_others_is_inaccurate():
    def rule(more):  # of what is to be 4e-44 at -100, and is rounded to zero
        return lambda r, ct: (ct * (1 - 1 / (1 + jnp.exp(jnp.minimum(r[0], 80)))) + jnp.where(r[0] < -50, ct * more, 0),)

    with jax.enable_x64(True):
        x = np.array([-100.0, 0, 100])
        assert check_gradients(ruled(jax.nn.softplus, rule(0)), x, order=1).verdict == "inaccurate"
        with pytest.raises(GradientMismatch):  # nothing is beside it
            check_gradients(ruled(jax.nn.softplus, rule(0)), x[:1], order=1)
        with pytest.raises(GradientMismatch):
            check_gradients(ruled(jax.nn.softplus, rule(1e-30)), x, order=1)


def test_what_single_precision_cannot_hold_is_no_error():
    def nearly(x):  # an approximation of the cosine that is right to 1e-9, and wavy
        return jnp.cos(x) + 1e-9 * jnp.sin(30 * x) / 30

    x = np.float32([1e-4, 0.5, 1.5])
    assert check_gradients(ruled(nearly, lambda r, ct: (-ct * jnp.sin(r[0]),)), x, order=1).verdict == "pass"


def test_a_reference_that_is_not_finite_convicts_nobody():
    def masked(x):  # whose derivative JAX takes for NaN at zero
        return jnp.where(x > 0, x * jnp.sqrt(x), 0.0)

    def slope(factor):
        return lambda r, ct: (factor * ct * 1.5 * jnp.sqrt(jnp.maximum(r[0], 0)),)

    x = np.float32([0.0, 0.5, 2.0])
    assert check_gradients(ruled(masked, slope(1)), x, order=1).verdict == "pass"
    with pytest.raises(GradientMismatch, match=r"1\.5x too large"):
        check_gradients(ruled(masked, slope(1.5)), x, order=1)


def test_values_that_underflow_say_nothing():
    def power(x):
        return jnp.where(x < 0.1, 0.0, (x - 0.1) ** 8)

    fun = ruled(power, lambda r, ct: (ct * jnp.where(r[0] < 0.1, 1e-33, 8 * (r[0] - 0.1) ** 7),))
    assert check_gradients(fun, np.float32([0.05, 0.5, 2.0]), order=1).verdict == "pass"
    assert check_gradients(fun, np.float32(0.05), order=1).verdict == "pass"


def test_a_large_program_says_what_was_left_out(monkeypatch):
    monkeypatch.setattr("tape.testing.examination.LARGE", 20)
    monkeypatch.setattr("tape.testing.native.BUDGET", 1000)

    @jax.custom_batching.sequential_vmap
    def deep(x):
        for _ in range(30):
            x = x + 1e-3 * x
        return x

    report = check_gradients(ruled(deep, lambda r, ct: (ct * deep(jnp.ones_like(r[0])),)), X[:2], order=1)
    assert report.verdict == "pass"
    assert re.search(r"not checked: \d+ of 16 repeated calls, all ways of batching it but one", " ".join(str(report).split()))


def test_arguments_of_many_sizes_are_stepped_each_by_its_own():
    assert check_gradients(jax.scipy.special.gammaln, np.float32([1e-3, 1, 1e3, 1e6]), order=1).verdict == "pass"


def test_a_function_in_methods_that_looks_at_values_belongs_to_the_tape():
    report = check_gradients(lambda x: x * x if float(x.sum()) > 0 else 2 * x, np.float32([0.7, 1.2]), order=1)
    assert report.verdict == "pass"
    with pytest.raises(GradientMismatch):
        check_gradients(lambda x: x.detach() * x if float(x.sum()) > 0 else 2 * x, np.float32([0.7, 1.2]), order=1)


@pytest.mark.parametrize("wrong", [1.01, 2.0])
@pytest.mark.parametrize("share", [1e-5, 1e-7])
def test_an_argument_with_a_small_share_of_the_value(share, wrong):
    """Of less than the function's dtype holds beside the rest, and no kink: the function's values tell in double precision."""

    @jax.custom_vjp
    def f(x, y):
        return jnp.sin(x) + share * jnp.sin(y)

    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda kept, ct: (ct * jnp.cos(kept[0]), ct * share * jnp.cos(kept[1]) * wrong))
    with pytest.raises(GradientMismatch, match=r"y +fail") as e:
        check_custom_vjp(f, jnp.ones(3), jnp.ones(3))
    assert "kink" not in str(e.value)
