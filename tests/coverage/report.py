"""docs/coverage.md: written from what the checks found, and read again to tell whether it is stale."""

from __future__ import annotations

import collections
import importlib.metadata
import pathlib
import platform

import jax

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "coverage.md"
HEAD = """# What is covered

Every primitive of JAX and every public function of `jax.numpy`, `jax.nn`, `jax.lax`, `jax.random`, `jax.image`, `jax.ops` and `jax.scipy`, each
held against `jax.grad`. `tape.rules.coverage()` says at once what the installed JAX and the registry have. This page is written by

```sh
python -m tests.coverage --jobs 2 --docs docs/coverage.md
```

and `tests/coverage/test_coverage.py` fails when it is stale.
"""
READING = """
## How to read it

- How: what the tape makes of a function. Orders: of derivatives that agree with `jax.grad` in double precision, by the tape's own double
  backpropagation, in one program under `jax.jit`, and under `jax.vmap`; where there is none, the reason stands beside it. 1: JAX has no second
  (of a primitive: or none that is right, `tests/rules/records.py`); by night: the second takes seconds to compile, and the nightly tests ask it.
- Calls: ways to call the function that agree, of those that JAX takes: other dtypes, sizes zero and one, ties, infinities and NaN, keywords,
  NumPy arrays, Python numbers and lists, and every option that the signature has; dtypes, shapes, values and first derivatives. As many are
  asked as fit into the time that each has, 0.6 s of a processor or `COVERAGE_SECONDS`. What differs is listed at the end.
- Where cells are empty and no reason stands there, a row was not checked when the page was written (`--only`, `--facts`).
- Of primitives, dtypes are those in which the rule agrees with JAX's; strict: it takes part in strict promotion of dtypes; sharding: it is the
  same with arguments that lie on two devices. Other uses of each, kinks and sizes, and differences, are in `tests/rules/`.
"""
SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128"}


def version():
    return ".".join(map(str, jax.__version_info__))


def _table(head, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows])


def _short(text, size=110):
    return " ".join(str(text).split()).replace("|", "/")[:size]


def calls_of(line):
    """Ways to call a function that JAX takes, and those that agree."""
    pairs = [pair for kind, pair in line["counts"].items() if kind != "dtypes"]
    return sum(p[0] for p in pairs), sum(p[1] for p in pairs)


def primitive_row(line):
    rule = {"own": "own", "user": "user", "jax": "JAX's"}[line["rule"]]
    if not line["orders"]:
        return (f"`{line['name']}`", rule, line["why"], "", "", "")
    return (f"`{line['name']}`", rule, line["orders"], " ".join(SHORT[d] for d in line["dtypes"]), line["strict"], line["sharding"])


def function_row(line):
    taken, same = calls_of(line)
    return (f"`{line['name']}`", line["how"], line["orders"] or line["why"], f"{same}/{taken}" if taken else "")


def totals(primitives, functions):
    rules = collections.Counter(line["rule"] for line in primitives)
    ordered = collections.Counter(line["orders"] for line in primitives)
    calls = [calls_of(line) for line in functions]
    derived = collections.Counter(line["orders"] for line in functions)
    rows = [
        ("primitives", len(primitives)),
        ("with a rule of the tape's own", rules["own"]),
        ("whose rule agrees with JAX to second order (first, where JAX has no more)", f"{ordered['2']} ({ordered['1']})"),
        ("public functions", len(functions)),
        ("recorded", sum(line["how"].startswith("recorded") for line in functions)),
        ("that agree with `jax.grad` to second order (first, where JAX has no more)", f"{derived['2']} ({derived['1']})"),
        ("ways of calling them compared", sum(c[0] for c in calls)),
        ("that agree", sum(c[1] for c in calls)),
    ]
    return _table(("", "count"), rows)


def document(primitives, functions):
    """The whole page."""
    python = platform.python_version()
    packages = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("jax", "jaxlib", "numpy"))
    parts = [HEAD, f"Written with Python {python}, {packages}.\n", "## Totals\n", totals(primitives, functions), READING]
    parts += ["## Primitives\n", _table(("primitive", "rule", "orders", "dtypes", "strict", "sharding"), map(primitive_row, primitives))]
    modules = collections.defaultdict(list)
    for line in functions:
        modules[line["name"].rpartition(".")[0]].append(line)
    for module, lines in modules.items():
        parts += [f"\n## `{module}`\n", _table(("function", "how", "orders", "calls"), map(function_row, lines))]
    differing = [(line["name"], label, what) for line in [*primitives, *functions] for label, what in line["differences"]]
    rows = [(f"`{name}`", _short(label, 40), _short(what)) for name, label, what in differing]
    parts += ["\n## What differs\n", _table(("", "at", "what"), rows) if rows else "Nothing.", ""]
    return "\n".join(parts)


def kept(text, primitives, functions):
    """Fill lines in with what a page says of them, of what was not checked now: by name, as ``known`` makes them."""
    rows, wrong = read(text)[1], {}
    for line in text.partition("\n## What differs")[2].splitlines():
        if line.startswith("| `"):
            name, label, what = (c.strip() for c in line.strip("|").split(" | "))
            wrong.setdefault(name.strip("`"), []).append((label, what))
    long = {short: name for name, short in SHORT.items()}
    for name, line in primitives.items():
        if name in rows and rows[name][1] in {"1", "2"}:
            line["orders"], line["strict"], line["sharding"] = rows[name][1], *rows[name][3:]
            line["dtypes"] = [long[d] for d in rows[name][2].split()]
        line["differences"] = [] if line["why"] else wrong.get(name, [])
    for name, line in functions.items():
        if name in rows:
            line["orders"] = rows[name][1] if rows[name][1][:1].isdigit() and not line["why"] else ""
            same, _, taken = rows[name][2].partition("/")
            line["counts"] = {"as before": (int(taken), int(same))} if taken else {}
        line["differences"] = wrong.get(name, [])


def read(text):
    """The page's version of JAX, and the cells of every row of its tables of primitives and functions, by name."""
    found = next(line for line in text.splitlines() if line.startswith("Written with"))
    rows = {}
    for line in text.partition("\n## What differs")[0].splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("| `"):
            rows[cells[0].strip("`")] = cells[1:]
    return found.partition("jax ")[2].partition(",")[0], rows
