"""What a Variable gets from tables of operators and methods is declared in ``declared.pyi``, for type checkers and editors alone.

``python -m tests.typing.stubs`` writes that from the tables and JAX's signatures.
"""

from __future__ import annotations

from tape.graph.segment import Handle as Declared

__all__ = ["Declared"]
