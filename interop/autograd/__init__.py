"""A facade for programs written for HIPS autograd: change ``autograd`` to ``interop.autograd`` in their imports.

Functions get Variables in place of boxes, and the containers that they are in are Python's own.  What comes back is NumPy's: arrays,
and ``numpy.float64`` for single numbers; a Variable only inside another operator that differentiates by what it depends on.  Functions
of :mod:`interop.autograd.numpy` and :mod:`interop.autograd.scipy` that meet no Variable are NumPy's and SciPy's own.

All is computed in 64 bits where the arguments are, whatever ``jax_enable_x64`` says: that setting is on in the thread that calls an
operator, as long as the call lasts, and as it was before when the call is over.  So other code on JAX sees no change, unless it runs
inside a function that is differentiated here.

Example:
    >>> import interop.autograd.numpy as np
    >>> from interop.autograd import grad
    >>> def tanh(x):
    ...     y = np.exp(-2.0 * x)
    ...     return (1.0 - y) / (1.0 + y)
    >>> round(float(grad(tanh)(1.0)), 12)
    0.419974341614

"""

from __future__ import annotations

import importlib
from typing import Any

from interop.autograd.builtins import dict, isinstance, list, tuple, type  # noqa: A004 - they have these names there
from interop.autograd.differential_operators import (
    checkpoint,
    deriv,
    elementwise_grad,
    grad,
    grad_and_aux,
    grad_named,
    hessian,
    hessian_tensor_product,
    hessian_vector_product,
    holomorphic_grad,
    jacobian,
    make_ggnvp,
    make_hvp,
    make_jvp,
    make_vjp,
    multigrad_dict,
    tensor_jacobian_product,
    value_and_grad,
    vector_jacobian_product,
)
from interop.autograd.primitives import with_deprecated_methods as primitive
from tape.errors import TapeAttributeError

__all__ = [
    "checkpoint",
    "deriv",
    "dict",
    "elementwise_grad",
    "grad",
    "grad_and_aux",
    "grad_named",
    "hessian",
    "hessian_tensor_product",
    "hessian_vector_product",
    "holomorphic_grad",
    "isinstance",
    "jacobian",
    "list",
    "make_ggnvp",
    "make_hvp",
    "make_jvp",
    "make_vjp",
    "multigrad_dict",
    "primitive",
    "tensor_jacobian_product",
    "tuple",
    "type",
    "value_and_grad",
    "vector_jacobian_product",
]

_MODULES = frozenset(
    {"builtins", "core", "differential_operators", "extend", "misc", "numpy", "scipy", "test_util", "tracer", "util", "wrap_util"}
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"interop.autograd.{name}")
    msg = f"module 'interop.autograd' has no attribute {name!r}"
    raise TapeAttributeError(msg)


def __dir__() -> Any:
    return sorted({*__all__, *_MODULES})
