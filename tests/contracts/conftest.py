"""Every contract holds in both tiers: recorded for later, and run at once."""

import contextlib

import pytest

import tape


@pytest.fixture(params=["lazy", "eager"])
def tier(request):
    with tape.eager() if request.param == "eager" else contextlib.nullcontext():
        yield request.param
