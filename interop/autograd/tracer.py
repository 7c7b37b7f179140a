"""Values of Variables, and primitives, by the names that programs import from here."""

from __future__ import annotations

from interop.autograd.primitives import getval, notrace_primitive, primitive, register_notrace
from interop.autograd.trees import is_variable

__all__ = ["getval", "isbox", "notrace_primitive", "primitive", "register_notrace"]


def isbox(x: object) -> bool:
    """Tell whether something is a value that is being differentiated by: a Variable."""
    return is_variable(x)
