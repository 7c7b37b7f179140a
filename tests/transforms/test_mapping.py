"""``tape.vmap``: as ``jax.vmap``, and recorded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.lax
import tape.numpy as tnp
import tape.random
from tape.errors import ConcretizationError, TapeError
from tests import agreement

W = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]], np.float32)
X = (np.arange(12, dtype=np.float32).reshape(4, 3) + 1) / 7


def loss(w, x, np=tnp):
    return np.tanh(w @ x).sum()


def plain(w, x):
    return loss(w, x, jnp)


close = functools.partial(agreement.close, rtol=2e-5)


def per_example(gradient, vmap):
    return vmap(gradient, in_axes=(None, 0))


def test_gradients_per_example_of_arrays_are_arrays():
    found = per_example(tape.grad(loss), tape.vmap)(W, X)
    assert isinstance(found, jax.Array)
    close(found, per_example(jax.grad(plain), jax.vmap)(W, X))


def test_gradients_per_example_are_differentiated():
    w, x = tape.Variable(W), tape.Variable(X)

    def penalty(w, x, grad, vmap):
        return (per_example(grad, vmap)(w, x) ** 2).sum()

    found = tape.gradients(penalty(w, x, tape.grad(loss), tape.vmap), (w, x))
    close(found, jax.grad(lambda w, x: penalty(w, x, jax.grad(plain), jax.vmap), (0, 1))(W, X))


def test_what_is_captured_gets_its_gradient():
    w = tape.Variable(W)
    for _ in range(2):  # traced, and recalled
        out = tape.vmap(lambda x: loss(w, x))(X)
        assert isinstance(out, tape.Variable)
        close(tape.gradients((out**2).sum(), w), jax.grad(lambda w: (jax.vmap(lambda x: plain(w, x))(X) ** 2).sum())(W))
    inner = tape.vmap(lambda x: tape.grad(lambda x: loss(w, x))(x))(X)
    close(tape.gradients((inner**2).sum(), w), jax.grad(lambda w: (jax.vmap(lambda x: jax.grad(plain, 1)(w, x))(X) ** 2).sum())(W))


def test_what_comes_back():
    w = tape.Variable(W)
    assert isinstance(tape.vmap(lambda x: W @ x)(X), jax.Array)
    assert isinstance(tape.vmap(lambda x: tape.constant(W) @ x)(X), jax.Array)
    assert isinstance(tape.vmap(lambda x: W @ x)(tape.constant(X)), tape.Variable)
    with tape.no_grad():
        assert not tape.vmap(lambda x: loss(w, x))(tape.constant(X)).requires_grad


CALLS = {
    "a tree of axes": lambda v: v(lambda d, s: (d["x"] * s, {"w": d["w"]}), in_axes=({"x": 0, "w": None}, None), out_axes=(1, {"w": None}))(
        {"x": X, "w": W}, 2.0
    ),
    "a keyword": lambda v: v(lambda x, y: x - y)(X, y=X[::-1].copy()),
    "last axis": lambda v: v(lambda x: x * 2, in_axes=-1, out_axes=-1)(X),
    "nested": lambda v: v(lambda r: v(lambda x: (r * x).sum())(X))(W),
    "nested over two": lambda v: v(v(lambda r, x: (r * x).sum(), in_axes=(None, 0)), in_axes=(0, None))(W, X),
    "a list": lambda v: v(lambda pair: pair[0] + pair[1])([X, X]),
    "no array": lambda v: v(lambda: 3.0 * X[0], axis_size=2)(),
    "nothing": lambda v: v(lambda x: (None, x))(X),
    "text": lambda v: v(lambda x, s: x if s == "as it is" else -x, in_axes=(0, None))(X, "as it is"),
}


@pytest.mark.parametrize("call", CALLS)
def test_as_vmap_of_jax(call):
    if call == "text":  # which jax.vmap does not take
        close(CALLS[call](tape.vmap), X)
        return
    found, wanted = CALLS[call](tape.vmap), CALLS[call](jax.vmap)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    close(found, wanted)


@pytest.mark.parametrize("outer", ["jax.jit", "tape.jit", "jax.grad of lower", "jax.vmap", "tape.jacrev"])
def test_inside_other_transformations(outer):
    w = jnp.asarray(W)

    def total(w, vmap=tape.vmap, f=loss):
        return (vmap(lambda x: f(w, x))(X) ** 2).sum()

    def wanted(w):
        return total(w, jax.vmap, plain)

    if outer == "jax.jit":
        close(jax.jit(lambda w: per_example(tape.grad(loss), tape.vmap)(w, X))(w), per_example(jax.grad(plain), jax.vmap)(W, X))
    elif outer == "tape.jit":
        v = tape.Variable(W)
        for _ in range(2):
            v.zero_grad()
            tape.jit(lambda: total(v).backward())()
            close(v.grad, jax.grad(wanted)(W))
    elif outer == "jax.grad of lower":
        close(jax.grad(interop.lower(total))(w), jax.grad(wanted)(W))
    elif outer == "jax.vmap":
        close(jax.vmap(interop.lower(total))(jnp.stack([w, 2 * w])), jnp.stack([wanted(W), wanted(2 * W)]))
    else:
        close(tape.jacrev(lambda w: tape.vmap(lambda x: loss(w, x))(X))(w), jax.jacrev(lambda w: jax.vmap(lambda x: plain(w, x))(X))(w))


def test_control_flow_and_other_transforms_inside():
    w, x = tape.Variable(W), tape.Variable(X)
    scanned = tape.vmap(lambda x: tape.lax.scan(lambda c, e: (c + e * w.sum(), c), 0.0, x)[0])(x)
    close(scanned, X.sum(1) * W.sum())
    close(tape.gradients(scanned.sum(), w), np.full_like(W, X.sum()))
    close(tape.vmap(tape.hessian(lambda x: (w @ x**3).sum()))(x), jax.vmap(jax.hessian(lambda x: (W @ x**3).sum()))(X))
    close(tape.vmap(lambda x: tape.gradients((x**3).sum(), x))(x), 3 * X**2)


class Tripled(tape.Function):
    """Its backward is not its derivative, and its vmap is not its forward: so both are seen to be used."""

    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 3 * g


class Mapped(Tripled):
    @staticmethod
    def vmap(info, in_dims, x):
        return x * x * 10, 0


def test_functions_of_the_users_own():
    x = tape.Variable(X)
    close(tape.gradients(tape.vmap(Tripled.apply)(x).sum(), x), np.full_like(X, 3.0))
    close(tape.vmap(Mapped.apply)(x), 10 * X * X)
    close(tape.vmap(tape.grad(lambda x: Tripled.apply(x).sum()))(X), np.full_like(X, 3.0))


def test_keys_are_split():
    keys = tape.random.split(tape.random.key(0), 3)
    assert tape.vmap(lambda k: tape.random.normal(k, (2,)))(keys).shape == (3, 2)


@pytest.mark.parametrize("vmap", [tape.vmap, jax.vmap])
def test_named_axes_of_several_lengths(vmap):
    """A program traced for one length is not the one for another."""
    share = interop.lift(lambda x: x / jax.lax.axis_size("i"))

    def f(a):
        found = tape.lax.pmean(tape.constant(a), "i"), share(tape.constant(a))
        return [v.value for v in found] if vmap is jax.vmap else list(found)

    for n in (3, 4, 3, 4, 5, 3):
        a = np.arange(n, dtype=np.float32)
        close(vmap(f, axis_name="i")(a), [np.full(n, a.mean()), a / n])


def test_gradients_through_collectives():
    x = tape.Variable(X)
    out = tape.vmap(lambda x: (x - tape.lax.pmean(x, "i")) ** 2, axis_name="i")(x)
    close(tape.gradients(out.sum(), x), 2 * (X - X.mean(0)))


REFUSED = {
    "no function": (lambda: tape.vmap(3), TypeError, "expected a function, got int"),
    "axes of text": (lambda: tape.vmap(loss, in_axes="x"), TypeError, "vmap: vmap in_axes must be an int"),
    "lengths": (lambda: tape.vmap(loss)(W, X), ValueError, r"vmap\(loss\).*inconsistent sizes(.|\n)*\(2, 3\) and \(4, 3\)"),
    "no axis": (lambda: tape.vmap(loss)(W, 1.0), ValueError, r"rank should be at least 1.*\(2, 3\) and \(\)"),
    "axis out of range": (lambda: tape.vmap(loss, in_axes=2)(W, X), ValueError, r"axis 2.*\(2, 3\)"),
    "number of axes": (lambda: tape.vmap(loss, in_axes=(0,))(W, X), ValueError, r"len\(in_axes\)=1, len\(args\)=2"),
    "out axes": (lambda: tape.vmap(lambda x: x, out_axes=None)(X), ValueError, r"out_axes.*\(4, 3\)"),
    "nothing to map": (lambda: tape.vmap(lambda: 1.0)(), ValueError, "at least one argument containing an array"),
    "a value": (lambda: tape.vmap(lambda x: x if x.sum() > 0 else -x)(X), TypeError, r"use tape\.lax\.cond"),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_refusals(refused):
    call, builtin, words = REFUSED[refused]
    with pytest.raises(TapeError, match=words) as caught:
        call()
    assert isinstance(caught.value, builtin)
    assert isinstance(caught.value, ConcretizationError) == (refused == "a value")


def test_what_raw_vmap_cuts_names_this():
    w = tape.Variable(W)
    out = jax.vmap(lambda x: w @ x)(X)
    with pytest.raises(TapeError, match=r"tape\.vmap"):
        out.sum().backward()
    tape.vmap(lambda x: w @ x)(X).sum().backward()  # what it says
    close(w.grad, np.tile(X.sum(0), (2, 1)))
