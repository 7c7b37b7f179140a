"""The mirror of :mod:`jax.scipy`: every module of it, its functions recorded."""

from __future__ import annotations

from typing import Any

from tape.namespaces.namespace import Namespace, install

_NAMESPACE = Namespace(__name__, "jax.scipy")
__all__ = _NAMESPACE.names  # noqa: PLE0605 - the names of the JAX module
install(__name__, "jax.scipy")


def __getattr__(name: str) -> Any:
    return _NAMESPACE.get(name)


def __dir__() -> list[str]:
    return __all__
