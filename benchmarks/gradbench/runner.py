"""``python -m benchmarks gradbench``: the eval's side, for several tools in turn.

Each tool is a process that is asked as GradBench's harness would ask it. Of every function on every input the first evaluation is timed
(it includes tracing and compiling), then all tools warm up, and then they take turns, several rounds long; a figure is the median of all
evaluations of the rounds. Every answer is compared with the oracle's, with GradBench's tolerance.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.gradbench.__main__ import TOOLS
from benchmarks.gradbench.cases import FUNCTIONS, Case, cases
from benchmarks.gradbench.oracle import expected, mismatches
from benchmarks.gradbench.page import document, table
from benchmarks.gradbench.protocol import CLOCKS
from benchmarks.gradbench.session import Session, SilentToolError
from tape.terminal.progress import progress, working_on

__all__ = ["Effort", "Result", "main", "run"]

NEEDS = {"tape": "jax", "jax": "jax", "torch": "torch", "autograd": "autograd"}
SLOW = 2.0  # seconds from which one evaluation is enough


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        size: of the inputs: "tiny", "quick" or "default".
        settle_seconds: for how long of its processor's time, at most, the tape, which compiles in the background, runs a function
            until nothing of it is interpreted.
        warm_seconds: how long each tool runs it then, before the rounds.
        rounds: how many turns each tool has.
        round_seconds: how long a turn lasts, at least.
        patience: seconds until a tool is given up for one function.
        clock: "wall", or "cpu": the seconds that the tool's process computed.

    """

    size: str
    settle_seconds: float
    warm_seconds: float
    rounds: int
    round_seconds: float
    patience: float
    clock: str = "wall"


EFFORTS = {
    "tiny": Effort("tiny", 0.0, 0.0, 1, 0.0, 240.0),
    "quick": Effort("quick", 15.0, 0.1, 3, 0.02, 240.0),
    "default": Effort("default", 60.0, 0.3, 5, 0.1, 240.0),
}


@dataclass
class Result:
    """What a tool did with one function on one input.

    Attributes:
        first: seconds of the first evaluation.
        later: seconds of each evaluation in the rounds.
        problem: why there is no time, or what was wrong; empty if nothing was.

    """

    first: float | None = None
    later: list[float] = field(default_factory=list)
    problem: str = ""

    @property
    def steady(self) -> float | None:
        """The median of the later evaluations; of one that took long, itself."""
        return statistics.median(self.later) if self.later else self.first if self.first and self.first > SLOW else None


Results = dict[tuple[str, str, str], dict[str, Result]]  # by module, description and function, and by tool


class _Turns:
    """The tools, and how one function on one input is asked of them."""

    def __init__(self, tools: Sequence[str], effort: Effort) -> None:
        self.effort = effort
        self.sessions: dict[str, Session] = {}
        self.tools = tools
        self.order = random.Random(0)  # noqa: S311 - an order, no secret

    def session(self, tool: str, module: str) -> Session:
        """Return the conversation with a tool, begun if it is not, with a module defined."""
        found = self.sessions.get(tool)
        if found is None:
            found = self.sessions[tool] = Session(tool)
            found.send("start", self.effort.patience, eval=module)
        response = found.send("define", self.effort.patience, module=module)
        if not response["success"]:
            msg = f"{tool}: {response['error']}"
            raise SilentToolError(msg)
        return found

    def ask(self, tool: str, case: Case, function: str, wanted: Any, seconds: float, settle: float) -> tuple[list[float], str]:
        """Ask a tool once; return the seconds of its evaluations, and what was wrong."""
        try:
            session = self.session(tool, case.module)
            given = case.input | {"min_runs": 1, "min_seconds": seconds} if isinstance(case.input, dict) else case.input
            fields = {"module": case.module, "function": function, "input": given, "description": case.description}
            fields |= {"clock": self.effort.clock} if self.effort.clock != "wall" else {}
            fields |= {"settle": settle} if settle else {}
            response = session.send("evaluate", self.effort.patience, **fields)
            if not response["success"]:
                return [], response.get("error", "no success")
            wrong = mismatches(wanted, response["output"])
            session.send("analysis", self.effort.patience, of=session.last, valid=not wrong, **({"error": wrong[0]} if wrong else {}))
        except SilentToolError as e:
            if (ended := self.sessions.pop(tool, None)) is not None:
                ended.end()
            return [], str(e)
        return [t["nanoseconds"] / 1e9 for t in response["timings"] if t["name"] == "evaluate"], "; ".join(wrong)

    def time(self, case: Case, function: str) -> dict[str, Result]:
        """Time a function on an input with all tools."""
        results = {tool: Result() for tool in self.tools}
        name = f"{case.module}.{function} {case.description}"
        wanted = expected(case.module, function, case.input)

        def warm(tool: str) -> None:
            turn(tool, "warming up", self.effort.warm_seconds, self.effort.settle_seconds)

        def turn(tool: str, what: str, seconds: float, settle: float = 0.0) -> list[float]:
            working_on(f"{name}: {tool}, {what}")
            times, problem = self.ask(tool, case, function, wanted, seconds, settle)
            results[tool].problem = results[tool].problem or problem
            return times

        for tool, result in results.items():
            times = turn(tool, "first evaluation", 0.0)
            result.first = times[0] if times else None
            if times and not result.problem and times[0] <= SLOW:
                warm(tool)
            elif times and not result.problem:  # compiling may be what took long
                result.later = turn(tool, "second evaluation", 0.0)
        able = [t for t, r in results.items() if not r.problem and not (r.later and r.later[0] > SLOW)]
        for tool in able:
            if results[tool].later:
                warm(tool)
                results[tool].later.clear()
        for i in range(self.effort.rounds):
            for tool in self.order.sample(able, len(able)):
                if not results[tool].problem:
                    results[tool].later += turn(tool, f"round {i + 1} of {self.effort.rounds}", self.effort.round_seconds)
        return results

    def end(self) -> None:
        """End all tools."""
        for session in self.sessions.values():
            session.end()


def run(tools: Sequence[str], evals: Sequence[str], effort: Effort, found: Results) -> None:
    """Run evals on tools.

    Args:
        tools: names of tools.
        evals: names of evals; those of :data:`FUNCTIONS`.
        effort: how long to measure.
        found: what each tool did is put there, function by function.

    """
    turns = _Turns(tools, effort)
    asked = [(case, function) for case in cases(effort.size) if case.module in evals for function in FUNCTIONS[case.module]]
    try:
        for case, function in progress(asked, "gradbench"):
            found[case.module, case.description, function] = turns.time(case, function)
    finally:
        turns.end()


def main(arguments: Sequence[str]) -> None:
    """Run GradBench's evals here; end with status 1 if an answer of the tape's is missing or wrong."""
    parser = argparse.ArgumentParser("python -m benchmarks gradbench", description=__doc__)
    parser.add_argument("eval", nargs="*", help=f"which evals ({', '.join(FUNCTIONS)}); all if none is named")
    parser.add_argument("--quick", action="store_true", help="small inputs and few rounds")
    parser.add_argument("--tools", default=",".join(TOOLS), help="comma-separated (default: those of %(default)s that are installed)")
    parser.add_argument(
        "--settle",
        type=float,
        metavar="SECONDS",
        help="of the processor that the tape may take, at most, until all is compiled, before it is timed",
    )
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: seconds of the processor, for a busy machine")
    parser.add_argument("--docs", metavar="FILE", help="write the page of results there")
    options = parser.parse_args(arguments)
    given = [*options.eval, *(["--quick"] if options.quick else []), *(["--clock cpu"] if options.clock == "cpu" else [])]
    given += [f"--settle {options.settle:g}"] if options.settle is not None else []
    if unknown := set(options.eval) - FUNCTIONS.keys():
        parser.error(f"unknown eval {', '.join(sorted(unknown))}; there are {', '.join(FUNCTIONS)}")
    if unknown := set(options.tools.split(",")) - set(TOOLS):
        parser.error(f"unknown tool {', '.join(sorted(unknown))}; there are {', '.join(TOOLS)}")
    tools = [t for t in options.tools.split(",") if importlib.util.find_spec(NEEDS[t])]
    started, effort = time.perf_counter(), EFFORTS["quick" if options.quick else "default"]
    effort = replace(effort, clock=options.clock)
    if options.settle is not None:
        effort = replace(effort, settle_seconds=options.settle)
    found: Results = {}
    try:
        run(tools, options.eval or tuple(FUNCTIONS), effort, found)
    except KeyboardInterrupt:
        print("interrupted; what was measured:")
    print(table(found, tools))
    print(f"\n{time.perf_counter() - started:.0f} s")
    wrong = [
        f"{'.'.join((key[0], key[2]))} {key[1]}: {tool}: {r.problem}" for key, row in found.items() for tool, r in row.items() if r.problem
    ]
    for line in wrong:
        print(line)
    if options.docs:
        document(found, tools, options.docs, effort.rounds, given)
    if any(row["tape"].problem for row in found.values() if "tape" in row):
        sys.exit(1)
