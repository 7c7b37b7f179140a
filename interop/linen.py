"""Flax Linen on the tape: a module with its variables, whose parameters are leaf Variables and whose calls record one op."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from interop.arrival import needing

with needing("flax", "linen", "flax"):
    from flax import linen
    from flax.core.scope import in_filter

import tape
from interop.lift import lift
from interop.modules import Bridge, is_array, is_inexact, remade
from tape import extend
from tape.errors import TapeAttributeError, TapeTypeError, TapeValueError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Module"]


class Module(Bridge):
    """A Flax Linen module and its variables, as Variables.

    A call is that of ``module.apply`` without its first argument, and records one op.  Collections that are ``mutable`` in it are returned
    beside the result, as Linen does; those that the module was made with (batch statistics) are written to it as well.  Every other
    attribute is the Linen module's.

    Args:
        module: the Linen module.
        variables: what ``module.init`` returned, a dictionary of collections.  What is inexact in the collection "params" becomes leaves
        that
            require grad; everything else is constant.
        inline: record a call as the entries of its equations, as :func:`interop.lift` does, so that op hooks see inside.

    Attributes:
        module: the Linen module.
        variables: the dictionary of collections, with Variables in place of arrays.

    Raises:
        TapeTypeError: ``module`` is not a Linen module; in a call: it writes to a parameter.
        TapeValueError: ``variables`` has no collection "params".

    Example:
        >>> import jax, jax.numpy as jnp, interop, tape
        >>> from flax import linen
        >>> dense, x = linen.Dense(2), jnp.ones((5, 3))
        >>> model = interop.linen.Module(dense, dense.init(jax.random.key(0), x))
        >>> (model(x) ** 2).mean().backward()
        >>> [(name, p.grad.shape) for name, p in model.named_parameters()]
        [('bias', (2,)), ('kernel', (3, 2))]

    """

    def __init__(self, module: Any, variables: Mapping[str, Any], *, inline: bool = False) -> None:
        if not isinstance(module, linen.Module):
            msg = f"interop.linen.Module: expected a flax.linen.Module, got {type(module).__name__}"
            raise TapeTypeError(msg)
        if "params" not in variables:
            msg = (
                f"interop.linen.Module: the variables have no collection 'params' (collections: {', '.join(variables) or 'none'}); pass "
                "what module.init returned"
            )
            raise TapeValueError(msg)
        self.module = module
        self._inline = inline
        self._parameters: dict[str, tape.Variable] = {}
        self._state: dict[str, tape.Variable] = {}
        self._calls: dict[Any, Callable[..., Any]] = {}

        def held(path: Any, array: Any) -> Any:
            collection, *rest = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
            if collection == "params" and is_inexact(array):
                name = ".".join(rest)
                return self._parameters.setdefault(name, tape.Variable(array, name=name))
            return self._state.setdefault(".".join((collection, *rest)), tape.constant(array)) if is_array(array) else array

        self.variables = jax.tree_util.tree_map_with_path(held, variables)

    def __call__(
        self, *args: Any, method: Any = None, mutable: Any = False, rngs: Any = None, capture_intermediates: Any = False, **kwargs: Any
    ) -> Any:
        """Record a call.

        Args:
            args: for the module's method; Variables, arrays and numbers are inputs of the op, anything else is static.
            method: which one, a name or function, as for ``module.apply``; None: ``__call__``.
            mutable: collections that the call may change, as for ``module.apply``: then they are returned, too.
            rngs: a key, or a dictionary of keys.
            capture_intermediates: as for ``module.apply``.
            kwargs: for the module's method.

        Returns:
            The method's result; a pair of it and the changed collections, where ``mutable`` is not false.

        """
        collections = frozenset(mutable) if isinstance(mutable, (list, tuple, set)) else mutable
        key = (method, collections, capture_intermediates)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._lifted(method, mutable, capture_intermediates)
        if mutable is False:
            return call(self.variables, rngs, *args, **kwargs)[0]
        result, after = call(self.variables, rngs, *args, **kwargs)
        for collection in after.keys() & self.variables.keys():
            for variable, value in _kept(self.variables[collection], after[collection], []):
                extend.replace(variable, value)
        return result, {"params": self.variables["params"], **after} if in_filter(mutable, "params") else after

    def parameters(self) -> Any:
        """Return the collection "params", whose leaves are Variables, with None for what does not require grad: what an optimizer takes."""
        params = self.variables["params"]
        leaves, tree = jax.tree.flatten(params, is_leaf=extend.is_variable)
        training = [v if extend.is_variable(v) and v.requires_grad else None for v in leaves]
        return params if all(v is not None for v in training) else jax.tree.unflatten(tree, training)

    def unwrap(self) -> tuple[Any, Any]:
        """Return the Linen module and its variables with the present values."""
        return self.module, jax.tree.map(
            lambda x: extend.array(x) if extend.is_variable(x) else x, self.variables, is_leaf=extend.is_variable
        )

    def _lifted(self, method: Any, mutable: Any, capture_intermediates: Any) -> Callable[..., Any]:
        module = self.module

        def call(variables: Any, rngs: Any, *args: Any, **kwargs: Any) -> Any:
            options = {"capture_intermediates": capture_intermediates} if capture_intermediates else {}
            result = module.apply(variables, *args, rngs=rngs, method=method, mutable=mutable, **options, **kwargs)
            if mutable is False:
                return result, None
            result, after = result
            if any(
                new is not old
                for new, old in zip(jax.tree.leaves(after.get("params", ())), jax.tree.leaves(variables["params"]), strict=False)
            ):
                msg = (
                    f"interop.linen.Module: {call.__name__} writes to the collection 'params', and its gradient would be lost; make what "
                    "it writes another collection"
                )
                raise TapeTypeError(msg)
            return result, {name: collection for name, collection in after.items() if name != "params"}

        name = method if isinstance(method, str) else getattr(method, "__name__", "__call__")
        call.__name__ = type(module).__name__ if name == "__call__" else f"{type(module).__name__}.{name}"
        return lift(call, inline=self._inline)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "module" not in vars(self):
            msg = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise TapeAttributeError(msg)
        return getattr(self.module, name)

    def __repr__(self) -> str:
        return f"interop.linen.Module({self.module!r})"

    def __reduce__(self) -> Any:
        return remade, (functools.partial(Module, inline=self._inline), self.unwrap(), self._requiring())


def _kept(held: Any, new: Any, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Pair state that a module holds with what a call made of it; what the call added is not held."""
    if extend.is_variable(held):
        if extend.is_variable(new) and not held.requires_grad:
            pairs.append((held, new))
    elif isinstance(held, Mapping):
        for key, value in held.items():
            if key in new:
                _kept(value, new[key], pairs)
    else:
        trees: list[Any] = [jax.tree.structure(x, is_leaf=extend.is_variable) for x in (held, new)]
        if trees[0] == trees[1]:
            for a, b in zip(*[jax.tree.leaves(x, is_leaf=extend.is_variable) for x in (held, new)], strict=True):
                if extend.is_variable(a):
                    _kept(a, b, pairs)
    return pairs
