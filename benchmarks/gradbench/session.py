"""The eval's side of the protocol: a tool in a process of its own, to which messages go and from which responses come."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

__all__ = ["Session", "SilentToolError"]

ROOT = pathlib.Path(__file__).parents[2]


class SilentToolError(Exception):
    """A tool answers no more; the text says why."""


class Session:
    """A conversation with a tool.

    Args:
        tool: the name that ``python -m benchmarks.gradbench`` takes.
        environment: variables of the process, besides those of this one.

    """

    def __init__(self, tool: str, environment: Mapping[str, str] | None = None) -> None:
        self.tool = tool
        self._next = 0
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a name of a tool
            [sys.executable, "-W", "ignore", "-m", "benchmarks.gradbench", tool],
            cwd=ROOT,
            env=os.environ | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def say(self, line: str, patience: float | None = None) -> Any:
        """Send a line and return the response.

        Args:
            line: what is sent.
            patience: seconds to wait for the response; None waits as long as the tool lives.

        Raises:
            SilentToolError: the tool ended, or did not answer in time; it is ended then.

        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._lines.get(timeout=patience)
        except (OSError, ValueError, queue.Empty) as e:  # ValueError: the pipe is closed
            self.end()
            msg = f"{self.tool} did not answer in {patience:g} s" if isinstance(e, queue.Empty) else f"{self.tool} has ended"
            raise SilentToolError(msg) from e
        if not answer:
            msg = f"{self.tool} has ended"
            raise SilentToolError(msg)
        return json.loads(answer)

    def send(self, kind: str, patience: float | None = None, **fields: Any) -> Any:
        """Send a message of a kind, and return the response, which has the message's ``id``."""
        message = {"id": self._next, "kind": kind, **fields}
        self._next += 1
        response = self.say(json.dumps(message), patience)
        if response.get("id") != message["id"]:
            msg = f"{self.tool} answered message {response.get('id')} where {message['id']} was asked"
            raise SilentToolError(msg)
        return response

    @property
    def last(self) -> int:
        """The ``id`` of the message that was sent last."""
        return self._next - 1

    def end(self) -> None:
        """Close the pipe, and end a tool that goes on nevertheless."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):  # it had ended before
                self._process.stdin.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
