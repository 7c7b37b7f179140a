"""The evals as a user of the tape would write them: plain Python loops on Variables, and no ``jit`` or ``scan``."""

import tape
from benchmarks.gradbench.on_tape import adbench, cmpad, nested
from benchmarks.gradbench.protocol import Tool


def learnt() -> object:
    """Return what stands still once what is run is compiled."""
    stats = tape.stats()
    return stats.interpreted, stats.compiles


TOOL = Tool("jax-tape", adbench.MODULES | cmpad.MODULES | nested.MODULES, learnt)
