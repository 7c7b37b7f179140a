"""Checkpoints: gradients as without, fewer values kept, and the documented number of runs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.lax
import tape.numpy as tnp
from tape.callables import schedules, traces
from tape.errors import ConcretizationError, TapeRuntimeError, TapeTypeError, TapeValueError
from tests import agreement
from tests.daily import pairs
from tests.ops.test_residuals import operations
from tests.tiers import by_xla

W = jnp.asarray(np.linspace(-1.0, 1.0, 9, dtype="float32").reshape(3, 3))
X = jnp.asarray(np.array([0.5, -0.25, 0.75], "float32"))
POLICIES = tape.checkpoint_policies

close = functools.partial(agreement.close, rtol=2e-5, atol=2e-5)


def body(n):
    return lambda w, x: n.tanh(w @ n.sin(w @ x))


def gradients_of(fun, *values):
    variables = [tape.Variable(v) for v in values]
    fun(*variables).sum().backward()
    return [v.grad for v in variables]


EXPECTED = jax.grad(lambda w, x: jnp.sum(body(jnp)(w, x)), (0, 1))(W, X)


@pytest.mark.parametrize("policy", [None, POLICIES.dots_saveable, POLICIES.everything_saveable, POLICIES.save_only_these_names("a")])
@pytest.mark.parametrize("prevent_cse", [True, False])
def test_gradients_are_those_of_the_function(policy, prevent_cse):
    close(gradients_of(tape.checkpoint(body(tnp), policy=policy, prevent_cse=prevent_cse), W, X), EXPECTED)


def test_a_call_is_one_entry():
    w, x = tape.Variable(W), tape.Variable(X)
    before = tape.stats().live_entries
    y = tape.checkpoint(body(tnp))(w, x)
    assert tape.stats().live_entries == before + 1
    assert y.shape == (3,)


def test_captured_variables_get_their_gradients():
    w = tape.Variable(W)
    (grad,) = gradients_of(tape.checkpoint(lambda x: body(tnp)(w, x)), X)
    close([w.grad, grad], EXPECTED)


def test_trees_integers_and_further_outputs():
    def fun(tree, *, scale):
        return {"y": body(tnp)(tree["w"], tree["x"]) * scale, "n": tnp.argmax(tree["x"]), "none": None}

    w, x = tape.Variable(W), tape.Variable(X)
    out = tape.checkpoint(fun)({"w": w, "x": x}, scale=2)
    assert int(out["n"]) == 2
    assert out["none"] is None
    assert not out["n"].requires_grad
    out["y"].sum().backward()
    close([w.grad, x.grad], [2 * g for g in EXPECTED])


@pytest.mark.parametrize("depth", [1, 3])
def test_double_backprop(depth):
    def nested(fun, wrap):
        for _ in range(depth):
            fun = wrap(fun)
        return fun

    w, x = tape.Variable(W), tape.Variable(X)
    grads = tape.gradients(nested(body(tnp), tape.checkpoint)(w, x).sum(), (w, x), create_graph=True)
    sum((g * g).sum() for g in grads).backward()

    def penalty(w, x):
        return sum(jnp.sum(g * g) for g in jax.grad(lambda w, x: jnp.sum(body(jnp)(w, x)), (0, 1))(w, x))

    close([w.grad, x.grad], jax.grad(penalty, (0, 1))(W, X), 1e-4)


def test_keys_give_the_same_numbers_again():
    key = jax.random.key(3)

    def dropped(n, random, key):
        return lambda x: n.sum(n.where(random.bernoulli(key, 0.5, (3,)), n.exp(x), 0.0) * x)

    (grad,) = gradients_of(tape.checkpoint(dropped(tnp, tape.random, key)), X)
    close([grad], [jax.grad(dropped(jnp, jax.random, key))(X)])


def test_inside_loops_branches_and_transforms():
    def loss(n, lax, wrap):
        def step(h, x):
            h = lax.cond(x > 0, wrap(lambda h: n.tanh(h * x)), wrap(lambda h: n.sin(h)), h)
            return h, h

        return lambda x: n.sum(lax.scan(step, x, x)[1])

    expected = jax.grad(loss(jnp, jax.lax, jax.checkpoint))(X)
    ours = loss(tnp, tape.lax, tape.checkpoint)
    close([*gradients_of(ours, X), tape.grad(ours)(X), jax.jit(tape.grad(ours))(X), jax.grad(interop.lower(ours))(X)], [expected] * 4)
    close([jax.vmap(tape.grad(ours))(X[None])], [expected[None]])
    close([tape.hessian(ours)(X)], [jax.hessian(loss(jnp, jax.lax, jax.checkpoint))(X)], 1e-4)


def test_policies_by_name():
    def fun(w, x):
        return tnp.tanh(w @ tape.checkpoint_name(tnp.sin(tape.checkpoint_name(w @ x, "dot")), "sine"))

    def counts(policy):
        return operations(tape.grad(lambda w, x: tape.checkpoint(fun, policy=policy)(w, x).sum(), (0, 1)), W, X)

    nothing, sine = counts(None), counts(POLICIES.save_only_these_names("sine"))
    assert (nothing["dot_general"], sine["dot_general"]) == (8, 8)  # the first for its cosine, the second for its tanh
    assert (nothing["sin"], sine["sin"]) == (2, 1)
    both = counts(POLICIES.save_any_names_but_these("other"))
    assert both["dot_general"] == 7
    named = tape.checkpoint_name({"a": tape.Variable(X), "b": X}, "tree")
    assert isinstance(named["b"], tape.Variable)
    assert named["a"].requires_grad


def test_functions_inside_are_swept_by_their_backward():
    class Doubled(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 10 * ctx.saved[0] * g

    (grad,) = gradients_of(tape.checkpoint(lambda x: Doubled.apply(tnp.sin(x))), X)
    close([grad], [10 * jnp.sin(X) * jnp.cos(X)])


MADE_INSIDE = {
    "detached": lambda x: x.detach().requires_grad_(),
    "stopped": lambda x: tape.stop_gradient(x).requires_grad_(),
    "computed": lambda x: (x * 2).detach().requires_grad_(),
    "filled": lambda x: tnp.zeros_like(x).requires_grad_(),
    "constant": lambda _: tape.constant(X).requires_grad_(),
    "new": lambda x: tape.Variable(x.detach()),
    "numpy": lambda _: tape.Variable(X),
}
TRACED = {
    "checkpoint": lambda fun, x: tape.checkpoint(fun)(x),
    "nested": lambda fun, x: tape.checkpoint(tape.checkpoint(fun))(x),
    "captured": lambda fun, x: tape.checkpoint(lambda: fun(x))(),
    "scan": lambda fun, x: tape.lax.scan(lambda c, _: (fun(c), None), x, None, length=1)[0],
    "cond": lambda fun, x: tape.lax.cond(x[0] < 100.0, fun, lambda x: x, x),
}


@pytest.mark.parametrize(("make", "traced"), pairs(MADE_INSIDE.values(), TRACED.values(), 3))
def test_a_variable_made_inside_is_no_capture(make, traced):
    """A forward that sweeps to a Variable of its own gives that gradient to its backward."""
    held = []

    class Cube(tape.Function):
        @staticmethod
        def forward(ctx, x):
            with tape.enable_grad():
                v = make(x)
                held.append(v)
                slope = tape.gradients((v**3).sum(), v)
            ctx.save_for_backward(x, v, slope)
            return x**3

        @staticmethod
        def backward(ctx, g):
            x, v, slope = ctx.saved
            return g * (3 * x * x + slope - 3 * v * v)

    x = tape.Variable(X)
    for _ in range(2):
        x.zero_grad()
        traced(Cube.apply, x).sum().backward()
        close([x.grad], [3 * X * X])
        held.clear()


def test_what_a_context_keeps_of_a_forward_inside_has_no_graph():
    class Kept(tape.Function):
        @staticmethod
        def forward(ctx, x):
            with tape.enable_grad():
                v = x.detach().requires_grad_()
                ctx.pair = v, v * v
            return ctx.pair[1].detach()

        @staticmethod
        def backward(ctx, g):
            v, y = ctx.pair
            return tape.gradients(y, v, g)

    x = tape.Variable(X)
    Kept.apply(x).sum().backward()
    close([x.grad], [2 * X])
    with pytest.raises(TapeValueError, match=r"what ctx keeps of a forward inside .* a checkpoint"):
        tape.checkpoint(Kept.apply)(x).sum().backward()


def test_hooks_outside_run_and_hooks_inside_are_refused():
    seen = []

    def fun(x):
        y = x * 2
        y.register_hook(seen.append)
        return y * y

    with pytest.raises(TapeRuntimeError, match=r"hook .* inside .* outside"):
        tape.checkpoint(fun)(tape.Variable(X))
    x = tape.Variable(X)
    y = x * 2
    y.register_hook(lambda g: seen.append(g) or g * 3)
    tape.checkpoint(body(tnp))(tape.constant(W), y).sum().backward()
    close(seen, [jax.grad(lambda x: jnp.sum(body(jnp)(W, x)))(2 * X)])
    close([x.grad], [6 * seen[0].value])


def test_hooks_of_a_sweep_inside_run():
    def fun(x):
        y = x * x
        y.register_hook(lambda g: g * 2)
        (g,) = tape.gradients((y * y).sum(), (x,), create_graph=True)
        return g

    (grad,) = gradients_of(tape.checkpoint(fun), X)
    close([grad], [24 * X * X])  # of 8 x ** 3


def test_static_arguments():
    def fun(kind, x, times):
        return (tnp.sin if kind == "sin" else tnp.cos)(x) * (max(1, times))

    call = tape.checkpoint(fun, static_argnums=(0, -1))
    x = tape.Variable(X)
    call("sin", x, 3).sum().backward()
    close([x.grad], [3 * jnp.cos(X)])
    with pytest.raises(TapeTypeError, match="argument 0 is static and holds a Variable"):
        call(x, x, 3)
    with pytest.raises(TapeValueError, match="names argument 5, but the function was called with 1"):
        tape.checkpoint(fun, static_argnums=5)(x)


def test_static_arguments_by_name():
    def fun(x, times, *xs, kind="sin", **others):
        return (tnp.sin if kind == "sin" else tnp.cos)(x) * max(1, times) * sum(xs, 1) * others.get("last", 1)

    call = tape.checkpoint(fun, static_argnames=("times", "kind", "last"))
    for args, kwargs in [((3,), {}), ((), {"times": 3, "kind": "sin"}), ((1, 0, 2), {"last": 1}), ((1,), {"kind": "sin", "last": 3})]:
        x = tape.Variable(X)
        call(x, *args, **kwargs).sum().backward()
        close([x.grad], [3 * jnp.cos(X)])
    close([call(x, 1, kind="cos")], [jnp.cos(X)])
    y = tape.Variable(X)
    close([tape.gradients(call(x, 1, y, kind="cos").sum(), y)], [jnp.cos(X)])  # the third is no kind
    with pytest.raises(TapeTypeError, match="argument 'last' is static and holds a Variable"):
        call(x, 3, last=x)
    with pytest.raises(TapeTypeError, match="argument 1 is static and holds a Variable"):
        call(x, x)
    with pytest.raises(
        TapeValueError, match=r"static_argnames names \['time'\], which the function does not take; name some of \['x', 'times'\]"
    ):
        tape.checkpoint(lambda x, times: x * times, static_argnames="time")


def test_a_method_and_its_arguments_that_are_no_arrays():
    class Scaled:
        def __init__(self, w, n):
            self.w, self.n = w, n

        @tape.checkpoint
        def powered(self, x, kind, *, f=None):
            return (tnp.sin if kind == "sin" else f)(x * self.w) * self.n

        def __call__(self, x):
            return self.powered(x, "sin")

    x, w = tape.Variable(X), tape.Variable(X)
    scaled = Scaled(w, 3)
    expected = 3 * X * jnp.cos(X * X)
    close(tape.gradients(scaled(x).sum(), (x, w)), [expected, expected])
    scaled.n = 6
    close(tape.gradients(scaled(x).sum(), (x, w)), [2 * expected, 2 * expected])
    close(tape.gradients(scaled.powered(x, "other", f=lambda v: v * w).sum(), (x, w)), [6 * X * X, 12 * X * X])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tape.checkpoint(3), "expected a function, got int"),
        (lambda: tape.checkpoint(len, policy="dots"), "policy must be a function"),
        (lambda: tape.checkpoint(len, prevent_cse=(True,)), "prevent_cse must be True or False, got tuple"),
        (lambda: tape.checkpoint(len, X), r"got a .*Array.* beside the function; .*tape\.checkpoint\(f\)\(x\)"),
        (lambda: tape.checkpoint(len, use_reentrant=False), "got use_reentrant= beside the function"),
        (lambda: tape.checkpoint(len, static_argnums=(True,)), "static_argnums must be an int or a sequence of ints, got bool"),
        (lambda: tape.checkpoint_name(X, 3), "the name must be a string, got int"),
        (lambda: tape.checkpoint_sequential([len, 3], X), r"functions\[1\] must be callable, got int"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(TapeTypeError, match=message):
        make()


def test_a_look_inside_is_refused():
    with pytest.raises(ConcretizationError):
        tape.checkpoint(lambda x: x if float(x.sum()) > 0 else -x)(tape.Variable(X))


def test_fewer_values_live_until_the_sweep():
    def held(wrap):
        x = tape.Variable(jnp.ones((64, 64)))
        w = tape.Variable(jnp.ones((64, 64)) / 64)
        layer = wrap(lambda x: tnp.tanh(tnp.tanh(tnp.tanh(x @ w) @ w) @ w))
        for _ in range(4):
            x = layer(x)
        np.asarray(x.value)  # the tape runs, and keeps what the sweep will read
        before = tape.stats().live_bytes
        del x
        return before

    assert held(tape.checkpoint) < 0.6 * held(lambda f: f)


# -- schedules ---------------------------------------------------------------------------------------------------------


def step(n):
    def run(carry, x):
        key, h = carry
        h = n.tanh(h * 1.5 + x["a"])
        return (key + 1, h), {"h": h * x["a"], "n": key}

    return run


@pytest.mark.parametrize(("n", "schedule"), pairs([0, 1, 2, 7, 16, 50], ["log", "root", 1, 3, 100]))
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scheduled_scan_is_a_scan(schedule, n, reverse):
    a = jnp.asarray(np.linspace(-1.0, 1.0, 3 * n, dtype="float32").reshape(n, 3))

    def loss(result):
        (count, h), ys = result
        return (h * h).sum() + (ys["h"] * ys["h"]).sum() + count, ys["n"]

    def ours(x, a):
        return loss(tape.checkpoint_scan(step(tnp), (0, x), {"a": a}, reverse=reverse, schedule=schedule))

    def theirs(x, a):
        return loss(jax.lax.scan(step(jnp), (0, x), {"a": a}, reverse=reverse))

    with jax.checking_leaks():
        found = jax.jit(tape.value_and_grad(ours, (0, 1), has_aux=True))(X, a)
    close(found, jax.value_and_grad(theirs, (0, 1), has_aux=True)(X, a))


@pytest.mark.parametrize("n", [*range(40), 1000, 4093, 4096])
@pytest.mark.parametrize("schedule", ["log", "root", 1, 5, 64])
def test_the_parts_of_a_schedule_make_up_the_loop(n, schedule):
    parts = schedules.factors(n, schedule)
    assert sum(int(np.prod(p)) for p in parts) == n
    if schedule == "log":
        assert all(len(p) <= 1 + np.log(n + 1) / np.log(4) for p in parts)
        assert n < 5 or max(max(p) for p in parts) <= 6


def loop(schedule, n):
    def loss(w, x):
        def step(c, _):
            return tnp.tanh(c * w + 0.1), None

        if schedule is None:
            return tnp.sum(tape.lax.scan(step, x, None, length=n)[0])
        return tnp.sum(tape.checkpoint_scan(step, x, None, n, schedule=schedule)[0])

    return tape.grad(loss)


def states_held(schedule, n):
    size = 256
    compiled = jax.jit(loop(schedule, n)).lower(jnp.zeros(size), jnp.zeros(size)).compile()
    return compiled.memory_analysis().temp_size_in_bytes / (4 * size)


def test_memory_grows_with_the_root_or_the_logarithm_of_the_length():
    lengths = np.array([16, 64, 256, 1024, 4096])
    held = {s: np.array([states_held(s, int(n)) for n in lengths]) for s in (None, "root", "log")}
    assert (held[None] >= lengths).all()
    assert (held["root"] <= 4 * np.sqrt(lengths) + 12).all()
    assert (held["log"] <= 4 * np.log2(lengths) + 12).all()
    assert np.diff(held["log"]).max() <= 10  # the same for every factor of four
    assert states_held(64, 1024) <= 2 * (1024 / 64 + 64) + 12


@pytest.mark.parametrize("n", [16, 64, 256, 1024, 4096])
def test_steps_run_as_often_as_documented(n):
    runs = {s: operations(loop(s, n), X, X)["tanh"] / n for s in (None, "root", "log", 4)}
    assert runs[None] == 1
    assert runs["root"] == 2
    assert runs[4] == 2
    assert runs["log"] == round(np.log(n) / np.log(4))


def test_captures_of_a_scheduled_loop_and_double_backprop():
    w = tape.Variable(X)
    last, _ = tape.checkpoint_scan(lambda c, _: (tnp.sin(c * w), None), tape.Variable(X), length=9)
    (g,) = tape.gradients(last.sum(), (w,), create_graph=True)
    (g * g).sum().backward()

    def once(w):
        return jnp.sum(jax.lax.scan(lambda c, _: (jnp.sin(c * w), None), X, length=9)[0])

    close([w.grad], [jax.grad(lambda w: jnp.sum(jax.grad(once)(w) ** 2))(X)], 1e-4)


@pytest.mark.parametrize("call", [tape.checkpoint_scan, tape.checkpoint_sequential])
@pytest.mark.parametrize("schedule", ["binary", 0, True, 2.0, None])
def test_schedules_that_there_are_not(call, schedule):
    with pytest.raises(TapeValueError, match=r"schedule must be 'log', 'root', or the number of steps"):
        call([], X, schedule=schedule)


@pytest.mark.parametrize("schedule", ["root", "log", 4])
@by_xla()
def test_a_sequence_of_functions(schedule):
    weights = [tape.Variable(X * (i + 1)) for i in range(11)]

    def layer(w):
        return lambda state: {"h": tnp.sin(state["h"] * w), "n": state["n"] + 1}

    x = tape.Variable(X)
    out = tape.checkpoint_sequential([layer(w) for w in weights], {"h": x, "n": 0}, schedule=schedule)
    assert int(out["n"]) == 11
    out["h"].sum().backward()

    def plain(x, weights):
        for w in weights:
            x = jnp.sin(x * w)
        return jnp.sum(x)

    close([x.grad, [w.grad for w in weights]], jax.grad(plain, (0, 1))(X, [X * (i + 1) for i in range(11)]))


def test_live_bytes_of_a_sequence_grow_with_the_root():
    def held(n, run):
        out = run([lambda h: tnp.tanh(tnp.linalg.matmul(h, h) + h)] * n, tape.Variable(jnp.eye(32) / 2))
        np.asarray(out.value)
        return tape.stats().live_bytes / 4096

    def plain(functions, state):
        for function in functions:
            state = function(state)
        return state

    base = tape.stats().live_bytes / 4096
    assert held(64, plain) - base >= 64
    for n in (16, 64):
        assert held(n, tape.checkpoint_sequential) - base <= 2 * np.sqrt(n) + 4


def test_planted_a_schedule_that_keeps_everything_is_seen(monkeypatch):
    monkeypatch.setattr(schedules, "factors", lambda n, _: [(n,)])
    with pytest.raises(AssertionError):
        test_memory_grows_with_the_root_or_the_logarithm_of_the_length()


def test_planted_a_checkpoint_that_keeps_everything_is_seen(monkeypatch):
    monkeypatch.setattr(jax, "checkpoint", lambda fun, **_: fun)
    monkeypatch.setattr(traces, "_KNOWN", {})
    with pytest.raises(AssertionError):
        test_fewer_values_live_until_the_sweep()
