"""The mirror of :mod:`jax.numpy`: the same functions, recorded; a conforming Array API namespace."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from tape.namespaces.namespace import Namespace

_NAMESPACE = Namespace(__name__, "jax.numpy")
__all__ = _NAMESPACE.names  # noqa: PLE0605 - the names of the JAX module

__array_api_version__: str = jnp.__array_api_version__


def __array_namespace_info__() -> Any:  # noqa: N807 - the Array API's name
    """Return the Array API's information on devices and dtypes, which is JAX's."""
    return jnp.__array_namespace_info__()


def __getattr__(name: str) -> Any:
    return _NAMESPACE.get(name)


def __dir__() -> list[str]:
    return __all__
