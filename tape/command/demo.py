"""``python -m tape demo``: a short guided run."""

from __future__ import annotations

import argparse
import io
import linecache
import statistics
import textwrap
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tape
from tape.insight.explaining import Explanation
from tape.terminal import coloured, columns, painted
from tape.terminal.progress import progress

WIDEST = 100  # columns that a guided run fills
_ROUNDS, _STEPS, _FIRST = 12, 30, 60


class Part(NamedTuple):
    """One part of the run: its title, what is said before, the code that is shown and run, and what is said after it."""

    title: str
    before: str
    code: str
    after: str = ""


PARTS = (
    Part(
        "Record",
        "A Variable is an array that remembers. Plain Python runs, and each op is written onto the tape; nothing is computed until "
        "somebody looks.",
        """
        import tape, tape.numpy as tnp
        x = tape.Variable([0.5, 1.0, 2.0], name="x")
        with tape.Tape() as t:
            y = x
            for _ in range(2):              # a Python loop is a loop
                y = tnp.sin(x * y)
            loss = y.sum()
            loss.backward()                 # written onto the same tape
        print(t)
        """,
        "Number, op, inputs, shape and dtype, your line; the sweep stands below the entries that it is the derivative of. tape.draw(loss) "
        "makes a picture of it.",
    ),
    Part(
        "Backward",
        "The gradient is where PyTorch has it, and is what JAX computes.",
        """
        print(x.grad)
        import jax, jax.numpy as jnp
        print(jax.grad(lambda x: jnp.sin(x * jnp.sin(x * x)).sum())(x.value))
        """,
    ),
    Part(
        "Double backprop",
        "A sweep may be recorded in its turn, so that derivatives of any order follow. The fourth derivative of the sine is the sine.",
        """
        x = tape.Variable(0.5)
        d = tnp.sin(x)
        for _ in range(4):
            d = tape.gradients(d, x, create_graph=True)
        print(float(d), float(tnp.sin(x)))
        """,
    ),
    Part(
        "Explain",
        "Where does this NaN come from? The value is fine, the gradient is not.",
        """
        x = tape.Variable([0.0, 4.0], name="x")
        y = tnp.where(x > 0, tnp.sqrt(x), 0.0).sum()
        print(tape.explain(y, x))
        """,
    ),
)


def add(commands: Any) -> None:
    """Enter the command."""
    parser = commands.add_parser("demo", help="a short guided run", description="A short guided run: record, sweep, explain, and how fast.")
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> bool:
    """Show all parts; tell whether anything went wrong."""
    color, width = coloured(), min(columns(), WIDEST)
    scope: dict[str, Any] = {"__name__": "demo"}
    for number, part in enumerate((*PARTS,), 1):
        _heading(number, part.title, width, color)
        _say(part.before, width)
        code = textwrap.dedent(part.code).strip("\n")
        print()
        for line in code.splitlines():
            print(painted(f"    {line}", "36", color))
        print()
        for line in _output(code, f"demo_{number}.py", scope, width - 4, color=color).splitlines():
            print(f"    {line}".rstrip())
        if part.after:
            print()
            _say(part.after, width)
    _heading(len(PARTS) + 1, "Where the speed comes from", width, color)
    _speed(width, color)
    return False


def _heading(number: int, title: str, width: int, color: bool) -> None:
    print()
    print(painted(f"{number}. {title} ".ljust(width, "─"), "1;34", color))


def _say(text: str, width: int) -> None:
    print(textwrap.fill(text, min(width, 80)))


def _output(code: str, name: str, scope: dict[str, Any], width: int, *, color: bool) -> str:
    """Run code as if it stood in a file, so that its lines are known; return what it prints."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    said = io.StringIO()
    scope["print"] = lambda value, *more: print(*[_shown(v, width, color=color) for v in (value, *more)], file=said)
    with redirect_stdout(said):
        exec(compile(code, name, "exec"), scope)  # noqa: S102 - the parts above
    return said.getvalue()


def _shown(value: Any, width: int, *, color: bool) -> str:
    if isinstance(value, tape.Tape):
        return value.text(width=width, color=color)
    if isinstance(value, Explanation):
        return value._text(width, color=color)
    if "\n" in str(value):
        wrapped = [
            textwrap.wrap(line, width, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2)) or [""]
            for line in str(value).splitlines()
        ]
        return "\n".join(line for lines in wrapped for line in lines)
    return str(value)


def _speed(width: int, color: bool) -> None:
    """Time a step in several ways, in turns."""
    _say(
        "What is pending is looked up in a trie of structures. One that is met for the first time runs op by op; one that comes back is "
        "compiled whole in the background. Here are four layers of 64 with their gradients, in microseconds for a step; the systems take "
        "turns, and the median counts.",
        width,
    )
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(64, 64)).astype(np.float32) / 8 for _ in range(4)]
    data = rng.normal(size=(16, 64)).astype(np.float32)
    parameters = [tape.Variable(w) for w in weights]
    given = tape.constant(data)

    def taped() -> Any:
        h: Any = given
        for w in parameters:
            h = tape.numpy.tanh(h @ w)
        loss = (h * h).mean()
        loss.backward()
        gradients = [w.grad for w in parameters]
        for w in parameters:
            w.grad = None
        return [g.value for g in gradients if g is not None]

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        return (x * x).mean()

    arrays, inputs = [jnp.asarray(w) for w in weights], jnp.asarray(data)
    plain, jitted = jax.grad(loss), jax.jit(jax.grad(loss))
    began = time.perf_counter()
    jax.block_until_ready(taped())
    first = time.perf_counter() - began
    hits = tape.stats().hits
    steps = 0
    while tape.stats().hits - hits < _FIRST and steps < 40 * _FIRST:
        taped()
        steps += 1
    ways: dict[str, Callable[[], Any]] = {
        "tape, as written above": taped,
        "jax.jit(jax.grad(f))": lambda: jitted(arrays, inputs),
        "jax.grad(f), not jitted": lambda: plain(arrays, inputs),
    }
    medians = times(ways)
    least = min(medians.values())
    print()
    wide = max(map(len, ways))
    bar = width - wide - 18
    for name, seconds in medians.items():
        length = max(1, round(bar * min(seconds / max(medians.values()), 1.0)))
        print(f"    {name.ljust(wide)}  {1e6 * seconds:9,.0f}  {painted('█' * length, '36', color)}")
    print()
    ratio = medians["tape, as written above"] / least
    faster = medians["jax.grad(f), not jitted"] / medians["tape, as written above"]
    _say(
        f"The tape's step takes {ratio:.2f} times the quickest one's and is {faster:,.0f} times as fast as jax.grad without jit. Its "
        "first step, run op by op, took "
        f"{1e3 * first:,.0f} ms; after {steps:,} steps the compiled program had run {_FIRST} times. print(tape.stats()) tells what ran "
        "where, what was compiled, and why.",
        width,
    )


def times(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median seconds of a call of each, in turns."""
    for call in ways.values():
        jax.block_until_ready(call())
    measured: dict[str, list[float]] = {name: [] for name in ways}
    for _ in progress(range(_ROUNDS), "timing"):
        for name, call in ways.items():
            began = time.perf_counter()
            for _ in range(_STEPS):
                last = call()
            jax.block_until_ready(last)
            measured[name].append((time.perf_counter() - began) / _STEPS)
    return {name: statistics.median(seconds) for name, seconds in measured.items()}
