"""Every code block of the README runs, and prints what its comments say."""

import contextlib
import io
import re
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
def test_python(block):
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
        assert f"{install[:11]} -q {install[12:]}" in ci


def test_linked_files_exist():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists()
