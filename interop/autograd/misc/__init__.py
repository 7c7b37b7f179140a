"""Flattening, optimizers and fixed points."""

from interop.autograd.misc.flatten import flatten

__all__ = ["flatten"]
