"""The mirror of :mod:`jax.numpy`: the same functions, recorded; a conforming Array API namespace."""

import jax.numpy as jnp

from tape.namespaces.namespace import Namespace

__all__, __getattr__, __dir__ = Namespace(__name__, "jax.numpy").face()
__array_api_version__: str = jnp.__array_api_version__
__array_namespace_info__ = jnp.__array_namespace_info__
