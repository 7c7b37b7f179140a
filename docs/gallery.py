"""Run examples whole, and keep the picture and the lines that each makes in docs/pictures, for its page of the gallery.

python docs/gallery.py            # all of them (some twenty minutes on two cores)
python docs/gallery.py ode maml   # some of them
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
PICTURES = DOCS / "pictures"
SHARED = {"experiment"}  # what examples import
WIDTH = 1000  # pixels of a picture, at most
COLOURS = 256  # which makes it a third as large


def names() -> list[str]:
    """Return the names of the examples."""
    return sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem not in SHARED)


def shrink(picture: Path, to: Path) -> None:
    """Keep a picture in few colours, no wider than a page."""
    from PIL import Image  # noqa: PLC0415 - matplotlib brings it; a build does not need it

    image = Image.open(picture).convert("RGB")
    image.thumbnail((WIDTH, 4 * WIDTH))
    image.quantize(COLOURS).save(to, optimize=True)


def run(name: str) -> None:
    """Run an example whole, and keep its picture and what it prints."""
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / f"{name}.png"
        command = [sys.executable, str(EXAMPLES / f"{name}.py")]
        if ".png" in source:
            command += ["--output", str(picture)]
        environment = {**os.environ, "PYTHONPATH": str(DOCS.parent), "MPLBACKEND": "Agg", "COLUMNS": "110"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=folder)  # noqa: S603 - our own
        here = [folder + os.sep, str(EXAMPLES) + os.sep]  # what only this machine has
        lines = [re.sub("|".join(map(re.escape, here)), "", line).rstrip() for line in done.stdout.splitlines()]
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / f"{name}.txt").write_text("\n".join(lines).strip("\n") + "\n", encoding="utf-8")
        if picture.exists():
            shrink(picture, PICTURES / f"{name}.png")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or names():
        run(chosen)
        print(chosen, flush=True)
