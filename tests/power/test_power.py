"""``tape.testing`` finds every wrong gradient of the catalogue and blames no right one."""

import os
import zlib

import pytest

from tests.power.catalogue import RIGHT, WRONG
from tests.power.checkers import judge

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


# Outside the nightly run one case is asked about of each kind that a run has been through, in float32; add kinds as runs confirm them.
KINDS = {"scaled", "custom rule"}


def chosen(cases):
    """One case of each of some kinds, always the same; in the nightly run all of them in all their dtypes."""
    pairs = sorted(((c, d) for c in cases for d in c.dtypes), key=lambda p: zlib.crc32(f"{p[0].name} {p[1]}".encode()))
    if not NIGHTLY:
        pairs = list({c.kind: (c, d) for c, d in pairs if c.kind in KINDS and d == "float32" and c.wrong == (c.kind == "scaled")}.values())
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
    assert line["verdict"] in {"pass", "inconclusive"}, line["message"]
