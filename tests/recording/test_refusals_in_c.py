"""What the recorder in C leaves to the one in Python, since the common case is not there: known steps, known sweeps, modes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape import modes
from tape.graph import scope
from tape.graph.scope import LOCAL, close
from tape.graph.segment import Extra

A = np.linspace(-1.2, 1.1, 31, dtype=np.float32)
KNOWN = 30  # calls after which a step or a sweep is found again


def known(step):
    """Call a step until it is found again; return what it gives."""
    for _ in range(KNOWN):
        found = step()
    return found


# -- functions of tape.jit


@pytest.mark.parametrize("around", ["tape.jit", "tape.checkpoint", "tape.vmap"])
def test_a_known_step_belongs_to_the_trace_that_calls_it(around):
    w = tape.Variable(A)
    inner = tape.jit(lambda: (tnp.sin(w) * 2.0).detach())  # such steps run in C: nothing flows back through them
    known(inner)
    x = tape.Variable(A * 3)
    outer = {
        "tape.jit": tape.jit(lambda x: inner() * x),
        "tape.checkpoint": tape.checkpoint(lambda x: inner() * x),
        "tape.vmap": tape.vmap(lambda x: inner() * x, in_axes=None, axis_size=2),
    }[around]
    for value in (A, A + 1):  # not what it was when it was traced
        w.value, x.grad = value, None
        found = outer(x)
        np.testing.assert_allclose(found.value, np.broadcast_to(np.sin(value) * 6 * A, found.shape), rtol=1e-5, atol=1e-6)
        found.sum().backward()
        times = found.size // A.size
        np.testing.assert_allclose(x.grad.value, times * np.sin(value) * 2, rtol=1e-5, atol=1e-5)


def test_a_known_step_with_effects_is_traced_where_jax_traces():
    w, seen = tape.Variable(A), []

    @tape.jit
    def step():
        jax.debug.callback(lambda: seen.append(1))
        return (w * 2.0).detach()

    known(step)
    jax.effects_barrier()
    seen.clear()
    outer = jax.jit(lambda x: (step(), x)[1])
    for _ in range(3):  # not once for all, while it is traced
        outer(1.0)
    jax.effects_barrier()
    assert len(seen) == 3


def test_a_known_step_reads_the_gradient_that_a_variable_has_now():
    w = tape.Variable(A)
    w.grad = tape.constant(A * 2)
    step = tape.jit(lambda: (w.grad * 3.0 + w).detach())
    np.testing.assert_allclose(known(step).value, A * 7, rtol=1e-6)
    w.grad = tape.constant(A * 4)
    np.testing.assert_allclose(step().value, A * 13, rtol=1e-6)
    w._extra, before = Extra(), w._extra  # as an update in place leaves it, another one of the same kinds
    w._extra.node, w._extra.grad = before.node, tape.constant(A * 5)
    np.testing.assert_allclose(step().value, A * 16, rtol=1e-6)


# -- modes


def test_a_mode_belongs_to_whoever_watches():
    x, seen = tape.Variable(A), []

    class Watching(tape.OpHook):
        def forward_preprocess(self, op, inputs):
            with tape.enable_grad():  # a hook's own: nothing of it is recorded
                seen.append((LOCAL.scope.mode, LOCAL.scope.observer))

    def walk():
        with tape.no_grad():
            y = tnp.cos(x)
        return y, tnp.sin(x)

    known(walk)
    with tape.hooks(Watching()):
        y, z = walk()
    assert [v.requires_grad for v in (y, z)] == [False, True]
    watched = list(seen)
    seen.clear()
    own, modes.switch = modes.switch, scope._switch
    try:
        with tape.hooks(Watching()):
            walk()
    finally:
        modes.switch = own
    assert seen == watched


@pytest.mark.parametrize("first", [tape.no_grad, tape.enable_grad])
def test_a_mode_that_is_there_is_entered_again(first, monkeypatch):
    x = tape.Variable(A)

    def walk():
        close(LOCAL.segment())
        found = []
        keep = tnp.sin(x)
        for mode in (first, first, tape.enable_grad, tape.no_grad, tape.no_grad, tape.enable_grad):
            with mode():
                before = LOCAL.segment().state
                with mode():
                    found.append((LOCAL.segment().state is before, LOCAL.scope.mode, LOCAL.segment().state))
                    keep = keep * 2.0
                    found.append(keep.requires_grad)
                    keep = keep.detach() + x
        return found

    in_c = known(walk)
    monkeypatch.setattr(modes, "switch", scope._switch)
    assert walk() == in_c


# -- sweeps that are known


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_target_twice_after_a_known_call(create_graph):
    x, w = tape.Variable(A), tape.Variable(A + 1)

    def swept(*targets):
        return [g.value for g in tape.gradients(tnp.sin(x) * w, targets, tape.constant(A), create_graph=create_graph)]

    known(lambda: swept(x, w))
    right = {"x": np.cos(A) * (A + 1) * A, "w": np.sin(A) * A}
    for _ in range(KNOWN):
        for names in ("xx", "ww", "xwx"):
            for found, name in zip(swept(*[{"x": x, "w": w}[n] for n in names]), names, strict=True):
                np.testing.assert_allclose(found, right[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("there", ["itself", "a copy"])
def test_one_cell_twice_among_the_seeds_enters_once(there):
    x, w = tape.Variable(A), tape.Variable(A + 1)

    def swept(first, second):
        close(LOCAL.segment())
        roots = tnp.sin(x), x * w
        found = tape.gradients(roots, [x, w], (first, second), create_graph=True)
        held = [id(leaf._cell if hasattr(leaf, "_cell") else leaf) for leaf in LOCAL.segment().leaves]
        return [g.value for g in found], len(held), len(set(held))

    known(lambda: swept(tape.constant(A), tape.constant(A * 2)))
    for _ in range(KNOWN):
        seed = tape.constant(A * 3)
        other = seed if there == "itself" else seed.detach()
        (dx, dw), held, different = swept(seed, other)
        assert held == different
        np.testing.assert_allclose(dx, 3 * A * (np.cos(A) + A + 1), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(dw, 3 * A * A, rtol=1e-5, atol=1e-6)


def test_what_follows_a_seed_that_entered_twice_is_right():
    x, w = tape.Variable(A), tape.Variable(A + 1)

    def swept(first, second, third):
        found = tape.gradients((tnp.sin(x), x * w), [x, w], (first, second), create_graph=True)
        return tape.gradients((found[0] * third + found[1]).sum(), [x, w]), found

    known(lambda: [g.value for g in swept(tape.constant(A), tape.constant(A * 2), tape.constant(A))[0]])
    for _ in range(KNOWN):
        seed = tape.constant(A * 3)
        (dx, dw), _ = swept(seed, seed, seed)
        np.testing.assert_allclose(dx.value, -3 * A * np.sin(A) * 3 * A + 3 * A, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(dw.value, 9 * A * A, rtol=1e-4, atol=1e-4)


def test_a_seed_that_requires_grad_is_differentiated():
    x, t = tape.Variable(A), tape.Variable(A - 2)

    def swept(seed):
        g = tape.gradients(tnp.sin(x), x, seed, create_graph=True)
        return [d.value for d in tape.gradients((g * g).sum(), [x, t] if seed is t else [x])]

    known(lambda: swept(tape.constant(A)))
    for _ in range(KNOWN):
        dx, dt = swept(t)
        np.testing.assert_allclose(dx, -2 * np.cos(A) * np.sin(A) * (A - 2) ** 2, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(dt, 2 * np.cos(A) ** 2 * (A - 2), rtol=1e-4, atol=1e-5)
        (dx,) = swept(tape.constant(A))
        np.testing.assert_allclose(dx, -2 * np.cos(A) * np.sin(A) * A**2, rtol=1e-4, atol=1e-5)


def test_the_jax_arrays_of_seeds_are_no_constants_for_ever():
    x = tape.Variable(A)
    for k in range(KNOWN):
        found = tape.gradients(x * x, x, tape.constant(jnp.asarray(A) * k))
        np.testing.assert_allclose(found.value, 2 * A * A * k, rtol=1e-5, atol=1e-6)
