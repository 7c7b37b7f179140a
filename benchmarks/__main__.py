"""``python -m benchmarks``: the figures of the core, each beside its peers in one run.

Times are medians of interleaved batches, in microseconds; ratios are medians of the ratios of batches that ran side by side, so that
a machine whose speed drifts does not change them.  Gradients are compared before anything is timed.
"""

from __future__ import annotations

import gc
import itertools
import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import tape
import tape.numpy as tnp

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS, WIDTH = 5, 16


def layers(xp: Any, parameters: list[Any], x: Any) -> Any:
    """Five tanh layers and the mean of squares, over any namespace."""
    for w, b in parameters:
        x = xp.tanh(x @ w + b)
    return xp.mean(x * x)


def pairs(parameters: list[Any]) -> list[tuple[Any, Any]]:
    """Return weights and biases, layer by layer."""
    return list(zip(parameters[::2], parameters[1::2], strict=True))


def contestants() -> dict[str, Callable[[], list[Any]]]:
    """Return for each system a step that computes the value and all gradients."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) * 0.3 for _ in range(LAYERS) for shape in ((WIDTH, WIDTH), (WIDTH,))]
    data = rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)
    raw, x = [jnp.asarray(a) for a in arrays], jnp.asarray(data)

    def plain(parameters: list[Any], x: Any) -> Any:
        return layers(jnp, pairs(parameters), x)

    compiled = jax.jit(jax.value_and_grad(plain))
    variables, v = [tape.Variable(a) for a in raw], tape.constant(x)
    layered = pairs(variables)

    def define_by_run() -> list[Any]:
        loss = layers(tnp, layered, v)
        loss.backward()
        gradients = [p.grad for p in variables]
        for p in variables:
            p.zero_grad()
        return gradients

    found: dict[str, Callable[[], list[Any]]] = {
        "tape, define-by-run": define_by_run,
        "jax.jit(value_and_grad)": lambda: compiled(raw, x)[1],
        "jax.grad, not jitted": lambda: jax.grad(plain)(raw, x),
    }
    try:
        import torch  # noqa: PLC0415 - an optional peer
    except ImportError:
        return found
    torch.set_num_threads(1)
    tensors, t = [torch.tensor(a, requires_grad=True) for a in arrays], torch.tensor(data)
    pairs_of_tensors = pairs(tensors)

    def eager() -> list[Any]:
        loss = layers(torch, pairs_of_tensors, t)
        loss.backward()
        gradients = [p.grad for p in tensors]
        for p in tensors:
            p.grad = None
        return gradients

    return {**found, "PyTorch eager": eager}


def wait(gradients: list[Any]) -> None:
    """Wait for what is still being computed."""
    for g in gradients:
        value = g.value if isinstance(g, tape.Variable) else g
        if hasattr(value, "block_until_ready"):
            value.block_until_ready()


def batch(step: Callable[[], list[Any]], count: int) -> float:
    """Microseconds per step over ``count`` steps, the last one waited for."""
    started = time.perf_counter()
    for _ in range(count):
        gradients = step()
    wait(gradients)
    return (time.perf_counter() - started) / count * 1e6


def table(title: str, rows: list[tuple[str, ...]]) -> None:
    """Print a table that fits a terminal."""
    print(f"\n{title}")
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))))


def tanh_layers() -> None:
    """Compare one step of the five-layer network."""
    steps = contestants()
    expected = [np.asarray(g) for g in steps["jax.jit(value_and_grad)"]()]
    for name, step in steps.items():
        for _ in range(5):
            step()
        for g, e in zip(step(), expected, strict=True):
            np.testing.assert_allclose(np.asarray(g.value if isinstance(g, tape.Variable) else g), e, rtol=2e-4, atol=2e-6, err_msg=name)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(21):
        for name, step in steps.items():
            times[name].append(batch(step, 5 if "not jitted" in name else 200))
    ours = times["tape, define-by-run"]
    rows = [("", "us/step", "min", "max", "ours / it")]
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(ours, found, strict=True))
        rows.append((name, f"{statistics.median(found):.1f}", f"{min(found):.1f}", f"{max(found):.1f}", f"{ratio:.3f}"))
    table(f"{LAYERS} tanh layers {WIDTH}x{WIDTH}, value and gradients of {2 * LAYERS} parameters", rows)


def chains() -> None:
    """Time per op of long chains: recorded, swept, run, freed."""
    rows = [("chain of sin on 8 floats", "record", "sweep+run", "free", "us/op", "peak MB")]
    for n in (1_000, 1_000, 1_000, 10_000, 10_000, 100_000, 100_000):
        gc.collect()
        x = tape.Variable(jnp.full(8, 0.5))
        marks = [time.perf_counter()]
        y = x
        for _ in range(n):
            y = tnp.sin(y)
        marks.append(time.perf_counter())
        y.backward(tnp.ones(8))
        x.grad.block_until_ready()
        marks.append(time.perf_counter())
        del y
        marks.append(time.perf_counter())
        spans = [(b - a) / n * 1e6 for a, b in itertools.pairwise(marks)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        rows.append((f"{n} ops", *(f"{s:.2f}" for s in spans), f"{sum(spans):.2f}", str(peak)))
    table("Long chains (the first of a length compiles)", rows)


def imports() -> None:
    """Time what ``import tape`` adds to ``import jax``."""
    code = "import time, jax; t = time.perf_counter(); import tape; print(time.perf_counter() - t)"
    found = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(9)]  # noqa: S603
    table(
        "Import", [("import tape, after import jax", "ms", "min"), ("", f"{statistics.median(found) * 1e3:.1f}", f"{min(found) * 1e3:.1f}")]
    )


def main() -> None:
    """Run every benchmark, or the ones named."""
    known = {"tanh": tanh_layers, "chains": chains, "imports": imports}
    chosen = sys.argv[1:] or list(known)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        sys.exit(f"unknown benchmark {unknown[0]!r}; known: {', '.join(known)}")
    print(f"jax {jax.__version__} on {jax.devices()[0].platform}, {sys.version.split()[0]}")
    for name in chosen:
        known[name]()


if __name__ == "__main__":
    main()
