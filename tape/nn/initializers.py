"""The mirror of :mod:`jax.nn.initializers`: initializers that return Variables."""

from tape.namespaces.namespace import Namespace

__all__, __getattr__, __dir__ = Namespace(__name__, "jax.nn.initializers").face()
