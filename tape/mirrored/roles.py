"""Roles: which parameters of a JAX function take arrays, read off its signature."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["Roles", "roles_of"]

# Arguments that stay static although they take arrays: x**2 is another primitive than x**y, and a static roll is a concatenation.
_STATIC_ARGUMENTS = {("power", 1), ("pow", 1), ("float_power", 1), ("integer_pow", 1), ("roll", 1)}
_ARRAY_NAMES = ("ArrayLike", "RealArray", "IntegerArray", "numpy.ndarray", "RealNumeric", "Numeric")


class Roles:
    """Which parameters of a function take arrays, read off its annotations at the first call."""

    __slots__ = ("names", "positions", "rest", "scalars")

    def __init__(self, fun: Callable[..., Any], name: str) -> None:
        self.names: dict[str, bool] = {}
        positions: list[bool] = []
        self.rest = True
        self.scalars = True  # whether Python scalars can be arrays; unlearned when the function needs them static
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        for p in parameters:
            takes = _takes_array(p)
            if p.kind is p.VAR_POSITIONAL:
                self.rest = takes
                continue
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                takes = takes and (name, len(positions)) not in _STATIC_ARGUMENTS
                positions.append(takes)
            self.names[p.name] = takes
        self.positions = tuple(positions)

    def at(self, position: int) -> bool:
        """Say whether the argument at ``position`` takes an array."""
        return self.positions[position] if position < len(self.positions) else self.rest


def _takes_array(parameter: inspect.Parameter) -> bool:
    if parameter.annotation is inspect.Parameter.empty:
        return not isinstance(parameter.default, (bool, int))
    annotation = parameter.annotation if isinstance(parameter.annotation, str) else str(parameter.annotation)
    if any(name in annotation for name in _ARRAY_NAMES):
        return True
    return annotation.split("|")[0].strip() in {"Array", "Any"}


@functools.cache
def roles_of(fun: Callable[..., Any], name: str) -> Roles:
    """Return the roles of a function's parameters."""
    return Roles(fun, name)
