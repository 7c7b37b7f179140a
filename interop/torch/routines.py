"""Routines: a torch callable, with the parameters it may read, as an op of the tape: arguments in, results out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from interop.torch.graphs import Graph, NothingError, check_sources, op_named
from interop.torch.programs import record_traced
from interop.torch.store import Store
from interop.torch.structures import Holders, check_tensors, find, is_plain, mapped, parted, tensor_holders
from interop.torch.tensors import home, own, shared
from tape import extend
from tape.errors import LostGradientError
from tape.graph import boundary
from tape.graph.constants import operand
from tape.graph.scope import LOCAL


class _Place:
    """Stands for an array among the arguments."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Arguments:
    """The arguments of a call, with arrays taken out; ``variables`` has them."""

    __slots__ = ("_args", "_kwargs", "variables")

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.variables: list[Any] = []

        def take(x: Any) -> Any:
            if isinstance(x, (jax.Array, np.ndarray)) or extend.is_variable(x):
                self.variables.append(extend.identity(x) if extend.is_variable(x) else operand(x))
                return _Place(len(self.variables) - 1)
            if isinstance(x, torch.Tensor) and x.requires_grad:
                msg = (
                    f"{name}: an argument is a torch tensor that requires grad (shape {tuple(x.shape)}), whose gradient would be lost; "
                    "pass a tape.Variable, or tensor.detach()"
                )
                raise LostGradientError(msg)
            if is_plain(x) and (lost := find([x], lambda t: isinstance(t, torch.Tensor) and t.requires_grad)) is not None:
                msg = (
                    f"{name}: an argument is an object of type {type(x).__name__} that holds a torch tensor which requires grad (shape "
                    f"{tuple(lost[0].shape)}), whose gradient would be lost; pass an object with tape.Variables in its place, as a call "
                    "returns it, or tensor.detach()"
                )
                raise LostGradientError(msg)
            return x.item() if isinstance(x, np.generic) else x

        self._args, self._kwargs = mapped(take, (args, kwargs), Holders(extend.is_variable))

    def filled(self, tensors: Sequence[torch.Tensor], device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with tensors in the places of arrays; those that are tensors already go to the device."""
        if not tensors:
            return self._args, self._kwargs

        def put(x: Any) -> Any:
            if isinstance(x, _Place):
                return tensors[x.number]
            return x.to(device) if isinstance(x, torch.Tensor) else x

        def is_put(x: Any) -> bool:
            return isinstance(x, _Place) or (isinstance(x, torch.Tensor) and x.device != device)

        args, kwargs = mapped(put, (self._args, self._kwargs), Holders(is_put))
        return args, kwargs


class Routine:
    """A torch callable that is recorded.

    Args:
        name: what it is called on the tape.
        fun: the callable.
        store: what it may read.
        indices: which of the store's parameters it may read.

    """

    def __init__(self, name: str, fun: Callable[..., Any], store: Store, indices: Sequence[int] = ()) -> None:
        self.name = name
        self.fun = fun
        self.store = store
        self.indices = indices
        self.device = store.device(indices)  # where torch computes; None: where JAX does
        self._op = op_named(name)
        self._checked: set[Any] = set()  # ways of calling whose sources were seen to be inputs

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call; return what torch does, with Variables in place of tensors."""
        arguments = Arguments(self.name, args, kwargs)
        variables = [*[self.store.parameters[i] for i in self.indices], *arguments.variables]
        if LOCAL.scope.trace.capturing or any(map(boundary.is_traced, variables)):
            result, outputs = record_traced(self.name, self.fun, self.store, self.indices, arguments)
        else:
            run = _Run(self, arguments)
            try:
                outputs = self._op.apply(run, self.name, *variables)
            except NothingError:
                outputs = ()
            result = run.result
            self.store.note(run.tensors, run.versions)
        it = iter(outputs)
        return mapped(lambda x: next(it) if isinstance(x, torch.Tensor) else x, result, tensor_holders())

    def check(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor | None], needs: tuple[bool, ...]) -> None:
        """Refuse results that depend on what is not an input; a module is asked once for each mode and choice of gradients."""
        key = (needs, self.store.modes()) if self.store.modules else None
        if key is None or key not in self._checked:
            check_sources(self.name, outputs, inputs)
            self._checked.add(key)


class _Run:
    """One run on values."""

    __slots__ = ("arguments", "result", "routine", "tensors", "versions")

    result: Any

    def __init__(self, routine: Routine, arguments: Arguments) -> None:
        self.routine = routine
        self.arguments = arguments
        self.tensors: Sequence[torch.Tensor] = ()
        self.versions: Sequence[int] = ()

    def __call__(self, values: list[Any], needs: tuple[bool, ...]) -> Graph:
        routine, store = self.routine, self.routine.store
        count = len(routine.indices)
        self.tensors = tensors = store.present()
        self.versions = [t._version for t in tensors]
        place = home([*values[count:], *values[:count]])
        device = routine.device or place
        leaves: list[torch.Tensor | None] = [tensors[i] if need else None for i, need in zip(routine.indices, needs, strict=False)]
        given = []
        for value, need in zip(values[count:], needs[count:], strict=True):
            leaf = shared(value, device).requires_grad_() if need else None
            leaves.append(leaf)
            given.append(own(value, device) if leaf is None else leaf)
        recorded = any(needs)
        with store.installed(tensors), torch.inference_mode(mode=False), torch.set_grad_enabled(recorded):
            given = [t.clone() if t.requires_grad else t for t in given]  # which torch code may write to
            args, kwargs = self.arguments.filled(given, device)
            self.result = routine.fun(*args, **kwargs)
            outputs, others = parted(self.result, holders=tensor_holders())
        if recorded:
            check_tensors(routine.name, others, flowing=True)
        if not outputs:
            raise NothingError
        if recorded:
            routine.check(outputs, leaves, needs)
        return Graph(leaves, outputs, place, functools.partial(store.installed, tensors))
