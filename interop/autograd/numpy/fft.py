"""``numpy.fft``, recorded where it meets Variables."""

from __future__ import annotations

import numpy as _np

from interop.autograd.numpy.dispatch import wrapped as _wrapped

globals().update({name: _wrapped(getattr(_np.fft, name)) for name in _np.fft.__all__})
__all__ = list(_np.fft.__all__)
