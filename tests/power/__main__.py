"""``python -m tests.power``: run checkers over the catalogue and print who finds what; ``--docs`` writes docs/power.md."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import zlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")

DTYPES = ("float32", "float64", "float16", "bfloat16")
PIECE = 12  # cases that a worker takes at a time
RENEWED = 10  # pieces after which a worker is replaced, with all that it has compiled


def lines_of(options):
    """The (checker, case, dtype) that the options ask for."""
    from tests.power.catalogue import CASES
    from tests.power.checkers import applies

    def asked(case):
        return (
            (not options.only or options.only in case.name or options.only in case.kind)
            and (options.label == "all" or case.wrong == (options.label == "wrong"))
            and zlib.crc32(case.name.encode()) % options.sample == 0
        )

    return [
        (checker, case.name, dtype)
        for checker in options.checkers
        for dtype in options.dtypes
        if applies(checker, dtype)
        for case in CASES
        if dtype in case.dtypes and asked(case)
    ]


def main(argv=None):
    """Run, print, write."""
    from tape.terminal.progress import progress
    from tests.power.checkers import available, judge_all
    from tests.power.report import document, tables

    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--checkers", nargs="+", default=available())
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--only", help="a part of a case's name or kind")
    parser.add_argument("--label", choices=("all", "wrong", "right"), default="all")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="one case in N only, always the same ones")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="write every verdict to this file")
    parser.add_argument("--add", type=pathlib.Path, nargs="*", default=[], help="add verdicts written before, of other checkers")
    parser.add_argument("--docs", type=pathlib.Path, help="write the document, docs/power.md")
    options = parser.parse_args(argv)
    lines = lines_of(options)
    pieces = [lines[i : i + PIECE] for i in range(0, len(lines), PIECE)]
    answers = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs, maxtasksperchild=RENEWED) as pool:  # the one of concurrent.futures can hang where it renews a worker
        for found in progress(pool.imap(judge_all, pieces), "checking", len(pieces)):
            answers += found
            if options.json:
                options.json.write_text(json.dumps(answers, indent=0))
    for path in options.add:
        answers += json.loads(path.read_text())
    print(tables(answers))
    if options.docs:
        options.docs.write_text(document(answers, options.sample))


if __name__ == "__main__":
    main()
