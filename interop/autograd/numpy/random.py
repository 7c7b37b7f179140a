"""``numpy.random`` as it is: what is drawn has no derivative, and a Variable among the arguments is refused."""

from __future__ import annotations

import numpy.random as _random

globals().update({name: getattr(_random, name) for name in dir(_random) if not name.startswith("_")})
