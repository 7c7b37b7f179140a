"""Learn a text letter by letter with a recurrent network, by truncated backpropagation through time.

The text (the Zen of Python, and what Python says of its built-in types) is read from beginning to end, over and over; the state of the
network goes on from window to window.  After each window the loss is swept and ``loss.unchain_backward()`` cuts everything before it:
the next sweep ends at the state that the window began with, and what was kept for earlier windows is free.  Without the cut (and with
``retain_graph=True``, or the next sweep would be an error) the bytes that are kept grow with the length of the text.

In JAX the state is an argument and a result of a jitted step over a window; in PyTorch each tensor of the state is detached by hand.  Here it is
one line after the sweep, whatever the state consists of.

At the end the gradient of one window is compared with that of ``jax.grad`` for the same window.

    python examples/truncated_bptt.py --output truncated_bptt.png
"""

from __future__ import annotations

import codecs
import contextlib
import gc
import io
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from experiment import options
from matplotlib import pyplot as plt

import interop.optax
import tape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

Array = np.ndarray[Any, Any]
Parameters = dict[str, Any]

STREAMS = 16  # places of the text that are read at once
HIDDEN = 64
NATS = np.log(2.0)


def text() -> str:
    """Return the Zen of Python and the documentation of the built-in types, in lower case."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this  # noqa: PLC0415 - it prints when it is imported
    documents = [codecs.decode(this.s, "rot13"), *[kind.__doc__ or "" for kind in (int, float, str, list, dict, set, bytes, range)]]
    return "\n".join(documents).lower()


def windows(letters: Array, length: int) -> Iterator[tuple[Array, Array]]:
    """Yield letters and the ones that follow them, shape (length, STREAMS), for ever; streams start at different places."""
    starts = np.linspace(0, len(letters), STREAMS, endpoint=False).astype(int)
    at = 0
    while True:
        places = (starts[None] + at + np.arange(length + 1)[:, None]) % len(letters)
        yield letters[places[:-1]], letters[places[1:]]
        at += length


def initialise(seed: int, kinds: int) -> Parameters:
    """Draw the weights of a recurrent layer and of its output."""
    rng = np.random.default_rng(seed)
    shapes = {"embed": (kinds, HIDDEN), "recur": (HIDDEN, HIDDEN), "bias": (HIDDEN,), "out": (HIDDEN, kinds), "out_bias": (kinds,)}
    scale = {"bias": 0.0, "out_bias": 0.0}
    return {
        name: tape.Variable((rng.normal(size=shape) * scale.get(name, shape[0] ** -0.5)).astype(np.float32), name=name)
        for name, shape in shapes.items()
    }


def unrolled(p: Parameters, state: Any, letters: Array, following: Array, lib: Any = tape) -> tuple[Any, Any]:
    """Read a window; return the mean cross-entropy of its predictions, in bits, and the state.  ``lib=jax`` is the same in JAX."""
    total = 0.0
    for now, after in zip(letters, following, strict=True):
        state = lib.numpy.tanh(p["embed"][now] + state @ p["recur"] + p["bias"])
        scores = lib.nn.log_softmax(state @ p["out"] + p["out_bias"])
        total = total - scores[np.arange(STREAMS), after].mean()
    return total / (len(letters) * NATS), state


def kept(loss: Any) -> tuple[int, int]:
    """Return the bytes that the tape keeps for the sweep from a loss, and how many entries."""
    loss.block_until_ready()
    stats = tape.stats()
    return stats.live_bytes, stats.live_entries


def train(letters: Array, kinds: int, steps: int, length: int, seed: int) -> tuple[Parameters, Any, list[float], list[int]]:
    """Train on ``steps`` windows; return the parameters, the state, the losses, and the bytes kept before some sweeps."""
    p = initialise(seed, kinds)
    optimizer = interop.optax.Optimizer(p, optax.adam(3e-3))
    state = tape.constant(np.zeros((STREAMS, HIDDEN), np.float32))
    losses, memory = [], []
    start = time.perf_counter()
    every = max(1, steps // 10)
    print(f"{'windows':>8}{'letters':>10}{'bits/letter':>13}{'bytes kept':>12}{'entries':>9}{'seconds':>9}")
    for k, (now, after) in zip(range(1, steps + 1), windows(letters, length), strict=False):
        loss, state = unrolled(p, state, now, after)
        losses.append(loss.detach())
        shown = k % every == 0
        if shown:  # look before the sweep, when most is kept
            found, entries = kept(loss)
            memory.append(found)
            bits = float(np.mean([float(x) for x in losses[-every:]]))
            print(f"{k:>8}{k * length * STREAMS:>10}{bits:>13.3f}{found:>12}{entries:>9}{time.perf_counter() - start:>9.1f}", flush=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.unchain_backward()
    return p, state, [float(x) for x in losses], memory


def never_cut(p: Parameters, letters: Array, steps: int, length: int) -> list[int]:
    """Return the bytes kept before the sweep of each window when nothing is cut."""
    state = tape.constant(np.zeros((STREAMS, HIDDEN), np.float32))
    memory = []
    for _, (now, after) in zip(range(steps), windows(letters, length), strict=False):
        loss, state = unrolled(p, state, now, after)
        memory.append(kept(loss)[0])
        loss.backward(retain_graph=True)
        for v in p.values():
            v.zero_grad()
    return memory


def compare_with_jax(p: Parameters, state: Any, now: Array, after: Array) -> float:
    """Return how far the gradient of a window that follows others is from that of ``jax.grad`` for this window alone."""
    for v in p.values():
        v.zero_grad()
    loss, state = unrolled(p, state, now, after)
    loss.unchain_backward()
    given = state.value
    loss, _ = unrolled(p, state, now, after)
    loss.backward()
    expected = jax.grad(lambda q: unrolled(q, given, jnp.asarray(now), jnp.asarray(after), lib=jax)[0])({n: v.value for n, v in p.items()})
    largest = max(float(jnp.abs(g).max()) for g in expected.values())
    return max(float(jnp.abs(p[n].grad.value - g).max()) for n, g in expected.items()) / largest


def draw(losses: Sequence[float], cut: Sequence[int], grown: Sequence[int], output: Path) -> None:
    """Save the learning curve, and what is kept with and without the cut."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    width = max(1, len(losses) // 50)
    smooth = np.convolve(losses, np.ones(width) / width, "valid")
    left.plot(np.arange(len(smooth)) + width, smooth)
    left.set(xlabel="window", ylabel="bits per letter", title="Training loss")
    right.plot(np.linspace(len(losses) / len(cut), len(losses), len(cut)), [b / 1e6 for b in cut], "o-", label="with unchain_backward()")
    right.plot(range(1, len(grown) + 1), [b / 1e6 for b in grown], label=f"without, first {len(grown)} windows")
    right.set(xlabel="window", ylabel="megabytes kept for sweeps", title="Memory", xscale="log", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
    right.legend()
    figure.savefig(output, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, assert that memory stays as it is and that gradients are JAX's, save the picture."""
    numbers: Any = {"steps": (1500, "windows to train on"), "window": (8, "letters from cut to cut")}
    chosen = options(__doc__, arguments, "truncated_bptt.png", **numbers)
    characters = sorted(set(text()))
    letters = np.searchsorted(characters, list(text()))
    print(f"{len(letters)} letters of {len(characters)} kinds")
    gc.collect()
    gc.disable()  # what is freed is freed at once
    try:
        steps, length = (30, 2) if chosen.quick else (chosen.steps, chosen.window)
        p, state, losses, memory = train(letters, len(characters), steps, length, chosen.seed)
        now, after = next(windows(letters, length))
        distance = compare_with_jax(p, state, now, after)
        print(f"\nLargest distance from jax.grad of one window, relative: {distance:.1e}")
        del state, now, after
        grown = never_cut(p, letters, 4 if chosen.quick else 12, length)
    finally:
        gc.enable()
    print(f"Kept for a sweep: {memory[-1]} bytes in window {steps};", end=" ")
    print(f"without the cut {grown[0]} in window 1, {grown[-1]} in window {len(grown)}")
    assert distance < 1e-5
    assert len(set(memory)) == 1  # to the byte
    assert grown[-1] > grown[0]
    assert np.mean(losses[-10:]) < (1 if chosen.quick else 0.5) * losses[0]
    draw(losses, memory, grown, chosen.output)
    print(f"{losses[0]:.2f} bits per letter at first, {np.mean(losses[-10:]):.2f} at last; picture in {chosen.output}")


if __name__ == "__main__":
    main()
