"""Every code block of the README runs, and prints what its comments say."""

import contextlib
import io
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
PYTHON = [block for language, block in BLOCKS if language == "python"]
SHELL = [block for language, block in BLOCKS if language == "sh"]


def test_every_block_is_of_a_language_that_is_tested():
    assert len(PYTHON) + len(SHELL) == README.count("\n```") // 2
    assert PYTHON
    assert SHELL


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_python(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "t.draw(" in block and shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    if "optax" in block:
        pytest.importorskip("optax")
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})  # noqa: S102 - our own text
    lines = printed.getvalue().splitlines()
    assert len(expected) == block.count("print(")
    assert list(dict.fromkeys(lines)) == expected  # a print in a loop says the same each time


def test_shell_commands_are_those_that_ci_runs():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for block in SHELL:
        _make, _activate, install, run = block.strip().split(" && ")
        assert re.search(f"^ *{re.escape(run)}( |$)", ci, re.MULTILINE)
        assert re.search(f"^ *{install[:11]} -q --no-compile {re.escape(install[12:])}( |$)", ci, re.MULTILINE)


def test_numbers_in_words_are_those_that_there_are():
    page = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    agree, recorded = (re.search(rf"^\| {row} \| (\d+)", page, re.MULTILINE)[1] for row in ("that agree", "recorded"))
    assert f"{int(agree):,} ways of calling\n{recorded} functions agree".replace(",", " ") in README
    scripts = [path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "experiment"]  # which they share
    listed = (ROOT / "examples" / "index.rst").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^   \.\./examples/(\w+)\.py$", listed, re.MULTILINE)) == sorted(scripts)
    assert len(scripts) == 20
    assert "[Examples](examples): twenty, from" in README
    assert "twenty scripts" in (ROOT / "docs" / "guides" / "tutorial.md").read_text(encoding="utf-8")


def test_the_picture_of_the_tape_is_what_is_drawn(tmp_path, monkeypatch):
    """Made anew: its entries, in order; the layout is Graphviz's."""
    if shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    monkeypatch.chdir(tmp_path)
    block = next(block for block in PYTHON if "t.draw(" in block)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})  # noqa: S102 - our own text
    drawn, kept = ((at / "tape.svg").read_text(encoding="utf-8") for at in (tmp_path, ROOT / "docs" / "pictures"))
    assert sorted(re.findall(r"<text[^>]*>(.*?)</text>", drawn)) == sorted(re.findall(r"<text[^>]*>(.*?)</text>", kept))


def test_it_is_short_and_its_figures_are_those_of_the_pages():
    assert len(README.splitlines()) < 150
    coverage = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    called, functions = re.search(r"([\d ]+) ways of calling\s+(\d+) functions agree", README).groups()
    assert f"| that agree | {called.strip().replace(' ', '')} |" in coverage
    assert f"| recorded | {functions} |" in coverage


def test_linked_files_exist():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists()
