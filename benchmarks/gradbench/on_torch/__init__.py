"""The evals in PyTorch, eager: tensors that require gradients, ``torch.autograd.grad``, ``torch.func`` for Jacobians."""

from benchmarks.gradbench.on_torch import adbench, cmpad, nested
from benchmarks.gradbench.protocol import Tool

TOOL = Tool("pytorch", adbench.MODULES | cmpad.MODULES | nested.MODULES)
