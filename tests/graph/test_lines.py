"""Whose code is the user's."""

import contextlib
import pathlib

import jax
import pytest

import interop
import tape
from tape.graph.lines import is_foreign

FOLDERS = [pathlib.Path(module.__file__).parent for module in (tape, interop, jax)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_file_beside_a_library_whose_name_begins_as_the_library_s_is_the_user_s(folder):
    assert not is_foreign(str(folder / "graph" / "some.py"))
    assert is_foreign(f"{folder}_study.py")
    assert is_foreign(str(folder.with_name(folder.name + "typing") / "some.py"))


def test_context_managers_of_python_are_not():
    assert not is_foreign(contextlib.__file__)
