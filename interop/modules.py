"""What the bridges to libraries of modules share: parameters and state as Variables under dotted names, saved and loaded under them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tape
from tape import extend
from tape.errors import TapeRuntimeError, TapeTypeError, TapeValueError, check_mapping
from tape.graph.scope import LOCAL
from tape.graph.watcher import NOBODY

REPAIR = (
    "have the function close over the module, and call it as it is or through tape.jit, with loss.backward() for gradients and "
    "interop.optax.Optimizer(module.parameters(), transformation); copy it with copy.deepcopy; or give JAX and the module's own library "
    "what module.unwrap() returns"
)


def is_array(x: object) -> bool:
    """Tell whether a leaf of a framework's object is data."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic))


def is_inexact(x: Any) -> bool:
    """Tell whether a leaf has floating or complex numbers."""
    return is_array(x) and jnp.issubdtype(x.dtype, jnp.inexact)


def value_of(x: Any) -> Any:
    """Return the present value of a Variable, and anything else as it is."""
    return extend.array(x) if extend.is_variable(x) else x


def values_of(tree: Any) -> Any:
    """Return a pytree with the present values of its Variables in their places."""
    return jax.tree.map(value_of, tree, is_leaf=extend.is_variable)


def as_array(x: Any) -> Any:
    """Return a value that a user gave as an array: that of a Variable or of JAX, or one of NumPy."""
    value = value_of(x)
    return value if isinstance(value, jax.Array) else np.asarray(value)


def same_kind(a: Any, b: Any) -> bool:
    """Tell whether numbers of one dtype may be cast to another: both are real, both complex, or both whole."""
    return any(jnp.issubdtype(a, kind) and jnp.issubdtype(b, kind) for kind in (jnp.floating, jnp.complexfloating, jnp.integer))


def dotted(path: Any) -> str:
    """Return the name of a leaf of a pytree: the keys that lead to it."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


class Moded:
    """What has modes (``eval()``): what is computed depends on them as on arrays, so that a step of ``tape.jit`` is another one."""

    __slots__ = ()

    _modes: dict[Hashable, Hashable]

    @property
    def __tape_mode__(self) -> Hashable:
        """The mode now: one object for equal ones."""
        return self._modes[None]

    def _note_mode(self, mode: Hashable) -> None:
        """Note the mode from now on."""
        self._modes[None] = self._modes.setdefault(mode, mode)


class Bridge:
    """A framework's object whose arrays are Variables: leaves that require grad for parameters, constants for the rest of its state."""

    __slots__ = ()

    _parameters: dict[str, tape.Variable]
    _state: dict[str, tape.Variable]

    def named_parameters(self) -> Iterator[tuple[str, tape.Variable]]:
        """Iterate over the parameters with their dotted paths."""
        yield from self._parameters.items()

    def state_dict(self) -> dict[str, jax.Array]:
        """Return the present values of parameters and state (batch statistics, random keys), by dotted path."""
        return {name: extend.array(v) for name, v in self._variables()}

    def state_of_any_dtype(self) -> frozenset[str]:
        """Return the names of what calls may have given another dtype than it has now."""
        return frozenset(self._state)

    def _requiring(self) -> dict[str, bool]:
        """Tell of all Variables whether they require grad: a copy's are to do so, too."""
        return {name: v.requires_grad for name, v in self._variables()}

    def _variables(self) -> list[tuple[str, tape.Variable]]:
        return [*self._parameters.items(), *self._state.items()]

    @property
    def __jax_array__(self) -> Any:
        # JAX asks for it where it is handed what is no pytree, and takes a TypeError for one of its own.
        msg = f"an interop Module ({type(self).__module__}) stands where JAX takes an array; {REPAIR}"
        raise TapeRuntimeError(msg)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Set parameters and state to what :meth:`state_dict` returned.

        Args:
            state: arrays (of JAX or NumPy) or Variables by dotted path; values are cast to the parameter's dtype where that is of the
                same kind.  State keeps the dtype that it comes in, as calls give it one (batch statistics of Linen).
            strict: refuse names that are missing or too many; otherwise they are passed over.

        Raises:
            TapeValueError: a name is missing or unknown, or a value has another shape.  Nothing is changed then.
            TapeTypeError: a value has a dtype of another kind.  Nothing is changed then.

        """
        what = f"{type(self).__name__}.load_state_dict"
        check_mapping(what, state)
        variables = dict(self._variables())
        missing, unknown = [n for n in variables if n not in state], [n for n in state if n not in variables]
        if strict and (missing or unknown):
            msg = f"{what}: {_names('missing', missing)}{_names('unknown', unknown)}pass strict=False to load what fits"
            raise TapeValueError(msg)
        free = self.state_of_any_dtype()
        values = {
            name: _fitting(f"{what}: {name}", state[name], v, cast=name not in free) for name, v in variables.items() if name in state
        }
        for name, value in values.items():
            if name in self._parameters:
                variables[name].value = value
            else:
                extend.replace(variables[name], tape.constant(value))


def check_names(module: str, names: Iterable[str]) -> None:
    """Refuse a module two of whose arrays would have one name.

    Raises:
        TapeValueError: there are two.

    """
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        msg = f"{module}: two arrays have the name {twice!r}, as a name in the module has a dot; take another name there"
        raise TapeValueError(msg)


def replace(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Have constants be what a call made of them: :func:`tape.extend.replace` for several, in a third of its time where that is pending."""
    if LOCAL.scope.trace is NOBODY:
        for variable, result in pairs:
            new = result.detach()
            segment, extra = new._segment, variable._extra
            if segment is None or segment.trace is not None or extra is not None or variable._original is not None:
                extend.replace(variable, result)
            else:
                variable._segment, variable._place, variable._cell = segment, new._place, new._cell
    else:
        for variable, result in pairs:
            extend.replace(variable, result)


def remade(make: Callable[..., Any], args: tuple[Any, ...], requiring: Mapping[str, bool]) -> Any:
    """Make a module again, for a copy or from a pickle, with the same parameters frozen."""
    module = make(*args)
    for name, variable in module._variables():
        if variable.requires_grad != requiring[name]:
            variable.requires_grad_(requiring[name])
    return module


def _names(which: str, names: list[str]) -> str:
    return f"{which} {', '.join(map(repr, names[:5]))}{' ...' if len(names) > 5 else ''}; " if names else ""


def _fitting(what: str, value: Any, variable: tape.Variable, *, cast: bool) -> jax.Array:
    """Return a value, if asked for in the dtype of the Variable that is to hold it."""
    array = as_array(value)
    if array.shape != variable.shape:
        msg = f"{what}: expected shape {variable.shape}, got {array.shape}"
        raise TapeValueError(msg)
    if array.dtype == variable.dtype:
        return jnp.asarray(array)
    if not same_kind(array.dtype, variable.dtype):
        msg = f"{what}: expected dtype {variable.dtype}, got {array.dtype}"
        raise TapeTypeError(msg)
    return jnp.asarray(array, variable.dtype if cast else None)
