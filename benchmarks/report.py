"""The report: tables for the terminal, scores against targets, and JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import platform
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

import jax

from benchmarks.comparison import Comparison
from benchmarks.peers import systems
from benchmarks.systems import found
from benchmarks.timing import geometric_mean, ratio

__all__ = ["Report", "Score", "ratios", "table"]

PACKAGES = ("jax", "jaxlib", "numpy", "optax", "torch", "mlx", "autograd", "mygrad")


@dataclass(frozen=True)
class Score:
    """One target, and what was measured.

    Attributes:
        what: the quantity.
        values: the measured values, by workload.
        limit: the target of their geometric mean.
        worst_limit: the target of the worst one, or None.
        at_least: whether greater is better.

    """

    what: str
    values: dict[str, float]
    limit: float
    worst_limit: float | None = None
    at_least: bool = False

    @property
    def mean(self) -> float:
        """The geometric mean of the values."""
        return geometric_mean(list(self.values.values()))

    @property
    def worst(self) -> tuple[str, float]:
        """The workload that does worst, and its value."""
        return (min if self.at_least else max)(self.values.items(), key=lambda item: item[1])

    @property
    def reached(self) -> bool:
        """Tell whether the targets are reached."""
        mean, worst, sign = self.mean, self.worst[1], -1 if self.at_least else 1
        return sign * mean <= sign * self.limit and (self.worst_limit is None or sign * worst <= sign * self.worst_limit)

    def row(self) -> list[str]:
        """Return what a table shows."""
        sign, (name, worst) = ">=" if self.at_least else "<=", self.worst
        target = f"{sign} {self.limit:g}" + ("" if self.worst_limit is None else f", worst {self.worst_limit:g}")
        return [self.what, f"{self.mean:.3g}", f"{worst:.3g}", name, target, "reached" if self.reached else "MISSED"]


def ratios(comparisons: list[Comparison], of: str, to: str, only: frozenset[str] | None = None) -> dict[str, float]:
    """Return by workload how many times as long the steps of system ``of`` last as those of ``to``."""
    return {
        c.name: ratio(c.times[of], c.times[to]).median
        for c in comparisons
        if of in c.times and to in c.times and (only is None or c.name in only)
    }


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table; the first column is text."""
    print(f"\n{title}")
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    for row in (columns, *rows):
        print("  " + "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))), flush=True)


@dataclass
class Report:
    """What a run found.

    Attributes:
        comparisons: times of workloads, by class.
        scores: measured values against targets, by class.
        figures: other figures, by class: rows of tables.
        failures: what went wrong, one line each.

    """

    comparisons: dict[str, list[Comparison]] = field(default_factory=dict)
    scores: dict[str, list[Score]] = field(default_factory=dict)
    figures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def compared(self, kind: str, found: Comparison) -> None:
        """Enter and print the comparison of one workload."""
        self.comparisons.setdefault(kind, []).append(found)
        reference, ours = next(iter(found.times), None), found.times.get("tape")
        rows = []
        for name, times in found.times.items():
            s = times.spread
            against = ratio(times, found.times[reference]) if reference else s
            faster = f"{ratio(times, ours).median:.2f}" if ours else "-"
            rows.append(
                [
                    name,
                    f"{s.median:.1f}",
                    f"{s.low:.1f}..{s.high:.1f}",
                    f"{against.median:.2f}",
                    f"{against.low:.2f}..{against.high:.2f}",
                    faster,
                ]
            )
        table(f"{kind}: {found.name}", ["", "us/step", "quartiles", f"/ {reference}", "quartiles", "/ tape"], rows)
        for name, reason in found.failures.items():
            self.failed(f"{kind}: {found.name}: {name}: {reason}")

    def tabled(self, kind: str, title: str, rows: list[dict[str, Any]]) -> None:
        """Enter and print figures; all rows have the same keys."""
        self.figures.setdefault(kind, []).extend({"table": title, **row} for row in rows)
        if rows:
            table(f"{kind}: {title}", list(rows[0]), [[_shown(x) for x in row.values()] for row in rows])

    def scored(self, kind: str, *scores: Score) -> None:
        """Enter scores that have values."""
        self.scores.setdefault(kind, []).extend(s for s in scores if s.values)

    def failed(self, line: str) -> None:
        """Enter and print what went wrong."""
        self.failures.append(line)
        print(f"  FAILED {line}", flush=True)

    def summarize(self) -> None:
        """Print the scores of all classes."""
        rows = [[f"{kind}: {row[0]}", *row[1:]] for kind, scores in self.scores.items() for row in (s.row() for s in scores)]
        if rows:
            table("Summary", ["", "mean", "worst", "at", "target", ""], rows)
        for line in self.failures:
            print(f"  FAILED {line}")

    def write(self, path: str) -> None:
        """Write everything as JSON."""
        content = {
            "machine": machine(),
            "comparisons": {
                kind: {c.name: {name: asdict(t.spread) | {"rounds": t.rounds} for name, t in c.times.items()} for c in found}
                for kind, found in self.comparisons.items()
            },
            "scores": {
                kind: [asdict(s) | {"mean": s.mean, "worst": s.worst, "reached": s.reached} for s in found]
                for kind, found in self.scores.items()
            },
            "figures": self.figures,
            "failures": self.failures,
        }
        pathlib.Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "python": sys.version.split()[0],
        "packages": [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if found(name)],
        "processors": os.cpu_count(),
        "device": str(jax.devices()[0].device_kind),
        "platform": platform.platform(),
        "systems": list(systems()),
    }


def _shown(x: Any) -> str:
    return f"{x:.4g}" if isinstance(x, float) else str(x)
