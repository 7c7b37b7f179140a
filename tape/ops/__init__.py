"""One entry: ops, the kernels that they are at given shapes, and the derivative of one.

It has JAX's name for sums over segments as well: ``tape.ops.segment_sum`` and the other functions of :mod:`jax.ops` are mirrored here.
"""

from __future__ import annotations

from typing import Any

from jax import ops

__all__ = sorted(name for name in dir(ops) if not name.startswith("_"))  # noqa: PLE0605 - what JAX has


def __getattr__(name: str) -> Any:
    if name in __all__:
        from tape.namespaces.namespace import Namespace  # noqa: PLC0415 - the modules below are parts of what it stands on

        return Namespace(__name__, "jax.ops").get(name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__
