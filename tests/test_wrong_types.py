"""What is of the wrong type, as every argument of what is public: a TapeError, whatever it is."""

import numpy as np
import optax
import pytest

import interop
import interop.optax
import tape
from tape.errors import TapeError

x = tape.Variable(np.array([1.0, 2.0, 3.0], np.float32))


def h():
    return (x * x).sum()


def hooked(result):
    """A sweep with a hook that returns this."""
    y = x * x
    y.register_hook(lambda g: result)
    y.sum().backward()


def unpacked(result):
    with tape.saved_value_hooks(lambda v: v, lambda v: result):
        y = tape.numpy.tanh(x * x).sum()
    y.backward()


WRONG = {
    "None": lambda: None,
    "text": lambda: "text",
    "a dict": lambda: {"a": 1},
    "a set": lambda: {1, 2},
    "a number": lambda: 3.5,
    "an object": object,
    "a list": lambda: [x, 3],
    "a generator": lambda: (v for v in (x,)),
    "an array": lambda: np.ones(2),
    "an array of text": lambda: np.array(["a", "b", "c"]),
    "a masked array": lambda: np.ma.masked_array(np.ones(3, np.float32), [0, 1, 0]),
    "a number beyond 64 bits": lambda: 10**30,
}

CALLS = {
    "backward": lambda b: tape.backward(b),
    "backward seeds": lambda b: tape.backward([h()], b),
    "backward inputs": lambda b: tape.backward(h(), inputs=b),
    "ignore": lambda b: tape.backward(h(), ignore=b),
    "gradients": lambda b: tape.gradients(h(), b),
    "gradients unc": lambda b: tape.gradients(h(), x, unconnected=b),
    "stream": lambda b: list(tape.stream_gradients(b)),
    "stream in": lambda b: list(tape.stream_gradients(h(), inputs=b)),
    "grad": lambda b: tape.grad(b)(x),
    "grad call": lambda b: tape.grad(lambda v: (v * v).sum())(b),
    "argnums": lambda b: tape.grad(lambda v: (v * v).sum(), argnums=b)(x),
    "grad returns": lambda b: tape.grad(lambda v: b)(x),
    "vjp": lambda b: tape.vjp(b, x),
    "vjp ct": lambda b: tape.vjp(lambda v: v * v, x)[1](b),
    "jvp": lambda b: tape.jvp(lambda v: v * v, b, b),
    "jvp t": lambda b: tape.jvp(lambda v: v * v, (x,), b),
    "linearize": lambda b: tape.linearize(lambda v: v * v, x)[1](b),
    "jacrev": lambda b: tape.jacrev(lambda v: v * v)(b),
    "jacfwd": lambda b: tape.jacfwd(lambda v: v * v)(b),
    "hessian": lambda b: tape.hessian(lambda v: (v * v).sum())(b),
    "hvp": lambda b: tape.hvp(lambda v: (v * v).sum(), b, b),
    "has_aux": lambda b: tape.grad(lambda v: b, has_aux=True)(x),
    "vmap": lambda b: tape.vmap(b),
    "vmap in": lambda b: tape.vmap(lambda v: v, in_axes=b)(x),
    "vmap out": lambda b: tape.vmap(lambda v: v, out_axes=b)(x),
    "vmap call": lambda b: tape.vmap(lambda v: v)(b),
    "vmap size": lambda b: tape.vmap(lambda v: v, axis_size=b)(x),
    "checkpoint": lambda b: tape.checkpoint(b),
    "checkpoint static": lambda b: tape.checkpoint(lambda v: v, static_argnums=b)(x),
    "checkpoint ret": lambda b: tape.checkpoint(lambda v: b)(x),
    "jit": lambda b: tape.jit(b),
    "jit static": lambda b: tape.jit(lambda v: v, static_argnums=b)(x),
    "jit call": lambda b: tape.jit(lambda v: v)(b),
    "jit names": lambda b: tape.jit(lambda v: v, static_argnames=b)(x),
    "Variable": lambda b: tape.Variable(b),
    "rg": lambda b: tape.Variable(1.0, requires_grad=b),
    "name": lambda b: tape.Variable(1.0, name=b),
    "value": lambda b: setattr(x, "value", b),
    "grad=": lambda b: setattr(x, "grad", b),
    "hook": lambda b: x.register_hook(b),
    "hook returns": hooked,
    "unpack": unpacked,
    "mgh": lambda b: tape.register_multi_grad_hook(b, print),
    "mgh2": lambda b: tape.register_multi_grad_hook([x], b),
    "mode": lambda b: tape.set_grad_enabled(b),
    "no_grad": lambda b: tape.no_grad()(b),
    "hooks": lambda b: tape.hooks(b).__enter__(),
    "svh": lambda b: tape.saved_value_hooks(b, b),
    "stop": lambda b: tape.stop_gradient(b),
    "lift": lambda b: interop.lift(b),
    "lower": lambda b: interop.lower(b),
    "lower ret": lambda b: interop.lower(lambda v: b)(1.0),
    "opt": lambda b: interop.optax.Optimizer(b, optax.sgd(0.1)),
    "opt2": lambda b: interop.optax.Optimizer([x], b),
    "ls": lambda b: interop.optax.Optimizer([x], optax.sgd(0.1), loss_scale=b),
    "closure": lambda b: interop.optax.Optimizer([x], optax.sgd(0.1)).step(b),
    "state": lambda b: interop.optax.Optimizer([x], optax.sgd(0.1)).load_state_dict(b),
    "save to": lambda b: interop.save(b, x),
    "load from": lambda b: interop.load(b),
    "obw": lambda b: interop.optax.Optimizer([x], optax.sgd(0.1)).backward(b),
    "checkpoint_name": lambda b: tape.checkpoint_name(x, b),
    "seq": lambda b: tape.checkpoint_sequential(b, x),
    "cscan": lambda b: tape.checkpoint_scan(b, x, x),
    "cscan2": lambda b: tape.checkpoint_scan(lambda c, e: (c, e), x, b),
    "once": lambda b: tape.once_differentiable(b),
    "defvjp": lambda b: tape.rules.defvjp(b, b),
    "item": lambda b: x.item(b),
    "index": lambda b: x[b],
    "iadd": lambda b: x + b,
    "update": lambda b: x.at[b].add(1.0),
    "stack": lambda b: tape.numpy.stack([x, b]),
    "reshape": lambda b: x.reshape(b),
    "astype": lambda b: x.astype(b),
    "to_device": lambda b: x.to_device(b),
}
# Python's own errors: None reaches the user's function as it is, and what is unknown may know Variables itself.
OTHERS = {("None", name) for name in ("grad call", "jacrev", "jacfwd", "hessian")} | {(w, "iadd") for w in ("an object", "a generator")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_raised_is_a_tape_error(wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a text is a path
    others = []
    for name, call in CALLS.items():
        try:
            call(WRONG[wrong]())
        except TapeError:
            continue
        except Exception as e:  # noqa: BLE001 - this is what is looked for
            others.append((name, f"{type(e).__name__}: {e}"[:100]))
    assert [o for o in others if (wrong, o[0]) not in OTHERS] == []
