"""Pictures of a tape: what is in them, in every language, and that a browser draws them."""

import json
import pathlib
import re
import shutil
import subprocess

import jax
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp

A = np.array([1.0, -2.0, 0.5], np.float32)
CHROMIUM = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--window-size=1200,800",
    "--virtual-time-budget=30000",
]


class Layer:
    def __init__(self):
        self.w = tape.Variable(A, name="w")

    def __call__(self, h):
        return tnp.tanh(h * self.w)


def loss_of(y):
    d = y - 1.0
    return (d * d).sum()


def double():
    layer = Layer()
    with tape.Tape() as t:
        loss = loss_of(layer(tape.constant(A)))
        g = tape.gradients(loss, layer.w, create_graph=True)
        tape.gradients((g * g).sum(), layer.w, retain_graph=True)
    return t, loss


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def entries_in(items):
    return [n for i in items for n in ([i] if isinstance(i, int) else entries_in(i["items"]))]


def labels_in(items):
    return [label for i in items if not isinstance(i, int) for label in (i["label"], *labels_in(i["items"]))]


def test_the_repr_counts():
    x = tape.Variable(A)
    assert "with 1 entry in 1 lane:" in repr(tape.draw(x * 2))
    with tape.Tape() as t:
        (x * x).sum().backward()
    assert "with 5 entries in 2 lanes:" in repr(t.draw()), t


def test_forward_and_sweeps_are_lanes():
    t, _ = double()
    data = data_of(t.draw().html())
    assert [lane["label"] for lane in data["lanes"]] == ["forward", "sweep 1", "sweep 2"]
    assert sorted(n for lane in data["lanes"] for n in entries_in(lane["items"])) == list(range(len(t)))
    for n, e in enumerate(data["entries"]):
        assert all(m < n for m in e["reads"])
        assert e["op"] == t[n].op
    assert "d * d" in data["entries"][3]["source"]


@pytest.mark.parametrize(
    ("group", "labels"), [("function", {"Layer.__call__", "loss_of"}), ("class", {"Layer"}), ("module", {"test_drawing"}), (None, set())]
)
def test_entries_are_grouped_by_where_they_come_from(group, labels):
    layer = Layer()
    with tape.Tape() as t:  # lines of this time, whoever recorded the same before
        loss_of(layer(tape.constant(A)))
    data = data_of(t.draw(group=group, fold=False).html())
    found = set(labels_in(data["lanes"][0]["items"]))
    assert found == labels or (group == "module" and found <= labels)


def test_named_scopes_group_as_well():
    def f(x):
        with jax.named_scope("block"):
            return jax.numpy.sin(x) * jax.numpy.cos(x)

    y = interop.lift(f, inline=True)(tape.Variable(A))
    assert "block" in labels_in(data_of(tape.draw([y, y + 1]).html())["lanes"][0]["items"])


def test_loops_are_folded_with_every_iteration_inside():
    w = tape.Variable(np.full((2, 7), 0.5, np.float32))  # of a shape of its own: Tape.of shows the lines that recorded it first
    h = w
    for _ in range(50):
        h = tnp.tanh(h * w)
    picture = tape.draw(h.sum())
    data = data_of(picture.html())
    assert sorted(entries_in(data["lanes"][0]["items"])) == list(range(101))
    assert any(label.startswith("50 x ") for label in labels_in(data["lanes"][0]["items"]))
    assert len(picture.dot().splitlines()) < 30
    assert len(picture.mermaid().splitlines()) < 30
    assert len(tape.draw(h.sum(), fold=False, group=None).dot().splitlines()) > 20


def test_dot_and_mermaid_hold_what_is_shown():
    x = tape.Variable(A, name='odd "name" #1')
    y = tnp.sin(x) * x
    dot, mermaid = tape.draw(y).dot(), tape.draw(y).mermaid()
    assert "n0 -> n1" in dot
    assert r"sin(odd \"name\" #1)" in dot
    assert "n0 --> n1" in mermaid
    assert "&quot;name&quot; &num;1" in mermaid
    assert dot.count("{") == dot.count("}")
    assert mermaid.count("subgraph") == mermaid.count("end\n")


def test_gradient_flow_is_the_norm_of_what_arrives():
    t, loss = double()
    data = data_of(t.draw(flow=loss).html())
    flows = {n: e["flow"] for n, e in enumerate(data["entries"]) if "flow" in e}
    y = next(e for e in t if e.op == "subtract")
    d = np.tanh(A * A) - 1
    assert np.isclose(flows[y.number], np.linalg.norm(2 * d), rtol=1e-5)
    assert np.isclose(flows[len([e for e in t if e.sweep is None and e.number < 5]) - 1], 1.0)
    assert "penwidth" in t.draw(flow=loss).dot()
    x = tape.Variable(A)
    y = (x * x).sum()
    assert "flow" in data_of(tape.draw(y, flow=True).html())["entries"][1]
    y.backward()  # nothing was released by looking
    assert np.allclose(x.grad.value, 2 * A)
    with pytest.raises(tape.errors.ReleasedTapeError):
        tape.draw(y, flow=True)


def test_files_by_their_endings(tmp_path):
    y = tnp.sin(tape.Variable(A))
    for name, begins in {"a.html": "<!DOCTYPE html>", "a.dot": "digraph", "a.gv": "digraph", "a.mmd": "flowchart"}.items():
        tape.draw(y, tmp_path / name)
        assert (tmp_path / name).read_text().startswith(begins)
    with pytest.raises(tape.errors.TapeValueError, match="ending"):
        tape.draw(y, tmp_path / "a.png")
    with pytest.raises(tape.errors.TapeTypeError):
        tape.draw(y, 3)
    with pytest.raises(tape.errors.TapeValueError, match="group"):
        tape.draw(y, group="line")
    with pytest.raises(tape.errors.TapeTypeError):
        tape.draw(y, fold=1)


def test_svg_is_drawn_by_graphviz(monkeypatch):
    t, loss = double()
    if shutil.which("dot"):
        svg = t.draw(flow=loss).svg()
        assert "<svg" in svg
        assert "sweep 2" in svg
    monkeypatch.setenv("PATH", "")
    with pytest.raises(tape.errors.TapeImportError, match="Graphviz"):
        t.draw().svg()


def test_the_page_needs_nothing_else_and_its_licence_goes_along():
    page = tape.draw(tnp.sin(tape.Variable(A, name="</script><b>"))).html()
    assert "Permission is hereby granted, free of charge" in page
    assert not re.search(r'(src|href)="http', page)
    assert page.count("</script>") == 3
    assert "<b>" not in page.split("<script", 1)[1].split("</script>")[0]


def test_notebooks_show_tables_and_pictures():
    t, _ = double()
    shown = t._repr_mimebundle_()
    assert shown["text/plain"] == t.text(width=100, color=False)
    assert "<span style" in shown["text/html"]
    assert "multiply" in shown["text/html"]
    assert t.draw()._repr_html_().startswith("<iframe")
    assert "<pre" in tape.Variable(A, name="<w>")._repr_html_()
    assert "&lt;w&gt;" in tape.Variable(A, name="<w>")._repr_html_()


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    def go(page, fragment="", dark=False):
        folder = tmp_path_factory.mktemp("page")
        file = folder / "tape.html"
        file.write_text(page)
        flags = [*FLAGS, f"--user-data-dir={folder / 'profile'}", *(["--blink-settings=preferredColorScheme=0"] if dark else [])]
        url = file.as_uri() + fragment
        done = subprocess.run(  # noqa: S603
            [CHROMIUM, *flags, "--dump-dom", url], capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout

    return go


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to draw in; what the page holds is tested above without one")
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_a_small_tape(browse, dark):
    t, loss = double()
    dom = browse(t.draw(flow=loss).html(), "#open=1&pick=1&search=tanh", dark=dark)
    assert "data-ready" in dom
    shown = {int(n) for n in re.findall(r'<g class="node[^"]*" data-key="(\d+)"', dom)}
    assert shown == set(range(len(t)))
    assert re.findall(r"<dd>(%1 = tanh)</dd>", dom)
    assert "return tnp.tanh(h * self.w)" in dom
    assert re.search(r'class="node[^"]* found', dom)
    for lane in ("forward", "sweep 1", "sweep 2"):
        assert f">{lane}</text>" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to draw in; what the page holds is tested above without one")
def test_a_browser_draws_two_thousand_entries(browse):
    rng = np.random.default_rng(0)
    functions = [tnp.tanh, tnp.sin, tnp.cos, lambda v: v * 0.5]
    h = w = tape.Variable(A)
    for i in rng.integers(0, 4, 1000):
        h = functions[i](h + w)
    page = tape.draw(h.sum()).html()
    dom = browse(page)
    assert "data-ready" in dom
    nodes = int(re.search(r'data-nodes="(\d+)"', dom)[1])
    assert 10 < nodes <= 200
    assert "%1980" in dom or "%19" in dom
    assert len(page) < 2_000_000


def test_the_layout_library_is_as_it_was_published():
    text = (pathlib.Path(tape.__file__).parent / "insight" / "viewer" / "dagre.min.js").read_text()
    assert text.startswith('"use strict";var dagre=')
    assert "</script" not in text
