"""docs/coverage.md says of the installed JAX and the registry what is so; a sample of its rows is made again."""

import importlib
import zlib

import pytest

from tape.rules.left import LEFT
from tests.coverage import functions, primitives, report
from tests.mirrored import samples

PINNED, ROWS = report.read(report.PAGE.read_text())
SAME_JAX = report.version() == PINNED
REPAIR = "write the page again: python -m tests.coverage --jobs 2 --docs docs/coverage.md"


def chosen(names, count):
    """Some of the names, always the same."""
    return sorted(names, key=lambda name: zlib.crc32(name.encode()))[:count]


@pytest.mark.skipif(not SAME_JAX, reason="the page is of another JAX release")
def test_the_page_lists_what_the_installed_jax_has():
    assert set(ROWS) == {*primitives.facts(), *functions.facts()}, REPAIR


@pytest.mark.skipif(not SAME_JAX, reason="the page is of another JAX release")
def test_rows_say_what_the_registry_says():
    for name, (rule, _) in primitives.facts().items():
        assert ROWS[name][0] == {"own": "own", "user": "user", "jax": "JAX's"}[rule], f"{name}: {REPAIR}"
    for name, (how, why) in functions.facts().items():
        assert ROWS[name][0] == how, f"{name}: {REPAIR}"
        if why:
            assert ROWS[name][1] == why, f"{name}: {REPAIR}"


def test_no_function_is_new_and_unknown():
    """In any JAX release, a function that the page does not have is called with a sample, or a reason says why not."""
    unknown = []
    for name, (how, why) in functions.facts().items():
        if name not in ROWS and how == "recorded" and not why:
            source, _, last = name.rpartition(".")
            try:
                samples.smooth(source, last, getattr(importlib.import_module(source), last))
            except AssertionError:
                unknown.append(name)
    assert not unknown


@pytest.mark.skipif(not SAME_JAX, reason="other releases have other primitives")
def test_what_is_left_to_jax_has_a_reason():
    assert not [name for name, (rule, _) in primitives.facts().items() if rule == "jax" and name not in LEFT]


@pytest.mark.skipif(not SAME_JAX, reason="the page is of another JAX release")
def test_every_row_has_been_checked_or_says_why_not():
    """And nothing that was found to differ stands there."""
    unchecked = [n for n in primitives.facts() if not ROWS[n][1]]
    unchecked += [n for n, (how, why) in functions.facts().items() if not ROWS[n][1] and (not ROWS[n][2] or not how.startswith("recorded"))]
    assert not unchecked, REPAIR
    assert report.PAGE.read_text().partition("## What differs")[2].split() == ["Nothing."]


@pytest.mark.parametrize("name", chosen([n for n, (rule, flows) in primitives.facts().items() if rule == "own" and flows], 3))
def test_a_primitive_is_as_on_the_page(name):
    assert primitives.row(name)["differences"] == []


@pytest.mark.parametrize("name", chosen([n for n, (how, why) in functions.facts().items() if how == "recorded" and not why], 4))
def test_a_function_is_as_on_the_page(name):
    assert functions.row(name)["differences"] == []


def test_a_difference_is_seen():
    """A counterpart whose value, dtype or gradient is another than JAX's."""
    import jax.numpy as jnp

    import tape.numpy as tnp

    x = jnp.array([0.5, -2.0])
    assert functions.compare(jnp.sin, tnp.sin, (x,), {}) == "same"
    assert functions.compare(jnp.sin, tnp.cos, (x,), {}) != "same"
    assert functions.compare(jnp.abs, lambda v: tnp.abs(v.detach()), (x,), {}).startswith("gradient")
    assert "float16" in functions.compare(jnp.sin, lambda v: tnp.sin(v).astype("float16"), (x,), {})
    assert functions.compare(jnp.sin, lambda v: v[5], (x,), {}) != "same"
    assert functions.compare(jnp.matmul, tnp.matmul, (x, x[:1]), {}) == "refused"
