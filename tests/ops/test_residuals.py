"""Residuals inside an op: nothing costly runs twice, checkpoints keep what their policy says, and derivatives stay JAX's."""

import collections

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import interop
import tape
import tape.lax
import tape.numpy as tnp
from tape.ops import residuals
from tape.rules import lookup
from tape.rules.registry import Cost
from tests.platforms import AT_HOME

W = jnp.asarray(np.linspace(-1.0, 1.0, 9, dtype="float32").reshape(3, 3))
H = jnp.asarray(np.array([0.5, -0.25, 0.75], "float32"))
X = jnp.asarray(np.linspace(-1.0, 2.0, 12, dtype="float32").reshape(4, 3))
POLICIES = jax.checkpoint_policies


def operations(fun, *args):
    """How often each primitive runs in ``fun``; loops count by their length, and of branches the one with most."""

    def count(jaxpr):
        counts = collections.Counter()
        for eqn in jaxpr.eqns:
            counts[str(eqn.primitive)] += 1
            inner = [getattr(p, "jaxpr", p) for p in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns"))]
            found = [count(j) for j in inner if hasattr(j, "eqns")]
            if found:
                most = max(found, key=lambda c: c.total())
                counts += collections.Counter({k: n * eqn.params.get("length", 1) for k, n in most.items()})
        return counts

    return count(jax.make_jaxpr(fun)(*args).jaxpr)


def both(fun, *args):
    """Operations of the value and gradient of a JAX function, swept by the tape."""
    argnums = tuple(range(len(args)))
    ours = tape.value_and_grad(interop.lift(fun), argnums)
    value, gradient = jax.jit(ours)(*args)
    expected, theirs = jax.value_and_grad(fun, argnums)(*args)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for a, b in zip(gradient, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    return operations(ours, *args)


def recurrent(w, h, xs):
    def step(h, x):
        h = jnp.tanh(w @ h + x)
        return h, None

    return jnp.sum(lax.scan(step, h, xs)[0] ** 2)


def branching(w, h, xs):
    return jnp.sum(lax.cond(h[0] > 0, lambda w, h: jnp.tanh(w @ (w @ h)), lambda w, h: jnp.exp(w @ h), w, h) * xs[0])


def nested(w, h, xs):
    def outer(h, x):
        return lax.scan(lambda h, y: (lax.cond(y[0] > 0, jnp.tanh, lambda v: v, w @ h + y), None), h, jnp.stack([x, -x]))[0], None

    return jnp.sum(lax.scan(outer, h, xs)[0])


def test_a_loop_runs_its_costly_steps_once():
    counts = both(recurrent, W, H, X)
    assert counts["tanh"] == 4
    assert counts["dot_general"] == 3 * 4  # one forward, two back


def test_a_rule_of_the_users_own_changes_no_cost():
    primitive = jax.extend.core.primitives.dot_general_p
    old = tape.rules.lookup(primitive)
    tape.rules.defvjp(primitive, lambda *args, **params: old.vjp(*args, **params))
    try:
        assert both(recurrent, W, H, X)["dot_general"] == 3 * 4
    finally:
        tape.rules.defvjp(primitive, old.vjp)


def test_a_branch_runs_its_costly_steps_once():
    counts = both(branching, W, H, X)
    assert counts["dot_general"] == 2 + 4
    assert counts["cond"] == 2


def solved(w, h, xs):
    return jnp.sum(jnp.tanh(jnp.linalg.solve(w + 3 * jnp.eye(3), h)) * xs[0])


def solved_in_a_loop(w, h, xs):
    return jnp.sum(lax.scan(lambda h, x: (jnp.tanh(jnp.linalg.solve(w + 3 * jnp.eye(3), h)) + x, None), h, xs)[0])


@pytest.mark.parametrize(("fun", "steps"), [(solved, 1), (solved_in_a_loop, 4)], ids=["once", "in a loop"])
def test_a_system_is_solved_once(fun, steps):
    assert both(fun, W, H, X)["custom_linear_solve"] == 2 * steps  # one forward, one back


def test_loops_in_loops_run_their_costly_steps_once():
    counts = both(nested, W, H, X)
    assert counts["tanh"] == 8
    assert counts["dot_general"] == 3 * 8


def test_what_is_the_same_at_every_step_is_not_stacked():
    def fun(w, h, xs):
        return jnp.sum(lax.scan(lambda h, x: (jnp.sin(w) @ h + x, None), h, xs)[0])

    both(fun, W, H, X)
    kernel = tape.ops.kernel.Op("loop", fun).kernel(tuple(jax.typeof(a) for a in (W, H, X))).augmented()
    hidden = kernel.out_avals[kernel.visible :]
    assert [a.shape for a in hidden] == [(4, 3)]  # the carries, and not four sines of w


@pytest.mark.parametrize("fun", [recurrent, branching, nested], ids=lambda f: f.__name__)
def test_second_derivatives_go_through_what_was_kept(fun):
    def penalty(grad, w, h, xs):
        return sum(jnp.sum(g**2) for g in grad(w, h, xs))

    ours = jax.jit(jax.grad(lambda w: penalty(tape.grad(interop.lift(fun), (0, 1, 2)), w, H, X)))(W)
    expected = jax.grad(lambda w: penalty(jax.grad(fun, (0, 1, 2)), w, H, X))(W)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    w, h, xs = map(tape.Variable, (W, H, X))
    grads = tape.gradients(interop.lift(fun)(w, h, xs), (w, h, xs), create_graph=True)
    sum((g * g).sum() for g in grads).backward()
    np.testing.assert_allclose(w.grad.value, expected, rtol=1e-4, atol=1e-5)


def block(w, h):
    return checkpoint_name(jnp.tanh(checkpoint_name(jnp.tanh(w @ h), "first") @ w), "second")


@pytest.mark.parametrize(
    ("policy", "dots", "tanhs"),
    [
        (None, 4, 4),
        (POLICIES.nothing_saveable, 4, 4),
        (POLICIES.dots_saveable, 2, 4),
        (POLICIES.everything_saveable, 2, 2),
        (POLICIES.save_only_these_names("first"), 3, 3),
        (POLICIES.save_only_these_names("first", "second"), 2, 2),
        (POLICIES.save_any_names_but_these("first"), 3, 3),
        (POLICIES.save_from_both_policies(POLICIES.dots_saveable, POLICIES.save_only_these_names("second")), 2, 3),
        (lambda primitive, *_, **__: primitive.name == "tanh", 2, 2),
    ],
)
def test_a_lifted_checkpoint_keeps_what_its_policy_says(policy, dots, tanhs):
    def fun(w, h):
        return jnp.sum(jax.checkpoint(block, policy=policy)(w, h) ** 2)

    counts = both(fun, W, H)
    assert counts["dot_general"] == dots + 4
    assert counts["tanh"] == tanhs


@pytest.mark.parametrize("policy", [POLICIES.nothing_saveable, POLICIES.dots_saveable])
def test_a_checkpoint_in_a_loop_keeps_what_its_policy_says(policy):
    def fun(w, h, xs):
        step = jax.checkpoint(lambda h, x: jnp.tanh(block(w, h) + x), policy=policy, prevent_cse=False)
        return jnp.sum(lax.scan(lambda h, x: (step(h, x), None), h, xs)[0])

    counts = both(fun, W, H, X)
    forward = 2 if policy is POLICIES.dots_saveable else 4
    assert counts["dot_general"] == 4 * (forward + 4)


def test_a_checkpoint_in_a_checkpoint_keeps_what_both_let_be_kept():
    def fun(inner, outer):
        def once(w, h):
            return jax.checkpoint(block, policy=inner)(w, h) @ w

        return lambda w, h: jnp.sum(jax.checkpoint(once, policy=outer)(w, h) ** 2)

    def tanhs(primitive, *_, **__):
        return primitive.name == "tanh"

    dots, saved = {}, POLICIES.dots_saveable
    for name, inner, outer in [("none", None, None), ("inner", saved, None), ("both", saved, saved), ("apart", saved, tanhs)]:
        dots[name] = both(fun(inner, outer), W, H)["dot_general"]
    backward = 6
    assert dots["both"] == backward + 3
    assert dots["apart"] == dots["none"]
    assert dots["inner"] == backward + 3 + 2  # the outer one keeps nothing; while it runs again, the inner one's dots are kept
    assert dots["none"] == backward + 3 + 2 + 2


def test_everything_in_a_loop_in_a_checkpoint_runs_again():
    counts = both(lambda w, h, xs: jax.checkpoint(recurrent, policy=POLICIES.dots_saveable)(w, h, xs), W, H, X)
    assert counts["tanh"] == 2 * 4


def lstm(w, h, xs):
    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(h @ w + x, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    return jnp.sum(lax.scan(step, (h, h), xs)[0][0])


@pytest.mark.parametrize(("fun", "gates"), [(recurrent, 1), (lstm, 4)])
def test_a_recurrent_network_costs_what_it_costs_in_jax(fun, gates):
    args = (jnp.zeros((64, 64 * gates)), jnp.zeros(64), jnp.zeros((32, 64 * gates)))
    ours, theirs = (
        jax.jit(v(fun, (0, 1))).lower(*args) for v in (lambda *a: tape.value_and_grad(interop.lift(a[0]), a[1]), jax.value_and_grad)
    )
    costs = "flops", "transcendentals", "bytes accessed"
    assert all(ours.cost_analysis()[cost] <= 1.05 * theirs.cost_analysis()[cost] for cost in costs)
    if AT_HOME:  # on GPUs XLA's fusions compute again what several of them read
        mine, others = ours.compile(), theirs.compile()
        assert all(mine.cost_analysis()[cost] <= 1.05 * others.cost_analysis()[cost] for cost in costs)
        assert mine.memory_analysis().temp_size_in_bytes <= 1.05 * others.memory_analysis().temp_size_in_bytes


def test_equal_programs_with_checkpoints_swept_inside_are_one_op():
    def step(c, _):
        kept = tape.checkpoint(lambda v: tnp.sin(tnp.sin(v)), policy=POLICIES.everything_saveable)
        return tape.grad(lambda v: tnp.sum(kept(v)))(c), None

    h = tape.Variable(H)
    ops = {tape.lax.scan(step, h, None, length=2)[0].op for _ in range(2)}
    assert len(ops) == 1


def test_xla_does_not_undo_a_checkpoint():
    def chain(wrap):
        def fun(w, x):
            once = wrap(lambda x: jnp.tanh(jnp.tanh(x @ w) @ w))
            for _ in range(8):
                x = once(x)
            return jnp.sum(x)

        return jax.jit(tape.grad(interop.lift(fun))).lower(jnp.zeros((16, 16)), jnp.zeros((512, 16))).compile()

    kept, again = chain(lambda f: f), chain(jax.checkpoint)
    assert again.memory_analysis().temp_size_in_bytes < 0.75 * kept.memory_analysis().temp_size_in_bytes
    assert again.cost_analysis()["flops"] > 1.25 * kept.cost_analysis()["flops"]


def test_keys_and_integers_go_through_loops_and_checkpoints():
    def fun(w, h, xs):
        def step(carry, x):
            key, count, h = carry
            key, draw = jax.random.split(key)
            noise = jax.random.normal(draw, h.shape)
            return (key, count + 1, jax.checkpoint(lambda h: jnp.tanh(w @ h * noise + x))(h)), count

        (_, count, h), counts = lax.scan(step, (jax.random.key(0), 0, h), xs)
        return jnp.sum(h) * count + jnp.sum(counts)

    both(fun, W, H, X)


def test_planted_a_rule_that_computes_again_is_seen(monkeypatch):
    monkeypatch.setattr(residuals.table, "cost_of", lambda primitive: Cost.SMALL)
    counts = both(recurrent, W + 0.5, H, X[:3])
    assert counts["tanh"] > 3


def test_a_checkpoint_in_part_knows_which_of_its_outputs_its_policy_lets_be_kept():
    """After what nobody reads has gone, too; and no output is there twice."""
    fun = jax.checkpoint(lambda x: (jnp.sin(x), x @ x, jnp.cos(jnp.sin(x) @ x)), policy=POLICIES.dots_saveable)
    (eqn,) = jax.make_jaxpr(fun)(W).jaxpr.eqns
    rule = lookup(eqn.primitive)
    larger, further = rule.augment(eqn.params, residuals.Keep())
    assert [aval.shape for aval in further] == [(3, 3)]
    assert larger["policy"].kept == (False, True, False, True)
    for used, kept in (([False, True, False, True], (True, True)), ([True, False, True, True], (False, False, True))):
        smaller, _, given = rule.prune(larger, used)
        assert given == used
        assert (smaller["policy"].kept, len(smaller["jaxpr"].outvars)) == (kept, len(kept))


@pytest.mark.parametrize("policy", [None, POLICIES.dots_saveable])
def test_a_checkpoint_of_a_compiled_function_with_constants_of_its_own_stays_whole(policy):
    """Such an array is no argument of the checkpoint, which has nowhere to put it."""
    weights = np.arange(3.0, dtype="float32")

    def fun(w, x):
        products = jax.jit(lambda w, x: jnp.tanh(w @ (weights * x)) * weights)(w, x)
        return products @ products, jnp.cos(products)

    def loss(w, x):
        return jax.checkpoint(fun, policy=policy)(w, x)[0]

    both(loss, W, H)
    for order in (tape.grad(interop.lift(loss)), tape.grad(lambda w, x: tape.grad(interop.lift(loss))(w, x).sum())):
        assert np.isfinite(jax.jit(order)(W, H)).all()
