"""For authors of primitives: the rules of functions whose bodies are plain NumPy and SciPy.

Own containers are registered with ``jax.tree_util.register_pytree_node``: there are no boxes to write for them.
"""

from __future__ import annotations

from interop.autograd.primitives import (
    def_linear,
    defjvp,
    defjvp_argnum,
    defjvp_argnums,
    defvjp,
    defvjp_argnum,
    defvjp_argnums,
    notrace_primitive,
    primitive,
    register_notrace,
)
from interop.autograd.vspaces import VSpace, vspace

__all__ = [
    "VSpace",
    "def_linear",
    "defjvp",
    "defjvp_argnum",
    "defjvp_argnums",
    "defvjp",
    "defvjp_argnum",
    "defvjp_argnums",
    "notrace_primitive",
    "primitive",
    "register_notrace",
    "vspace",
]
