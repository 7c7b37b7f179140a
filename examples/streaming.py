"""Update parameters while the sweep still runs, and draw when what happened.

``tape.stream_gradients`` gives each parameter as soon as nothing that is still to be swept adds to its gradient, last layers first.  Here
every parameter is handed, as it comes, to a thread that waits for its gradient, sends it over a slow link and updates the parameter, while
the sweep goes on to earlier layers.  The same training with ``backward()`` and the updates after it gives the same parameters, later.

In JAX a compiled gradient is there as a whole; in PyTorch a hook on each parameter does the same, one call for each op.  Here it is a loop over
``tape.stream_gradients(loss)``.

    python examples/streaming.py --output streaming.png
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from experiment import options, progress
from matplotlib import pyplot as plt

import tape
import tape.numpy as tnp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

Array = np.ndarray[Any, Any]
Step = tuple["Variables", Array, Array, "Server"]
Variables = list[Any]


@dataclass
class Event:
    """What became of one parameter in one step: when it was handed out, its gradient was there, and its value was replaced."""

    name: str
    came: float
    ready: float
    updated: float


class Clock:
    """Milliseconds since it was made."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def now(self) -> float:
        """Return the time."""
        return 1e3 * (time.perf_counter() - self.start)


class Server:
    """Momentum descent in NumPy on the other side of a link, of which the sweep knows nothing; the link is played by sleeping.

    Args:
        parameters: the Variables to update.
        link: gigabytes that the link carries in a second.

    """

    def __init__(self, parameters: Sequence[Any], link: float) -> None:
        self.link = link
        self.velocities = {id(p): np.zeros(p.shape, np.float32) for p in parameters}

    def update(self, parameter: Any, gradient: Array) -> None:
        """Send a gradient, and replace the parameter's value; entries recorded before keep the old one."""
        time.sleep(gradient.nbytes / (1e9 * self.link))
        velocity = self.velocities[id(parameter)]
        velocity *= np.float32(0.9)
        velocity += gradient
        parameter.value = np.asarray(parameter.value) - np.float32(0.01) * velocity


def initialise(seed: int, layers: int, width: int) -> Variables:
    """Draw the weights of a deep network; biases start at zero."""
    rng = np.random.default_rng(seed)
    parameters = []
    for i in range(layers):
        weights = rng.normal(size=(width, width)) * (1 / width) ** 0.5
        parameters.append(tape.Variable(weights.astype(np.float32), name=f"layer {i + 1}"))
        parameters.append(tape.Variable(np.zeros(width, np.float32), name=f"bias {i + 1}"))
    return parameters


def loss_of(parameters: Variables, inputs: Array, targets: Array) -> Any:
    """Mean squared error of a network of tanh layers."""
    h: Any = inputs
    for weights, bias in zip(parameters[::2], parameters[1::2], strict=True):
        h = tnp.tanh(h @ weights + bias)
    return ((h - targets) ** 2).mean()


def streamed(step: Step, watch: ThreadPoolExecutor, link: ThreadPoolExecutor) -> list[Event]:
    """One step in which each gradient is sent when it is final."""
    parameters, inputs, targets, server = step
    clock = Clock()

    def send(parameter: Any, gradient: Array, came: float, ready: float) -> Event:
        server.update(parameter, gradient)
        return Event(parameter.name, came, ready, clock.now())

    def wait(parameter: Any, gradient: Any, came: float) -> Future[Event]:
        array = np.asarray(gradient.value)
        return link.submit(send, parameter, array, came, clock.now())

    stream = tape.stream_gradients(loss_of(parameters, inputs, targets))
    return [f.result().result() for f in [watch.submit(wait, p, g, clock.now()) for p, g in stream]]


def swept_first(step: Step, _: ThreadPoolExecutor, link: ThreadPoolExecutor) -> list[Event]:
    """One step in which gradients are sent after the sweep."""
    parameters, inputs, targets, server = step
    clock = Clock()
    loss_of(parameters, inputs, targets).backward()
    jax.block_until_ready([p.grad.value for p in parameters])
    ready = clock.now()

    def send(parameter: Any) -> Event:
        server.update(parameter, parameter.grad.numpy())
        parameter.zero_grad()
        return Event(parameter.name, ready, ready, clock.now())

    return [f.result() for f in [link.submit(send, p) for p in reversed(parameters)]]


def train(
    how: Callable[[Step, ThreadPoolExecutor, ThreadPoolExecutor], list[Event]], step: Step, count: int
) -> tuple[list[float], list[Event]]:
    """Take steps; return how long each took, in milliseconds, and the events of the quickest of the later ones."""
    times: list[float] = []
    best: list[Event] = []
    with ThreadPoolExecutor(1) as watch, ThreadPoolExecutor(1) as link:
        for k in progress(range(count), how.__name__.replace("_", " ")):
            start = time.perf_counter()
            events = how(step, watch, link)
            times.append(1e3 * (time.perf_counter() - start))
            if k >= count // 2 and times[-1] <= min(times[count // 2 :]):
                best = events
    return times, best


def early(events: Iterable[Event]) -> float:
    """Share of the updates that were done before the last gradient was there."""
    listed = list(events)
    end = max(e.ready for e in listed)
    return sum(e.updated < end for e in listed) / len(listed)


def draw(events: Sequence[Event], after: Sequence[Event], output: Path) -> None:
    """Save the timelines of a streamed step and of one that sweeps first."""
    figure, axes = plt.subplots(2, 1, figsize=(10, 9), sharex=True, layout="constrained")
    for ax, listed, title in zip(axes, (events, after), ("updates while the sweep runs", "updates after the sweep"), strict=True):
        rows = range(len(listed))
        ax.barh(rows, [e.ready - e.came for e in listed], left=[e.came for e in listed], color="tab:blue", label="gradient under way")
        ax.barh(rows, [e.updated - e.ready for e in listed], left=[e.ready for e in listed], color="tab:orange", label="sent and updated")
        ax.axvline(max(e.ready for e in listed), color="gray", linestyle=":", label="last gradient is there")
        ax.set(title=title, yticks=list(rows), yticklabels=[e.name for e in listed])
        ax.invert_yaxis()
        ax.tick_params(axis="y", labelsize=7)
        ax.legend(loc="upper right")
    axes[1].set_xlabel("milliseconds since the step began")
    figure.savefig(output, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the same network in both ways, assert that both end at the same parameters, draw."""
    numbers: Any = {"steps": (12, "steps of each way"), "link": (0.5, "gigabytes a second of the link to the optimizer")}
    chosen = options(__doc__, arguments, "streaming.png", **numbers)
    layers, width, batch = (4, 32, 16) if chosen.quick else (10, 1024, 512)
    rng = np.random.default_rng(chosen.seed + 1)
    inputs, targets = rng.normal(size=(2, batch, width)).astype(np.float32)
    found = {}
    for name, how in (("streamed", streamed), ("swept first", swept_first)):
        parameters = initialise(0, layers, width)
        times, events = train(how, (parameters, inputs, targets, Server(parameters, chosen.link)), chosen.steps)
        found[name] = parameters, events
        settled = times[len(times) // 2 :]
        print(f"{name:<12} {min(settled):8.1f} ms a step, {early(events):4.0%} of the updates done before the last gradient was there")
    print(f"\n{'parameter':<10}{'came':>9}{'gradient':>10}{'update':>9}   (ms)")
    for e in found["streamed"][1]:
        print(f"{e.name:<10}{e.came:>9.1f}{e.ready:>10.1f}{e.updated:>9.1f}")
    distance = max(
        float(np.abs(np.asarray(a.value) - np.asarray(b.value)).max())
        for a, b in zip(found["streamed"][0], found["swept first"][0], strict=True)
    )
    print(f"\nlargest distance between the parameters of both: {distance:.1e}")
    assert distance < 1e-6
    assert early(found["swept first"][1]) == 0
    assert chosen.quick or early(found["streamed"][1]) > 0.3
    draw(found["streamed"][1], found["swept first"][1], chosen.output)
    print(f"picture in {chosen.output}")


if __name__ == "__main__":
    main()
