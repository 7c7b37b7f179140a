"""Updates: ``w -= y`` and ``w[i] = y`` under ``no_grad`` change a leaf for all who hold it, and are refused elsewhere."""

import copy
import operator
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop
import interop.optax
import tape
from tape.errors import LeakedTracerError, TapeTypeError, TapeValueError
from tests.agreement import close

X = np.array([7.0, 2.0], np.float32)
Y = np.array([2.0, 3.0], np.float32)
ONES = tape.constant(np.ones(3, np.float32))


def leaf(value=X, **options):
    return tape.Variable(np.array(value), **options)


AUGMENTED = {
    "+": operator.iadd,
    "-": operator.isub,
    "*": operator.imul,
    "/": operator.itruediv,
    "//": operator.ifloordiv,
    "%": operator.imod,
    "**": operator.ipow,
    "@": operator.imatmul,
    "&": operator.iand,
    "|": operator.ior,
    "^": operator.ixor,
    "<<": operator.ilshift,
    ">>": operator.irshift,
}


@pytest.mark.parametrize("symbol", AUGMENTED)
@pytest.mark.parametrize("eager", [False, True])
def test_an_augmented_assignment_updates_the_leaf_for_all_who_hold_it(symbol, eager):
    start, other = (X, Y) if symbol in "+-*///**%" else (np.eye(2, dtype=np.float32), np.float32([[1, 2], [3, 4]]))
    if symbol in {"&", "|", "^", "<<", ">>"}:
        with tape.no_grad(), pytest.raises(TapeTypeError, match="float32"):
            AUGMENTED[symbol](leaf(), Y)
        start, other = np.int32([5, 6]), np.int32([3, 1])
    w = leaf(start, name="w")
    held, cost = {"w": w}, w * w
    with tape.eager() if eager else tape.enable_grad(), tape.no_grad():
        assert AUGMENTED[symbol](w, tape.constant(other)) is w
    expected = AUGMENTED[symbol](start.copy(), other) if symbol != "@" else start @ other
    np.testing.assert_array_equal(held["w"].numpy(), expected)
    assert (w.is_leaf, w.requires_grad, w.name) == (True, start.dtype == np.float32, "w")
    np.testing.assert_array_equal(cost.numpy(), start * start)  # recorded before, with the old value


def test_the_loop_of_every_tutorial_trains_in_one_program():
    params = [leaf(), leaf(np.float32(0.5))]
    w, b = X.copy(), np.float32(0.5)
    for k in range(8):
        if k == 5:
            tape.stats().reset()
        ((params[0] * params[0]).sum() * params[1]).backward()
        with tape.no_grad():
            for p in params:
                p -= 0.01 * p.grad  # noqa: PLW2901
                p.grad = None
        w, b = w - np.float32(0.01) * 2 * w * b, b - np.float32(0.01) * (w * w).sum()
    stats = tape.stats()
    assert (stats.compiles, stats.interpreted, stats.flushes) == (0, 0, {"backward": 3})
    np.testing.assert_allclose(params[0].numpy(), w, rtol=1e-5)
    np.testing.assert_allclose(params[1].numpy(), b, rtol=1e-5)


def test_momentum_buffers_and_gradients_are_updated_too():
    w = leaf()
    velocities = [tape.numpy.zeros(2)]
    gradients = []
    for _ in range(3):
        w.grad = None
        (w * w).sum().backward()
        gradients.append(w.grad)
        with tape.no_grad():
            for g in (w.grad,):
                g *= 0.5  # noqa: PLW2901
            for v in velocities:
                v *= 0.5  # noqa: PLW2901
                v += w.grad  # noqa: PLW2901
                w -= 0.5 * v
    x, v = X, 0 * X
    for g in gradients:
        np.testing.assert_array_equal(g.numpy(), x)
        v = 0.5 * v + x
        x = x - 0.5 * v
    np.testing.assert_array_equal(w.numpy(), x)
    np.testing.assert_array_equal(velocities[0].numpy(), v)
    w.grad *= 2.0  # outside no_grad: by the attribute
    np.testing.assert_array_equal(w.grad.numpy(), 2 * gradients[-1].numpy())


def test_what_was_recorded_keeps_its_values_and_its_gradient_goes_to_the_leaf():
    w = leaf()
    before = (w * w).sum()
    with tape.no_grad():
        w[0] = 5.0
        w[...] = 2 * w
        np.add.at(w, [1, 1], 1.0)
    after = (w * w * w).sum()
    np.testing.assert_array_equal(w.numpy(), [10.0, 6.0])
    tape.backward([before, after])
    np.testing.assert_array_equal(w.grad.numpy(), 2 * X + 3 * np.float32([100.0, 36.0]))


def test_hooks_optimizers_and_flags_stay_with_the_leaf():
    w = leaf()
    seen = []
    w.register_hook(seen.append)

    def halve(p):
        with tape.no_grad():
            p -= 0.25 * p.grad
        p.grad = None

    handle = w.register_post_accumulate_grad_hook(halve)
    for _ in range(2):
        (w * w).sum().backward()
    np.testing.assert_array_equal(w.numpy(), X / 4)
    assert len(seen) == 2
    handle.remove()
    optimizer = interop.optax.Optimizer([w], optax.sgd(0.25))
    for _ in range(3):
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()
        with tape.no_grad():
            w *= 2.0
    np.testing.assert_array_equal(w.numpy(), X / 4)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: operator.iadd(x, 1.0),
        lambda x: operator.ipow(x, 2),
        lambda x: operator.setitem(x, 0, 1.0),
        lambda x: operator.setitem(x, ..., 1.0),
        lambda x: np.add.at(x, 0, 1.0),
        lambda x: jax.tree.map(lambda p: operator.iadd(p, 1.0), [x]),
        lambda x: tape.jit(lambda: operator.iadd(x, 1.0))(),
    ],
)
def test_where_operations_are_recorded_a_leaf_refuses(write):
    w = leaf(name="w")
    with pytest.raises(TapeValueError, match=r"x is a leaf that requires grad \('w'.*shape \(2,\).*write `with tape.no_grad\(\): "):
        write(w)
    np.testing.assert_array_equal(w.numpy(), X)


def test_the_repairs_of_the_refusal_work():
    loss = leaf() * 2
    x, y = leaf(), 1.0
    with tape.no_grad():
        x -= y
    np.testing.assert_array_equal(x.numpy(), X - 1)
    x = x - y
    assert not x.is_leaf
    for total in (0.0, tape.constant(0.0)):
        for _ in range(3):
            total += loss  # noqa: PLW2901
        np.testing.assert_array_equal(total.numpy(), 6 * X)
        assert total.requires_grad


def test_results_are_made_anew_where_operations_are_recorded():
    x = leaf()
    first = y = x * 2
    y += 1
    np.testing.assert_array_equal(first.numpy(), 2 * X)
    np.testing.assert_array_equal(tape.gradients(y.sum(), x).numpy(), [2, 2])
    with tape.no_grad():  # it has a past, of which its other holders must not lose sight
        z = first
        z *= 2
    assert first.requires_grad
    assert not z.requires_grad
    count = kept = tape.constant(3)
    count += 1
    assert (int(count), int(kept)) == (4, 3)
    with tape.no_grad():
        kept += 1
    assert int(kept) == 4


@pytest.mark.parametrize(
    ("start", "other", "error", "words"),
    [
        (X, np.ones((3, 2), np.float32), TapeValueError, r"shape \(3, 2\), and x of shape \(2,\).*`x = tape.Variable\(x \+ y\)`"),
        (X, 1j, TapeTypeError, r"complex64, and x of dtype float32.*`x = tape.Variable\(x \+ y\)`"),
        (np.int32([1, 2]), 0.5, TapeTypeError, r"float32, and x of dtype int32 keeps its own; write `x = x \+ y`"),
        (np.bool_([1, 0]), 1, TapeTypeError, "int32, and x of dtype bool"),
        (np.float32(1), X, TapeValueError, r"shape \(2,\), and x of shape \(\)"),
    ],
)
def test_an_update_keeps_shape_and_dtype(start, other, error, words):
    x = leaf(start)
    with tape.no_grad(), pytest.raises(error, match=words):
        x += other
    np.testing.assert_array_equal(x.numpy(), start)


def test_results_are_rounded_to_the_dtype_of_the_leaf():
    x = leaf(np.float16([1, 2]))
    with tape.no_grad():
        x += np.float32([0.1, 0.2])
        x += 1
    assert x.dtype == np.float16
    np.testing.assert_array_equal(x.numpy(), (np.float16([1, 2]) + np.float32([0.1, 0.2])).astype(np.float16) + np.float16(1))
    with jax.enable_x64(True), tape.no_grad():
        y = leaf()
        y *= np.float64([0.1, 0.2])
        assert y.dtype == np.float32


def test_a_compiled_step_updates_leaves_and_constants():
    w, count = leaf(), tape.constant(0)

    @tape.jit
    def step(rate):
        loss = (w * w).sum()
        loss.backward()
        with tape.no_grad():
            for p in (w,):
                p -= rate * p.grad  # noqa: PLW2901
            for c in (count,):
                c += 1  # noqa: PLW2901
        w.grad = None
        return loss

    losses = [float(step(0.25)) for _ in range(3)]
    np.testing.assert_array_equal(losses, (X * X).sum() / 4.0 ** np.arange(3))
    np.testing.assert_array_equal(w.numpy(), X / 8)
    assert (w.is_leaf, w.requires_grad, int(count)) == (True, True, 3)


@pytest.mark.parametrize("kind", ["leaf", "constant"])
@pytest.mark.parametrize(
    "transformation",
    [
        lambda f: jax.jit(f)(1.0),
        lambda f: jax.vmap(f)(jnp.ones(2)),
        lambda f: jax.grad(f)(1.0),
        lambda f: jax.jit(jax.grad(interop.lower(f)))(1.0),
        lambda f: tape.lax.scan(lambda c, x: (c, f(x)), 0.0, tape.numpy.arange(2.0)),
    ],
)
def test_no_value_of_a_transformation_is_stored(transformation, kind):
    w = leaf(requires_grad=kind == "leaf")

    def run(x):
        with tape.no_grad():
            w[0] = x
        return x

    with pytest.raises(LeakedTracerError, match="exists only"):
        transformation(run)
    np.testing.assert_array_equal(w.numpy(), X)

    def add(x):
        with tape.no_grad():
            held = w
            held += x
        return x

    if kind == "leaf":
        with pytest.raises(LeakedTracerError, match="exists only"):
            transformation(add)
    else:
        transformation(add)
    np.testing.assert_array_equal(w.numpy(), X)


@pytest.mark.parametrize(
    "made",
    [
        lambda: tape.numpy.zeros(3),
        lambda: tape.numpy.arange(3.0) * 2,
        lambda: tape.numpy.full(3, 2.0),
        lambda: tape.constant(np.ones(3, np.float32)) * 1.0,
        lambda: tape.Variable(np.ones(3, np.float32)).detach() + 1,
        lambda: tape.numpy.asarray(np.ones(3, np.float32)) * 1.0,
        lambda: tape.numpy.asarray(np.ones(3, np.float32)),
        lambda: tape.constant(np.ones(3, np.float32)),
        lambda: tape.Variable(np.ones(3, np.float32)).detach(),
        lambda: tape.stop_gradient(tape.constant(np.ones(3, np.float32))),
        lambda: copy.copy(ONES),
        lambda: tape.eager()(lambda: ONES * 2.0)(),
        lambda: tape.eager()(tape.numpy.ones)(3),
        interop.lift(lambda: jnp.ones(3)),
    ],
)
@pytest.mark.parametrize(
    "transformed",
    [
        lambda f: jax.jit(f)(2.0),
        lambda f: jax.jit(jax.jit(f))(2.0),
        lambda f: jax.vmap(f)(jnp.array([2.0]))[0],
        lambda f: jax.jit(interop.lower(f))(2.0),
        lambda f: jax.vmap(interop.lower(f))(jnp.array([2.0]))[0],
        lambda f: jax.grad(interop.lower(f))(2.0),
        lambda f: jax.jit(tape.grad(f))(2.0),
        lambda f: jax.vmap(tape.grad(f))(jnp.array([2.0]))[0],
    ],
)
def test_a_buffer_that_a_transformed_function_makes_takes_its_values(made, transformed):
    def filled(a):
        x = made()
        x[0] = a
        x[1:] += a * a
        return x[0] * x[0] + (x[1:] - x[1:]).sum()

    buffer = tape.numpy.zeros(3) + 1  # pending outside
    before = tape.numpy.ones(3) * 1
    before.block_until_ready()

    def leaking(a, held):
        x = made()
        x[0] = a
        held[0] = a
        return x.sum()

    close(transformed(filled), 4.0)  # the derivative of its square at 2, as well
    for held in (buffer, before):
        with pytest.raises(LeakedTracerError, match="exists only"):
            transformed(lambda a, held=held: leaking(a, held))
        close(held, [1.0, 1.0, 1.0])


TRANSFORMED = [lambda f: f, jax.jit, lambda f: jax.jit(interop.lower(f)), lambda f: lambda a: jax.vmap(f)(jnp.full(1, a))[0], tape.jit]


@pytest.mark.parametrize("transformed", TRANSFORMED)
def test_what_a_transformed_function_makes_changes_for_all_who_hold_it(transformed):
    def fun(a):
        buffer = tape.numpy.ones(3)
        held = buffer
        with tape.no_grad():
            buffer += a
        return held.sum()

    close(transformed(fun)(2.0), 9.0)


@pytest.mark.parametrize("transformed", [jax.jit, lambda f: lambda a: jax.vmap(f)(jnp.full(1, a))])
@pytest.mark.parametrize("recording", [tape.no_grad, tape.enable_grad])
def test_a_constant_from_outside_stays_one_whatever_is_written_into_it(recording, transformed):
    constant = tape.constant(np.zeros(3, np.float32))

    def fun(a):
        with recording():
            x = tape.constant(a)
            constant[0] = constant[1] + 1
            constant.value = jnp.full(3, a)
        return x

    with pytest.raises(LeakedTracerError, match="exists only"):
        transformed(fun)(2.0)
    close(constant, [1.0, 0.0, 0.0])


def test_a_result_made_inside_takes_values_after_another_was_assigned():
    def fun(a):
        x = tape.numpy.arange(3.0) * 2
        x.value = np.ones(3, np.float32)
        x.value = jnp.full(3, a)
        return x.sum()

    close(jax.jit(fun)(2.0), 6.0)


def test_a_parameter_that_a_transformed_function_makes_of_results_gets_gradients():
    def fun(a):
        z = (tape.numpy.ones(3) * 2).requires_grad_()
        (z * z * a).sum().backward()
        with tape.no_grad():
            z -= 0.25 * z.grad
        return z.sum()

    for transformed in (lambda f: f, jax.jit, lambda f: jax.jit(interop.lower(f)), tape.jit):
        close(transformed(fun)(1.0), 3.0)


@pytest.mark.parametrize(
    ("become", "expected"),
    [(tape.Variable.unchain, 4.0), (tape.Variable.requires_grad_, 4.0), (lambda v: setattr(v, "value", np.ones(3, np.float32)), 2.0)],
)
def test_what_a_transformation_made_stays_its_own_whatever_an_inner_one_makes_of_it(become, expected):
    def slope(v, a):
        jax.vmap(lambda b: (become(v), b)[1])(jnp.ones(2))
        v.requires_grad_()
        (v * v * a).sum().backward()
        return v.grad.value

    ones = np.ones(3, np.float32)
    close(jax.jit(lambda a: slope(tape.numpy.ones(3) * 2.0, a))(ones), np.full(3, expected))
    outside = tape.numpy.ones(3) * 2.0
    with pytest.raises(LeakedTracerError, match="exists only"):
        jax.jit(lambda a: slope(outside, a))(ones)


def cumulative(x):
    def body(c, x):
        c += x
        return c, c

    return tape.lax.scan(body, x[0] * 1.0, x)[1]


def doubled(x):
    x *= 2.0
    x += 1.0
    return x * x


@pytest.mark.parametrize("function", [cumulative, doubled])
def test_arguments_of_functions_are_values_to_them(function):
    reference = {cumulative: lambda x: x[0] + jnp.cumsum(x), doubled: lambda x: (2 * x + 1) ** 2}[function]
    expected = jax.grad(lambda x: reference(x).sum())(X)

    def summed(x):
        return function(x).sum()

    x = leaf()
    for way in (
        tape.grad(summed),
        lambda x: jax.grad(interop.lower(summed))(jnp.asarray(x)),
        jax.jit(tape.grad(summed)),
        lambda x: tape.gradients(tape.checkpoint(function)(tape.Variable(x) * 1.0).sum(), x) if isinstance(x, tape.Variable) else expected,
    ):
        np.testing.assert_allclose(way(X), expected, rtol=1e-6)
    np.testing.assert_array_equal(x.numpy(), X)


@pytest.mark.parametrize("recording", [True, False])
def test_the_forward_of_a_function_leaves_its_arguments(recording):
    class Double(tape.Function):
        @staticmethod
        def forward(_, x):
            x *= 2.0
            return x

        @staticmethod
        def backward(_, g):
            g *= 2.0
            return g

    x = leaf()
    with tape.set_grad_enabled(recording):
        y = Double.apply(x)
    np.testing.assert_array_equal(x.numpy(), X)
    np.testing.assert_array_equal(y.numpy(), 2 * X)
    if recording:
        y.sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), [2.0, 2.0])


def test_other_threads_see_an_update():
    w = leaf()

    def run():
        with tape.no_grad():
            w.__iadd__(1.0)

    for _ in range(3):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    np.testing.assert_array_equal(w.numpy(), X + 3)
    assert w.requires_grad


def test_a_result_that_becomes_a_constant_leaves_its_gradient_behind():
    x = tape.Variable([1.0, 2.0], name="x")
    y = x * 2
    y.retain_grad()
    y.sum().backward()
    with tape.no_grad():
        y[...] = 0.0
    assert (y.requires_grad, y.grad, x.grad.tolist()) == (False, None, [2.0, 2.0])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("recording", [True, False])
def test_a_frozen_parameter_keeps_its_gradient_and_hooks_when_it_is_updated(recording, compiled):
    x = leaf()
    seen = []
    x.register_hook(lambda g: g * 10)
    x.register_post_accumulate_grad_hook(seen.append)
    x.sum().backward()
    x.requires_grad_(False)

    def update():
        with tape.set_grad_enabled(recording):
            x[0] = 7.0
        with tape.no_grad():
            same = x
            same *= 2.0

    for _ in range(2):
        (tape.jit(update) if compiled else update)()
    x.requires_grad_()
    x.sum().backward()
    np.testing.assert_array_equal(x.numpy(), [14.0, 4 * X[1]])
    np.testing.assert_array_equal(x.grad.numpy(), [20.0, 20.0])
    assert len(seen) == 2


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="a name counts as no reference there")
@pytest.mark.parametrize(
    "code", ["m[0][1] = 5.0", "m[0][:1] = 5.0", "m[1][0] += 5.0", "m.T[0] = 5.0", "m.reshape(4)[1:] = 5.0", "made()[0] = 5.0"]
)
@pytest.mark.parametrize("mode", [tape.enable_grad, tape.no_grad])
def test_an_assignment_to_what_nobody_holds_is_refused(code, mode):
    m = leaf(np.ones((2, 2), np.float32)) * 2.0
    with mode(), pytest.raises(TapeValueError, match=r"nobody holds"):
        exec(code, {"m": m, "made": lambda: m * 1.0})  # noqa: S102 -- the cases above
    np.testing.assert_array_equal(m.numpy(), np.full((2, 2), 2.0))


@pytest.mark.parametrize(
    "code",
    [
        "l = [m]; l[0][0] = 5.0",
        "d = {1: (m,)}; d[1][0][0] = 5.0",
        "(lambda: m)()[0] = 5.0",
        "m.__setitem__(0, 5.0)",
        "(lambda t: t.__setitem__(0, 5.0))(m)",
        "import operator; operator.setitem(m, 0, 5.0)",
        "l = [m.grad]; m.grad[0] = 5.0; m[0] = m.grad[0]",
        "def f(t): t[0] = 5.0\nf(m)",
    ],
)
def test_an_assignment_to_what_somebody_holds_is_not(code):
    m = leaf(np.ones((2, 2), np.float32)) * 2.0
    m.grad = np.ones((2, 2), np.float32)
    exec(code, {"m": m})  # noqa: S102 -- the cases above
    np.testing.assert_array_equal(m.numpy(), [[5, 5], [2, 2]])


def test_an_operand_that_knows_variables_itself_is_asked_also_where_nothing_is_recorded():
    class Other:
        def __radd__(self, x):
            return "asked"

    x = tape.Variable(1.0)
    with tape.no_grad():
        x += Other()
    assert x == "asked"


def test_a_retained_gradient_stays_behind_with_the_value_that_was_overwritten():
    x = tape.Variable(np.ones(3, "float32"))
    h = x * 2
    h.retain_grad()
    before = (h * h).sum()
    h[0] = 5.0
    before.backward()
    assert h.grad is None
    close(x.grad, np.full(3, 8))
