"""The state of an optimizer: kept in Variables, handed out as arrays, saved and loaded under dotted names."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from interop.modules import as_array, same_kind, value_of, values_of
from interop.saving import named_leaves
from interop.scaling import DynamicLossScale, LossScaleState, started
from interop.states import Hyperparameters, contents, held, settable
from tape import extend
from tape.errors import TapeTypeError, TapeValueError, check_mapping
from tape.jaxapi import Tracer

_HANDED = 64  # containers that are looked at again


class KeepsState:
    """An optimizer whose state, and that of its loss scale, is a list of Variables and a structure."""

    _state: list[Any]
    _state_tree: Any
    _following: dict[Any, Any]
    _scaled: bool
    _handed: list[tuple[Any, tuple[Any, ...]]]  # the dictionaries and lists of states that were handed out since the last step
    _policy: DynamicLossScale | None

    @property
    def state(self) -> Any:
        """Optax's state, a pytree of arrays; assigning one of the same structure and shapes replaces it."""
        places = jax.tree.unflatten(self._state_tree, range(len(self._state)))[0]
        state = settable(self._looked_at()[0], places, lambda place: self._state[place])
        if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(state)):
            given = [(node, items) for node, items in contents(state) if not isinstance(node, Hyperparameters)]
            self._handed = [*self._handed, *given][-_HANDED:]
        return state

    @state.setter
    def state(self, state: Any) -> None:
        state = values_of(state)  # whose dictionaries are ordinary ones
        present, scaling = self._looked_at()
        given: Any = jax.tree.structure(state)
        trees: set[Any] = {tree for pair in self._following.items() for tree in pair} | {self._state_tree}
        if given not in [tree.children()[0] for tree in trees]:
            msg = (
                "Optimizer: state must be a pytree as optax's transformation makes it for these parameters "
                f"({jax.tree.structure(present)}), got {given if jax.tree.structure(0) != given else type(state).__name__}; assign what "
                ".state of such an optimizer gave"
            )
            raise TapeValueError(msg)
        if given == jax.tree.structure(present):
            for (path, new), old in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(present), strict=True):
                if np.shape(new) != np.shape(old):
                    name = jax.tree_util.keystr(path)
                    msg = f"Optimizer: state{name} must have shape {np.shape(old)}, got {np.shape(new)}; it belongs to other parameters"
                    raise TapeValueError(msg)
        self._keep(state, scaling)

    @property
    def scaling(self) -> LossScaleState | None:
        """What the loss scale has come to, as arrays; assigning replaces it.  None without one."""
        return self._looked_at()[1]

    @scaling.setter
    def scaling(self, scaling: LossScaleState) -> None:
        if self._policy is None or not isinstance(scaling, LossScaleState):
            wanted = "a LossScaleState" if self._policy is not None else "None: this optimizer has no loss scale"
            msg = f"Optimizer: scaling must be {wanted}, got {type(scaling).__name__}"
            raise TapeTypeError(msg)
        initial = started(DynamicLossScale())
        self._keep(
            self._looked_at()[0], LossScaleState(*[np.asarray(x, like.dtype).reshape(()) for x, like in zip(scaling, initial, strict=True)])
        )

    def _looked_at(self) -> tuple[Any, LossScaleState | None]:
        """Return optax's state and that of the loss scale, as arrays."""
        return jax.tree.unflatten(self._state_tree, map(value_of, self._state))  # type: ignore[no-any-return]

    def _check_handed(self) -> None:
        """Refuse where an item of a state that was handed out was replaced: it is a copy.

        Raises:
            TapeValueError: once, for a dictionary or list that was not assigned.

        """
        handed, self._handed = self._handed, []
        for node, items in handed:
            now = node.values() if isinstance(node, dict) else node
            if len(now) == len(items) and not all(map(is_, now, items)):
                msg = (
                    f"Optimizer.step: a {type(node).__name__} in what .state gave holds others now, and was not assigned: it is a copy, so "
                    "that this has no effect; write state = optimizer.state, change it, and assign optimizer.state = state"
                )
                raise TapeValueError(msg)

    def _keep(self, state: Any, scaling: LossScaleState | None) -> None:
        self._handed = []
        leaves, self._state_tree = jax.tree.flatten((state, scaling), is_leaf=extend.is_variable)
        self._scaled = scaling is not None
        self._state = [held(x) for x in leaves]  # Variables, so that a compiled step finds them and writes to them
        self._repeats = all(map(extend.is_variable, self._state))
        self._known = extend.Update()

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs to go on from here: the values of optax's state, and of the loss scale, by dotted path.

        The parameters are not in it, as in PyTorch: save them beside it.
        """
        state, scaling = self._looked_at()
        named = [(f"state.{name}".removesuffix("."), value) for name, value in named_leaves(state)]
        return dict(named + ([] if scaling is None else [(f"scaling.{name}", value) for name, value in named_leaves(scaling)]))

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Set the state to what :meth:`state_dict` returned.

        Args:
            state: values by dotted path, of an optimizer with such a transformation for such parameters.
            strict: refuse names that are missing or too many; otherwise they are passed over.

        Raises:
            TapeValueError: a name is missing or unknown, or a value has another shape.  Nothing is changed then.
            TapeTypeError: a value is of another kind than that which is there.  Nothing is changed then.

        """
        check_mapping("Optimizer.load_state_dict", state)
        present = self.state_dict()
        missing, unknown = [n for n in present if n not in state], [n for n in state if n not in present]
        if strict and (missing or unknown):
            listed = [
                f"{which} {', '.join(map(repr, names[:5]))}" for which, names in (("missing", missing), ("unknown", unknown)) if names
            ]
            msg = (
                f"Optimizer.load_state_dict: {'; '.join(listed)}; it is of another transformation or of other parameters: make the "
                "Optimizer as that one was, or pass strict=False to load what fits"
            )
            raise TapeValueError(msg)
        self._keep(*jax.tree.unflatten(self._state_tree, [_fitting(n, state.get(n, old), old) for n, old in present.items()]))


def _fitting(name: str, value: Any, old: Any) -> Any:
    """Return a value for the place of another one in a state."""
    if not isinstance(old, (jax.Array, np.ndarray, np.generic)):
        return value
    array = as_array(value)
    if array.shape != old.shape:
        msg = f"Optimizer.load_state_dict: {name} must have shape {old.shape}, got {array.shape}; it belongs to other parameters"
        raise TapeValueError(msg)
    if array.dtype != old.dtype and not same_kind(array.dtype, old.dtype):
        msg = f"Optimizer.load_state_dict: {name} must have dtype {old.dtype}, got {array.dtype}; it is of another transformation"
        raise TapeTypeError(msg)
    return array if isinstance(array, jax.Array) else jnp.asarray(array)
