"""Train on several devices at once, and add gradients up across them while the sweep still runs.

Every device holds a copy of the parameters and a part of the batch.  ``tape.stream_gradients`` gives each parameter as soon as the devices'
own gradients of it are final, last layers first; their mean over the devices (an all-reduce) and the update are started then, while the
sweep goes on to earlier layers.  Both ways have to give what one device makes of the whole batch.  Any number of CPU devices will do to see
how it works; the gain is that of a slow network.

In JAX a gradient is there when all are: what overlaps is left to XLA's scheduler.  PyTorch has it in a wrapper (DistributedDataParallel) that
groups parameters into buckets by hooks of its own.  Here it is a loop over ``tape.stream_gradients(losses)``.

    python examples/data_parallel.py --devices 2
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from experiment import options, picture, progress
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tape
import tape.numpy as tnp

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]
RATE = 0.05


def initialise(seed: int, layers: int, width: int, sharding: NamedSharding) -> list[Any]:
    """Draw the weights of a deep network, one copy for each device: the first axis is that of the devices."""
    rng = np.random.default_rng(seed)
    count = sharding.mesh.devices.size
    parameters = []
    for i in range(layers):
        weights = rng.normal(size=(1, width, width)) * (1 / width) ** 0.5
        for name, value in ((f"layer {i + 1}", weights), (f"bias {i + 1}", np.zeros((1, 1, width)))):
            copies = np.broadcast_to(value, (count, *value.shape[1:])).astype(np.float32)
            parameters.append(tape.Variable(jax.device_put(copies, sharding), name=name))
    return parameters


def losses_of(parameters: Sequence[Any], inputs: Any, targets: Any) -> Any:
    """The loss on each device, of its own part of the batch: nothing here crosses from one to another."""
    h = inputs
    for weights, bias in zip(parameters[::2], parameters[1::2], strict=True):
        h = tnp.tanh(h @ weights + bias)
    return ((h - targets) ** 2).mean((1, 2))


@jax.jit
def mean(*parts: Any) -> Any:
    """The mean of what the devices have, on one of them."""
    return sum(parts[1:], start=parts[0]) / len(parts)


def all_reduce(own: Any) -> Any:
    """Start to give every device the mean of what all have; nobody waits for it.

    It copies to one device and back: on CPU, collectives of XLA would hold threads that the sweep needs, while they wait for each other
    (on accelerators, ``jax.lax.pmean`` in a ``jax.shard_map`` is the way).
    """
    shards = own.addressable_shards
    total = mean(*[jax.device_put(shard.data, shards[0].device) for shard in shards])
    return jax.make_array_from_single_device_arrays(own.shape, own.sharding, [jax.device_put(total, shard.device) for shard in shards])


@jax.jit
def descend(value: Any, gradient: Any) -> Any:
    """One step of gradient descent."""
    return value - RATE * gradient


def overlapped(parameters: Sequence[Any], batch: tuple[Any, Any]) -> int:
    """Take a step; return how many means were there when the last gradient came."""
    losses = losses_of(parameters, *batch)
    under_way = []
    last = None
    for parameter, gradient in tape.stream_gradients(losses, np.ones(losses.shape, np.float32)):
        under_way.append(all_reduce(gradient.value))
        parameter.value = descend(parameter.value, under_way[-1])
        last = gradient.value
    jax.block_until_ready(last)
    return sum(mean.is_ready() for mean in under_way)


def after_the_sweep(parameters: Sequence[Any], batch: tuple[Any, Any]) -> int:
    """Take a step that adds up once everything is swept."""
    losses = losses_of(parameters, *batch)
    losses.backward(np.ones(losses.shape, np.float32))
    jax.block_until_ready([p.grad.value for p in parameters])
    for parameter in reversed(parameters):
        parameter.value = descend(parameter.value, all_reduce(parameter.grad.value))
        parameter.zero_grad()
    return 0


def alone(seed: int, layers: int, width: int, batch: tuple[Any, Any], steps: int) -> list[Any]:
    """What one device makes of the whole batch, in plain JAX: the parameters after training."""
    inputs, targets = (x.reshape(-1, width) for x in batch)
    own = NamedSharding(Mesh(np.asarray(jax.devices()[:1]), "devices"), PartitionSpec("devices"))
    values = [p.value[0] for p in initialise(seed, layers, width, own)]

    def loss(values: list[Any]) -> Any:
        h = inputs
        for weights, bias in zip(values[::2], values[1::2], strict=True):
            h = jnp.tanh(h @ weights + bias)
        return ((h - targets) ** 2).mean()

    for _ in range(steps):
        values = [v - RATE * g for v, g in zip(values, jax.jit(jax.grad(loss))(values), strict=True)]
    return values


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in both ways, assert that both agree with one device, and draw how long steps took."""
    numbers: Any = {"devices": (2, "CPU devices to make of this machine"), "steps": (12, "steps of each way")}
    chosen = options(__doc__, arguments, "data_parallel.png", **numbers)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", chosen.devices)  # before JAX makes its first array
    layers, width, part = (3, 16, 8) if chosen.quick else (8, 512, 256)
    sharding = NamedSharding(Mesh(np.asarray(jax.devices()), "devices"), PartitionSpec("devices"))
    rng = np.random.default_rng(chosen.seed + 1)
    data = rng.normal(size=(2, chosen.devices, part, width)).astype(np.float32)
    batch: tuple[Any, Any] = tuple(jax.device_put(x, sharding) for x in data)  # type: ignore[assignment]
    print(f"{chosen.devices} devices: {', '.join(map(str, jax.devices()))}")
    expected = alone(0, layers, width, (data[0], data[1]), chosen.steps)
    taken: dict[str, list[float]] = {}
    for name, step in (("overlapped", overlapped), ("after the sweep", after_the_sweep)):
        parameters = initialise(0, layers, width, sharding)
        taken[name], done = [], 0
        for _ in progress(range(chosen.steps), name):
            start = time.perf_counter()
            done = step(parameters, batch)
            jax.block_until_ready([p.value for p in parameters])
            taken[name].append(1e3 * (time.perf_counter() - start))
        distance = max(float(np.abs(p.numpy() - np.asarray(e)).max()) for p, e in zip(parameters, expected, strict=True))
        settled = min(taken[name][len(taken[name]) // 2 :])
        print(f"{name:<16}{settled:8.1f} ms a step at best, {done:>3} of {len(parameters)} all-reduces done when the last gradient came;")
        print(f"{'':<16}all devices within {distance:.0e} of one device alone")
        assert distance < 1e-6
    with picture(chosen.output, 1, f"A step on {chosen.devices} devices") as (axes,):
        for name, times in taken.items():
            axes.plot(times, "o-", label=f"all-reduces {name}")
        axes.set(xlabel="step", ylabel="milliseconds", yscale="log")


if __name__ == "__main__":
    main()
