"""``python -m tape``: what there is, and a self-check of ten seconds on the device that JAX finds."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib.metadata
import itertools
import os
import platform
import shutil
import textwrap
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tape
from tape import jaxapi, layout
from tape.command.verify import RELATIVE, compare, family_of, verifiable, verify
from tape.ops.pullback import pullback
from tape.ops.running import quick_options
from tape.rules import Rule
from tape.statistics import STATS
from tape.terminal import coloured, columns, painted, size
from tape.terminal.progress import progress
from tape.testing.samples import draw, draw_like, examples_of

# What each extra of this distribution installs, and what it is for; a test holds this equal to pyproject.toml.
EXTRAS = {
    "testing": (("hypothesis",), "tape.testing's properties and strategies"),
    "optax": (("optax", "cloudpickle"), "interop.optax"),
    "flax": (("flax",), "interop.nnx, interop.linen"),
    "equinox": (("equinox",), "interop.equinox"),
    "torch": (("torch",), "interop.torch"),
    "safetensors": (("safetensors",), "interop.save, interop.load"),
    "orbax": (("orbax-checkpoint",), "interop.save(format='orbax')"),
    "einops": (("einops",), "einops on Variables"),
    "export": (("flatbuffers",), "interop.export to bytes"),
    "terminal": (("rich",), "bars of progress"),
    "examples": (("scikit-learn", "matplotlib", "optax", "rich", "scipy"), "the scripts in examples/"),
}
SECONDS = 10.0
_NO_TIME = None


@dataclasses.dataclass(slots=True)
class Checked:
    """What the self-check found.

    Attributes:
        right: rules that agree with ``jax.grad`` on the device.
        wrong: those that do not, and that float64 says are wrong, with what it says.
        left: rules for which there was no time.
        absent: those of what JAX does not have on the device.
        seconds: how long it took.

    """

    right: list[str] = dataclasses.field(default_factory=list)
    wrong: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    left: list[str] = dataclasses.field(default_factory=list)
    absent: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


def add(parser: argparse.ArgumentParser) -> None:
    """Enter what the command without a name takes."""
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"how long the self-check may take, without a command ({SECONDS:g})")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> bool:
    """Print what there is, and check rules; tell whether any is wrong."""
    color, width = coloured(), columns()
    for title, rows in (("Versions", versions()), ("Devices", devices()), ("Caches", caches()), ("Extras", extras())):
        print(painted(title, "1", color))
        wide = max((len(name) for name, *_ in rows), default=0)
        for name, value, good in rows:
            head = f"  {painted(name.ljust(wide), '36', color)}  "
            said = textwrap.wrap(value, max(width - wide - 4, 20), break_long_words=False, break_on_hyphens=False) or [""]
            print(head + ("\n" + " " * (wide + 4)).join(painted(line, "" if good else "2", color) for line in said))
    device = jax.devices()[0]
    print(painted("Self-check", "1", color), flush=True)
    checked = check(device, options.seconds)
    for line in told(checked, device):
        print("\n".join(textwrap.wrap(line, width, initial_indent="  ", subsequent_indent="    ")))
    verdict = "wrong" if checked.wrong else "right" if checked.right else "nothing was checked"
    print(f"  {painted(verdict, '1;31' if verdict != 'right' else '1;32', color)}")
    return bool(checked.wrong) or not checked.right


def versions() -> list[tuple[str, str, bool]]:
    """Return what runs."""
    return [
        ("tape", f"{tape.__version__} ({Path(tape.__file__).parent})", True),
        ("recorder", layout.RUNS, True),
        ("python", f"{platform.python_version()} ({platform.python_implementation()}, {platform.system()} {platform.machine()})", True),
        *[(name, importlib.metadata.version(name), True) for name in ("jax", "jaxlib", "numpy")],
    ]


def devices() -> list[tuple[str, str, bool]]:
    """Return the devices that JAX finds, those of a kind together."""
    counted = collections.Counter((d.platform, d.device_kind) for d in jax.devices())
    rows = []
    for (name, kind), count in counted.items():
        first = next(d for d in jax.devices() if (d.platform, d.device_kind) == (name, kind))
        limit = _bytes_of(first)
        cores = f", {os.cpu_count()} cores" if name == "cpu" else ""
        rows.append((name, f"{count} x {kind}{cores}{f', {size(limit)} each' if limit else ''}", True))
    if jax.process_count() > 1:
        rows.append(("processes", f"{jax.process_count()}, this one is number {jax.process_index()}", True))
    rows.append(("64-bit types", "on" if jax.config.jax_enable_x64 else "off (jax.config.update('jax_enable_x64', True))", True))  # type: ignore[attr-defined]
    return rows


def _bytes_of(device: Any) -> int:
    try:
        return int((device.memory_stats() or {}).get("bytes_limit", 0))
    except Exception:  # noqa: BLE001 - a backend need not know
        return 0


def caches() -> list[tuple[str, str, bool]]:
    """Return what is kept from run to run, and in this process."""
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    rows = []
    if not folder:
        said = "none: programs are compiled in each process again; JAX_COMPILATION_CACHE_DIR=~/.cache/jax keeps them"
        rows.append(("compiled programs", said, False))
    elif "://" in str(folder):
        rows.append(("compiled programs", str(folder), True))
    else:
        files = [entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()] if Path(folder).is_dir() else []
        rows.append(("compiled programs", f"{folder}: {len(files):,} files, {size(sum(files))}", True))
    held = {name: count for name, count in STATS.caches.items() if count}
    rows.append(("in this process", ", ".join(f"{name} {count:,}" for name, count in held.items()) or "nothing so far", True))
    return rows


def extras() -> list[tuple[str, str, bool]]:
    """Return which extras are installed, and how to get the others."""
    rows = []
    for name, (needed, what) in EXTRAS.items():
        there = {package: _version(package) for package in needed}
        missing = [package for package, version in there.items() if version is None]
        listed = ", ".join(f"{package} {version}" for package, version in there.items() if version)
        said = f"{listed} ({what})" if not missing else f"pip install 'jax-tape[{name}]' ({what}; without: {', '.join(missing)})"
        rows.append((name, said, not missing))
    dot = shutil.which("dot")
    rows.append(("graphviz", f"{dot} (tape.draw to .svg)" if dot else "no program dot: install graphviz (tape.draw to .svg)", bool(dot)))
    return rows


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check(device: Any, seconds: float) -> Checked:
    """Compare rules with ``jax.grad`` on a device, for so many seconds; families take turns, so that each is asked."""
    started = time.perf_counter()
    checked = Checked()
    records = _in_turns(verifiable())
    longest = 0.0

    def agrees(record: Rule) -> bool | None:
        nonlocal longest
        begun = time.perf_counter()
        if begun - started + longest >= seconds:  # another one may take as long as any did
            return _NO_TIME
        right = _agrees(record, device) or _right(record, device)
        longest = max(longest, time.perf_counter() - begun)
        return right

    with warnings.catch_warnings(), ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:  # the compiler lets go of Python's lock
        warnings.simplefilter("ignore")
        answers = zip(records, threads.map(agrees, records), strict=True)
        for record, answer in progress(answers, "rules", len(records)):
            name = record.primitive.name
            if answer is _NO_TIME:
                checked.left.append(name)
            elif answer:
                checked.right.append(name)
            else:  # by all of its examples
                line = verify(record, "float32", device)
                if line.verdict == "fail":
                    checked.wrong.append((name, "; ".join(line.notes)))
                else:
                    (checked.right if line.verdict == "pass" else checked.absent).append(name)
    checked.seconds = time.perf_counter() - started
    return checked


def told(checked: Checked, device: Any) -> Iterator[str]:
    """Say what the self-check found."""
    count = len(checked.right) + len(checked.wrong)
    where = f"{device.device_kind} ({device.platform})"
    yield f"{count} rules against jax.grad in float32 on {where}, {checked.seconds:.1f} s: {len(checked.wrong)} wrong"
    for name, what in checked.wrong:
        yield f"{name}: {what}"
    if checked.absent:
        yield f"not on {device.platform}, in JAX: {', '.join(checked.absent)}"
    if checked.left:
        yield f"{len(checked.left)} more were left out for time: python -m tape verify checks all, by double precision"
        yield f"left out: {', '.join(checked.left)}"


def _in_turns(records: Sequence[Rule]) -> list[Rule]:
    """Return records so that each family has one before any has its second."""
    families: dict[str, list[Rule]] = {}
    for record in records:
        families.setdefault(family_of(record), []).append(record)
    turns = itertools.zip_longest(*families.values())
    return [record for turn in turns for record in turn if record is not None]


def _right(record: Rule, device: Any) -> bool:
    """Tell whether double precision agrees with the first example of a rule for which JAX has another derivative, or none."""
    try:
        compared = compare(record, examples_of(record)[0], "float32", device, quick_options(device.platform))
    except Exception:  # noqa: BLE001 - as in verify, which says so
        return False
    return compared is not None and not compared[1]


def _agrees(record: Rule, device: Any) -> bool:
    """Tell whether the rule gives what JAX does for its first example in float32."""
    example = examples_of(record)[0]
    args = draw(record, example, "float32")
    try:
        shapes = jax.eval_shape(lambda *a: jax.tree.leaves(example.fun(*a)), *args)
        cts = draw_like(shapes, record.primitive.name, example.name)

        def both(args: Any, cts: Any) -> tuple[Any, Any]:
            closed, _ = jaxapi.trace(lambda *a: tuple(jax.tree.leaves(example.fun(*a))), *args)
            own = pullback(closed, args, cts)
            outs, vjp = jax.vjp(lambda *a: jax.tree.leaves(example.fun(*a)), *args)
            zeros = [np.zeros(o.shape, jax.dtypes.float0) if c is None else c for o, c in zip(outs, cts, strict=True)]
            return [jnp.zeros_like(x) if g is None else g for g, x in zip(own, args, strict=True)], vjp(zeros)

        with jax.default_device(device), jax.default_matmul_precision("highest"):
            own, theirs = jax.device_get(jax.jit(both, compiler_options=quick_options(device.platform))(args, cts))
    except Exception:  # noqa: BLE001 - JAX has no derivative, the backend no kernel, the example is not for the dtype, or the rule raises
        return False
    allowed = RELATIVE["float32"]
    for got, true in zip(own, theirs, strict=True):
        if true.dtype == jax.dtypes.float0:
            continue
        largest = float(np.max(np.abs(true), initial=0.0, where=np.isfinite(true)))
        if not np.allclose(got, true, rtol=0, atol=allowed * max(largest, 1e-30), equal_nan=True):
            return False
    return True
