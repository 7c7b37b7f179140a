"""``tape.testing`` finds every wrong gradient of the catalogue and blames no right one."""

import zlib

import pytest

from tests.daily import NIGHTLY
from tests.power.catalogue import RIGHT, WRONG
from tests.power.checkers import judge

# Right, except for an element that its formula rounds to zero: 1e-44 beside elements of size one.
ROUNDED_TO_NOTHING = {("stable_log1p_exp", "float64")}


def chosen(cases):
    """One case of each kind, always the same, in single precision where it has that; in the nightly run all of them in all their dtypes."""
    pairs = sorted(((c, d) for c in cases for d in c.dtypes), key=lambda p: zlib.crc32(f"{p[0].name} {p[1]}".encode()))
    if not NIGHTLY:
        pairs = list({c.kind: (c, d) for c, d in sorted(pairs, key=lambda p: p[1] == "float32")}.values())
    return pytest.mark.parametrize(("case", "dtype"), pairs, ids=[f"{c.name}-{d}" for c, d in pairs])


@pytest.mark.filterwarnings("ignore")  # the cases overflow on purpose
@chosen(WRONG)
def test_a_wrong_gradient_is_found(case, dtype):
    line = judge("tape.testing", case, dtype)
    assert line["verdict"] == "fail", line["message"]


@pytest.mark.filterwarnings("ignore")
@chosen(RIGHT)
def test_a_right_gradient_is_not_blamed(case, dtype):
    line = judge("tape.testing", case, dtype)
    assert line["verdict"] == ("inaccurate" if (case.name, dtype) in ROUNDED_TO_NOTHING else "pass"), line["message"]
