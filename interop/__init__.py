"""Bridges between the tape and JAX, and to the libraries around it; a framework is imported only when its module is."""

from __future__ import annotations

from interop.lift import lift
from interop.lower import lower

__all__ = ["lift", "lower"]
