"""The picture: how many times as long as JAX's (hand-jitted; un-jitted where structures vary) each system's steps last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.peers import SYSTEMS
from benchmarks.systems import Jitted, Unjitted
from benchmarks.timing import ratio

if TYPE_CHECKING:
    from benchmarks.report import Report

__all__ = ["draw"]

MARKS = "os^vDP*Xdph<>"  # one for each system


def draw(report: Report, path: str) -> None:
    """Draw one panel per class: workloads below one another, a mark with quartiles per system.

    Args:
        report: what a run found.
        path: where the picture goes; the ending tells the format.

    """
    import matplotlib as mpl  # noqa: PLC0415 - optional

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "benchmarks"})  # a small file, and the same one for the same figures
    from matplotlib import pyplot as plt  # noqa: PLC0415 - optional

    references = {kind: Unjitted.name if kind == "dynamic" else Jitted.name for kind in report.comparisons}
    kinds = [(kind, [c for c in found if references[kind] in c.times]) for kind, found in report.comparisons.items()]
    kinds = [(kind, found) for kind, found in kinds if found]
    if not kinds:
        return
    heights = [len(found) for _, found in kinds]
    figure, panels = plt.subplots(
        len(kinds), 1, figsize=(9, 1.5 + 0.42 * sum(heights)), squeeze=False, gridspec_kw={"height_ratios": heights}, layout="constrained"
    )
    for panel, (kind, found) in zip(panels[:, 0], kinds, strict=True):
        for i, name in enumerate(s.name for s in SYSTEMS):
            marks = [(row, ratio(c.times[name], c.times[references[kind]])) for row, c in enumerate(found) if name in c.times]
            if not marks:
                continue
            rows, middles = [row for row, _ in marks], [s.median for _, s in marks]
            bars = [[max(s.median - s.low, 0.0) for _, s in marks], [max(s.high - s.median, 0.0) for _, s in marks]]
            panel.errorbar(middles, rows, xerr=bars, fmt=MARKS[i], color=f"C{i}", markersize=6, label=name, linestyle="none")
        panel.set_xscale("log")
        panel.axvline(1.0, color="0.8", zorder=0)
        panel.set_yticks(range(len(found)), [c.name for c in found])
        panel.set_ylim(len(found) - 0.5, -0.5)
        panel.set_title(f"{kind}: time of a step / {references[kind]}", loc="left", fontsize=10)
        panel.grid(axis="x", color="0.92")
    handles = {label: h for p in panels[:, 0] for h, label in zip(*p.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.endswith(".svg") else None)
    plt.close(figure)
