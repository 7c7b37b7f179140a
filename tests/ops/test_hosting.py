"""Kernels run on the host as long as they are new, or their arrays small: what is met once, and a list of new length, wait for no compiler."""

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.ops import hosting, running
from tape.ops.kernel import Op
from tape.programs import execution, handing

JOINED = {
    "stack": lambda np_, rows: np_.stack(rows),
    "stack on axis 1": lambda np_, rows: np_.stack(rows, axis=1),
    "array": lambda np_, rows: np_.array(rows),
    "concatenate": lambda np_, rows: np_.concatenate(rows),
    "vstack": lambda np_, rows: np_.vstack(rows),
    "hstack": lambda np_, rows: np_.hstack(rows),
    "dstack": lambda np_, rows: np_.dstack(rows),
    "column_stack": lambda np_, rows: np_.column_stack(rows),
    "block": lambda np_, rows: np_.block([rows]),
    "nested block": lambda np_, rows: np_.block([rows, rows[::-1]]),
}
PARTS = {
    "unstack": lambda np_, x: np_.unstack(x),
    "split": lambda np_, x: np_.split(x, x.shape[0]),
    "array_split": lambda np_, x: np_.array_split(x, x.shape[0] // 2),
}

_compiled = []


def _listen(event, _duration, **_):
    if "backend_compile" in event:
        _compiled.append(event)


@pytest.fixture
def compiled(monkeypatch):
    monkeypatch.setattr(handing, "_OFTEN", 1 << 30)  # or a shape that came often before has its program compiled meanwhile
    if not hasattr(_listen, "on"):
        jax.monitoring.register_event_duration_secs_listener(_listen)
        _listen.on = True
    _compiled.clear()
    return _compiled


def rows_of(n, dtype=np.float32):
    return [(np.arange(4) + i).astype(dtype) for i in range(n)]


def joined(name, n, dtype=np.float32):
    rows = [tape.Variable(r) for r in rows_of(n, dtype)]
    y = JOINED[name](tnp, rows)
    seed = jax.device_put(np.arange(y.size).reshape(y.shape).astype(dtype))
    gradients = tape.gradients(y, rows, seed)
    return y.value, [g.value for g in gradients], seed


@pytest.mark.parametrize("name", JOINED)
def test_joining_a_list_of_new_length_compiles_nothing(name, compiled):
    joined(name, 11)  # what does not depend on the length
    compiled.clear()
    value, gradients, seed = joined(name, 13)
    assert not compiled
    expected, pull = jax.vjp(lambda rows: JOINED[name](jnp, rows), [jnp.asarray(r) for r in rows_of(13)])
    jax.jit(lambda x: -x)(1.0)
    assert compiled  # the listener listens
    np.testing.assert_array_equal(value, expected)
    for g, e in zip(gradients, pull(seed)[0], strict=True):
        assert g.dtype == e.dtype
        assert g.committed == e.committed
        np.testing.assert_array_equal(g, e)


@pytest.mark.parametrize("name", PARTS)
def test_taking_a_matrix_of_new_length_apart_compiles_nothing(name, compiled):
    def parted(n):
        x = tape.Variable(np.arange(4.0 * n, dtype=np.float32).reshape(n, 4))
        parts = PARTS[name](tnp, x)
        seeds = [jax.device_put(np.full(p.shape, i, np.float32)) for i, p in enumerate(parts)]
        return [p.value for p in parts], tape.gradients(list(parts[1:]), x, seeds[1:]).value, seeds

    parted(14)
    compiled.clear()
    values, gradient, seeds = parted(18)
    assert len(compiled) <= 1  # the zeros in place of the first part
    expected, pull = jax.vjp(lambda x: PARTS[name](jnp, x), jnp.arange(72.0).reshape(18, 4))
    for v, e in zip(values, expected, strict=True):
        np.testing.assert_array_equal(v, e)
    np.testing.assert_array_equal(gradient, pull(type(expected)([jnp.zeros_like(seeds[0]), *seeds[1:]]))[0])


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.complex64])
def test_dtypes(dtype):
    value, gradients, seed = joined("stack", 9, dtype)
    np.testing.assert_array_equal(value, np.stack(rows_of(9, dtype)))
    for g, e in zip(gradients, seed, strict=True):
        assert g.dtype == dtype
        np.testing.assert_array_equal(g, e)


def test_lists_of_several_dtypes_and_numbers():
    x, k = tape.Variable(np.float32(1.5)), tape.constant(np.int32(7))
    y = tnp.stack([x, k, 2, 0.25, x * 2, True, np.float16(3)])
    expected = jnp.stack([x.value, k.value, 2, 0.25, x.value * 2, True, np.float16(3)])
    assert (y.dtype, y.weak_type) == (expected.dtype, expected.weak_type)
    np.testing.assert_array_equal(y.value, expected)
    assert float(tape.gradients(y.sum(), x)) == 3.0


def test_results_stay_where_the_arguments_are_and_belong_to_nobody_else():
    device = jax.devices()[0]
    rows = [tape.Variable(jax.device_put(r, device)) for r in rows_of(8)]
    y = tnp.stack(rows)
    assert y.value.committed
    assert y.value.devices() == {device}
    gradients = tape.gradients(y, rows, y)
    kept = np.asarray(y.value).copy()
    jax.jit(lambda x: x * 2, donate_argnums=0)(gradients[0].value)
    np.testing.assert_array_equal(y.value, kept)


def test_a_kernel_that_comes_back_often_is_compiled(compiled, monkeypatch):
    monkeypatch.setattr(running, "CALLS", 2)
    kernel = Op("joined", lambda *rows: jnp.concatenate(rows)).kernel(tuple(jax.typeof(r) for r in rows_of(7)))
    rows = [jnp.asarray(r) for r in rows_of(7)]
    results = [np.asarray(kernel.executable(*rows)[0]) for _ in range(2)]
    assert not compiled
    results.append(np.asarray(kernel.executable(*rows)[0]))
    assert len(compiled) == 1
    for r in results:
        np.testing.assert_array_equal(r, np.concatenate(rows_of(7)))


def test_what_numpy_does_not_compute_as_xla_does_is_compiled():
    def on_host(fun, *arrays):
        return hosting.hosted(jax.make_jaxpr(fun)(*arrays))[0] is not None

    x, k = np.ones((3, 4), np.float32), np.ones(3, np.int32)
    assert on_host(lambda x: jnp.tanh(x @ x.T).sum(0), x)
    assert on_host(lambda x: jax.nn.relu(x), x)  # a function with a derivative of its own
    assert not on_host(lambda k: jax.lax.shift_left(k, k), k)
    assert not on_host(lambda x: jnp.tanh(x), x.astype(jnp.bfloat16))
    assert not on_host(lambda x: jax.lax.dot(x, x.T, precision="BF16_BF16_F32"), x)
    assert not on_host(lambda: jnp.full((3,), 2.0))  # weakly typed, which only a number can be
    assert not on_host(lambda x: (jax.debug.callback(print, x), x)[1], x)
    assert not on_host(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * 2, x), x)


@pytest.mark.parametrize("home", [True, False])
def test_what_numpy_refuses_after_all_is_left_to_xla(monkeypatch, home):
    refused = []
    if not home:  # as where JAX's arrays are on an accelerator
        monkeypatch.setattr(execution, "at_home", lambda leaves: False)

    def hosted(closed):
        return (lambda *_: refused.append(1) or [].pop()), 1.0

    monkeypatch.setattr(running, "hosted", hosted)
    x = tape.Variable(np.arange(23 + home, dtype=np.float32))
    for _ in range(2):
        y = tnp.expm1(tnp.sin(tnp.cosh(x - x))) * 2.0  # a structure that no other test has met
        np.testing.assert_allclose(y.value, np.full(23 + home, np.expm1(np.sin(1.0)) * 2.0), rtol=1e-5)
    assert refused


def test_copies_are_in_the_price_where_arrays_are_on_a_device(monkeypatch):
    def rent():
        return running.Runner("sin", jax.make_jaxpr(jnp.sin)(np.ones(3, np.float32)), pinned=False).rent

    home = rent()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert rent() - home == pytest.approx(running.AWAY - running.HOSTED)
    assert rent() > 3 * home


def test_the_structure_is_compiled_when_it_comes_back():
    rows = [tape.Variable(r) for r in rows_of(10)]

    def step():
        y = (tnp.stack(rows) * 2.0).sum()
        return [g.value for g in tape.gradients(y, rows)]

    for _ in range(3):
        step()
    tape.stats().reset()
    gradients = step()
    assert tape.stats().hits == 1
    assert tape.stats().interpreted == 0
    for g in gradients:
        np.testing.assert_array_equal(g, np.full(4, 2.0, np.float32))


def test_cotangents_that_overflow_warn_of_nothing():
    xs = [tape.Variable(np.full(2, 1.0, np.float32)) for _ in range(7)]
    y = tnp.stack([*xs, xs[0]])
    seed = np.full((8, 2), 3e38, np.float32)
    gradients = tape.gradients(y, xs, seed)
    np.testing.assert_array_equal(gradients[0].numpy(), np.inf)
    np.testing.assert_array_equal(gradients[1].numpy(), np.float32(3e38))


def test_a_key_that_a_program_holds_is_left_to_xla():
    key = jax.random.key(5)
    step = tape.jit(lambda v: ((tape.random.normal(key, (7,)) * v) ** 2).sum())
    v = tape.Variable(2.0)
    step(v).backward()
    np.testing.assert_allclose(v.grad.numpy(), 4 * (jax.random.normal(key, (7,)) ** 2).sum(), rtol=1e-6)


def test_what_compiles_long_stays_on_the_host_for_as_long():
    """The VJP of a stack of 300 rows took XLA 13 seconds, after six runs."""
    assert hosting.runs(1e6, 10.0) == 10_000 > hosting.runs(1e6, 0.01)
    array = jax.ShapeDtypeStruct((300, 64), np.float32)
    kernel = Op("rows", lambda a: tuple([a[i] for i in range(300)])).kernel((array,))
    assert kernel.hosting()
    assert kernel._left > 1000


def on_host(fun, *args):
    """What runs a function of JAX's arrays on the host, and says so where it does not."""
    closed = jax.make_jaxpr(fun)(*args)
    function, _ = hosting.hosted(closed)
    return hosting.at_first(function, closed, lambda *_: "compiled")


def test_results_are_where_the_arguments_are_bound_to():
    x = jnp.arange(3.0)
    bound = jax.device_put(x, jax.devices()[0])
    assert (hosting.place_of([x, 2.0]), hosting.place_of([x, bound])) == ([], [bound.sharding])
    run = on_host(jnp.sin, x)
    assert [run(v)[0].committed for v in (x, bound)] == [False, True]


def test_values_for_jax_are_in_memory_of_their_own():
    x = np.arange(3, dtype=np.float32)
    assert not np.shares_memory(hosting.owned(x, jax.typeof(x)), x)
    (weak,) = jax.make_jaxpr(lambda x: x * 2)(1.0).out_avals
    assert type(hosting.owned(np.float32(3), weak)) is float


def test_numbers_have_the_dtypes_of_the_kernel():
    (found,) = on_host(lambda x, y: x * y, np.ones(2, np.float32), np.float32(1))(jnp.ones(2), 3)
    assert (found.dtype, found.tolist()) == (np.float32, [3, 3])


def test_numpy_warns_of_nothing_that_xla_does_not():
    assert on_host(lambda x: jnp.log(x) + jnp.exp(x), np.float32(0))(jnp.float32(-1e4))[0].dtype == np.float32
    assert on_host(jnp.exp, np.float32(0))(jnp.float32(1e4))[0] == np.inf


def test_results_that_are_checked_are_compiled():
    run = on_host(jnp.sin, np.float32(0))
    with jax.debug_nans(True):
        assert run(jnp.float32(1)) == "compiled"
    assert run(jnp.float32(0))[0] == 0


def test_a_gaussian_process_of_one_more_point_compiles_nothing(compiled):
    """By the contract, what is not known yet runs at once: no length of the data is met twice."""
    rng = np.random.default_rng(0)
    points = rng.uniform(-2, 2, 20).astype(np.float32)
    width, noise = tape.Variable(np.float32(0.3)), tape.Variable(np.float32(-1.0))

    def loss(np_, solve, width, noise, x):
        covariance = np_.exp(-((x[:, None] - x) ** 2) / np_.exp(width)) + np_.exp(noise) * np.eye(len(x), dtype=np.float32)
        factor = np_.linalg.cholesky(covariance)
        y = np.sin(2 * x)
        return y @ solve((factor, True), y) / 2 + np_.sum(np_.log(np_.diagonal(factor)))

    for n in (9, 13):
        compiled.clear()
        found = loss(tnp, tape.scipy.linalg.cho_solve, width, noise, points[:n])
        gradients = tape.gradients(found, [width, noise])
        values = [float(v) for v in (found, *gradients)]
    assert not compiled
    wanted = jax.value_and_grad(lambda w, s: loss(jnp, jax.scipy.linalg.cho_solve, w, s, points[:n]), (0, 1))(width.value, noise.value)
    np.testing.assert_allclose(values, jax.tree.leaves(wanted), rtol=2e-5)
