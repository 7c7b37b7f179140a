"""Draw the pictures of the guides: ``python docs/guides/pictures/draw.py`` (needs ``dot`` of Graphviz)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import tape
import tape.numpy as tnp


def slopes() -> tape.Tape:
    """A layer, its loss and the sweep: the tape that ``how_it_works.md`` reads line by line."""
    x = tape.constant(np.linspace(-1, 1, 8, dtype="float32").reshape(4, 2), name="x")
    w = tape.Variable(np.full((2, 3), 0.5, "float32"), name="w")
    with tape.Tape() as t:
        h = tnp.tanh(x @ w)
        loss = (h * h).mean()
        loss.backward()
    return t


def penalty() -> tape.Tape:
    """A gradient penalty: two sweeps, of which the second goes through the first."""
    x = tape.Variable(np.linspace(-1, 1, 8, dtype="float32").reshape(4, 2), name="x")
    w = tape.Variable(np.full(2, 0.5, "float32"), name="w")
    with tape.Tape() as t:
        y = tnp.tanh(x @ w).sum()
        slope = tape.gradients(y, x, create_graph=True)
        (slope * slope).sum().backward(inputs=[w])
    return t


PICTURES = {"slopes": slopes, "penalty": penalty}

if __name__ == "__main__":
    for name, recorded in PICTURES.items():
        text = re.sub(r'title="[^"]*/docs/', 'title="docs/', recorded().draw().svg())  # lines of the repository, wherever it is
        (Path(__file__).parent / f"{name}.svg").write_text(text, encoding="utf-8")
