"""Functions that take callables: values and derivatives as JAX's, for arguments and for captured Variables."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.lax
import tape.numpy as tnp
import tape.random
from tape.bounded import Bounded
from tape.callables import captures, fingerprints
from tape.graph.scope import LOCAL
from tape.graph.watcher import NOBODY
from tests import agreement
from tests.agreement import same
from tests.daily import share

X = jnp.array([0.3, 0.7, 1.2])
W = jnp.array([0.5, 1.5, -0.4])
A = jnp.array([[2.0, 0.3], [0.1, 1.5]])
B = jnp.array([1.0, 2.0])


def close(ours, theirs, tolerance=1e-5):
    assert ours.dtype == theirs.dtype
    agreement.close(ours, theirs, tolerance)


def scan(n, lax, x, w):
    carry, ys = lax.scan(lambda c, a: (n.sin(w * c + a), c * a), w, x)
    return n.sum(carry) + n.sum(ys * w)


def scan_of_trees(n, lax, x, w):
    (c, d), ys = lax.scan(lambda c, a: ((c[0] * a["p"], c[1] + w * a["q"]), {"o": c[0] * c[1]}), (0.7, x), {"p": x, "q": w}, reverse=True)
    return c * n.sum(d) + n.sum(ys["o"])


def scan_without_inputs(n, lax, x, w):
    return lax.scan(lambda c, _: (n.sin(c * w[0]), None), x[0], None, length=3, unroll=2)[0]


def cond(n, lax, x, w):
    return n.sum(lax.cond(n.sum(x) > 0, lambda a: n.sin(a) * w, lambda a: a * w * w, x))


def switch(n, lax, x, w):
    return n.sum(lax.switch(1, [lambda a: a, lambda a: a * a * w, n.cos], x))


def fori_loop(n, lax, x, w):
    return n.sum(lax.fori_loop(0, 3, lambda i, c: n.sin(c * w) + i, x))


def map_(n, lax, x, w):
    return n.sum(lax.map(lambda a: n.sum(n.exp(a * w)), x))


def map_in_batches(n, lax, x, w):
    return n.sum(lax.map(lambda a: n.sum(n.exp(a * w)), x, batch_size=2))


def associative_scan(n, lax, x, w):
    return n.sum(lax.associative_scan(lambda a, b: a * b * n.sum(w), x))


def reduce(n, lax, x, w):
    return n.sum(w * lax.reduce(x * w, 0.0, lax.add, (0,)))


def reduce_window(n, lax, x, w):
    return n.sum(lax.reduce_window(x * w, 0.0, lax.add, (2,), (1,), "VALID") ** 2)


def custom_root(n, lax, x, w):
    def solve(f, start):
        return lax.fori_loop(0, 20, lambda _, y: y - f(y) / (3 * y**2), start)

    root = lax.custom_root(lambda y: y**3 - x * w**2, n.ones_like(x), solve, lambda g, y: y / g(n.ones_like(y)))
    return n.sum(w * root)


def nested(n, lax, x, w):
    def body(c, a):
        def yes(c):
            return lax.scan(lambda d, b: (n.sin(d * w[0] + b * a), d * w[1]), c, x)[0]

        c = lax.cond(a > 0.5, yes, lambda c: c * w[2] * a, c)
        return c, c * w

    c, ys = lax.scan(body, w[1], x)
    return c + n.sum(ys)


def vectorize(n, _, x, w):
    return n.sum(n.vectorize(lambda a, b: n.dot(a, b) * n.sum(w), signature="(n),(n)->()")(n.outer(x, x), x))


def apply_along_axis(n, _, x, w):
    return n.sum(n.apply_along_axis(lambda row, power: n.cumsum(row * w) ** power, 1, n.outer(x, x), 2))


def apply_over_axes(n, _, x, w):
    return n.sum(n.apply_over_axes(lambda a, axis: n.sum(a * a, axis=axis), n.outer(x, w), [0, 1]))


def piecewise(n, _, x, w):
    return n.sum(n.piecewise(x * w, [x * w > 0.5, x * w < 0], [lambda a: a * n.sum(w), n.sin, 3.0]))


def fromfunction(n, _, x, w):
    return n.sum(n.fromfunction(lambda i, j: n.sin(i * x[0] + j) * w[1], (2, 3), dtype=float))


def frompyfunc(n, _, x, w):
    made = n.frompyfunc(lambda a, b: a * b * w[0] + a, 2, 1, identity=0)
    return n.sum(made(x, w)) + n.sum(made.accumulate(x))


def platform_dependent(n, lax, x, w):
    return n.sum(lax.platform_dependent(x * w, cpu=lambda a: n.sin(a) * w, default=lambda a: a))


PROGRAMS = [
    scan,
    scan_of_trees,
    scan_without_inputs,
    cond,
    switch,
    fori_loop,
    map_,
    map_in_batches,
    associative_scan,
    reduce,
    reduce_window,
]
PROGRAMS += [custom_root, nested, vectorize, apply_along_axis, apply_over_axes, piecewise, fromfunction, frompyfunc, platform_dependent]


@pytest.mark.parametrize("program", share(PROGRAMS, 2), ids=lambda p: p.__name__)
def test_values_and_two_derivatives(program):
    x, w = tape.Variable(X, name="x"), tape.Variable(W, name="w")
    y = program(tnp, tape.lax, x, w)
    first = tape.gradients(y, [x, w], create_graph=True, unconnected="zero")
    second = tape.gradients(sum(tnp.sum(tnp.sin(g)) for g in first), [x, w], unconnected="zero")

    @jax.jit
    def theirs(x, w):
        f = functools.partial(program, jnp, jax.lax)
        first = jax.grad(f, (0, 1))
        second = jax.grad(lambda *a: sum(jnp.sum(jnp.sin(g)) for g in first(*a)), (0, 1))
        return f(x, w), first(x, w), second(x, w)

    value, grads, seconds = theirs(X, W)
    close(y, value)
    for ours, expected in zip((*first, *second), (*grads, *seconds), strict=True):
        close(ours, expected, 1e-4)


def test_custom_linear_solve():
    def program(n, lax, a, b):
        return n.sum(
            n.sin(lax.custom_linear_solve(lambda v: a @ v, b, lambda _, b: n.linalg.solve(a, b), lambda _, b: n.linalg.solve(a.T, b)))
        )

    a, b = tape.Variable(A), tape.Variable(B)
    grads = tape.gradients(program(tnp, tape.lax, a, b), [a, b])
    for ours, expected in zip(grads, jax.grad(functools.partial(program, jnp, jax.lax), (0, 1))(A, B), strict=True):
        close(ours, expected)


def test_while_loop_runs_and_refuses_its_gradient():
    w = tape.Variable(W)
    y, n = tape.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * w, c[1] + 1), (w, 0))
    close(y, W**4)
    assert int(n) == 3
    with pytest.raises(tape.errors.TapeValueError, match="no reverse derivative"):
        tape.gradients(y.sum(), w)


def test_a_derivative_that_is_refused_names_the_function_that_was_called():
    """The user called ``gamma``, whose second derivative goes through a loop of JAX's own."""
    shape = tape.Variable(W)
    slope = tape.gradients(tape.random.gamma(tape.random.key(0), tnp.exp(shape)).sum(), shape, create_graph=True)
    with pytest.raises(tape.errors.TapeValueError, match="gradient of while_loop") as info:
        tape.gradients((slope * slope).sum(), shape)
    assert any("derivative of" in note and "gamma" in note for note in info.value.__notes__), info.value.__notes__


def test_functions_of_linear_solvers_and_matrices():
    a, b = tape.Variable(A), tape.Variable(B)
    square = a @ a.T
    solved = tape.scipy.sparse.linalg.cg(lambda v: square @ v, b)[0]
    close(tape.gradients(solved.sum(), b), jnp.linalg.inv(A @ A.T).T @ jnp.ones(2), 1e-3)
    close(tape.scipy.sparse.linalg.cg(square, b)[0], solved.value)


def test_composite():
    w = tape.Variable(W)
    made = tape.lax.composite(lambda a: a * w, "test.scaled")
    close(made(X), X * W)


GLOBAL = tape.Variable(2.0, name="global")


class Layer:
    def __init__(self):
        self.parameters = {"w": [tape.Variable(W)]}

    def __call__(self, c, a):
        c = tnp.tanh(c * self.parameters["w"][0] * GLOBAL + a)
        return c, c


def test_captures_of_objects_and_globals():
    layer = Layer()
    y = tape.lax.scan(layer, tape.Variable(X), X)[0].sum()
    grads = tape.gradients(y, [layer.parameters["w"][0], GLOBAL])
    expected = jax.grad(lambda w, g: jax.lax.scan(lambda c, a: (jnp.tanh(c * w * g + a), None), X, X)[0].sum(), (0, 1))(W, 2.0)
    for ours, theirs in zip(grads, expected, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("pending", [False, True])
def test_captures_that_no_guess_finds(pending):
    v = tape.Variable(W)
    hidden = {"w": v * 3 if pending else v}
    find = hidden.__getitem__
    y = tape.lax.map(lambda a: tnp.sum(find("w") ** 2 * a), X)
    assert not pending or hidden["w"]._cell[0] is None
    close(y, jnp.sum((3 * W if pending else W) ** 2) * X)
    close(tape.gradients(y.sum(), v), (18 if pending else 2) * W * X.sum())


def test_nothing_pending_runs():
    v = tape.Variable(W)
    h = v * 3
    y = tape.lax.map(lambda a: tnp.sum(h * a), X)
    assert h._cell[0] is None
    assert y._cell[0] is None
    assert h._segment is y._segment


def test_new_values_of_captured_variables_are_seen():
    v = tape.Variable(2.0)

    def f(a):
        return a * v

    close(tape.lax.map(f, X), X * 2)
    v.value = jnp.float32(3.0)
    close(tape.lax.map(f, X), X * 3)
    v = tape.Variable(5.0)
    close(tape.lax.map(f, X), X * 5)


def test_lambdas_in_a_loop_reuse_one_structure():
    w = tape.Variable(W)
    programs = []
    for i in range(8):
        array, copied, key, count = jnp.ones(3) * i, np.ones(3, np.float32) * i, tape.random.key(i), tape.Variable(i)

        def body(c, a, array=array, copied=copied, key=key, count=count):
            noise = tape.random.normal(tape.random.fold_in(key, count), (3,))
            return tape.nn.relu(c * w) + array * copied + noise + a, tape.lax.cond(a > 0, lambda: c, lambda: -c)

        y = tape.lax.scan(body, tape.Variable(X), X)[0].sum()
        y.backward()
        w.grad.block_until_ready()
        w.zero_grad()
        programs.append(tape.stats().programs)
    assert programs[-1] == programs[4]


def test_captured_integers_and_keys():
    for i in range(3):
        n, key = tape.Variable(i), tape.random.key(i)
        ours = tape.lax.map(lambda a, n=n, key=key: a * n + tape.random.normal(tape.random.fold_in(key, n)), X)
        close(ours, jax.lax.map(lambda a, i=i: a * i + jax.random.normal(jax.random.fold_in(jax.random.key(i), i)), X))


def test_different_derivatives_are_different_ops():
    def make(slope):
        fun = jax.custom_jvp(lambda a: jnp.sin(a))
        fun.defjvp(lambda p, t: (fun(*p), t[0] * slope))
        return interop.lift(fun)

    w = tape.Variable(1.0)
    for slope in (3.0, 5.0):
        fun = make(slope)
        close(tape.gradients(tape.lax.map(lambda a, fun=fun: fun(a * w), X).sum(), w), slope * X.sum())


def test_unused_captures_do_not_matter():
    w, u = tape.Variable(W), tape.Variable(1.0)
    y = tape.lax.map(lambda a: a if u is None else 2 * a, X)
    assert not y.requires_grad
    y = tape.lax.map(lambda a: (u * 2, w * a)[1], X)
    with pytest.raises(tape.errors.UnconnectedError):
        tape.gradients(y.sum(), u)


def test_gradients_inside():
    w = tape.Variable(W)
    y = tape.lax.map(tape.grad(lambda t: tnp.sum(tnp.sin(t * w))), tape.Variable(X))

    def theirs(w):
        return jax.lax.map(jax.grad(lambda t: jnp.sum(jnp.sin(t * w))), X)

    close(y, theirs(W))
    close(tape.gradients(y.sum(), w), jax.grad(lambda w: theirs(w).sum())(W))
    close(tape.lax.map(tape.grad(tnp.sin), X), jnp.cos(X))
    both = tape.lax.map(lambda a: tape.gradients(tnp.sum(tnp.sin(a * w)), [w, a]), tape.Variable(X))
    for ours, expected in zip(both, (X[:, None] * jnp.cos(X[:, None] * W), theirs(W)), strict=True):
        close(ours, expected)


def test_gradients_inside_through_what_is_outside():
    v = tape.Variable(W)
    h = tnp.sin(v) * 2
    y = tape.lax.map(lambda a: tape.gradients(tnp.sum(a * h * h), v), X)
    close(y, X[:, None] * 8 * jnp.sin(W) * jnp.cos(W))
    close(tape.gradients(h.sum(), v), 2 * jnp.cos(W))  # it was not released


def test_backward_inside():
    w = tape.Variable(W)

    def own(a):
        t = tape.Variable(a)
        tnp.sum(tnp.sin(t * w.detach())).backward()
        return t.grad

    close(tape.lax.map(own, X), jax.lax.map(jax.grad(lambda t: jnp.sum(jnp.sin(t * W))), X))
    with pytest.raises(tape.errors.LeakedTracerError):
        tape.lax.map(lambda a: tnp.sum(a * w).backward() or a, X)
    assert w.grad is None


class Tenfold(tape.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved
        return g * a * 10


def test_functions_with_their_own_backward_inside():
    w = tape.Variable(W)
    close(tape.gradients(tape.lax.map(lambda a: tnp.sum(Tenfold.apply(w)) * a, X).sum(), w), 10 * W * X.sum())
    close(tape.gradients(tape.lax.map(lambda a: tnp.sum(Tenfold.apply(w * a)), X).sum(), w), 10 * W * (X**2).sum())


def test_constants_inside():
    w = tape.Variable(W)

    def f(a):
        with tape.no_grad():
            c = w * a
        return tnp.sum(c * w)

    close(tape.gradients(tape.lax.map(f, X).sum(), w), W * X.sum())
    close(tape.gradients(tape.lax.map(lambda a: tnp.sum(w.detach() * w * a), X).sum(), w), W * X.sum())
    with tape.no_grad():
        assert not tape.lax.map(lambda a: w * a, X).requires_grad


def test_lifted_functions_inside():
    w = tape.Variable(W)
    fun = interop.lift(lambda a, b: jnp.sin(a * b))
    y = tape.lax.map(lambda a: fun(w, a), X)
    close(tape.gradients(y.sum(), w), (X[:, None] * jnp.cos(X[:, None] * W)).sum(0))
    close(fun(w, X), jnp.sin(W * X))


def test_eager():
    w = tape.Variable(W)
    with tape.eager():
        tape.lax.map(lambda a: tnp.sin(a * w), X).sum().backward()
    close(w.grad, (X[:, None] * jnp.cos(X[:, None] * W)).sum(0))


def test_inside_jax_transformations():
    def value(w):
        v = tape.Variable(w)
        return tape.lax.map(lambda a: tnp.sin(a * v), X).sum().value

    def gradient(w):
        v = tape.Variable(w)
        tape.lax.map(lambda a: tnp.sin(a * v), X).sum().backward()
        return v.grad.value

    def theirs(w):
        return jnp.sum(jax.lax.map(lambda a: jnp.sin(a * w), X))

    many = jnp.stack([W, 2 * W])
    close(jax.jit(value)(W), theirs(W))
    close(jax.grad(value)(W), jax.grad(theirs)(W))
    close(jax.jit(jax.vmap(gradient))(many), jax.vmap(jax.grad(theirs))(many))
    close(jax.jit(jax.jacrev(gradient))(W), jax.hessian(theirs)(W), 1e-4)
    outer = tape.Variable(W)
    close(jax.jit(lambda t: tape.lax.map(lambda a: a * outer * t, X).value)(2.0), 2 * X[:, None] * W)


def test_variables_made_inside():
    kept, traces = [], []

    def f(a):
        traces.append(1)
        t = tape.Variable(2.0)
        return tape.grad(lambda u: u * t * t)(t) * a + tnp.asarray([1.0])[0]

    close(tape.lax.map(f, X), 4 * X + 1)
    assert len(traces) == 1
    close(tape.lax.map(lambda a: kept.append(tape.Variable(2.0)) or kept[-1] * a, X), 2 * X)


def test_parameters_made_at_the_first_call():
    made = {}

    def f(a):
        w = made.setdefault("w", tape.Variable(2.0))
        return w * w * a

    close(tape.gradients(tape.lax.map(f, X).sum(), made["w"]), 4 * X.sum())


def test_captured_variables_cannot_be_assigned():
    w, x = tape.Variable(1.0), tape.constant(X)

    def assign(a):
        w.value = a
        return a

    def rebind(a):
        x[0] = a
        return a

    for f in (assign, rebind):
        with pytest.raises(tape.errors.LeakedTracerError):
            tape.lax.map(f, X)
    same(w, jnp.float32(1.0))
    same(x, X)


def hidden(v):
    while True:
        yield v


def test_a_compiled_step_hears_what_a_callable_writes_and_which_gradient_it_reads():
    seen, p = tape.constant(0.0), tape.Variable(3.0)

    def inner(x):
        seen.value = 5.0
        return x if p.grad is None else x * p.grad

    step = tape.jit(lambda x: tape.checkpoint(inner)(x))
    for gradient, result in ((None, 2.0), (None, 2.0), (7.0, 14.0), (8.0, 16.0), (None, 2.0)):
        seen.value, p.grad = 0.0, gradient
        assert (float(step(2.0)), float(seen)) == (result, 5.0)


def test_a_branch_in_a_compiled_step_reads_the_present_gradient():
    p = tape.Variable(3.0)
    step = tape.jit(lambda ok: tape.lax.cond(ok, lambda: p - p.grad, lambda: p * 1.0))
    for gradient in (1.0, 2.0, 2.5):
        p.grad = gradient
        assert float(step(jnp.array(True))) == 3.0 - gradient


def test_a_constant_that_is_made_anew_in_one_branch_is_met_in_another():
    held = types.SimpleNamespace()

    def first(x):
        held.made = tape.constant(x.ndim + 2.0)
        return x * held.made

    step = tape.jit(lambda ok, x: tape.lax.cond(ok, first, lambda x: x * held.made, x))
    assert [float(step(jnp.array(ok), 3.0)) for ok in (True, False, True)] == [6.0, 6.0, 6.0]


def test_gradients_of_what_is_captured_and_met_in_the_trace_alone():
    w, key = tape.Variable(W), tape.random.split(tape.random.key(0))[1]
    sine, noise = hidden(tnp.sin(w)), hidden(key)  # pending
    y = tape.checkpoint(lambda a: a * next(sine) * tape.random.normal(next(noise)))(X)
    close(tape.gradients(y.sum(), w), X * jnp.cos(W) * jax.random.normal(jax.random.split(jax.random.key(0))[1]))


ERRORS = {
    "carry": (lambda w: tape.lax.scan(lambda c, _: (tnp.stack([c, c]), None), w, X), tape.errors.TapeTypeError, "carry"),
    "pair": (lambda w: tape.lax.scan(lambda c, _: c, w, X), tape.errors.TapeTypeError, "pair"),
    "branches": (lambda w: tape.lax.cond(True, lambda a: a, lambda a: (a, a), w), tape.errors.TapeTypeError, "structure"),
    "no array": (lambda w: tape.lax.map(lambda _: "no", w), tape.errors.TapeTypeError, "str"),
    "no function": (lambda w: tape.lax.map(3, w), tape.errors.TapeTypeError, "map: f must be a function, got int"),
    "float": (lambda w: tape.lax.map(lambda a: float(a), w), tape.errors.ConcretizationError, "where"),
    "bool": (lambda w: tape.lax.map(lambda a: a if w.sum() > 0 else -a, X), tape.errors.ConcretizationError, "cond"),
    "raw JAX": (lambda w: tape.lax.map(lambda a: jnp.sin(w) * a, X), tape.errors.LostGradientError, "raw JAX function"),
    "own errors": (lambda w: tape.lax.map(lambda _: {}["k"], w), KeyError, "k"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, error, text = ERRORS[name]
    w = tape.Variable(W)
    pending = w * 2
    with pytest.raises(error, match=text):
        call(w)
    close(pending * 2, W * 4)  # the recorder is as it was
    assert LOCAL.scope.trace is NOBODY
    assert not LOCAL.scope.eager


def test_functions_of_jax_receive_arrays_and_mirrors_are_taken_for_them():
    w = tape.Variable(W)
    close(tape.lax.map(jnp.sin, w), jnp.sin(W))
    close(tape.lax.map(functools.partial(jnp.sum, axis=0), tnp.outer(w, w)), jnp.outer(W, W).sum(1))
    close(tape.lax.map(tnp.sin, w), jnp.sin(W))
    close(tape.lax.reduce(w, 0.0, jax.lax.add, (0,)), W.sum())


def test_the_count_of_references_is_calibrated():
    found = captures.Captures(())
    with found:
        kept = tape.Variable(W)
        found.read(kept)
        found.read(tape.Variable(X))
    assert [v is kept for v in found.missed()] == [True]


def test_old_ops_are_forgotten(monkeypatch):
    monkeypatch.setattr(fingerprints, "_OPS", Bounded("test", 2))
    for i in range(4):
        close(tape.lax.map(lambda a, i=i: a**i, X), X**i)
    assert len(fingerprints._OPS) <= 2


def test_pending_captures_of_two_branches_that_no_guess_finds():
    v = tape.Variable(W)
    find = {"w": v * 3}.__getitem__
    y = tape.lax.cond(True, lambda: find("w") * 2, lambda: find("w") + find("w"))
    close(tape.gradients(y.sum(), v), jnp.full(3, 6.0))


def test_no_tracer_is_left_over():
    w = tape.Variable(W)
    with jax.checking_leaks():
        y = tape.lax.scan(lambda c, a: (tnp.sin(c * w + a), tape.lax.cond(a > 0, lambda: c, lambda: w)), w, X)[0]
    close(y, jax.lax.scan(lambda c, a: (jnp.sin(c * W + a), None), W, X)[0])
