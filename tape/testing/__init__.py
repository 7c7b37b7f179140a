"""Checks of gradients that can be trusted: find wrong ones, blame no right one, say what is wrong.

The way of a check: ``checking`` is what users call. ``subject`` makes a function of flat lists of arrays out of whatever was given,
``probes`` chooses points (``marks``: those where branches meet), cotangents and directions, and ``examination`` asks one question
after another, each in a module of its own, which reads the ``evidence`` so far and yields its findings: ``steadiness``,
``structure``, ``native`` (the function's own dtypes, call after call), ``linearity``, ``transformed`` (forward mode, ``vmap``),
``others`` (``variants``: other ``sizes``, ``integers`` and masks, ``axes``), ``second``.
What they compare is measured in double precision by ``measurement`` (or ``untraced``), with ``precise``, which evaluates jaxprs without
their rules, and ``executables``, which compiles and keeps the programs. Where two derivatives differ, ``judgement`` asks the function's
values, by ``differences`` or ``analytic``, ``symmetry`` whether it is one of symmetric matrices, and ``accuracy`` what rounding explains;
``findings`` are put into words by ``diagnosis``, ``patterns`` and ``blame``, and shown by ``report`` and ``picture``. ``properties`` and
``strategies`` draw arguments by Hypothesis.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tape.errors import GradientMismatch
from tape.testing.checking import check_custom_vjp, check_gradients, check_vjp
from tape.testing.report import ArgumentReport, Report

if TYPE_CHECKING:  # they are imported at their first use, and need Hypothesis
    from tape.testing import strategies
    from tape.testing.properties import gradient_property

__all__ = [
    "ArgumentReport",
    "GradientMismatch",
    "Report",
    "check_custom_vjp",
    "check_gradients",
    "check_vjp",
    "gradient_property",
    "strategies",
]

_HYPOTHESIS = {"gradient_property": ("tape.testing.properties", "gradient_property"), "strategies": ("tape.testing.strategies", None)}


def __getattr__(name: str) -> Any:
    if name not in _HYPOTHESIS:
        msg = f"module 'tape.testing' has no attribute {name!r}"
        raise AttributeError(msg)
    module, attribute = _HYPOTHESIS[name]
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        msg = f"tape.testing.{name} needs Hypothesis; install it with: pip install 'jax-tape[testing]'"
        raise ImportError(msg) from error
    return loaded if attribute is None else getattr(loaded, attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HYPOTHESIS})
