"""Tables of who finds what, for the terminal and for docs/power.md."""

from __future__ import annotations

import collections
import importlib.metadata
import os
import platform
import zlib

from tests.power.checkers import good

ORDER = ("tape.testing", "check_grads", "gradcheck")
HEAD = """# Who finds wrong gradients

`tests/power/` seeds wrong gradients and correct ones, and asks checkers about each. The wrong ones are what authors of rules get
wrong; the correct ones are what makes checkers cry wolf. `tests/power/test_catalogue.py` holds the labels against derivatives that
need no checker. This page is written by

```sh
python -m tests.power --jobs 2 --checkers check_grads gradcheck --sample 4 --json peers.json
python -m tests.power --jobs 2 --checkers tape.testing --add peers.json --docs docs/power.md
```
"""
READING = """
## How to read it

- `tape.testing` is `tape.testing.check_gradients(fun, *args)`. `check_grads` is `jax.test_util.check_grads` at order 2, in forward and
  reverse mode where the function has both. `gradcheck` is `torch.autograd.gradcheck` and then `gradgradcheck`, of a
  `torch.autograd.Function` that calls JAX; it asks for float64, so that it is not asked in other dtypes. It runs in its fast mode above
  500 elements. All of them run with their defaults. Of three functions, which are wrong far from their arguments alone, `tape.testing` is
  told that they are meant there (`domain=`).
- Killed: a wrong gradient that the checker reports. Blamed: a correct one that it reports. An exception counts as a report in both
  columns, an inconclusive verdict, or an inaccurate gradient, in neither; no answer within two minutes counts against the checker in both.
- Peers see the arguments that carry a gradient only; integer arguments and results are taken out of their sight.
- Seconds are of processor time, with what is compiled.
- Functions of others are checked by `python -m tests.power.foreign`, which lists what it found wrong there.
- Our checker was mended after runs over this set, so its figures here are those of a set it knows. The peers' are not.
"""


def _rate(lines, wrong):
    """``found/all`` of the wrong or the right cases among ``lines``."""
    asked = [line for line in lines if line["wrong"] == wrong]
    said = sum(good(line) if wrong else not good(line) for line in asked)
    return f"{said}/{len(asked)}" if asked else ""


def _columns(answers):
    """Pairs of checker and dtype, in reading order."""
    found = {(line["checker"], line["dtype"]) for line in answers}
    dtypes = ("float32", "float64", "float16", "bfloat16")
    return sorted(found, key=lambda pair: (ORDER.index(pair[0]), dtypes.index(pair[1])))


def _table(head, rows):
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows])


def summary(answers):
    """One row per checker and dtype."""
    rows = []
    for checker, dtype in _columns(answers):
        lines = [line for line in answers if (line["checker"], line["dtype"]) == (checker, dtype)]
        verdicts = collections.Counter(line["verdict"] for line in lines if not line["wrong"])
        seconds = sum(line["seconds"] for line in lines)
        rows.append((checker, dtype, _rate(lines, True), _rate(lines, False), verdicts["inconclusive"], f"{seconds:.0f}"))
    return _table(("checker", "dtype", "killed", "blamed", "inconclusive of the correct", "seconds"), rows)


def by_kind(answers, wrong):
    """One row per kind, one column per checker, at float32 and float64."""
    columns = [c for c in _columns(answers) if c[1] in {"float32", "float64"}]
    kinds = dict.fromkeys(line["kind"] for line in answers if line["wrong"] == wrong)
    rows = [
        (kind, *(_rate([a for a in answers if a["kind"] == kind and (a["checker"], a["dtype"]) == c], wrong) for c in columns))
        for kind in kinds
    ]
    return _table(("kind", *(f"{checker} {dtype}" for checker, dtype in columns)), rows)


def surprises(answers, checker):
    """The verdicts of ``checker`` that are not what the label asks for."""
    rows = [
        (line["case"], line["dtype"], "missed" if line["wrong"] else "blamed", line["verdict"], _short(line["message"]))
        for line in answers
        if line["checker"] == checker and not good(line)
    ]
    return _table(("case", "dtype", "", "verdict", "message"), rows) if rows else "None."


def _short(message):
    return " ".join(message.split())[:160].replace("|", "/")


def tables(answers):
    """What the terminal shows."""
    parts = [summary(answers)]
    if any(line["checker"] == "tape.testing" for line in answers):
        parts += ["", surprises(answers, "tape.testing")]
    return "\n".join(parts)


def versions():
    """The machine and what runs on it."""
    packages = ("jax", "jaxlib", "numpy", "torch")
    found = []
    for package in packages:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {package}")
    return f"Python {platform.python_version()}, {', '.join(found)}; {platform.machine()} CPU with {os.cpu_count()} cores."


def _sampled(answers):
    """Say who was asked about a part of the cases, and which."""
    asked = collections.defaultdict(set)
    for line in answers:
        asked[line["checker"]].add(line["case"])
    most = max(map(len, asked.values()))
    few = {checker: cases for checker, cases in asked.items() if 2 * len(cases) < most}
    parts = ", ".join(f"`{checker}` about {len(cases)} of them" for checker, cases in few.items())
    if not parts:
        return ""
    drawn = [n for n in range(2, 100) if all(zlib.crc32(case.encode()) % n == 0 for cases in few.values() for case in cases)]
    how = f"one in {max(drawn)}, chosen by a hash of its name (`--sample {max(drawn)}`)" if drawn else "a part (`--only`)"
    others = " and ".join(f"`{checker}`" for checker in asked if checker not in few)
    return f" {others} was asked about all of them, {parts}: {how}. Their rows and columns count those alone."


def document(answers, sample=1):
    """The whole of docs/power.md, from one case in ``sample``."""
    wrong = {line["case"]: line["kind"] for line in answers if line["wrong"]}
    right = {line["case"]: line["kind"] for line in answers if not line["wrong"]}
    counts = f"{len(wrong)} wrong gradients of {len(set(wrong.values()))} kinds, {len(right)} correct ones of {len(set(right.values()))}."
    counts += _sampled(answers)
    if sample > 1:
        counts = f"A sample of one case in {sample} of the catalogue, chosen by a hash of its name (`--sample {sample}`): {counts}"
    parts = [HEAD, f"{counts} {versions()}", "\n## Summary\n", summary(answers), READING]
    parts += ["## Killed, by kind of error\n", by_kind(answers, wrong=True), "\n## Blamed, by kind of correct function\n"]
    parts += [by_kind(answers, wrong=False), "\n## What `tape.testing` gets wrong\n", surprises(answers, "tape.testing"), ""]
    return "\n".join(parts)
