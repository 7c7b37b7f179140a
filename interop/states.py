"""Optax's states: which part of one belongs to which parameter, and hyperparameters that are set where they are handed out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import is_
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tape
from tape import extend
from tape.errors import TapeTypeError, TapeValueError

_ARRAYS = (jax.Array, np.ndarray, np.generic)


def contents(parameters: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return the dictionaries and lists in a pytree of Variables that can be changed, each with what it holds now."""
    nodes: list[Any] = []

    def note(node: Any) -> bool:
        if isinstance(node, (dict, list)):
            nodes.append(node)
        return extend.is_variable(node)

    jax.tree.flatten(parameters, is_leaf=note)
    return [(node, tuple(node.values() if isinstance(node, dict) else node)) for node in nodes]


def synced(parameters: Any) -> tuple[Any, bool]:
    """Return parameters, those of ``optax.lookahead`` with slow Variables of their own if the fast ones stand for both; tell if so."""
    if not isinstance(parameters, optax.LookaheadParams):
        return parameters, False
    fast = {id(extend.identity(p)) for p in jax.tree.leaves(parameters.fast, is_leaf=extend.is_variable) if extend.is_variable(p)}

    def own(p: Any) -> Any:
        return tape.Variable(extend.array(p), name=p.name) if extend.is_variable(p) and id(extend.identity(p)) in fast else p

    return parameters._replace(slow=jax.tree.map(own, parameters.slow, is_leaf=extend.is_variable)), True


def check_contents(containers: Sequence[tuple[Any, tuple[Any, ...]]]) -> None:
    """Refuse where :func:`contents` would find others now: they would not be trained.

    Raises:
        TapeValueError: a container holds others.

    """
    for container, items in containers:
        now = container.values() if isinstance(container, dict) else container
        if len(now) != len(items) or not all(map(is_, now, items)):
            msg = (
                f"Optimizer.step: a {type(container).__name__} among the parameters, of {len(items)} items, holds others since the "
                f"Optimizer was made ({len(now)} items now), which it does not train; make a new one: Optimizer(optimizer.parameters, "
                "optimizer.transformation)"
            )
            raise TapeValueError(msg)


def held(value: Any) -> Any:
    """Return a leaf of a state as the optimizer keeps it: arrays in constant Variables, anything else as it is."""
    if extend.is_variable(value):
        value = extend.array(value)
    return tape.constant(np.asarray(value) if isinstance(value, np.generic) else value) if isinstance(value, _ARRAYS) else value


def alike(old: Any, new: Any) -> bool:
    """Tell whether a leaf of the state is a Variable of the new one's kind."""
    return extend.is_variable(old) and (old.shape, old.dtype, old.weak_type) == (new.shape, new.dtype, new.weak_type)


def owners(transformation: Any, state_tree: Any, parameter_tree: Any) -> list[int] | None:
    """Return for each leaf of a state which parameter it belongs to, -1 where it is of all of them; None where optax cannot tell.

    Args:
        transformation: what made the state.
        state_tree: the structure of the state.
        parameter_tree: that of the parameters.

    """
    numbers = jax.tree.unflatten(parameter_tree, range(parameter_tree.num_leaves))
    state = jax.tree.unflatten(state_tree, range(state_tree.num_leaves))
    try:
        numbered = optax.tree_map_params(
            transformation,
            lambda leaf, number: leaf if _is_masked(leaf) else number,
            state,
            numbers,
            transform_non_params=lambda _: -1,
            is_leaf=_is_masked,
        )
    except Exception:  # noqa: BLE001 - it calls the user's init with what stands for parameters
        return None
    listed, tree = jax.tree.flatten(numbered)
    return listed if tree == state_tree else None


def zeroed(gradients: Sequence[Any], values: Sequence[Any], present: Any) -> list[Any]:
    """Return gradients with zeros for those that are missing: None, or where the array ``present`` says so."""
    if present is not None:
        return [jnp.where(present[i], g, jnp.zeros_like(g)) for i, g in enumerate(gradients)]
    return [jnp.zeros_like(v) if g is None else g for g, v in zip(gradients, values, strict=True)]


def kept(owned: Sequence[int], new: Sequence[Any], old: Sequence[Any], skipped: Collection[int], present: Any) -> list[Any]:
    """Return what an update made, without the part of parameters that it skips: None, or the old values where ``present`` says so.

    Args:
        owned: to which parameter each leaf belongs, -1 or nothing for all of them.
        new: leaves after the update.
        old: those before.
        skipped: parameters without a gradient.
        present: an array that tells which parameters have one, or None.

    """
    leaves: list[Any] = []
    for i, leaf in enumerate(new):
        owner = owned[i] if i < len(owned) else -1
        if owner in skipped:
            leaves.append(None)
        elif owner >= 0 and present is not None:
            leaves.append(jnp.where(present[owner], leaf, old[i].astype(leaf.dtype)))
        else:
            leaves.append(leaf)
    return leaves


def _is_masked(x: Any) -> bool:
    return isinstance(x, optax.MaskedNode)


class Hyperparameters(dict[str, Any]):
    """The hyperparameters of ``optax.inject_hyperparams`` as :attr:`Optimizer.state` hands them out: setting one is heard of.

    It is a dictionary in all else; functions of ``jax.tree`` make plain ones of it.
    """

    __slots__ = ("_find", "_places", "_scheduled")

    def __init__(self, values: dict[str, Any], places: dict[str, int], find: Callable[[int], Any], scheduled: Collection[str]) -> None:
        super().__init__(values)
        self._places = places
        self._find = find
        self._scheduled = scheduled

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a hyperparameter of the optimizer, for the steps that follow.

        Raises:
            TapeValueError: there is none of this name, a schedule sets it, or it has another shape.
            TapeTypeError: the value is not a number or array.

        """
        if name not in self._places:
            msg = f"Optimizer: there is no hyperparameter {name!r}; those that were injected are {sorted(self._places)}"
            raise TapeValueError(msg)
        if name in self._scheduled:
            msg = (
                f"Optimizer: a schedule sets the hyperparameter {name!r} at every step; give inject_hyperparams a number in its place to "
                "set it yourself"
            )
            raise TapeValueError(msg)
        variable = self._find(self._places[name])
        try:
            array = jnp.asarray(extend.array(value) if extend.is_variable(value) else value)
        except (TypeError, ValueError) as e:
            msg = f"Optimizer: the hyperparameter {name!r} must be a number or an array, got {type(value).__name__}"
            raise TapeTypeError(msg) from e
        if array.shape != variable.shape:
            msg = f"Optimizer: the hyperparameter {name!r} must have shape {variable.shape}, got {array.shape}"
            raise TapeValueError(msg)
        if not np.can_cast(array.dtype, variable.dtype, "same_kind"):
            msg = f"Optimizer: the hyperparameter {name!r} has dtype {variable.dtype}, which {array.dtype} does not fit; convert the value"
            raise TapeTypeError(msg)
        variable.value = array = array.astype(variable.dtype)
        super().__setitem__(name, array)

    def update(self, *args: Any, **values: Any) -> None:
        """Set several."""
        for name, value in dict(*args, **values).items():
            self[name] = value

    def __ior__(self, values: Any) -> Self:  # type: ignore[misc, override]
        self.update(values)
        return self

    def _refuse(self, *_: Any) -> Any:
        msg = "Optimizer: hyperparameters can be set, and not be taken away or added"
        raise TapeTypeError(msg)

    __delitem__ = pop = popitem = clear = _refuse

    def setdefault(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - as in a dictionary, where it is there
        """Return a hyperparameter."""
        return self[name] if name in self else self._refuse()

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (dict(self),))


def _flattened(values: Hyperparameters) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    names = tuple(sorted(values))
    return [(jax.tree_util.DictKey(name), values[name]) for name in names], names


def _unflattened(names: tuple[str, ...], values: Any) -> Any:
    return dict(zip(names, values, strict=True))


jax.tree_util.register_pytree_with_keys(Hyperparameters, _flattened, _unflattened)


def injected(node: Any) -> bool:
    """Tell whether a part of a state is that of ``optax.inject_hyperparams``."""
    return isinstance(getattr(node, "hyperparams", None), dict) and hasattr(node, "inner_state") and hasattr(node, "_replace")


def settable(state: Any, places: Any, find: Callable[[int], Any]) -> Any:
    """Return a state in which hyperparameters can be set.

    Args:
        state: optax's, of arrays.
        places: the same with numbers for its leaves.
        find: returns the Variable that the optimizer keeps in a place.

    """

    def replaced(node: Any, numbers: Any) -> Any:
        if not injected(node):
            return node
        hyperparameters = Hyperparameters(node.hyperparams, numbers.hyperparams, find, getattr(node, "hyperparams_states", ()))
        return node._replace(hyperparams=hyperparameters, inner_state=settable(node.inner_state, numbers.inner_state, find))

    return jax.tree.map(replaced, state, places, is_leaf=injected)
