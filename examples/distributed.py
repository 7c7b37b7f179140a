"""Train one define-by-run script on many devices: data-parallel, tensor-parallel and fully sharded, in one process or in several.

The training step below knows nothing of devices.  How it runs is said once, by how its inputs and parameters are sharded
(``jax.device_put(x, NamedSharding(mesh, PartitionSpec(...)))``): what the tape compiles is partitioned by XLA, gradients lie as their
parameters do, and so does the state of the optimizer.  CPU devices of this machine will do to see how it works.

    python examples/distributed.py                # eight devices, then two processes with four each
    python examples/distributed.py --processes 1  # no further processes

On several machines each process runs ``train`` after ``jax.distributed.initialize()``.  All of them must record, and look at, the same things:
a pending value that is looked at is computed then, by all processes together.

In JAX such a step is the same, inside of a ``jax.jit`` of everything that it changes; in PyTorch each of the three ways is a wrapper of its own
(DDP, DTensor, FSDP).  Here the sharding of the parameters is all there is to say: ``jax.device_put(x, sharding)``.
"""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import optax
from experiment import options, picture
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import interop.optax
import tape
import tape.numpy as tnp

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]
WIDTHS = (16, 64, 32, 8)


class Layout(NamedTuple):
    """How a batch, weights (from inputs to outputs) and biases are sharded on the mesh axes "data" and "model"."""

    batch: PartitionSpec
    weights: Sequence[PartitionSpec]
    biases: Sequence[PartitionSpec]


P = PartitionSpec
LAYOUTS = {
    "data-parallel": Layout(P("data"), [P()] * 3, [P()] * 3),
    # The first layer is sharded by its outputs, the second one by its inputs: between them nothing is exchanged.
    "tensor-parallel": Layout(P("data"), [P(None, "model"), P("model"), P()], [P("model"), P(), P()]),
    "fully sharded": Layout(P(("data", "model")), [P(("data", "model"))] * 3, [P(("data", "model"))] * 3),
}


def network(parameters: Sequence[tuple[Any, Any]], x: Any) -> Any:
    """A network of three layers."""
    for weights, bias in parameters[:-1]:
        x = tnp.tanh(x @ weights + bias)
    weights, bias = parameters[-1]
    return x @ weights + bias


def train(parameters: Any, batch: tuple[Any, Any], steps: int) -> list[float]:
    """Train; nothing here says where."""
    optimizer = interop.optax.Optimizer(parameters, optax.adam(1e-2))
    inputs, targets = batch
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((network(parameters, inputs) - targets) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    for p in tape_leaves(parameters):
        assert p.grad.sharding.is_equivalent_to(p.sharding, p.ndim)
    for state, p in zip(optimizer.state[0].mu, parameters, strict=True):
        assert all(s.sharding.is_equivalent_to(q.sharding, q.ndim) for s, q in zip(state, p, strict=True))
    return [float(loss) for loss in losses]


def tape_leaves(parameters: Any) -> list[Any]:
    """Return the Variables of a list of pairs."""
    return [p for pair in parameters for p in pair]


def numbers() -> tuple[list[tuple[Array, Array]], tuple[Array, Array]]:
    """Draw the parameters and a batch, the same ones in every process."""
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(a, b)) / a**0.5, np.zeros(b)) for a, b in itertools.pairwise(WIDTHS)]
    return layers, (rng.normal(size=(32, WIDTHS[0])), rng.normal(size=(32, WIDTHS[-1])))


def put(value: Array, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """Shard a value that every process has; each puts its own part on its own devices."""
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])


def sharded(layout: Layout, mesh: Mesh, steps: int) -> list[float]:
    """Train, sharded so."""
    layers, batch = numbers()
    parameters = [
        (tape.Variable(put(weights, mesh, w)), tape.Variable(put(bias, mesh, b)))
        for (weights, bias), w, b in zip(layers, layout.weights, layout.biases, strict=True)
    ]
    inputs, targets = (put(x, mesh, layout.batch) for x in batch)
    return train(parameters, (inputs, targets), steps)


def alone(steps: int) -> list[float]:
    """Train on one device."""
    layers, (inputs, targets) = numbers()
    parameters = [(tape.Variable(weights), tape.Variable(bias)) for weights, bias in layers]
    return train(parameters, (tape.constant(inputs), tape.constant(targets)), steps)


def mesh_of_all() -> Mesh:
    """Return all devices of all processes, half of them along each axis."""
    model = 2 if jax.device_count() % 2 == 0 else 1
    return jax.make_mesh((jax.device_count() // model, model), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def distance(found: Sequence[float], wanted: Sequence[float]) -> float:
    """The greatest relative difference between two runs."""
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))


def in_processes(count: int, devices: int, steps: int) -> dict[str, list[float]]:
    """Run this script in several processes with so many devices each; return what all of them found."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--devices", str(devices), "--steps", str(steps), "--processes", str(count), "--port", str(port)]
    running = [
        subprocess.Popen([*command, "--number", str(i)], stdout=subprocess.PIPE, text=True)  # noqa: S603 - this file
        for i in range(count)
    ]
    try:
        printed = [process.communicate(timeout=300)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        msg = f"a process failed: exit codes {[process.returncode for process in running]}"
        raise RuntimeError(msg)
    found: list[dict[str, list[float]]] = [json.loads(text.splitlines()[-1]) for text in printed]
    assert all(losses == found[0] for losses in found), "the processes differ"
    return found[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in all ways, assert that they are what one device does, and draw both."""
    numbers: Any = {
        "devices": (8, "CPU devices to make of this machine"),
        "processes": (2, "processes that share them in the end"),
        "steps": (40, "steps of each way"),
        "number": (-1, "of this process; the script gives it to those that it starts"),
        "port": (0, "of the first process, likewise"),
    }
    chosen = options(__doc__, arguments, "distributed.png", **numbers)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", chosen.devices)  # before JAX makes its first array
    jax.config.update("jax_enable_x64", True)
    steps = 8 if chosen.quick else chosen.steps
    if chosen.number >= 0:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{chosen.port}", chosen.processes, chosen.number)
        print(json.dumps({name: sharded(layout, mesh_of_all(), steps) for name, layout in LAYOUTS.items()}))
        return
    wanted = alone(steps)
    print(f"one device: loss {wanted[0]:.4f}, after {steps} steps {wanted[-1]:.4f}")
    every = {(name, f"{chosen.devices} devices"): sharded(layout, mesh_of_all(), steps) for name, layout in LAYOUTS.items()}
    if chosen.processes > 1:
        where = f"{chosen.processes} processes of {chosen.devices // chosen.processes} devices"
        found = in_processes(chosen.processes, chosen.devices // chosen.processes, steps)
        every |= {(name, where): losses for name, losses in found.items()}
    for (name, where), losses in every.items():
        print(f"{name:<16}{where}: loss {losses[-1]:.4f}, within {distance(losses, wanted):.0e} of one device")
        assert distance(losses, wanted) < 1e-12
    assert wanted[-1] < wanted[0] / 2
    with picture(chosen.output, 2, "One step, sharded in three ways") as (left, right):
        left.semilogy(wanted, label="one device")
        left.set(xlabel="step", ylabel="loss")
        for (name, where), losses in every.items():
            right.semilogy([abs(a / b - 1) + 1e-17 for a, b in zip(losses, wanted, strict=True)], label=f"{name}, {where}")
        right.set(xlabel="step", ylabel="relative distance of the loss from one device's", ylim=(1e-17, 1e-11))


if __name__ == "__main__":
    main()
