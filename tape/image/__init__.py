"""The mirror of :mod:`jax.image`: the same functions, recorded."""

from tape.namespaces.namespace import Namespace

__all__, __getattr__, __dir__ = Namespace(__name__, "jax.image").face()
