"""Flax Linen on the tape: a module with its variables, whose parameters are leaf Variables and whose calls record one op."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import chain
from types import NoneType
from typing import Any

import jax

from interop.arrival import needing

with needing("flax", "linen", "flax"):
    from flax import linen
    from flax.core import FrozenDict
    from flax.core.scope import in_filter

from collections.abc import Callable, Sequence

import tape
from interop.lift import lift
from interop.modules import Bridge, check_names, dotted, is_array, is_inexact, remade, replace, values_of
from tape import extend
from tape.errors import TapeTypeError, TapeValueError
from tape.mirrored.absent import missing

__all__ = ["Module"]


class Module(Bridge):
    """A Flax Linen module and its variables, as Variables.

    A call is that of ``module.apply`` without its first argument, and records one op.  Collections that are ``mutable`` in it are returned
    beside the result, as Linen does; those that the module was made with (batch statistics) are written to it as well.  Every other
    attribute is the Linen module's.

    Args:
        module: the Linen module.
        variables: what ``module.init`` returned, a dictionary of collections.  What is inexact in the collection "params" becomes leaves
            that require grad; everything else is constant.
        inline: record a call as the entries of its equations, as :func:`interop.lift` does, so that op hooks see inside.

    Attributes:
        module: the Linen module.

    Raises:
        TapeTypeError: ``module`` is not a Linen module; in a call: it writes to a parameter.
        TapeValueError: ``variables`` has no collection "params"; two arrays would have one name.

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
        self._calls: dict[Any, tuple[Callable[..., Any], bool]] = {}
        self._held: _Held | None = None

        names: list[str] = []

        def held(path: Any, array: Any) -> Any:
            if dotted(path[:1]) == "params" and is_inexact(array):
                names.append(name := dotted(path[1:]))
                return self._parameters.setdefault(name, tape.Variable(array, name=name))
            if not is_array(array):
                return array
            names.append(name := dotted(path))
            return self._state.setdefault(name, tape.constant(array))

        self._collections = jax.tree_util.tree_map_with_path(held, variables)
        check_names("interop.linen.Module", names)
        self._shown = False  # to who may put other Variables there

    @property
    def variables(self) -> Any:
        """The dictionary of collections, with Variables in place of arrays."""
        self._shown = True
        return self._collections

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
        known = self._calls.get(key)
        if known is None:
            known = self._calls[key] = self._lifted(method, mutable, capture_intermediates), in_filter(mutable, "params")
        call, gives_parameters = known
        held = self._held
        if held is None or (self._shown and not held.remains()):
            held = self._held = _Held(self._collections)
        leaves = held.leaves
        outcome = call(held.tree, leaves, rngs, *args, **kwargs)
        result, after = jax.tree.unflatten(outcome.tree, outcome.leaves)
        if mutable is False:
            return result
        replace([(v, outcome.leaves[j]) for i, j in outcome.pairs if extend.is_variable(v := leaves[i]) and not v.requires_grad])
        return result, {"params": self.variables["params"], **after} if gives_parameters else after

    def parameters(self) -> Any:
        """Return the collection "params", whose leaves are Variables, with None for what does not require grad: what an optimizer takes."""
        leaves, tree = jax.tree.flatten(self._collections["params"], is_leaf=extend.is_variable)
        return jax.tree.unflatten(tree, [v if extend.is_variable(v) and v.requires_grad else None for v in leaves])

    def unwrap(self) -> tuple[Any, Any]:
        """Return the Linen module and its variables with the present values."""
        return self.module, values_of(self._collections)

    def _lifted(self, method: Any, mutable: Any, capture_intermediates: Any) -> Callable[..., Any]:
        module = self.module

        def call(tree: Any, leaves: list[Any], rngs: Any, *args: Any, **kwargs: Any) -> _Outcome:
            variables = jax.tree.unflatten(tree, leaves)
            options = {"capture_intermediates": capture_intermediates} if capture_intermediates else {}
            result = module.apply(variables, *args, rngs=rngs, method=method, mutable=mutable, **options, **kwargs)
            if mutable is False:
                return _Outcome(*jax.tree.flatten((result, None)), ())
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
            new, after_tree = jax.tree.flatten((result, {name: collection for name, collection in after.items() if name != "params"}))
            numbered = jax.tree.unflatten(after_tree, range(len(new)))[1]
            return _Outcome(new, after_tree, tuple(_pairs(jax.tree.unflatten(tree, range(len(leaves))), numbered)))

        name = method if isinstance(method, str) else getattr(method, "__name__", "__call__")
        call.__name__ = type(module).__name__ if name == "__call__" else f"{type(module).__name__}.{name}"
        return lift(call, inline=self._inline)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "module" not in vars(self):
            raise missing(self, name)
        return getattr(self.module, name)

    def __repr__(self) -> str:
        return f"interop.linen.Module({self.module!r})"

    def __reduce__(self) -> Any:
        return remade, (functools.partial(Module, inline=self._inline), self.unwrap(), self._requiring())


class _Held:
    """The collections flattened, for as long as their dictionaries hold what they held."""

    __slots__ = ("_dicts", "_items", "_parts", "leaves", "tree")

    def __init__(self, variables: Any) -> None:
        self._dicts: list[dict[Any, Any]] | None = []
        self.leaves, self.tree = jax.tree.flatten(variables, is_leaf=self._note)
        self._items, self._parts = _parts(self._dicts or ())

    def _note(self, node: Any) -> bool:
        """Note a part that can be changed: a dictionary, or (None in place of the dictionaries) what cannot be compared."""
        if extend.is_variable(node):
            return True
        if type(node) is dict and self._dicts is not None:
            self._dicts.append(node)
        elif not isinstance(node, _IMMUTABLE) and not jax.tree_util.all_leaves([node]):
            self._dicts = None
        return False

    def remains(self) -> bool:
        """Tell whether the collections are as they were."""
        return self._dicts is not None and _parts(self._dicts)[1] == self._parts


def _parts(dicts: Sequence[dict[Any, Any]]) -> tuple[list[Any], tuple[Any, ...]]:
    """Return what is in dictionaries, and what tells whether it is the same: lengths, keys, identities."""
    items = list(chain.from_iterable(map(dict.values, dicts)))
    return items, (list(map(len, dicts)), list(chain.from_iterable(dicts)), list(map(id, items)))


class _Outcome:
    """What a call returned, flattened, and which of it (by number) a Variable of the module, by number, is to be."""

    __slots__ = ("leaves", "pairs", "tree")

    def __init__(self, leaves: Any, tree: Any, pairs: tuple[tuple[int, int], ...]) -> None:
        self.leaves = leaves
        self.tree = tree
        self.pairs = pairs


jax.tree_util.register_pytree_node(_Outcome, lambda x: (x.leaves, (x.tree, x.pairs)), lambda static, leaves: _Outcome(leaves, *static))


def _pairs(held: Any, new: Any) -> list[tuple[int, int]]:
    """Pair state that a module holds with what a call made of it, both given as trees of numbers; what the call added is not held."""
    if isinstance(held, Mapping) and isinstance(new, Mapping):
        return [pair for key, value in held.items() if key in new for pair in _pairs(value, new[key])]
    numbers, places = jax.tree.leaves(held), jax.tree.leaves(new)
    alike: bool = jax.tree.structure(held) == jax.tree.structure(new)  # type: ignore[operator]
    return list(zip(numbers, places, strict=True)) if alike else []


_IMMUTABLE = (FrozenDict, tuple, NoneType, linen.meta.AxisMetadata)
