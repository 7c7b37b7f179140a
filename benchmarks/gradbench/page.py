"""The results as a table, and as a page."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.gradbench.notes import NOTES

if TYPE_CHECKING:
    from benchmarks.gradbench.runner import Results

__all__ = ["document", "table"]

NAMES = {"tape": "tape", "jax": "JAX", "torch": "PyTorch", "autograd": "HIPS autograd"}
PACKAGES = ("jax", "jaxlib", "numpy", "torch", "autograd")


def duration(seconds: float | None) -> str:
    """Return seconds with a unit, to three digits."""
    if seconds is None:
        return ""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= 0.9995 * scale:  # which is rounded to it
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def ratio(r: float) -> str:
    """Return a ratio in two digits, large ones as whole numbers."""
    return f"{r:.2g}" if r < 100 else f"{float(f'{r:.2g}'):.0f}"


def times_as_long(found: Mapping[str, float | None], peer: str) -> float | None:
    """Return how many times as long the tape takes as a peer; None where one of them has no time."""
    ours, theirs = found.get("tape"), found.get(peer)
    return ours / theirs if ours and theirs else None


def rows_of(found: Results, tools: Sequence[str]) -> list[list[str]]:
    """Return a row for each function on each input: names, steady times, ratios, first times."""
    rows = []
    for (module, description, function), row in found.items():
        steady = {tool: r.steady for tool, r in row.items()}
        ratios = [times_as_long(steady, peer) for peer in tools if peer != "tape"]
        rows.append(
            [
                f"{module} {function}",
                description,
                *(duration(steady[tool]) for tool in tools),
                *("" if r is None else ratio(r) for r in ratios),
                *(duration(row[tool].first) for tool in tools),
            ]
        )
    return rows


def columns_of(tools: Sequence[str]) -> list[str]:
    """Return the names of the columns of :func:`rows_of`."""
    peers = [NAMES[t] for t in tools if t != "tape"]
    return ["function", "input", *(NAMES[t] for t in tools), *(f"tape / {p}" for p in peers), *(f"first: {NAMES[t]}" for t in tools)]


def table(found: Results, tools: Sequence[str]) -> str:
    """Return the results as a table of Markdown."""
    columns = columns_of(tools)
    lines = [columns, ["---"] * len(columns), *rows_of(found, tools)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Return in words what ran it."""
    versions = [f"{p} {importlib.metadata.version(p)}" for p in PACKAGES if importlib.util.find_spec(p)]
    return f"{os.cpu_count()} cores, CPU, {platform.system()}; Python {platform.python_version()}, {', '.join(versions)}"


def summary(found: Results, tools: Sequence[str]) -> list[str]:
    """Return for each peer the geometric mean of the ratios, and where the tape is slower."""
    lines = []
    for peer in tools:
        if peer == "tape":
            continue
        ratios = {
            f"{key[0]} {key[2]} ({key[1]})": r
            for key, row in found.items()
            if (r := times_as_long({t: x.steady for t, x in row.items()}, peer)) is not None
        }
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            slower = sum(r > 1 for r in ratios.values())
            worst = max(ratios, key=lambda name: ratios[name])
            lines.append(
                f"- {NAMES[peer]}: the tape takes {ratio(mean)} times as long (geometric mean of {len(ratios)}); it is slower in {slower}, most in {worst}:"
                f" {ratio(ratios[worst])} times."
            )
    return lines


def document(found: Results, tools: Sequence[str], path: str, rounds: int, arguments: Sequence[str]) -> None:
    """Write the page of results.

    Args:
        found: the results.
        tools: whose they are.
        path: where the page goes.
        rounds: how many turns each tool had.
        arguments: those of the command, but for the page's place.

    """
    problems = [
        f"| {key[0]} {key[2]} | {key[1]} | {NAMES[tool]} | {r.problem} |"
        for key, row in found.items()
        for tool, r in row.items()
        if r.problem
    ]
    lines = [
        _HEAD.format(machine=machine(), rounds=rounds, arguments="".join(f" {a}" for a in arguments)),
        *summary(found, tools),
        "",
        table(found, tools),
        "",
    ]
    if problems:
        lines += ["## What is not there", "", "| function | input | tool | why |", "| --- | --- | --- | --- |", *problems, ""]
    pathlib.Path(path).write_text("\n".join([*lines, NOTES]), encoding="utf-8")


_HEAD = """# GradBench

Written by `python -m benchmarks gradbench{arguments} --docs docs/gradbench.md`, on {machine}.

[GradBench](https://github.com/gradbench/gradbench) is a public benchmark of automatic differentiation: evals send inputs to tools, which
answer with values and derivatives. Its twelve evals stand in `benchmarks/gradbench/on_tape` as a user of the tape would write them: plain
Python loops on Variables, without `jit` and without `scan`; beside them the same in hand-written JAX (a `jax.jit` around each function,
`scan`, `vmap`, `while_loop`), in eager PyTorch and in HIPS autograd.

**Method.** Each tool is a process that speaks GradBench's protocol. The first evaluation of a function on inputs of a size is timed: it
includes tracing and compiling. Then all tools warm up: the tape, which compiles in the background, until nothing of five evaluations is interpreted. Then they take turns for {rounds} rounds, in a random order; a figure is the median
of all evaluations in them, waited for, without the conversion from and to JSON. Every answer is compared with an oracle in double precision
(NumPy alone: closed forms and complex steps), with GradBench's tolerance of 1e-4. Where one evaluation takes over two seconds, it is timed
twice at most. All is in double precision, and each tool is held to one core, as GradBench's own tools are. Absolute times depend on what else the machine does; ratios are of turns side by side. With `--clock cpu`, times are seconds that the tool's
process computed, which other work on the machine changes less; what the tape compiles in the background counts then too.
"""
