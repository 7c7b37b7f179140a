"""What to write in place of a conversion that has no answer."""

from __future__ import annotations

from tape.graph.segment import Handle


def for_conversion(what: str, variable: Handle) -> str | None:
    """Return what to write where ``what`` of a Variable failed; None where the words of the failure say it."""
    aval = variable._place.kind.aval
    if what == "bool" and aval.size:
        return "write (a < v) & (v < b) for a < v < b, v & w for v and w, and any(v is w for w in variables) for v in variables"
    if what == "format" and aval.shape:
        return "format one element, as in f'{v[0]:.2f}', or print v.numpy().round(2)"
    if what == "item" and aval.size != 1:
        return "index one element, or take v.tolist()"
    if what == "index":
        return "index one element" if aval.shape else "write int(v)"
    return None
