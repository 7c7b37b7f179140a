"""Data parallelism during the sweep
=================================

Train on several devices at once, and add gradients up across them while the sweep still runs.

Every device holds a copy of the parameters and a part of the batch.  ``tape.stream_gradients`` gives each parameter as soon as the devices'
own gradients of it are final, last layers first; their mean over the devices (an all-reduce) and the update are started then, while the
sweep goes on to earlier layers.  Both ways have to give what one device makes of the whole batch.

In JAX a gradient is there when all are: what overlaps is left to XLA's scheduler.  PyTorch has it in a wrapper (DistributedDataParallel) that
groups parameters into buckets by hooks of its own.  Here it is a loop over ``tape.stream_gradients(losses)``.

Run it with ``python examples/data_parallel.py --devices 2``.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from experiment import Array, cpu_devices, dense, layers, options, picture, progress
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tape
import tape.numpy as tnp

RATE = 0.05


def losses_of(parameters: Sequence[Any], inputs: Any, targets: Any) -> Any:
    """The loss on each device, of its own part of the batch: nothing here crosses from one to another."""
    outputs = dense(list(zip(parameters[::2], parameters[1::2], strict=True)), inputs)
    return ((tnp.tanh(outputs) - targets) ** 2).mean((1, 2))


def all_reduce(own: Any) -> Any:
    """Start to give every device the mean of what all have; nobody waits for it.

    It copies to one device and back: on CPU, collectives of XLA would hold threads that the sweep needs, while they wait for each other
    (on accelerators, ``jax.lax.pmean`` in a ``jax.shard_map`` is the way).
    """
    shards = own.addressable_shards
    mean = sum(jax.device_put(shard.data, shards[0].device) for shard in shards) / len(shards)
    return jax.make_array_from_single_device_arrays(own.shape, own.sharding, [jax.device_put(mean, shard.device) for shard in shards])


def overlapped(_: Sequence[Any], losses: Any) -> int:
    """Take a step; return how many means were there when the last gradient came."""
    under_way = []
    for parameter, gradient in tape.stream_gradients(losses, np.ones(losses.shape, np.float32)):
        under_way.append(all_reduce(gradient.value))
        parameter.value = parameter.value - RATE * under_way[-1]
    gradient.block_until_ready()
    return sum(mean.is_ready() for mean in under_way)


def after_the_sweep(parameters: Sequence[Any], losses: Any) -> int:
    """Take a step that adds up once everything is swept."""
    losses.backward(np.ones(losses.shape, np.float32))
    jax.block_until_ready([p.grad.value for p in parameters])
    for parameter in reversed(parameters):
        parameter.value = parameter.value - RATE * all_reduce(parameter.grad.value)
        parameter.zero_grad()
    return 0


def train(
    step: Callable[..., int], devices: Sequence[Any], start: Sequence[Array], data: Array, steps: int
) -> tuple[Any, list[float], int]:
    """Train a copy of the network on each device; return the weights, how long steps took, and what the last one returned."""
    sharding = NamedSharding(Mesh(np.asarray(devices), "devices"), PartitionSpec("devices"))  # by the first axis
    parameters = [tape.Variable(jax.device_put(np.stack([value] * len(devices)), sharding)) for value in start]
    batch = jax.device_put(data.reshape(2, len(devices), -1, data.shape[-1]), NamedSharding(sharding.mesh, PartitionSpec(None, "devices")))
    taken, done = [], 0
    for _ in progress(range(steps), step.__name__.replace("_", " ")):
        begun = time.perf_counter()
        done = step(parameters, losses_of(parameters, *batch))
        jax.block_until_ready([p.value for p in parameters])
        taken.append(1e3 * (time.perf_counter() - begun))
    return parameters, taken, done


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in both ways, assert that both agree with one device, and draw how long steps took."""
    numbers: Any = {"devices": (2, "CPU devices to make of this machine"), "steps": (12, "steps of each way")}
    chosen = options(__doc__, arguments, "data_parallel.png", **numbers)
    cpu_devices(chosen.devices)
    devices = jax.devices()
    print(f"{chosen.devices} devices: {', '.join(map(str, devices))}")
    count, width, part = (3, 16, 8) if chosen.quick else (8, 512, 256)
    rng = np.random.default_rng(chosen.seed)
    data = rng.normal(size=(2, chosen.devices * part, width)).astype(np.float32)
    start = [value for w, b in layers(rng, [width] * (count + 1), gain=1.0) for value in (w, b[None])]
    alone, _, _ = train(after_the_sweep, devices[:1], start, data, chosen.steps)
    with picture(chosen.output, 1, f"A step on {chosen.devices} devices") as (axes,):
        for step in (overlapped, after_the_sweep):
            name = step.__name__.replace("_", " ")
            parameters, taken, done = train(step, devices, start, data, chosen.steps)
            distance = max(float(np.abs(p.numpy() - one.numpy()).max()) for p, one in zip(parameters, alone, strict=True))
            print(f"{name:<16}{min(taken):8.1f} ms a step at best, {done:>3} of {len(start)} all-reduces done when the last gradient came;")
            print(f"{'':<16}all devices within {distance:.0e} of one device alone")
            assert distance < 1e-6
            axes.plot(taken, "o-", label=f"all-reduces {name}")
        axes.set(xlabel="step", ylabel="milliseconds", yscale="log")


if __name__ == "__main__":
    main()
