"""What scripts do, in the forms in which users write it."""

from __future__ import annotations

import contextlib
import copy
import operator
import threading

import jax.numpy as jnp
import numpy as np

import interop
import tape
import tape.lax
import tape.numpy as tnp


class StopError(Exception):
    """A hook raises it."""


# -- one op with two results, in many forms ---------------------------------------------------------------------------------


class Pair(tape.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b, tnp.sin(a)

    @staticmethod
    def backward(ctx, product, sine):
        a, b = ctx.saved
        by_a = None if product is None else product * b
        if sine is not None:
            by_a = sine * tnp.cos(a) + (0 if by_a is None else by_a)
        return by_a, None if product is None else product * a


def _pair(a, b):
    return a * b, tnp.sin(a)


def _raw_pair(a, b):
    return a * b, jnp.sin(a)


lifted, jitted, checkpointed = interop.lift(_raw_pair), tape.jit(_pair), tape.checkpoint(_pair)


def _scanned(a, b):
    last, sines = tape.lax.scan(lambda c, s: (c * s, tnp.sin(c)), a, b[None])
    return last, sines[0]


def _switched(a, b):
    return tape.lax.cond(True, lambda a: (a * b, tnp.sin(a)), lambda a: (a, b), a)


def _mapped(a, b):
    products, sines = tape.lax.map(lambda ab: (ab[0] * ab[1], tnp.sin(ab[0])), (a[None], b[None]))
    return products[0], sines[0]


def _counted(a, b):
    product, sine = tape.lax.fori_loop(0, 2, lambda i, c: tape.lax.cond(i == 1, lambda p, s: (p * b, tnp.sin(s)), lambda *c: c, *c), (a, a))
    return product, sine


def _looped(a, b):
    """The sum, besides a loop of a number of rounds that is known when it runs, through which nothing flows."""
    rounds = tape.lax.while_loop(lambda n: n < 3, lambda n: n + 1, tape.stop_gradient(a * 0).astype(int).sum())
    return a + b * (rounds - 2)


class Several(tape.Function):
    """The pair, and a number that is no float; its second input is none, either."""

    @staticmethod
    def forward(ctx, a, n, b):
        ctx.save_for_backward(a, b)
        return a * b, n + 1, tnp.sin(a)

    @staticmethod
    def backward(ctx, product, number, sine):
        assert number is None
        by_a, by_b = Pair.backward(ctx, product, sine)
        return by_a, None, by_b


mapped, lowered = tape.vmap(_pair), interop.lift(interop.lower(_pair))

PAIRS = {
    "lift": lambda a, b: lifted(a, b),
    "lift anew": lambda a, b: interop.lift(lambda a, b: _raw_pair(a, b))(a, b),
    "function": Pair.apply,
    "jit": lambda a, b: jitted(a, b),
    "checkpoint": lambda a, b: checkpointed(a, b),
    "capture": lambda a, b: tape.checkpoint(lambda a: (a * b, tnp.sin(a)))(a),
    "scan": _scanned,
    "cond": _switched,
    "map": _mapped,
    "fori": _counted,
    "switch": lambda a, b: tape.lax.switch(tape.constant(1), [lambda a, b: (a, b), _pair], a, b),
    "vmap": lambda a, b: mapped(a, b),
    "lowered": lambda a, b: lowered(a, b),
    "several": lambda a, b: Several.apply(a, tape.constant(2), b)[::2],
    "nested": lambda a, b: tape.checkpoint(lambda a, b: jitted(a, b))(a, b),
    "function within": lambda a, b: tape.checkpoint(lambda b: Pair.apply(a, b))(b),
}
DENSE = {"scan", "cond", "fori", "switch", "function within"}  # whose derivatives are zeros where others have none
SINGLE = {"lift", "lift anew", "function", "checkpoint", "capture", "cond"}  # those that are one entry
UNARY = {
    "sin": tnp.sin,
    "neg": lambda v: -v,
    "sum": lambda v: v.sum(),
    "half": lambda v: v * 0.5,
    "copied": lambda v: tnp.positive(v),
    "stop": tape.stop_gradient,
    "complex": lambda v: tnp.real(v * (0.5 + 0.5j) * (1 - 1j)),
    "reverse": lambda v: v[::-1] if v.shape else v * 1.0,
    "rotate": lambda v: v[tape.constant([2, 0, 1])] if v.shape else v * 1.0,
    "rotate by a key": lambda v: tnp.take(v, np.array([2, 0, 1])) if v.shape else v * 1.0,
    "in place": lambda v: v * 1.0 if v.is_leaf else operator.imul(copy.copy(v), 1.0),
}
BINARY = {
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "complex squares": lambda a, b: tnp.real((a + 1j * b) ** 2),
    "while": _looped,
}


# -- a derivative that a transform takes: cos(a) * b -------------------------------------------------------------------------


def _by_jacobian(a, b):
    matrix = tape.jacrev(tnp.sin)(a)
    return matrix * b if a.shape == () else b @ matrix


def _by_map(a, b):
    slopes = tape.vmap(tape.grad(tnp.sin))
    return slopes(a.reshape(-1)).reshape(a.shape) * b


DERIVED = {
    "grad": lambda a, b: tape.grad(lambda q: (tnp.sin(q) * b).sum())(a),
    "vjp": lambda a, b: tape.vjp(tnp.sin, a)[1](b)[0],
    "jvp": lambda a, b: tape.jvp(tnp.sin, (a,), (b,))[1],
    "linearize": lambda a, b: tape.linearize(tnp.sin, a)[1](b),
    "hvp": lambda a, b: tape.hvp(lambda q: -tnp.cos(q).sum(), (a,), (b,)),
    "jacobian": _by_jacobian,
    "map": _by_map,
}


# -- modes -----------------------------------------------------------------------------------------------------------------


class Negate(tape.OpHook):
    """Changes the sign of all that goes back through an op."""

    def backward_postprocess(self, op, input_grads):
        return [None if g is None else -g for g in input_grads]


@contextlib.contextmanager
def _again():
    with tape.no_grad(), tape.enable_grad():
        yield


IN_MODES = {
    "": contextlib.nullcontext,
    "no_grad": tape.no_grad,
    "eager": tape.eager,
    "enabled again": _again,
    "disabled": lambda: tape.set_grad_enabled(False),
    "packed": lambda: tape.saved_value_hooks(np.asarray, tape.constant),
    "on host": tape.save_on_host,
    "noted": tape.Tape,
    "watched": tape.detect_anomaly,
    "negated": Negate,
    "thread": contextlib.nullcontext,
}


def in_mode(mode, function, *args):
    """Call a function in a mode."""

    def run():
        with IN_MODES[mode]():
            function(*args)

    if mode != "thread":
        run()
        return
    raised = []

    def keep():
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - it is raised where the thread was begun
            raised.append(error)

    thread = threading.Thread(target=keep)
    thread.start()
    thread.join()
    for error in raised:
        raise error
