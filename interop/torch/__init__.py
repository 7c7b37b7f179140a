"""PyTorch and the tape, in both directions: a torch function or module is one op, and a function of the tape is one of torch's.

**Dtypes** stay as they are, ``bfloat16`` and ``float16`` too.  With JAX's x64 mode off there is no 64-bit array: ``int32`` arguments are
``int64`` for torch (whose indices are), integers that come back are checked to fit, and ``float64`` or ``complex128`` that would come back
is refused rather than rounded.  Complex gradients are conjugated on the way: torch's are the conjugates of JAX's.

**Memory.**  Gradients are handed over without a copy, by DLPack or by NumPy's view of it; on an accelerator JAX copies what comes from
torch.  What torch code could write to in place is copied: arguments, results, and a parameter when it has changed; an operation in place
inside of a torch function changes no Variable.

**Devices.**  A torch module computes on the device that it was on when it was wrapped, a torch function where JAX does with the Variables
that it is given (on the device that they are bound to, or JAX's default one), and all arguments go there, tensors of torch among them too.
Parameters are on JAX's default device, and what comes back is where JAX computes.  A function of the tape computes where JAX does by
default; its results are on the device of its first tensor, gradients on those of the tensors that they belong to.  What goes from one
device to another is copied, and does not need to be one that both libraries have.

**Random numbers** are torch's, of its global generator: ``torch.manual_seed`` makes a run reproducible, and derivatives of any order are
those of the masks that the forward drew, which runs once.  Inside of ``tape.jit``, ``tape.checkpoint`` and ``jax.jit`` see
:func:`from_torch`.

**Threads.**  Calls of one module exclude each other.  Gradients of :func:`to_torch` may be taken in any thread of torch's.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401 - to say what is missing
except ImportError as e:
    from tape.errors import TapeImportError

    msg = (
        "interop.torch needs the package torch, which is not installed; run pip install 'jax-tape[torch]' (the build for CPUs: add "
        "--index-url https://download.pytorch.org/whl/cpu)"
    )
    raise TapeImportError(msg, name=e.name, path=e.path) from e

from interop.torch.module import Module, from_torch
from interop.torch.outward import to_torch

__all__ = ["Module", "from_torch", "to_torch"]
