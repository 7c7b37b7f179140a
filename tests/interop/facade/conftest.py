"""What the tests of the facade share."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _seed():
    np.random.seed(0)  # noqa: NPY002 - what check_grads draws from
