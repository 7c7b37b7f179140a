"""The evals as a user of the tape would write them: plain Python loops on Variables, and no ``jit`` or ``scan``."""

from benchmarks.gradbench.on_tape import adbench, cmpad, nested
from benchmarks.gradbench.protocol import Tool

TOOL = Tool("jax-tape", adbench.MODULES | cmpad.MODULES | nested.MODULES)
