"""Every error class has a page, whose example raises exactly it and whose repair runs (tests/test_docs.py runs both), and errors say how to see it."""

import copy
import importlib.util
import pathlib
import pickle
import re
import shlex
import subprocess
import sys
import traceback

import pytest

import tape
from tape import errors
from tape.command import main
from tests import snippets

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ROOT / "tape" / "command" / "errors"
CLASSES = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_class_has_a_page_and_each_page_a_class():
    assert {p.stem for p in PAGES.glob("*.md")} == CLASSES
    defined = {n for n, c in vars(errors).items() if isinstance(c, type) and c.__module__ == "tape.errors"}
    assert defined == CLASSES


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_the_example_raises_exactly_the_class_and_the_repair_nothing(name):
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    cause, example, repair = re.split(r"^## (?:Example|Repair)\n", text, flags=re.MULTILINE)
    assert re.match(rf"# {name}\n\n\S", cause)
    raised = re.findall(r"^Traceback .*:\n    \.\.\.\n([\w.]+):", example, re.MULTILINE)
    exactly = {"TapeError": "tape.errors.SeedError"}  # nothing is a TapeError alone
    assert raised == [exactly.get(name, f"tape.errors.{name}")]
    assert [b.language for b in snippets.blocks(repair)] == ["pycon"]
    assert "Traceback" not in repair


def test_the_index_lists_them_all():
    module = load("error_index")
    kept = (ROOT / "docs" / "errors" / "index.md").read_text(encoding="utf-8")
    assert kept == module.page(), "write it again: python docs/error_index.py"


class Own(errors.SeedError):
    """A user's."""


@pytest.mark.parametrize("kind", [errors.SeedError, Own])
def test_a_traceback_ends_with_the_page_and_the_message_stays(kind):
    error = kind("what happened")
    shown = traceback.format_exception_only(error)
    assert shown[-1] == "See python -m tape error SeedError\n"
    assert str(error) == "what happened"
    assert vars(error) == {}  # nothing is made before it is shown


def test_notes_of_others_stand_before_the_page_and_stay_with_their_error():
    error = errors.UnconnectedError("what happened")
    error.add_note("in the second layer")
    page = "See python -m tape error UnconnectedError"
    assert error.__notes__ == ["in the second layer", page]
    assert errors.UnconnectedError("another").__notes__ == [page]
    assert copy.copy(error).__notes__ == pickle.loads(pickle.dumps(error)).__notes__ == error.__notes__  # noqa: S301 - our own
    error.__notes__ = ["another"]
    assert error.__notes__ == ["another", page]
    error.__notes__ = errors.UnconnectedError("of the same class").__notes__
    assert error.__notes__ == [page]
    with pytest.raises(TypeError, match="a note is a string"):
        error.add_note(1)


def test_pages_can_be_elsewhere_or_nowhere(monkeypatch):
    v = tape.Variable([1.0, 2.0])
    monkeypatch.setattr(errors, "PAGES", "https://example.org/{}.html")
    with pytest.raises(errors.SeedError) as caught:
        v.backward()
    assert caught.value.__notes__ == ["See https://example.org/SeedError.html"]
    monkeypatch.setattr(errors, "PAGES", None)
    assert not getattr(caught.value, "__notes__", None)


@pytest.mark.parametrize("name", sorted(CLASSES - {"TapeWarning"}))
def test_what_a_traceback_names_shows_the_page(name, capsys):
    cls = getattr(errors, name)
    said = traceback.format_exception_only(cls("what happened"))[-1]
    python, *words = shlex.split(said.removeprefix("See "))
    assert [python, *words[:2]] == ["python", "-m", "tape"]
    assert main(words[2:]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}\n\n")
    assert re.search(r"\nExample\n\n    >>> \w+", printed)
    assert not re.search(r"```|\]\(|^#", printed, re.MULTILINE)


def test_the_command_lists_all_classes_and_knows_a_typing_error(capsys):
    assert main(["error"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in listed} == CLASSES
    assert all(len(line.split()) > 3 for line in listed)
    assert main(["error", "tape.errors.SeedError"]) == 0
    assert main(["error", "SeedEror"]) == 2
    assert "did you mean SeedError?" in capsys.readouterr().err


def test_a_reader_who_has_enough_is_no_error():
    command = [sys.executable, "-m", "tape", "error", "SeedError"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True) as run:  # noqa: S603 - this test's own words
        run.stdout.close()  # as ``| head`` does
        assert "BrokenPipeError" not in run.stderr.read()
