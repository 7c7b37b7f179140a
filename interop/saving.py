"""Saving and loading: modules, optimizers and pytrees of Variables, under dotted names, in a file of safetensors or a folder of orbax.

A save writes beside what is there and takes its place in one step, so that one which is cut off loses nothing.  A load reads and compares
everything before it changes anything.
"""

from __future__ import annotations

import copy
import importlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from interop.encoding import decoded, encoded, is_key, is_scalar
from interop.modules import Bridge, dotted, same_kind, value_of
from tape import extend
from tape.errors import TapeTypeError, TapeValueError

__all__ = ["load", "load_state_dict", "named_leaves", "save", "state_dict"]

_ROOT = "value"  # the name of a single Variable or array
_FORMATS = {"safetensors": "interop.safetensors", "orbax": "interop.orbax"}


def save(path: str | os.PathLike[str], state: Any, *, format: str | None = None) -> None:  # noqa: A002 - the word for it
    """Save a state, bit for bit: what :func:`load` needs to go on from here.

    A resumed run is the uninterrupted one to the last bit where both run under ``with tape.reproducible():``, or their steps under
    :func:`tape.jit`.  Other steps are interpreted at first and compiled later, which rounds differently: there, it is so but for rounding.

    What was saved at this path before is replaced at the end, in one step: a save that is cut off at any moment loses nothing of it.
    Several processes may save what all of them have at one path (.safetensors): there is the whole of what one of them saved, at any time.

    Args:
        path: of a file whose name ends in ".safetensors", or of a folder, which orbax writes.
        state: a module of one of the bridges, an optimizer, a Variable, an array, or a pytree of such: typically a dictionary of a model,
            its optimizer, a random key, and the number of steps.  Numbers and strings are saved as what they are, and so are typed keys,
            NumPy's random generators, weak types, and all dtypes of JAX.  Functions in it are static and not saved.
        format: "safetensors" or "orbax"; None: as the path says.

    Raises:
        TapeTypeError: something in it cannot be saved.
        TapeValueError: two values would have one name; ``format`` is none of those; a value is in part on devices of other processes, or
            orbax is to write for one of several.
        TapeImportError: the package for the format is not installed.

    Example:
        >>> import os, tempfile, interop, tape
        >>> w = tape.Variable([1.0, 2.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "run.safetensors")
        ...     interop.save(path, {"w": w, "step": 3})
        ...     w.value = w.value * 0
        ...     interop.load(path, {"w": w, "step": 0})["step"], w.numpy().tolist()
        (3, [1.0, 2.0])

    """
    place = _place("save", path)
    _module(place, format).write(place, *encoded(state_dict(state)))


def load(
    path: str | os.PathLike[str],
    state: Any = None,
    *,
    strict: bool = True,
    format: str | None = None,  # noqa: A002 - as in save
) -> Any:
    """Load what :func:`save` has saved, or another program has in the same format.

    Args:
        path: of the file or folder.
        state: of the structure that was saved.  Its Variables, modules, optimizers and generators are given what was saved, once all of it
            is there and fits.  None: only read.
        strict: refuse names that are missing or too many, and other dtypes; otherwise names are passed over, and values cast to the dtype
            that is there, where both are of the same kind.
        format: as for :func:`save`.

    Returns:
        ``state`` with what was saved in place of its arrays, keys, numbers and strings; without a state a dictionary of all values
        by name (NumPy arrays where JAX has not the dtype, as float64 without x64).

    Raises:
        FileNotFoundError: there is nothing.
        TapeValueError: it is cut off or damaged, or does not fit the state: which names, shapes and dtypes differ is said, and nothing is
            changed.
        TapeTypeError: something in ``state`` cannot be loaded.
        TapeImportError: the package for the format is not installed.

    Example:
        >>> import os, tempfile, interop, tape
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "run.safetensors")
        ...     interop.save(path, {"layers": [tape.Variable([1.0, 2.0])], "name": "run"})
        ...     sorted(interop.load(path))
        ['layers.0', 'name']

    """
    place = _place("load", path)
    values = decoded(os.fspath(path), *_module(place, format).read(place))
    return values if state is None else _loaded(f"load: {os.fspath(path)}", state, values, strict=strict)


def state_dict(state: Any) -> dict[str, Any]:
    """Return the values in a state by dotted name, as arrays, keys, numbers and strings.

    Args:
        state: as for :func:`save`.

    Raises:
        TapeTypeError: something in it is none of these.
        TapeValueError: two values would have one name.

    Example:
        >>> import interop.saving, tape
        >>> interop.saving.state_dict({"layers": [tape.Variable(2.0)], "step": 3})
        {'layers.0': Array(2., dtype=float32, weak_type=True), 'step': 3}

    """
    entries: dict[str, Any] = {}
    for name, leaf in _parts(state):
        if _is_stateful(leaf):
            given = {_joined(name, inner): value for inner, value in leaf.state_dict().items()}
        elif extend.is_variable(leaf):
            given = {name or _ROOT: extend.array(leaf)}
        else:
            given = {name or _ROOT: copy.deepcopy(leaf) if isinstance(leaf, np.random.Generator) else leaf}
        for inner, value in given.items():
            if inner in entries:
                msg = f"save: two values of the state have the name {inner!r}; give them other keys"
                raise TapeValueError(msg)
            entries[inner] = value
    return entries


def load_state_dict(state: Any, values: Mapping[str, Any], *, strict: bool = True) -> Any:
    """Give a state the values that :func:`state_dict` returned; as :func:`load` does.

    Args:
        state: as for :func:`load`.
        values: by dotted name.
        strict: as for :func:`load`.

    Returns:
        As :func:`load`.

    Raises:
        TapeValueError: the values do not fit the state: which names, shapes and dtypes differ is said, and nothing is changed.
        TapeTypeError: something in ``state`` cannot be loaded.

    Example:
        >>> import interop.saving, tape
        >>> w = tape.Variable(2.0)
        >>> interop.saving.load_state_dict({"w": w, "step": 0}, {"w": 5.0, "step": 3})["step"], float(w)
        (3, 5.0)

    """
    return _loaded("load_state_dict", state, values, strict=strict)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a pytree with their dotted paths; Variables, and what has a ``state_dict``, are leaves.

    Example:
        >>> from interop.saving import named_leaves
        >>> named_leaves({"a": [1, {"b": 2}]})
        [('a.0', 1), ('a.1.b', 2)]

    """
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: extend.is_variable(x) or _is_stateful(x))
    return [(dotted(path), leaf) for path, leaf in leaves]


def _place(function: str, path: str | os.PathLike[str]) -> pathlib.Path:
    try:
        return pathlib.Path(path).resolve()
    except TypeError as e:
        msg = f"{function}: path must be a string or a path, got {type(path).__name__}"
        raise TapeTypeError(msg) from e


def _module(path: pathlib.Path, chosen: str | None) -> Any:
    chosen = chosen or ("safetensors" if path.suffix == ".safetensors" or path.is_file() else "orbax")
    if chosen not in _FORMATS:
        msg = f"save, load: format must be one of {', '.join(map(repr, _FORMATS))} or None, got {chosen!r}"
        raise TapeValueError(msg)
    return importlib.import_module(_FORMATS[chosen])


def _is_stateful(x: object) -> bool:
    return not isinstance(x, type) and callable(getattr(x, "state_dict", None)) and callable(getattr(x, "load_state_dict", None))


def _joined(name: str, inner: str) -> str:
    return f"{name}.{inner}" if name else inner


def _parts(state: Any) -> list[tuple[str, Any]]:
    """Return what is to be saved, by name."""
    parts = []
    for name, leaf in named_leaves(state):
        if _is_stateful(leaf) or extend.is_variable(leaf) or is_scalar(leaf) or isinstance(leaf, (jax.Array, np.random.Generator)):
            parts.append((name, leaf))
        elif isinstance(leaf, (np.ndarray, np.generic)):
            if leaf.dtype.kind not in "OSUMmT" and leaf.dtype.names is None:
                parts.append((name, leaf))
                continue
            msg = f"save, load: {name or _ROOT} is an array of dtype {leaf.dtype}; numbers can be saved, and strings on their own"
            raise TapeTypeError(msg)
        elif not callable(leaf):
            msg = (
                f"save, load: {name or _ROOT} is a {type(leaf).__name__}; what can be saved are Variables, arrays, keys, numbers, strings, "
                "NumPy's generators, and objects with state_dict() and load_state_dict()"
            )
            raise TapeTypeError(msg)
    return parts


def _loaded(what: str, state: Any, values: Mapping[str, Any], *, strict: bool) -> Any:
    """Compare all, then change all; return the state with the new values of what cannot be changed in place."""
    parts = _parts(state)
    present = state_dict(state)
    differences = [f"{name!r} is missing" for name in present if name not in values] if strict else []
    differences += [f"{name!r} is not of the state" for name in values if name not in present] if strict else []
    ready: dict[str, Any] = {}
    free = {_joined(name, n) for name, leaf in parts if isinstance(leaf, Bridge) for n in leaf.state_of_any_dtype()}
    for name, old in present.items():
        if name in values:
            difference, ready[name] = _fitting(values[name], old, strict=strict, cast=name not in free)
            differences += [f"{name!r} {difference}"] if difference else []
    differences = differences or _contradictions(parts, ready)
    if differences:
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        names = set(present) != set(values)
        advice = "; pass strict=False to load those of the names that both have" if strict and names else ""
        msg = f"{what} does not fit the state: {'; '.join(differences[:_SHOWN])}{more}. Nothing was changed{advice}"
        raise TapeValueError(msg)
    _changed(parts, present, ready)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _replaced(leaf, ready.get(dotted(path) or _ROOT, leaf)),
        state,
        is_leaf=lambda x: extend.is_variable(x) or _is_stateful(x),
    )


def _contradictions(parts: list[tuple[str, Any]], ready: dict[str, Any]) -> list[str]:
    """Say which names of one Variable have different values."""
    first: dict[int, str] = {}
    contradictions = []
    for name, leaf in parts:
        if extend.is_variable(leaf) and (name or _ROOT) in ready:
            other = first.setdefault(id(extend.identity(leaf)), name)
            if other != name and not is_key(ready[name]) and not jnp.array_equal(ready[name], ready[other], equal_nan=True):
                contradictions.append(f"{name!r} has another value than {other!r}, and both are one Variable in the state")
    return contradictions


_SHOWN = 8  # differences in a message


def _replaced(leaf: Any, value: Any) -> Any:
    return leaf if extend.is_variable(leaf) or _is_stateful(leaf) or isinstance(leaf, np.random.Generator) or callable(leaf) else value


def _changed(parts: list[tuple[str, Any]], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Give all that can be changed its new value; should one refuse, all have their old ones again."""
    done: list[tuple[str, Any]] = []
    try:
        for name, leaf in parts:
            done.append((name, leaf))
            _set(name, leaf, after)
    except BaseException:  # Ctrl-C too
        for name, leaf in done:
            _set(name, leaf, before)
        raise


def _set(name: str, leaf: Any, values: dict[str, Any]) -> None:
    if _is_stateful(leaf):
        inner = {_joined(name, n): n for n in leaf.state_dict()}
        given = {n: values[full] for full, n in inner.items() if full in values}
        leaf.load_state_dict(given, **({} if len(given) == len(inner) else {"strict": False}))
    elif (name or _ROOT) not in values:
        return
    elif extend.is_variable(leaf):
        extend.identity(leaf).value = values[name or _ROOT]
    elif isinstance(leaf, np.random.Generator):
        leaf.bit_generator.state = values[name or _ROOT].bit_generator.state


def _fitting(value: Any, old: Any, *, strict: bool, cast: bool) -> tuple[str, Any]:
    """Return what is different about a value, or nothing, and what is to be there in place of ``old``."""
    value = value_of(value)
    if isinstance(old, (str, np.random.Generator)) or isinstance(value, (str, np.random.Generator)):
        return ("" if type(value) is type(old) else f"is a {_kind(value)}, and a {_kind(old)} in the state"), value
    if is_scalar(old):
        fits = type(value) is type(old) or (not strict and np.ndim(value) == 0 and not is_key(value) and _holds(old, value))
        return ("" if fits else f"is a {_kind(value)}, and a {_kind(old)} in the state"), type(old)(value) if fits else value
    if is_key(old) != is_key(value):
        return f"is of dtype {_kind(value)}, and of {_kind(old)} in the state", value
    if is_scalar(value):
        if not _holds(old, value):
            return f"is a {_kind(value)}, and of {_kind(old)} in the state", value
        value = jnp.asarray(value, old.dtype) if isinstance(old, jax.Array) else np.asarray(value, old.dtype)
    if value.shape != old.shape:
        return f"has shape {value.shape}, and {old.shape} in the state", value
    if value.dtype != (old.dtype.newbyteorder("=") if isinstance(old.dtype, np.dtype) else old.dtype):
        if (strict and cast) or not same_kind(value.dtype, old.dtype):
            return f"has dtype {value.dtype}, and {old.dtype} in the state", value
        value = value.astype(old.dtype) if cast else value
    if isinstance(old, jax.Array):
        value = value if isinstance(value, jax.Array) else jnp.array(value)
        return "", jax.device_put(value, old.sharding) if old.committed and value.sharding != old.sharding else value
    return "", old.dtype.type(value) if isinstance(old, np.generic) else np.array(value, old.dtype)


def _holds(old: Any, number: Any) -> bool:
    """Tell whether what is of the kind of ``old`` holds a number: an integer no fraction, a real one no imaginary part."""
    return _rank(number) <= _rank(old)


def _rank(number: Any) -> int:
    dtype = number.dtype if hasattr(number, "dtype") else np.asarray(number).dtype
    return next(i for i, kind in enumerate((np.bool_, jnp.integer, jnp.floating, jnp.complexfloating)) if jnp.issubdtype(dtype, kind))


def _kind(value: Any) -> str:
    return str(value.dtype) if hasattr(value, "dtype") else type(value).__name__
