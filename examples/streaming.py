"""Updating during the sweep
=========================

Update parameters while the sweep still runs, and draw when what happened.

``tape.stream_gradients`` gives each parameter as soon as nothing that is still to be swept adds to its gradient, last layers first.  A thread
waits for each gradient, sends it over a slow link and updates the parameter, while the sweep goes on to earlier layers.  The same
training with ``backward()`` and the updates after it gives the same parameters, later.

In JAX a compiled gradient is there as a whole; in PyTorch a hook on each parameter does the same, one call for each op.  Here it is a loop over
``tape.stream_gradients(loss)``.

Run it with ``python examples/streaming.py --output streaming.png``.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
from experiment import Array, dense, layers, options, picture, progress

import tape
import tape.numpy as tnp

Event = tuple[str, float, float]  # a parameter's name, when its gradient was taken to be sent, and when its value was replaced


class Server:
    """Momentum descent in NumPy on the other side of a link, of which the sweep knows nothing; the link is played by sleeping."""

    def __init__(self, link: float) -> None:
        """Update parameters over a link of so many gigabytes a second."""
        self.link = link
        self.velocities: dict[str, Any] = defaultdict(float)

    def update(self, parameter: Any, gradient: Any) -> Event:
        """Wait for a gradient, send it, and replace the parameter's value; entries recorded before keep the old one."""
        sent = np.asarray(gradient)
        begun = time.perf_counter()
        time.sleep(sent.nbytes / (1e9 * self.link))
        velocity = self.velocities[parameter.name] = np.float32(0.9) * self.velocities[parameter.name] + sent
        parameter.value = np.asarray(parameter.value) - np.float32(0.01) * velocity
        return parameter.name, begun, time.perf_counter()


def loss_of(parameters: Sequence[Any], inputs: Array, targets: Array) -> Any:
    """Mean squared error of a network of tanh layers."""
    outputs = dense(list(zip(parameters[::2], parameters[1::2], strict=True)), inputs)
    return ((tnp.tanh(outputs) - targets) ** 2).mean()


def streamed(loss: Any, _: Sequence[Any], send: Callable[[Any, Any], Future[Event]]) -> list[Future[Event]]:
    """Send each gradient when it is final."""
    under_way = []
    for parameter, gradient in tape.stream_gradients(loss):
        under_way.append(send(parameter, gradient.value))
    gradient.block_until_ready()
    return under_way


def swept_first(loss: Any, parameters: Sequence[Any], send: Callable[[Any, Any], Future[Event]]) -> list[Future[Event]]:
    """Send gradients after the sweep."""
    for p in parameters:
        p.zero_grad()
    loss.backward()
    jax.block_until_ready([p.grad.value for p in parameters])
    return [send(p, p.grad.value) for p in reversed(parameters)]


def train(how: Callable[..., Any], parameters: Sequence[Any], batch: Array, steps: int, link: float) -> tuple[float, float, list[Event]]:
    """Take steps; of the quickest of the later ones, in milliseconds: how long it took, when the last gradient was there, and what happened."""
    server, taken = Server(link), []
    for _ in progress(range(steps), how.__name__.replace("_", " ")):
        begun = time.perf_counter()
        with ThreadPoolExecutor(1) as thread:
            under_way = how(loss_of(parameters, *batch), parameters, partial(thread.submit, server.update))
            swept = time.perf_counter()
            events = [update.result() for update in under_way]
        took = time.perf_counter()
        in_step = [(name, 1e3 * (a - begun), 1e3 * (b - begun)) for name, a, b in events]
        taken.append((1e3 * (took - begun), 1e3 * (swept - begun), in_step))
    return min(taken[steps // 2 :])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the same network in both ways, assert that both end at the same parameters, draw."""
    numbers: Any = {"steps": (12, "steps of each way"), "link": (0.5, "gigabytes a second of the link to the optimizer")}
    chosen = options(__doc__, arguments, "streaming.png", **numbers)
    count, width, size = (4, 32, 16) if chosen.quick else (10, 1024, 512)
    rng = np.random.default_rng(chosen.seed)
    batch, start = rng.normal(size=(2, size, width)).astype(np.float32), layers(rng, [width] * (count + 1), gain=1.0)
    ends = []
    with picture(chosen.output, 2, "When parameters are updated") as panels:
        for name, how, axes in zip(("streamed", "swept first"), (streamed, swept_first), panels, strict=True):
            pairs = [(tape.Variable(w, name=f"layer {k}"), tape.Variable(b, name=f"bias {k}")) for k, (w, b) in enumerate(start, 1)]
            parameters = [p for pair in pairs for p in pair]
            took, swept, events = train(how, parameters, batch, chosen.steps, chosen.link)
            early = sum(updated < swept for _, _, updated in events) / len(events)
            print(f"{name:<12} {took:8.1f} ms a step, {early:4.0%} of the updates done before the last gradient was there")
            assert chosen.quick or (early > 0.3 if how is streamed else early == 0)
            ends.append([p.numpy() for p in parameters])
            parts, begun, done = zip(*events, strict=True)
            axes.barh(parts, np.subtract(done, begun), left=begun, label="sent and updated")
            axes.axvline(swept, color="gray", linestyle=":", label="last gradient is there")
            axes.set(xlabel="milliseconds since the step began", title=name)
            axes.invert_yaxis()
            if how is streamed:
                print("\n".join(f"{parameter:<10} sent at {a:7.1f} ms, updated at {b:7.1f} ms" for parameter, a, b in events))
    distance = max(float(np.abs(a - b).max()) for a, b in zip(*ends, strict=True))
    print(f"largest distance between the parameters of both: {distance:.1e}")
    assert distance < 1e-6


if __name__ == "__main__":
    main()
