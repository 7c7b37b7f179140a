"""NumPy, recorded where it meets Variables: every public name of ``numpy``.

Functions without a Variable among their arguments are NumPy's own.  Others record; kinks are those of HIPS autograd: the derivative of
``abs`` is 0 at 0, that of ``clip`` 0 at the edges.
"""

from __future__ import annotations

from typing import Any

import numpy as _np

from interop.autograd.numpy import fft as fft
from interop.autograd.numpy import functions as _functions
from interop.autograd.numpy import linalg as linalg
from interop.autograd.numpy import numpy_boxes as numpy_boxes
from interop.autograd.numpy import random as random
from interop.autograd.numpy.dispatch import wrapped as _wrapped
from tape.errors import TapeAttributeError as _TapeAttributeError

__version__ = _np.__version__


def _fill() -> None:
    wrapped: dict[int, Any] = {}
    for name in [n for n in dir(_np) if not n.startswith("_")]:
        if name in globals() or name in _functions.OWN:
            continue
        value = getattr(_np, name)
        if isinstance(value, type) or not callable(value):
            if type(value).__name__ != "module":
                globals()[name] = value
            continue
        key = id(value)
        if key not in wrapped:
            wrapped[key] = _wrapped(value, _functions.RECORDED.get(name), name=name)
        globals()[name] = wrapped[key]
    globals().update(_functions.OWN)


_fill()


def __getattr__(name: str) -> Any:
    if name.startswith("__") or not hasattr(_np, name):
        msg = f"module 'interop.autograd.numpy' has no attribute {name!r}"
        raise _TapeAttributeError(msg)
    return getattr(_np, name)
