"""The tool's side of GradBench's protocol: a message a line in, a response a line out.

An eval sends ``start``, ``define`` (of a module), ``evaluate`` (of a function of it) and ``analysis`` messages; every response has its
message's ``id``. A tool that does not know a module answers ``define`` with ``success: false``; what goes wrong in an evaluation is
answered with ``success: false`` and an ``error`` in words, and the session goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

__all__ = ["Function", "Tool", "evaluate", "respond", "serve", "settle"]


@dataclass(frozen=True)
class Function:
    """A function of a module, in the three parts of which only the second is timed.

    Attributes:
        prepare: makes arrays of a message's input.
        run: computes, and waits for what it has computed.
        finish: makes what JSON can hold of the result and the input.

    """

    prepare: Callable[[Any], Any]
    run: Callable[[Any], Any]
    finish: Callable[[Any, Any], Any]


Module = Mapping[str, Function]


@dataclass(frozen=True)
class Tool:
    """A tool.

    Attributes:
        name: how it calls itself.
        modules: its modules, by name.
        learnt: what is another value after a run in which the tool compiled, or ran what it will compile; for tools that do so between runs.

    """

    name: str
    modules: Mapping[str, Module]
    learnt: Callable[[], object] = lambda: None


class _BadInputError(Exception):
    """What a message asks for is not there; the text says what is."""


def _times(raw: Any) -> tuple[int, float]:
    """Return how often a function is to run at least, and for how many seconds."""
    if not isinstance(raw, dict):
        return 1, 0.0
    runs, seconds = raw.get("min_runs", 1), raw.get("min_seconds", 0)
    for key, number in (("min_runs", runs), ("min_seconds", seconds)):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < 1e9:
            msg = f"{key} is to be a number of at least 0, got {number!r}"
            raise _BadInputError(msg)
    return max(1, int(runs)), float(seconds)


CLOCKS = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}


def evaluate(function: Function, raw: Any, clock: Callable[[], int] = time.perf_counter_ns) -> tuple[Any, list[int]]:
    """Run a function on a message's input, as often as it asks.

    Args:
        function: the function.
        raw: the ``input`` of the message.
        clock: gives nanoseconds.

    Returns:
        The output of the last run, as JSON can hold it, and the nanoseconds of every run.

    """
    runs, seconds = _times(raw)
    prepared = function.prepare(raw)
    timings: list[int] = []
    while len(timings) < runs or sum(timings) < seconds * 1e9:
        started = clock()
        result = function.run(prepared)
        timings.append(clock() - started)
    return function.finish(result, raw), timings


QUIET = 5  # runs in which a tool that learns nothing has settled


def settle(function: Function, raw: Any, learnt: Callable[[], object], seconds: float) -> None:
    """Run a function until the tool has learnt nothing in some runs, or for some seconds of the processor; nothing is timed."""
    prepared, until, quiet, known = function.prepare(raw), time.process_time() + seconds, 0, learnt()
    while quiet < QUIET and time.process_time() < until:
        function.run(prepared)
        before, known = known, learnt()
        quiet = quiet + 1 if known == before else 0


def _named(kind: str, name: object, known: Mapping[str, Any]) -> Any:
    if not isinstance(name, str) or name not in known:
        msg = f"no {kind} {name!r} here; there are {', '.join(known) or 'none'}"
        raise _BadInputError(msg)
    return known[name]


def _evaluated(message: Mapping[str, Any], tool: Tool) -> dict[str, Any]:
    module = _named("module", message.get("module"), tool.modules)
    function = _named(f"function of {message['module']}", message.get("function"), module)
    if "input" not in message:
        raise _BadInputError("the message has no input")
    clock = _named("clock", message.get("clock", "wall"), CLOCKS)  # GradBench sends none
    try:
        if message.get("settle"):  # nor this
            settle(function, message["input"], tool.learnt, float(message["settle"]))
        output, timings = evaluate(function, message["input"], clock)
    except KeyError as e:
        msg = f"{message['module']}.{message['function']}: the input has no {e}"
        raise _BadInputError(msg) from e
    response = {"success": True, "output": output, "timings": [{"name": "evaluate", "nanoseconds": t} for t in timings]}
    json.dumps(response, allow_nan=False)  # JSON has no number for what is not finite: an error, not a line that nobody can read
    return response


def respond(message: Any, tool: Tool) -> dict[str, Any]:
    """Return the response to a message.

    Args:
        message: what a line held.
        tool: the tool that is asked.

    """
    if not isinstance(message, dict):
        return {"id": None, "success": False, "error": f"a message is to be an object, got {type(message).__name__}"}
    response: dict[str, Any] = {"id": message.get("id")}
    kind = message.get("kind")
    try:
        if kind == "start":
            response["tool"] = tool.name
        elif kind == "define":
            _named("module", message.get("module"), tool.modules)
            response["success"] = True
        elif kind == "evaluate":
            response |= _evaluated(message, tool)
    except _BadInputError as e:
        response |= {"success": False, "error": str(e)}
    except Exception as e:  # noqa: BLE001 - whatever it is, the eval is to know, and the session goes on
        where = f"{message.get('module')}.{message.get('function')}"
        response |= {"success": False, "error": f"{where}: {type(e).__name__}: {e}"}
    return response


def serve(tool: Tool, lines: Iterable[str], out: TextIO) -> None:
    """Answer line by line, until there is no further line.

    Args:
        tool: the tool that is asked.
        lines: the messages.
        out: where responses go, flushed after each.

    """
    for line in lines:
        if not line.strip():
            continue
        try:
            response = respond(json.loads(line), tool)
        except json.JSONDecodeError as e:
            response = {"id": None, "success": False, "error": f"the line is not JSON: {e}"}
        print(json.dumps(response), file=out, flush=True)
