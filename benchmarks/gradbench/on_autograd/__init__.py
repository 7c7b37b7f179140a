"""The evals in HIPS autograd: NumPy wrapped, ``autograd.grad``, Python loops."""

from benchmarks.gradbench.on_autograd import adbench, cmpad, nested
from benchmarks.gradbench.protocol import Tool

TOOL = Tool("autograd", adbench.MODULES | cmpad.MODULES | nested.MODULES)
