"""The backward of a ``tape.Function`` in the batched sweep of a Jacobian: one call for all rows where it can be traced, else one each."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.errors import GradientShapeError, UnrecordedGradientError
from tests import agreement

A, B = np.linspace(-1, 1, 5, dtype=np.float32), np.linspace(1, 2, 5, dtype=np.float32)
W = tape.Variable(B, name="weight")
CALLS = []


def make(forward, backward, **further):
    """Return a Function of these static methods, whose backward counts its calls."""

    def counted(ctx, *gradients):
        CALLS.append(None)
        return backward(ctx, *gradients)

    methods = {"forward": forward, "backward": counted, **further}
    return type("Made", (tape.Function,), {key: staticmethod(method) for key, method in methods.items()})


close = functools.partial(agreement.close, rtol=2e-5, atol=2e-5)


def forward(ctx, x, y):
    ctx.save_for_backward(x, y)
    ctx.shift = {"of": y}
    return tnp.sin(x * y), x + y


def backward(ctx, g, h):
    """Thrice the derivative by x, so that nobody can have computed another."""
    (x, _), y = ctx.saved, ctx.shift["of"]
    slope = 0 if g is None else tnp.cos(x * y) * g
    return 3 * (slope * y + (0 if h is None else h)), slope * x if g is not None else None


@jax.custom_vjp
def twin(x, y):
    return jnp.sin(x * y), x + y


twin.defvjp(
    lambda x, y: (twin(x, y), (x, y)),
    lambda saved, gs: (
        3 * (jnp.cos(saved[0] * saved[1]) * gs[0] * saved[1] + gs[1]),
        jnp.cos(saved[0] * saved[1]) * gs[0] * saved[0],
    ),
)
Traced = make(forward, backward)

PROGRAMS = {
    "both outputs": lambda apply, n: lambda x, y: n.tanh(apply(x * 2, y)[0]) @ n.exp(apply(x, y)[1]) * x,
    "one output": lambda apply, n: lambda x, y: apply(x * y, y)[0] * 2,
    "twice": lambda apply, n: lambda x, y: apply(apply(x, y)[0], x)[0],
    "one root": lambda apply, n: lambda x, y: apply(x, y)[0].sum() + y,
}


@pytest.mark.parametrize("eagerly", [False, True], ids=["lazy", "eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_jacobian_calls_a_backward_for_all_rows_at_once(name, eagerly):
    program, expected = PROGRAMS[name](Traced.apply, tnp), jax.jacrev(PROGRAMS[name](twin, jnp), (0, 1))(A, B)
    with tape.eager() if eagerly else contextlib.nullcontext():
        for _ in range(3):
            CALLS.clear()
            close(tape.jacrev(program, (0, 1))(A, B), expected)
            assert len(CALLS) <= 2  # as often as the program has Functions


def test_in_a_compiled_function_and_in_that_of_jax():
    program = PROGRAMS["twice"]
    expected = jax.jacrev(program(twin, jnp))(A, B)
    jacobian = tape.jacrev(program(Traced.apply, tnp))
    for call in (tape.jit(jacobian), jax.jit(lambda x, y: jacobian(x, y))):
        for _ in range(2):
            close(call(A, B), expected)


def by_numpy(ctx, g):
    return g * np.cos(ctx.saved[0].numpy())


def by_a_branch(ctx, g):
    return g * tnp.cos(ctx.saved[0]) if float(g.sum()) > 0 else None


def by_numpy_of_the_cotangent(ctx, g):
    return np.asarray(g.value) * np.cos(ctx.saved[0].numpy())


def by_what_it_kept(ctx, g):
    ctx.count = getattr(ctx, "count", 0) + 1
    return ctx.count * 0 + g * tnp.cos(ctx.saved[0])


@pytest.mark.parametrize("rows", [by_numpy, by_a_branch, by_numpy_of_the_cotangent, by_what_it_kept])
def test_a_backward_that_looks_at_values_is_called_for_each_row(rows):
    def forward(ctx, x):
        ctx.count = 0
        ctx.save_for_backward(x)
        return tnp.sin(x)

    function = make(forward, rows)
    for _ in range(2):
        CALLS.clear()
        close(tape.jacrev(lambda x: function.apply(x) * 1)(A), np.diag(np.cos(A)))
        assert len(CALLS) >= len(A)


def test_contract_09_no_gradient_in_some_rows_is_zero_in_those():
    def looking(ctx, g):
        return None if g.value[0] else 3 * g

    apply = make(lambda ctx, x: x * 1, looking).apply
    expected = 3 * np.eye(5)
    expected[0] = 0
    for _ in range(3):
        close(tape.jacrev(apply)(A), expected)


def test_what_a_backward_counts_in_its_context_it_counts_from_row_to_row():
    def backward(ctx, g):
        ctx.calls += 1
        return g * ctx.calls

    fun = make(lambda ctx, x: (setattr(ctx, "calls", 0), x * 3)[1], backward)
    agreement.close(tape.jacrev(fun.apply)(tape.constant(A)), np.diag(np.arange(1, 6)))


def test_what_is_wrong_with_a_backward_is_said_as_ever():
    wrong = make(lambda ctx, x: tnp.sin(x), lambda ctx, g: g.sum())
    with pytest.raises(GradientShapeError, match=r"Made\.backward returned a gradient of shape \(\)"):
        tape.jacrev(wrong.apply)(A)


def test_no_gradient_for_an_argument_or_for_all():
    first = make(lambda ctx, x, y: x * y, lambda ctx, g: (g * 2, None))
    close(tape.jacrev(first.apply, (0, 1))(A, B), (2 * np.eye(5), np.zeros((5, 5))))
    none = make(lambda ctx, x: x * 2, lambda ctx, g: None)
    close(tape.jacrev(none.apply)(A), np.zeros((5, 5)))


def test_integers_and_pytrees_among_the_arguments():
    def forward(ctx, tree, i):
        ctx.save_for_backward(tree["x"], i)
        return tree["x"][i] * 2.0

    function = make(forward, lambda ctx, g: (tnp.zeros_like(ctx.saved[0]).at[ctx.saved[1]].add(2 * g), None))
    i = np.array([1, 1, 4])
    found = tape.jacrev(lambda tree: function.apply(tree, i))({"x": A})
    close(found["x"], jax.jacrev(lambda x: x[i] * 2)(A))


def test_contract_20_a_jacobian_of_one_differentiates_the_backward_of_all_rows():
    """As jax.custom_vjp does."""
    CALLS.clear()
    close(
        tape.jacrev(tape.jacrev(lambda x: Traced.apply(x, x * x)[0]))(A),
        jax.jacrev(jax.jacrev(lambda x: twin(x, x * x)[0]))(A),
        2e-4,
    )
    assert len(CALLS) <= 4


def test_contract_20_a_variable_that_a_backward_reads_is_differentiated():
    function = make(lambda ctx, x: tnp.sin(x), lambda ctx, g: g * W)
    for _ in range(2):
        found = tape.jacrev(lambda w: tape.jacrev(function.apply)(A) * w)(2.0)
        close(found, np.diag(B))
    x = tape.Variable(A)
    rows = tape.jacrev(function.apply)(x)
    assert isinstance(rows, tape.Variable)


LOST = {
    "an intermediate": (
        lambda ctx, x: ctx.save_for_backward(tnp.cos(x)) or tnp.sin(x),
        lambda ctx, g: g * ctx.saved[0],
    ),
    "once_differentiable": (
        lambda ctx, x: ctx.save_for_backward(x) or tnp.sin(x),
        tape.once_differentiable(lambda ctx, g: g * tnp.cos(ctx.saved[0])),
    ),
    "raw": (
        lambda ctx, x: setattr(ctx, "c", jnp.cos(x.value)) or tnp.sin(x),
        lambda ctx, g: g * ctx.c,
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_contract_21_what_has_no_second_derivative_says_so(name):
    function = make(*LOST[name])
    close(tape.jacrev(function.apply)(A), np.diag(np.cos(A)))
    for attempt in (
        lambda: tape.hessian(lambda x: function.apply(x).sum())(A),
        lambda: tape.grad(lambda x: (tape.jacrev(function.apply)(x) ** 2).sum())(A),
    ):
        with pytest.raises(UnrecordedGradientError):
            attempt()


def test_contract_21_a_jacobian_at_a_variable_is_recorded_but_for_what_was_not():
    """What the backward saved is differentiated; a gradient from around it that was taken without recording says so."""
    gradient = tape.gradients((W * W).sum(), W)
    saved = make(lambda ctx, x: ctx.save_for_backward(x) or tnp.sin(x), lambda ctx, g: g * tnp.cos(ctx.saved[0]))
    x = tape.Variable(A)
    close(tape.gradients((tape.jacrev(saved.apply)(x) * x).sum(), x), np.cos(A) - A * np.sin(A))
    around = make(lambda ctx, x: tnp.sin(x), lambda ctx, g: g * gradient)
    rows = tape.jacrev(around.apply)(x)
    close(rows, np.diag(2 * B))
    with pytest.raises(UnrecordedGradientError):
        tape.gradients((rows * x).sum(), x)


def test_columns_by_a_jvp_are_pushed_at_once():
    pushed = []

    def jvp(ctx, t):
        pushed.append(None)
        return t * tnp.cos(ctx.saved[0])

    function = make(lambda ctx, x: ctx.save_for_backward(x) or tnp.sin(x), lambda ctx, g: g * tnp.cos(ctx.saved[0]), jvp=jvp)
    close(tape.jacfwd(lambda x: function.apply(x * 2))(A), np.diag(2 * np.cos(2 * A)))
    assert len(pushed) <= 2


# -- what is saved and packed is unpacked once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["backward", "jacobian", "row by row", "create_graph"])
def test_saved_values_are_unpacked_once_for_each_backward(way):
    unpacked = []

    def forward(ctx, x):
        ctx.save_for_backward(x * 1)
        ctx.more = {"twice": x * 2}
        return tnp.sin(x)

    def backward(ctx, g):
        for _ in range(3):
            (x,) = ctx.saved
        if way == "row by row":
            float(g.sum())
        return g * tnp.cos(x) + 0 * (ctx.more["twice"] + ctx.more["twice"])

    def unpack(v):
        unpacked.append(v.shape)
        return v

    function = make(forward, backward)
    for _ in range(2):
        unpacked.clear()
        with tape.saved_value_hooks(lambda v: v, unpack):
            x = tape.Variable(A)
            y = function.apply(x)
        if way in ("backward", "create_graph"):
            y.backward(B, create_graph=way == "create_graph")
            close(x.grad, B * np.cos(A))
        else:
            with tape.saved_value_hooks(lambda v: v, unpack):
                close(tape.jacrev(function.apply)(A), np.diag(np.cos(A)))
        assert len(unpacked) == 2
