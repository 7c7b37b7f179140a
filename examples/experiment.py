"""What the examples of this folder share: their command line, a bar of progress, and the file of their picture."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from tape.terminal.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["options", "picture", "progress"]


def options(doc: str | None, arguments: Sequence[str] | None, picture: str, **numbers: tuple[float, str]) -> argparse.Namespace:
    """Read the command line of an example: ``--quick``, ``--seed``, ``--output`` and ``numbers`` of its own, each with what it says.

    The first line of ``doc`` describes it.
    """
    mpl.use("Agg")  # nothing is shown on a screen
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    for name, (default, says) in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{says} (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of whatever is drawn at random (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(picture), help="where to save the picture (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that everything works")
    return parser.parse_args(arguments)


@contextlib.contextmanager
def picture(output: Path, columns: int, title: str) -> Iterator[Any]:
    """Give axes beside each other to draw on, and save them."""
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
