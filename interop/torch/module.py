"""From PyTorch to the tape: a torch module or function whose calls are ops."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch

from interop.modules import Bridge, Moded, value_of
from interop.torch.routines import Routine
from interop.torch.store import Store
from interop.torch.structures import mapped
from interop.torch.tensors import to_variable
from tape import extend
from tape.errors import LostGradientError, TapeAttributeError, TapeTypeError, TapeValueError, check_mapping, unknown_keyword
from tape.graph.scope import LOCAL
from tape.graph.trie import RECORD
from tape.mirrored.absent import missing

_CHANGING = frozenset(  # of torch's own methods, those that would change what the Variables have
    (
        *("to", "cuda", "cpu", "xpu", "ipu", "mtia", "to_empty", "type", "float", "double", "half", "bfloat16", "share_memory", "apply"),
        *("register_parameter", "register_buffer", "register_module", "add_module", "set_submodule", "compile"),
    )
)


def from_torch(module_or_function: Any) -> Any:
    """Make a torch module, or a function over torch tensors, callable on Variables; a call records one op.

    Args:
        module_or_function: a ``torch.nn.Module``, which is copied and stays as it is, or a function.

    Returns:
        For a module a :class:`Module`.  For a function a function of the same arguments: Variables and arrays in them, in tuples, lists,
        mappings, dataclasses and attributes of objects, are tensors for torch, anything else is handed on as it is.  Tensors in the result,
        in such structures (``ModelOutput`` and caches of Hugging Face, too), are Variables; the rest is as torch returned it.

        A module computes on the device that it is on, a function where JAX does; arrays, and tensors among the arguments, go there, and
        results and gradients back to where JAX computes.

        Torch runs once, when the call is recorded.  Sweeps ask torch's own graph for the gradients, at any order (``create_graph``), also
        where ``retain_graph`` lets several go through it; the graph goes when the tape does.  What torch cuts off (``detach``,
        ``no_grad``, integers) is constant.  Hooks for saved values do not see what torch saves.

        Inside of a JAX transformation (``tape.jit``, ``tape.checkpoint``, ``jax.jit``, ``jax.grad`` ...) torch is called back from the
        compiled program (``jax.pure_callback``), and runs again for each derivative: with the same random numbers, which are drawn there
        from a seed that the bridge keeps and counts up.  Of these only ``tape.jit`` keeps what a call changes; the others refuse dropout,
        and buffers that change.  The function is run once on zeros to learn the results' shapes, which may not depend on values;
        ``train()`` and ``eval()`` hold as they were when it was traced; ``tape.jit`` traces it again.  ``jax.vmap`` calls it for each row.
        There is no forward mode of JAX; that of the tape goes by double backprop.

    Raises:
        TapeTypeError: it is neither, or cannot be copied; a tensor of float64 would be rounded, as x64 mode is off; there is no such array.
        TapeOverflowError: integers come back that need 64 bits, and x64 mode is off.
        LostGradientError: in a call: the result depends on a tensor that requires grad and is not an argument; or it is an object of
            another kind (a distribution, a set) that holds such a tensor.

    Example:
        >>> import torch, interop.torch, tape
        >>> norm = interop.torch.from_torch(lambda tree: torch.linalg.vector_norm(tree["x"]))
        >>> x = tape.Variable([3.0, 4.0])
        >>> norm({"x": x}).backward()
        >>> x.grad.numpy()
        array([0.6, 0.8], dtype=float32)
        >>> model = interop.torch.from_torch(torch.nn.Linear(2, 3))
        >>> model(x).sum().backward()
        >>> [(name, p.grad.shape) for name, p in model.named_parameters()]
        [('weight', (3, 2)), ('bias', (3,))]

    """
    if isinstance(module_or_function, torch.nn.Module):
        return Module(module_or_function)
    if not callable(module_or_function):
        msg = f"from_torch: expected a torch.nn.Module or a function, got {type(module_or_function).__name__}"
        raise TapeTypeError(msg)
    name = getattr(module_or_function, "__name__", type(module_or_function).__name__)
    routine = Routine(name, module_or_function, Store())

    def called(*args: Any, **kwargs: Any) -> Any:
        return routine(args, kwargs)

    try:
        return functools.wraps(module_or_function)(called)
    except (AttributeError, TypeError):  # of a function in C
        return called


class _Part:
    """A part of a module: attributes are torch's, but Variables in place of tensors, and calls that are recorded."""

    __slots__ = ("_part", "_path", "_root")

    _root: Module
    _part: torch.nn.Module
    _path: str

    def __init__(self, root: Module | None, part: torch.nn.Module, path: str) -> None:
        for name, value in (("_root", self if root is None else root), ("_part", part), ("_path", path)):
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record a call; Variables and arrays among the arguments are inputs of the op, anything else is handed on."""
        return self._root._recorded(self._part, "__call__")(*args, **kwargs)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Iterate over the parameters that require grad, with their dotted paths; shared ones come once."""
        store = self._root._store
        names: dict[int, str] = {}
        for name, i in store.names.items():
            if name.startswith(self._path) and store.parameters[i].requires_grad:
                names.setdefault(i, name[len(self._path) :])
        for i, name in names.items():
            yield name, store.parameters[i]

    def parameters(self) -> list[Any]:
        """Return the parameters that require grad: what an optimizer takes."""
        return [v for _, v in self.named_parameters()]

    def zero_grad(self, **options: Any) -> None:
        """Set the gradients of all parameters to None, also of those that do not require grad any more; takes no options."""
        if options:
            raise unknown_keyword("zero_grad", *options)
        for v in self._all():
            v.zero_grad()

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Have all parameters require grad, or none of them."""
        for v in self._all():
            v.requires_grad_(requires_grad)
        return self

    def _all(self) -> list[Any]:
        store = self._root._store
        return [store.parameters[i] for i in {i: None for name, i in store.names.items() if name.startswith(self._path)}]

    def train(self, mode: bool = True) -> Any:
        """Set the mode of the module and its parts, as in torch."""
        self._part.train(mode)
        self._root._note_mode(self._root._store.modes())
        return self

    def eval(self) -> Any:
        """Set the mode of evaluation."""
        return self.train(mode=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in _SLOTS:  # as copy asks, also before __init__
            raise missing(self, name)
        if name in _CHANGING:
            msg = (
                f"interop.torch.Module: {name} would change torch's tensors, and not the Variables; call it on the torch module before "
                "it is wrapped, or on that of unwrap()"
            )
            raise TapeTypeError(msg)
        value = getattr(self._part, name)
        if getattr(value, "__self__", None) is self._part and not hasattr(torch.nn.Module, name):
            return functools.wraps(value)(self._root._recorded(self._part, name))
        self._root._refresh()
        return self._root._seen(getattr(self._part, name), f"{self._path}{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        store, path = self._root._store, f"{self._path}{name}"
        if path in store.names or path in store.buffer_names:
            self._root._load({path: value}, "interop.torch.Module")
            return
        if isinstance(value, (torch.Tensor, torch.nn.Module, _Part)) or extend.is_variable(value) or name in self._part._modules:
            msg = (
                f"interop.torch.Module: {name} cannot be set, as it would be no parameter of the bridge; set it before the module is "
                "wrapped"
            )
            raise TapeAttributeError(msg)
        setattr(self._part, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._root._seen(self._part[key], f"{self._path}{key}")

    def __len__(self) -> int:
        return len(self._part)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter([self._root._seen(x, f"{self._path}{i}") for i, x in enumerate(self._part)])

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._part)})

    def __repr__(self) -> str:
        return f"interop.torch.Module({self._part!r})"


class Module(_Part, Moded, Bridge):
    """A torch module on Variables, as :func:`from_torch` makes it.

    Its parameters are leaf Variables.  Calling it, a submodule, or a method of its class records one op, in which buffers (the statistics
    of batch normalization) change as in torch.  Every other attribute is that of the torch module, with Variables in place of tensors:
    ``model.layer.weight.grad`` is a gradient.  ``train()``, ``eval()``, ``requires_grad_()`` and ``zero_grad()`` do as in torch; what would
    change its tensors (``to``, ``double``) is refused.  A parameter that does not require grad is a constant Variable, which
    :meth:`parameters` leaves out and :meth:`state_dict` has; a shared one is one Variable.

    Args:
        module: the torch module; it is copied and stays as it is.

    Raises:
        TapeTypeError: ``module`` is not a torch module, is one of TorchScript, or cannot be copied; a parameter has no shape yet, or a
            dtype that JAX lacks.
        LostGradientError: an attribute is a tensor that a call left there, or that is computed from parameters, and has no Variable.

    Example:
        >>> import torch, interop.torch, tape.numpy as tnp
        >>> model = interop.torch.Module(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()))
        >>> (model(tnp.ones((5, 3))) ** 2).mean().backward()
        >>> model[0].weight.grad.shape, sorted(model.state_dict())
        ((2, 3), ['0.bias', '0.weight'])
        >>> type(model.unwrap()).__name__
        'Sequential'

    """

    __slots__ = ("_modes", "_routines", "_store", "_variable_of")

    _store: Store

    def __init__(self, module: torch.nn.Module) -> None:
        if not isinstance(module, torch.nn.Module):
            msg = f"interop.torch.Module: expected a torch.nn.Module, got {type(module).__name__}"
            raise TapeTypeError(msg)
        scripted = next((type(m).__name__ for m in module.modules() if isinstance(m, torch.jit.ScriptModule)), None)
        if scripted is not None:
            msg = (
                f"interop.torch.Module: a {scripted} of TorchScript cannot be given other parameters; wrap the module that "
                "torch.jit.script or torch.jit.trace was called with"
            )
            raise TapeTypeError(msg)
        super().__init__(None, _copied(module), "")
        for name, value in (("_store", Store(self._part)), ("_routines", {}), ("_modes", {})):
            object.__setattr__(self, name, value)
        self._note_mode(self._store.modes())

    def state_dict(self) -> dict[str, jax.Array]:
        """Return the present values of parameters and buffers, by dotted path: the names of the torch module's own ``state_dict``."""
        return {name: extend.array(v) for name, v in self._saved().items()}

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Set parameters and buffers to what :meth:`state_dict`, or that of the torch module, returned.

        Args:
            state: arrays, Variables or torch tensors by dotted path; values are cast to the dtype there is where that is of the same kind.
            strict: refuse names that are missing or too many; otherwise they are passed over.

        Raises:
            TapeValueError: a name is missing or unknown, a value has another shape, or names of one parameter have different values.
                Nothing is changed then.
            TapeTypeError: a value has a dtype of another kind.  Nothing is changed then.

        """
        check_mapping("interop.torch.Module.load_state_dict", state)
        self._load(state, "", strict=strict)

    def unwrap(self) -> torch.nn.Module:
        """Return a new torch module with the present values, mode and attributes."""
        self._refresh()
        return _copied(self._part)

    # -- what Bridge asks for -------------------------------------------------------------------------------------------

    @property
    def _parameters(self) -> dict[str, Any]:  # type: ignore[override]
        return {name: self._store.parameters[i] for name, i in self._store.names.items()}

    def state_of_any_dtype(self) -> frozenset[str]:
        """Return no names: buffers have the dtypes of torch."""
        return frozenset()

    def _saved(self) -> dict[str, Any]:
        tensors = {**self._parameters, **{name: self._store.buffers[i] for name, i in self._store.buffer_names.items()}}
        return {name: tensors[name] for name in self._part.state_dict(keep_vars=True) if name in tensors}

    def _variables(self) -> list[tuple[str, Any]]:
        return list(self._saved().items())

    def _load(self, state: Mapping[str, Any], _what: str, *, strict: bool = False) -> None:
        given = {
            n: extend.array(to_variable(x, n)) if isinstance(x, torch.Tensor) else x
            for n, x in state.items()
            if not n.endswith("_extra_state")
        }
        names = {id(v): name for name, v in self._parameters.items() if name in given}
        for name, v in self._parameters.items():
            other = names.get(id(v), name)
            if name in given and other != name and not jnp.array_equal(value_of(given[name]), value_of(given[other]), equal_nan=True):
                msg = f"load_state_dict: {name} and {other} are one parameter, and are given different values"
                raise TapeValueError(msg)
        Bridge.load_state_dict(self, given, strict=strict)

    # -- calls ----------------------------------------------------------------------------------------------------------

    def _recorded(self, part: torch.nn.Module, method: str) -> Callable[..., Any]:
        key = (part, method)
        routine_seen = self._routines.get(key)
        if routine_seen is None:
            within = {id(module) for module in part.modules()}
            store = self._store
            indices = [i for i, places in enumerate(store._places) if any(id(owner) in within for owner, _ in places)]
            name = type(part).__name__ if method == "__call__" else f"{type(part).__name__}.{method}"
            routine = Routine(name, part if method == "__call__" else getattr(part, method), store, indices)
            routine_seen = self._routines[key] = lambda *args, **kwargs: self._seen(routine(args, kwargs), "")
        return routine_seen  # type: ignore[no-any-return]

    def _refresh(self) -> None:
        """Give the torch module the present values, where somebody may look at them there."""
        with self._store.installed(self._store.present()):
            pass

    def _seen(self, value: Any, path: str) -> Any:
        """Return what users see for an attribute, an item or a result."""

        def seen(x: Any) -> Any:
            if isinstance(x, torch.nn.Module):
                known = next((name for name, module in self._part.named_modules() if module is x), path)
                return self if x is self._part else _Part(self, x, f"{known}.")
            if isinstance(x, torch.Tensor):
                return self._variable(x)
            return x

        return mapped(seen, value)

    def _variable(self, tensor: torch.Tensor) -> Any:
        store = self._store
        for tensors, variables in ((store.tensors, store.parameters), (store._buffer_tensors, store.buffers)):
            for t, v in zip(tensors, variables, strict=True):
                if t is tensor:
                    return v
        if tensor.requires_grad and LOCAL.scope.mode == RECORD:
            msg = (
                f"interop.torch.Module: an attribute is a tensor (shape {tuple(tensor.shape)}, dtype {tensor.dtype}) that torch computed "
                "in a call or from parameters, whose gradient would be lost; return it from the module's forward, or read it under "
                "tape.no_grad(), as a constant"
            )
            raise LostGradientError(msg)
        return to_variable(tensor, "interop.torch.Module: an attribute")

    def __reduce__(self) -> Any:
        return Module, (self.unwrap(),)


_SLOTS = frozenset((*_Part.__slots__, *Module.__slots__))


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as e:
        msg = (
            f"interop.torch.Module: {type(module).__name__} cannot be copied ({e}); wrap it before it is called, and use "
            "torch.nn.utils.parametrizations in place of hooks that compute its parameters"
        )
        raise TapeTypeError(msg) from e
