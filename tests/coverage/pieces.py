"""What a worker of ``python -m tests.coverage`` does."""

from tests.coverage import functions, primitives


def rows_of(piece):
    """Make the rows of some primitives or functions."""
    kind, names, parts = piece
    return kind, (primitives if kind == "primitive" else functions).rows(names, parts)
