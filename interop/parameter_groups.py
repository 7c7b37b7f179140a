"""What an optimizer trains: groups of parameters with hyperparameters of their own, as users of PyTorch know them, in terms of optax."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

import tape
from tape import extend
from tape.errors import TapeTypeError, TapeValueError

PARAMS = "params"


def parameter_groups(groups: Sequence[Mapping[str, Any]], factory: Callable[..., Any], **defaults: Any) -> tuple[list[Any], Any]:
    """Make parameters and a transformation of groups: what :class:`Optimizer` takes.

    It is ``optax.multi_transform`` of ``optax.inject_hyperparams(factory)``, so that ``optimizer.param_groups[i]["learning_rate"] = 0.01``
    sets a hyperparameter between steps.

    Args:
        groups: dictionaries with "params", a pytree of Variables, and the hyperparameters in which a group differs.
        factory: what makes a transformation of hyperparameters, ``optax.adamw`` for instance.
        defaults: the hyperparameters of all groups that have no others.

    Returns:
        The list of the groups' parameters, and the transformation.

    Raises:
        TapeTypeError: ``factory`` cannot be called, or takes no such hyperparameter.
        TapeValueError: there are no groups, or one has no "params".

    Example:
        >>> import interop, optax, tape
        >>> body, head = tape.Variable(1.0), tape.Variable(1.0)
        >>> groups = [{"params": [body]}, {"params": [head], "learning_rate": 0.5}]
        >>> optimizer = interop.optax.Optimizer(*interop.optax.parameter_groups(groups, optax.sgd, learning_rate=0.25))
        >>> (body + head).backward()
        >>> optimizer.step()
        >>> float(body), float(head)
        (0.75, 0.5)
        >>> optimizer.param_groups[1]["learning_rate"] = 0.25
        >>> optimizer.step()
        >>> float(body), float(head)
        (0.5, 0.25)

    """
    if not callable(factory):
        msg = f"parameter_groups: expected a function that makes a transformation, as optax.sgd, got {type(factory).__name__}"
        raise TapeTypeError(msg)
    groups = list(groups)
    for i, group in enumerate(groups or [{}]):
        if not hasattr(group, "keys") or PARAMS not in group:
            what = f"group {i} has no 'params'" if groups else "there are no groups"
            msg = f"parameter_groups: {what}; pass dictionaries as {{'params': variables, 'learning_rate': 0.1}}"
            raise TapeValueError(msg)
    transforms: dict[Any, Any] = {}
    for i, group in enumerate(groups):
        given = {**defaults, **{name: x for name, x in group.items() if name != PARAMS}}
        static = [name for name in inspect.signature(factory).parameters if name not in given]
        try:
            transforms[i] = optax.inject_hyperparams(factory, static_args=static)(**given)
        except TypeError as e:
            msg = f"parameter_groups: group {i}: {e}{'; optax calls it learning_rate' if 'lr' in given else ''}"
            raise TapeTypeError(msg) from e
    parameters = [list(p) if isinstance(p := group[PARAMS], Iterator) else p for group in groups]
    return parameters, optax.multi_transform(transforms, [*transforms])  # each number is the label of its group's whole tree


class Group(MutableMapping[str, Any]):
    """One group: its parameters under "params", and its hyperparameters, which can be set for the steps that follow."""

    def __init__(self, params: Any, hyperparameters: MutableMapping[str, Any] | None) -> None:
        self._params = params
        self._hyperparameters = {} if hyperparameters is None else hyperparameters
        self._fixed = hyperparameters is None

    def __getitem__(self, name: str) -> Any:
        return self._params if name == PARAMS else self._hyperparameters[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name == PARAMS:
            msg = "Optimizer: the parameters of a group stay as they are; make a new Optimizer for others"
            raise TapeTypeError(msg)
        if self._fixed:
            msg = (
                f"Optimizer: nothing reads {name!r} of this group, as optax makes its numbers a part of the transformation; give Optimizer "
                "*interop.optax.parameter_groups([{'params': variables}], optax.sgd, learning_rate=0.1) to set them between steps"
            )
            raise TapeValueError(msg)
        self._hyperparameters[name] = value

    def __delitem__(self, name: str) -> None:
        del self._hyperparameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter([PARAMS, *self._hyperparameters])

    def __len__(self) -> int:
        return 1 + len(self._hyperparameters)

    def __repr__(self) -> str:
        return repr(dict(self))


def check_trained(parameters: Any, leaves: Sequence[Any], transformation: Any) -> None:
    """Raise where ``leaves`` (of the pytree ``parameters``) are not different leaves that require grad, or optax made no transformation."""
    if _transforms(parameters):
        msg = "Optimizer: got a transformation where parameters stand; write Optimizer(parameters, transformation)"
        raise TapeTypeError(msg)
    seen: set[int] = set()
    for i, p in enumerate(leaves):
        if not isinstance(p, tape.Variable):
            msg = f"Optimizer: parameter {i} must be a tape.Variable, got {type(p).__name__}; {_repair(parameters, p)}"
            raise TapeTypeError(msg)
        if not (p.requires_grad and p.is_leaf):
            advice = "leave it out, or call its requires_grad_() (should it be frozen again afterwards, steps skip it)"
            msg = (
                f"Optimizer: parameter {i} ({extend.describe(p)}) must be a leaf that requires grad; "
                f"{advice if p.is_leaf else 'pass the Variable that was made first'}"
            )
            raise TapeValueError(msg)
        if id(p) in seen:
            msg = f"Optimizer: parameter {i} ({extend.describe(p)}) is given twice"
            raise TapeValueError(msg)
        seen.add(id(p))
    if not _transforms(transformation):
        repair = "call it, as in optax.adam(1e-3)" if callable(transformation) else "pass one, such as optax.adam(1e-3)"
        msg = f"Optimizer: transformation must be an optax.GradientTransformation, got {type(transformation).__name__}; {repair}"
        raise TapeTypeError(msg)


def _transforms(given: Any) -> bool:
    return hasattr(given, "init") and hasattr(given, "update")


def _repair(parameters: Any, given: Any) -> str:
    """Say what to write where something stands for a parameter."""
    if isinstance(parameters, list) and any(isinstance(group, dict) and PARAMS in group for group in parameters):
        return "for groups, pass *interop.optax.parameter_groups(groups, optax.sgd, learning_rate=0.1)"
    if hasattr(given, "parameters"):
        return "pass its parameters()"
    if isinstance(given, str):
        return "for names and Variables in turn, pass dict(named)"
    if isinstance(given, (jax.Array, np.ndarray, np.generic, float, int, complex)):
        return "wrap it with tape.Variable"
    return "pass the Variables in it, in a list or a dictionary"
