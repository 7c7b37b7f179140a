"""The tables of spelling in the guides give what they say, in both libraries; their commands exist (tests/test_docs.py runs the rest)."""

import contextlib
import importlib.util
import re
import runpy
import shlex
import warnings
from pathlib import Path

import pytest

from tape.command import main
from tests import snippets, spelling

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
LIBRARIES = {
    "from_pytorch": "torch",
    "from_jax": "jax",
    "from_autograd": "autograd",
    "from_chainer": "chainer",
    "from_tensorflow": "tensorflow",
}


def guide(name):
    return ROOT / "docs" / "guides" / f"{name}.md"


@pytest.mark.parametrize("name", LIBRARIES)
def test_rows_give_what_they_say(name):
    pytest.importorskip("optax")
    assert len(spelling.rows(guide(name).read_text(encoding="utf-8"))) > 10
    assert spelling.wrong(guide(name), "ours") == []


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_other_library_gives_the_same(name):
    pytest.importorskip(LIBRARIES[name], reason="the other side is compared where it is installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert spelling.wrong(guide(name), "theirs") == []


def test_the_facade_gives_what_autograd_gives(tmp_path):
    text = guide("from_autograd").read_text(encoding="utf-8")
    page = tmp_path / "facade.md"
    named = text.replace("`import autograd, autograd.numpy", "`import interop.autograd as autograd, interop.autograd.numpy")
    page.write_text(named.replace("`from autograd", "`from interop.autograd"), encoding="utf-8")
    assert spelling.wrong(page, "theirs") == []


def test_a_row_that_gives_something_else_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("| Other | jax-tape | gives |\n| --- | --- | --- |\n| `1 + 1` | `1 + 2` | `2` |\n", encoding="utf-8")
    assert spelling.wrong(page, "theirs") == []
    assert spelling.wrong(page, "ours") == ["page.md:3: 1 + 2: 3 for 2"]


def test_pictures_are_those_of_the_tape():
    """``python docs/guides/pictures/draw.py`` draws them: what stands in each entry is what a tape recorded now says."""
    folder = ROOT / "docs" / "guides" / "pictures"
    drawn = runpy.run_path(str(folder / "draw.py"))["PICTURES"]
    assert {p.stem for p in folder.glob("*.svg")} == set(drawn)
    for name, recorded in drawn.items():
        picture = (folder / f"{name}.svg").read_text(encoding="utf-8")
        assert set(re.findall(r'title="([^"]*?):', picture)) == {"docs/guides/pictures/draw.py"}  # not where it was on some machine
        shown = re.findall(r"<text [^>]*>([^<]*)</text>", picture)
        t = recorded()
        for entry in t.entries:
            assert any(text.partition("(")[0] == entry.op for text in shown), (name, entry)
        assert sum("[" in text for text in shown) == len(t)


def commands():
    for page in GUIDES:
        for block in snippets.blocks(page.read_text(encoding="utf-8")):
            if block.language == "sh":
                yield from (pytest.param(line, id=f"{page.stem}: {line}") for line in block.code.splitlines())


@pytest.mark.parametrize("line", list(commands()))
def test_commands_can_be_called(line, capsys):
    """Those of the tape are; of others, there is something to call."""
    words = shlex.split(line)
    assert words[0] in {"python", "python3"}
    if words[1:3] == ["-m", "tape"]:
        with contextlib.suppress(SystemExit):
            assert main(words[3:]) == 0, capsys.readouterr().err
    elif words[1] == "-m":
        assert importlib.util.find_spec(words[2]), line
    else:
        assert (ROOT / words[1]).exists(), line
