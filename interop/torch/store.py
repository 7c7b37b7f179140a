"""What a torch module holds: parameters and buffers are Variables for the tape, and tensors of the same values for torch."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

import tape
from interop.torch.tensors import CPU, check_dtype, own, to_array, to_variable
from tape import extend
from tape.errors import TapeTypeError
from tape.programs.program import look

_STORES = itertools.count(1)
_Places = list[tuple[torch.nn.Module, str]]


class Store:
    """The parameters and buffers of a torch module, which is the bridge's own.

    Variables have the values.  Torch has a copy of each, made anew when the Variable has another value, so that a graph of torch's keeps
    those it was computed with; what a call writes to buffers (and, under ``torch.no_grad``, to parameters) is written to the Variables.

    Attributes:
        names: where parameters are, by dotted path; those that are shared have several.
        parameters: a Variable for each parameter.
        buffer_names: where buffers are.
        buffers: a constant Variable for each buffer.
        seed: of the random numbers of the next call inside of a JAX transformation.
        lock: held while torch runs with the tensors.

    """

    def __init__(self, module: torch.nn.Module | None = None) -> None:
        self.lock = threading.RLock()
        self.parameters: list[Any] = []
        self.buffers: list[Any] = []
        self.names: dict[str, int] = {}
        self.buffer_names: dict[str, int] = {}
        self.modules = [] if module is None else list(module.modules())
        self.seed = tape.constant(np.int32((torch.initial_seed() + 0x9E3779B1 * next(_STORES)) & 0x7FFFFFFF))
        self._values: list[Any] = []
        self._buffer_values: list[Any] = []
        self._buffer_tensors: list[torch.Tensor] = []
        self._buffer_versions: list[int] = []
        tensors: list[torch.Tensor] = []
        self._places: list[_Places] = []
        self._buffer_places: list[_Places] = []
        if module is not None:
            _gather(module, module.named_parameters(remove_duplicate=False), self.names, tensors, self._places)
            buffers: list[torch.Tensor] = []
            _gather(module, module.named_buffers(remove_duplicate=False), self.buffer_names, buffers, self._buffer_places)
            self._hold(tensors, buffers)
        self.tensors = tensors
        self._installed = self.tensors

    def _hold(self, tensors: list[torch.Tensor], buffers: list[torch.Tensor]) -> None:
        name_of = {i: name for name, i in reversed(self.names.items())}
        for i, p in enumerate(tensors):
            what = f"from_torch: parameter {name_of[i]}"
            if isinstance(p, torch.nn.parameter.UninitializedTensorMixin):
                msg = f"{what} has no shape yet; call the torch module once before it is wrapped"
                raise TapeTypeError(msg)
            check_dtype(p, what)
            array = extend.array(to_variable(p, what))
            self.parameters.append(tape.Variable(array, requires_grad=p.requires_grad, name=name_of[i]))
            self._values.append(look(self.parameters[i]))
        for i, b in enumerate(buffers):
            self.buffers.append(to_variable(b, f"from_torch: buffer {i}"))
            self._buffer_values.append(look(self.buffers[i]))
            self._buffer_tensors.append(b)
            self._buffer_versions.append(b._version)

    def device(self, indices: Sequence[int]) -> torch.device | None:
        """Return where torch computes with these parameters; None where there is nothing that says so."""
        tensors = [self.tensors[i] for i in indices] or self._buffer_tensors or self.tensors
        return tensors[0].device if tensors else None

    # -- from Variables to tensors --------------------------------------------------------------------------------------

    def present(self) -> list[torch.Tensor]:
        """Return the parameters as tensors of the present values."""
        values = [(i, t, look(v), v._place.kind.requires_grad) for i, (t, v) in enumerate(zip(self.tensors, self.parameters, strict=True))]
        changed = [
            (
                i,
                value,
                torch.nn.Parameter(t.detach() if value is self._values[i] else own(value, t.device), requires_grad=requires_grad),
            )
            for i, t, value, requires_grad in values
            if value is not self._values[i] or t.requires_grad != requires_grad
        ]  # before the lock, for which what is still being computed may wait
        buffers = [
            (i, value, own(value, self._buffer_tensors[i].device))
            for i, v in enumerate(self.buffers)
            if (value := look(v)) is not self._buffer_values[i]
        ]
        if changed or buffers:
            with self.lock:
                tensors = list(self.tensors)
                for i, value, tensor in changed:
                    tensors[i], self._values[i] = tensor, value
                if changed:
                    self.tensors = tensors
                for i, value, tensor in buffers:
                    self._set_buffer(i, tensor, value)
        return self.tensors

    def installed(self, tensors: list[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
        """Have the torch module have these parameters; no other call runs meanwhile."""
        return _Installed(self, tensors)

    def install(self, tensors: list[torch.Tensor]) -> None:
        """Give the torch module these parameters; the lock is held."""
        if tensors is not self._installed:
            for places, new, old in zip(self._places, tensors, self._installed, strict=True):
                if new is not old:
                    for module, name in places:
                        setattr(module, name, new)
            self._installed = tensors

    def _set_buffer(self, i: int, tensor: torch.Tensor, value: Any) -> None:
        tensor = tensor.to(self._buffer_tensors[i].dtype)
        for module, name in self._buffer_places[i]:
            module._buffers[name] = tensor
        self._know(i, tensor, value)

    def _know(self, i: int, tensor: torch.Tensor, value: Any) -> None:
        self._buffer_values[i], self._buffer_tensors[i], self._buffer_versions[i] = value, tensor, tensor._version

    def modes(self) -> tuple[bool, ...]:
        """Tell of the module and its parts whether they train."""
        return tuple([m.training for m in self.modules])

    @contextlib.contextmanager
    def lent(
        self, indices: Sequence[int], parameters: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor], modes: Sequence[bool]
    ) -> Iterator[None]:
        """Have the torch module have other parameters, buffers and modes for a while."""
        lent = list(self.tensors)
        for i, t in zip(indices, parameters, strict=True):
            lent[i] = t if isinstance(t, torch.nn.Parameter) else torch.nn.Parameter(t, requires_grad=False)
        with self.lock:
            known = self._buffer_tensors, self.modes()
            before = self._installed
            try:
                with self.installed(lent):
                    self._put(buffers)
                    _set_modes(self.modules, modes)
                    yield
            finally:
                self._put(known[0])
                _set_modes(self.modules, known[1])
                with self.installed(before):
                    pass

    def buffer(self, i: int) -> torch.Tensor:
        """Return the tensor that the torch module has for a buffer."""
        module, name = self._buffer_places[i][0]
        tensor = module._buffers[name]
        assert tensor is not None, "a buffer went"
        return tensor

    def written(self, given: Sequence[torch.Tensor]) -> list[int]:
        """Return which of the buffers ``given`` a run may have written to; batch normalization does not say so."""
        return [
            i
            for i, (before, places) in enumerate(zip(given, self._buffer_places, strict=True))
            if (now := self.buffer(i)) is not before or now._version or (now.is_floating_point() and places[0][0].training)
        ]

    def _put(self, buffers: Sequence[torch.Tensor]) -> None:
        for places, tensor in zip(self._buffer_places, buffers, strict=True):
            for module, name in places:
                module._buffers[name] = tensor

    # -- from tensors to Variables --------------------------------------------------------------------------------------

    def note(self, tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
        """Have Variables be what a call wrote to parameters and buffers."""
        for i, (t, before) in enumerate(zip(tensors, versions, strict=True)):
            if t._version != before and tensors is self.tensors:
                self.parameters[i].value = extend.array(to_variable(t, f"from_torch: parameter {i}"))
                self._values[i] = look(self.parameters[i])
        for i, places in enumerate(self._buffer_places):
            module, name = places[0]
            tensor = self.buffer(i)
            said = tensor is not self._buffer_tensors[i] or tensor._version != self._buffer_versions[i]
            if not said and not (module.training and self._differs(i, tensor)):
                continue
            extend.replace(self.buffers[i], to_variable(tensor, f"from_torch: buffer {name}"))
            value = look(self.buffers[i])
            if tensor.requires_grad or len(places) > 1:
                self._set_buffer(i, tensor.detach(), value)
            else:
                self._know(i, tensor, value)

    def _differs(self, i: int, tensor: torch.Tensor) -> bool:
        """Tell whether a buffer was changed by code that does not say so, as the statistics of batch normalization are."""
        return tensor.is_floating_point() and not np.array_equal(to_array(tensor, "", CPU, copy=False), self._buffer_values[i])


class _Installed(contextlib.AbstractContextManager[None]):
    """While it is open, a torch module has some parameters; several times a step, so it is no generator."""

    __slots__ = ("_store", "_tensors")

    def __init__(self, store: Store, tensors: list[torch.Tensor]) -> None:
        self._store = store
        self._tensors = tensors

    def __enter__(self) -> None:
        self._store.lock.acquire()
        try:
            self._store.install(self._tensors)
        except BaseException:
            self._store.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._store.lock.release()


def _set_modes(modules: Sequence[torch.nn.Module], modes: Sequence[bool]) -> None:
    for module, mode in zip(modules, modes, strict=True):
        if module.training != mode:
            module.training = mode


def _gather(module: torch.nn.Module, named: Any, names: dict[str, int], gathered: list[torch.Tensor], places: list[_Places]) -> None:
    numbers: dict[int, int] = {}
    for path, tensor in named:
        i = numbers.get(id(tensor))
        if i is None:
            i = numbers[id(tensor)] = len(gathered)
            gathered.append(tensor)
            places.append([])
        names[path] = i
        owner, _, name = path.rpartition(".")
        places[i].append((module.get_submodule(owner), name))
