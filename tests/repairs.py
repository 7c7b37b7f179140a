"""What the rows of test_repairs build on: small functions with one thing left to go wrong."""

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

import tape
import tape.lax
import tape.numpy as tnp

__all__ = [
    "CalledBack",
    "assign",
    "called_back",
    "custom_call",
    "doubling",
    "got",
    "hooked",
    "hooking",
    "keeps_result",
    "kept",
    "made",
    "mapped",
    "packed",
    "put",
    "second",
    "solved",
]

got = []


def assign(variable, value):
    variable.value = value
    return value


def put(variable, value):
    variable[0] = value
    return value


def doubling(rule):
    """A new primitive that doubles, with a VJP rule or None."""
    primitive = Primitive("doubling")
    primitive.def_impl(lambda v: 2 * v)
    primitive.def_abstract_eval(lambda v: v)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda v: 2 * v, multiple_results=False))
    if rule is not None:
        tape.rules.defvjp(primitive, rule)
    return primitive


def hooked(x, **methods):
    hook = type("Hook", (tape.OpHook,), {name: lambda self, *args, f=method: f(*args) for name, method in methods.items()})()
    with tape.hooks(hook):
        return tape.gradients((x * x).sum(), x)


def hooking(hook):
    """The sum of squares, with a hook on what is squared."""

    def f(v):
        v = v * 1.0
        v.register_hook(hook)
        return (v * v).sum()

    return f


def keeps(ctx, v):
    ctx.save_for_backward(v)
    return v * v


def keeps_result(ctx, v):
    y = tnp.exp(v)
    ctx.save_for_backward(y)
    return 2 * y


def made(forward=keeps, backward=lambda ctx, g: 2 * g * ctx.saved[0]):
    """A ``tape.Function``: a square, unless said otherwise."""
    return type("Made", (tape.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def mapped(vmap):
    function = made()
    function.vmap = staticmethod(vmap)
    return jax.vmap(lambda a: function.apply(tape.constant(a)).value)(np.array([1.0, -2.0, 0.5], np.float32))


def packed(x, unpack):
    """Gradients where what is kept passes through a hook."""
    with tape.eager():  # so that something is kept of so short a program
        with tape.saved_value_hooks(lambda v: v, unpack):
            y = tnp.tanh(x).sum()
        return tape.gradients(y, x)


def kept(x, pack, unpack):
    """A sum of cubes of which hooks keep what sweeps read."""
    with tape.saved_value_hooks(pack, unpack):
        return (x * x * x).sum()


def second(backward, x, forward=keeps):
    """The derivative of the gradient that a backward computes."""
    gradient = tape.gradients(made(forward, backward).apply(x).sum(), x, create_graph=True)
    return tape.gradients(gradient.sum(), x)


def solved(m, b, transpose_solve=None, *, symmetric=False):
    return tape.lax.custom_linear_solve(lambda v: 2 * v, b, lambda f, b: b / 2, transpose_solve, symmetric=symmetric)


def called_back(v):
    """The square, computed by Python behind JAX's back."""
    return jax.pure_callback(lambda a: np.square(a), jax.ShapeDtypeStruct(v.shape, v.dtype), v)


CalledBack = made(lambda ctx, v: (ctx.save_for_backward(v), called_back(v))[1])


@jax.custom_vjp
def custom_call(v):
    """The same, with a derivative for JAX."""
    return called_back(v)


custom_call.defvjp(lambda v: (called_back(v), v), lambda v, g: (2 * g * v,))
