"""Keep less for the sweep: the values that a deep network keeps, as they are, in 16 or 8 bits, and in the host's memory.

Each layer is a context of ``tape.saved_value_hooks``, so a sweep unpacks one layer at a time.  It begins with what is cheap to compute again
(the activation), so that one value for each layer is kept, the product before it.  The table says how many bytes the tape keeps between the
forward pass and the sweep, on the device and on the host (with JAX on a CPU they are the same memory), and how far the gradient is from the
exact one.

    python examples/offload.py --layers 24 --width 256
"""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

import tape
import tape.numpy as tnp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=24, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=256, help="of each of them (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1024, help="default: %(default)s")
    chosen = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    scale = 1.5 / np.sqrt(chosen.width)
    weights = [tape.Variable((scale * rng.standard_normal((chosen.width, chosen.width))).astype("float32")) for _ in range(chosen.layers)]
    x = tape.constant(rng.standard_normal((chosen.batch, chosen.width)).astype("float32"))
    exact, plain = gradient(weights, x, WAYS["as they are"])
    counted = Counted()
    gradient(weights, x, counted)
    print(
        f"{counted.values} values of {counted.bytes} bytes are kept for the sweep\n{'kept':<12} {'bytes':>12} {'share':>7} {'gradient error':>15}"
    )
    for name, keeping in WAYS.items():
        found, kept = gradient(weights, x, keeping)
        print(f"{name:<12} {kept:>12} {kept / plain:>7.0%} {np.linalg.norm(found - exact) / np.linalg.norm(exact):>15.1e}")


if __name__ == "__main__":
    main()
