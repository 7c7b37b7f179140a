"""Bridges: training steps of models of Flax, Equinox, Diffrax and PyTorch through the tape, beside their libraries' own steps.

Losses are compared over some steps before anything is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tape
from benchmarks.report import Report, Score
from benchmarks.timing import Effort, interleave, ratio

__all__ = ["BRIDGES", "bridges"]

LIMIT = 1.2
WORST = 1.2
RATE = 1e-3
COMPARED = 8  # steps
SETTLED = 2000  # steps, at most

Step = Callable[[], Any]  # returns the loss


def _ours(model: Any, optax: Any, loss_of: Callable[[Any], Any]) -> Step:
    """Return a step of a bridge's module as users write it."""
    optimizer = importlib.import_module("interop.optax").Optimizer(model.parameters(), optax.adam(RATE))

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        return loss

    return step


def _nnx(optax: Any) -> tuple[Step, Step]:
    nnx, bridge = importlib.import_module("flax.nnx"), importlib.import_module("interop.nnx")

    class Block(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rngs: Any) -> None:
            self.embed = nnx.Embed(64, 64, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(4, 64, decode=False, rngs=rngs)
            self.norms = nnx.List([nnx.LayerNorm(64, rngs=rngs) for _ in range(2)])
            self.up, self.down = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 64, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            x = x + self.attention(self.norms[0](x), mask=nnx.make_causal_mask(tokens))
            x = x + self.dropout(self.down(jax.nn.gelu(self.up(self.norms[1](x)))))
            return self.embed.attend(x)

    tokens = jax.random.randint(jax.random.key(0), (8, 33), 0, 64)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    native = Block(nnx.Rngs(0))
    module = bridge.Module(native)
    cross = importlib.import_module("interop").lift(
        lambda logits, targets: optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
    )
    optimizer = nnx.Optimizer(native, optax.adam(RATE), wrt=nnx.Param)

    @nnx.jit  # type: ignore[untyped-decorator]
    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        def loss(model: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(model(inputs), targets).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    return _ours(module, optax, lambda model: cross(model(inputs), targets)), lambda: step(native, optimizer, inputs, targets)


def _linen(optax: Any) -> tuple[Step, Step]:
    linen, bridge = importlib.import_module("flax.linen"), importlib.import_module("interop.linen")

    class Block(linen.Module):  # type: ignore[misc, name-defined]
        @linen.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any, *, train: bool) -> Any:
            y = x
            for _ in range(2):
                y = linen.Conv(16, (3, 3), use_bias=False)(y)
                y = jax.nn.relu(linen.BatchNorm(use_running_average=not train)(y))
            return linen.Dense(4)((x + y).mean((1, 2)))

    block = Block()
    x, y = jax.random.normal(jax.random.key(0), (8, 12, 12, 16)), jax.random.normal(jax.random.key(1), (8, 4))
    variables = block.init(jax.random.key(2), x, train=False)
    module = bridge.Module(block, variables)
    transformation = optax.adam(RATE)
    held = [variables, transformation.init(variables["params"])]

    @jax.jit
    def step(variables: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(parameters: Any) -> Any:
            out, new = block.apply({**variables, "params": parameters}, x, train=True, mutable=["batch_stats"])
            return ((out - y) ** 2).mean(), new

        (value, new), gradients = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        updates, state = transformation.update(gradients, state)
        return {"params": optax.apply_updates(variables["params"], updates), **new}, state, value

    def native() -> Any:
        held[0], held[1], value = step(*held, x, y)
        return value

    return _ours(module, optax, lambda model: ((model(x, train=True, mutable=["batch_stats"])[0] - y) ** 2).mean()), native


def _filtered(optax: Any, native: Any, loss_of: Callable[..., Any], *data: Any) -> Step:
    """Return the jitted step of an Equinox module."""
    eqx = importlib.import_module("equinox")
    transformation = optax.adam(RATE)
    held = [native, transformation.init(eqx.filter(native, eqx.is_inexact_array))]

    @eqx.filter_jit  # type: ignore[untyped-decorator]
    def step(model: Any, state: Any, *data: Any) -> Any:
        value, gradients = eqx.filter_value_and_grad(loss_of)(model, *data)
        updates, state = transformation.update(gradients, state)
        return eqx.apply_updates(model, updates), state, value

    def run() -> Any:
        held[0], held[1], value = step(*held, *data)
        return value

    return run


def _equinox(optax: Any) -> tuple[Step, Step]:
    eqx, bridge = (importlib.import_module(name) for name in ("equinox", "interop.equinox"))
    native = eqx.nn.MLP(32, 8, 256, 3, key=jax.random.key(0))
    x, y = jax.random.normal(jax.random.key(1), (128, 32)), jax.random.normal(jax.random.key(2), (128, 8))
    batch = tape.vmap(module := bridge.Module(native))
    theirs = _filtered(optax, native, lambda m, x, y: ((jax.vmap(m)(x) - y) ** 2).mean(), x, y)
    return _ours(module, optax, lambda _: ((batch(x) - y) ** 2).mean()), theirs


def _diffrax(optax: Any) -> tuple[Step, Step]:
    eqx, diffrax, bridge = (importlib.import_module(name) for name in ("equinox", "diffrax", "interop.equinox"))

    class Model(eqx.Module):  # type: ignore[misc, name-defined]
        field: Any

        def __call__(self, times: Any, start: Any) -> Any:
            term, saved = diffrax.ODETerm(lambda _, y, __: self.field(y)), diffrax.SaveAt(ts=times)
            return diffrax.diffeqsolve(term, diffrax.Tsit5(), times[0], times[-1], 0.1, start, saveat=saved, max_steps=64).ys

    native = Model(eqx.nn.MLP(2, 2, 64, 2, activation=jnp.tanh, key=jax.random.key(0)))
    times, start = jnp.linspace(0.0, 2.0, 9), jnp.array([1.0, -0.5])
    goal = jnp.stack([jnp.cos(times), jnp.sin(times)], 1)
    theirs = _filtered(optax, native, lambda m, t, s, g: ((m(t, s) - g) ** 2).mean(), times, start, goal)
    return _ours(bridge.Module(native), optax, lambda model: ((model(times, start) - goal) ** 2).mean()), theirs


def _gpt2(optax: Any) -> tuple[Step, Step]:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=4, n_head=4, n_embd=256, n_positions=64, vocab_size=1000, bos_token_id=0, eos_token_id=0, **dropout
    )
    native = transformers.GPT2LMHeadModel(config).train()
    module = importlib.import_module("interop.torch").from_torch(native)
    tokens = np.random.default_rng(0).integers(0, 1000, (8, 64))
    adam, given = torch.optim.Adam(native.parameters(), lr=RATE), torch.from_numpy(tokens)

    def theirs() -> Any:
        adam.zero_grad()
        loss = native(input_ids=given, labels=given).loss
        loss.backward()
        adam.step()
        return loss.detach()

    return _ours(module, optax, lambda model: model(input_ids=tokens, labels=tokens).loss), theirs


BRIDGES: dict[str, Callable[[Any], tuple[Step, Step]]] = {
    "Flax NNX transformer block": _nnx,
    "Flax Linen ResNet block": _linen,
    "Equinox MLP": _equinox,
    "Diffrax solve": _diffrax,
    "Hugging Face GPT-2": _gpt2,
}


def _settle(step: Step) -> None:
    """Run a step of the tape until a compiled program does it."""
    stats = tape.stats()
    for _ in range(SETTLED):
        hits = stats.hits
        _wait(step())
        if stats.hits > hits:
            break


def _value(loss: Any) -> Any:
    return loss.value if isinstance(loss, tape.Variable) else loss


def _wait(loss: Any) -> None:
    jax.block_until_ready(_value(loss))


def bridges(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Compare steps through the tape with those of the libraries."""
    found: dict[str, float] = {}
    rows = []
    for name, make in BRIDGES.items():
        if chosen and name not in chosen:
            continue
        try:
            ours, native = make(importlib.import_module("optax"))
        except ImportError as e:
            print(f"{name}: left out ({e})")
            continue
        losses = [(float(_value(ours())), float(native())) for _ in range(COMPARED)]
        _settle(ours)
        mine, theirs = np.array(losses).T
        if not np.allclose(mine, theirs, rtol=1e-3):
            report.failed(f"bridges: {name}: losses {mine}, the library's {theirs}")
        times = interleave({"tape": (ours, _wait), "library": (native, _wait)}, effort)
        found[name] = ratio(times["tape"], times["library"]).median
        rows.append(
            {
                "": name,
                "tape us": times["tape"].spread.median,
                "library us": times["library"].spread.median,
                "tape / library": found[name],
            }
        )
    report.tabled("bridges", "a training step, Adam", rows)
    if found:
        report.scored("bridges", Score("tape / library, a training step", found, LIMIT, WORST))
