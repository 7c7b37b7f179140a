"""Draw the picture of the home page: ``python docs/pictures/home.py`` (with Graphviz's ``dot``)."""

from __future__ import annotations

import re
from pathlib import Path

import tape
import tape.numpy as tnp

x = tape.Variable([0.5, -1.0, 2.0], name="x")
with tape.Tape() as t:
    y = tnp.tanh(x).sum()
    slope = tape.gradients(y, x, create_graph=True)
    penalty = (slope**2).sum()
    tape.gradients(penalty, x)
text = re.sub(r'title="[^"]*/docs/', 'title="docs/', t.draw().svg())  # lines of the repository, wherever it is
Path(__file__).with_suffix(".svg").write_text(text, encoding="utf-8")
