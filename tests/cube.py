"""The smallest ``tape.Function`` that saves a value and can be differentiated again."""

import tape


class Cube(tape.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved
        return 3 * x * x * g
