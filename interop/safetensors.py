"""Files of safetensors: written beside and renamed, so that there is the old one or the new one."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
from typing import Any

from interop.arrival import needing

with needing("safetensors", "safetensors"):
    import safetensors
    import safetensors.numpy

from collections.abc import Mapping

import numpy as np

from tape.errors import TapeValueError

__all__ = ["read", "write"]

_NOTES = "jax-tape"  # the name of ours among a file's metadata


def write(path: pathlib.Path, arrays: Mapping[str, np.ndarray[Any, Any]], notes: str) -> None:
    """Write a file: after this it is the new one, on the disk; before, and if anything fails, the old one.

    Example:
        >>> import pathlib, tempfile, numpy as np
        >>> from interop import safetensors
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     safetensors.write(pathlib.Path(folder, "state"), {"w": np.ones(2)}, "step 3")
        ...     safetensors.read(pathlib.Path(folder, "state"))
        ({'w': array([1., 1.])}, 'step 3')

    """
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        safetensors.numpy.save_file(dict(arrays), beside, {_NOTES: notes})
        _synchronise(beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # not every system can do that with a folder
        _synchronise(path.parent)


def read(path: pathlib.Path) -> tuple[dict[str, np.ndarray[Any, Any]], str | None]:
    """Return a file's arrays, and the notes that were written with them, if they were.

    Raises:
        TapeValueError: it is not a file of safetensors, or is cut off.

    Example:
        >>> import pathlib, tempfile, numpy as np
        >>> from interop import safetensors
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     safetensors.write(pathlib.Path(folder, "state"), {"w": np.ones(2)}, "step 3")
        ...     arrays, notes = safetensors.read(pathlib.Path(folder, "state"))
        >>> notes
        'step 3'

    """
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, (file.metadata() or {}).get(_NOTES)  # noqa: SIM118 - not a dictionary
    except safetensors.SafetensorError as e:
        msg = f"load: {path} is cut off or damaged, or no file of safetensors ({e}); take another copy"
        raise TapeValueError(msg) from e


def _synchronise(path: pathlib.Path) -> None:
    """Have what was written be on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
