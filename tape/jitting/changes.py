"""Why a function of ``tape.jit`` is compiled: what is not as it was in the last call."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from tape.accounts.records import APART, Change
from tape.bounded import Bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tape.accounts.records import Line


class Compiled(Protocol):
    """What is asked of a function of ``tape.jit``."""

    name: str
    reasons: list[str]  # why it was traced, the latest last
    calls: int
    __wrapped__: Callable[..., Any]


_MADE: Bounded[Hashable, weakref.ref[Compiled]] = Bounded("functions of tape.jit", 512)  # by code and line, the last one


def change_of(jitted: Compiled, line: Line | None, last: int) -> Change:
    """Say why it was traced, where it is called at this line, from which a function was compiled ``last`` at that call."""
    text = jitted.reasons[-1] if jitted.reasons else "first call"
    if text == "first call":
        key = (getattr(jitted.__wrapped__, "__code__", None), line)
        known = None if key[0] is None else _MADE.get(key)
        if key[0] is not None:
            _MADE[key] = weakref.ref(jitted)
        before = None if known is None else known()
        if known is None or (before is not None and (before is jitted or before.calls > last + APART)):
            return Change("new", text)
        return Change("function", f"the tape.jit of {jitted.name}, which is made anew")
    label, _, values = text.partition(": ")
    kind = "static" if label.startswith("static") else "settings" if label.startswith(("JAX's", "the ")) else "arguments"
    return Change(kind, f"{label} of {jitted.name}", values)
