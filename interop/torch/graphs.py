"""Calls of torch on values: torch runs once, its graph is kept, and sweeps ask that graph for the gradients, at every order.

A derivative is an op in the same way: its graph goes from the cotangents and the inputs to the gradients.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

import tape
from interop.torch.tensors import conjugated, shared, to_variable
from tape.errors import LostGradientError, TapeTypeError
from tape.graph import boundary
from tape.graph.scope import LOCAL
from tape.graph.trie import RECORD
from tape.programs.program import look


class NothingError(Exception):
    """A call had no tensor among its results: there is no op."""


class Graph:
    """A graph of torch's, from inputs to outputs.

    Attributes:
        inputs: for each array argument of the op its tensor, None where no gradient goes.
        outputs: the tensors that the op returns.
        device: where the arrays of the outputs are to be, as :func:`interop.torch.tensors.home` says it.
        around: what is to hold while torch goes through it: a context manager.

    """

    __slots__ = ("around", "device", "inputs", "outputs")

    def __init__(
        self,
        inputs: Sequence[torch.Tensor | None],
        outputs: Sequence[torch.Tensor],
        device: torch.device,
        around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.device = device
        self.around = around

    def pulled(self, wanted: Sequence[int], present: Sequence[int], seeds: Sequence[torch.Tensor], *, create: bool) -> list[Any]:
        """Return the gradients (JAX's) of the inputs ``wanted`` from those of the outputs ``present``; None where none flows."""
        with self.around(), torch.enable_grad():
            gradients = torch.autograd.grad(
                [self.outputs[i] for i in present],
                [self.inputs[i] for i in wanted],
                conjugated(seeds),
                retain_graph=True,  # it goes with the op
                create_graph=create,
                allow_unused=True,
            )
            return [None if g is None else conjugated([g])[0] for g in gradients]


class _Call(tape.Function):
    """An op that torch computes."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[list[Any], tuple[bool, ...]], Graph], what: str, *inputs: Any) -> Any:
        graph = run([look(v) for v in inputs], ctx.needs_input_grad)
        copy = not isinstance(run, _Derivative)
        results = [to_variable(t, f"{what}: result {i}", graph.device, copy=copy) for i, t in enumerate(graph.outputs)]
        ctx.mark_non_differentiable(*[v for v, t in zip(results, graph.outputs, strict=True) if not t.requires_grad])
        if True in ctx.needs_input_grad:
            ctx.graph, ctx.what = graph, what
            ctx.save_for_backward(*inputs)
        return results

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        graph: Graph = ctx.graph
        count = len(graph.inputs)
        wanted = [i for i, t in enumerate(graph.inputs) if t is not None]
        present = [i for i, ct in enumerate(cotangents) if ct is not None]
        given = [cotangents[i] for i in present]
        gradients: list[Any] = [None] * count
        if not (wanted and present):
            return gradients
        if LOCAL.scope.trace.capturing or any(map(boundary.is_traced, given)):
            msg = (
                f"{ctx.what}: a JAX transformation (tape.jit, jax.jit ...) takes the derivative of a call that was made outside of it, "
                "whose graph is torch's and cannot be traced; make the call inside of it, too"
            )
            raise TapeTypeError(msg)
        if LOCAL.scope.mode == RECORD:
            run = _Derivative(graph, wanted, present)
            saved = ctx.saved
            with contextlib.suppress(NothingError):
                results = iter(
                    op_named(f"{ctx._function.__name__}.backward").apply(run, f"{ctx.what}, backward", *[saved[i] for i in wanted], *given)
                )
                for i, flows in zip(wanted, run.flows, strict=True):
                    gradients[i] = next(results) if flows else None
            return gradients
        seeds = [shared(look(ct), graph.outputs[i].device) for i, ct in zip(present, given, strict=True)]
        for i, g in zip(wanted, graph.pulled(wanted, present, seeds, create=False), strict=True):
            if g is not None:
                gradients[i] = to_variable(g, f"{ctx.what}: gradient {i}", graph.device, copy=False)
        return gradients


class _Derivative:
    """Computes gradients from cotangents, so that they can be differentiated."""

    def __init__(self, graph: Graph, wanted: Sequence[int], present: Sequence[int]) -> None:
        self.graph = graph
        self.wanted = wanted
        self.present = present
        self.flows: list[bool] = []

    def __call__(self, values: list[Any], needs: tuple[bool, ...]) -> Graph:
        count = len(self.wanted)
        devices = [self.graph.outputs[i].device for i in self.present]
        seeds = [shared(x, d).requires_grad_(need) for x, d, need in zip(values[count:], devices, needs[count:], strict=True)]
        gradients = self.graph.pulled(self.wanted, self.present, seeds, create=True)
        self.flows = [g is not None for g in gradients]
        if True not in self.flows:
            raise NothingError
        inputs = [self.graph.inputs[i] for i in self.wanted]
        kept = [t if need else None for t, need in zip([*inputs, *seeds], needs, strict=True)]
        return Graph(kept, [g for g in gradients if g is not None], self.graph.device, self.graph.around)


@functools.lru_cache(maxsize=1024)
def op_named(name: str, base: type[tape.Function] = _Call) -> Any:
    """Return the ``tape.Function`` of calls that the tape is to know by this name."""
    return type(name, (base,), {})


def check_sources(what: str, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor | None]) -> None:
    """Refuse outputs that depend on tensors that require grad and are not inputs.

    Raises:
        LostGradientError: there is one.

    """
    known = {id(t) for t in inputs}
    stack = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen = set(stack)
    strangers = [t for t in outputs if t.grad_fn is None and t.requires_grad and id(t) not in known]
    while stack and not strangers:
        node = stack.pop()
        source = getattr(node, "variable", None)
        if source is not None and id(source) not in known:
            strangers = [source]
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    if strangers:
        msg = (
            f"{what}: the result depends on a tensor that requires grad (shape {tuple(strangers[0].shape)}, dtype {strangers[0].dtype}) "
            "and is not an argument, so its gradient would be lost; pass it as an argument, wrap the torch.nn.Module that has it, or use "
            "tensor.detach()"
        )
        raise LostGradientError(msg)
