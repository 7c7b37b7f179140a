"""The functions that users call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tape.errors import GradientMismatch, TapeTypeError, TapeValueError, check_callable
from tape.terminal.progress import stages
from tape.testing.blame import blamed
from tape.testing.diagnosis import diagnosed
from tape.testing.examination import STAGES, Examination
from tape.testing.findings import Finding
from tape.testing.report import VERDICTS, ArgumentReport, Report
from tape.testing.subject import Subject

AGAINST = ("jax", "numeric")
Interval = tuple[float, float]


def check_gradients(
    fun: Callable[..., Any],
    *args: Any,
    vjp: Callable[..., Any] | None = None,
    order: int = 2,
    against: Sequence[str] = AGAINST,
    argnums: int | Sequence[int] | None = None,
    kwargs: dict[str, Any] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    domain: Interval | Sequence[Interval | None] | None = None,
    others: bool = True,
    strict: bool = False,
) -> Report:
    """Check the derivative of a function against every other way to compute it.

    The derivative under test (``jax.vjp``; the tape's sweep for a function of the tape) is compared, element by element and in double
    precision, with JAX's derivative of the bare function, whose custom rules are taken away, and with extrapolated differences of its
    values (of an analytic function, a complex step where those are in doubt). Further: in the function's own dtypes, at a second call,
    traced, under ``vmap``, in forward mode, for cotangents of all sizes and signs, at points nearby, with other signs and in other orders,
    for special values, at the edges of what a rule compares, for other sizes, masks, integers and repeated indices, and for the second
    derivative. What is accepted follows from error estimates and conditioning. At a kink, every value between the one-sided derivatives is
    right.

    On a terminal a bar shows the stages of a check that takes more than a second.

    Args:
        fun: a function of JAX or of the tape, over pytrees; a ``jax.custom_vjp``; ``apply`` of a ``tape.Function``.
        args: where to check. Floating and complex arrays and numbers are differentiated.
        vjp: the derivative to check instead of the function's own; see :func:`check_vjp`.
        order: 1, or 2 to check the derivative of the derivative too.
        against: ``"jax"``, ``"numeric"`` or both. Without ``"numeric"``, JAX is taken at its word, be it of ``stop_gradient`` or a custom
            rule: a straight-through estimator passes where all ways to derive it agree.
        argnums: which positional arguments to differentiate; all of them by default.
        kwargs: keyword arguments of ``fun``; their floating and complex arrays are differentiated.
        seed: of the random cotangents and directions.
        rtol: what relative error is accepted in double precision; by default it follows from the dtype.
        domain: between which bounds the function is meant, ``(low, high)``, or one such pair (or None) for each positional argument; of
            complex arguments, their absolute value. By default what an argument's elements span, and a tenth around a lone number. What is
            wrong beyond it is noted, and fails nobody, but for single numbers with right ones all round, and, by default, for what is
            behind a condition that function or rule names (``x > 20``).
        others: look at arguments of other sizes, and with other masks and integers, too, as far as the function takes them. False where it
            is meant for those that are given alone.
        strict: have what is inaccurate, and what cannot be decided, fail.

    Returns:
        The report.

    Raises:
        GradientMismatch: the derivative is wrong; ``report`` says how.
        TapeTypeError: the function returned something else than arrays, or an option is of the wrong type.
        TapeValueError: nothing can be differentiated, or an option has an unknown value.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from tape.testing import check_gradients
        >>> check_gradients(jnp.tanh, jnp.array([0.3, -1.2])).verdict
        'pass'
        >>> @jax.custom_vjp
        ... def double(x):
        ...     return 2 * x
        >>> double.defvjp(lambda x: (2 * x, None), lambda _, ct: (ct,))
        >>> check_gradients(double, jnp.array([0.3, -1.2, 0.7]))
        Traceback (most recent call last):
        ...
        tape.errors.GradientMismatch: gradient of double: fail
        argument  verdict  worst element  expected  got       diagnosis
        x         fail     ...            ...       ...       2x too small everywhere
        ...

    References:
        C. J. F. Ridders, Accurate computation of F'(x) and F'(x)F''(x), Adv. Eng. Software 4 (1982) 75-76 (extrapolated differences).

    """
    if order not in (1, 2):
        msg = f"order must be 1 or 2, got {order!r}"
        raise TapeValueError(msg)
    if isinstance(against, str) or not isinstance(against, Collection) or not against or not set(against) <= set(AGAINST):
        msg = f"against must be a sequence of {' and '.join(map(repr, AGAINST))}, got {against!r}"
        raise TapeValueError(msg)
    if rtol is not None and not (np.shape(rtol) == () and np.asarray(rtol).dtype.kind in "iuf" and 0 <= rtol < np.inf):
        msg = f"rtol must be a number that is not negative, or None, got {rtol!r}"
        raise TapeValueError(msg)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        msg = f"kwargs must be the keyword arguments of the function by name, got {type(kwargs).__name__}"
        raise TapeTypeError(msg)
    if vjp is not None:
        check_callable("check_gradients", vjp, "vjp must be a function that returns (output, pullback)")
    subject = Subject(fun, args, kwargs or {}, argnums, vjp)
    domains = _domains(domain, subject, len(args))
    with stages(f"check_gradients of {subject.name}", len(STAGES) if order == 2 else len(STAGES) - 1) as begin:
        exam = Examination(subject, order=order, against=against, seed=seed, rtol=rtol, domains=domains, begin=begin, others=others)
        exam.run()
    report = _report(exam)
    if report.verdict == "fail" or (strict and report.verdict != "pass"):
        raise GradientMismatch(report)
    return report


def check_custom_vjp(fun: Callable[..., Any], *args: Any, **options: Any) -> Report:
    """Check a function with a rule of its own.

    Args:
        fun: a ``jax.custom_vjp``, a ``jax.custom_jvp``, ``apply`` of a ``tape.Function``, or a function that calls some.
        args: where to check.
        options: those of :func:`check_gradients`.

    Returns:
        The report.

    Raises:
        GradientMismatch: the rule is wrong; ``report`` says how.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from tape.testing import check_custom_vjp
        >>> @jax.custom_vjp
        ... def cube(x):
        ...     return x**3
        >>> cube.defvjp(lambda x: (x**3, x), lambda x, ct: (3 * x**2 * ct,))
        >>> check_custom_vjp(cube, jnp.array([0.3, -1.2])).verdict
        'pass'

    """
    return check_gradients(fun, *args, **options)


def check_vjp(fun: Callable[..., Any], vjp: Callable[..., Any], *args: Any, **options: Any) -> Report:
    """Check a vector-Jacobian product that somebody wrote for a function.

    Args:
        fun: the function, over pytrees.
        vjp: called as ``vjp(*args, **kwargs)``, returns ``(fun(*args), pullback)`` as ``jax.vjp`` does; ``pullback(cotangent)`` returns a
            tuple with one cotangent per argument (None: zero).
        args: where to check.
        options: those of :func:`check_gradients`.

    Returns:
        The report.

    Raises:
        GradientMismatch: it is not the function's; ``report`` says how.

    Example:
        >>> import jax.numpy as jnp
        >>> from tape.testing import check_vjp
        >>> check_vjp(jnp.sin, lambda x: (jnp.sin(x), lambda ct: (ct * jnp.cos(x),)), jnp.array([0.3, -1.2])).verdict
        'pass'

    """
    if not callable(vjp):
        msg = f"check_vjp: expected a function that returns (output, pullback), got {type(vjp).__name__}"
        raise TapeTypeError(msg)
    return check_gradients(fun, *args, vjp=vjp, **options)


def _domains(domain: Any, subject: Subject, count: int) -> list[Interval | None]:
    """Return the bounds of each differentiated array."""
    alone = isinstance(domain, tuple) and len(domain) == 2 and all(isinstance(bound, (int, float)) for bound in domain)
    listed = list(domain) if not alone and hasattr(domain, "__iter__") else [domain] * count
    for pair in listed:
        if pair is not None and not (np.shape(pair) == (2,) and pair[0] < pair[1]):
            msg = f"domain must be bounds (low, high) with low < high, got {pair!r}"
            raise TapeValueError(msg)
    if len(listed) != count:
        msg = f"domain has bounds for {len(listed)} arguments, but the function is called with {count}; pass None for those without any"
        raise TapeValueError(msg)
    return [(domain if alone else None) if owner is None else listed[owner] for owner in subject.owners]


def _report(exam: Examination) -> Report:
    entries = []
    for k, name in [*enumerate(exam.evidence.subject.names), (None, "the function")]:
        mine = sorted((f for f in exam.findings if f.argument == k), key=lambda f: VERDICTS.index(f.verdict))
        if mine:
            entries.append(_entry(exam, name, mine[0], {} if k is None else exam.votes[k]))
        elif k is not None:
            unknown = any(f.argument is None for f in exam.findings) and not exam.votes[k]
            entries.append(ArgumentReport(name, "inconclusive" if unknown else "pass", votes=exam.votes[k]))
    return Report(exam.evidence.subject.name, tuple(entries), tuple(exam.notes))


def _entry(exam: Examination, name: str, finding: Finding, votes: dict[str, str]) -> ArgumentReport:
    r, g = finding.expected, finding.got
    index: tuple[int, ...] = ()
    expected = got = None
    if r is not None and g is not None and r.shape == g.shape and r.size and finding.kind != "structure":
        asked = np.isfinite(r) | ~np.any(np.isfinite(r)) | (finding.verdict == "inconclusive")
        with np.errstate(invalid="ignore"):
            off = np.where(asked, np.nan_to_num(np.abs(g - r), nan=np.inf, posinf=np.inf), -1)
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), r.shape))
        expected, got = r[index], g[index]
    return ArgumentReport(
        name,
        finding.verdict,
        finding.kind,
        diagnosed(exam.evidence, finding),
        finding.why,
        blamed(exam.evidence, finding.pair) if finding.verdict == "fail" and finding.kind != "structure" else "",
        votes,
        "the derivative under test" if finding.verdict == "fail" else "",
        index,
        expected,
        got,
        r,
        g,
    )
