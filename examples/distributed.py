"""Sharded training
================

Train one define-by-run script on many devices: data-parallel, tensor-parallel and fully sharded, in one process or in several.

The training step below knows nothing of devices.  How it runs is said once, by how its inputs and parameters are sharded: what the tape
compiles is partitioned by XLA, gradients lie as their parameters do, and so does the state of the optimizer.  Eight CPU devices of this
machine will do to see how it works, and two processes with four each.  On several machines each process runs ``train`` after
``jax.distributed.initialize()``; all of them must record, and look at, the same things, as a pending value is computed by all together.

In JAX such a step is the same, inside of a ``jax.jit`` of everything that it changes; in PyTorch each of the three ways is a wrapper of its own
(DDP, DTensor, FSDP).  Here the sharding of the parameters is all there is to say: ``jax.device_put(x, sharding)``.

Run it with ``python examples/distributed.py``; in a notebook with ``--processes 1``, as new processes import the script.
"""

import itertools
import multiprocessing
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from experiment import Array, cpu_devices, dense, layers, options, picture
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import interop.optax
import tape

# How a batch, the weights of three layers (from inputs to outputs) and their biases are sharded on the mesh axes "data" and "model".
LAYOUTS = {
    "one device": (P(), [P()] * 3, [P()] * 3),
    "data-parallel": (P("data"), [P()] * 3, [P()] * 3),
    # The first layer is sharded by its outputs, the second one by its inputs: between them nothing is exchanged.
    "tensor-parallel": (P("data"), [P(None, "model"), P("model"), P()], [P("model"), P(), P()]),
    "fully sharded": (P(("data", "model")), [P(("data", "model"))] * 3, [P(("data", "model"))] * 3),
}

WAYS = list(LAYOUTS)[1:]


def train(parameters: Any, inputs: Any, targets: Any, steps: int) -> list[float]:
    """Train; nothing here says where."""
    optimizer = interop.optax.Optimizer(parameters, optax.adam(1e-2))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((dense(parameters, inputs) - targets) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    for state, p in zip(itertools.chain(*optimizer.state[0].mu), itertools.chain(*parameters), strict=True):
        assert p.grad.sharding.is_equivalent_to(p.sharding, p.ndim)
        assert state.sharding.is_equivalent_to(p.sharding, p.ndim)
    return [float(loss) for loss in losses]


def sharded(name: str, devices: Sequence[Any], steps: int) -> list[float]:
    """Train on so many devices, half of them along each axis of the mesh; every process draws the same numbers, and puts its own part."""
    mesh = Mesh(np.reshape(devices, (-1, 2 if len(devices) % 2 == 0 else 1)), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def put(value: Array, spec: P) -> jax.Array:
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])

    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    batch, weights, biases = LAYOUTS[name]
    start = zip(layers(rng, (16, 64, 32, 8), gain=1.0, dtype="float64"), weights, biases, strict=True)
    parameters = [(tape.Variable(put(value, w)), tape.Variable(put(bias, b))) for (value, bias), w, b in start]
    return train(parameters, put(rng.normal(size=(32, 16)), batch), put(rng.normal(size=(32, 8)), batch), steps)


def in_process(number: int, count: int, devices: int, port: int, steps: int) -> dict[str, list[float]]:
    """Train in all ways as one of ``count`` processes that have so many devices each."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Gloo says who is connected to whom
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    cpu_devices(devices)
    jax.distributed.initialize(f"localhost:{port}", count, number)
    found = {name: sharded(name, jax.devices(), steps) for name in WAYS}
    jax.distributed.shutdown()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in all ways, assert that they are what one device does, and draw both."""
    numbers: Any = {"devices": (8, "CPU devices to make"), "processes": (2, "that share them in the end"), "steps": (40, "of each way")}
    chosen = options(__doc__, arguments, "distributed.png", **numbers)
    cpu_devices(chosen.devices)
    steps = 8 if chosen.quick else chosen.steps
    wanted = sharded("one device", jax.devices()[:1], steps)
    print(f"one device: loss {wanted[0]:.4f}, after {steps} steps {wanted[-1]:.4f}")
    runs = {(name, f"{chosen.devices} devices"): sharded(name, jax.devices(), steps) for name in WAYS}
    if (count := chosen.processes) > 1:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        each = partial(in_process, count=count, devices=chosen.devices // count, port=port, steps=steps)
        with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as processes:
            found, *others = processes.map(each, range(count), timeout=300)
        assert all(losses == found for losses in others), "the processes differ"
        runs |= {(name, f"{count} processes of {chosen.devices // count} devices"): losses for name, losses in found.items()}
    with picture(chosen.output, 2, "One step, sharded in three ways") as (left, right):
        left.semilogy(wanted, label="one device")
        left.set(xlabel="step", ylabel="loss")
        for (name, where), losses in runs.items():
            distances = np.abs(np.divide(losses, wanted) - 1)
            print(f"{name:<16}{where}: loss {losses[-1]:.4f}, within {distances.max():.0e} of one device")
            assert distances.max() < 1e-12
            right.semilogy(distances + 1e-17, label=f"{name}, {where}")
        right.set(xlabel="step", ylabel="relative distance of the loss from one device's", ylim=(1e-17, 1e-11))
    assert wanted[-1] < wanted[0] / 2


if __name__ == "__main__":
    main()
