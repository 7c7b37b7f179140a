"""What :mod:`test_sharding` checks, in a process of its own with eight CPU devices: each check runs, and says what it found."""

import copy
import importlib.util
import json
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import interop
import interop.optax
import tape
import tape.lax
import tape.numpy as tnp
from tape.programs import buffers, numbers

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)

AUTO, EXPLICIT = [jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind)) for kind in (AxisType.Auto, AxisType.Explicit)]
RNG = np.random.default_rng(0)
W, X = RNG.normal(size=(16, 8)), RNG.normal(size=(16, 16))


def put(value, *spec, mesh=AUTO):
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec)))


def function(w):
    return (jnp.tanh(jnp.asarray(X) @ w) ** 2).sum()


def loss(w, x=None):
    return (tnp.tanh((put(X, "data") if x is None else x) @ w) ** 2).sum()


WANTED = jax.grad(function)(jnp.asarray(W))


def taken(*given):
    return [x * 2 for x in given]


def same(found, wanted):
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-12, atol=1e-12)


def lies(found, like):
    sharding = like if isinstance(like, NamedSharding) else like.sharding
    assert found.sharding.is_equivalent_to(sharding, found.ndim), (found.sharding, sharding)


def trained(w, loss=loss, wanted=WANTED, times=4):
    """The gradient is right and lies as the parameter does, where it is interpreted and where it is compiled."""
    for _ in range(times):
        w.zero_grad()
        loss(w).backward()
        same(w.grad.value, wanted)
        lies(w.grad, w)


def gradients_lie_as_their_parameters():
    for spec in ((), ("data",), ("model",), (None, "model"), ("data", "model"), (("data", "model"),)):
        trained(tape.Variable(put(W, *spec)))


def gradients_with_hooks():
    w = tape.Variable(put(W, "data"))
    w.register_hook(lambda g: 2 * g)
    trained(w, wanted=2 * WANTED)


def gradients_add_up():
    w = tape.Variable(put(W, "data"))
    for i in range(1, 5):
        loss(w).backward()
        same(w.grad.value, i * WANTED)
        lies(w.grad, w)


def a_look_in_between():
    def looked(w):
        h = tnp.tanh(put(X, "data") @ w)
        float(h.sum())
        return (h**2).sum()

    trained(tape.Variable(put(W, "data")), looked)


def eager_mode():
    with tape.eager():
        trained(tape.Variable(put(W, "data")), times=2)


def other_inputs():
    for x in (X, jnp.asarray(X), put(X), put(X, "model"), tape.constant(put(X, None, "model"))):
        trained(tape.Variable(put(W, "data")), lambda w, x=x: loss(w, x))


def another_sharding_is_another_program():
    w = tape.Variable(put(W, "data"))
    for spec in (("data",), ("model",), (), (None, "model"), ("data",)):
        w.value = put(W, *spec)
        trained(w)
    w.value = jnp.asarray(W)
    trained(w, lambda w: loss(w, X))


def updates_stay_where_they_are():
    w, v = tape.Variable(put(W, None, "model")), jnp.asarray(W)
    home = w.sharding
    for _ in range(6):
        w.zero_grad()
        loss(w).backward()
        lies(w.grad, home)
        with tape.no_grad():
            w -= 0.1 * w.grad
        v = v - 0.1 * jax.grad(function)(v)
        same(w.value, v)
        lies(w, home)


def compiled_steps():
    w, v = tape.Variable(put(W, "data")), jnp.asarray(W)
    home = w.sharding

    @tape.jit
    def step():
        w.zero_grad()
        value = loss(w)
        value.backward()
        with tape.no_grad():
            w.__isub__(0.1 * w.grad)
        return value

    for i in range(6):
        step()
        v = v - 0.1 * jax.grad(function)(v)
        same(w.value, v)
        lies(w, home)
        lies(w.grad, home)
        if i == 1:  # the first one found no gradient
            tape.stats().reset()
    assert tape.stats().compiles == 0


def optimizers():
    for make in (optax.sgd, optax.adam, optax.adamw, optax.rmsprop, optax.lion):
        for spec in (("data",), (None, "model")):
            w, v = tape.Variable(put(W, *spec)), jnp.asarray(W)
            optimizer, transformation = interop.optax.Optimizer([w], make(1e-2)), make(1e-2)
            state, home = transformation.init([v]), w.sharding
            for _ in range(4):
                optimizer.zero_grad()
                loss(w).backward()
                optimizer.step()
                updates, state = transformation.update([jax.grad(function)(v)], state, [v])
                (v,) = optax.apply_updates([v], updates)
                same(w.value, v)
                lies(w, home)
                lies(w.grad, home)
                for leaf in jax.tree.leaves(optimizer.state):
                    if leaf.shape == w.shape:
                        lies(leaf, home)


def second_order():
    def penalty(w):
        (g,) = tape.gradients(loss(w), [w], create_graph=True)
        return (g**2).sum()

    wanted = jax.grad(lambda w: (jax.grad(function)(w) ** 2).sum())(jnp.asarray(W))
    trained(tape.Variable(put(W, "data")), penalty, wanted)


def checkpoints():
    trained(tape.Variable(put(W, "data")), lambda w: (tape.checkpoint(lambda w: tnp.tanh(put(X, "data") @ w))(w) ** 2).sum())


def constraints():
    place = NamedSharding(AUTO, PartitionSpec("data", "model"))
    w = tape.Variable(put(W, "data"))
    h = tape.lax.with_sharding_constraint(tnp.tanh(put(X, "data") @ w), place)
    assert h.op.name == "with_sharding_constraint"
    lies(h, place)
    trained(w, lambda w: (tape.lax.with_sharding_constraint(tnp.tanh(put(X, "data") @ w), place) ** 2).sum())


def mapped_over_shards():
    def local(x, w):
        return jax.lax.psum((jnp.tanh(x @ w) ** 2).sum(), "data")

    specs = {"in_specs": (PartitionSpec("data"), PartitionSpec()), "out_specs": PartitionSpec()}
    lifted = interop.lift(lambda x, w: jax.shard_map(local, mesh=AUTO, **specs)(x, w))
    for w in (put(W), put(W, "data")):
        trained(tape.Variable(w), lambda w: lifted(put(X, "data"), w))
    w = tape.Variable(W)
    lifted(put(X, "data"), w).backward()
    same(w.grad.value, WANTED)

    def penalty(w):
        (g,) = tape.gradients(lifted(put(X, "data"), w), [w], create_graph=True)
        return (g**2).sum()

    trained(tape.Variable(put(W)), penalty, jax.grad(lambda w: (jax.grad(function)(w) ** 2).sum())(jnp.asarray(W)))


def transformations():
    g = tape.grad(loss)(put(W, "data"))
    same(g, WANTED)
    lies(g, NamedSharding(AUTO, PartitionSpec("data")))
    same(jax.jit(tape.grad(loss))(put(W, "data")), WANTED)
    jacobian = tape.jacrev(lambda w: tnp.tanh(put(X, "data") @ w).sum(0))(put(W, "data"))
    same(jacobian, jax.jacrev(lambda w: jnp.tanh(jnp.asarray(X) @ w).sum(0))(jnp.asarray(W)))
    w = tape.Variable(put(W, "data"))
    for _ in range(3):
        ((leaf, gradient),) = tape.stream_gradients(loss(w))
        assert leaf is w
        same(gradient.value, WANTED)
        lies(gradient, w)


def copies():
    w = copy.deepcopy(tape.Variable(put(W, "data")))
    lies(w, NamedSharding(AUTO, PartitionSpec("data")))
    trained(w)


def explicit_axes():
    x = put(X, "data", mesh=EXPLICIT)
    gathered = interop.lift(lambda w: jax.sharding.reshard(w, NamedSharding(EXPLICIT, PartitionSpec())))
    for spec, use in (((), lambda w: w), ((None, "model"), lambda w: w), (("data",), gathered)):
        w = tape.Variable(put(W, *spec, mesh=EXPLICIT))
        trained(w, lambda w, use=use: loss(use(w), x))
        assert jax.typeof(w.grad.value) == jax.typeof(w.value)
        trained(w, lambda w, use=use: (tape.checkpoint(lambda w: tnp.tanh(x @ use(w)))(w) ** 2).sum())
    with jax.set_mesh(EXPLICIT):
        trained(tape.Variable(put(W, None, "model", mesh=EXPLICIT)), lambda w: loss(w, x))
    with jax.set_mesh(AUTO):
        trained(tape.Variable(put(W, "data")))


def what_comes_back_is_compiled_by_the_second_time():
    w = tape.Variable(put(W, "data"))
    for i in range(6):
        if i == 2:
            tape.stats().reset()
        w.zero_grad()
        loss(w, tape.constant(put(X, "data"))).backward()
    assert tape.stats().interpreted == 0, tape.stats()


def numbers_beside_what_is_spread():
    """A number is put on the devices once, and not where arrays of the same structure lie elsewhere."""
    for rate in (0.5, 0.5, 0.5, 0.5, 0.25, -0.0, 0.0):
        x = tape.constant(put(X, "data"))
        found = (tnp.tanh(x) * rate).value
        same(found, np.tanh(X) * rate)
        lies(found, x)
        assert (np.signbit(np.asarray(found)) == np.signbit(np.tanh(X) * rate)).all()
    there = {value for _, sharding, _, value in numbers._ARRAYS if sharding is not None}
    assert {0.5, 0.25, "-0.0", "0.0"} <= there, there
    for devices in jax.devices()[:4], jax.devices()[:4], jax.devices()[:4], jax.devices()[4:]:  # equal types: one structure
        x = put(X, "data", mesh=jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=devices))
        tape.stats().reset()
        found = (tnp.tanh(tape.constant(x)) * 0.5).value
        same(found, np.tanh(X) * 0.5)
        lies(found, x)
    assert tape.stats().interpreted == 0, tape.stats()


def arrays_of_numpy_beside_what_is_spread():
    given = [RNG.normal(size=3) for _ in range(5)]
    buffered, jitted = buffers.jitted(taken, given, range(5)), jax.jit(taken)
    assert isinstance(buffered, buffers.Buffered)
    for spread in ([], [1], [0, 4]):
        mixed = [put(x) if i in spread else x for i, x in enumerate(given)]
        for ours, theirs in zip(buffered(*mixed), jitted(*mixed), strict=True):
            same(ours, theirs)
            lies(ours, theirs)
    w = tape.Variable(put(W, "data"))
    rows = RNG.normal(size=(4, 16))
    wanted = jax.grad(lambda w: sum(jnp.sum(jnp.tanh(r @ w)) for r in rows))(jnp.asarray(W))
    trained(w, lambda w: sum(tnp.sum(tnp.tanh(r @ w)) for r in rows), wanted)
    trained(w, tape.jit(lambda w: sum(tnp.sum(tnp.tanh(r @ w)) for r in rows)), wanted)


def functions_of_torch():
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    x = RNG.normal(size=(1024, 16))  # of a size that is not copied where it lies on one device
    trained(tape.Variable(put(x, "data")), lambda w: interop.torch.from_torch(torch.sin)(w).sum(), np.cos(x))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        try:
            globals()[name]()
            found = "passed"
        except Exception:  # noqa: BLE001 - the test says it
            found = traceback.format_exc()
        print(json.dumps([name, found]), flush=True)
