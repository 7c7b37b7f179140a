"""Folders of orbax: written beside and renamed, so that there is the old one or the new one."""

from __future__ import annotations

import contextlib
import pathlib
import secrets
import shutil
from typing import Any

import jax
import numpy as np

from interop.arrival import needing

with needing("orbax-checkpoint", "orbax"):
    import orbax.checkpoint as ocp

from collections.abc import Mapping

from interop.modules import dotted
from tape.errors import TapeValueError

__all__ = ["read", "write"]

_STATE, _NOTES = "state", "notes"  # the items of a checkpoint


def write(path: pathlib.Path, arrays: Mapping[str, np.ndarray[Any, Any]], notes: str) -> None:
    """Write a folder: after this it is the new one; before, and if anything fails, :func:`read` finds the old one.

    Raises:
        TapeValueError: there are several processes, for which orbax would wait at every step.

    Example:
        >>> import pathlib, tempfile, numpy as np
        >>> from interop import orbax
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     orbax.write(pathlib.Path(folder, "state"), {"w": np.ones(2)}, "step 3")
        ...     orbax.read(pathlib.Path(folder, "state"))
        ({'w': array([1., 1.])}, 'step 3')

    """
    if jax.process_count() > 1:
        msg = (
            f"save: {path} is a folder of orbax, which writes one for all {jax.process_count()} processes together; save to a path that "
            "ends in .safetensors, or have orbax save the arrays by itself"
        )
        raise TapeValueError(msg)
    _recovered(path)
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    items = {_NOTES: ocp.args.JsonSave({_NOTES: notes})}
    if arrays:
        items[_STATE] = ocp.args.PyTreeSave(dict(arrays))
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(beside, ocp.args.Composite(**items))
        if path.exists():
            path.rename(_previous(path))
        beside.rename(path)
    except BaseException:
        _recovered(path)
        shutil.rmtree(beside, ignore_errors=True)
        raise
    shutil.rmtree(_previous(path), ignore_errors=True)


def read(path: pathlib.Path) -> tuple[dict[str, Any], str | None]:
    """Return a folder's arrays, and the notes that were written with them, if they were.

    Raises:
        FileNotFoundError: there is none.
        TapeValueError: it is not a checkpoint of orbax, or is damaged.

    Example:
        >>> import pathlib, tempfile, numpy as np
        >>> from interop import orbax
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     orbax.write(pathlib.Path(folder, "state"), {"w": np.ones(2)}, "step 3")
        ...     arrays, notes = orbax.read(pathlib.Path(folder, "state"))
        >>> notes
        'step 3'

    """
    _recovered(path)
    if not path.is_dir():
        raise FileNotFoundError(2, "there is no checkpoint", str(path))
    ours, state = (path / _NOTES).is_dir(), path / _STATE
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            restored = checkpointer.restore(path, ocp.args.Composite(**{_NOTES: ocp.args.JsonRestore()})) if ours else {}
        arrays = _arrays(state) if state.is_dir() else {} if ours else _arrays(path)
        notes = restored[_NOTES][_NOTES] if ours else None
    except Exception as e:  # of many kinds, from several libraries
        msg = f"load: {path} is cut off or damaged, or no checkpoint of orbax ({type(e).__name__}: {str(e)[:200]}); take another copy"
        raise TapeValueError(msg) from e
    return arrays, notes


def _arrays(path: pathlib.Path) -> dict[str, Any]:
    """Return the arrays of a pytree that orbax has saved, by dotted name, in the host's memory."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        described = checkpointer.metadata(path)
        tree = getattr(getattr(described, "item_metadata", described), "tree", described)
        wanted = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        restored = checkpointer.restore(path, ocp.args.PyTreeRestore(restore_args=wanted))
    leaves = jax.tree_util.tree_leaves_with_path(restored)
    return {dotted(at): leaf for at, leaf in leaves}


def _previous(path: pathlib.Path) -> pathlib.Path:
    """Return where the old folder is while a new one takes its place."""
    return path.with_name(path.name + ".previous")


def _recovered(path: pathlib.Path) -> None:
    """Have the old folder be there again where a save was cut off between its two renames; go on where it was after them."""
    if path.exists():
        shutil.rmtree(_previous(path), ignore_errors=True)
    elif _previous(path).is_dir():
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            _previous(path).rename(path)
