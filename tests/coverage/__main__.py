"""``python -m tests.coverage``: check every primitive and every public function; ``--docs`` writes docs/coverage.md."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib

FLAGS = ["--xla_backend_optimization_level=0", "--xla_force_host_platform_device_count=2"]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS]).strip()
PIECE = 6  # rows that a worker makes at a time
RENEWED = 8  # pieces after which a worker is replaced, with all that it has compiled


def main(argv=None):
    """Run, print, write."""
    from tape.terminal.progress import progress
    from tests.coverage import functions, primitives
    from tests.coverage.pieces import rows_of
    from tests.coverage.report import document, kept, totals

    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    parser.add_argument("--only", default="", help="a part of a name; several with commas")
    parser.add_argument("--part", choices=functions.PARTS, help="check this part of functions' rows only")
    parser.add_argument("--keep", type=pathlib.Path, help="a page: what is not checked now stays as it says")
    parser.add_argument("--kind", choices=("primitive", "function"), help="check rows of this kind only")
    parser.add_argument("--facts", action="store_true", help="check nothing: what is known at once")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="write every row to this file")
    parser.add_argument("--docs", type=pathlib.Path, help="write the document, docs/coverage.md")
    options = parser.parse_args(argv)
    pieces = []
    asked = {"primitive": primitives, "function": functions}
    found = {kind: {name: module.known(name) for name in module.facts()} for kind, module in asked.items()}
    for kind, names in found.items():
        asked_for = options.only.split(",")
        chosen = [n for n in names if any(part in n for part in asked_for) and options.kind in (None, kind) and not options.facts]
        pieces += [
            (kind, chosen[i : i + PIECE], (options.part,) if options.part else functions.PARTS) for i in range(0, len(chosen), PIECE)
        ]
    if options.keep:
        kept(options.keep.read_text(), found["primitive"], found["function"])
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=RENEWED) as pool:
        for kind, rows in progress(pool.imap(rows_of, pieces), "checking", len(pieces)):
            for line in rows:
                before = found[kind][line["name"]]
                if options.part:
                    other = "derivatives in double precision"
                    line["differences"] += [d for d in before["differences"] if (d[0] == other) is (options.part == "calls")]
                    untouched = "orders" if options.part == "calls" else "counts"
                    line[untouched] = before[untouched]
                found[kind][line["name"]] = line
    lines = [list(rows.values()) for rows in found.values()]
    print(totals(*lines))
    for line in [*lines[0], *lines[1]]:
        for label, what in line["differences"]:
            print(f"{line['name']} | {label} | {what}")
    if options.json:
        options.json.write_text(json.dumps(lines, indent=0))
    if options.docs:
        options.docs.write_text(document(*lines))


if __name__ == "__main__":
    main()
