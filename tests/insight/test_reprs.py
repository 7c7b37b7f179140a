"""What notebooks show of Variables, tapes, explanations and counters: the HTML alone, and what nbconvert makes of it."""

import html.parser
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.testing import check_gradients

ROOT = pathlib.Path(__file__).parents[2]
VOID = {"meta", "br", "img", "input", "line", "path", "rect", "circle", "polygon", "link", "hr"}


class Checked(html.parser.HTMLParser):
    """Every element that opens is closed, in order; texts are gathered."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.styles = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.styles.append((tag, dict(attrs).get("style") or ""))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.text.append(data)


def shown():
    """What there is to show, with words of each."""
    x = tape.Variable(np.array([[0.5, 1.0], [2.0, 4.0]], np.float32), name="a < b & c")
    with tape.Tape() as t:
        loss = tnp.tanh(x * x).sum()
        loss.backward()
    h = tape.Variable([0.0, 4.0], name="h")
    z = tnp.where(h > 0, tnp.sqrt(h), 0.0).sum()
    float(z)
    return {
        "Variable": (x, ["Variable([[0.5, 1. ]", "requires_grad=True", "a < b & c"]),
        "Tape": (t, ["vjp_tanh", "sweep 1", "requires grad", "a < b & c"]),
        "explain": (tape.explain(z, h), ["is NaN", "infinity times zero", "repair: mask the input as well"]),
        "stats": (tape.stats(), ["What ran what was pending", "look", "backward"]),
    }


@pytest.mark.parametrize("kind", ["Variable", "Tape", "explain", "stats"])
@pytest.mark.parametrize("columns", ["80", "140"])
def test_the_html_is_whole_escaped_and_in_columns(kind, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    tape.stats().reset()
    value, words = shown()[kind]
    page = Checked()
    page.feed(value._repr_html_() if hasattr(value, "_repr_html_") else value._repr_mimebundle_()["text/html"])
    page.close()
    assert page.open == []
    text = "".join(page.text)
    for word in words:
        assert word in text
    assert "\x1b" not in text
    assert all("monospace" in style for tag, style in page.styles if tag == "pre")  # pages style what is inside of HTML otherwise
    assert any(tag == "pre" for tag, _ in page.styles)


def test_a_cell_is_called_by_its_number(monkeypatch):
    class Compile:
        def format_code_name(self, name):
            return ("Cell", "In[7]") if name.endswith("42.py") else None

    class Shell:
        compile = Compile()

    class IPython:
        get_ipython = staticmethod(lambda: Shell)

    monkeypatch.setitem(sys.modules, "IPython", IPython)
    tape.stats().reset()
    scope = {"x": tape.Variable([1.0, 2.0], name="x"), "tape": tape}
    exec(compile("with tape.Tape() as t:\n    y = (x * x).sum()\nfloat(y)", "ipykernel_1/42.py", "exec"), scope)  # noqa: S102 - as IPython names a cell, wherever it keeps them
    assert "In[7]:2" in str(scope["t"])
    assert "In[7]:3" in str(tape.stats())
    assert "In[7]:2" in str(tape.explain(scope["y"], scope["x"]))


CELLS = [
    "import tape, tape.numpy as tnp\nx = tape.Variable([0.0, 4.0], name='x')\nx",
    "with tape.Tape() as t:\n    y = tnp.where(x > 0, tnp.sqrt(x), 0.0).sum()\nt",
    "tape.explain(y, x)",
    "float(y)\ntape.stats()",
]


def test_a_notebook_is_executed_and_shows_them(tmp_path):
    pytest.importorskip("nbconvert", reason="needs nbconvert")
    pytest.importorskip("ipykernel", reason="needs a kernel")
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "execution_count": None, "outputs": [], "source": s}
        for i, s in enumerate(CELLS)
    ]
    spec = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells, "metadata": spec, "nbformat": 4, "nbformat_minor": 5}))
    words = [sys.executable, "-m", "nbconvert", "--execute", "--to", "html", "a.ipynb"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(words, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=300)  # noqa: S603 - this test's own words
    page = Checked()
    page.feed((tmp_path / "a.html").read_text())
    text = "".join(page.text)
    for word in ("Variable([0., 4.]", "In[2]:2", "the gradient", "infinity times zero", "What ran what was pending", "In[4]:1"):
        assert word.lower() in text.lower(), word


def test_one_line_of_79_columns_says_what_it_is():
    x = tape.Variable(np.ones((3, 4), np.float32), name="x")
    with tape.Tape() as t:
        tnp.tanh(x @ np.ones((4, 5), np.float32)).sum().backward()
    assert repr(t) == "<Tape: 7 entries, 2 leaves; 1 matmul, 1 tanh, 1 sum>"
    report = check_gradients(
        lambda parameters: sum(v.sum() for v in parameters.values()), {f"weights of layer {i}": x for i in range(9)}, order=1
    )
    assert len(repr(report)) == 79
    assert repr(report).startswith("<Report on <lambda>: pass; parameters['weights of layer 0'] pass, ")
    assert repr(report).endswith("…>")
    assert repr(check_gradients(tnp.tanh, x.value)) == "<Report on tanh: pass; x pass>"
