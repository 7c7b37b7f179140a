"""Variables in pytrees: what JAX's tree functions and functions with rules of their own make of them."""

import jax
import jax.experimental
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop.optax
import tape
import tape.numpy as tnp

RAW = {"b": jnp.array(0.5), "w": jnp.array([1.0, -2.0])}


def variables(**options):
    return {k: tape.Variable(v, name=k, **options) for k, v in RAW.items()}


def decay(tree):
    return sum((p**2).sum() for p in jax.tree.leaves(tree))


def halves(tree):
    return (jax.tree.map(lambda p: p / 2, tree)["w"] ** 3).sum() * tree["b"]


def reduced(tree):
    return jax.tree.reduce(lambda total, p: total + (p**3).sum(), tree, 0.0)


def rebuilt(tree):
    leaves, structure = jax.tree.flatten(tree)
    return (jax.tree.unflatten(structure, [3 * p for p in leaves])["w"] ** 2).sum() * tree["b"]


def with_paths(tree):
    return sum((p * (3 if path[0].key == "w" else 2)).sum() for path, p in jax.tree_util.tree_leaves_with_path(tree))


def adapted(tree, grad=jax.grad):
    """A step of an inner loop, as in MAML."""
    step = grad(lambda q: (q["w"] ** 3).sum() * q["b"])(tree)
    return (jax.tree.map(lambda p, g: p - 0.1 * g, tree, step)["w"] ** 2).sum()


FUNCTIONS = [decay, halves, reduced, rebuilt, with_paths]


@pytest.mark.parametrize("fun", FUNCTIONS)
def test_a_differentiated_function_loses_no_gradient_in_a_tree_function(fun):
    expected = jax.grad(fun)(RAW)
    for given in (RAW, variables(), variables(requires_grad=False)):
        found = tape.grad(fun)(given)
        jax.tree.map(np.testing.assert_allclose, {k: np.asarray(jnp.asarray(getattr(v, "value", v))) for k, v in found.items()}, expected)
    jax.tree.map(np.testing.assert_allclose, jax.jit(tape.grad(fun))(RAW), expected)


@pytest.mark.parametrize("fun", FUNCTIONS)
def test_a_sweep_loses_no_gradient_in_a_tree_function(fun):
    """Also where nothing says that the function is differentiated, and in a trace."""
    expected = jax.grad(fun)(RAW)

    def swept(tree):
        fun(tree).backward()
        return [p.grad for p in tree.values()]

    def inside(raw):
        return [g.value for g in swept({k: tape.Variable(v) for k, v in raw.items()})]

    compiled = tape.jit(lambda b, w: swept({"b": b, "w": w}))
    for found in (swept(variables()), jax.jit(inside)(RAW), compiled(*variables().values()), compiled(*variables().values())):
        for gradient, right in zip(found, expected.values(), strict=True):
            np.testing.assert_allclose(getattr(gradient, "value", gradient), right, rtol=1e-6)


def test_what_a_tree_function_hands_out_stands_for_the_variable():
    parameters = variables()
    decay(parameters).backward()
    gradients = jax.tree.map(lambda p: p.grad, parameters)
    assert all(gradients[k] is p.grad is not None for k, p in parameters.items())
    assert jax.tree.map(lambda p: p, parameters) == parameters
    leaves, structure = jax.tree.flatten(parameters)
    assert jax.tree.unflatten(structure, leaves) == parameters
    seen = []
    for p in leaves:
        assert p.is_leaf
        p.value = p.value - p.grad.value / 4
        p.zero_grad()
        p.register_hook(lambda g: seen.append("hook") or g * 10)
        p.register_post_accumulate_grad_hook(lambda v: seen.append(v))
    for k, p in parameters.items():
        np.testing.assert_allclose(p.value, RAW[k] / 2)
        assert p.grad is None
    np.testing.assert_allclose(leaves[1].value, RAW["w"] / 2)
    (sum((p**2).sum() for p in leaves) + decay(parameters)).backward()
    assert seen[:2] == ["hook", "hook"]  # with the total gradient, so once each
    assert {id(v) for v in seen[2:]} == {id(p) for p in parameters.values()}
    np.testing.assert_allclose(parameters["w"].grad.value, 10 * 2 * RAW["w"])
    leaves[0].grad = jnp.float32(7)
    assert float(parameters["b"].grad) == 7
    assert leaves[0].requires_grad_(False) is leaves[0]
    assert not parameters["b"].requires_grad
    assert not leaves[0].requires_grad


def test_what_a_tree_function_hands_out_of_a_result_stands_for_it():
    x = tape.Variable([1.0, 2.0])
    y = x * 3
    (leaf,) = jax.tree.leaves([y])
    assert not leaf.is_leaf
    leaf.retain_grad()
    del leaf
    (y * y).sum().backward(retain_graph=True)
    np.testing.assert_allclose(y.grad.value, 6 * x.value)
    y = x * 3
    (leaf,) = jax.tree.leaves([y])
    leaf[0] = 5.0
    np.testing.assert_allclose(y.value, [5.0, 6.0])
    np.testing.assert_allclose(leaf.value, [5.0, 6.0])
    leaf.unchain()
    assert y.is_leaf
    x.zero_grad()
    (leaf * y).sum().backward()
    assert x.grad is None
    np.testing.assert_allclose(y.grad.value, [10.0, 12.0])


def test_gradients_are_taken_with_respect_to_what_a_tree_function_hands_out():
    parameters = variables()
    expected = jax.tree.leaves(jax.grad(decay)(RAW))
    for gradient, right in zip(tape.gradients(decay(parameters), jax.tree.leaves(parameters)), expected, strict=True):
        np.testing.assert_allclose(gradient.value, right)
    decay(parameters).backward(inputs=jax.tree.leaves(parameters))
    np.testing.assert_allclose(parameters["w"].grad.value, expected[1])


def test_a_step_over_the_leaves_of_a_tree():
    def plain(parameters):
        decay(parameters).backward()
        for p in jax.tree.leaves(parameters):
            p.value = p.value - 0.25 * p.grad.value
            p.zero_grad()

    parameters, held, given, closed = variables(), variables(), variables(), variables()
    compiled = tape.jit(lambda: plain(held))
    before = jax.tree.leaves(closed)
    over_leaves = tape.jit(plain)
    closing = tape.jit(lambda: plain(before))
    optimized = variables()
    optimizer = interop.optax.Optimizer(jax.tree.leaves(optimized), optax.sgd(0.25))
    for n in range(1, 5):
        plain(parameters)
        compiled()
        over_leaves(jax.tree.leaves(given))
        closing()
        decay(optimized).backward()
        optimizer.step()
        optimizer.zero_grad()
        for tree in (parameters, held, given, closed, optimized):
            for k, p in tree.items():
                np.testing.assert_allclose(p.value, RAW[k] / 2**n)
        np.testing.assert_allclose(before[1].value, RAW["w"] / 2**n)


def test_without_recording_tree_functions_hand_out_arrays():
    parameters = variables()
    with tape.no_grad():
        assert all(isinstance(p, jax.Array) for p in jax.tree.leaves(parameters))
        scaled = jax.tree.map(lambda p: jnp.sin(p), parameters)
    assert not scaled["w"].requires_grad
    assert scaled["w"].name == "w"
    assert all(isinstance(p, jax.Array) for p in jax.tree.leaves(variables(requires_grad=False)))
    for raw in (jnp.sin, jax.jit(lambda p: p * 2), jnp.asarray, jax.checkpoint(jnp.sin)):
        with pytest.raises(tape.errors.TapeError, match=r"jax\.tree handed it out, and hands out arrays under tape\.no_grad"):
            jax.tree.map(raw, [parameters["w"]])


def test_second_order_through_tree_functions():
    expected = jax.grad(adapted)(RAW)
    found = tape.grad(lambda tree: adapted(tree, tape.grad))(RAW)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_a_leaf_of_a_tree_function_is_a_variable_like_others():
    def fun(tree):
        (leaf,) = jax.tree.leaves(tree)
        assert type(leaf).__name__ == "Variable"
        assert isinstance(leaf, tape.Variable)
        (same,) = jax.tree.map(lambda x: x, [tree["w"]])
        assert type(same) is tape.Variable
        return (jax.vmap(lambda x: x * 2)(leaf.detach() * 1) * leaf * same).sum()

    np.testing.assert_allclose(tape.grad(fun)({"w": RAW["w"]})["w"], 4 * RAW["w"] ** 2)


def test_flattening_into_one_vector_is_refused_where_it_would_lose_the_gradient():
    for call in (
        lambda: tape.grad(lambda tree: jax.flatten_util.ravel_pytree(tree)[0].sum())(RAW),
        lambda: jax.flatten_util.ravel_pytree(variables()),
    ):
        with pytest.raises((tape.errors.LostGradientError, TypeError, ValueError)):  # JAX's own refusal may come first
            call()
    with tape.no_grad():
        np.testing.assert_allclose(jax.flatten_util.ravel_pytree(variables())[0], jax.flatten_util.ravel_pytree(RAW)[0])


def test_trees_of_variables_match_whatever_their_names_and_flags():
    parameters = variables()
    parameters["b"].requires_grad_(False)
    step = jax.tree.map(lambda p, g: p - 0.5 * g, parameters, tape.grad(decay)(parameters))
    np.testing.assert_allclose(step["w"].value, 0 * RAW["w"])
    assert jax.tree.structure(parameters) == jax.tree.structure({k: tape.constant(v) for k, v in RAW.items()})


def test_a_mapped_function_may_return_variables_or_anything():
    parameters = variables()
    for made in (jax.tree.map(tnp.zeros_like, parameters), jax.tree.map(tape.constant, parameters)):
        np.testing.assert_allclose((made["w"] * 2 + 1).value, 2 * jnp.asarray(made["w"].value) + 1)
    fresh = jax.tree.map(tape.Variable, parameters)
    (fresh["w"] ** 2).sum().backward()
    np.testing.assert_allclose(fresh["w"].grad.value, 2 * RAW["w"])
    assert jax.tree.map(lambda p: p.shape, parameters) == {"b": (), "w": (2,)}
    assert jax.tree.map(lambda p: float(p.sum()), parameters) == {"b": 0.5, "w": -1.0}
    assert jax.tree.map(lambda _: None, parameters) == {"b": None, "w": None}
    assert jax.tree.map(lambda p: np.zeros(p.shape), parameters)["w"].dtype == np.float32


@jax.custom_vjp
def cubed(x):
    return jnp.power(x, 3)


cubed.defvjp(lambda x: (cubed(x), x), lambda x, ct: (3 * x**2 * ct,))


@pytest.mark.parametrize("fun", [jax.nn.relu, jax.nn.relu6, cubed], ids=["relu", "relu6", "custom_vjp"])
def test_a_raw_function_with_rules_of_its_own_refuses_a_variable_that_requires_grad(fun):
    v = tape.Variable([1.0, -2.0])
    with pytest.raises(tape.errors.LostGradientError):
        fun(v)
    np.testing.assert_allclose(fun(v.detach()), fun(v.value))
    np.testing.assert_allclose(tape.grad(lambda x: fun(x.detach()).sum() + x.sum())(v).value, [1.0, 1.0])


XS = jnp.arange(3.0)
CUTS = {
    "vmap over a captured Variable": lambda w: jax.vmap(lambda x: w * x)(XS).sum(),
    "vmap": lambda w: (w + jax.vmap(lambda x: x * 2)(w * XS)).sum(),
    "jit": lambda w: w + jax.jit(lambda x: x * 2)(w),
    "cond": lambda w: w + jax.lax.cond(True, lambda: w * 2, lambda: w),
}


@pytest.mark.parametrize("fun", CUTS.values(), ids=CUTS)
def test_what_a_jax_transformation_computes_of_what_is_differentiated_is_refused(fun):
    for call in (tape.grad(fun), tape.value_and_grad(fun), jax.jit(tape.grad(fun))):
        with pytest.raises(tape.errors.UnrecordedGradientError, match=r"came out of a JAX transformation.*interop\.lift"):
            call(2.0)


@pytest.mark.parametrize("fun", CUTS.values(), ids=CUTS)
def test_contract_28_a_sweep_says_what_a_transformation_cut(fun):
    w = tape.Variable(2.0)
    for _ in range(2):  # found again on the trie
        value = fun(w)
        with pytest.raises(
            (tape.errors.UnrecordedGradientError, tape.errors.TapeValueError), match=r"came out of a JAX transformation.*interop\.lift"
        ):
            (w + value).backward()
        assert w.grad is None
    np.testing.assert_allclose(value.value, fun(jnp.float32(2)))


def in_jit(fun):
    return tape.jit(lambda w: tape.gradients(fun(w), w))(tape.Variable(2.0))


def through_jit(fun):
    w = tape.Variable(2.0)
    tape.jit(fun)(w).backward()
    return w.grad


def in_raw(transformation, size=()):
    def swept(raw):
        w = tape.Variable(raw)
        fun(w).backward()
        return w.grad.value

    def call(given):
        nonlocal fun
        fun = given
        return transformation(swept)(jnp.full(size, 2.0))

    fun = None
    return call


def in_a_loop(fun):
    """Both the loop and the sweep in it are in a trace of the tape's."""
    return tape.lax.scan(lambda c, _: (c, tape.grad(fun)(c)), tape.Variable(2.0), None, length=1)[1]


SWEPT_INSIDE = {
    "tape.jit": in_jit,
    "out of tape.jit": through_jit,
    "jax.jit": in_raw(jax.jit),
    "jax.vmap": in_raw(jax.vmap, 3),
    "jax.checkpoint": in_raw(jax.checkpoint),
    "jax.jit of jax.vmap": in_raw(lambda f: jax.jit(jax.vmap(f)), 3),
    "tape.lax.scan": in_a_loop,
}
INSIDE = CUTS | {
    "vmap of jit": lambda w: (w + jax.vmap(jax.jit(lambda x: w * x))(XS)).sum(),
    "jit of vmap": lambda w: (w + jax.jit(jax.vmap(lambda w, x: w * x, (None, 0)))(w, XS)).sum(),
    "scan": lambda w: w + jax.lax.scan(lambda c, x: (jax.vmap(lambda c: c * w)(c), None), w * XS, XS)[0].sum(),
    "tree": lambda w: w + jax.tree.leaves([jax.jit(lambda x: x * 2)(w)])[0],
}


@pytest.mark.parametrize("sweep", SWEPT_INSIDE.values(), ids=SWEPT_INSIDE)
@pytest.mark.parametrize("fun", INSIDE.values(), ids=INSIDE)
def test_contract_28_a_sweep_in_a_trace_says_what_a_transformation_cut(fun, sweep):
    with pytest.raises(
        (tape.errors.UnrecordedGradientError, tape.errors.TapeValueError), match=r"came out of a JAX transformation.*interop\.lift"
    ):
        sweep(fun)


WHOLE = {
    "checkpoint": tape.checkpoint,
    "scan": lambda f: lambda w: tape.lax.scan(lambda c, _: (f(c), None), w, None, length=1)[0],
    "cond": lambda f: lambda w: tape.lax.cond(True, f, f, w),
    "tape.jit of checkpoint": lambda f: tape.jit(tape.checkpoint(f)),
}


@pytest.mark.parametrize("wrap", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("fun", INSIDE.values(), ids=INSIDE)
def test_a_trace_that_is_differentiated_as_a_whole_goes_through_transformations(fun, wrap):
    w = tape.Variable(2.0)
    wrap(fun)(w).backward()
    np.testing.assert_allclose(w.grad.value, jax.grad(fun)(2.0), rtol=1e-6)


def test_raw_jax_refuses_in_a_trace_what_came_out_of_another():
    for sweep in (in_jit, in_raw(jax.jit)):
        for raw in (jnp.sin, jnp.asarray):
            with pytest.raises(tape.errors.LostGradientError, match=r"met a raw JAX function"):
                sweep(lambda w, raw=raw: w + raw(jax.jit(lambda x: x * w)(w)))


def test_contract_28_what_ran_first_without_recording_is_cut_later():
    w, fun = tape.Variable(2.0), jax.jit(lambda w, x: w * x)
    with tape.no_grad():
        assert not fun(w, 3.0).requires_grad
    for _ in range(2):
        with pytest.raises(tape.errors.UnrecordedGradientError, match="came out of a JAX transformation"):
            (w + fun(w, 3.0)).backward()
    with tape.no_grad():
        y = fun(w, 3.0)
    (w * y).backward()  # a constant, as everything computed there
    np.testing.assert_allclose(w.grad.value, 6.0)


def test_contract_28_what_a_transformation_cut_stays_cut_in_a_tree_function():
    w = tape.Variable(2.0)
    (mapped,) = jax.tree.map(lambda y: y * 1, [jax.jit(lambda x: x * 2)(w)])
    with pytest.raises(tape.errors.UnrecordedGradientError, match="came out of a JAX transformation"):
        (w + mapped).backward()
    np.testing.assert_allclose(mapped.value, 4.0)


def test_contract_28_what_came_out_is_of_use_where_no_gradient_flows():
    w = tape.Variable(2.0)
    y = jax.jit(lambda w: w * w)(w)
    with tape.no_grad():
        assert float(w * y) == 8
    (w * y.detach()).backward()
    assert float(w.grad) == 4
    (w * tape.constant(y.value)).backward()
    assert float(w.grad) == 8
    leaf = tape.Variable(1.0)
    leaf.value = y
    (leaf * leaf).backward()
    assert float(leaf.grad) == 8
    leaf.grad = y
    assert float(leaf.grad) == 4
    made = jax.jit(lambda key: tape.Variable(jax.random.normal(key)))(jax.random.key(0)).requires_grad_()
    (made * 3).backward()
    assert float(made.grad) == 3


def test_what_a_jax_transformation_computes_of_constants_is_not():
    constant = tape.constant(3.0)

    def fun(w):
        frozen = jax.jit(lambda x: x * constant)(2.0)
        stopped = jax.jit(lambda x: x * 2)(w.detach())
        tripled = jax.vmap(lambda x: w * x)(XS).detach()
        return w * (frozen + stopped + tripled.sum())

    np.testing.assert_allclose(tape.grad(fun)(2.0), 16.0)
    np.testing.assert_allclose(jax.jit(tape.grad(fun))(2.0), 16.0)
    with pytest.raises(tape.errors.UnrecordedGradientError):  # the mark goes with the function
        tape.grad(lambda w: w + jax.jit(lambda x: x * 2)(w))(2.0)


def io_callback(*args):
    return jax.experimental.io_callback(*args)


@pytest.mark.parametrize("callback", [jax.pure_callback, io_callback])
@pytest.mark.parametrize("around", [lambda f: f, jax.jit, tape.jit], ids=["bare", "jax.jit", "tape.jit"])
def test_callbacks_do_not_lose_gradients(callback, around):
    result = jax.ShapeDtypeStruct((3,), np.float32)
    call = around(lambda v: callback(np.sin, [result], v)[0])
    v = tape.Variable(np.arange(3, dtype=np.float32))
    with pytest.raises(tape.errors.LostGradientError, match=r"callback of a Variable that requires grad \(shape \(3,\), dtype float32\)"):
        call(v)
    with tape.no_grad():
        np.testing.assert_allclose(jax.device_get(call(v)), np.sin(np.arange(3)), rtol=1e-6)
    np.testing.assert_allclose(jax.device_get(call(v.detach())), np.sin(np.arange(3)), rtol=1e-6)


def test_callbacks_whose_results_have_no_derivative_take_variables():
    v, seen = tape.Variable(np.arange(3, dtype=np.float32)), []
    jax.debug.callback(lambda a: seen.append(np.asarray(a.value)), v)
    jax.experimental.io_callback(lambda a: seen.append(np.asarray(a.value)), None, v)
    counted = jax.pure_callback(lambda a: np.int32((np.asarray(a.value) > 0).sum()), jax.ShapeDtypeStruct((), np.int32), v)
    jax.effects_barrier()
    assert counted == 2
    assert len(seen) == 2
