"""``tape.Function`` (contracts 8, 9, 13, 21 and 26): what it takes, saves and returns, and how it is differentiated again.

Expected values come from ``jax.grad`` of a ``jax.custom_vjp`` or ``custom_jvp`` twin, or from the derivative itself.
"""

import copy
import functools
import gc
import pathlib
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape import jaxapi
from tape.errors import GradientDtypeError, GradientShapeError, RuleError, TapeError, TapeTypeError, UnrecordedGradientError
from tape.graph.scope import LOCAL
from tests import agreement
from tests.cube import Cube
from tests.daily import share

A, B = np.array([1.0, -2.0, 0.5], np.float32), np.array([3.0, 0.25, -1.0], np.float32)


def array(x):
    return np.asarray(x.value if isinstance(x, tape.Variable) else x)


close = functools.partial(agreement.close, rtol=2e-5, atol=2e-5)


def make(forward, backward, name="Made", **further):
    """Return a Function of these static methods."""
    methods = {"forward": forward, "backward": backward, **further}
    return type(name, (tape.Function,), {key: staticmethod(method) for key, method in methods.items()})


# -- twins: the same derivative given to the tape and to JAX; it is not that of the forward, so that nobody can have computed another ----------


class Odd(tape.Function):
    """x ** 2 * y and sin(x), with ten times the derivative by x and the gradient of y from the saved output."""

    @staticmethod
    def forward(ctx, x, y):
        out = x * x * y
        ctx.save_for_backward({"inputs": (x, y)}, out)
        return {"out": out, "sine": tnp.sin(x)}

    @staticmethod
    def backward(ctx, g, h):
        saved, out = ctx.saved
        x, y = saved["inputs"]
        gx = None if g is None else 20 * x * y * g
        if h is not None:
            gx = 10 * tnp.cos(x) * h + (0 if gx is None else gx)
        return gx, None if g is None else g * out * y


@jax.custom_vjp
def odd(x, y):
    return {"out": x * x * y, "sine": jnp.sin(x)}


def _odd_forward(x, y):
    result = odd(x, y)
    return result, (x, y, result["out"])


def _odd_backward(saved, g):
    x, y, out = saved
    return 20 * x * y * g["out"] + 10 * jnp.cos(x) * g["sine"], g["out"] * out * y


odd.defvjp(_odd_forward, _odd_backward)


def of_tape(x, y):
    r = Odd.apply(x, y)
    return (r["out"] * tnp.cos(r["sine"]) + x * r["sine"]).sum()


def of_jax(x, y):
    r = odd(x, y)
    return (r["out"] * jnp.cos(r["sine"]) + x * r["sine"]).sum()


def backward_gradients(x, y):
    x, y = tape.Variable(x), tape.Variable(y)
    of_tape(x, y).backward()
    return x.grad, y.grad


def scanned(x, y):
    x, y = tape.Variable(x), tape.Variable(y)
    total, _ = tape.lax.scan(lambda c, row: (c + of_tape(row[0], row[1]), 0.0), tnp.sum(x * 0.0), (x, y))
    total.backward()
    return x.grad, y.grad


def jitted(x, y):
    x, y = tape.Variable(x), tape.Variable(y)
    tape.jit(of_tape)(x, y).backward()
    return x.grad, y.grad


def step(x, y):
    x, y = tape.Variable(x), tape.Variable(y)
    tape.jit(lambda: of_tape(x, y).backward())()
    return x.grad, y.grad


def checkpointed(x, y):
    x, y = tape.Variable(x), tape.Variable(y)
    tape.checkpoint(of_tape)(x, y).backward()
    return x.grad, y.grad


def in_thread(x, y):
    found = []
    x, y = tape.Variable(x), tape.Variable(y)
    loss = of_tape(x, y)
    thread = threading.Thread(target=lambda: found.extend(tape.gradients(loss, (x, y))))
    thread.start()
    thread.join()
    return found


def mapped(x, y):
    def row(a, b):
        r = Odd.apply(tape.constant(a), tape.constant(b))
        return (r["out"] * tnp.cos(r["sine"]) + tape.constant(a) * r["sine"]).sum().value

    return jax.vmap(jax.grad(row, argnums=(0, 1)))(x, y)


WAYS = {
    "backward": backward_gradients,
    "gradients": tape.grad(of_tape, argnums=(0, 1)),
    "vjp": lambda x, y: tape.vjp(of_tape, x, y)[1](np.float32(1.0)),
    "tape.jit": jitted,
    "backward in tape.jit": step,
    "jax.jit of tape.grad": jax.jit(tape.grad(of_tape, argnums=(0, 1))),
    "jax.grad": jax.grad(interop.lower(of_tape), argnums=(0, 1)),
    "jax.jit of jax.grad": jax.jit(jax.grad(interop.lower(of_tape), argnums=(0, 1))),
    "jax.grad of jax.jit": jax.grad(jax.jit(interop.lower(of_tape)), argnums=(0, 1)),
    "jax.vmap of jax.grad": mapped,
    "tape.lax.scan": lambda x, y: scanned(x, y),
    "tape.checkpoint": checkpointed,
    "jax.checkpoint": jax.grad(jax.checkpoint(interop.lower(of_tape)), argnums=(0, 1)),
    "a thread": in_thread,
}


@pytest.mark.parametrize("way", WAYS)
def test_contract_26_the_users_backward_is_used_everywhere(way):
    expected = jax.grad(of_jax, argnums=(0, 1))(A, B)
    for _ in range(3):  # interpreted, compiled, replayed
        found = WAYS[way](A, B)
        for g, e in zip(found, expected, strict=True):
            close(g, e)


def raw(f):
    """Return a function of the tape as one of arrays that JAX sees through."""
    return lambda x, y: f(tape.constant(x), tape.constant(y)).value


SECOND = {
    "tape": lambda f: lambda x, y: tape.grad(lambda x, y: (tape.grad(f)(x, y) * B).sum(), argnums=(0, 1))(x, y),
    "tape in jax.jit": lambda f: jax.jit(SECOND["tape"](f)),
    "tape.jit inside": lambda f: SECOND["tape"](tape.jit(f)),
    "jax": lambda f: jax.grad(lambda x, y: (jax.grad(interop.lower(f))(x, y) * B).sum(), argnums=(0, 1)),
    "jax of tape": lambda f: jax.grad(lambda x, y: (tape.grad(f)(x, y) * B).sum(), argnums=(0, 1)),
    "tape of jax": lambda f: tape.grad(lambda x, y: (interop.lift(jax.grad(interop.lower(f)))(x, y) * B).sum(), argnums=(0, 1)),
    "jvp of grad": lambda f: lambda x, y: tape.hvp(f, (x, y), (B, 0 * B)),
    "raw jax": lambda f: jax.grad(lambda x, y: (jax.grad(raw(f))(x, y) * B).sum(), argnums=(0, 1)),
    "raw jax of jit": lambda f: jax.grad(lambda x, y: (jax.grad(jax.jit(raw(f)))(x, y) * B).sum(), argnums=(0, 1)),
}


@pytest.mark.parametrize("way", SECOND)
def test_contract_20_second_derivatives_are_those_of_the_users_backward(way):
    expected = jax.grad(lambda x, y: (jax.grad(of_jax)(x, y) * B).sum(), argnums=(0, 1))(A, B)
    for _ in range(2):
        found = SECOND[way](of_tape)(A, B)
        if way == "jvp of grad":
            # not symmetric: the user's derivative is none of the forward
            close(found, jax.jacrev(lambda x: jax.grad(of_jax)(x, B))(A) @ B)
            continue
        for g, e in zip(found, expected, strict=True):
            close(g, e)


@pytest.mark.usefixtures("tier")
def test_contract_20_26_a_result_that_nobody_holds_is_not_computed_again_past_the_users_backward():
    class Tenfold(Cube):
        """Ten times its derivative."""

        @staticmethod
        def backward(ctx, g):
            return 10 * Cube.backward(ctx, g)

    x = tape.Variable(A)
    total = (Tenfold.apply(x) ** 2).sum()
    float(total)
    slope = tape.gradients(total, x, create_graph=True)
    close(slope, 2 * A**3 * 30 * A**2)
    close(tape.gradients(slope.sum(), x), 2 * (30 * A**2) ** 2 + 2 * A**3 * 60 * A)


@pytest.mark.usefixtures("tier")
def test_contract_20_third_derivatives_by_recorded_sweeps():
    x, y = tape.Variable(A), tape.Variable(B)
    g = tape.gradients(of_tape(x, y), x, create_graph=True)
    h = tape.gradients((g * g).sum(), x, create_graph=True)
    found = tape.gradients((h * y).sum(), (x, y))

    def first(x, y):
        return jax.grad(lambda x: (jax.grad(of_jax)(x, y) ** 2).sum())(x)

    for f, e in zip(found, jax.grad(lambda x, y: (first(x, y) * y).sum(), argnums=(0, 1))(A, B), strict=True):
        close(f, e, 2e-4)


# -- 26: arguments ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_contract_26_arguments_of_every_kind():
    """Arrays in pytrees, further positional ones and keywords are tracked; everything else arrives as it is."""
    seen = {}

    def forward(ctx, x, flag, params, *rest, scale, names=("a",), **more):
        seen.update(flag=flag, names=names, array=params["array"], none=params["none"], needs=ctx.needs_input_grad)
        ctx.save_for_backward(x, params, rest, scale, more)
        return x * params["w"] * scale + rest[0] * rest[1] + params["array"] + more["extra"]

    def backward(ctx, g):
        assert ctx.needs_input_grad == seen["needs"]
        x, params, rest, scale, more = ctx.saved
        assert set(more) == {"extra"}
        # x; params by sorted keys: array, w; the rest; keywords in the order of the call
        return g * params["w"] * scale, None, g * x * scale, g * rest[1], None, g * 7, (g * x * params["w"]).sum()

    many = make(forward, backward)
    x, w, r, e, s = (tape.Variable(v) for v in (A, B, A + 1, A + 2, 2.0))
    count = tape.constant(np.int32(3))
    y = many.apply(x, True, {"w": w, "array": A, "none": None}, r, count, extra=e, scale=s)
    assert seen["flag"] is True
    assert seen["names"] == ("a",)
    assert isinstance(seen["array"], tape.Variable)
    assert not seen["array"].requires_grad
    assert seen["none"] is None
    assert seen["needs"] == (True, False, True, True, False, True, True)
    close(y, A * B * 2 + (A + 1) * 3 + A + A + 2)
    y.sum().backward()
    for v, expected in ((x, 2 * B), (w, 2 * A), (r, [3, 3, 3]), (e, [7, 7, 7]), (s, (A * B).sum())):
        close(v.grad, expected)


def test_contract_26_a_numpy_left_operand_records():
    """``array * variable`` inside and outside of a Function is on the tape, and so is an array argument before a Variable."""
    times = make(lambda ctx, a, x: ctx.save_for_backward(a) or a * x, lambda ctx, g: (None, ctx.saved[0] * g))
    x = tape.Variable(A)
    numbers = B.copy()
    y = B * times.apply(numbers, x)
    numbers[:] = 100
    assert isinstance(y, tape.Variable)
    y.sum().backward()
    close(x.grad, B * B)
    inside = make(lambda ctx, x: ctx.save_for_backward(x) or B * x * x, lambda ctx, g: np.float32(2) * B * ctx.saved[0] * g)
    g = tape.gradients(inside.apply(x).sum(), x, create_graph=True)
    close(tape.gradients((B * g).sum(), x), 2 * B * B)


def test_contract_26_keyword_variables_are_tracked():
    power = make(
        lambda ctx, *, base, factor: ctx.save_for_backward(base, factor) or base * base * factor,
        lambda ctx, g: (g * ctx.saved[0] ** 2, 2 * g * ctx.saved[0] * ctx.saved[1]),
    )
    x, f = tape.Variable(3.0), tape.Variable(5.0)
    tape.backward(power.apply(factor=f, base=x))  # gradients in the order of the call
    close(x.grad, 30)
    close(f.grad, 9)


needs_of = []
needing = make(
    lambda ctx, x, y, n: needs_of.append(ctx.needs_input_grad) or x * y * n,
    lambda ctx, g: (g, g, None),
    name="Needing",
)


def test_needs_input_grad_is_true_where_a_gradient_is_wanted():
    needs_of.clear()
    x, y, n = tape.Variable(A), tape.Variable(B), tape.constant(2)
    needing.apply(x, y, n)
    needing.apply(x, B, n)
    needing.apply(A, y.detach(), n)
    with tape.no_grad():
        needing.apply(x, y, n)
        with tape.enable_grad():
            needing.apply(x, y.detach(), n)
    assert needs_of == [(True, True, False), (True, False, False), (False,) * 3, (False,) * 3, (True, False, False)]


def test_contract_23_under_no_grad_it_is_a_constant_to_jax_too():
    def raw(x):
        x = tape.constant(x)
        with tape.no_grad():
            y = Odd.apply(x, B)["out"]
        return (y * x).sum().value

    for transformation in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))):
        close(transformation(raw)(A), A * A * B)
    close(tape.grad(tape.jit(lambda x: (tape.no_grad()(Odd.apply)(x, B)["out"] * x).sum()))(A), A * A * B)


def test_needs_input_grad_under_jax_is_what_jax_differentiates_by():
    def raw(x, y):
        return needing.apply(tape.constant(x), tape.constant(y), tape.constant(2)).value.sum()

    for transformation in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f)), lambda f: jax.vmap(jax.grad(f))):
        needs_of.clear()
        transformation(raw)(A, B)
        assert (True, False, False) in needs_of
        assert not any(needs[1] or needs[2] for needs in needs_of)
    needs_of.clear()
    tape.jit(lambda x: tape.gradients(needing.apply(x, B, tape.constant(2)).sum(), x))(tape.Variable(A))
    assert needs_of[0] == (True, False, False)


# -- 26: what is saved ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("create_graph", [False, True])
def test_contract_26_saves_any_pytree(create_graph):
    numbers = {"b": B.copy()}
    listed = [2.0]

    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward({"in": [x], "out": y}, numbers, "text", None, jnp.asarray(A), listed)
        ctx.also = {"x": (x, 3)}
        ctx.plain = "plain"
        return y

    def backward(ctx, g):
        kept, arrays, text, none, jax_array, two = ctx.saved
        assert (text, none, two, ctx.plain, ctx.also["x"][1]) == ("text", None, [2.0], "plain", 3)
        assert isinstance(arrays["b"], np.ndarray)
        with pytest.raises(ValueError, match="read-only"):
            arrays["b"][0] = 0
        np.testing.assert_array_equal(jax_array, A)
        with pytest.raises(AttributeError, match="has no attribute 'other'; set it in forward"):
            ctx.other
        return g * kept["in"][0] * arrays["b"] + 0 * kept["out"] + 0 * ctx.also["x"][0]

    x = tape.Variable(A)
    y = make(forward, backward).apply(x)
    numbers["b"][:] = 0
    listed.append(5.0)
    g = tape.gradients(y.sum(), x, create_graph=create_graph)
    close(g, A * B)
    if create_graph:
        close(tape.gradients(g.sum(), x), B)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("how", ["saved", "attribute", "set in backward"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_contract_17_a_context_is_freed_with_its_result(how, create_graph):
    class Array(np.ndarray):
        pass

    def forward(ctx, x):
        y = x * x
        ctx.big = np.ones(3, np.float32).view(Array)
        watched.append(weakref.ref(ctx.big))
        if how == "saved":
            ctx.save_for_backward(x, y, [ctx.big])
        elif how == "attribute":
            ctx.kept = {"x": x, "y": y}
        return y

    def backward(ctx, g):
        if how == "set in backward":
            ctx.g = ctx.h = g * 1
        return 2 * g

    watched = []
    cube = make(forward, backward)
    x = tape.Variable(A)
    gc.collect()
    gc.disable()
    try:
        y = cube.apply(x)
        z = cube.apply(y * 1).sum()
        z.backward(create_graph=create_graph)
        x.grad = None
        del y, z
        assert [ref() for ref in watched] == [None, None]
    finally:
        gc.enable()


@pytest.mark.usefixtures("tier")
def test_contract_17_a_saved_leaf_whose_value_is_pending():
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.big = np.ones(3, np.float32).view(Array)
        watched.append(weakref.ref(ctx.big))
        return x * w

    def backward(ctx, g):
        x, w = ctx.saved
        seen.append(np.asarray(w.value))
        return g * w, g * x

    class Array(np.ndarray):
        pass

    seen, watched = [], []
    product = make(forward, backward)
    x, w = tape.Variable(A), tape.Variable(B)
    for n in (2, 4, 8):
        with tape.no_grad():
            w *= 2  # pending, as after a step of an optimizer
        leaf = (w * 3).detach().requires_grad_()
        found = tape.gradients([product.apply(x, w).sum(), product.apply(x, leaf).sum()], [x, w, leaf])
        for f, e in zip([*found, *seen[-2:]], [4 * n * B, A, A, 3 * n * B, n * B], strict=True):
            close(f, e)
    gc.collect()
    gc.disable()
    try:
        leaf = (w * 3).detach().requires_grad_()
        y = product.apply(x, leaf)
        del y, leaf
        assert watched[-1]() is None
    finally:
        gc.enable()


# -- 21: what the forward computed has no derivative, and says so -----------------------------------------------------------------------


def by_intermediate(ctx, x):
    h = tnp.sin(x)
    ctx.save_for_backward(x, {"h": h})
    return h * h


INTERMEDIATE = {
    "saved": (
        by_intermediate,
        lambda ctx, g: 2 * g * ctx.saved[1]["h"] * tnp.cos(ctx.saved[0]),
        r"ctx\.saved\[1\]\['h'\] of Lost was computed in Lost\.forward",
    ),
    "attribute": (
        lambda ctx, x: (setattr(ctx, "h", tnp.cos(x)), tnp.sin(x))[1],
        lambda ctx, g: g * ctx.h,
        r"ctx\.h of Lost was computed in Lost\.forward",
    ),
    "value in forward": (
        lambda ctx, x: ctx.save_for_backward(jnp.cos(x.value)) or jnp.sin(x.value),
        lambda ctx, g: g * ctx.saved[0],
        r"Lost computed it of the value .* tape\.numpy in Lost\.backward",
    ),
    "numpy in forward": (
        lambda ctx, x: ctx.save_for_backward(np.cos(x.numpy())) or tnp.sin(x),
        lambda ctx, g: g * ctx.saved[0],
        r"Lost computed it of the value",
    ),
    "value in backward": (
        lambda ctx, x: ctx.save_for_backward(x) or tnp.sin(x),
        lambda ctx, g: g * jnp.cos(ctx.saved[0].value),
        r"Lost computed it of the value",
    ),
    "raw gradient": (
        lambda ctx, x: ctx.save_for_backward(x) or tnp.sin(x),
        lambda ctx, g: g.value * jnp.cos(ctx.saved[0].value),
        r"Lost computed it of the value",
    ),
    "through jax.jit": (
        lambda ctx, x: ctx.save_for_backward(x) or tnp.sin(x),
        lambda ctx, g: g * jax.jit(lambda x: jnp.cos(x.value))(ctx.saved[0]),
        r"Lost computed it of the value",
    ),
    "once_differentiable": (
        lambda ctx, x: ctx.save_for_backward(x) or tnp.sin(x),
        tape.once_differentiable(lambda ctx, g: g * tnp.cos(ctx.saved[0])),
        r"Lost\.backward is once_differentiable",
    ),
    "once_differentiable, raw": (
        lambda ctx, x: ctx.save_for_backward(x) or tnp.sin(x),
        tape.once_differentiable(lambda ctx, g: jnp.cos(ctx.saved[0].value) * g.value),
        r"Lost\.backward is once_differentiable",
    ),
}


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("kind", INTERMEDIATE)
def test_contract_21_second_derivatives_are_never_lost_silently(kind):
    forward, backward, message = INTERMEDIATE[kind]
    lost = make(forward, backward, "Lost")
    first = 2 * np.sin(A) * np.cos(A) if kind == "saved" else np.cos(A)
    for _ in range(3):
        x = tape.Variable(A)
        lost.apply(x).sum().backward()
        close(x.grad, first)
        g = tape.gradients(lost.apply(x).sum(), x, create_graph=True)
        close(g, first)
        for attempt in (
            lambda g=g, x=x: tape.gradients(g.sum(), x),
            lambda g=g: (g * 2).sum().backward(),
            lambda g=g, x=x: (g * x).sum().backward(),
            lambda: tape.grad(lambda v: (tape.grad(lambda u: lost.apply(u).sum())(v) * v).sum())(A),
            lambda: tape.hessian(lambda v: lost.apply(v).sum())(A),
            lambda x=x: tape.gradients((tape.gradients(lost.apply(x * x).sum(), x, create_graph=True) ** 2).sum(), x),
        ):
            with pytest.raises(UnrecordedGradientError, match=message):
                attempt()
        close(x.grad, first)
        close(tape.gradients((g.detach() * x).sum(), x), first)
        # without create_graph the message is the usual one
        g = tape.gradients(lost.apply(x).sum(), x)
        with pytest.raises(UnrecordedGradientError, match="create_graph=True"):
            (g * x).sum().backward()


def lifting(holding, ctx, g):
    """Lift a function that holds a number which NumPy made."""
    return interop.lift(holding(2 * ctx.saved[0].numpy()))(g)


BY_NUMPY = {  # what NumPy makes of arrays without axes are numbers of its own
    "raw gradient": lambda ctx, g: 2 * ctx.saved[0].numpy() * g.numpy(),
    "once_differentiable": tape.once_differentiable(lambda ctx, g: 2 * ctx.saved[0].numpy() * g.numpy()),
    "an operand": lambda ctx, g: 2 * ctx.saved[0].numpy() * g,
    "an operand, right": lambda ctx, g: g * (2 * ctx.saved[0].numpy()),
    "an argument": lambda ctx, g: tnp.multiply(g, 2 * ctx.saved[0].numpy()),
    "among others": lambda ctx, g: tnp.stack([g, tnp.array([2 * ctx.saved[0].numpy(), g])[0]]).prod(),
    "asarray": lambda ctx, g: tnp.asarray(2 * ctx.saved[0].numpy()) * g,
    "tolist": lambda ctx, g: tnp.asarray(np.array(2 * ctx.saved[0].tolist(), np.float32)) * g,
    "tobytes": lambda ctx, g: tnp.asarray(2 * np.frombuffer(ctx.saved[0].tobytes(), np.float32)).sum() * g,
    "array": lambda ctx, g: tnp.array([2 * ctx.saved[0].numpy()])[0] * g,
    "an exponent": lambda ctx, g: (6 * g) ** (ctx.saved[0].numpy() / 3),
    "an option": lambda ctx, g: tnp.pad(g[None], 1, constant_values=2 * ctx.saved[0].numpy())[0],
    "a bound": lambda ctx, g: g * tnp.arange(2 * ctx.saved[0].numpy(), 7)[0],
    "in a lifted function": lambda ctx, g: lifting(lambda n: lambda g: g * n, ctx, g),
    "in a lifted function's default": lambda ctx, g: lifting(lambda n: lambda g, n=n: jnp.multiply(g, n), ctx, g),
    "in a lifted function's array": lambda ctx, g: lifting(lambda n: lambda g: g * np.array([n])[0], ctx, g),
    "in a lifted partial": lambda ctx, g: lifting(lambda n: functools.partial(jnp.multiply, n), ctx, g),
    "in a lifted jitted function": lambda ctx, g: lifting(lambda n: jax.jit(lambda g: g * n), ctx, g),
    "in a static argument": lambda ctx, g: interop.lift(lambda h, g: h(g))(functools.partial(jnp.multiply, 2 * ctx.saved[0].numpy()), g),
}


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("kind", BY_NUMPY)
def test_contract_21_numbers_that_numpy_made_are_no_constants(kind):
    square = make(lambda ctx, x: ctx.save_for_backward(x) or x * x, BY_NUMPY[kind], "Lost")
    for _ in range(3):
        x = tape.Variable(3.0)
        g = tape.gradients(square.apply(x), x, create_graph=True)
        assert float(g) == 6
        with pytest.raises(UnrecordedGradientError, match="Lost"):
            tape.gradients(g * x, x)


@pytest.mark.usefixtures("tier")
def test_contract_21_a_number_that_numpy_made_is_no_constant_to_another_function():
    times = make(lambda ctx, a, b: a * b, lambda ctx, g: (g, g), "Times")
    square = make(lambda ctx, x: ctx.save_for_backward(x) or x * x, lambda ctx, g: times.apply(g, 2 * ctx.saved[0].numpy()), "Square")
    x = tape.Variable(3.0)
    g = tape.gradients(square.apply(x), x, create_graph=True)
    assert float(g) == 6
    with pytest.raises(UnrecordedGradientError):
        tape.gradients(g * x, x)


@pytest.mark.usefixtures("tier")
def test_contract_21_constants_of_a_backward_are_constants():
    """Arrays that depend on no Variable, numbers, and what ``tape.constant`` says is one, can be differentiated through."""
    table = jnp.asarray(B)
    for backward in (
        lambda ctx, g: g * table * ctx.saved[0],
        lambda ctx, g: g * B * ctx.saved[0],
        lambda ctx, g: g * tape.constant(table + 0 * ctx.saved[0].value) * ctx.saved[0],
        lambda ctx, g: g * ctx.saved[1] * ctx.saved[0],
        lambda ctx, g: g * ctx.table * ctx.saved[0],
    ):

        def forward(ctx, x):
            ctx.table = table
            ctx.save_for_backward(x, tnp.asarray(B) * 1)
            return x * x

        x = tape.Variable(A)
        g = tape.gradients(make(forward, backward).apply(x).sum(), x, create_graph=True)
        close(tape.gradients(g.sum(), x), B)
    x = tape.Variable(A)
    g = tape.gradients((make(lambda ctx, x: x * 1, lambda ctx, g: np.ones(3, np.float32)).apply(x) * x).sum(), x, create_graph=True)
    close(tape.gradients(g.sum(), x), np.ones(3) + 1 - 1 + 0 * A + 0, 2)


def test_contract_21_jax_differentiates_what_was_saved():
    """JAX traces the forward too, so that intermediates have their derivatives there; once_differentiable holds."""
    forward, backward, _ = INTERMEDIATE["saved"]
    kept = interop.lower(lambda x: make(forward, backward, "Lost").apply(x).sum())
    close(jax.grad(lambda x: (jax.grad(kept)(x) * B).sum())(A), 2 * np.cos(2 * A) * B)
    for kind in ("once_differentiable", "once_differentiable, raw"):
        forward, backward, message = INTERMEDIATE[kind]
        once = interop.lower(lambda x: make(forward, backward, "Lost").apply(x).sum())  # noqa: B023 - called at once
        close(jax.grad(once)(A), np.cos(A))
        close(jax.jit(jax.grad(once))(A), np.cos(A))
        for attempt in (jax.jacrev(jax.grad(once)), jax.grad(lambda x: jax.jit(jax.grad(once))(x).sum())):  # noqa: B023
            with pytest.raises(UnrecordedGradientError, match=message):
                attempt(A)


@pytest.mark.parametrize("kind", ["saved", "once_differentiable", "value in backward"])
def test_contract_21_in_a_compiled_step(kind):
    """Through ``tape.jit`` a second derivative is right, or an error."""
    forward, backward, message = INTERMEDIATE[kind]
    lost = make(forward, backward, "Lost")
    f = tape.jit(lambda x: lost.apply(x).sum())
    x = tape.Variable(A)
    for _ in range(2):
        g = tape.gradients(f(x), x, create_graph=True)
        close(g, 2 * np.sin(A) * np.cos(A) if kind == "saved" else np.cos(A))
        if kind == "once_differentiable":
            with pytest.raises(UnrecordedGradientError, match=message):
                tape.gradients(g.sum(), x)
        else:
            close(tape.gradients(g.sum(), x), 2 * np.cos(2 * A) if kind == "saved" else -np.sin(A))


# -- 8: outputs -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_contract_08_outputs_of_every_kind():
    """An input itself, the same value twice, constants, integers, empty arrays, numbers, None: each has its place among the gradients."""
    seen = []

    def forward(ctx, x, y):
        z = x * y
        return {
            "same": x,
            "twice": [z, z],
            "made": tape.constant(B),
            "numpy": B,
            "count": tnp.argmax(x),
            "number": 2.0,
            "empty": x[:0],
            "none": None,
        }

    def backward(ctx, count, empty, made, number, numpy, same, first, second):
        seen.append([count, empty, made, number, numpy, same, first, second])
        total = sum((g for g in (same, first, second) if g is not None), start=tnp.zeros(3))
        return total * 2, total * 3

    x, y = tape.Variable(A), tape.Variable(B)
    many = make(forward, backward)
    out = many.apply(x, y)
    assert out["none"] is None
    assert out["same"] is not x
    assert out["count"].dtype == jnp.int32
    assert not out["count"].requires_grad
    assert out["empty"].shape == (0,)
    for name in ("same", "made", "numpy", "number", "empty"):
        assert out[name].requires_grad
        assert not out[name].is_leaf
    (out["same"] + 5 * out["twice"][0] + 7 * out["twice"][1]).sum().backward()
    close(x.grad, np.full(3, 2.0 * 13))
    close(y.grad, np.full(3, 3.0 * 13))
    (found,) = seen
    assert [g is None for g in found] == [True] * 5 + [False] * 3
    seen.clear()
    tape.backward([out2 := many.apply(x, y)["empty"]], [np.zeros(0, np.float32)])
    assert out2.size == 0
    assert seen[0][1].shape == (0,)


INSIDE = {
    "tape.jit": tape.jit,
    "tape.checkpoint": tape.checkpoint,
    "tape.vmap": tape.vmap,
    "tape.lax.map": lambda fun: lambda x: tape.lax.map(fun, x),
    "tape.lax.cond": lambda fun: lambda x: tape.lax.cond(True, fun, fun, x),
    "tape.lax.scan": lambda fun: lambda x: tape.lax.scan(lambda c, x: (c + fun(x), None), 0.0, x)[0],
}


def test_contract_08_a_function_may_have_more_outputs_at_the_next_call():
    def forward(ctx, x, factors):
        ctx.factors = factors
        return [x * f for f in factors]

    scaled = make(forward, lambda ctx, *gradients: sum(g * f for g, f in zip(gradients, ctx.factors, strict=True)))
    x = tape.Variable(A)
    for factors in ((2.0,), (3.0, 4.0), (5.0, 6.0, 7.0), (2.0,)):
        outputs = scaled.apply(x, factors)
        close(tape.gradients(sum(y.sum() for y in outputs), x), np.full(3, sum(factors)))


@pytest.mark.parametrize("inside", INSIDE)
def test_contract_08_a_backward_is_told_which_cotangents_are_missing_wherever_it_is_called(inside):
    seen = []

    def backward(ctx, *cts):
        seen.append([ct is None for ct in cts])
        return cts[1] * 2

    fun = make(lambda ctx, x: (x * 1, x * 2, x > 0), backward)
    x = tape.Variable(A)
    INSIDE[inside](lambda x: fun.apply(x)[1].sum())(x).sum().backward()
    close(x.grad, 2 + 0 * A)
    assert seen
    assert all(missing == [True, False, True] for missing in seen)


@pytest.mark.usefixtures("tier")
def test_contract_08_outputs_that_are_inputs_or_come_twice_are_differentiated_again():
    """The saved output is the function's result, whichever of its places the gradient takes."""

    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x, y)
        return x, y, y

    def backward(ctx, g, h, k):
        x, y = ctx.saved
        return sum(
            f for f in (None if g is None else g, None if h is None else h * 2 * x, None if k is None else k * 2 * y / x) if f is not None
        )

    x = tape.Variable(A)
    same, first, second = make(forward, backward).apply(x)
    for root, expected in ((same, 2 + 0 * A), (first, 6 * A), (second, 6 * A)):
        g = tape.gradients((root * x).sum(), x, create_graph=True)
        close(tape.gradients(g.sum(), x, retain_graph=True), expected)


def test_contract_20_a_saved_input_stays_one_though_it_is_an_output_too():
    tripled = make(lambda ctx, x: ctx.save_for_backward(x) or x, lambda ctx, g: 3 * ctx.saved[0] * g)

    def fun(x):
        return tripled.apply(x).sum()

    x = tape.Variable(A)
    g = tape.gradients(fun(x), x, create_graph=True)
    close(tape.gradients(g.sum(), x), np.full(3, 3.0))
    close(jax.grad(lambda x: jax.grad(interop.lower(fun))(x).sum())(A), np.full(3, 3.0))


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("materialize", [False, True])
def test_outputs_marked_as_constants(materialize):
    seen = []

    def forward(ctx, x):
        mask, y = x > 0, x * x
        weights = tnp.exp(x)
        ctx.set_materialize_grads(materialize)
        ctx.mark_non_differentiable(weights)
        ctx.mark_non_differentiable(mask)  # beside what was marked before
        ctx.save_for_backward(x)
        return weights, y, mask

    def backward(ctx, g, h, m):
        seen.append((g, m))
        return h * 2 * ctx.saved[0]

    marked = make(forward, backward)
    x = tape.Variable(A)
    for _ in range(2):
        x.grad = None
        weights, y, mask = marked.apply(x)
        assert (weights.requires_grad, y.requires_grad, mask.requires_grad) == (False, True, False)
        (weights * y).sum().backward()
        close(x.grad, 2 * A * np.exp(A))
        g, m = seen.pop()
        if materialize:
            close(g, 0 * A)
            assert m.shape == (3,)
        else:
            assert g is m is None

    def raw(x):
        weights, y, _ = marked.apply(tape.constant(x))
        return (weights * y).sum().value

    close(jax.grad(lambda x: (marked.apply(tape.constant(x))[0] * tape.constant(x)).sum().value)(A), np.exp(A))  # no sweep comes by
    assert not seen

    @tape.jit
    def compiled(x):
        weights, y, _ = marked.apply(x)
        return (weights * y).sum()

    for f in (jax.grad(raw), jax.jit(jax.grad(raw)), tape.grad(compiled)):
        close(f(A), 2 * A * np.exp(A))
    with pytest.raises(TapeTypeError, match=r"mark_non_differentiable: output 0 must be a Variable that forward returns, got ndarray"):
        make(lambda ctx, x: ctx.mark_non_differentiable(A) or x, backward).apply(x)


@pytest.mark.parametrize("create_graph", [False, True])
def test_contract_10_a_backward_may_write_into_its_cotangent(create_graph):
    def backward(ctx, g):
        g[0] = 5
        return g

    first = make(lambda ctx, x: x * 1, backward)
    x, y = tape.Variable(A), tape.Variable(A)
    gradients = tape.gradients((first.apply(x) + y).sum(), (x, y), create_graph=create_graph)  # one cotangent for both
    np.testing.assert_array_equal([array(g) for g in gradients], [[5, 1, 1], [1, 1, 1]])


def test_hooks_on_inputs_and_outputs():
    seen = []
    x = tape.Variable(A)
    x.register_hook(lambda g: seen.append(("x", array(g))) or g * 2)
    h = x * 3
    h.register_hook(lambda g: seen.append(("h", array(g))) or g * 10)
    out = Odd.apply(h, B)["sine"]
    out.register_hook(lambda g: seen.append(("out", array(g))) or g * 100)
    out.retain_grad()
    out.sum().backward()
    cosine = 10 * np.cos(3 * A)
    assert [name for name, _ in seen] == ["out", "h", "x"]
    close(out.grad, 100 + 0 * A)
    close(seen[1][1], 100 * cosine)
    close(x.grad, 2 * 3 * 10 * 100 * cosine, 1e-2)


# -- 9 and 13: what is refused ----------------------------------------------------------------------------------------------------------


def two(result, **further):
    return make(lambda ctx, x, params, *, z: x * params["w"] * z, result, "Two", **further)


GRADIENTS = {
    "too few": (
        lambda ctx, g: (g, g),
        RuleError,
        r"Two\.backward returned 2 gradients for 3 array arguments \(x, params\['w'\], z\); .*nothing for other",
    ),
    "too many": (lambda ctx, g: [g] * 4, RuleError, r"Two\.backward returned 4 gradients for 3"),
    "one": (lambda ctx, g: g, RuleError, r"Two\.backward returned 1 gradients for 3"),
    "none at all": (lambda ctx, g: None, RuleError, r"Two\.backward returned 1 gradients for 3"),
    "shape": (
        lambda ctx, g: (g, g.sum(), g),
        GradientShapeError,
        r"Two\.backward returned a gradient of shape \(\) for argument 1, which has shape \(3,\) and is .params\['w'\]. of forward; .*sum over",
    ),
    "shape of a number": (lambda ctx, g: (g, g, 1.0), GradientShapeError, r"shape \(\) for argument 2, which has shape \(3,\) and is 'z'"),
    "dtype": (
        lambda ctx, g: (g.astype("float16"), g, g),
        GradientDtypeError,
        r"Two\.backward returned a gradient of dtype float16 for argument 0, which has dtype float32 and is 'x' of forward; cast it",
    ),
    "integers": (lambda ctx, g: (g, np.ones(3, np.int32), g), GradientDtypeError, r"int32 for argument 1"),
    "complex": (lambda ctx, g: (g, g, g * 1j), GradientDtypeError, r"complex64 for argument 2"),
    "type": (
        lambda ctx, g: (g, "g", g),
        GradientDtypeError,
        r"Two\.backward returned str as the gradient of argument 1, which has shape \(3,\)",
    ),
    "a list inside": (lambda ctx, g: (g, [g], g), GradientDtypeError, r"returned list as the gradient of argument 1"),
}


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("kind", GRADIENTS)
def test_contract_09_a_wrong_gradient_is_named_and_changes_nothing(kind):
    backward, error, words = GRADIENTS[kind]
    x, w, z = (tape.Variable(v) for v in (A, B, A + 1))
    x.grad = A
    y = two(backward).apply(x, {"w": w}, z=z) * x
    for attempt in (y.sum().backward, lambda: tape.gradients(y.sum(), (x, w, z), create_graph=True)):
        with pytest.raises(error, match=words) as caught:
            attempt()
        assert isinstance(caught.value, TapeError)
        close(x.grad, A)
        assert w.grad is z.grad is None

    def raw(x):
        return two(backward).apply(tape.constant(x), {"w": B}, z=tape.constant(A)).value.sum()

    for transformation in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        with pytest.raises(error, match=words):
            transformation(raw)(A)


def test_contract_09_a_complex_number_is_no_gradient_of_a_real_one():
    x = tape.Variable(2.0)
    y = make(lambda ctx, x: x * x, lambda ctx, g: 4.0 + 1j).apply(x)
    with pytest.raises(
        GradientDtypeError, match=r"complex number \(4\+1j\) as the gradient of argument 0, .* float32 .*; return its real part"
    ):
        y.backward()
    assert x.grad is None


def test_contract_09_none_is_no_zero_that_is_multiplied():
    class Left(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return None

    x = tape.Variable(0.0)
    for _ in range(3):
        assert float(tape.gradients(Left.apply(tnp.sqrt(x)) + 3 * x, x)) == 3  # the slope of the root is infinite


def test_contract_09_none_and_numbers_are_gradients():
    x, w, z = tape.Variable(A), tape.Variable(B), tape.Variable(np.float32(2.0))
    two(lambda ctx, g: (None, np.ones(3, np.float32), 7)).apply(x, {"w": w}, z=z).sum().backward()
    assert x.grad is None
    close(w.grad, np.ones(3))
    close(z.grad, 7)


def plain(ctx, x):
    return x * 2


class NotStatic(tape.Function):
    def forward(ctx, x):  # noqa: N805
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class ByClass(tape.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @classmethod
    def backward(cls, ctx, g):
        return g


def gives(value):
    return make(lambda ctx, x: value, lambda ctx, g: g, "Gives")


REFUSED = {
    "not static": (lambda x: NotStatic.apply(x), r"NotStatic\.forward must be a static method, got function; put @staticmethod above it"),
    "class method": (lambda x: ByClass.apply(x), r"ByClass\.backward must be a static method, got classmethod"),
    "vmap not static": (
        lambda x: type("Flat", (tape.Function,), {"forward": staticmethod(plain), "vmap": plain}).apply(x),
        r"Flat\.vmap must be a static method, got function",
    ),
    "no forward": (lambda x: type("Empty", (tape.Function,), {}).apply(x), r"Empty has no forward; define a static method"),
    "no backward": (lambda x: type("Half", (tape.Function,), {"forward": staticmethod(plain)}).apply(x), r"Half has no backward; define"),
    "the base class": (lambda x: tape.Function.apply(x), r"tape\.Function itself has no forward; make a subclass"),
    "an object": (lambda x: Odd(), r"Odd is a tape\.Function, of which there are no objects; call Odd\.apply\(\.\.\.\)"),
    "a call of an object": (lambda x: Odd(x, x)(x), r"Odd is a tape\.Function"),
    "too few arguments": (
        lambda x: Odd.apply(x),
        r"Odd\.apply: the arguments do not fit forward\(ctx, x, y\): missing a required argument: 'y'",
    ),
    "too many arguments": (lambda x: Odd.apply(x, x, x), r"Odd\.apply: the arguments do not fit forward\(ctx, x, y\): too many positional"),
    "setup_context": (
        lambda x: make(lambda x: x, lambda ctx, g: g, setup_context=lambda ctx, inputs, output: None).apply(x),
        r"do not fit forward\(x\).*; apply takes those after ctx, and there is no setup_context: .* ctx\.save_for_backward",
    ),
    "unknown keyword": (lambda x: Odd.apply(x, x, z=3), r"Odd\.apply: .* unexpected keyword argument 'z'"),
    "arity of backward": (
        lambda x: make(lambda ctx, x: (x, x), lambda ctx, g: g, "Pair").apply(x),
        r"Pair\.backward is called with ctx and 2 values \(one gradient per output of forward\), but is defined as backward\(ctx, g\)",
    ),
    "arity of jvp": (
        lambda x: make(lambda ctx, x: x, lambda ctx, g: g, "Push", jvp=lambda ctx: 0).apply(x),
        r"Push\.jvp is called with ctx and 1 values \(one tangent per array argument\)",
    ),
    "text": (lambda x: gives("text").apply(x), r"Gives\.forward must return Variables or arrays, got str; keep anything else in ctx"),
    "text inside": (lambda x: gives((A, "text")).apply(x), r"Gives\.forward must return Variables or arrays, got str as output 1"),
    "nothing": (lambda x: gives(None).apply(x), r"Gives\.forward must return Variables or arrays, got NoneType without any"),
    "an empty tuple": (lambda x: gives(()).apply(x), r"got tuple without any; return at least one"),
    "materialize": (
        lambda x: make(lambda ctx, x: ctx.set_materialize_grads("yes"), lambda ctx, g: g).apply(x),
        r"set_materialize_grads: value must be True or False, got str",
    ),
    "once_differentiable": (lambda x: tape.once_differentiable(staticmethod(plain)), r"once_differentiable: .* write @staticmethod above"),
    "once_differentiable of none": (lambda x: tape.once_differentiable(3), r"once_differentiable: expected a function, got int"),
}


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("kind", REFUSED)
def test_contract_13_what_is_refused_at_the_call(kind):
    call, words = REFUSED[kind]
    x = tape.Variable(A)
    y = x * 2
    for _ in range(2):
        with pytest.raises(TapeTypeError, match=words):
            call(y)
        assert (y * 2).requires_grad  # the mode is as it was
    y.sum().backward()
    close(x.grad, 2 + 0 * A)


def test_errors_of_a_forward_are_the_users():
    def forward(ctx, x):
        len(3)

    x = tape.Variable(A)
    with pytest.raises(TypeError, match="has no len") as caught:
        make(forward, plain).apply(x)
    assert not isinstance(caught.value, TapeError)
    with pytest.raises(LookupError):
        make(lambda ctx, x: {}["x"], plain).apply(x)
    assert (x * 2).requires_grad


def test_a_forward_that_is_not_differentiated_needs_no_backward():
    half = type("Half", (tape.Function,), {"forward": staticmethod(plain)})
    close(half.apply(A), 2 * A)
    with tape.no_grad():
        close(half.apply(tape.Variable(A)), 2 * A)


def test_a_failing_backward_can_be_tried_again():
    fail = [True]

    def backward(ctx, g):
        if fail:
            raise LookupError
        return g * ctx.saved[0]

    x = tape.Variable(A)
    y = make(lambda ctx, x: ctx.save_for_backward(x) or x * x, backward).apply(x).sum()
    for _ in range(2):
        with pytest.raises(LookupError):
            y.backward()
        assert x.grad is None
        assert (x * 1).requires_grad
    fail.clear()
    y.backward()
    close(x.grad, A)


# -- forward mode -----------------------------------------------------------------------------------------------------------------------


class Bent(tape.Function):
    """sin(x) * y, with three times its derivative, both ways: what is found must have come from the user's methods."""

    calls: list[str] = []  # noqa: RUF012 - which method ran

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return tnp.sin(x) * y, x * 2

    @staticmethod
    def backward(ctx, g, h):
        Bent.calls.append("backward")
        x, y = ctx.saved
        gx = 0 if g is None else 3 * tnp.cos(x) * y * g
        return (gx if h is None else gx + 6 * h), None if g is None else 3 * tnp.sin(x) * g

    @staticmethod
    def jvp(ctx, dx, dy):
        Bent.calls.append("jvp")
        x, y = ctx.saved
        terms = [3 * tnp.cos(x) * y * dx] if dx is not None else []
        terms += [3 * tnp.sin(x) * dy] if dy is not None else []
        return sum(terms[1:], start=terms[0]), None if dx is None else 6 * dx


@jax.custom_jvp
def bent(x, y):
    return jnp.sin(x) * y, x * 2


@bent.defjvp
def _bent_jvp(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    return bent(x, y), (3 * jnp.cos(x) * y * dx + 3 * jnp.sin(x) * dy, 6 * dx)


def bent_tape(x, y):
    a, b = Bent.apply(x * 1.5, y)
    return (a * tnp.tanh(b) * y).sum()


def bent_jax(x, y):
    a, b = bent(x * 1.5, y)
    return (a * jnp.tanh(b) * y).sum()


def vector_tape(x, y):
    a, b = Bent.apply(x * 1.5, y)
    return a * b * x


def vector_jax(x, y):
    a, b = bent(x * 1.5, y)
    return a * b * x


FORWARD = {
    "jvp": lambda t, f: t.jvp(f, (A, B), (B, A)),
    "jvp by one": lambda t, f: t.jvp(lambda x: f(x, B), (A,), (B,)),
    "linearize": lambda t, f: t.linearize(f, A, B)[1](B, A),
    "jacfwd": lambda t, f: t.jacfwd(f, argnums=(0, 1))(A, B),
    "jacrev": lambda t, f: t.jacrev(f, argnums=(0, 1))(A, B),
}
SCALAR = {
    "grad": lambda t, f: t.grad(f, argnums=(0, 1))(A, B),
    "jvp of grad": lambda t, f: t.jvp(t.grad(f), (A, B), (B, A)),
    "hessian": lambda t, f: t.hessian(f)(A, B),
    "grad of jvp": lambda t, f: t.grad(lambda x, y: t.jvp(f, (x, y), (B, A))[1] ** 2, argnums=(0, 1))(A, B),
    "jvp of jvp": lambda t, f: t.jvp(lambda x: t.jvp(f, (x, B), (B, A))[1], (A,), (B,)),
    "grad of grad": lambda t, f: t.grad(lambda x, y: (t.grad(f)(x, y) * A).sum(), argnums=(0, 1))(A, B),
    "grad of grad of grad": lambda t, f: t.grad(lambda x: (t.grad(lambda x: (t.grad(f)(x, B) ** 2).sum())(x) * A).sum())(A),
    "jacrev of jacfwd": lambda t, f: t.jacrev(t.jacfwd(f))(A, B),
}


def compare(found, expected, tolerance=1e-4):
    for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        close(f, e, tolerance)


@pytest.mark.parametrize("way", FORWARD)
def test_forward_mode_is_the_users(way):
    expected = FORWARD[way](jax, vector_jax)
    Bent.calls.clear()
    compare(FORWARD[way](tape, vector_tape), expected)
    assert ("jvp" in Bent.calls) == (way != "jacrev")
    Bent.calls.clear()

    def raw(x, y):
        return vector_tape(tape.constant(x), tape.constant(y)).value

    compare(jax.jit(lambda: FORWARD[way](jax, raw))(), expected)
    assert ("backward" if way == "jacrev" else "jvp") in Bent.calls
    compare(jax.jit(lambda: FORWARD[way](tape, vector_tape))(), expected)


@pytest.mark.parametrize("way", share([*SCALAR], 2))
def test_contract_20_higher_derivatives_both_ways(way):
    expected = SCALAR[way](jax, bent_jax)
    compare(SCALAR[way](tape, bent_tape), expected, 5e-4)

    def raw(x, y):
        return bent_tape(tape.constant(x), tape.constant(y)).value

    compare(SCALAR[way](jax, jax.jit(raw) if way in ("hessian", "grad of grad") else raw), expected, 5e-4)


def test_forward_mode_under_vmap_and_scan():
    def raw(x, y):
        return vector_tape(tape.constant(x), tape.constant(y)).value

    rows = np.stack([A, B])
    for axes, f in (
        ((0, None), lambda g: lambda x, y: jax.jvp(g, (x, y), (x + 1, y))),
        ((None, 0), lambda g: jax.grad(lambda x, y: (jax.jvp(g, (x, y), (y, x))[1] ** 2).sum(), argnums=(0, 1))),
        ((0, 0), lambda g: jax.vmap(jax.grad(lambda x, y: g(x, y).sum()))),
    ):
        args = [rows if a == 0 else A for a in axes]
        args = [np.stack([a, a + 1], -2) if axes == (0, 0) else a for a in args]
        compare(jax.jit(jax.vmap(f(raw), in_axes=axes))(*args), jax.jit(jax.vmap(f(vector_jax), in_axes=axes))(*args))

    def scanned(f):
        return lambda x: jax.lax.scan(lambda c, r: (f(c, r), c), x, rows)[0]

    pushed = jax.jvp(scanned(vector_jax), (A,), (B,))
    compare(jax.jvp(scanned(raw), (A,), (B,)), pushed, 1e-3)
    compare(jax.vjp(scanned(raw), A)[1](B), jax.vjp(scanned(vector_jax), A)[1](B), 1e-3)
    compare(tape.jvp(lambda x: tape.lax.scan(lambda c, r: (vector_tape(c, r), c), x, tape.constant(rows))[0], (A,), (B,)), pushed, 1e-3)
    compare(tape.jvp(tape.jit(lambda x: vector_tape(x, B)), (A,), (B,)), jax.jvp(lambda x: vector_jax(x, B), (A,), (B,)))


def test_forward_mode_of_a_function_that_closes_over_what_jax_traces():
    def scaled(x, a):
        def jvp(ctx, t):
            return t * a

        return make(lambda ctx, x: x * a, lambda ctx, g: g * a, jvp=jvp).apply(x)

    @jax.jit
    def derivatives(x, a):
        fun = interop.lower(lambda x: scaled(x, a).sum())
        return jax.grad(fun)(x), jax.jvp(fun, (x,), (x,))[1], jax.vmap(jax.grad(fun))(jnp.stack([x, x]))

    close(derivatives(A, B), [B, np.sum(A * B), np.stack([B, B])])


def test_forward_mode_without_a_jvp_differentiates_the_backward():
    compare(tape.jacfwd(of_tape, argnums=(0, 1))(A, B), jax.grad(of_jax, argnums=(0, 1))(A, B))
    # what the forward computed is a constant in it, as it must be; the value would be lost in a second derivative only
    forward, backward, message = INTERMEDIATE["saved"]
    lost = make(forward, backward, "Lost")
    close(tape.jvp(lost.apply, (A,), (B,))[1], np.sin(2 * A) * B)
    close(tape.jacfwd(lost.apply)(A), np.diag(np.sin(2 * A)))
    with pytest.raises(UnrecordedGradientError, match=message):
        tape.hvp(lambda x: lost.apply(x).sum(), (A,), (B,))
    with pytest.raises(UnrecordedGradientError, match=message):
        tape.grad(lambda x: tape.jvp(lost.apply, (x,), (B,))[1].sum())(A)


@pytest.mark.parametrize("kind", ["saved", "once_differentiable", "once_differentiable, raw"])
def test_forward_mode_of_a_backward_that_is_not_differentiated(kind):
    forward, backward, message = INTERMEDIATE[kind]
    slope = np.sin(2 * A) if kind == "saved" else np.cos(A)
    if kind != "saved":
        with pytest.raises(UnrecordedGradientError, match=message):
            tape.jvp(make(forward, backward, "Lost").apply, (A,), (B,))
    both = make(
        forward,
        backward,
        "Lost",
        jvp=lambda ctx, t: 2 * ctx.saved[1]["h"] * tnp.cos(ctx.saved[0]) * t if kind == "saved" else t * tnp.cos(ctx.saved[0]),
    )
    close(tape.jvp(both.apply, (A,), (B,))[1], slope * B)
    close(tape.jacfwd(both.apply)(A), np.diag(slope))
    close(
        tape.jvp(lambda x: tnp.exp(both.apply(x * x)), (A,), (B,))[1],
        jax.jvp(lambda x: jnp.exp(jnp.sin(x * x) ** (2 if kind == "saved" else 1)), (A,), (B,))[1],
    )
    x = tape.Variable(A)
    both.apply(x).sum().backward()
    close(x.grad, slope)
    for attempt in (
        lambda: tape.hvp(lambda x: both.apply(x).sum(), (A,), (B,)),
        lambda: tape.hvp(lambda x: (both.apply(x) ** 2).sum(), (A,), (B,)),
        lambda: tape.hessian(lambda x: (both.apply(x) ** 2).sum())(A),
    ):
        with pytest.raises(UnrecordedGradientError, match=message):
            attempt()


TANGENTS = {
    "number": (lambda ctx, t: (t, t), RuleError, r"Two\.jvp returned 2 tangents for 1 outputs"),
    "shape": (
        lambda ctx, t: t.sum(),
        GradientShapeError,
        r"Two\.jvp returned a tangent of shape \(\) for output 0, which has shape \(3,\)",
    ),
    "dtype": (lambda ctx, t: t.astype("float16"), GradientDtypeError, r"Two\.jvp returned a tangent of dtype float16 for output 0"),
    "type": (lambda ctx, t: "t", GradientDtypeError, r"Two\.jvp returned str as the tangent of output 0"),
}


@pytest.mark.parametrize("kind", TANGENTS)
def test_contract_09_a_wrong_tangent_is_named(kind):
    jvp, error, words = TANGENTS[kind]
    wrong = make(lambda ctx, x: x * 1, lambda ctx, g: g, "Two", jvp=jvp)
    with pytest.raises(error, match=words):
        tape.jvp(wrong.apply, (A,), (B,))
    with pytest.raises(error, match=words):
        jax.jvp(lambda x: wrong.apply(tape.constant(x)).value, (A,), (B,))
    x = tape.Variable(A)
    wrong.apply(x).sum().backward()
    close(x.grad, np.ones(3))


def test_a_tangent_may_be_none_or_materialized():
    seen = []

    def jvp(ctx, t, s):
        seen.append((t, s))
        return None if t is None else t * 5

    for materialize in (False, True):
        made = make(
            lambda ctx, x, y, m=materialize: ctx.set_materialize_grads(m) or x * y,
            lambda ctx, g: (5 * g, None if g is None else 0 * g),
            jvp=jvp,
        )
        close(tape.jvp(lambda x, made=made: made.apply(x, B), (A,), (B,))[1], 5 * B)
        close(jax.jvp(lambda x, made=made: made.apply(tape.constant(x), B).value, (A,), (B,))[1], 5 * B)
        assert all((s is None) != materialize for _, s in seen)
        seen.clear()
        none = make(lambda ctx, x: x * 1, lambda ctx, g: g, jvp=lambda ctx, t: None)
        close(tape.jvp(none.apply, (A,), (B,))[1], 0 * A)
        close(jax.jvp(lambda x, none=none: none.apply(tape.constant(x)).value, (A,), (B,))[1], 0 * A)


# -- batches ----------------------------------------------------------------------------------------------------------------------------


class Scaled(tape.Function):
    """cos(x @ w) by hand, with five times its derivative; a batch is one call, which the log tells."""

    log: list[object] = []  # noqa: RUF012 - how vmap was called

    @staticmethod
    def forward(ctx, x, params, *, power=1, shift):
        ctx.save_for_backward(x, params, shift)
        return {"cos": tnp.cos(x @ params["w"] + shift), "sum": x.sum()}

    @staticmethod
    def backward(ctx, h, g):
        x, params, shift = ctx.saved
        slope = tnp.zeros(3) if h is None else -5 * h * tnp.sin(x @ params["w"] + shift)
        gx = params["w"] @ slope
        return gx if g is None else gx + 5 * g, tnp.outer(x, slope), slope

    @staticmethod
    def vmap(info, in_dims, x, params, *, power=1, shift):
        Scaled.log.append((info.batch_size, in_dims, info.keyword_dims, power))
        rows = x if in_dims[0] == 0 else x[None]
        w = params["w"] if in_dims[1]["w"] == 0 else params["w"][None]
        moved = shift if info.keyword_dims["shift"] == 0 else shift[None]
        cos = tnp.cos((rows[:, :, None] * w).sum(1) + moved)
        cos = tnp.broadcast_to(cos, (info.batch_size, 3))
        return {"cos": cos.T, "sum": x.sum(-1)}, {"cos": -1, "sum": in_dims[0]}


@jax.custom_vjp
def scaled(x, w, shift):
    return jnp.cos(x @ w + shift), x.sum()


def _scaled_backward(saved, cts):
    x, w, shift = saved
    slope = -5 * cts[0] * jnp.sin(x @ w + shift)
    return w @ slope + 5 * cts[1], jnp.outer(x, slope), slope


scaled.defvjp(lambda x, w, shift: (scaled(x, w, shift), (x, w, shift)), _scaled_backward, **jaxapi.SHARING)

W = np.cos(np.arange(9, dtype=np.float32)).reshape(3, 3)


def scaled_tape(x, w, shift):
    r = Scaled.apply(tape.constant(x), {"w": tape.constant(w)}, power=7, shift=tape.constant(shift))
    return (r["cos"] * r["sum"]).value


def scaled_jax(x, w, shift):
    cos, total = scaled(x, w, shift)
    return cos * total


MAPPED = {
    "vmap": lambda f, axes: jax.vmap(f, axes),
    "jit of vmap": lambda f, axes: jax.jit(jax.vmap(f, axes)),
    "vmap of jit": lambda f, axes: jax.vmap(jax.jit(f), axes),
    "vmap of grad": lambda f, axes: jax.vmap(jax.grad(lambda *a: f(*a).sum(), argnums=(0, 1, 2)), axes),
    "grad of vmap": lambda f, axes: jax.grad(lambda *a: (jax.vmap(f, axes)(*a) ** 2).sum(), argnums=(0, 1, 2)),
    "jacrev of grad of vmap": lambda f, axes: jax.jacrev(jax.grad(lambda *a: jax.vmap(f, axes)(*a).sum(), argnums=1), argnums=(0, 1)),
    "vmap of vmap": lambda f, axes: (
        lambda *a: jax.vmap(jax.vmap(f, axes), [0 if i == 0 else None for i in range(3)])(
            *[np.stack([x, x + 1]) if i == 0 else x for i, x in enumerate(a)]
        )
    ),
}


AXES = [(0, 0, None), (0, None, None), (None, 0, 1), (None, None, 0), (1, 2, 0)]


@pytest.mark.parametrize(
    ("way", "axes"), share([(way, axes) for way in MAPPED for axes in (AXES if way in ("vmap", "grad of vmap") else AXES[:1])], 2), ids=str
)
def test_a_batch_is_computed_by_vmap(way, axes):
    def stacked(x, axis, factors):
        return x if axis is None else np.stack([x * np.float32(f) for f in factors], axis)

    arrays = [stacked(x, a, (1, 0.5, -0.3, 2)) for x, a in zip((A, W, B), axes, strict=True)]
    Scaled.log.clear()
    compare(MAPPED[way](scaled_tape, axes)(*arrays), MAPPED[way](scaled_jax, axes)(*arrays), 2e-4)
    dims = (
        (None if axes[0] is None else 0, {"w": None if axes[1] is None else 0}),
        {"power": None, "shift": None if axes[2] is None else 0},
    )
    if way != "vmap of vmap":
        assert (4, *dims, 7) in Scaled.log
    assert Scaled.log


def test_vmap_is_not_called_where_nothing_is_mapped():
    Scaled.log.clear()
    for f in (scaled_tape, jax.jit(scaled_tape), jax.grad(lambda *a: scaled_tape(*a).sum())):
        f(A, W, B)
    compare(tape.jacrev(lambda x: Scaled.apply(x, {"w": W}, shift=B)["cos"])(A), jax.jacrev(lambda x: scaled(x, W, B)[0])(A))
    assert not Scaled.log


def test_vmap_under_functions_of_the_tape_that_map():
    Scaled.log.clear()
    rows = np.stack([A, B, A + B, A])
    found = tape.lax.map(lambda x: Scaled.apply(x, {"w": W}, shift=B)["cos"], tape.constant(rows), batch_size=4)
    close(found, np.cos(rows @ W + B))
    assert Scaled.log == [(4, (0, {"w": None}), {"shift": None}, 1)]
    x = tape.Variable(rows)
    tape.numpy.vectorize(lambda x: Scaled.apply(x, {"w": W}, shift=B)["cos"], signature="(n)->(n)")(x).sum().backward()
    close(x.grad, jax.grad(lambda r: jax.vmap(lambda x: scaled(x, W, B)[0])(r).sum())(rows))


def test_vmap_and_jvp_together():
    both = make(
        Bent.forward,
        Bent.backward,
        jvp=Bent.jvp,
        vmap=lambda info, in_dims, x, y: calls.append(in_dims) or ((tnp.sin(x) * y, x * 2), (0, 0)),
    )
    rows = np.stack([A, B, A + B])

    def raw(x):
        return both.apply(tape.constant(x), tape.constant(B))[0].value

    for transformed in (
        lambda f: jax.vmap(f)(rows),
        lambda f: jax.jvp(jax.vmap(f), (rows,), (rows + 1,)),
        lambda f: jax.vmap(lambda x: jax.jvp(f, (x,), (x + 1,)))(rows),
        lambda f: jax.vmap(jax.jacfwd(f))(rows),
        lambda f: jax.jit(jax.vmap(jax.hessian(lambda x: f(x).sum())))(rows),
    ):
        calls = []
        compare(transformed(raw), transformed(lambda x: bent(x, B)[0]))
        assert (0, None) in calls


BATCHES = {
    "no pair": (lambda info, in_dims, x: x, RuleError, r"Wrong\.vmap must return \(outputs, out_dims\), got Variable"),
    "three": (lambda info, in_dims, x: (x, 0, 0), RuleError, r"Wrong\.vmap must return \(outputs, out_dims\), got a tuple of 3"),
    "structure": (lambda info, in_dims, x: (x, 0), RuleError, r"Wrong\.vmap returned outputs of the structure"),
    "text": (lambda info, in_dims, x: ((x, "y"), 0), TapeTypeError, r"Wrong\.vmap must return Variables or arrays, got str as output 1"),
    "too many dims": (lambda info, in_dims, x: ((x, x), (0, 0, 0)), RuleError, r"Wrong\.vmap returned out_dims \(0, 0, 0\) for 2 outputs"),
    "no axis": (
        lambda info, in_dims, x: ((x, x), (0, 2)),
        RuleError,
        r"Wrong\.vmap returned 2 as the axis of output 1, which has shape \(2, 3\)",
    ),
    "a bool": (lambda info, in_dims, x: ((x, x), (0, True)), RuleError, r"Wrong\.vmap returned True as the axis of output 1"),
    "size": (lambda info, in_dims, x: ((x, x), (0, 1)), RuleError, r"shape \(2, 3\), dtype float32 as output 1 with the batch at axis 1"),
    "dtype": (
        lambda info, in_dims, x: ((x, x.astype("float16")), 0),
        RuleError,
        r"dtype float16 as output 1 .* have shape \(2, 3\), dtype float32",
    ),
    "unmapped": (lambda info, in_dims, x: ((x, x), (0, None)), RuleError, r"output 1 with the batch at axis None, .* have shape \(3,\)"),
    "arity": (lambda info, x: (x, 0), TapeTypeError, r"Wrong\.vmap is called with info, in_dims and the arguments of forward \(3 values\)"),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_contract_09_a_wrong_batch_is_named(kind):
    vmap, error, words = BATCHES[kind]
    wrong = make(lambda ctx, x: (x * 1, x * 2), lambda ctx, g, h: g, "Wrong", vmap=vmap)
    rows = np.stack([A, B])

    def raw(x):
        return [v.value for v in wrong.apply(tape.constant(x))]

    for f in (jax.vmap(raw), jax.jit(jax.vmap(raw))):
        with pytest.raises(error, match=words):
            f(rows)
    x = tape.Variable(A)
    wrong.apply(x)[0].sum().backward()
    close(x.grad, np.ones(3))


def test_one_axis_for_all_outputs_and_none_of_them_mapped():
    def vmap(info, in_dims, x):
        calls.append(info)
        return [x.mean(0) * 0 + 1, tnp.zeros(3)], None

    calls = []
    flat = make(lambda ctx, x: [x * 0 + 1, x * 0], lambda ctx, g, h: g, vmap=vmap)
    ones, zeros = jax.vmap(lambda x: [v.value for v in flat.apply(tape.constant(x))])(np.stack([A, B]))
    close(ones, np.ones((2, 3)))
    close(zeros, np.zeros((2, 3)))
    assert repr(calls[0]) == "MapInfo(batch_size=2, keyword_dims={})"


@pytest.mark.parametrize("name", ["pull", "push", "sweep", "freeze", "held", "looked", "once", "packed", "reason", "sweep_rows"])
def test_attributes_of_a_context_may_have_any_name(name):
    def forward(ctx, x):
        setattr(ctx, name, x * 1)
        ctx.also = name
        return tnp.sin(x)

    named = make(forward, lambda ctx, g: g * tnp.cos(getattr(ctx, name)))
    plain = make(lambda ctx, x: setattr(ctx, name, 3) or x * 1, lambda ctx, g: g * getattr(ctx, name))
    for function, slope in ((named, np.cos(A)), (plain, 3 + 0 * A)):
        x = tape.Variable(A)
        function.apply(x).sum().backward()
        close(x.grad, slope)
        close(tape.jacrev(function.apply)(A), np.diag(slope))
        close(jax.grad(lambda a, function=function: function.apply(tape.constant(a)).sum().value)(A), slope)


def test_a_context_can_be_copied():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.power = copy.copy(ctx).power = 2
        return x**2

    function = make(forward, lambda ctx, g: g * copy.copy(ctx).power * copy.copy(ctx).saved[0])
    x = tape.Variable(A)
    function.apply(x).sum().backward()
    close(x.grad, 2 * A)


@pytest.mark.parametrize(("way", "stride"), [("backward", 1), ("create_graph", 1), ("jacrev", 7), ("jax", 5)])
def test_contract_23_ctrl_c_at_any_line_restores_what_was_set_for_the_call(way, stride):
    """The mode, and what notes looks at values: an array brought onto the tape afterwards is a constant again."""
    folder = str(pathlib.Path(tape.__file__).parent / "functions")
    times = make(
        lambda ctx, x, y: ctx.save_for_backward(x, y.shape, y) or x * y, lambda ctx, g: (g * ctx.saved[2], g * ctx.saved[0]), "Times"
    )

    def step():
        x = tape.Variable(A)
        if way == "jax":
            return jax.grad(lambda a: times.apply(tape.constant(a), tape.constant(a) * 1).sum().value)(A)
        if way == "jacrev":
            return tape.jacrev(lambda x: times.apply(x, x * 1))(x)
        return tape.gradients(times.apply(x, x * 1).sum(), x, create_graph=way == "create_graph")

    def interrupted(number):
        lines = iter(range(number))

        def on_line(_frame, event, _arg):
            if event == "line" and next(lines, None) is None:
                raise KeyboardInterrupt
            return on_line

        old = sys.gettrace()
        sys.settrace(lambda frame, _event, _arg: on_line if frame.f_code.co_filename.startswith(folder) else None)
        try:
            step()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(old)
        return False

    for _ in range(3):
        expected = array(step())
    number = 0
    before = LOCAL.scope
    while interrupted(number):
        assert LOCAL.scope == before
        number += stride
        if number % 10 == 0:
            close(step(), expected)
    close(step(), expected)
    assert number > 50


def numeric(kind):
    """A sweep that computes on values, and differentiates with them: in a Function's backward, or in a hook."""

    def slope(x, g):
        values = x.numpy()
        return g * tape.grad(lambda t: (t * values + tape.constant(values) * 0).sum())(2 * values) * 2

    class Square(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return slope(*ctx.saved, g)

    def hooked(x):
        y = x * 1.0
        y.register_hook(lambda g: slope(x, g))
        return y

    return Square.apply if kind == "backward" else hooked


@pytest.mark.parametrize("kind", ["backward", "hook"])
def test_derivatives_may_be_taken_with_values_that_a_sweep_looked_at_unless_it_is_recorded(kind):
    for _ in range(2):
        x = tape.Variable([1.0, -3.0])
        y = numeric(kind)(x).sum()
        with pytest.raises(UnrecordedGradientError, match=r"tape\.constant"):
            tape.gradients(y, x, create_graph=True)
        g = tape.gradients(y, x)
        np.testing.assert_array_equal(g.numpy(), [2.0, -6.0])
        with pytest.raises(UnrecordedGradientError):
            (g * x).sum().backward()


@pytest.mark.parametrize("way", ["value", "numpy"])
def test_arrays_that_a_backward_gives_a_compiled_function_have_no_derivative(way):
    double = tape.jit(lambda g, n: 2 * g * n)

    class Square(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved
            return double(g, x.value if way == "value" else x.numpy())

    for _ in range(3):
        x = tape.Variable([1.0, -3.0])
        g = tape.gradients(Square.apply(x).sum(), x, create_graph=True)
        np.testing.assert_array_equal(g.numpy(), [2.0, -6.0])
        with pytest.raises(UnrecordedGradientError):
            tape.gradients(g.sum(), x)
        Square.apply(x).sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), [2.0, -6.0])
    assert double.cache_info().traces <= 2


def test_a_call_that_a_compiled_function_knows_is_another_one_in_a_backward():
    """What it is given may be made of a value that was looked at, where the same was a constant before."""
    double = tape.jit(lambda g, n: 2 * g * n)
    square = make(lambda ctx, x: ctx.save_for_backward(x) or x * x, lambda ctx, g: double(g, ctx.saved[0].value))
    ones = jnp.ones(2, jnp.float32)
    for _ in range(3):
        double(tape.constant(ones), ones)
        x = tape.Variable([1.0, -3.0])
        g = tape.gradients(square.apply(x).sum(), x, create_graph=True)
        with pytest.raises(UnrecordedGradientError):
            tape.gradients(g.sum() + x.sum(), x)


def test_integers_among_the_outputs_have_empty_tangents_in_jax():
    class Placed(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, tnp.argmax(x)

        @staticmethod
        def backward(ctx, g, _):
            return 2 * g

        @staticmethod
        def jvp(ctx, t):
            return 2 * t, None

    x = jnp.asarray(A)
    (_, place), (tangent, empty) = jax.jvp(lambda x: [v.value for v in Placed.apply(x)], (x,), (x,))
    close(tangent, 2 * A)
    assert (place.dtype.kind, empty.dtype) == ("i", jax.dtypes.float0)


def test_what_a_backward_returns_for_integers_is_passed_over():
    class Taken(tape.Function):
        @staticmethod
        def forward(ctx, x, places):
            ctx.save_for_backward(places)
            return x[places]

        @staticmethod
        def backward(ctx, g):
            (places,) = ctx.saved
            return tnp.zeros(3).at[places].add(g), g

    x = tape.Variable(A)
    Taken.apply(x, tape.constant([2, 0])).sum().backward()
    close(x.grad, [1, 0, 1])


def test_one_of_many_arguments_is_named_by_its_number():
    class Summed(tape.Function):
        @staticmethod
        def forward(ctx, first, *others):
            return first + sum(others)

        @staticmethod
        def backward(ctx, g):
            return g, g, g.sum()

    with pytest.raises(GradientShapeError, match=r"argument 2, which has shape \(3,\) and is '\*args\[2\]' of forward"):
        Summed.apply(*[tape.Variable(A) for _ in range(3)]).sum().backward()


def test_a_result_that_only_the_backward_ties_to_an_unrecorded_gradient_is_unrecorded():
    class WithPenalty(tape.Function):
        @staticmethod
        def forward(ctx, x, penalty):
            return x * 2.0

        @staticmethod
        def backward(ctx, g):
            return g * 2.0, tnp.ones(())

    w = tape.Variable(np.float32(3.0))
    penalty = tape.gradients(w**3, w)
    y = WithPenalty.apply(tape.constant(np.float32(1.0)), penalty)
    with pytest.raises(UnrecordedGradientError):
        (w * y).backward()
    penalty = tape.gradients(w**3, w, create_graph=True)
    (w * WithPenalty.apply(tape.constant(np.float32(1.0)), penalty)).backward()
    assert float(w.grad) == 2.0 + 6.0 * 3.0
