"""What the experiments of this folder share: their command line, a bar of progress, and the file of their picture."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib as mpl
from matplotlib import pyplot as plt
from rich.console import Console
from rich.progress import track

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Item = TypeVar("Item")


def options(doc: str | None, arguments: Sequence[str] | None, picture: str) -> argparse.Namespace:
    """Read the command line of an experiment: ``--quick``, ``--seed`` and ``--output``; the first line of ``doc`` describes it."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of whatever is drawn at random (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(picture), help="where to save the picture (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that everything works")
    return parser.parse_args(arguments)


def progress(items: Sequence[Item], description: str) -> Iterator[Item]:
    """Yield the items beside a bar with the time that is left; without a terminal nothing is shown."""
    console = Console(stderr=True)
    yield from track(items, description, console=console, disable=not console.is_terminal, transient=True)


@contextlib.contextmanager
def picture(output: Path, columns: int, title: str) -> Iterator[Any]:
    """Give axes beside each other to draw on, and save them."""
    mpl.use("Agg")
    figure, axes = plt.subplots(1, columns, figsize=(5.2 * columns, 4.4), layout="constrained", squeeze=False)
    figure.suptitle(title)
    try:
        yield axes[0]
        for each in axes[0]:
            if each.get_legend_handles_labels()[0]:
                each.legend()
            each.grid(alpha=0.3)
        figure.savefig(output, dpi=120)
        print(f"picture in {output}")
    finally:
        plt.close(figure)
