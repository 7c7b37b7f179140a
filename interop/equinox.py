"""Equinox on the tape: a module whose parameters are leaf Variables and whose calls record one op."""

from __future__ import annotations

import functools
from typing import Any

import jax

from interop.arrival import needing

with needing("equinox", "equinox"):
    import equinox

from collections.abc import Callable

import tape
from interop.lift import lift
from interop.modules import Bridge, check_names, dotted, is_array, is_inexact, remade, values_of
from tape import extend
from tape.errors import TapeAttributeError, TapeTypeError
from tape.mirrored.absent import missing

__all__ = ["Module"]


class Module(Bridge):
    """An Equinox module on Variables.

    Calling it, or a method of its class, records one op; for a batch, ``tape.vmap(module)(x)``.  Every other attribute is that of the
    Equinox module, with Variables in place of arrays: ``module.layers[0].weight.grad`` is a gradient.  What Equinox hands through (an
    ``eqx.nn.State``, keys) is an argument and a result here, too; such a state is constant for gradients.

    Args:
        module: the Equinox module, or any pytree that can be called.
        is_parameter: tells of a leaf whether it is a parameter; by default all inexact arrays are.  Other arrays are constant.
        inline: record a call as the entries of its equations, as :func:`interop.lift` does, so that op hooks see inside.

    Raises:
        TapeTypeError: ``module`` cannot be called.
        TapeValueError: two arrays would have one name.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp, interop, tape
        >>> model = interop.equinox.Module(eqx.nn.Linear(3, 2, key=jax.random.key(0)))
        >>> (model(jnp.ones(3)) ** 2).mean().backward()
        >>> [(name, p.grad.shape) for name, p in model.named_parameters()]
        [('weight', (2, 3)), ('bias', (2,))]

    """

    def __init__(self, module: Any, *, is_parameter: Callable[[Any], bool] = is_inexact, inline: bool = False) -> None:
        if not callable(module) or isinstance(module, Bridge):
            msg = f"interop.equinox.Module: expected an equinox.Module, got {type(module).__name__}"
            raise TapeTypeError(msg)
        self._inline = inline
        leaves, tree = jax.tree_util.tree_flatten_with_path(module, is_leaf=extend.is_variable)
        named = [(dotted(path), leaf) for path, leaf in leaves]
        self._hold(
            jax.tree.unflatten(
                tree,
                [
                    tape.Variable(x, name=name) if is_inexact(x) and is_parameter(x) else tape.constant(x) if is_array(x) else x
                    for name, x in named
                ],
            )
        )

    def _hold(self, module: Any) -> None:
        """Be a module whose arrays are Variables already."""
        leaves, tree = jax.tree_util.tree_flatten_with_path(module, is_leaf=extend.is_variable)
        self._module, self._tree = module, tree
        self._static = [None if extend.is_variable(x) else x for _, x in leaves]  # None is not a leaf of a pytree
        held = [(dotted(path), x) for path, x in leaves if extend.is_variable(x)]
        check_names("interop.equinox.Module", [name for name, _ in held])
        self._parameters = {name: x for name, x in held if x.requires_grad}
        self._state = {name: x for name, x in held if not x.requires_grad}
        self._variables_in_order = [x for _, x in held]
        self._calls: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record a call; Variables, arrays and numbers among the arguments are inputs of the op, anything else is static."""
        return self._recorded("__call__")(*args, **kwargs)

    def parameters(self) -> Any:
        """Return the module with its parameters, as Variables, and None for all other leaves: what an optimizer takes."""
        leaves = jax.tree.leaves(self._module, is_leaf=extend.is_variable)
        return jax.tree.unflatten(self._tree, [x if extend.is_variable(x) and x.requires_grad else None for x in leaves])

    def unwrap(self) -> Any:
        """Return the Equinox module with the present values."""
        return values_of(self._module)

    def inference_mode(self, value: bool = True) -> Module:
        """Return this module, with the same Variables, as ``eqx.nn.inference_mode`` makes it."""
        numbered = jax.tree.unflatten(self._tree, [_Place(i) if x is None else x for i, x in enumerate(self._static)])
        changed, tree = jax.tree.flatten(equinox.nn.inference_mode(numbered, value))
        leaves = jax.tree.leaves(self._module, is_leaf=extend.is_variable)
        other = object.__new__(Module)
        other._inline = self._inline
        other._hold(jax.tree.unflatten(tree, [leaves[x.number] if isinstance(x, _Place) else x for x in changed]))
        return other

    def __tape_vmap__(self, *axes: Any) -> Callable[..., Any]:
        return self._recorded("__call__").__tape_vmap__(*axes)  # type: ignore[attr-defined, no-any-return]

    def _recorded(self, method: str, call: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return what records a method (or ``call``, which maps it over axes), found again where it was made before."""
        if call is None:
            call = self._calls.get(method)
            if call is None:
                call = self._calls[method] = self._lifted(method)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            return jax.tree.map(
                _constant,
                call(self._variables_in_order, *args, **kwargs),
                is_leaf=lambda x: isinstance(x, equinox.nn.State) or extend.is_variable(x),
            )

        recorded.__tape_vmap__ = lambda *axes: self._recorded(method, self._lifted(method, axes))  # type: ignore[attr-defined]
        return recorded

    def _lifted(self, method: str, axes: tuple[Any, Any, dict[str, Any]] | None = None) -> Callable[..., Any]:
        tree, static = self._tree, self._static
        places = [i for i, x in enumerate(static) if x is None]

        def call(arrays: list[Any], *args: Any, **kwargs: Any) -> Any:
            leaves = list(static)
            for i, array in zip(places, arrays, strict=True):
                leaves[i] = array
            bound = getattr(jax.tree.unflatten(tree, leaves), method)
            if axes is not None:
                in_axes, out_axes, options = axes
                bound = jax.vmap(bound, in_axes, out_axes, **options)
            return bound(*args, **kwargs)

        name = type(self._module).__name__
        name = name if method == "__call__" else f"{name}.{method}"
        call.__name__ = name if axes is None else f"vmap({name})"
        return lift(call, inline=self._inline)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_module" not in vars(self):
            raise missing(self, name)
        value = getattr(self._module, name)
        if callable(value) and callable(getattr(type(self._module), name, None)) and not isinstance(value, equinox.Module | type):
            return functools.wraps(value)(self._recorded(name))
        if getattr(value, "__self__", None) is self._module:
            return self._recorded(name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            msg = f"interop.equinox.Module: {name} cannot be set: an Equinox module does not change"
            raise TapeAttributeError(msg)
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"interop.equinox.Module({self._module!r})"

    def __reduce__(self) -> Any:
        return _remade, (self.unwrap(), self._inline, self._requiring())


def _constant(x: Any) -> Any:
    """Detach what is in a state: running statistics, whose past would grow from call to call."""
    if not isinstance(x, equinox.nn.State):
        return x
    return jax.tree.map(lambda v: v.detach() if extend.is_variable(v) else v, x, is_leaf=extend.is_variable)


class _Place:
    """Stands for the array in a place while Equinox changes a module: functions of ``jax.tree`` would take Variables apart."""

    def __init__(self, number: int) -> None:
        self.number = number


def _remade(module: Any, inline: bool, requiring: dict[str, bool]) -> Module:
    again: Module = remade(functools.partial(Module, inline=inline), (module,), requiring)
    again._hold(again._module)
    return again
