"""Blocks: what recurs inside tapes that do not recur runs as one, and gives the same."""

import itertools

import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.programs import blocks

A = np.linspace(-0.5, 0.5, 8).astype(np.float32)


@pytest.fixture
def cheap(monkeypatch):
    """Blocks are compiled at their second run, and used from the third on."""
    monkeypatch.setattr(blocks, "PRICE", 0)
    monkeypatch.setattr(blocks, "DELIVERY", 0)
    monkeypatch.setattr(blocks, "_BLOCKS", {})
    monkeypatch.setattr(blocks, "_BOUGHT", [])


def cell(h, which):
    """Four entries, one of which has two results; either of them is used."""
    keep = tnp.split(h, 2)[which]
    return tnp.concatenate([tnp.sin(keep), tnp.cos(keep)]) * 0.5


def plain(h, which):
    keep = np.split(h, 2)[which]
    return np.concatenate([np.sin(keep), np.cos(keep)]) * 0.5


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("grad", [False, True])
def test_blocks_differ_by_which_result_is_read_later(grad):
    x = tape.Variable(A)
    for choice in itertools.product((0, 1), repeat=6):
        h, expected = x, A.astype(np.float64)
        with tape.set_grad_enabled(grad):
            for which in choice:
                h = cell(h, which)
        for which in choice:
            expected = plain(expected, which)
        np.testing.assert_allclose(h.value, expected, rtol=1e-5, atol=1e-6)
    assert any(block._job is None for block in blocks._BLOCKS.values() if block.bought), "no compiled block was used"


@pytest.mark.usefixtures("cheap")
def test_gradients_by_blocks():
    x, w = tape.Variable(A[:3]), tape.Variable(np.float32(0.75))
    for choice in itertools.product((0, 1), repeat=5):
        h = x
        value, dx, dw = A[:3].astype(np.float64), np.ones(3), np.zeros(3)
        for which in choice:
            h = tnp.sin(h * w + 0.5 * which) - h
            inner = value * 0.75 + 0.5 * which
            dw = np.cos(inner) * (value + 0.75 * dw) - dw
            dx = dx * (0.75 * np.cos(inner) - 1)
            value = np.sin(inner) - value
        x.zero_grad()
        w.zero_grad()
        h.sum().backward()
        np.testing.assert_allclose(x.grad.value, dx, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(w.grad.value, dw.sum(), rtol=1e-4, atol=1e-5)
