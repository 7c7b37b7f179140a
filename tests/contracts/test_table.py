"""``docs/contracts.md`` and the tests name the same contracts: ``test_contract_07_...``, or ``test_contract_07_12_...`` of several."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "contracts.md"
TESTS = {path: path.read_text() for path in sorted(ROOT.glob("tests/**/test_*.py")) if path != pathlib.Path(__file__)}


def contracts_of(source):
    """Numbers in the names of a module's tests; what only speaks of a contract, in a docstring or a comment, holds none."""
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    numbers = [re.match(r"test_contract((?:_\d\d)+)_[a-z]", name) for name in names]
    return {int(number) for listed in numbers if listed for number in re.findall(r"\d\d", listed[1])}


def sections_of(page):
    """The files that each section of the page links to, by the section's number; a number given twice is in the list twice."""
    parts = re.split(r"^### (\d+)\. ", page, flags=re.MULTILINE)[1:]
    return [
        (int(number), set(re.findall(r"\]\(\.\./(tests/\S+\.py)\)", text))) for number, text in zip(parts[::2], parts[1::2], strict=True)
    ]


SECTIONS = sections_of(PAGE.read_text())
NUMBERS = [number for number, _ in SECTIONS]


@functools.cache  # at the first test, not wherever this file is collected
def held():
    return {path.relative_to(ROOT).as_posix(): contracts_of(text) for path, text in TESTS.items()}


@pytest.mark.parametrize("number", NUMBERS)
def test_the_page_names_the_tests_that_hold_a_contract(number):
    assert dict(SECTIONS)[number] == {path for path, numbers in held().items() if number in numbers} != set()


def test_the_contracts_are_numbered_from_one_on_and_no_test_names_another():
    assert list(range(1, len(NUMBERS) + 1)) == NUMBERS
    assert set().union(*held().values()) == set(NUMBERS)


def test_a_test_that_begins_like_a_contract_has_a_number():
    """A misspelt name would not be counted."""
    for path, text in TESTS.items():
        for name in re.findall(r"^\s*def (test_contract\w*)", text, re.MULTILINE):
            assert re.match(r"test_contract(_\d\d)+_[a-z]", name), f"{path}: {name}"


def test_mentions_do_not_count():
    source = '"""Contract 1."""\ndef test_contract_02_05_x(): pass\ndef test_y():\n    """Contracts 7, 9 to 11."""\ndef helper():\n    def test_contract_20_z(): pass\n'
    assert contracts_of(source) == {2, 5}


def test_a_contract_that_lost_its_tests_is_noticed():
    path = ROOT / "tests" / "contracts" / "test_double_backprop.py"
    assert 22 in contracts_of(path.read_text())
    assert 22 not in contracts_of(path.read_text().replace("def test_contract_22", "def test_that"))
