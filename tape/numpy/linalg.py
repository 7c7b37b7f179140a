"""The mirror of :mod:`jax.numpy.linalg`: the same functions, recorded."""

from __future__ import annotations

from typing import Any

from tape.namespaces.namespace import Namespace

_NAMESPACE = Namespace(__name__, "jax.numpy.linalg")
__all__ = _NAMESPACE.names  # noqa: PLE0605 - the names of the JAX module


def __getattr__(name: str) -> Any:
    return _NAMESPACE.get(name)


def __dir__() -> list[str]:
    return __all__
