"""Write docs/benchmarks.md from a run: ``python -m benchmarks --json run.json NAMES ... && python docs/benchmark_page.py run.json NAMES ...``."""

from __future__ import annotations

import datetime as dt
import json
import statistics
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "benchmarks.md"
REFERENCES = ("jax.jit", "jax.grad")  # the first that a class has: steps that never come back are not compiled by hand
HEAD = """# Benchmarks

`python -m benchmarks` runs each workload from one source on the tape, on `jax.jit`, on un-jitted `jax.grad` and, where they are installed, on
PyTorch, HIPS autograd and MyGrad. Gradients are compared before anything is timed; systems then take turns, batch by batch, in one run, and a
ratio is the median over the rounds, so that a machine whose speed drifts does not change it. Times are of a step that has been seen before:
what first steps cost is measured by `python -m benchmarks first_steps`.

`tape` is define-by-run: plain Python, `.backward()`. `tape.jit` is the same step inside `tape.jit`; `tape, look first` looks at the loss before
the sweep; `jax.jit` is hand-written `jax.jit(jax.value_and_grad(f))`, `jax.grad` the same without `jit`.

Read the ratios, not the times, and read them on your own machine: [how to run and extend them](../CONTRIBUTING.md#benchmarks).

This page is written by

```sh
{command}
```
"""


def ratio(rounds: list[float], reference: list[float]) -> str:
    """Return the median of the ratios of batches that ran side by side, in two digits that count."""
    return f"{statistics.median(a / b for a, b in zip(rounds, reference, strict=False)):.3g}"


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines of a class: how long a step of each system takes, in steps of the reference."""
    names = list(dict.fromkeys(name for times in found.values() for name in times))
    by = next(name for name in REFERENCES if name in names)
    names.remove(by)
    lines = [f"How many times as long as that of {by} a step of each system takes.", ""]
    lines += [f"| workload | {by}, us a step | {' | '.join(names)} |", "| --- |" + " ---: |" * (len(names) + 1)]
    for workload, times in found.items():
        if by in times:
            cells = [ratio(times[s]["rounds"], times[by]["rounds"]) if s in times else "" for s in names]
            lines.append(f"| {workload} | {times[by]['median']:.0f} | {' | '.join(cells)} |")
    return lines


def page(run: dict[str, Any], day: str, command: str) -> str:
    """Return the page."""
    machine = run["machine"]
    parts = [
        HEAD.format(command=command),
        f"Run of {day}; Python {machine['python']}, {', '.join(machine['packages'])}; {machine['processors']} cores, {machine['device']}.",
        "",
    ]
    for kind, found in run["comparisons"].items():
        parts += [f"## {kind}", "", *table(found), ""]
    if run["failures"]:
        parts += ["## Failures", "", *[f"- {line}" for line in run["failures"]], ""]
    return "\n".join(parts)


if __name__ == "__main__":
    path, names = sys.argv[1], " ".join(f'"{n}"' if " " in n else n for n in sys.argv[2:])
    command = f"python -m benchmarks --json run.json {names} && python docs/benchmark_page.py run.json {names}"
    day = dt.datetime.fromtimestamp(Path(path).stat().st_mtime, dt.UTC).strftime("%Y-%m-%d")
    PAGE.write_text(page(json.loads(Path(path).read_text(encoding="utf-8")), day, command), encoding="utf-8")
