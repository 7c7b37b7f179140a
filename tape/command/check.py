"""``python -m tape check package.module:function``: check the gradients of functions that are named on the command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np

from tape.command.targets import Drawing, arguments, find
from tape.errors import GradientMismatch, TapeValueError
from tape.terminal.progress import progress
from tape.testing import Report, check_gradients

WIDE = {"float64", "complex128", "int64"}
EXAMPLES = """examples:
  python -m tape check jax.nn:gelu --shape 3,4
  python -m tape check mypackage.losses:huber --shape 5 --shape 5 --arg 0.5
  python -m tape check layers.py:norm --between 0.5 2 --order 1 --json
Without --shape and --arg the arguments are found from annotations
(jaxtyping's shapes included) and defaults. An inconclusive verdict (a kink,
the edge of a domain, noise) is no failure, nor is an inaccurate one (right,
but for digits that a formula loses to rounding), unless --strict is given.
--between says where functions are meant: without it, between their smallest
argument and the largest.
"""


class _Given(argparse.Action):
    """Collects ``--shape`` and ``--arg`` in the order in which they are written."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:  # noqa: ARG002 - argparse's signature
        namespace.given = [*namespace.given, (str(option_string).lstrip("-"), values)]


def add(commands: Any) -> None:
    """Enter the command."""
    parser = commands.add_parser(
        "check",
        help="check the gradients of functions",
        description="Check the gradients of functions.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("functions", nargs="+", metavar="FUNCTION", help="package.module:function, or file.py:function")
    parser.add_argument("--shape", action=_Given, default=argparse.SUPPRESS, metavar="3,4", help="an array, as the next argument")
    parser.add_argument("--arg", action=_Given, default=argparse.SUPPRESS, metavar="EXPR", help="a Python expression, as the next argument")
    parser.add_argument("--dtype", default="float32", help="dtype of the arrays drawn (float32)")
    parser.add_argument(
        "--between", type=float, nargs=2, metavar=("LOW", "HIGH"), help="interval of the values drawn (normally distributed without it)"
    )
    parser.add_argument("--order", type=int, choices=(1, 2), default=2, help="highest order of derivatives (2)")
    parser.add_argument("--seed", type=int, default=0, help="seed of what is drawn (0)")
    parser.add_argument("--strict", action="store_true", help="an inaccurate or inconclusive verdict is a failure")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quiet", action="store_true", help="print failures only")
    parser.set_defaults(run=run, given=[])


def run(options: argparse.Namespace) -> bool:
    """Check all functions and print what was found; tell whether anything is wrong."""
    functions = [(spec, find(spec)) for spec in options.functions]
    between = _interval(options.between)
    _check_dtype(options.dtype)
    results = []
    wide = options.dtype in WIDE
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        for spec, fun in progress(functions, "functions"):
            args = arguments(fun, options.given, Drawing(options.dtype, between, options.seed))
            results.append(_checked(spec, fun, args, options))
            if not options.json and not (options.quiet and results[-1]["verdict"] == "pass"):
                print(_text(results[-1]))
    if options.json:
        print(json.dumps(results, indent=2))
    right = {"pass"} if options.strict else {"pass", "inaccurate", "inconclusive"}
    return any(result["verdict"] not in right for result in results)


def _interval(ends: list[float] | None) -> tuple[float, float] | None:
    """Return the interval between two numbers."""
    if ends is None:
        return None
    low, high = ends
    if not low < high:
        msg = f"--between {low:g} {high:g} is not an interval; write for instance --between 0.5 2"
        raise TapeValueError(msg)
    return low, high


def _check_dtype(name: str) -> None:
    try:
        jax.numpy.dtype(name)
    except TypeError as error:
        msg = f"--dtype {name!r} is not a dtype; write for instance --dtype float64"
        raise TapeValueError(msg) from error


def _checked(spec: str, fun: Callable[..., Any], args: Sequence[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Check one function; return what is printed of it."""
    start = time.perf_counter()
    try:
        fun(*args)
    except Exception as error:
        told = ", ".join(map(_described, args))
        msg = f"{spec} cannot be called with ({told}): {type(error).__name__}: {error}; give --shape or --arg for each argument"
        raise TapeValueError(msg) from error
    try:
        report = check_gradients(fun, *args, order=options.order, seed=options.seed, domain=options.between and tuple(options.between))
    except GradientMismatch as mismatch:
        report = cast("Report", mismatch.report)
    return {
        "function": spec,
        "verdict": report.verdict,
        "called_with": [_described(a) for a in args],
        "arguments": [{"name": a.name, "verdict": a.verdict, "kind": a.kind, "diagnosis": a.diagnosis} for a in report.arguments],
        "notes": list(report.notes),
        "seconds": round(time.perf_counter() - start, 2),
        "report": str(report),
    }


def _described(x: Any) -> str:
    """Return an argument in few words."""
    if isinstance(x, (jax.Array, np.ndarray)):
        return f"{x.dtype}[{','.join(map(str, x.shape))}]"
    return repr(x) if len(repr(x)) < 40 else type(x).__name__


def _text(result: dict[str, Any]) -> str:
    """Return the lines for one function."""
    return f"{result['function']}({', '.join(result['called_with'])}), {result['seconds']} s\n{result['report']}"
