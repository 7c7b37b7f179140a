"""Property tests: a function becomes a Hypothesis test of its gradient."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from hypothesis import HealthCheck, Phase, event, given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from tape.errors import InconclusiveGradientError, TapeTypeError
from tape.terminal.progress import stages
from tape.testing import strategies
from tape.testing.checking import check_gradients

EXAMPLES = "JAX_TAPE_EXAMPLES"  # set by the pytest plugin's --tape-examples and --tape-nightly


def gradient_property(*arguments: Any, settings: Any = None, check: Callable[..., Any] = check_gradients, **options: Any) -> Any:
    """Turn a function into a Hypothesis test that its gradient is right for all arguments drawn.

    A failure is shrunk to the smallest arguments that still fail, and printed with source that reproduces it without Hypothesis.  There is
    no deadline: the first call of each shape compiles.

    Args:
        arguments: one strategy per argument of the function; none: each required argument is a float array, and their shapes broadcast.
        settings: Hypothesis settings to use instead of the present profile's (``max_examples`` and so on).
        check: what is called with the function and the arguments: :func:`check_gradients` or :func:`check_custom_vjp`.
        options: keyword arguments of ``check``, for instance ``order=1``.

    Returns:
        A decorator; what it returns takes no arguments, and pytest collects it if its name begins with ``test``.

    Raises:
        TapeTypeError: an argument is not a strategy.
        GradientMismatch: when the test runs, and a gradient is wrong.
        InconclusiveGradientError: when the test runs, and no verdict could be reached on any example.

    Example:
        >>> import jax.numpy as jnp
        >>> from tape.testing import gradient_property, strategies
        >>> @gradient_property(strategies.arrays((3,), domain=(-3, 3)), order=1)
        ... def test_softplus(x):
        ...     return jnp.logaddexp(x, 0.0)

    """
    if len(arguments) == 1 and callable(arguments[0]) and not isinstance(arguments[0], st.SearchStrategy):
        return _property(arguments[0], (), settings, check, options)
    for i, argument in enumerate(arguments):
        if not isinstance(argument, st.SearchStrategy):
            msg = (
                f"gradient_property: argument {i} must be a Hypothesis strategy, got {type(argument).__name__}; use tape.testing.strategies"
            )
            raise TapeTypeError(msg)

    def decorate(fun: Callable[..., Any]) -> Any:
        if not callable(fun):
            msg = f"gradient_property decorates a function, got {type(fun).__name__}"
            raise TapeTypeError(msg)
        return _property(fun, arguments, settings, check, options)

    return decorate


def _property(
    fun: Callable[..., Any], arguments: tuple[Any, ...], settings: Any, check: Callable[..., Any], options: dict[str, Any]
) -> Any:
    drawn = st.tuples(*arguments) if arguments else _fitting(fun)
    verdicts: Counter[str] = Counter()
    called = getattr(fun, "__name__", "")
    called = called if called.isidentifier() else "gradient"  # Hypothesis would look for the source of a lambda
    searches: list[Callable[[str], None]] = []  # that run: what tells of an example

    check = _telling(check, searches)

    def examined(arguments: tuple[Any, ...]) -> None:
        try:
            report = check(fun, *arguments, **options)
        except Exception as error:
            error.add_note(reproducer(fun, arguments, check, options))
            raise
        verdicts[report.verdict] += 1
        event(f"verdict: {report.verdict}")

    examined.__name__ = examined.__qualname__ = called
    asked = settings or settings_of()
    chosen = settings_of(asked, phases=[p for p in asked.phases if p is not Phase.explain], **_without_traps())
    test = chosen(given(drawn)(examined))

    def property_test() -> None:
        verdicts.clear()
        examples = os.environ.get(EXAMPLES)
        with stages(f"examples of {called}", int(examples) if examples else chosen.max_examples) as begin:
            searches.append(begin)
            try:
                if examples:
                    settings_of(chosen, max_examples=int(examples), derandomize=False)(given(drawn)(examined))()
                else:
                    test()
            finally:
                searches.remove(begin)
        if verdicts and not verdicts["pass"]:
            msg = (
                f"gradient_property: none of {verdicts.total()} examples of {getattr(fun, '__name__', repr(fun))} led to a verdict, so "
                "nothing was tested; draw arguments inside the function's domain (strategies.arrays(domain=...)) and away from kinks"
            )
            raise InconclusiveGradientError(msg)

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        with contextlib.suppress(AttributeError):
            setattr(property_test, name, getattr(fun, name))
    vars(property_test).update({k: v for k, v in vars(test).items() if k != "__wrapped__"})  # so that Hypothesis' plugin knows it
    return property_test


def _telling(check: Callable[..., Any], searches: list[Callable[[str], None]]) -> Callable[..., Any]:
    """Return what checks an example, and tells the search that runs of it before."""

    @functools.wraps(check)
    def told(*arguments: Any, **options: Any) -> Any:
        if searches:
            searches[-1]("")
        return check(*arguments, **options)

    return told


def _without_traps() -> dict[str, Any]:
    """Settings without those that a compilation, which takes long once, would trip."""
    return {
        "deadline": None,
        "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
        "report_multiple_bugs": False,  # the smallest failure is enough
    }


def _fitting(fun: Callable[..., Any]) -> Any:
    """Draw arrays for the required arguments of a function."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError) as error:
        msg = f"gradient_property: the signature of {fun!r} is not known; pass one strategy per argument"
        raise TapeTypeError(msg) from error
    required = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not required:
        msg = f"gradient_property: {getattr(fun, '__name__', fun)!r} has no required positional arguments; pass one strategy per argument"
        raise TapeTypeError(msg)
    if len(required) == 1:
        return st.tuples(strategies.arrays())
    return strategies.broadcastable(len(required))


def reproducer(fun: Callable[..., Any], arguments: tuple[Any, ...], check: Callable[..., Any], options: dict[str, Any]) -> str:
    """Return source that calls the check on the same arguments."""
    names: dict[int, str] = {}
    lines = ["Reproduce with", "    import numpy as np", f"    from tape.testing import {check.__name__}"]
    module, name = getattr(fun, "__module__", None), getattr(fun, "__qualname__", getattr(fun, "__name__", "fun"))
    if module and name.isidentifier() and module != "__main__":
        lines.append(f"    from {module} import {name}")
    given_names = []
    for argument in arguments:
        if id(argument) not in names:
            names[id(argument)] = f"x{len(names)}"
            lines.append(f"    {names[id(argument)]} = {literal(argument)}")
        given_names.append(names[id(argument)])
    keywords = "".join(f", {k}={v!r}" for k, v in options.items())
    lines.append(f"    {check.__name__}({name}, {', '.join(given_names)}{keywords})")
    return "\n".join(lines)


def literal(value: object) -> str:
    """Return source for an argument: arrays as NumPy, trees of them, anything else as it prints."""
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
        dtype = f"{array.dtype.name!r}" if array.dtype.name != "bfloat16" else "'bfloat16'"
        if array.size == 0:
            return f"np.zeros({array.shape}, {dtype})"
        text = repr(array.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
        return f"np.array({text}, {dtype})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple) and type(value) is tuple:
        return "(" + "".join(f"{literal(v)}, " for v in value).rstrip() + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return repr(value)
