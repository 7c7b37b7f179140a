"""The labels of the catalogue are true: wrong ones differ from the truth as they say, right ones do not."""

import zlib

import jax
import pytest

from tests.daily import NIGHTLY
from tests.power.case import SHOWS
from tests.power.catalogue import CASES, RIGHT, WRONG
from tests.power.labels import shown

# At a kink other subgradients than the truth's are right as well.
OTHER_SUBGRADIENTS = {
    "rule_for_abs_with_zero_at_zero",
    "rule_for_relu_with_one_at_zero",
    "rule_for_relu_with_a_half_at_zero",
    "rule_for_max_that_takes_the_first",
}
EVERY = 1 if NIGHTLY else 20


def pairs(cases):
    """Cases with a truth, in each of their dtypes; a twentieth of them outside the nightly run, always the same."""
    found = [(c, d) for c in cases for d in c.dtypes if c.truth(d) is not None and c.name not in OTHER_SUBGRADIENTS]
    chosen = [p for p in found if zlib.crc32(f"{p[0].name}{p[1]}".encode()) % EVERY == 0]
    return pytest.mark.parametrize(("case", "dtype"), chosen, ids=[f"{c.name}-{d}" for c, d in chosen])


def test_the_catalogue_is_large_and_varied():
    assert len(WRONG) >= 120
    assert len({c.kind for c in WRONG}) >= 30
    assert len(RIGHT) >= 110
    assert len(CASES) == len(WRONG) + len(RIGHT)
    assert {c.shows for c in WRONG} == set(SHOWS)
    assert {d for c in CASES for d in c.dtypes} == {"float16", "bfloat16", "float32", "float64"}


@pairs(WRONG)
def test_a_wrong_gradient_is_wrong_where_it_says(case, dtype):
    seen = shown(case, dtype)
    assert case.shows in seen or (case.shows == "first" and "nan" in seen)
    if case.shows in {"second", "vmap", "jit", "repeat", "part", "elsewhere", "forward", "bent", "nested", "calls", "others"}:
        assert seen == {case.shows}


@pairs(RIGHT)
def test_a_right_rule_is_right(case, dtype):
    assert not shown(case, dtype)


def test_wrong_gradients_all_have_a_truth():
    for case in WRONG:
        with jax.enable_x64(case.dtypes[0] == "float64"):
            assert case.truth(case.dtypes[0]) is not None, case.name
