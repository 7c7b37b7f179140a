"""The mirror of :mod:`jax.numpy.linalg`: the same functions, recorded."""

from tape.namespaces.namespace import Namespace

__all__, __getattr__, __dir__ = Namespace(__name__, "jax.numpy.linalg").face()
