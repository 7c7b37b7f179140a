"""Optax on Variables: an optimizer that owns its state, with ``step()`` and ``zero_grad()``."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from interop.arrival import needing

with needing("optax", "optax"):
    import optax

from collections.abc import Callable, Iterator

import tape
from interop.lift import lift_exactly
from interop.line_search import LackingError, checked_loss, searched
from interop.optimizer_state import KeepsState
from interop.parameter_groups import Group, check_trained, parameter_groups
from interop.scaling import DynamicLossScale, LossScaleState, all_finite, chosen, following, policy_of, started, unscaled, widened
from interop.states import alike, check_contents, contents, injected, kept, owners, synced, zeroed
from tape import extend
from tape.errors import SeedError, TapeTypeError, TapeValueError, check_callable, taking, unknown_keyword

R = TypeVar("R")

__all__ = ["DynamicLossScale", "Group", "LossScaleState", "Optimizer", "parameter_groups"]


class Optimizer(KeepsState):
    """Update Variables by an optax transformation.

    Args:
        parameters: the leaves to train: a pytree of Variables (or one, or an iterator) that require grad.  For ``optax.lookahead``:
            ``optax.LookaheadParams.init_synced(variables)``; ``.parameters.slow`` are other Variables then.
        transformation: an ``optax.GradientTransformation``.
        loss_scale: None; a number, or a :class:`DynamicLossScale`, by which backward passes are to be seeded (``optimizer.backward(loss)``,
            or ``loss.backward(optimizer.loss_scale)``), and by which :meth:`step` divides their gradients.  A step whose gradients are
            not all finite is skipped: parameters and optax's state stay as they are.

            Parameters may be of float32, with a forward pass that casts them to float16 (master weights: what to prefer), or of float16
            or bfloat16 themselves: then gradients are divided, and updates computed, in float32 (optax's state is, too), and only the
            new values are rounded.  The optimizer keeps no float32 copies of such parameters, so updates below their precision are lost.
        missing: what a step does with a parameter whose ``.grad`` is None.  "skip": it stays as it is, and so does what optax keeps for it
            (moments); what optax keeps for all of them together (the counts of schedules and bias corrections) goes on.  "zero": its
            gradient counts as zero, so that momentum and weight decay move it.  "raise": an error.  A parameter whose ``requires_grad`` was
            set to False is skipped in any case.

    Attributes:
        parameters: the pytree of Variables.
        state: optax's state, a pytree of arrays.  Hyperparameters of ``optax.inject_hyperparams`` are set there
            (``optimizer.state.hyperparams["learning_rate"] = 0.01``).  The rest is a copy, whose lists and dictionaries have no effect on
            the optimizer until it is assigned: ``state = optimizer.state; state[0].mu["w"] = x; optimizer.state = state``.  A step after
            one was changed, and not assigned, is refused.
        scaling: what the loss scale has come to, a :class:`LossScaleState` of arrays, or None.

    Raises:
        TapeTypeError: a parameter is not a Variable, ``transformation`` is none of optax's, or ``loss_scale`` is not a number.
        TapeValueError: a parameter is not a leaf or does not require grad, or is given twice; ``loss_scale`` is not positive and finite;
            ``missing`` is none of those.

    Example:
        >>> import optax, interop.optax, tape
        >>> w = tape.Variable(1.0)
        >>> optimizer = interop.optax.Optimizer([w], optax.sgd(0.1))
        >>> (w * w).backward()
        >>> optimizer.step()
        >>> round(float(w), 3)
        0.8
        >>> optimizer = interop.optax.Optimizer([w], optax.sgd(0.1), loss_scale=1024)
        >>> optimizer.zero_grad()
        >>> optimizer.backward(w * w)
        >>> optimizer.step()
        >>> round(float(w), 3), int(optimizer.scaling.skipped)
        (0.64, 0)

    """

    @taking("Optimizer")
    def __init__(
        self, parameters: Any, transformation: Any, *, loss_scale: float | DynamicLossScale | None = None, missing: str = "skip"
    ) -> None:
        iterates = hasattr(parameters, "__iter__") and not hasattr(parameters, "parameters")  # a generator, the values of a dictionary
        if iterates and jax.tree_util.all_leaves([parameters]):
            parameters = list(parameters)
        parameters, lookahead = synced(parameters)
        self.parameters = parameters
        self._leaves, self._tree = jax.tree.flatten(parameters, is_leaf=extend.is_variable)
        if not self._leaves:
            msg = "Optimizer: no parameters were given; pass a pytree of Variables that require grad"
            raise TapeValueError(msg)
        self._leaves = [extend.identity(p) if extend.is_variable(p) else p for p in self._leaves]
        self._fast = len(jax.tree.leaves(parameters.fast, is_leaf=extend.is_variable)) if lookahead else len(self._leaves)
        check_trained(parameters, self._leaves, transformation)
        policy = None if loss_scale is None else policy_of(loss_scale)
        if missing not in _MISSING:
            msg = f"Optimizer: missing must be one of {', '.join(map(repr, _MISSING))}, got {missing!r}"
            raise TapeValueError(msg)
        self.transformation = transformation
        self._policy = policy
        self._missing = missing
        self._contents = contents(parameters)
        self._patterns: set[tuple[int, ...]] = set()  # of parameters that were skipped
        extend.awaiting(self._leaves, owner=object())
        self._assignment = extend.Assignment()
        self._following: dict[Any, Any] = {}  # tree of a state -> tree of the next one
        values = jax.tree.unflatten(self._tree, [extend.array(p) for p in self._leaves])
        self._keep(transformation.init(values if policy is None else widened(values)), None if policy is None else started(policy))
        extended = self._extended = optax.with_extra_args_support(transformation)
        self._asked: frozenset[str] | None = frozenset()  # what the transformation needs of a closure; None: a search by it

        def update(
            gradients: list[Any], values: list[Any], state: list[Any], tree: Any, extra: dict[str, Any], present: Any
        ) -> tuple[list[Any], list[Any]]:
            known, scaling = jax.tree.unflatten(tree, state)
            skipped = {i for i, g in enumerate(gradients) if g is None}
            counting, given = zeroed(gradients, values, present), values
            if policy is not None:
                counting, values = unscaled(counting, scaling.scale), widened(values)
            before = jax.tree.unflatten(self._tree, values)
            pulled = jax.tree.unflatten(self._tree, counting)
            updates, after = extended.update(pulled.fast if lookahead else pulled, known, before, **extra)
            moved = jax.tree.leaves(optax.apply_updates(before, updates))
            if policy is not None:
                finite = all_finite(counting[: self._fast])
                moved, after = chosen(finite, moved, given), chosen(finite, after, known)
                scaling = following(policy, scaling, finite)
            leaves, self._following[tree] = jax.tree.flatten((after, scaling))
            if skipped or present is not None:
                moved = kept(range(len(moved)), moved, given, skipped, present)
                leaves = kept(self._owned(tree, self._following[tree]), leaves, state, skipped, present)
            return moved, leaves

        self._update: Any = lift_exactly(update)

    @property
    def loss_scale(self) -> Any:
        """The present loss scale, a constant Variable, which is the seed of backward passes.  None without one."""
        return self._state[-len(LossScaleState._fields)] if self._scaled else None

    def backward(self, loss: Any, **options: Any) -> None:
        """Sweep back from a loss, seeded with the loss scale if there is one.

        Gradients that were taken without the scale look like any others, so :meth:`step` would divide them as well: call this, or pass
        ``optimizer.loss_scale`` to every ``backward()``.  Compute the loss in float32: a scale above 65504 is infinite in float16.

        Args:
            loss: a Variable of size 1.
            options: as for :func:`tape.backward`.

        Raises:
            TapeTypeError: ``loss`` is not a Variable.
            SeedError: it has another size.

        """
        if not isinstance(loss, tape.Variable):
            msg = f"Optimizer.backward: loss must be a tape.Variable, got {type(loss).__name__}"
            raise TapeTypeError(msg)
        seed = self.loss_scale
        if seed is not None and loss.shape:
            if loss.size != 1:
                msg = f"Optimizer.backward: a loss has one number, got shape {loss.shape}; reduce it, for instance with .mean()"
                raise SeedError(msg)
            seed = seed.reshape(loss.shape)
        loss.backward(seed, **options)

    @overload
    def step(self, closure: None = None, **extra: Any) -> None: ...
    @overload
    def step(self, closure: Callable[[], R], **extra: Any) -> R: ...
    def step(self, closure: Callable[[], Any] | None = None, **extra: Any) -> Any:
        """Apply one update from the ``.grad`` of the parameters, divided by the loss scale if there is one.

        A backward pass to parameters of optimizers alone waits for the first that updates some of them: both run as one program.  The
        update rounds as ``jax.jit`` of optax's does.

        Args:
            closure: computes the gradients anew and returns the loss, as in PyTorch: ``optimizer.zero_grad(); loss = f(); loss.backward();
                return loss``.  It is called once, or by a line search (``optax.lbfgs``) as often as that needs: then optax runs on values,
                step by step, which is slower than with ``value_fn``, and rounds as optax without ``jax.jit`` does.
            extra: extra arguments for transformations that take them: ``value=loss`` for instance, and for line searches (``optax.lbfgs``)
                also ``grad=`` (the gradients, in the tree of the parameters) and ``value_fn=interop.lower(f)``, where ``f`` computes the
                loss.

        Returns:
            What the closure returned at first, or None.

        Raises:
            TapeTypeError: the transformation needs such an argument, and it is not there; the closure returns no Variable, or a line search
                by it is asked for inside of ``tape.jit``.
            TapeValueError: no parameter has a gradient; one has none, with ``missing="raise"``; or one has none, and optax cannot tell
                what it keeps for it.  Nothing is changed then.
            ExecutionError: an update could not be computed.  Nothing is changed then.

        """
        if closure is not None:
            check_callable("Optimizer.step", closure, "the closure must be a function")
            return self._closed(closure, extra)
        try:
            self._step(extra)
        except LackingError as e:
            raise e.told() from e.__cause__
        return None

    def _step(self, extra: dict[str, Any]) -> None:
        """Take a step with the gradients there are; LackingError: the transformation needs more."""
        if self._handed:
            self._check_handed()
        check_contents(self._contents)
        repeats = self._repeats and not extra
        if repeats and not self._update.stale() and self._known.again(self._leaves, self._state):
            return
        gradients, present = self._gradients()
        try:
            with extend.updating():
                values, state = self._update(gradients, self._leaves, self._state, self._state_tree, extra, present)
                if repeats and self._following[self._state_tree] == self._state_tree:
                    self._known.note((*values, *state))
        except TapeTypeError as e:
            if "required keyword-only argument" not in str(e):
                raise
            raise LackingError(str(e).partition(": ")[2]) from e
        self._assign(values, state)

    def _closed(self, closure: Callable[[], Any], extra: dict[str, Any]) -> Any:
        """Take a step with what a closure computes."""
        with tape.enable_grad():
            loss = checked_loss(closure())
        while self._asked is not None:
            offered = {"value": loss, "grad": jax.tree.unflatten(self._tree, [p.grad for p in self._leaves])}
            try:
                self._step(dict(**{name: offered[name] for name in self._asked}, **extra))
            except LackingError as e:
                if not e.names or not e.names <= offered.keys() | {"value_fn"}:
                    raise e.told() from e.__cause__
                self._asked = None if "value_fn" in e.names else self._asked | e.names
            else:
                return loss
        if self._policy is not None:
            msg = "Optimizer.step: a line search by a closure has no loss scale; make the Optimizer without loss_scale"
            raise TapeValueError(msg)
        check_contents(self._contents)
        self._gradients()  # refuses where there are none
        moved, state = searched(self._extended.update, closure, loss, self._leaves, self._tree, self._looked_at()[0])
        for p, x in zip(self._leaves, moved, strict=True):
            p.value = x
        self._keep(state, None)
        return loss

    @property
    def param_groups(self) -> list[Group]:
        """The groups of :func:`parameter_groups`, with their parameters and hyperparameters, which can be set; one where it made none."""
        injections = [node.hyperparams for node in jax.tree.leaves(self.state, is_leaf=injected) if injected(node)]
        if isinstance(self.parameters, list) and len(injections) == len(self.parameters) > 1:
            return list(map(Group, self.parameters, injections))
        return [Group(self.parameters, injections[0] if len(injections) == 1 else None)]

    def _gradients(self) -> tuple[list[Any], Any]:
        """Return the gradients, and which parameters they are for: None for none in the list, or all of them with an array that tells.

        The slow parameters of ``optax.lookahead`` have none: they stand there themselves, and nobody reads them.
        """
        slow = self._leaves[self._fast :]
        quick, present = self._gradients_of(self._leaves[: self._fast])
        return [*quick, *slow], present if present is None else np.append(present, [True] * len(slow))

    def _gradients_of(self, leaves: list[Any]) -> tuple[list[Any], Any]:
        """Return the gradients of some parameters, as above."""
        gradients = [p.grad if p.requires_grad else None for p in leaves]
        missing = tuple([i for i, gradient in enumerate(gradients) if gradient is None])
        if not missing:
            return gradients, None
        if len(missing) == len(gradients):
            msg = (
                f"Optimizer.step: {len(gradients)} of {len(gradients)} parameters have no gradient, first parameter 0 "
                f"({extend.describe(leaves[0])}), so there is nothing to step by; call backward() first, on a loss that depends on them"
            )
            raise TapeValueError(msg)
        if self._missing != "skip":
            lacking = [i for i in missing if leaves[i].requires_grad]
            if lacking and self._missing == "raise":
                i = lacking[0]
                msg = (
                    f"Optimizer.step: {len(lacking)} of {len(gradients)} parameters have no gradient, first parameter {i} "
                    f"({extend.describe(leaves[i])}); let "
                    'its loss depend on it, or make the Optimizer with missing="skip"'
                )
                raise TapeValueError(msg)
            for i in lacking:
                gradients[i] = tape.constant(jnp.zeros(leaves[i].shape, leaves[i].dtype))
            missing = tuple([i for i in missing if i not in lacking])
            if not missing:
                return gradients, None
        if missing in self._patterns or len(self._patterns) < _PATTERNS_LIMIT:
            self._patterns.add(missing)
            return gradients, None
        return [p if g is None else g for p, g in zip(leaves, gradients, strict=True)], np.array([g is not None for g in gradients])

    def _owned(self, tree: Any, after: Any) -> list[int]:
        """Return for each leaf of the state which parameter it belongs to, -1 for all of them."""
        owned = owners(self.transformation, tree.children()[0], self._tree) if tree == after else None
        if owned is None:
            msg = (
                "Optimizer.step: some parameters have no gradient, and optax cannot tell which part of the state of this transformation "
                "belongs to "
                'them (optax.tree_map_params); make the Optimizer with missing="zero", or leave them out of it'
            )
            raise TapeValueError(msg)
        return owned

    def _assign(self, values: list[Any], state: list[Any]) -> None:
        """Give the parameters and the Variables of the state their new values, once all of them are there; None stands for what stays."""
        variables, results = (*self._leaves, *self._state), (*values, *state)
        if self._assignment.again(variables, results):
            return
        following = self._following[self._state_tree]
        if following == self._state_tree and all(b is None or alike(a, b) for a, b in zip(self._state, state, strict=True)):
            self._assignment(variables, results)
        else:  # the first step of some transformations changes a dtype
            after = [extend.array(new if new is not None else old) for old, new in itertools.zip_longest(self._state, state)]
            self._assignment(self._leaves, values)
            self._keep(*jax.tree.unflatten(following, after))

    def zero_grad(self, **options: Any) -> None:
        """Forget the gradients of all parameters (set them to None); takes no options (PyTorch's ``set_to_none`` is refused by name)."""
        if options:
            raise unknown_keyword("Optimizer.zero_grad", *options)
        for p in self._leaves:
            p.grad = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._leaves)

    def _made_again(self, parameters: Any, transformation: Any) -> tuple[Any, ...]:
        state, scaling = self._looked_at()
        return (parameters, transformation, self._policy, self._missing, state, scaling)

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimizer:
        copied = memo[id(self)] = _restored(*self._made_again(copy.deepcopy(self.parameters, memo), self.transformation))
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            import cloudpickle  # noqa: PLC0415 - optax's functions are made inside of others, which pickle alone does not take

            transformation = cloudpickle.dumps(self.transformation)
        except (ImportError, pickle.PicklingError, TypeError, AttributeError) as e:
            msg = (
                f"pickle: the transformation of an Optimizer cannot be pickled ({e}); run pip install 'jax-tape[optax]', which brings "
                "cloudpickle, or pickle (optimizer.parameters, optimizer.state, optimizer.scaling), and assign .state (and .scaling) to an "
                "Optimizer that is made anew"
            )
            raise TapeTypeError(msg) from e
        return (_restored, self._made_again(self.parameters, transformation))


def _restored(parameters: Any, transformation: Any, policy: Any, missing: str, state: Any, scaling: Any) -> Optimizer:
    if isinstance(transformation, bytes):
        transformation = pickle.loads(transformation)  # noqa: S301 - it is a part of what is being unpickled
    frozen = [p for p in jax.tree.leaves(parameters, is_leaf=extend.is_variable) if not p.requires_grad]  # since it was made
    try:
        for p in frozen:
            p.requires_grad_()
        optimizer = Optimizer(parameters, transformation, loss_scale=policy, missing=missing)
    finally:
        for p in frozen:
            p.requires_grad_(False)
    optimizer._keep(state, scaling)
    return optimizer


_MISSING = ("skip", "zero", "raise")
_PATTERNS_LIMIT = 8  # choices of parameters without a gradient that have a program of their own; one more serves all others
