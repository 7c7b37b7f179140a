"""Offloading and compressing residuals
====================================

Keep less for the sweep: the values that a deep network keeps, as they are, in 16 or 8 bits, and in the host's memory.

Each layer is a context of ``tape.saved_value_hooks``, so a sweep unpacks one layer at a time.  It begins with what is cheap to compute again
(the activation), so that one value for each layer is kept, the product before it.  The table says how many bytes the tape keeps between the
forward pass and the sweep, on the device and on the host (with JAX on a CPU they are the same memory), and how far the gradient is from the
exact one.

In JAX what is kept is chosen by names and policies inside of ``jax.checkpoint``; PyTorch has the same hooks, one call for each tensor.  Here a
pair of functions says it, ``with tape.saved_value_hooks(pack, unpack):``, and both are compiled with the step.

Run it with ``python examples/offload.py --layers 24 --width 256``.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from experiment import options, picture, progress

import tape
import tape.numpy as tnp

Context = contextlib.AbstractContextManager[Any]


def quantised() -> Context:
    """Keep floats as 8-bit integers and a scale."""

    def pack(value: Any) -> Any:
        scale = abs(value).max() / 127 + 1e-30
        return tnp.round(value / scale).astype("int8"), scale

    return tape.saved_value_hooks(pack, lambda kept: kept[0].astype("float32") * kept[1])


def halved() -> Context:
    """Keep floats in bfloat16."""
    return tape.saved_value_hooks(lambda value: value.astype("bfloat16"), lambda kept: kept.astype("float32"))


class Counted:
    """Keep values as they are, and count them."""

    def __init__(self) -> None:
        self.values = self.bytes = 0

    def pack(self, value: Any) -> Any:
        """Count a value that a sweep will read."""
        self.values += 1
        self.bytes += value.nbytes
        return value

    def __call__(self) -> Context:
        """Return a context that counts."""
        return tape.saved_value_hooks(self.pack, lambda kept: kept)


WAYS: dict[str, Callable[[], Context]] = {
    "as they are": contextlib.nullcontext,
    "on the host": tape.save_on_host,
    "bfloat16": halved,
    "int8": quantised,
}


def gradient(weights: Sequence[Any], x: Any, keeping: Callable[[], Context]) -> tuple[Any, int]:
    """Return the gradient by all weights as one vector, and the bytes that the tape keeps before the sweep."""
    before = tape.stats().live_bytes
    for w in weights:
        w.zero_grad()
        with keeping():
            x = tnp.tanh(x) @ w
    loss = (tnp.tanh(x) ** 2).mean()
    loss.block_until_ready()
    kept = tape.stats().live_bytes - before - sum(w.nbytes for w in weights)
    loss.backward()
    return np.concatenate([w.grad.numpy().ravel() for w in weights]), kept


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, assert what is kept and how exact gradients are, and draw both."""
    numbers: Any = {"layers": (24, "of the network"), "width": (256, "of each of them"), "batch": (1024, "rows of the input")}
    chosen = options(__doc__, arguments, "offload.png", **numbers)
    layers, width, batch = (4, 16, 32) if chosen.quick else (chosen.layers, chosen.width, chosen.batch)
    rng = np.random.default_rng(chosen.seed)
    weights = [tape.Variable((1.5 * rng.standard_normal((width, width)) / width**0.5).astype("float32")) for _ in range(layers)]
    x = tape.constant(rng.standard_normal((batch, width)).astype("float32"))
    exact, plain = gradient(weights, x, WAYS["as they are"])
    counted = Counted()
    gradient(weights, x, counted)
    print(f"{counted.values} values of {counted.bytes} bytes are kept for the sweep")
    print(f"{'kept':<12} {'bytes':>12} {'share':>7} {'gradient error':>15}")
    shares, errors = {}, {}
    for name, keeping in progress(list(WAYS.items()), "keeping"):
        found, kept = gradient(weights, x, keeping)
        shares[name], errors[name] = kept / plain, float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
        print(f"{name:<12} {kept:>12} {shares[name]:>7.0%} {errors[name]:>15.1e}")
    assert errors["on the host"] < 1e-4
    assert shares["int8"] < shares["bfloat16"] < 0.75
    assert errors["bfloat16"] < errors["int8"] < 0.1
    with picture(chosen.output, 2, "What is kept for a sweep, and what that costs") as (left, right):
        left.bar(list(shares), [100 * share for share in shares.values()])
        left.set(ylabel="bytes, % of what is kept as it is")
        right.bar(list(errors), [error + 1e-9 for error in errors.values()])
        right.set(ylabel="relative error of the gradient", yscale="log", ylim=(1e-9, 1))


if __name__ == "__main__":
    main()
