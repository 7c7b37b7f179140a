"""Truncated backpropagation through time
======================================

Learn a text letter by letter with a recurrent network, by truncated backpropagation through time.

The text (what Python says of its built-in types) is read over and over; the state of the network goes on from window to
window.  After each window the loss is swept and ``loss.unchain_backward()`` cuts everything before it: the next sweep ends at the state that the
window began with, and what was kept for earlier ones is free.  Without the cut (and with ``retain_graph=True``, or the next sweep would be
an error) the bytes that are kept grow with the length of the text.  The gradient of a window is compared with that of ``jax.grad``.

In JAX the state is an argument and a result of a jitted step over a window; in PyTorch each tensor of the state is detached by hand.  Here it is
one line after the sweep, whatever the state consists of.

Run it with ``python examples/truncated_bptt.py --output truncated_bptt.png``.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax
from experiment import Array, distance, options, picture

import interop.optax
import tape

STREAMS, HIDDEN = 16, 64  # places of the text that are read at once, and the size of the state


def text() -> str:
    """Return the documentation of the built-in types, in lower case."""
    return "\n".join(str(kind.__doc__).lower() for kind in (int, float, str, list, dict, set, bytes, range))


def windows(letters: Array, length: int) -> Iterator[tuple[Array, Array]]:
    """Yield letters and the ones that follow them, shape (length, STREAMS), for ever; streams start at different places."""
    places = np.linspace(0, len(letters), STREAMS, endpoint=False).astype(int) + np.arange(length + 1)[:, None]
    while True:
        read = letters[places % len(letters)]
        yield read[:-1], read[1:]
        places = places + length


def initialise(rng: np.random.Generator, kinds: int) -> dict[str, Any]:
    """Draw the weights of a recurrent layer and of its output."""
    shapes = {"embed": (kinds, HIDDEN), "recur": (HIDDEN, HIDDEN), "out": (HIDDEN, kinds)}
    weights = {name: tape.Variable((rng.normal(size=s) * s[0] ** -0.5).astype("float32"), name=name) for name, s in shapes.items()}
    return weights | {name: tape.Variable(np.zeros(n, "float32"), name=name) for name, n in (("bias", HIDDEN), ("out_bias", kinds))}


def unrolled(p: dict[str, Any], state: Any, letters: Array, following: Array, lib: Any = tape) -> tuple[Any, Any]:
    """Read a window; return the mean cross-entropy of its predictions, in bits, and the state.  ``lib=jax`` is the same in JAX."""
    total = 0.0
    for now, after in zip(letters, following, strict=True):
        state = lib.numpy.tanh(p["embed"][now] + state @ p["recur"] + p["bias"])
        scores = lib.nn.log_softmax(state @ p["out"] + p["out_bias"])
        total = total - scores[np.arange(STREAMS), after].mean()
    return total / (len(letters) * np.log(2.0)), state


def train(p: dict[str, Any], letters: Array, steps: int, length: int, *, cut: bool) -> tuple[list[float], list[int]]:
    """Train on ``steps`` windows; return the losses, and the bytes that are kept before each sweep, when they are most."""
    optimizer = interop.optax.Optimizer(p, optax.adam(3e-3))
    state = tape.constant(np.zeros((STREAMS, HIDDEN), np.float32))
    losses, kept = [], []
    for k, window in zip(range(1, steps + 1), windows(letters, length), strict=False):
        loss, state = unrolled(p, state, *window)
        losses.append(float(loss))
        kept.append(tape.stats().live_bytes)
        if cut and k % max(1, steps // 10) == 0:
            print(f"{k:>8}{k * length * STREAMS:>10}{np.mean(losses[-steps // 10 :]):>13.3f}{kept[-1]:>12}", flush=True)
        loss.backward(retain_graph=not cut)
        optimizer.step()
        optimizer.zero_grad()
        if cut:
            loss.unchain_backward()
    return losses, kept


def distance_from_jax(p: dict[str, Any], first: Sequence[Array], second: Sequence[Array]) -> float:
    """Return how far the gradient of a window that follows another is from that of ``jax.grad`` for this window alone, relatively."""
    loss, state = unrolled(p, np.zeros((STREAMS, HIDDEN), np.float32), *first)
    loss.unchain_backward()
    found = tape.grad(lambda p: unrolled(p, state, *second)[0])(p)
    expected = jax.grad(lambda p: unrolled(p, state.value, *second, lib=jax)[0])({name: v.value for name, v in p.items()})
    return distance(found, expected)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, assert that memory stays as it is and that gradients are JAX's, save the picture."""
    numbers: Any = {"steps": (1500, "windows to train on"), "window": (8, "letters from cut to cut")}
    chosen = options(__doc__, arguments, "truncated_bptt.png", **numbers)
    characters = sorted(set(text()))
    letters = np.searchsorted(characters, list(text()))
    print(f"{len(letters)} letters of {len(characters)} kinds")
    steps, length = (30, 2) if chosen.quick else (chosen.steps, chosen.window)
    print(f"{'windows':>8}{'letters':>10}{'bits/letter':>13}{'bytes kept':>12}")
    p = initialise(np.random.default_rng(chosen.seed), len(characters))
    losses, kept = train(p, letters, steps, length, cut=True)
    ahead = windows(letters, length)
    apart = distance_from_jax(p, next(ahead), next(ahead))
    print(f"largest distance from jax.grad of one window, relative: {apart:.1e}")
    _, grown = train(p, letters, 4 if chosen.quick else 12, length, cut=False)
    print(f"kept for a sweep: {kept[-1]} bytes in window {steps};", end=" ")
    print(f"without the cut {grown[0]} in window 1, {grown[-1]} in window {len(grown)}")
    last = np.mean(losses[-10:])
    assert apart < 1e-5
    assert len(set(kept[1:])) == 1  # to the byte
    assert grown[-1] > grown[0]
    assert last < (1 if chosen.quick else 0.5) * losses[0]
    print(f"{losses[0]:.2f} bits per letter at first, {last:.2f} at last")
    with picture(chosen.output, 2, "A text, letter by letter") as (left, right):
        width = max(1, steps // 50)
        left.plot(np.convolve(losses, np.ones(width) / width, "valid"))
        left.set(xlabel="window", ylabel="bits per letter", title="Training loss")
        right.plot(range(1, steps + 1), np.divide(kept, 1e6), label="with unchain_backward()")
        right.plot(range(1, len(grown) + 1), np.divide(grown, 1e6), "o-", label=f"without, {len(grown)} windows")
        right.set(xlabel="window", ylabel="megabytes kept for sweeps", title="Memory", xscale="log", ylim=(0, None))


if __name__ == "__main__":
    main()
