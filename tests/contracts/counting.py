"""Functions that count how often their backward is called, or fail in it."""

import tape


class BackwardError(Exception):
    """What a failing backward, rule or hook of a test raises."""


def counted(gradient=lambda g: g):
    """Return an identity with the given backward, and the list of the cotangents it was called with."""
    calls = []

    class Counted(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            calls.append(g)
            return gradient(g)

    return Counted.apply, calls


def failing(g):
    """Raise, as a backward or a hook."""
    raise BackwardError
