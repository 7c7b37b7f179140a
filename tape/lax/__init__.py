"""The mirror of :mod:`jax.lax`: the functions of arrays, recorded; primitives stay in JAX."""

from tape.namespaces.namespace import Namespace

__all__, __getattr__, __dir__ = Namespace(__name__, "jax.lax").face()
