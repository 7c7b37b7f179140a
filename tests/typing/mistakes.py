"""What type checkers are to find: each line that says so is an error for mypy and for pyright, and no other line is."""

from __future__ import annotations

import tape
import tape.numpy as tnp


def loss(x: tape.Variable, scale: float = 1.0) -> tape.Variable:
    return (scale * x).sum()


x = tape.Variable([1.0, 2.0])
tape.gradient(loss(x), x)  # error: no such function
tnp.sinn(x)  # error: nor this one
x.summ()  # error: nor this method
x.sum(axes=0)  # error: nor this option
x + "1"  # error: no operand
tape.Variable([1.0], requires_gradient=True)  # error: no such option
x.shape = (2, 1)  # error: not assigned to
tape.gradients(loss(x), x).keys()  # error: one Variable comes back for one
tape.gradients(loss(x), [x]).sum()  # error: and a tuple for a sequence
x.grad.numpy()  # error: there may be none
tape.grad(loss)(x, size=2.0)  # error: what is transformed has its parameters
tape.jit(loss)(x, size=2.0)  # error: as above
tape.vmap(loss)(x, size=2.0)  # error: as above
tape.checkpoint(loss)(x, scale="large")  # error: and their types
tape.checkpoint(loss, x)  # error: arguments belong to what it returns
tape.op_hooks.Timer(by=3, colour="red")  # error: no such option
tape.Tape(kept=True)  # error: as above
