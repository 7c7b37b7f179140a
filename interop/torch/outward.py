"""From the tape to PyTorch: a function of the tape on tensors, with a place in torch's graph.

A call keeps its part of the tape, and torch's backward sweeps it.  A derivative that torch is to differentiate is another such call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

import tape
from interop.torch.structures import check_held, mapped, parted
from interop.torch.tensors import conjugated, home, own, to_variable
from tape import extend, jaxapi
from tape.errors import LostGradientError, check_callable
from tape.functions.reads import Reads
from tape.graph.kinds import differentiable
from tape.graph.scope import LOCAL, within
from tape.graph.trie import RECORD
from tape.modes import eager, enable_grad, no_grad
from tape.programs.program import look
from tape.recording import record


def to_torch(tape_fun: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of the tape callable on torch tensors; a call is one node (``torch.autograd.Function``) of torch's graph.

    Args:
        tape_fun: a function of Variables (in tuples, lists, mappings and dataclasses, among anything else) that returns Variables or
            arrays.  It runs once a call; what it records is kept, and swept by torch's backward, in whatever thread that runs.  Ops run one
            by one (``tape.eager``), so that the same tensors give the same bits, as torch's own do; give ``tape.jit(tape_fun)`` to compile
            it.

    Returns:
        A function of tensors in the places of Variables.  Derivatives of any order flow (``create_graph=True``) to the tensors that require
        grad; under ``torch.no_grad`` nothing is recorded.  Results that do not depend on those, integers among them, do not require grad.
        Tensors are copied on the way, so that operations in place on either side change nothing on the other.  Dtypes are kept, as the
        module says: a tensor of float64 is refused while JAX's x64 mode is off, and not rounded.  JAX computes on its default device;
        results are on the device of the first tensor, gradients on those of their tensors.

        ``torch.func`` and forward mode of torch (``torch.vmap``, ``torch.func.grad``, ``jvp``) are refused by torch.

    Raises:
        TapeTypeError: ``tape_fun`` cannot be called; in a call: a tensor's dtype or layout is none of JAX's.
        TapeOverflowError: an integer needs 64 bits, and x64 mode is off.
        LostGradientError: in a call: the result depends on a Variable that requires grad, which is no tensor, and neither ``torch.no_grad``
            nor ``tape.no_grad`` is on; or it is an object of another class that holds one that depends on the arguments.

    Example:
        >>> import torch, interop.torch, tape.numpy as tnp
        >>> smooth = interop.torch.to_torch(lambda x, *, beta: tnp.logaddexp(beta * x, 0.0) / beta)
        >>> x = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> smooth(x, beta=2.0).sum().backward()
        >>> x.grad
        tensor([0.5000, 0.8808])

    """
    check_callable("to_torch", tape_fun)
    name = getattr(tape_fun, "__name__", type(tape_fun).__name__)

    @functools.wraps(tape_fun)
    def called(*args: Any, **kwargs: Any) -> Any:
        tensors, _ = parted((args, kwargs))
        run = _Run(tape_fun, name, args, kwargs, watched=torch.is_grad_enabled() and LOCAL.scope.mode == RECORD)
        results = iter(_Call.apply(run, *tensors) if tensors else run.tensors((), ()))
        return mapped(lambda x: next(results) if _is_array(x) else x, run.result)

    return called


def _is_array(x: Any) -> bool:
    return extend.is_variable(x) or isinstance(x, (jax.Array, np.ndarray))


class _Run:
    """One call: of tensors, to the part of the tape that it records."""

    def __init__(self, fun: Callable[..., Any], name: str, args: Any, kwargs: Any, *, watched: bool) -> None:
        self._fun = fun
        self._name = name
        self._watched = watched  # whether somebody records: what no tensor asks for may be lost nevertheless
        self.wide = jaxapi.X64.value
        self._arguments = args, kwargs
        self.result: Any = None  # the function's, with what it returned in the places of tensors
        self.inputs: Sequence[Any] = ()
        self.outputs: Sequence[Any] = ()
        self.devices: Sequence[torch.device] = ()  # of the inputs

    def tensors(self, tensors: Sequence[torch.Tensor], needs: Sequence[bool]) -> list[torch.Tensor]:
        """Run; return the results as tensors."""
        inputs = [_variable(t, f"to_torch: {self._name}: tensor {i}", need) for i, (t, need) in enumerate(zip(tensors, needs, strict=True))]
        it = iter(inputs)
        args, kwargs = mapped(lambda x: next(it) if isinstance(x, torch.Tensor) else x, self._arguments)
        reads = Reads(LOCAL.scope.forward)
        recorded = self._watched or any(needs)
        with enable_grad() if recorded else no_grad(), eager(), within(forward=reads):
            self.result = self._fun(*args, **kwargs)
            arrays, others = parted(self.result, _is_array)
            outputs = [x if extend.is_variable(x) else record.constant(x) for x in arrays]
        if any(needs):
            repair = "return the Variables themselves, in tuples, lists, mappings or dataclasses"
            given = {id(v) for v in inputs}
            check_held(
                f"to_torch: {self._name}",
                others,
                lambda x: extend.is_variable(x) and x.requires_grad and (not x.is_leaf or id(x) in given),
                repair,
            )
        if recorded:
            try:
                reads.check(self._name, inputs, outputs if any(needs) else [v for v in outputs if v.requires_grad])
            except LostGradientError as e:
                msg = (
                    f"to_torch: {self._name} reads a Variable that requires grad and, as a tensor, is not an argument, so its gradient "
                    "would be lost; pass its value as a tensor, read variable.detach(), or call it under torch.no_grad()"
                )
                raise LostGradientError(msg) from e
        del self._arguments
        self.result = mapped(lambda x: record.constant(False) if _is_array(x) else x, self.result)
        self.inputs, self.outputs, self.devices = inputs, outputs, [t.device for t in tensors]
        device = next(iter(self.devices), torch.empty(0).device)
        return [own(look(v), device) for v in outputs]


class _Derivative:
    """The sweep of a call: of its inputs and cotangents, to the gradients of the inputs ``wanted``."""

    def __init__(self, run: Any, wanted: Sequence[int], present: Sequence[int]) -> None:
        self._run = run
        self.wide = run.wide
        self._wanted = wanted
        self._present = present
        self.flows: list[bool] = []
        self.inputs: Sequence[Any] = ()
        self.outputs: Sequence[Any] = ()
        self.devices: Sequence[torch.device] = ()

    def tensors(self, tensors: Sequence[torch.Tensor], needs: Sequence[bool]) -> list[torch.Tensor]:
        """Sweep; return the gradients that there are."""
        count = len(self._wanted)
        seeds = [_variable(t, "to_torch: a gradient", need) for t, need in zip(tensors[count:], needs[count:], strict=True)]
        gradients = _swept(self._run, self._wanted, self._present, seeds, create=any(needs))
        self.flows = [g is not None for g in gradients]
        self.inputs = [*[self._run.inputs[i] for i in self._wanted], *seeds]
        self.outputs = [g for g in gradients if g is not None]
        devices = [self._run.devices[i] for i in self._wanted]
        self.devices = [*devices, *[t.device for t in tensors[count:]]]
        return [own(look(g), d) for g, d in zip(gradients, devices, strict=True) if g is not None]


def _swept(run: Any, wanted: Sequence[int], present: Sequence[int], seeds: Sequence[Any], *, create: bool) -> Sequence[Any]:
    with enable_grad(), eager():
        gradients: tuple[Any, ...] = tape.gradients(
            [run.outputs[i] for i in present],
            [run.inputs[i] for i in wanted],
            seeds,
            unconnected="none",
            retain_graph=True,  # it goes with torch's graph
            create_graph=create,
        )
    return gradients


def _variable(tensor: torch.Tensor, what: str, requires_grad: bool) -> Any:
    constant = to_variable(tensor, what, home())
    return record.leaf(look(constant), requires_grad=True) if requires_grad and differentiable(constant) else constant


class _Call(torch.autograd.Function):  # type: ignore[misc] # torch's types are not looked at
    """A node of torch's graph that is a part of the tape."""

    @staticmethod
    def forward(ctx: Any, run: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = run.tensors(tensors, ctx.needs_input_grad[1:])
        ctx.run = run
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[t for t, v in zip(results, run.outputs, strict=True) if not v.requires_grad])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        with jax.enable_x64(ctx.run.wide):  # a thread's own, and this may be another one
            return _Call._swept(ctx, gradients)

    @staticmethod
    def _swept(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
        run = ctx.run
        wanted = [i for i, v in enumerate(run.inputs) if v.requires_grad and ctx.needs_input_grad[i + 1]]
        present = [i for i, g in enumerate(gradients) if g is not None]
        gradients_by_input: list[torch.Tensor | None] = [None] * (1 + len(run.inputs))
        if not (wanted and present):
            return tuple(gradients_by_input)
        seeds = conjugated([g for g in gradients if g is not None])
        derivative = _Derivative(run, wanted, present)
        if torch.is_grad_enabled():
            tensors = ctx.saved_tensors
            results = _Call.apply(derivative, *[tensors[i] for i in wanted], *seeds)
        else:
            results = derivative.tensors([*[torch.empty(0)] * len(wanted), *seeds], [False] * (len(wanted) + len(seeds)))
        it = iter(conjugated(results))
        for i, flows in zip(wanted, derivative.flows, strict=True):
            gradients_by_input[i + 1] = next(it) if flows else None
        return tuple(gradients_by_input)
