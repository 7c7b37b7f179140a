"""The evals in hand-written JAX: pure functions, ``jax.jit`` around each, ``scan`` for loops, ``vmap`` for batches."""

from benchmarks.gradbench.on_jax import adbench, cmpad, nested
from benchmarks.gradbench.protocol import Tool

TOOL = Tool("jax", adbench.MODULES | cmpad.MODULES | nested.MODULES)
