"""The mirror of :mod:`jax.lax.linalg`: the same functions, recorded."""

from tape.namespaces.namespace import Namespace

__all__, __getattr__, __dir__ = Namespace(__name__, "jax.lax.linalg").face()
