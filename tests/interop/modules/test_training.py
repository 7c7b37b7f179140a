"""Models of Flax NNX, Flax Linen and Equinox, trained through the tape step by step as their own libraries train them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop
import tape
import tape.extend
from tape.callables.reach import Reach

nnx = pytest.importorskip("flax.nnx")
linen = pytest.importorskip("flax.linen")
eqx = pytest.importorskip("equinox")

STEPS = 20


class Transformer(nnx.Module):
    """One block with attention, dropout and an embedding that is also the head (tied weights)."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(11, 8, rngs=rngs, param_dtype=jnp.float64)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs, param_dtype=jnp.float64, dropout_rate=0.1)
        self.norm = nnx.LayerNorm(8, rngs=rngs, param_dtype=jnp.float64)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(tokens))
        return self.embed.attend(self.dropout(x))


class ResNetBlock(linen.Module):
    """A convolution with batch norm and a residual connection."""

    @linen.compact
    def __call__(self, x, *, train):
        y = linen.Conv(3, (3, 3), param_dtype=jnp.float64)(x)
        y = linen.BatchNorm(use_running_average=not train, param_dtype=jnp.float64)(y)
        y = linen.Dropout(0.25, deterministic=not train)(jax.nn.relu(y))
        return linen.Dense(2, param_dtype=jnp.float64)((x + y).mean((1, 2)))


def _near(found, wanted):
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=1e-9)


def _trained(parameters, transformation, loss_of):
    optimizer = interop.optax.Optimizer(parameters, transformation)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().numpy())
    return losses


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def test_an_nnx_transformer():
    tokens = jax.random.randint(jax.random.key(0), (3, 7), 0, 11)
    native = Transformer(nnx.Rngs(1))
    native.train()
    ours = interop.nnx.Module(native)
    optimizer = nnx.Optimizer(native, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:]).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    cross = interop.lift(lambda logits: optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean())
    wanted = [step(native, optimizer) for _ in range(STEPS)]
    _near(_trained(ours.parameters(), optax.adam(1e-2), lambda _: cross(ours(tokens[:, :-1]))), wanted)
    after = ours.unwrap()
    # Adam makes steps of the rounding errors of gradients that are zero (of the keys' bias).
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
    jax.tree.map(close, _numbers(nnx.state(after)), _numbers(nnx.state(native)))
    native.eval()
    ours.eval()
    _near(ours(tokens).detach(), native(tokens))


def _numbers(state):
    """Make numbers of random keys."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, state)


def test_a_linen_block():
    block = ResNetBlock()
    x = jax.random.normal(jax.random.key(0), (4, 5, 5, 3), jnp.float64)
    y = jax.random.normal(jax.random.key(1), (4, 2), jnp.float64)
    variables = block.init(jax.random.key(2), x, train=False)
    ours = interop.linen.Module(block, variables)
    transformation = optax.sgd(0.1, momentum=0.9)
    state = transformation.init(variables["params"])

    @jax.jit
    def step(variables, state, key):
        def loss(params):
            out, new = block.apply({**variables, "params": params}, x, train=True, mutable=["batch_stats"], rngs={"dropout": key})
            return ((out - y) ** 2).mean(), new

        (value, new), gradients = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        updates, state = transformation.update(gradients, state)
        return {"params": optax.apply_updates(variables["params"], updates), **new}, state, value

    keys = jax.random.split(jax.random.key(3), STEPS)
    wanted = []
    for key in keys:
        variables, state, value = step(variables, state, key)
        wanted.append(value)

    def loss_of(i):
        out, _ = ours(x, train=True, mutable=["batch_stats"], rngs={"dropout": keys[i]})
        return ((out - y) ** 2).mean()

    _near(_trained(ours.parameters(), transformation, loss_of), wanted)
    module, after = ours.unwrap()
    assert module is block
    jax.tree.map(_near, after, variables)
    _near(ours(x, train=False).detach(), block.apply(variables, x, train=False))


@pytest.mark.parametrize("compiled", [False, True])
def test_an_equinox_mlp(compiled):
    native = eqx.nn.MLP(3, 2, 8, 2, key=jax.random.key(0), dtype=jnp.float64)
    x = jax.random.normal(jax.random.key(1), (6, 3), jnp.float64)
    ours = interop.equinox.Module(native)
    transformation = optax.adamw(1e-2)
    state = transformation.init(eqx.filter(native, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        value, gradients = eqx.filter_value_and_grad(lambda m: (jax.vmap(m)(x) ** 2).mean())(model)
        updates, state = transformation.update(gradients, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    wanted = []
    for _ in range(STEPS):
        native, state, value = step(native, state)
        wanted.append(value)
    batch = tape.vmap(ours)
    loss_of = lambda _: (batch(x) ** 2).mean()  # noqa: E731
    _near(_trained(ours.parameters(), transformation, tape.jit(loss_of) if compiled else loss_of), wanted)
    jax.tree.map(_near, eqx.filter(ours.unwrap(), eqx.is_inexact_array), eqx.filter(native, eqx.is_inexact_array))


def test_equinox_state_goes_through():
    class Model(eqx.Module):
        linear: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

        def __init__(self, key):
            self.linear = eqx.nn.Linear(3, 4, key=key, dtype=jnp.float64)
            self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch", dtype=jnp.float64)

        def __call__(self, x, state):
            return self.norm(self.linear(x), state)

    native, start = eqx.nn.make_with_state(Model)(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (6, 3), jnp.float64)
    ours = interop.equinox.Module(native)
    axes = {"axis_name": "batch", "in_axes": (0, None), "out_axes": (0, None)}
    state, mine = start, start
    for _ in range(3):
        wanted, state = jax.vmap(native, **axes)(x, state)
        found, mine = tape.vmap(ours, **axes)(x, mine)
        _near(found.detach(), wanted)

    for a, b in zip(jax.tree.leaves(mine, is_leaf=tape.extend.is_variable), jax.tree.leaves(state), strict=True):
        _near(a, b)
    quiet = ours.inference_mode()
    assert quiet.linear.weight is ours.linear.weight
    assert quiet.norm.inference
    assert not ours.norm.inference
    _near(tape.vmap(quiet, **axes)(x, mine)[0].detach(), jax.vmap(eqx.nn.inference_mode(native), **axes)(x, state)[0])


def test_a_batch_of_an_equinox_module_is_traced_once():
    traced = []

    class Counting(eqx.Module):
        linear: eqx.nn.Linear

        def __call__(self, x, *, scale):
            traced.append(x.shape)
            return scale * self.linear(x)

        def twice(self, x):
            traced.append(x.shape)
            return 2 * self.linear(x)

    native = Counting(eqx.nn.Linear(3, 2, key=jax.random.key(0), dtype=jnp.float64))
    ours = interop.equinox.Module(native)
    x, scale = jnp.arange(12.0).reshape(3, 4), jnp.arange(4.0)
    batch, twice = tape.vmap(ours, in_axes=1, out_axes=1), tape.vmap(ours.twice, in_axes=1)
    for _ in range(3):
        ours.linear.weight.zero_grad()
        y = batch(x, scale=scale)
        assert y.op.name == "vmap(Counting)"
        ((y + twice(x).T) ** 2).sum().backward()
    assert traced == [(3,), (3,)]

    def loss(linear):
        module = Counting(linear)
        return ((jax.vmap(lambda x, s: module(x, scale=s), (1, 0), 1)(x, scale) + jax.vmap(module.twice, 1)(x).T) ** 2).sum()

    _near(ours.linear.weight.grad, eqx.filter_grad(loss)(native.linear).weight)


def test_a_step_looks_for_its_state_in_a_module_and_not_in_what_the_bridge_calls():
    module = interop.nnx.Module(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))

    def step(x):
        return module(x).sum()

    step(np.ones((1, 2), "float32"))
    reached = Reach([step])
    assert {id(p) for p in jax.tree.leaves(module.parameters(), is_leaf=tape.extend.is_variable)} <= reached.variables.keys()
    assert not any(h.place.at is nnx.split.__globals__ for h in reached.holders)
