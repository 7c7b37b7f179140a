"""``jax.checking_leaks`` finds nothing: no tracer outlives the trace that it belongs to."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop
import interop.optax
import tape
import tape.numpy as tnp
from tests.cube import Cube

A = np.array([1.0, -2.0, 0.5], np.float32)
OUTER = tape.Variable(A)


def loss(v):
    return (tnp.sin(v) * v).sum()


def backward():
    x, w = tape.Variable(A), tape.Variable(A + 1)
    (tnp.tanh(x * w) @ w).backward()
    return x.grad.value


def double_backward():
    x = tape.Variable(A)
    g = tape.gradients((x**3).sum(), x, create_graph=True)
    (g * g).sum().backward()
    return x.grad.value


def sweep_inside_jit():
    def slope(a):
        v = tape.Variable(a)
        return tape.gradients(loss(v), v).value

    return jax.jit(slope)(A)


def scan_that_captures():
    def body(carry, x):
        return carry * tnp.sum(OUTER) + x, carry

    carry, ys = tape.lax.scan(body, tape.Variable(np.float32(1.0)), tape.constant(A))
    (carry + ys.sum()).backward()


def branches_and_loops():
    x = tape.Variable(np.float32(0.5))
    tape.lax.cond(x > 0, lambda v: v * OUTER.sum(), lambda v: v, x).backward()
    return tape.lax.fori_loop(0, 3, lambda i, v: v * 2.0, x).value


def hooks():
    x = tape.Variable(A)
    y = tnp.sin(x)
    y.register_hook(lambda g: g * 2)
    y.sum().backward()


def step():
    w = tape.Variable(A)
    optimizer = interop.optax.Optimizer([w], optax.adam(0.1))
    (w * w).sum().backward()
    optimizer.step()


def eager():
    with tape.eager():
        loss(tape.Variable(A)).backward()


def look_that_is_refused():
    def f(a):
        return float(tnp.sin(tape.constant(a)).sum())

    with pytest.raises(TypeError):
        jax.jit(f)(A)


def pending_outside(use):
    y = tnp.sin(tape.constant(A))
    return jax.jit(lambda a: use(a, y))(A)


lifted = interop.lift(lambda a, b: jnp.sin(a) @ b)
SCENES = {
    "backward": backward,
    "double backward": double_backward,
    "a sweep inside jit": sweep_inside_jit,
    "jit of tape.grad": lambda: jax.jit(tape.grad(loss))(A),
    "jit of vmap of tape.grad": lambda: jax.jit(jax.vmap(tape.grad(lambda v: tnp.sin(v) * v)))(A),
    "jax.grad of a lowered function": lambda: jax.grad(interop.lower(loss))(A),
    "a scan that captures": scan_that_captures,
    "branches and loops": branches_and_loops,
    "lift": lambda: lifted(tape.Variable(A), tape.Variable(A)).backward(),
    "lift inside jit": lambda: jax.jit(lambda a: lifted(tape.constant(a), tape.constant(A)).value)(A),
    "a Function": lambda: Cube.apply(tape.Variable(A)).sum().backward(),
    "a Function in jax.grad": lambda: jax.jit(jax.grad(interop.lower(lambda x: Cube.apply(x).sum())))(A),
    "a Function in tape.grad in jit": lambda: jax.jit(tape.grad(lambda x: Cube.apply(x).sum()))(A),
    "hessian": lambda: jax.jit(tape.hessian(loss))(A),
    "jacobians": lambda: (tape.jacrev(tnp.sin)(A), tape.jacfwd(tnp.sin)(A), tape.hvp(loss, (A,), (A,))),
    "vjp, jvp, linearize": lambda: (tape.vjp(tnp.sin, A)[1](A), tape.jvp(tnp.sin, (A,), (A,)), tape.linearize(tnp.sin, A)[1](A)),
    "vjp inside jit": lambda: jax.jit(lambda a: tape.vjp(tnp.sin, a)[1](a))(A),
    "hooks": hooks,
    "an optimizer's step": step,
    "vectorize": lambda: tnp.vectorize(lambda a: a * OUTER.sum())(tape.Variable(A)).sum().backward(),
    "random numbers": lambda: tape.random.normal(tape.random.key(0), (3,)).value,
    "eager mode": eager,
    "a look that is refused": look_that_is_refused,
    "a pending value, looked at inside jit": lambda: pending_outside(lambda a, y: a + y.value),
    "a pending value, used inside jit": lambda: pending_outside(lambda a, y: (tape.constant(a) * y).value),
}


@pytest.mark.parametrize("scene", SCENES)
def test_no_tracer_leaks(scene):
    with jax.checking_leaks():
        for _ in range(4):  # interpreted, compiled, and found again
            SCENES[scene]()


def test_a_leak_is_found():
    kept = []
    with jax.checking_leaks(), pytest.raises(Exception, match=r"[Ll]eaked"):
        jax.jit(lambda a: kept.append(tape.constant(a)) or a)(A)
