"""Recording: what Python spends on one op of a structure met before, with the recorder in C and with the one in Python."""

from __future__ import annotations

import timeit
from typing import Any

from benchmarks.fresh import measure_fresh
from benchmarks.report import Report, Score
from benchmarks.timing import Effort

__all__ = ["OPS", "recorded_ops", "recording"]

# Statements on x, y (Variables that require grad), g (recorded already), m (a mask), w (a matrix), a (an array of JAX), n (one of NumPy).
OPS = {
    "unary, tnp": "tnp.sin(g)",
    "unary, operator": "-g",
    "binary": "g * y",
    "binary, tnp": "tnp.add(g, y)",
    "matmul": "g @ w",
    "a number on the right": "g * 2.0",
    "a number on the left": "2.0 * g",
    "a number, tnp": "tnp.maximum(g, 0.0)",
    "a static number": "g ** 2",
    "a comparison": "g > 0",
    "an array of JAX": "g * a",
    "an array of JAX, tnp": "tnp.where(a, g, y)",
    "an array of NumPy": "g * n",
    "a NumPy function": "np.sin(g)",
    "a method": "g.sum()",
    "a method with a keyword": "g.sum(axis=0)",
    "a function with keywords": "tnp.sum(g, axis=(0, 1), keepdims=True)",
    "a shape": "g.reshape((4, 3))",
    "a dtype": "g.astype(np.float32)",
    "a property": "g.T",
    "an integer index": "g[1]",
    "a slice": "g[:, :2]",
    "a window": "g[0:2]",
    "integers in an index": "g[1, 2]",
    "a list of Variables": "tnp.concatenate([g, y])",
    "einsum": "tnp.einsum('ij,ij->i', g, y)",
    "three operands": "tnp.where(m, g, y)",
    "several results": "tnp.split(g, 2, axis=1)",
    "detach": "g.detach()",
    "a new leaf": "leaves.pop() * g",
    "under no_grad": "with tape.no_grad(): g * y",
    "the first of a segment": "close(); x * y",
}
COUNT = 100


def recorded_ops() -> dict[str, Any]:
    """Return the microseconds of every op, the least of some batches."""
    import jax.numpy as jnp  # noqa: PLC0415 - a process of its own
    import numpy as np  # noqa: PLC0415 - the same

    import tape  # noqa: PLC0415 - the same
    from tape import layout  # noqa: PLC0415 - the same
    from tape import numpy as tnp  # noqa: PLC0415 - the same
    from tape.graph.scope import LOCAL, close  # noqa: PLC0415 - the same

    def close_pending() -> None:
        segment = LOCAL.segment()
        if segment is not None:
            close(segment)

    rng = np.random.default_rng(0)
    n = rng.normal(size=(3, 4)).astype(np.float32)
    names: dict[str, Any] = {"tape": tape, "tnp": tnp, "np": np, "close": close_pending, "n": n, "a": jnp.asarray(n)}
    names |= {"x": tape.Variable(n), "y": tape.Variable(n + 1), "w": tape.Variable(n.T), "m": tape.constant(n > 0)}
    found: dict[str, Any] = {"recorder": layout.RUNS}
    for what, statement in OPS.items():
        timer = timeit.Timer(statement, globals=names)
        times = []
        for _ in range(25):
            close_pending()
            names["g"] = names["x"] * names["y"]
            if "leaves" in statement:
                names["leaves"] = [tape.Variable(names["a"]) for _ in range(COUNT)]
            times.append(timer.timeit(COUNT) / COUNT * 1e6)
        found[what] = min(times[5:])
    return found


def recording(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Compare the recorders, in turns, each in processes of its own."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(1 if effort.quick else 5):
        for recorder in ("python", "native"):
            try:
                found = measure_fresh("recorded_ops", TAPE_RECORDER=recorder)
            except RuntimeError as e:  # it was not built
                report.failed(f"recording: {e}")
                continue
            ran = best.setdefault(found.pop("recorder").split()[0], {})
            ran.update({what: min(us, ran.get(what, us)) for what, us in found.items()})
    rows = [{"us": what, **{name: ran[what] for name, ran in best.items()}} for what in OPS if not chosen or what in chosen]
    report.tabled("recording", "one op of a structure met before", rows)
    if len(best) == 2:
        quicker = {what: best["python"][what] / best["native"][what] for what in OPS if not chosen or what in chosen}
        report.scored("recording", Score("python / native", quicker, 2.0, at_least=True))
