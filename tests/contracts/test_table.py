"""Each of the thirty contracts has a test that names it: ``test_contract_07_...``, or "Contract 7" or "Contracts 1 to 6" in a docstring."""

import ast
import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).parent.parent
NUMBERS = range(1, 31)


def named(text):
    """Numbers of the contracts that a docstring names: "Contract 8", "Contracts 7, 10 to 12 and 15"."""
    found = set()
    for listed in re.findall(r"[Cc]ontracts? ((?:\d+(?:,? (?:and|to) |, )?)+)", text):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", listed):
            found.update(range(int(first), int(last or first) + 1))
    return found


def contracts_of(source):
    """Numbers of the contracts that the tests of a module name, by name or in their docstrings; a module's own is a heading, no test."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            numbers = re.match(r"test_contract((?:_\d\d)+)_", node.name)
            found.update(map(int, re.findall(r"\d\d", numbers[1])) if numbers else ())
            found |= named(ast.get_docstring(node) or "")
    return found


COVERED = {n: path.name for path in TESTS.rglob("test_*.py") for n in contracts_of(path.read_text())}


@pytest.mark.parametrize("number", NUMBERS)
def test_every_contract_has_a_test(number):
    assert number in COVERED, f"no test names contract {number}"


def test_the_table_reads_names_and_docstrings():
    source = '"""Contract 1."""\ndef test_contract_02_05_x(): pass\ndef test_y():\n    """Contracts 7, 9 to 11 and 13."""\ndef other():\n    """Contract 20."""\n'
    assert contracts_of(source) == {2, 5, 7, 9, 10, 11, 13}
    assert set(COVERED) <= set(NUMBERS)
