"""``python -m tape verify``: run this library's own rules on the device that JAX finds, and hold them to float64 on the CPU."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.command.reference import Reference
from tape.errors import TapeValueError
from tape.ops.pullback import pullback
from tape.rules import Example, Rule, registered
from tape.terminal.progress import progress
from tape.testing.samples import draw, draw_like, examples_of

# What a gradient in these dtypes may differ from the one in float64, relative to the largest entry: the domains are well-conditioned.
RELATIVE = {"float16": 2e-2, "bfloat16": 2e-1, "float32": 3e-4, "complex64": 3e-4, "float64": 1e-9, "complex128": 1e-9}
_DRAWN = {"rng_uniform"}  # draws other numbers at each call, so that no differences can be taken
HEAD = f"{'primitive':<30} {'family':<18} {'examples':>8} {'worst':>9}  verdict"


@dataclasses.dataclass(slots=True)
class Line:
    """What was found for one primitive: the worst disagreement over its examples, and what did not agree."""

    primitive: str
    family: str
    examples: int = 0
    worst: float = 0.0
    verdict: str = "pass"
    notes: list[str] = dataclasses.field(default_factory=list)


def add(commands: Any) -> None:
    """Enter the command."""
    parser = commands.add_parser(
        "verify",
        help="run this library's own rules on the device that JAX finds",
        description="Run every rule of this library on JAX's default device, and compare with JAX's derivative and with differences, "
        "both in float64 on the CPU. JAX_PLATFORMS chooses the device.",
    )
    parser.add_argument("--only", metavar="NAME", help="a family (elementary, reductions, ...) or a part of a primitive's name")
    parser.add_argument("--dtype", default="float32", choices=sorted(RELATIVE), help="dtype on the device (float32)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def family_of(record: Rule) -> str:
    """Return the name of the module that holds a record's rule."""
    rule: Any = record.vjp
    while isinstance(rule, functools.partial):
        rule = rule.func
    return str(getattr(rule, "__module__", "?")).rpartition(".")[2]


def verifiable() -> list[Rule]:
    """Return the rules whose examples can be held against differences."""
    return [r for r in registered() if r.domain and r.primitive.name not in _DRAWN]


def run(options: argparse.Namespace) -> bool:
    """Verify the rules and print the table; tell whether any rule is wrong."""
    chosen = [r for r in verifiable() if _asked(r, options.only)]
    if options.dtype.startswith("complex"):
        chosen = [r for r in chosen if r.complex]
    if not chosen:
        families = sorted({family_of(r) for r in verifiable()})
        msg = f"no rule is called like {options.only!r}; the families are {', '.join(families)}"
        raise TapeValueError(msg)
    device = jax.devices()[0]
    start = time.perf_counter()
    lines = []
    if not options.json:
        print(HEAD)
    for record in progress(chosen, "rules"):
        lines.append(verify(record, options.dtype, device))
        if not options.json:
            print(_row(lines[-1]), flush=True)  # a line at a time: all of them take minutes
    what = f"{len(lines)} rules in {options.dtype} on {device.device_kind} ({device.platform}), {time.perf_counter() - start:.0f} s"
    if options.json:
        print(json.dumps({"device": device.device_kind, "dtype": options.dtype, "rules": list(map(dataclasses.asdict, lines))}, indent=2))
    else:
        verdicts = collections.Counter(x.verdict for x in lines)
        skipped = f", {verdicts['skip']} not in {options.dtype} on {device.platform}" if verdicts["skip"] else ""
        print(f"{what}: {verdicts['fail']} wrong{skipped}")
    return any(line.verdict == "fail" for line in lines)


def _asked(record: Rule, only: str | None) -> bool:
    return not only or only == family_of(record) or only in record.primitive.name


def verify(record: Rule, dtype: str, device: Any) -> Line:
    """Compare the rule of ``record`` on ``device`` with the derivatives of its examples in float64 on the CPU."""
    line = Line(record.primitive.name, family_of(record))
    for example in examples_of(record):
        try:
            compared = compare(record, example, dtype, device)
        except Exception as error:  # noqa: BLE001 - whatever a backend refuses with is part of the table
            compared = np.inf, f"raises {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if compared is None:
            continue  # JAX has nothing to be right or wrong about
        line.examples += 1
        line.worst = max(line.worst, compared[0])
        if compared[1]:
            line.notes.append(f"{example.name}: {compared[1]}".removeprefix(": "))
    line.verdict = "fail" if line.notes else "pass" if line.examples else "skip"
    return line


def compare(record: Rule, example: Example, dtype: str, device: Any, options: dict[str, Any] | None = None) -> tuple[float, str] | None:
    """Return the relative error of one example, and what is wrong with it; None where JAX has no such function of ``dtype`` on the device.

    ``options`` are the compiler's for what runs on the device.
    """
    with jax.enable_x64(dtype in {"float64", "complex128"}):
        args = draw(record, example, dtype)
        try:
            with jax.default_device(device):
                shapes = jax.jit(lambda *a: jax.tree.leaves(example.fun(*a))).lower(*args).out_info
        except (TypeError, ValueError, NotImplementedError):
            return None
        cts = draw_like(shapes, record.primitive.name, example.name)
        with jax.default_device(device), jax.default_matmul_precision("highest"):
            own = jax.device_get(jax.jit(lambda a, c: _own(example.fun, a, c), compiler_options=options)(args, cts))
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wide = [None if x is None else x.astype("complex128" if np.iscomplexobj(x) else "float64") for x in (*args, *cts)]
        return Reference.of(example, wide[: len(args)], wide[len(args) :]).judge(own, RELATIVE[dtype])


def _own(fun: Callable[..., Any], args: Sequence[Any], cts: Sequence[Any]) -> tuple[Any, ...]:
    """Return the cotangents by the rule table, zeros where none flows."""
    closed, _ = jaxapi.trace(lambda *a: tuple(jax.tree.leaves(fun(*a))), *args)
    grads = pullback(closed, args, cts)
    return tuple(jnp.zeros_like(x) if g is None else g for g, x in zip(grads, args, strict=True))


def _row(line: Line) -> str:
    """Return a line of the table."""
    notes = "  " + "; ".join(line.notes) if line.notes else ""
    return f"{line.primitive:<30} {line.family:<18} {line.examples:>8} {line.worst:>9.1e}  {line.verdict}{notes}"
