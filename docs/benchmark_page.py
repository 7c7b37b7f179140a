"""Write from a run what the documentation shows of it: the page of benchmarks, the table in the guide to performance, the README's picture.

python -m benchmarks --json run.json NAMES ... && python docs/benchmark_page.py run.json NAMES ...
"""

from __future__ import annotations

import datetime as dt
import json
import statistics
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from benchmarks.comparison import Comparison  # noqa: E402 - of the tree that this file is in
from benchmarks.picture import draw  # noqa: E402 - as above
from benchmarks.report import Report  # noqa: E402 - as above
from benchmarks.timing import Times, quantile  # noqa: E402 - as above

PAGE, GUIDE, PICTURE = DOCS / "benchmarks.md", DOCS / "guides" / "performance.md", DOCS / "pictures" / "speed.svg"
SHOWN = "tanh MLP 5x16x16"  # in the guide
DRAWN = (SHOWN, "Adam step", "gradient penalty", "Hessian-vector product")
SPELT = {  # systems in the guide
    "jax.jit": "`jax.jit(jax.value_and_grad(f))` by hand",
    "tape.jit": "`tape.jit`",
    "tape": "tape, plain Python",
    "tape, look first": "tape, the loss looked at before its sweep",
    "jax.grad": "un-jitted `jax.grad`",
}
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
    """Return the median of the ratios of batches that ran side by side, in three digits, large ones as whole numbers."""
    median = statistics.median(a / b for a, b in zip(rounds, reference, strict=False))
    return f"{median:.3g}" if median < 1000 else f"{float(f'{median:.3g}'):.0f}"


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


def figures(run: dict[str, Any], command: str) -> str:
    """Return the section of the guide: one workload, with quartiles."""
    times, machine = run["comparisons"]["dispatch"][SHOWN], run["machine"]
    lines = [f"| {SHOWN.replace(' 5x16x16', ', 5 layers of 16 x 16')}, a step | us | times `jax.jit` (quartiles) |", "| --- | --- | --- |"]
    for name in sorted(times, key=lambda name: times[name]["median"]):
        ratios = [a / b for a, b in zip(times[name]["rounds"], times["jax.jit"]["rounds"], strict=False)]
        low, middle, high = (f"{r:.0f}" if r >= 100 else f"{r:.2g}" for r in (quantile(ratios, q) for q in (0.25, 0.5, 0.75)))
        said = "1" if name == "jax.jit" else f"{middle} ({low} to {high})"
        lines.append(f"| {SPELT.get(name, name)} | {times[name]['median']:.0f} | {said} |")
    where = f"{machine['processors']} cores, {machine['device']}; Python {machine['python']}, {', '.join(machine['packages'])}"
    return "\n".join([*lines, "", f"Medians of a run of `{command}` ({where}). The quartiles say how quiet the machine was."])


def picture(run: dict[str, Any]) -> None:
    """Draw some workloads of the run for the README."""
    found = run["comparisons"]["dispatch"]
    report = Report()
    report.comparisons["dispatch"] = [
        Comparison(name, {system: Times(tuple(times["rounds"])) for system, times in found[name].items()}) for name in DRAWN
    ]
    draw(report, str(PICTURE))


if __name__ == "__main__":
    path, names = sys.argv[1], " ".join(f'"{n}"' if " " in n else n for n in sys.argv[2:])
    measuring = f"python -m benchmarks --json run.json {names}"
    day = dt.datetime.fromtimestamp(Path(path).stat().st_mtime, dt.UTC).strftime("%Y-%m-%d")
    run = json.loads(Path(path).read_text(encoding="utf-8"))
    PAGE.write_text(page(run, day, f"{measuring}\npython docs/benchmark_page.py run.json {names}"), encoding="utf-8")
    before, rest = GUIDE.read_text(encoding="utf-8").split("<!-- figures -->\n")[::2]
    GUIDE.write_text(f"{before}<!-- figures -->\n{figures(run, measuring)}\n<!-- figures -->\n{rest}", encoding="utf-8")
    picture(run)
