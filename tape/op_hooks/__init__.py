"""Op hooks that are there: what ops cost in time and memory, what they print, clipped gradients, and where NaNs are born."""

from __future__ import annotations

from tape.op_hooks.anomalies import Anomaly, NaNWatcher
from tape.op_hooks.clipping import GradientClipper
from tape.op_hooks.printing import Printer
from tape.op_hooks.timing import MemoryCounter, Timer

__all__ = ["Anomaly", "GradientClipper", "MemoryCounter", "NaNWatcher", "Printer", "Timer"]
