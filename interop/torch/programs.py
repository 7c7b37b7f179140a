"""Calls of torch inside of a JAX transformation: the program calls back, and a derivative is another program that runs torch again.

Whatever torch reads is an input, so that a run can be repeated: parameters, buffers, and the seed of its random numbers.  Buffers that
change and the next seed are results.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import tape
from interop.torch.graphs import NothingError, check_sources, op_named
from interop.torch.store import Store
from interop.torch.structures import Holders, check_tensors, mapped, parted, tensor_holders
from interop.torch.tensors import CPU, aval_of, by_numpy, check_dtype, conjugated, home, to_numpy
from tape import extend, jaxapi
from tape.errors import LeakedTracerError, TapeTypeError
from tape.graph.kinds import differentiable
from tape.programs.program import look


class _Program:
    """A function over tensors that the compiled program calls.

    Attributes:
        name: what the tape and messages call it.
        avals: shapes and dtypes of its results.
        smooth: which of them depend on inputs by a derivative.
        wide: whether int32 of JAX is int64 of torch.
        devices: where torch has the inputs.

    """

    name: str
    avals: Sequence[Any]
    smooth: Sequence[bool]
    wide: bool
    devices: Sequence[torch.device]

    def tensors(self, values: Sequence[np.ndarray[Any, Any]]) -> list[torch.Tensor]:
        """Return the inputs as tensors; without JAX, which waits for the program that calls."""
        tensors = [by_numpy(x).to(device) for x, device in zip(values, self.devices, strict=True)]
        return [t.long() if self.wide and t.dtype is torch.int32 else t for t in tensors]

    def run(self, tensors: Sequence[torch.Tensor], *, create: bool) -> list[torch.Tensor]:
        """Compute the results; with ``create``, of tensors that require grad, so that they can be differentiated."""
        raise NotImplementedError

    def host(self, dtypes: Sequence[Any], *values: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """Compute the results as the callback of a program, of arrays of these dtypes as :func:`_sent` sends them."""
        with torch.inference_mode(mode=False), torch.no_grad():
            arrived = [_arrived(np.asarray(x), dtype) for x, dtype in zip(values, dtypes, strict=True)]
            results = self.run(self.tensors(arrived), create=False)
            arrays = [to_numpy(t.detach().cpu().resolve_conj().resolve_neg().contiguous()) for t in results]
        for i, (x, aval) in enumerate(zip(arrays, self.avals, strict=True)):
            narrowed = x.astype(aval.dtype) if self.wide and x.dtype in (np.int64, np.uint64) else x
            if x.shape != aval.shape or narrowed.dtype != aval.dtype or not np.array_equal(narrowed, x, equal_nan=x.dtype.kind in "fc"):
                msg = (
                    f"{self.name}: result {i} has shape {x.shape}, dtype {x.dtype}, but {aval.shape}, {aval.dtype} when it was traced on "
                    "zeros; inside of a JAX transformation shapes may not depend on values"
                )
                raise TapeTypeError(msg)
            arrays[i] = narrowed
        return tuple(arrays)


class _Forward(_Program):
    """Torch's own function: of parameters, buffers, a seed and arguments; to its results, the buffers that changed and the next seed."""

    def __init__(self, name: str, fun: Callable[..., Any], store: Store, indices: Sequence[int], arguments: Any) -> None:
        self.name = name
        self._device = store.device(indices) or home()
        self._generators = [self._device.index] if self._device.type == "cuda" else []
        given = [store.tensors[i].device for i in indices] + [t.device for t in store._buffer_tensors]
        self.devices = [*given, CPU, *[self._device] * len(arguments.variables)]
        self.wide = not jaxapi.X64.value
        self._fun = fun
        self._store = store
        self._indices = indices
        self._arguments = arguments.filled
        self._modes = store.modes()
        self.written: list[int] = []  # buffers that change
        self.random = True
        self.result: Any = None
        self._others: list[Any] = []  # what the latest run returned beside tensors

    def learn(self, variables: Sequence[Any]) -> None:
        """Run once on zeros, for the results' structure, shapes and dtypes."""
        avals = [v._place.kind.aval for v in variables]
        tensors = self.tensors([np.zeros(a.shape, a.dtype) for a in avals])
        given = [
            torch.nn.Parameter(t) if v._place.kind.requires_grad or (differentiable(a) and i >= self._first) else t
            for i, (t, a, v) in enumerate(zip(tensors, avals, variables, strict=True))
        ]
        with torch.inference_mode(mode=False), torch.enable_grad():
            outputs = self.run(given, create=True)
            check_sources(self.name, outputs, given)
        plain = self._others
        check_tensors(self.name, plain, flowing=False)
        for i, t in enumerate(outputs):
            check_dtype(t, f"{self.name}: result {i}")
        self.avals = [aval_of(t) for t in outputs]
        self.smooth = [t.requires_grad for t in outputs]
        self.count = len(outputs) - len(self.written) - self.random
        for i, (t, a) in enumerate(zip(tensors, avals, strict=True)):
            if differentiable(a) or (t.dtype is torch.bool and i >= self._first):
                t.data.fill_(1)
        others: Sequence[torch.Tensor] = outputs
        with torch.inference_mode(mode=False), torch.no_grad(), contextlib.suppress(Exception):
            others = self.run(tensors, create=False)
        shapes = [tuple(t.shape) for t in outputs]
        if [tuple(t.shape) for t in others] != shapes:
            msg = (
                f"{self.name}: the results have shapes {shapes} for zeros and {[tuple(t.shape) for t in others]} for ones, and inside of "
                "a JAX transformation shapes may not depend on values; call it outside, or give the results a fixed shape (torch.where)"
            )
            raise TapeTypeError(msg)
        differing = [x for x, y in zip(plain, self._others, strict=False) if isinstance(x, _NUMBERS) and repr(x) != repr(y)]
        if differing:
            msg = (
                f"{self.name}: the result has a {type(differing[0]).__name__} that depends on values ({differing[0]!r} for zeros), "
                "which are not known inside of a JAX transformation; return a tensor in its place, or call it outside"
            )
            raise TapeTypeError(msg)
        if not outputs:
            raise NothingError

    @property
    def _first(self) -> int:
        """Where the arguments begin."""
        return len(self._indices) + len(self._store.buffers) + 1

    def run(self, tensors: Sequence[torch.Tensor], *, create: bool) -> list[torch.Tensor]:
        store, first = self._store, self._first
        count = len(self._indices)
        learning = self.result is None
        with (
            torch.random.fork_rng(self._generators, enabled=self.random),
            store.lent(self._indices, tensors[:count], tensors[count : first - 1], self._modes),
        ):
            if self.random:
                torch.default_generator.manual_seed(int(tensors[first - 1]))
                for i in self._generators:
                    torch.cuda.default_generators[i].manual_seed(int(tensors[first - 1]))
                before = self._states()
            args, kwargs = self._arguments([t.clone() for t in tensors[first:]], self._device)
            with torch.set_grad_enabled(create):
                result = self._fun(*args, **kwargs)
            outputs, self._others = parted(result, holders=tensor_holders())
            if learning:
                self.result = mapped(lambda x: _RESULT if isinstance(x, torch.Tensor) else x, (result,), tensor_holders())
                self.written = store.written(tensors[count : first - 1])
                self.random = not all(map(torch.equal, before, self._states()))
            outputs += [store.buffer(i).detach() for i in self.written]
        return [*outputs, *([(tensors[first - 1] + 1) & 0x7FFFFFFF] if self.random else [])]

    def _states(self) -> list[torch.Tensor]:
        """Return the states of the generators of random numbers."""
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._generators)]


class _Pulled(_Program):
    """The derivative of a program: of its inputs and cotangents, to the gradients of the inputs ``wanted``."""

    def __init__(self, base: _Program, wanted: Sequence[int], present: Sequence[int], avals: Sequence[Any]) -> None:
        self.name = f"{base.name}.backward"
        self.wide = base.wide
        self.devices = [*base.devices, *[CPU] * len(present)]
        self.avals = avals
        self.smooth = [True] * len(avals)
        self._base = base
        self._wanted = wanted
        self._present = present

    def run(self, tensors: Sequence[torch.Tensor], *, create: bool) -> list[torch.Tensor]:
        count = len(tensors) - len(self._present)
        inputs, seeds = list(tensors[:count]), tensors[count:]
        with torch.enable_grad():
            for i in self._wanted:
                if not inputs[i].requires_grad:
                    inputs[i] = torch.nn.Parameter(inputs[i])
            outputs = self._base.run(inputs, create=True)
            moving = [
                (outputs[i], seed.to(outputs[i].device)) for i, seed in zip(self._present, seeds, strict=True) if outputs[i].requires_grad
            ]
            wanted = [inputs[i] for i in self._wanted]
            if not moving:
                return [torch.zeros_like(t) for t in wanted]
            roots, given = zip(*moving, strict=True)
            gradients = torch.autograd.grad(
                roots, wanted, conjugated(given), create_graph=create, allow_unused=True, materialize_grads=True
            )
            return conjugated(gradients)


class _Traced(tape.Function):
    """An op that calls back to torch."""

    @staticmethod
    def forward(ctx: Any, program: _Program, *inputs: Any) -> Any:
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.avals]
        values = [look(v) for v in inputs]
        if not ctx._traced or True in ctx.needs_input_grad:  # these results are dropped: JAX gets those of a run with the backward below
            values = [jax.lax.stop_gradient(x) for x in values]
        host = functools.partial(program.host, [x.dtype for x in values])
        arrays = jax.pure_callback(host, tuple(shapes), *map(_sent, values), vmap_method="sequential")
        results = [tape.constant(x) for x in arrays]
        ctx.mark_non_differentiable(*[v for v, smooth in zip(results, program.smooth, strict=True) if not smooth])
        ctx.program = program
        ctx.save_for_backward(*inputs)
        return results

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        inputs = ctx.saved
        wanted = [i for i, need in enumerate(ctx.needs_input_grad) if need and differentiable(inputs[i])]
        present = [i for i, ct in enumerate(cotangents) if ct is not None]
        gradients: list[Any] = [None] * len(inputs)
        if wanted and present:
            program = _Pulled(ctx.program, wanted, present, [inputs[i]._place.kind.aval.update(weak_type=False) for i in wanted])
            for i, g in zip(wanted, _op(program).apply(program, *inputs, *[cotangents[i] for i in present]), strict=True):
                gradients[i] = g
        return gradients


def _op(program: _Program) -> Any:
    return op_named(program.name, _Traced)


def record_traced(name: str, fun: Callable[..., Any], store: Store, indices: Sequence[int], arguments: Any) -> tuple[Any, Sequence[Any]]:
    """Record a call in the running trace; return torch's result on zeros, and Variables for the tensors in it."""
    program = _Forward(name, fun, store, indices, arguments)
    variables = [*[store.parameters[i] for i in indices], *store.buffers, store.seed, *arguments.variables]
    try:
        program.learn(variables)
    except NothingError:
        return program.result[0], ()
    outputs = _op(program).apply(program, *variables)
    changed = [*[store.buffers[i] for i in program.written], *([store.seed] if program.random else [])]
    with _explained(name, random=program.random):
        for variable, value in zip(changed, outputs[program.count :], strict=True):
            extend.replace(variable, value)
    it = iter(outputs[: program.count])
    return mapped(lambda x: torch.empty(0) if x is _RESULT else x, program.result, Holders(lambda x: x is _RESULT))[0], list(it)


@contextlib.contextmanager
def _explained(name: str, *, random: bool) -> Iterator[None]:
    try:
        yield
    except LeakedTracerError as e:
        what = "draws random numbers" if random else "changes buffers of the module"
        msg = (
            f"{name} {what}, and only tape.jit keeps what has changed, not jax.jit, tape.checkpoint or the like; call eval() first, or use "
            "tape.jit (in place of tape.checkpoint torch.utils.checkpoint inside of the torch module)"
        )
        raise TapeTypeError(msg) from e


_RESULT = object()
_NUMBERS = (bool, int, float, complex, str)


def _sent(value: Any) -> Any:
    """Return an array in pieces of 32 bits where it has 64 and other threads have x64 mode off: JAX would round it for the callback."""
    if value.dtype.itemsize < np.dtype(np.int64).itemsize or value.dtype == np.complex64 or _wide_elsewhere():
        return value
    if value.dtype == np.complex128:
        value = jnp.stack([value.real, value.imag], -1)
    return jax.lax.bitcast_convert_type(value, np.uint32)


def _wide_elsewhere() -> bool:
    """Tell whether x64 mode is on for threads that say nothing about it."""
    wide: list[bool] = []
    thread = threading.Thread(target=lambda: wide.append(jaxapi.X64.value))
    thread.start()
    thread.join()
    return wide[0]


def _arrived(value: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """Undo :func:`_sent`."""
    if value.dtype == dtype:
        return value
    shape = value.shape[: -2 if dtype == np.complex128 else -1]
    array: np.ndarray[Any, Any] = np.ascontiguousarray(value).reshape(*shape, np.dtype(dtype).itemsize // 4).view(dtype).reshape(shape)
    return array
