"""Raw JAX functions as ops of the tape."""

import functools
import itertools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape import layout
from tape.errors import TapeError, TapeTypeError
from tests.agreement import close

A = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]], np.float32)


def network(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def test_lifted_networks_have_the_gradients_of_jax():
    keys = jax.random.split(jax.random.key(0), 2)
    params = [{"w": jax.random.normal(k, (3, 3)), "b": jnp.ones(3)} for k in keys]

    def loss(params, x):
        return (network(params, x) ** 2).mean()

    variables = jax.tree.map(tape.Variable, params)
    lifted = interop.lift(network)
    for _ in range(3):
        (lifted(variables, A) ** 2).mean().backward()
    expected = jax.grad(loss)(params, A)
    for v, g in zip(jax.tree.leaves(variables, is_leaf=lambda v: isinstance(v, tape.Variable)), jax.tree.leaves(expected), strict=True):
        close(v.grad, 3 * g)


def test_lift_is_closed_world_and_keeps_trees():
    f = interop.lift(lambda x, n=2: {"sum": x.sum(), "parts": (x * n, jnp.argmax(x)), "none": None})
    for x in (A, jnp.asarray(A), tape.Variable(A)):
        out = f(x)
        assert set(out) == {"sum", "parts", "none"}
        assert out["none"] is None
        assert isinstance(out["sum"], tape.Variable)
        assert out["parts"][1].dtype == jnp.int32
        assert not out["parts"][1].requires_grad
        close(out["parts"][0], 2 * A)
    assert f(tape.Variable(A))["sum"].requires_grad
    close(f(A, n=3)["parts"][0], 3 * A)


def test_lift_takes_numbers_that_must_be_seen_as_static():
    f = interop.lift(lambda x, n, reverse=False: jnp.concatenate([x for _ in range(n)])[:: -1 if reverse else 1])
    x = tape.Variable(A)
    y = f(x, 3)
    close(y, np.concatenate([A] * 3))
    y.sum().backward()
    close(x.grad, np.full_like(A, 3.0))
    close(f(x, 2, reverse=True), np.concatenate([A] * 2)[::-1])


def test_numbers_that_must_be_static_are_found_out_once():
    """Where a number changes from call to call, nobody tries anew whether it can be an array."""
    runs = []

    def sums(x, ids, n):
        runs.append(n)
        return jax.ops.segment_sum(x, ids, n)

    f, x = interop.lift(sums), tape.Variable([1.0, 2.0, 3.0])
    for n in (2, 3, 4) * 4:
        y = f(x, np.arange(3) % 2, n)
        close(y, np.array([4.0, 2.0, 0.0, 0.0])[:n])
        (y * y).sum().backward()
        close(x.grad, np.array([8.0, 4.0, 8.0]))
        x.grad = None
    assert [n if isinstance(n, int) else "array" for n in runs] == ["array", 2, 3, 4]


def test_lift_honours_custom_derivatives():
    @jax.custom_vjp
    def odd(x):
        return x * 2

    odd.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 100,))
    x = tape.Variable(A)
    interop.lift(odd)(x).sum().backward()
    close(x.grad, np.full_like(A, 100.0))


WITHIN = {
    "at once": lambda fun, y: fun(y),
    "a constant": lambda fun, y: y * fun(jnp.ones(())),
    "scan": lambda fun, y: jax.lax.scan(lambda c, _: (c * y + fun(c), None), 0.1, None, length=3)[0],
    "cond": lambda fun, y: jax.lax.cond(y > 0, fun, jnp.sin, y),
    "vmap": lambda fun, y: jax.vmap(fun)(y * jnp.ones(2)).sum(),
    "grad": lambda fun, y: jax.grad(fun)(y),
    "lifted again": lambda fun, y: interop.lower(lambda v: interop.lift(fun)(v) * 2)(y),
}


@pytest.mark.parametrize("around", WITHIN.values(), ids=WITHIN)
def test_what_a_lowered_function_captures_inside_of_a_lifted_one_is_not_lost(around):
    """C3: the gradient of a captured Variable is not lost where a function of the tape is called by one of JAX that is an op."""
    w, y = tape.Variable(A[0], name="w"), tape.Variable(0.5)

    def inside(read):
        return interop.lift(lambda y: around(interop.lower(lambda t: (read() * tnp.sin(t)).sum()), y))

    for read in (lambda: w, lambda: w * 2, lambda: w.value):
        with pytest.raises(tape.errors.LostGradientError, match="captures a Variable 'w' that requires grad"):
            inside(read)(y)
    lifted = inside(lambda: w.detach())
    for _ in range(2):
        raw = w.value
        again = around is WITHIN["lifted again"]
        fun = functools.partial((lambda f, y: 2 * f(y)) if again else around, lambda t, w=raw: (w * jnp.sin(t)).sum())
        expected = jax.value_and_grad(fun)(0.5)
        own = lifted(y)
        np.testing.assert_allclose([own.item(), tape.gradients(own, y).item()], expected, rtol=1e-5)
        with tape.no_grad():
            w += 1.0  # which the function traced reads again


def test_a_lowered_function_inside_of_a_lifted_one_has_variables_of_its_own():
    def descended(y):
        x = tape.Variable(A[0])
        for _ in range(3):
            x = x - 0.1 * tape.gradients(((x * y - 2) ** 2).sum(), x, create_graph=True)
        return x.sum()

    def reference(y):
        x = A[0]
        for _ in range(3):
            x = x - 0.1 * jax.grad(lambda x: ((x * y - 2) ** 2).sum())(x)
        return x.sum()

    y = tape.Variable(0.5)
    own = interop.lift(lambda y: interop.lower(descended)(y) * y)(y)
    own.backward()
    np.testing.assert_allclose([own.item(), y.grad.item()], jax.value_and_grad(lambda y: reference(y) * y)(0.5), rtol=1e-5)


@pytest.mark.parametrize(
    "fun",
    [lambda c, y: (c * 2).value * y, lambda c, y: (c * 2 * y).value, lambda c, y: interop.lower(lambda t: c * 2 * t)(y)],
    ids=["its value", "an op", "a lowered function"],
)
def test_a_captured_constant_that_changes_is_read_again_also_behind_an_op(fun):
    c, y = tape.constant(2.0), tape.Variable(3.0)
    lifted = interop.lift(lambda y: fun(c, y))
    assert lifted(y).item() == 12
    with tape.no_grad():
        c += 1.0
    assert lifted(y).item() == 18


def check_derivative(fun, order):
    x = tape.Variable(0.7)
    own, expected = interop.lift(fun)(x), fun
    for i in range(order):
        own = tape.gradients(own, x, create_graph=i + 1 < order)
        expected = jax.grad(expected)
    np.testing.assert_allclose(own.numpy(), expected(0.7), rtol=1e-4)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_custom_vjp_may_close_over_data_in_derivatives_of_any_order(order):
    data = np.arange(60, dtype=np.float32).reshape(20, 3) / 60

    def fun(scale):
        @jax.custom_vjp
        def waves(x):
            return jnp.sin(data @ x)

        waves.defvjp(lambda x: (waves(x), x), lambda x, g: ((g * jnp.cos(data @ x)) @ data,))
        return (jnp.cos(waves(scale * jnp.ones(3))) @ data).sum()

    check_derivative(fun, order)


class OnlyOnceError(Exception):
    """What a rule raises where it is asked for what it has not."""


@pytest.mark.parametrize("order", [1, 2])
def test_a_rule_that_refuses_what_nobody_asks_for_does_not_stop_a_derivative(order):
    data = np.arange(60, dtype=np.float32).reshape(20, 3) / 60

    @jax.custom_vjp
    def waves(data, x):
        return jnp.sin(data @ x)

    def forward(data, x):
        if data.perturbed:
            raise OnlyOnceError
        return waves(data.value, x.value), (data.value, x.value)

    waves.defvjp(
        forward,
        lambda saved, g: (jnp.zeros_like(saved[0]), (g * jnp.cos(saved[0] @ saved[1])) @ saved[0]),
        symbolic_zeros=True,
    )

    def fun(scale):
        return (jnp.cos(waves(jnp.asarray(data), scale * jnp.ones(3))) @ data).sum()

    check_derivative(fun, order)


def test_a_rule_may_keep_other_things_for_other_inputs_that_are_asked_for():
    @jax.custom_vjp
    def both(x, y):
        return jnp.sin(x) * y, x * y

    def forward(x, y):
        out = both(x.value, y.value)
        if x.perturbed and y.perturbed:
            return out, {"x": x.value, "y": y.value}
        return out, {"w": y.value, "x": x.value} if x.perturbed else {"y": y.value, "z": x.value}

    def backward(kept, cts):
        first, second = (0.0 if isinstance(ct, jax.custom_derivatives.SymbolicZero) else ct for ct in cts)
        x, y = kept.get("x", kept.get("z")), kept.get("y", kept.get("w"))
        return first * jnp.cos(x) * y + second * y, first * jnp.sin(x) + second * x

    both.defvjp(forward, backward, symbolic_zeros=True)
    args = tape.Variable(0.7), tape.Variable(1.3)
    lifted = interop.lift(both)
    expected = jax.jacobian(lambda x, y: jnp.stack([jnp.sin(x) * y, x * y]), argnums=(0, 1))(0.7, 1.3)
    choices = [(0,), (0, 1), (1,), (0,), (1,), (0, 1), (0,)]
    for inputs, outputs in zip(choices, [(0,), (0, 1), (1,), (1,), (0, 1), (1,), (0, 1)], strict=True):
        results = lifted(*args)
        own = tape.gradients([results[o] for o in outputs], [args[i] for i in inputs])
        np.testing.assert_allclose([g.numpy() for g in own], [sum(expected[i][o] for o in outputs) for i in inputs], rtol=1e-5)


def test_lift_second_order_and_control_flow():
    def f(x):
        return jax.lax.fori_loop(0, 3, lambda _, c: jnp.sin(c) * x, x).sum()

    x = tape.Variable(A[0])
    g = tape.gradients(
        interop.lift(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, length=3)[0].sum())(x), x, create_graph=True
    )
    close(g, jax.jacfwd(f)(A[0]))
    close(tape.gradients(g.sum(), x), jax.jacfwd(jax.jacfwd(f))(A[0]).sum(0))


def test_lift_traces_once_per_structure():
    traces = []

    def f(x, *, power):
        traces.append(x.shape)
        return x**power

    lifted = interop.lift(f)
    for shape in ((2,), (2,), (3,), (2,)):
        lifted(tape.Variable(jnp.ones(shape)), power=2)
    assert traces == [(2,), (3,)]
    assert lifted.__name__ == "f"


ONE, TWO, SUM = tape.Variable(3.0), tape.constant(5.0), "sum"


@pytest.mark.parametrize(
    ("given", "others"),
    [
        (
            ((ONE, TWO), {}),
            [((TWO, ONE), {}), ((ONE,), {}), ((ONE, TWO, ONE), {}), ((ONE, 2.0), {}), ((ONE, np.float32(2)), {}), (([ONE, TWO],), {})],
        ),
        (
            ((), {"b": ONE, "a": TWO}),
            [((), {"a": TWO, "b": ONE}), ((), {"a": ONE, "c": TWO}), ((ONE,), {"a": TWO}), ((), {"a": ONE, "b": ONE})],
        ),
        (
            (({"b": ONE, "a": [TWO]}, SUM), {}),
            [(({"a": ONE, "b": [TWO]}, SUM), {}), (({"a": [TWO], "b": ONE}, "product"), {}), (({"b": ONE}, SUM), {})],
        ),
        (
            ((ONE, 2.0, np.float32(3), jnp.float32(4)), {"flag": True}),
            [
                ((ONE, 7.0, np.float32(8), jnp.float32(9)), {"flag": True}),
                ((ONE, 2.0, np.float32(3), jnp.float32(4)), {"flag": False}),
                ((ONE, 2, np.float32(3), jnp.float32(4)), {"flag": True}),
                ((ONE, 2.0, np.float32(3), jnp.int32(4)), {"flag": True}),
                ((ONE, 2.0, np.float32(3), jnp.float32(4)), {"flag": 1}),
            ],
        ),
        (((ONE, [True, 2]), {}), [((ONE, [False, 2]), {}), ((ONE, [True, 3]), {})]),
    ],
)
def test_a_call_is_not_taken_for_another_one(given, others):
    def numbered(*args, **kwargs):
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays = [x for x in leaves if not isinstance(x, str)]
        return sum([(k + 2) * x for k, x in enumerate(arrays)], len(str(structure)) + 1000.0 * (SUM in leaves))

    def of(call):
        return jax.tree.map(lambda x: x.value if isinstance(x, tape.Variable) else x, call, is_leaf=lambda x: isinstance(x, tape.Variable))

    lifted = interop.lift(numbered)
    for other in others:
        for args, kwargs in (given, given, other, other):
            plain = of((args, kwargs))
            assert float(lifted(*args, **kwargs)) == float(numbered(*plain[0], **plain[1]))


def test_a_call_like_the_latest_one_sees_what_changed_around_it():
    c = tape.constant(2.0)
    lifted = interop.lift(lambda x: x * jnp.float32(c))
    for value in (2.0, 2.0, 5.0, 5.0):
        c.value = jnp.float32(value)
        assert float(lifted(ONE)) == 3 * value
    wide = interop.lift(lambda x: x * np.float64(1 / 3))
    found = []
    for x64 in (False, True, False):
        with jax.enable_x64(x64):
            found.append(str(wide(ONE).dtype))
    assert found == ["float32", "float64", "float32"]


@pytest.mark.parametrize("size", [3, 5000])
def test_functions_with_other_arrays_of_numpy_in_a_jitted_one_are_told_apart(size):
    """Whether the arrays are large, and whether the one before is gone or has changed when the values are wanted."""

    def lifted(table):
        return interop.lift(lambda x: jax.jit(lambda x: (x * table).sum())(x) * 2)

    for i in range(12):
        x, table = tape.Variable(2.0), np.full(size, float(i), np.float32)
        y = lifted(table)(x)
        if i % 3 == 0:
            table[:] = -1.0
        assert float(tape.gradients(y, x, retain_graph=True)) == 2 * size * i
        assert float(y) == 4 * size * i


def test_zeros_that_are_static_have_signs():
    f = interop.lift(lambda x, s: x if s > 0 else jnp.copysign(x, s))
    assert [float(f(tape.constant(3.0), s)) for s in (0.0, -0.0, 0.0)] == [3.0, -3.0, 3.0]


def test_a_number_that_is_static_is_looked_at_in_every_call():
    lifted = interop.lift(lambda x, n: sum(x * k for k in range(n)))
    assert [float(lifted(ONE, n)) for n in (3, 3, 4, 3)] == [9, 9, 18, 9]


def test_lift_inside_jax_transformations():
    f = interop.lift(lambda x: jnp.sin(x) * x)

    def g(x):
        return f(tape.constant(x)).value.sum()

    np.testing.assert_allclose(jax.jit(jax.grad(g))(A), np.cos(A) * A + np.sin(A), rtol=1e-5)


def test_lift_errors():
    with pytest.raises(TapeTypeError, match="lift: expected a function, got int"):
        interop.lift(3)
    x = tape.Variable(A)
    with pytest.raises(TapeError):
        interop.lift(lambda a, b: a @ b)(x, x)
    assert x.grad is None
    close(tnp.sum(x), A.sum())


def test_a_captured_constant_is_read_again_when_it_is_rebound():
    c = tape.constant(2.0)
    for read in (lambda x: x * c.value, lambda x: x * c):
        c.value = 2.0
        lifted = interop.lift(read)
        x = tape.Variable(3.0)
        assert float(lifted(x)) == 6.0
        c.value = 5.0
        assert float(lifted(x)) == 15.0
        assert float(tape.gradients(lifted(x), x)) == 5.0


def test_a_constant_that_was_captured_before_another_lifted_function_ran_inside_is_read_again():
    c = tape.constant(2.0)
    inner = interop.lift(lambda x: x + 1)
    outer = interop.lift(lambda x: inner(x * c.value))
    x = tape.Variable(1.0)
    assert float(outer(x)) == 3.0
    c.value = 5.0
    assert float(outer(x)) == 6.0


def test_a_function_lifted_anew_at_every_step_is_compiled_once():
    x = tape.Variable(np.array([1.0, -2.0, 0.5], np.float32))

    def step(k):
        weights = jnp.full(3, 1.0 + k)  # closed over, and another array at every step
        loss = interop.lift(lambda a: jnp.sum(jnp.sin(a) * weights) * 1.25)(x)
        x.zero_grad()
        loss.backward()
        np.testing.assert_allclose(x.grad.value, np.cos(x.value) * 1.25 * (1 + k), rtol=1e-5)

    for k in range(5):
        step(k)
    stats = tape.stats()
    stats.reset()
    for k in range(5):
        step(k)
    assert (stats.compiles, stats.interpreted, stats.programs) == (0, 0, 0)
    assert stats.hits == 5


def test_lifted_programs_that_differ_are_told_apart():
    x = tape.Variable(np.float32(2.0))
    for k in range(6):
        assert float(interop.lift(lambda a, k=k: a * float(k) + k)(x)) == 3.0 * k


@pytest.mark.parametrize("pending", [False, True])
def test_a_captured_variable_may_be_detached_inside(pending):
    w, x = tape.Variable([1.0, -2.0]), tape.Variable([3.0, 4.0])
    held = w * 2 if pending else w
    lifted = interop.lift(lambda x: x * held.detach().value + tape.stop_gradient(held).value)
    for factor in (1.0, 5.0):
        x.zero_grad()
        lifted(x).sum().backward()
        np.testing.assert_array_equal(x.grad.value, factor * np.array([1.0, -2.0]) * (2 if pending else 1))
        if pending:
            break
        w.value = w.value * 5  # read anew, as any constant is
    assert w.grad is None


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_a_choice_of_small_floats_is_differentiated_under_jit(dtype):
    x = jnp.asarray([[-1.5, 0.5], [2.0, -0.25]], dtype)

    def fun(x):
        return jnp.sum(jnp.where(x > 0, x, 0))

    own = jax.jit(tape.grad(interop.lift(fun)))(x)
    assert own.dtype == x.dtype
    np.testing.assert_array_equal(own.astype("float32"), jax.grad(fun)(x).astype("float32"))


@pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python does all of it")
def test_nested_results_of_a_call_found_again_come_from_the_recorder_in_c():
    f = interop.lift(lambda x, y: {"sum": x + y, "parts": (x * y, [x - y])})
    x, y = tape.Variable(np.ones((3, 7))), tape.Variable(np.ones((3, 7)))
    for _ in range(3):
        f(x, y)["sum"].sum().backward()
    called = []
    f(x, y)
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        result = f(x, y)
    finally:
        sys.setprofile(None)
    assert [name for name in called if name in {"record", "_record", "_results", "enter", "following"}] == []
    assert sorted(result) == ["parts", "sum"]
    assert [type(part) for part in result["parts"]] == [tape.Variable, list]


def test_results_of_other_trees_are_told_apart():
    flat, named = interop.lift(lambda x: (x + 1, x * 2)), interop.lift(lambda x: {"a": x + 1, "b": x * 2})
    x = tape.Variable([1.0, 2.0, 3.0, 4.0])
    for _ in range(3):
        assert isinstance(flat(x), tuple)
        assert {k: v.numpy().tolist() for k, v in named(x).items()} == {"a": [2, 3, 4, 5], "b": [2, 4, 6, 8]}
        assert interop.lift(lambda x: {"one": x + 1})(x)["one"].requires_grad
        assert interop.lift(lambda x: (x, None))(x)[1] is None


def test_arrays_that_a_function_closes_over_outlive_the_trace_that_met_them_first():
    """They were tracers of that trace, which further calls found."""
    table = np.arange(3.0, dtype=np.float32)
    firsts = (tape.jit, lambda f: jax.jit(interop.lower(f)), lambda f: tape.checkpoint(f))
    for first, further in itertools.permutations(firsts, 2):
        scaled = interop.lift(lambda x: x * table)

        def loss(x, scaled=scaled):
            return (scaled(x) * x).sum()

        first(loss)(np.ones(3, np.float32))
        further(loss)(np.ones(3, np.float32))
        for fun in (loss, tape.jit(lambda x: 2 * loss(x)), tape.checkpoint(loss)):
            x = tape.Variable([1.0, 2.0, 3.0])
            (g,) = tape.gradients(fun(x), [x])
            assert g.numpy().tolist() in ([0.0, 4.0, 12.0], [0.0, 8.0, 24.0])


@pytest.mark.parametrize("inline", [False, True])
def test_a_function_over_an_array_that_a_compiled_step_takes_is_lifted_in_it(inline):
    """The array is what it was when the function was first traced, as in the step without compilation."""
    found = []
    for wrap in (lambda step: step, tape.jit):
        state = types.SimpleNamespace(a=jnp.ones(3), w=tape.Variable([1.0, 2.0, 3.0]), inner=None)
        step = wrap(lambda x, state=state: (x * state.a if state.inner is None else state.inner(x) + state.a) * state.w)
        x = tape.Variable([0.5, -1.0, 2.0])
        found.append([])
        for i in range(6):
            state.a = jnp.full(3, i + 1.0)
            if i == 2:
                state.inner = interop.lift(lambda x, state=state: jnp.sin(x * state.a), inline=inline)
            found[-1].append([g.value for g in tape.gradients(step(x).sum(), (x, state.w))])
    np.testing.assert_allclose(*found, rtol=1e-5)
