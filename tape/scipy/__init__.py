"""The mirror of :mod:`jax.scipy`: every module of it, its functions recorded."""

from tape.namespaces.namespace import Namespace, install

__all__, __getattr__, __dir__ = Namespace(__name__, "jax.scipy").face()
install(__name__, "jax.scipy")
