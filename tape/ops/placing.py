"""Placing: values that are to lie on several devices as others do: gradients as their parameters, parameters as before an update.

Without it the compiler would choose how results of a program lie: gradients of a parameter that is sharded by rows may come by columns,
and what is computed from both is sharded in yet another way, from step to step.  The sharding is part of a leaf's kind
(:mod:`tape.graph.kinds`), and so of the tape's structure: a parameter that is sharded in another way makes another program.
"""

from __future__ import annotations

from jax import lax
from jax.sharding import NamedSharding

from tape.graph.kinds import DIFFERENTIABLE, Kind, kind_of
from tape.ops.kernel import Kernel, Op, intern_op


def placing(sharding: NamedSharding, name: str = "sharding") -> Op:
    """Return the op whose result is its input, sharded so."""
    return intern_op((name, sharding), lambda: Op(name, lambda x: lax.with_sharding_constraint(x, sharding)))


def leaf_kernel(op: Op, kind: Kind, sharding: NamedSharding) -> Kernel:
    """Return the kernel of such an op, for an input of a kind, that makes a leaf which requires grad and is sharded so."""
    kernel = op.kernel_of((kind,))
    kernel._kinds[DIFFERENTIABLE] = (kind_of(kernel.out_avals[0], requires_grad=True, sharding=sharding),)
    return kernel
