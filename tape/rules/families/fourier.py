"""Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules.registry import Cost, Example, register


@register(
    "fft",
    source="linear; the matrix exp(-2 pi i j k / n) is symmetric",
    cost=Cost.HIGH,
    examples=[
        Example(jnp.fft.fft, ((2, 5),), "fft"),
        Example(jnp.fft.ifft, ((2, 4),), "ifft"),
        Example(jnp.fft.fftn, ((2, 3, 4),), "fftn"),
        Example(lambda x: jnp.fft.fft(x, n=6, axis=0), ((4, 2),), "padded"),
        Example(lambda x: jnp.fft.rfft(jnp.real(x)), ((2, 6),), "rfft, even"),
        Example(lambda x: jnp.fft.rfft(jnp.real(x)), ((2, 5),), "rfft, odd"),
        Example(lambda x: jnp.fft.rfft2(jnp.real(x)), ((3, 4),), "rfft2"),
        Example(jnp.fft.irfft, ((2, 4),), "irfft, even"),
        Example(lambda x: jnp.fft.irfft(x, n=5), ((2, 3),), "irfft, odd"),
        Example(lambda x: jnp.fft.irfftn(x * (1 + 2j), s=(2, 3, 5)), ((2, 3, 3),), "irfftn"),
        Example(lambda x: jnp.fft.irfft(x, n=1), ((2, 3),), "irfft of length 1"),
    ],
)
def _fft(ct: Any, out: Any, x: Any, *, fft_type: Any, fft_lengths: Sequence[int], **_: Any) -> Any:
    """Apply the transposed matrix: the DFT's is itself; the real transforms keep or repeat half of the spectrum."""
    kind = lax.FftType(fft_type)
    if kind == lax.FftType.RFFT:
        return _rfft(ct, x, fft_lengths)
    if kind == lax.FftType.IRFFT:
        return _irfft(ct, x, fft_lengths)
    return lax.fft(ct, kind, fft_lengths)


def _rfft(ct: Any, x: Any, lengths: Sequence[int]) -> Any:
    """Transform the half spectrum with zeros for its other half; x was real, so the real part counts."""
    missing = x.shape[-1] - ct.shape[-1]
    whole = lax.pad(ct, lax.full((), 0, ct.dtype), [(0, 0, 0)] * (ct.ndim - 1) + [(0, missing, 0)])
    return lax.real(lax.fft(whole, lax.FftType.FFT, lengths))


def _irfft(ct: Any, x: Any, lengths: Sequence[int]) -> Any:
    """Transform, and count twice the frequencies that stand for two (all but 0 and, for an even length, the highest)."""
    frequency = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    single = (frequency == 0) | (2 * frequency == lengths[-1])
    weight = jnp.where(single, 1, 2).astype(ct.dtype) / prod(lengths)
    return lax.conj(lax.fft(ct, lax.FftType.RFFT, lengths)) * weight
