"""Running: how a kernel runs on its own, on the host (:mod:`tape.ops.hosting`) or compiled by XLA."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from tape import jaxapi
from tape.ops.costs import Cost, cost_of
from tape.ops.hosting import LIGHT, at_first, hosted, runs
from tape.ops.jaxprs import calls_back

# In the order of their worth; XLA's older emitter of loops takes half the time of its new one.
_OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@functools.cache
def quick_options(platform: str) -> dict[str, Any] | None:
    """Return those of the options that this version of XLA knows."""
    if platform != "cpu":
        return None
    lowered = jax.jit(lambda x: x).lower(np.float32(0))

    def known(options: dict[str, Any]) -> bool:
        try:
            lowered.compile(options)
        except Exception:  # noqa: BLE001 - whatever a version of XLA says of a name that it does not know
            return False
        return True

    if known(_OPTIONS):
        return dict(_OPTIONS)
    return {name: value for name, value in _OPTIONS.items() if known({name: value})}


HOSTED = 1e-5  # seconds for an entry that the host runs, from recording it to its value, besides the work itself
AWAY = 4e-5  # and where JAX's arrays are not in the host's memory, so that its operands and results are copied
CALLS = 64  # of a kernel on its own; each brings its results back from the host, and after them it is worth its compilation


class Waiting:
    """A compiled function that waits for its results: that it fails may be known only then, and what failed is to stay as it was."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Return the results once they are there."""
        return jax.block_until_ready(self._function(*args))  # type: ignore[no-any-return]

    def lower(self, *args: Any) -> Any:
        """Lower it for arguments like these."""
        return self._function.lower(*args)


def fails_late(jaxprs: Iterable[jaxapi.ClosedJaxpr]) -> bool:
    """Tell whether a program of some jaxprs may return results and fail after that: where a device that is no CPU calls Python."""
    return jax.default_backend() != "cpu" and any(map(calls_back, jaxprs))


class Runner:
    """What runs a jaxpr: inline as part of a program, on arrays of NumPy, or on JAX's."""

    __slots__ = (
        "_calls",
        "_cost",
        "_executable",
        "_first",
        "_host",
        "_hosting",
        "_left",
        "apart",
        "exact",
        "inline",
        "jaxpr",
        "light",
        "name",
        "pinned",
        "spread",
        "tried",
    )

    def __init__(self, name: str, jaxpr: jaxapi.ClosedJaxpr, pinned: bool) -> None:
        self.name = name
        self.jaxpr = jaxpr
        self.inline: Callable[..., Sequence[Any]] = jaxapi.jaxpr_as_fun(jaxpr)
        self.tried = False  # it is part of a structure that was compiled whole in its place, and that did not come back so far
        self.spread = False  # it was part of a structure that ran on several devices
        self._cost: Cost | None = None
        self.pinned = pinned  # it runs on its own where entries run one by one
        # Nothing is foreseen of a program with it, nor is that shared: it holds arrays (numbers, kept alike by JAX 0.9, do not count).
        self.apart = pinned or any(getattr(c, "ndim", 1) for c in jaxpr.consts)
        self.exact = False  # it is to round as jax.jit does, so that nothing but XLA runs it, with all of its optimisation
        self.light = False  # :attr:`is_light`, as far as anybody has asked
        self._host: Any = None  # what runs it there; False where NumPy cannot, or no longer should
        self._hosting = 0.0  # seconds that a run takes there
        self._left = 0.0  # runs there
        self._executable: Callable[..., Sequence[Any]] | None = None
        self._first: Callable[..., Sequence[Any]] | None = None  # what is called in place of the executable, for its first runs
        self._calls = 0.0

    def hosting(self) -> Any:
        """Return what runs the kernel on arrays of NumPy; False where it is not a kernel for that, or worth its compilation by now."""
        if self._host is None:
            function, cost = (None, 0.0) if self.pinned or self.exact else hosted(self.jaxpr)
            self._left, self._hosting = runs(cost, self.cost.alone), (HOSTED if jax.default_backend() == "cpu" else AWAY) + cost * 1e-9
            self._host = function if function is not None and self._left else False
            self.light = bool(self._host) and cost <= LIGHT
        return self._host

    @property
    def is_light(self) -> bool:
        """Whether it always runs on the host, and its values are small."""
        return self.light or (self._host is None and bool(self.hosting()) and self.light)

    @property
    def host(self) -> Any:
        """:meth:`hosting`, for one run."""
        host = self.hosting()
        self._left -= 1
        if self._left <= 0:
            self._host = self.light = False
        return host

    def leave_to_xla(self) -> None:
        """No longer run it on the host, whatever was foreseen: NumPy has refused it."""
        self._host = self.light = False
        self._left = self._calls = 0.0

    @property
    def rent(self) -> float:
        """Seconds that its next run on its own takes."""
        return self._hosting if self.hosting() else self.cost.run

    @property
    def cost(self) -> Cost:
        """What it takes to compile and to run it."""
        if self._cost is None:
            self._cost = cost_of(self.jaxpr.jaxpr)
        return self._cost

    @property
    def unmet(self) -> bool:
        """Whether it never ran, and nobody has asked how it would."""
        return self._host is None

    @property
    def cold(self) -> bool:
        """Whether it is to be compiled when somebody asks for its executable."""
        return self._executable is None and not self.hosting()

    @property
    def executable(self) -> Callable[..., Sequence[Any]]:
        """The kernel for one call on JAX's arrays, compiled on its own; what can run on the host does so for some calls before."""
        if self._executable is None:
            inline = self.inline

            def run(*args: jax.Array) -> Sequence[Any]:
                return inline(*args)

            run.__name__ = self.name
            quick = self.cost.small and not self.pinned and not self.exact  # JAX takes options where it does not trace
            compiled = jax.jit(run, compiler_options=quick_options(jax.default_backend()) if quick else None)
            self._executable = Waiting(compiled) if fails_late([self.jaxpr]) else compiled
            host = self.hosting()
            if host:
                self._first, self._calls = at_first(host, self.jaxpr, self._executable), min(self._left, CALLS)
        if self._first is not None:
            self._calls -= 1
            if self._calls >= 0:
                return self._first
            self._first = None
        return self._executable
