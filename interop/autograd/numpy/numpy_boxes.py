"""What a function that is differentiated sees, by the name that programs import: a Variable, with its value as ``_value``, too."""

from interop.autograd.tracing import plain
from tape.variables.variable import Variable as ArrayBox

__all__ = ["ArrayBox"]
ArrayBox._value = property(plain)  # type: ignore[attr-defined]
