"""What is reached of the objects behind a function."""

import functools
import importlib
import logging
import sys

from tape.callables.reach import Reach


def test_caches_of_many_results_and_those_of_packages_are_data():
    """To look at each of them is to go through all: a step that named an installed package's took minutes."""

    @functools.cache
    def squared(n):
        return [n * n]

    for n in range(500):
        squared(n)
    assert len(Reach([lambda: squared(3)]).nodes) < 20
    squared.cache_clear()
    squared(3)
    few = Reach([lambda: squared(3)]).nodes
    assert any(x is squared(3) for x in few)
    squared.__module__ = "numpy.linalg"
    assert len(Reach([lambda: squared(3)]).nodes) < len(few)


def test_globals_of_pythons_library_are_its_own():
    """By importlib they lead to the import hooks of others, and by pytest's to all of its session."""
    nodes = Reach([lambda: importlib.import_module("json")]).nodes
    assert importlib.import_module in nodes
    assert not any(x is sys.meta_path for x in nodes)


def test_a_logger_leads_to_no_others():
    """It has all that there are, of every package: a step that logs looked at each of them at every call."""
    log = logging.getLogger("tests.reach")

    def step():
        log.info("a step")

    nodes = Reach([step]).nodes
    assert step in nodes
    assert log not in nodes
