"""Configuration: the settings of JAX that change what an op means or how it runs, and noticing that one of them changed.

An entry runs with the settings in force when it was recorded, so a segment belongs to one configuration.  Asking JAX for each setting at
each entry would cost more than recording it; so JAX's settings tell us when they change (:func:`_watch`), and an entry only
compares one number (:class:`Changes`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from tape import jaxapi, layout

Configuration = tuple[Any, ...]  # one value per setting in jaxapi.SETTINGS; equal ones are one object


class Changes(layout.Changes):
    """``epoch`` is a new number after each change of a setting for the whole process."""

    __slots__ = ()

    def __init__(self) -> None:
        self.epoch: Any = 1 << 10  # compared by identity, and small numbers are shared


class _Asking:
    """Where JAX's settings cannot be watched: ``epoch`` asks for all of them, at every entry."""

    @property
    def epoch(self) -> Configuration:
        return _read()


class _Seen(threading.local):
    """What a thread knows of its settings, and the epoch in which it asked (None: it changed one since)."""

    epoch: Any = None
    settings: Configuration = ()


_SEEN = _Seen()
_KNOWN: dict[Configuration, Configuration] = {}
_LISTENERS: list[Callable[[], None]] = []


def _read() -> Configuration:
    values = tuple([setting.value for setting in jaxapi.SETTINGS])
    return _KNOWN.setdefault(values, values)


def configuration() -> Configuration:
    """Return this thread's settings; the same object as long as they are equal."""
    epoch = CHANGES.epoch
    if _SEEN.epoch is not epoch:
        _SEEN.settings = _read()
        _SEEN.epoch = epoch
    return _SEEN.settings


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` in a thread that changes a setting for itself."""
    _LISTENERS.append(listener)


def _changed(everywhere: bool) -> None:
    if everywhere and isinstance(CHANGES, Changes):
        CHANGES.epoch += 1
    _SEEN.epoch = None
    for listener in _LISTENERS:
        listener()


@contextlib.contextmanager
def sixty_four_bits() -> Iterator[None]:
    """Allow 64-bit types."""
    if jaxapi.X64.value:
        yield
    else:
        with jaxapi.SETTINGS[0].set_to(True):
            yield


_PROMOTION = [(i, s, usual) for i, s in enumerate(jaxapi.SETTINGS) if (usual := jaxapi.USUAL_PROMOTION.get(s.name))]


def promoting() -> contextlib.AbstractContextManager[None]:
    """Have JAX promote dtypes and ranks as it does by default, for code of the library's own; the user's is held to the settings."""
    present = configuration()
    if all(present[i] == usual for i, _, usual in _PROMOTION):
        return _UNCHANGED
    return applying(tuple([jaxapi.USUAL_PROMOTION.get(s.name, value) for s, value in zip(jaxapi.SETTINGS, present, strict=True)]))


_UNCHANGED = contextlib.nullcontext()

_DEBUGGING = [i for i, s in enumerate(jaxapi.SETTINGS) if s.name in {"jax_debug_nans", "jax_debug_infs"}]


def checks_results() -> bool:
    """Tell whether the result of every single op is to be checked."""
    settings = configuration()
    return any(settings[i] for i in _DEBUGGING)


@contextlib.contextmanager
def applying(wanted: Configuration) -> Iterator[None]:
    """Have JAX's settings be those of ``wanted``."""
    present = configuration()
    with contextlib.ExitStack() as stack:
        if present is not wanted:
            for setting, old, new in zip(jaxapi.SETTINGS, present, wanted, strict=True):
                if old != new:
                    stack.enter_context(setting.set_to(new))
        yield


def _noticed() -> bool:
    """Try whether every setting tells when it is changed, and when it is changed back."""
    for setting in jaxapi.SETTINGS:
        _SEEN.epoch = 0
        with setting.set_to(setting.value):
            if _SEEN.epoch is not None:
                return False
            _SEEN.epoch = 0
        if _SEEN.epoch is not None:
            return False
    return True


def _watch(changed: Callable[[bool], None]) -> bool:
    """Have ``changed`` called at every change of a setting, with whether it is one for the whole process.

    JAX gives no such notice.  Its settings are objects of one class, whose setters (which its documentation does not list) are wrapped
    here.  Returns False where a release has others: then whoever needs to know must ask.
    """
    kind: Any = type(getattr(jax, "debug_nans", None))
    names = {setting.name for setting in jaxapi.SETTINGS}
    setters = {"swap_local": False, "set_local": False, "set_global": True}
    if not all(callable(getattr(kind, name, None)) for name in setters):
        return False

    def wrapped(original: Callable[..., Any], everywhere: bool) -> Callable[..., Any]:
        def setter(setting: object, *args: object) -> object:
            try:
                return original(setting, *args)
            finally:
                if getattr(setting, "name", None) in names:
                    changed(everywhere)

        return setter

    for name, everywhere in setters.items():
        setattr(kind, name, wrapped(getattr(kind, name), everywhere))
    return True


CHANGES: Any = Changes() if _watch(_changed) and _noticed() else _Asking()
