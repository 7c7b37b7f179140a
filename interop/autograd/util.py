"""An old check of gradients, by the name that programs import from here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from interop.autograd.test_util import check_grads

__all__ = ["quick_grad_check"]


def quick_grad_check(fun: Callable[..., Any], arg0: Any, extra_args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> None:
    """Check the gradient by the first argument; use :func:`interop.autograd.test_util.check_grads`."""
    warnings.warn("quick_grad_check is deprecated; use test_util.check_grads", DeprecationWarning, stacklevel=2)
    check_grads(lambda x: fun(x, *extra_args, **(kwargs or {})), modes=["rev"], order=1)(arg0)
