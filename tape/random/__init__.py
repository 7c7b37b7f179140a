"""The mirror of :mod:`jax.random`: keys and samples are Variables."""

from tape.namespaces.namespace import Namespace

__all__, __getattr__, __dir__ = Namespace(__name__, "jax.random").face()
