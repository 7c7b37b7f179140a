"""``tape.explain`` where the accident is inside of something: lifted and compiled functions, checkpoints, loops, custom functions, ``vmap``."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.lax
import tape.numpy as tnp
from tests.daily import pairs

HERE = "test_explain_inside.py"


def variable(values, dtype=np.float32):
    return tape.Variable(np.asarray(values, dtype), name="x")


def masked_root(x):
    root = tnp.sqrt(x)
    return tnp.where(x > 0, root, 0.0).sum()


def masked_log(x):
    return (tnp.log(x) * tape.constant(np.array([0.0, 1.0], np.float32))).sum()


def own_softmax(x):
    e = tnp.exp(x)
    return tnp.log(e / e.sum())[0]


def looped(body, length=3):
    return lambda x: tape.lax.scan(lambda h, _: (body(h), None), x, None, length=length)[0].sum()


class Gives(tape.Function):
    @staticmethod
    def forward(ctx, x, what):
        ctx.what = what
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return None if ctx.what is None else g * ctx.what


def twice(f):
    def of(x):
        g = tape.gradients(f(x).sum(), x, create_graph=True)
        return (g * g).sum()

    return of


def written_over(x):
    y = x * 1.0
    y[0] = 0.0
    y[1] = 0.0
    return y.sum()


def cut_off(x):
    y = x * 2
    y.unchain()
    return y.sum()


WRAPPED = {
    "compiled": tape.jit,
    "checkpoint": tape.checkpoint,
    "vmap": lambda f: lambda x: tape.vmap(f)(x[None]).sum(),
    "loop": lambda f: lambda x: tape.lax.scan(lambda h, _: (h, f(h)), x, None, length=2)[1].sum(),
    "branch": lambda f: lambda x: tape.lax.cond(x.sum() > -1e9, f, lambda x: x.sum(), x),
}
ACCIDENTS = {
    "where and sqrt": ("NaN", "infinity times zero", masked_root, [0.0, 4.0]),
    "mask times infinity": ("NaN", "infinity times zero", masked_log, [0.0, 4.0]),
    "log": ("inf", "log(0)", lambda x: tnp.log(x).sum(), [0.0, 4.0]),
    "norm": ("NaN", "norm at 0", lambda x: tnp.linalg.norm(x), [0.0, 0.0]),
    "overflow": ("NaN", "softmax overflow", own_softmax, [1000.0, 999.0]),
    "saturation": ("zero", "saturation", lambda x: tnp.tanh(x * 2).sum(), [100.0, -200.0]),
    "mask": ("zero", "zero mask", lambda x: tape.nn.relu(x * 2).sum(), [-1.0, -2.0]),
    "detach": (None, "detach", lambda x: (x * x).detach().sum(), [1.0, 4.0]),
    "position": (None, "integer index", lambda x: tnp.argmax(x * 2) * 2.0, [1.0, 4.0]),
    "rounding": (None, "rounding", lambda x: tnp.round(x * 2).sum(), [1.0, 4.0]),
}


def gradient_of(y, x):
    g = tape.gradients(y, x, unconnected="none", retain_graph=True) if y.requires_grad else None
    if g is None:
        return "None"
    g = np.asarray(g.value)
    return "NaN" if np.isnan(g).any() else "inf" if np.isinf(g).any() else "fine" if g.any() else "zero"


@pytest.mark.parametrize(("wrapped", "name"), pairs(["compiled", "checkpoint", "vmap", "loop", "branch"], ACCIDENTS, 2))
def test_the_accident_is_found_inside(wrapped, name):
    verdict, kind, accident, values = ACCIDENTS[name]
    x = variable(values)
    y = WRAPPED[wrapped](accident)(x)
    if not y.requires_grad:
        assert wrapped == "compiled"  # what tape.jit returns without a gradient has no past
        assert verdict is None
        return
    why = tape.explain(y, x)
    assert why.verdict == gradient_of(y, x)
    assert verdict is None or why.verdict == verdict
    assert why.causes[0].kind == kind
    assert why.causes[0].what.startswith("inside ")


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    ("kind", "function", "values"),
    [
        ("infinity times zero", lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0).sum(), [0.0, 4.0]),
        ("log(0)", lambda x: jnp.log(x).sum(), [0.0, 4.0]),
        ("detach", lambda x: jax.lax.stop_gradient(x * x).sum(), [1.0, 4.0]),
        ("integer index", lambda x: jnp.argmax(x) * 2.0, [1.0, 4.0]),
        ("rounding", lambda x: jnp.round(x * 2).sum(), [1.0, 4.0]),
        ("domain", lambda x: jnp.sqrt(x * 2).sum(), [-1.0, 4.0]),
        ("singular matrix", lambda x: jnp.linalg.inv(x[:, None] * x).sum(), [0.0, 0.0]),
    ],
)
def test_lifted_functions(inline, kind, function, values):
    x = variable(values)
    y = interop.lift(function, inline=inline)(x)
    why = tape.explain(y, x)
    assert why.verdict == gradient_of(y, x)
    if kind != "singular matrix":
        assert why.causes[0].kind == kind


def test_the_line_is_the_one_inside():
    x = variable([0.0, 4.0])
    why = tape.explain(tape.jit(masked_root)(x), x)
    first = inspect.getsourcelines(masked_root)[1]
    assert why.causes[0].where == (__file__, first + 1)
    text = str(why)
    assert f"{HERE}:{first + 1}" in text
    assert "> root = tnp.sqrt(x)" in text


@pytest.mark.parametrize(
    ("verdict", "kind", "make", "values"),
    [
        ("None", "backward", lambda x: Gives.apply(x, None).sum(), [1.0, 4.0]),
        ("zero", "backward", lambda x: Gives.apply(x, 0.0).sum(), [1.0, 4.0]),
        ("NaN", "backward", lambda x: Gives.apply(x, float("nan")).sum(), [1.0, 4.0]),
        ("None", "no derivative", twice(tape.nn.relu), [1.0, 4.0]),
        ("None", "linear", twice(lambda x: 3 * x), [1.0, 4.0]),
        ("inf", "infinite slope", twice(tnp.sqrt), [0.0, 4.0]),
        ("zero", "cancellation", lambda x: (x - x).sum(), [1.0, 4.0]),
        ("zero", "cancellation", lambda x: (tnp.exp(x) - tnp.exp(x)).sum(), [1.0, 4.0]),
        ("zero", "zero slope", lambda x: (x**2).sum(), [0.0, 0.0]),
        ("zero", "zero mask", lambda x: ((x > 9) * x).sum(), [1.0, 4.0]),
        ("zero", "zero mask", written_over, [1.0, 4.0]),
        ("zero", "zero mask", lambda x: x.at[0:2].set(0.0).sum(), [1.0, 4.0]),
        ("zero", "wrong axis", lambda x: (tape.nn.softmax(x[:, None], axis=-1) * 2).sum(), [1.0, 4.0]),
        ("NaN", "all masked", lambda x: tape.nn.softmax(x + tape.constant(np.full(2, -np.inf, np.float32)))[0], [1.0, 4.0]),
        ("NaN", "NaN input", lambda x: (x * x).sum(), [np.nan, 4.0]),
        ("NaN", "domain", lambda x: (x**0.5).sum(), [-1.0, 4.0]),
        ("NaN", "infinite slope", tnp.std, [2.0, 2.0]),
        ("inf", "infinite slope", lambda x: tnp.arccos(x).sum(), [1.0, 0.5]),
        ("NaN", "singular matrix", lambda x: tnp.linalg.inv(x[:, None] * x).sum(), [0.0, 0.0]),
        ("NaN", "equal eigenvalues", lambda x: tnp.linalg.eigh(tnp.diag(x))[1].sum(), [1.0, 1.0]),
        ("None", "cut", cut_off, [1.0, 4.0]),
    ],
)
def test_what_a_cause_is_called(verdict, kind, make, values):
    x = variable(values)
    y = make(x)
    why = tape.explain(y, x)
    assert why.verdict == verdict
    assert why.causes[0].kind == kind
    assert why.verdict in (gradient_of(y, x), "None")


@pytest.mark.parametrize(("factor", "verdict", "kind", "rate"), [(0.1, "tiny", "vanishing", 0.1), (3.0, "huge", "exploding", 3.0)])
def test_loops_say_what_happens_in_a_turn(factor, verdict, kind, rate):
    x = variable(1e-10 * np.ones(4))
    why = tape.explain(looped(lambda h: h * factor, 30)(x), x)
    assert (why.verdict, why.causes[0].kind) == (verdict, kind)
    assert f"along 30 turns of scan the gradient is multiplied by {rate:.3g} a turn" in why.causes[0].what


def test_a_gradient_that_backward_left_is_named():
    x = variable([1.0, 4.0])
    (x**3).sum().backward()
    y = (x.grad * x.grad).sum()
    assert [c.kind for c in tape.explain(y, x).causes] == ["create_graph"]
    x.grad.block_until_ready()
    x.grad = tape.constant(x.grad.value)
    with tape.Tape() as t:
        x.grad * 2.0
    assert [str(v) for v in t.leaves] == ["x.grad"]


@pytest.mark.parametrize(
    ("dtype", "name"), pairs([jnp.bfloat16, jnp.float16, np.complex64], ["where and sqrt", "log", "saturation", "detach"], 2)
)
def test_other_dtypes(dtype, name):
    _, kind, accident, values = ACCIDENTS[name]
    if dtype is np.complex64 and name == "where and sqrt":
        return
    x = tape.Variable(jnp.asarray(values, dtype), name="x")
    y = tape.checkpoint(accident)(x)
    why = tape.explain(y, x)
    assert why.verdict == gradient_of(y, x)
    assert why.causes[0].kind == kind


def test_an_input_that_does_not_require_grad_is_cut_nowhere():
    x = tape.Variable(np.ones(2, np.float32), requires_grad=False)
    assert [c.kind for c in tape.explain((x * 2).sum(), x).causes] == ["requires_grad"]


def test_a_value_that_is_not_finite_is_told_though_its_gradient_is():
    x = variable([300.0], np.float16)
    why = tape.explain((x * x).sum(), x)
    assert (why.verdict, [c.kind for c in why.causes]) == ("fine", ["overflow"])


def test_the_line_of_what_jax_calls_is_the_users():
    x = variable([1.0, 4.0])
    y = tape.stop_gradient(x * 2.0).sum()
    here = inspect.currentframe().f_lineno - 1
    assert tape.explain(y, x).causes[0].kind == "detach"
    assert tape.Tape.of(y)[1].where == (__file__, here)


def test_what_is_too_long_to_look_into_is_said_from_outside():
    x = variable([0.0, 4.0])
    y = looped(lambda h: tnp.sqrt(h) * 1.0, 4000)(x)
    why = tape.explain(y, x)
    assert why.verdict == gradient_of(y, x)
    assert why.causes


def first_of_two(x):
    return tnp.log(x * 3.25).sum()


def second_of_two(x):
    h = x * 3.25
    return tnp.log(h).sum()


def test_lines_of_an_equal_function_are_said_to_be_such_and_a_tape_has_this_times():
    values = np.zeros(29)
    x = variable(values)
    assert "an equal function" not in str(tape.explain(first_of_two(x), x))
    for _ in range(3):
        first_of_two(x).block_until_ready()
    assert "an equal function" in str(tape.explain(second_of_two(x), x))
    with tape.Tape():
        y = second_of_two(x)
    why = tape.explain(y, x)
    first = inspect.getsourcelines(second_of_two)[1]
    assert f"{HERE}:{first + 2}" in str(why)
    assert "an equal function" not in str(why)
