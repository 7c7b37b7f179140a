"""Flax NNX on the tape: a module whose parameters are leaf Variables and whose calls record one op."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from interop.arrival import needing

with needing("flax", "nnx", "flax"):
    from flax import nnx

from collections.abc import Callable, Iterator

import tape
from interop.lift import lift
from interop.modules import REPAIR, Bridge, Moded, check_names, is_array, is_inexact, remade, replace
from tape import extend
from tape.errors import LeakedTracerError, TapeRuntimeError, TapeTypeError
from tape.mirrored.absent import missing

__all__ = ["Module"]

_HELD = (nnx.Pytree, jax.Array, np.ndarray)  # what an attribute's list or dictionary may hold that is seen as something else
_TRAINS = frozenset(("train", "eval", "set_attributes", "set_mode"))  # of NNX's own methods, those that look at no array


class _Node:
    """A part of a module: attributes are NNX's, but Variables in place of arrays, and calls that are recorded."""

    __slots__ = ("_node", "_path", "_root")

    def __init__(self, root: Module | None, node: Any, path: tuple[tuple[str, Any], ...]) -> None:
        for name, value in (("_root", self if root is None else root), ("_node", node), ("_path", path)):
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record a call; Variables, arrays and numbers among the arguments are inputs, anything else is static."""
        return self._root._recorded(self._path, "__call__", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in Module.__slots__ or name in _Node.__slots__:  # as copy asks, also before __init__
            raise missing(self, name)
        value = getattr(self._node, name)
        if getattr(value, "__self__", None) is self._node:
            if not hasattr(nnx.Module, name):
                return functools.wraps(value)(lambda *args, **kwargs: self._root._recorded(self._path, name, args, kwargs))
            if name in _TRAINS:
                return functools.wraps(value)(functools.partial(self._root._changed, value))
            self._root._refresh()
            return value
        return self._seen_at("attribute", name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        variable = self._seen_at("attribute", name, vars(self._node).get(name))
        if extend.is_variable(variable):
            names = [n for n, v in self._root._variables() if v is variable]
            self._root.load_state_dict({names[0]: value.get_value() if isinstance(value, nnx.Variable) else value}, strict=False)
        else:
            self._root._changed(setattr, self._node, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._seen_at("item", key, self._node[key])

    def _seen_at(self, kind: str, key: Any, value: Any) -> Any:
        name = self._root._names.get(id(self._node), "")
        return self._root._seen(value, (*self._path, (kind, key)), f"{name}.{key}" if name else str(key))

    def __len__(self) -> int:
        return len(self._node)

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self._node))] if isinstance(self._node, Sequence) else self._node)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._node)})

    def __repr__(self) -> str:
        self._root._refresh()
        return f"interop.nnx.Module({self._node!r})"


class Module(_Node, Moded, Bridge):
    """A Flax NNX module on Variables.

    Calling it, a method of its class, or a submodule records one op.  What the call changes (batch statistics, counts of random streams) is
    written to the module's state, which is constant for gradients.  Every other attribute is that of the NNX module, with Variables
    in place of arrays: ``module.linear.kernel.grad`` is a gradient, ``module.eval()`` and ``module.train()`` do as in NNX, and so does
    setting an attribute.

    Args:
        module: the NNX module; it is copied and stays as it is.
        wrt: which of its variables are parameters, a filter of NNX; those of them that are inexact become leaves that require grad.
        inline: record a call as the entries of its equations, as :func:`interop.lift` does, so that op hooks see inside.

    Raises:
        TapeTypeError: ``module`` is not an NNX module; in a call: it adds or takes away state, changes a static attribute or a parameter.
        TapeValueError: two arrays would have one name.

    Example:
        >>> import jax.numpy as jnp, interop, tape
        >>> from flax import nnx
        >>> model = interop.nnx.Module(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
        >>> loss = (model(jnp.ones((5, 3))) ** 2).mean()
        >>> loss.backward()
        >>> [(name, p.grad.shape) for name, p in model.named_parameters()], model.kernel.grad.shape
        ([('bias', (2,)), ('kernel', (3, 2))], (3, 2))
        >>> type(model.unwrap()).__name__
        'Linear'

    """

    __slots__ = ("_calls", "_inline", "_modes", "_names", "_parameters", "_state", "_wrt")

    def __init__(self, module: Any, *, wrt: Any = nnx.Param, inline: bool = False) -> None:
        if not isinstance(module, nnx.Module):
            msg = f"interop.nnx.Module: expected a flax.nnx.Module, got {type(module).__name__}"
            raise TapeTypeError(msg)
        module = nnx.clone(module)
        super().__init__(None, module, ())
        is_parameter = nnx.filterlib.to_predicate(wrt)
        parameters: dict[str, Any] = {}
        state: dict[str, Any] = {}
        whole = nnx.state(module)
        check_names("interop.nnx.Module", _layout(whole)[0])
        for path, variable in nnx.to_flat_state(whole):
            for within, array in _arrays(variable):
                name = _dotted(path) + jax.tree_util.keystr(within)
                if is_parameter(path, variable) and is_inexact(array):
                    parameters[name] = tape.Variable(array, name=name)
                elif is_array(array):
                    state[name] = tape.constant(array)
        names = {id(node): _dotted(path) for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Variable | nnx.Pytree)}
        own = {"_wrt": wrt, "_inline": inline, "_calls": {}, "_modes": {}, "_names": names, "_parameters": parameters, "_state": state}
        for name, value in own.items():
            object.__setattr__(self, name, value)
        self._note_mode(nnx.graphdef(self._node))

    def parameters(self) -> Any:
        """Return the parameters that require grad as an ``nnx.State`` whose leaves are Variables: what an optimizer takes."""
        state = nnx.state(self._node)
        training = {name for name, v in self._parameters.items() if v.requires_grad}
        kept = [path for path, _ in nnx.to_flat_state(state) if _dotted(path) in training]
        state = nnx.filter_state(state, lambda path, _: path in kept)
        return jax.tree.unflatten(jax.tree.structure(state), [self._parameters[_dotted(path)] for path, _ in nnx.to_flat_state(state)])

    def unwrap(self) -> Any:
        """Return a new NNX module with the present values and attributes."""
        return nnx.merge(nnx.graphdef(self._node), self._present())

    def _changed(self, change: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Change what a part of the module is besides its arrays."""
        result = change(*args, **kwargs)
        self._note_mode(nnx.graphdef(self._node))
        return result

    def _present(self) -> Any:
        """Return NNX's state with the present values."""
        state = nnx.state(self._node)
        names, tree = _layout(state)
        present = self.state_dict()
        return jax.tree.unflatten(tree, [present.get(name, leaf) for name, leaf in zip(names, jax.tree.leaves(state), strict=True)])

    def _refresh(self) -> None:
        """Give the NNX module the present values, where somebody may look at them there."""
        nnx.update(self._node, self._present())

    def _seen(self, value: Any, path: tuple[tuple[str, Any], ...], name: str) -> Any:
        """Return what users see for an attribute or item of a part of the module; ``name`` is that of an array which lies there itself."""
        if isinstance(value, nnx.Variable):
            return {**self._parameters, **self._state}.get(self._names.get(id(value)), value)
        if is_array(value):
            return {**self._parameters, **self._state}.get(name, value)
        if isinstance(value, nnx.Pytree):
            return _Node(self, value, path)
        if isinstance(value, (list, tuple)) and any(isinstance(x, _HELD) for x in value):
            return type(value)([self._seen(x, (*path, ("item", i)), f"{name}.{i}") for i, x in enumerate(value)])
        if isinstance(value, dict) and any(isinstance(x, _HELD) for x in value.values()):
            return {k: self._seen(x, (*path, ("item", k)), f"{name}.{k}") for k, x in value.items()}
        return value

    def _recorded(self, path: tuple[tuple[str, Any], ...], method: str, args: Any, kwargs: Any) -> Any:
        graph = nnx.graphdef(self._node)
        call = self._calls.get((path, method, graph))
        if call is None:
            call = self._calls[path, method, graph] = self._lifted(path, method, graph)
        result, after = call(self._parameters, self._state, *args, **kwargs)
        try:
            replace([(self._state[name], value) for name, value in after.items()])
        except LeakedTracerError as e:
            msg = (
                f"interop.nnx.Module: a call changes state ({', '.join([*after][:3])}) inside of a function that is traced "
                "(tape.checkpoint, tape.vmap, jax.jit ...), and it would be lost; call .eval() first, or have the module do that itself "
                "(nnx.remat, nnx.vmap)"
            )
            raise LeakedTracerError(msg) from e
        return result

    def _lifted(self, path: tuple[tuple[str, Any], ...], method: str, graph: Any) -> Callable[..., Any]:
        """Return the op of a method, on the arrays by name; its results are those of the method, and the state that it changed."""
        names, tree = _layout(nnx.split(self._node)[1])
        described = ".".join([type(self._node).__name__, *[str(key) for _, key in path], *([] if method == "__call__" else [method])])

        def run(leaves: dict[str, Any], args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
            module = part = nnx.merge(graph, jax.tree.unflatten(tree, [leaves[name] for name in names]))
            for kind, key in path:
                part = getattr(part, key) if kind == "attribute" else part[key]
            return getattr(part, method)(*args, **kwargs), *nnx.split(module)

        def call(parameters: dict[str, Any], state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            leaves = parameters | state
            result, graph_after, state_after = run(leaves, args, kwargs)
            names_after, _ = _layout(state_after)
            if graph_after != graph or names_after != names:
                new = [name for name in names_after if name not in leaves]
                what = f"adds state ({', '.join(new[:3])})" if new else "changes an attribute or the structure of the module"
                msg = (
                    f"interop.nnx.Module: {described} {what}, which one op cannot; do it before the module is wrapped, or return what is "
                    "to be kept (in place of sow)"
                )
                raise TapeTypeError(msg)
            changed = {n: x for n, x in zip(names, jax.tree.leaves(state_after), strict=True) if x is not leaves[n]}
            written = [name for name in changed if name in parameters]
            if written:  # or handed through by a transformation of NNX's (nnx.remat)
                passed = _passed_on(lambda leaves: dict(zip(names, jax.tree.leaves(run(leaves, args, kwargs)[2]), strict=True)), leaves)
                written = [name for name in written if name not in passed]
                changed = {name: x for name, x in changed.items() if name not in passed}
            if written:
                msg = (
                    f"interop.nnx.Module: {described} writes to the parameter {written[0]}, and its gradient would be lost; make it "
                    "another kind of nnx.Variable, or write to it outside of the call; a layer of a library that does so "
                    "(nnx.SpectralNorm) can be lifted: after graph, p, rest = nnx.split(layer, nnx.Param, ...) and p = "
                    "jax.tree.map(tape.Variable, p), call interop.lift(lambda p, rest, x: nnx.merge(graph, p, rest)(x))(p, rest, x)"
                )
                raise TapeTypeError(msg)
            return result, changed

        call.__name__ = described
        return lift(call, inline=self._inline)

    def __reduce__(self) -> Any:
        return remade, (functools.partial(Module, wrt=self._wrt, inline=self._inline), (self.unwrap(),), self._requiring())


def _refused(part: _Node) -> Any:
    """Refuse that NNX takes a bridge apart: it would see no arrays in it, and ``nnx.clone`` would return the same."""
    msg = (
        f"an interop Module (of {type(part._node).__name__}) stands where NNX takes a module of its own (nnx.Optimizer, nnx.split, "
        f"nnx.clone, nnx.jit ...); {REPAIR}"
    )
    raise TapeRuntimeError(msg)


def _never(*_: Any) -> Any:
    """Stand for what NNX asks of a node that it has taken apart."""
    raise NotImplementedError


for _kind in (_Node, Module):
    nnx.graph.register_graph_node_type(_kind, _refused, *[_never] * 5)


def _passed_on(fun: Callable[[dict[str, Any]], dict[str, Any]], leaves: dict[str, Any]) -> set[str]:
    """Return the names under which a function returns what it was given there."""
    names = sorted(leaves)
    jaxpr = jax.make_jaxpr(lambda given: [fun(dict(zip(names, given, strict=True)))[name] for name in names])(
        [leaves[n] for n in names]
    ).jaxpr
    pairs = zip(names, jaxpr.outvars, jaxpr.invars, strict=True)
    return {name for name, result, given in pairs if _source(jaxpr, result) is given}


def _source(jaxpr: Any, var: Any) -> Any:
    """Follow a value back through the functions that hand it through, row by row where they are loops."""
    makers = {id(v): (eqn, i) for eqn in jaxpr.eqns for i, v in enumerate(eqn.outvars)}
    while id(var) in makers:
        eqn, i = makers[id(var)]
        inner = eqn.params.get("jaxpr")
        inner = getattr(inner, "jaxpr", inner)
        if inner is None or len(inner.outvars) != len(eqn.outvars) or len(inner.invars) != len(eqn.invars):
            return var
        source = _source(inner, inner.outvars[i])
        j = next((j for j, v in enumerate(inner.invars) if v is source), None)
        if j is None:
            return var
        if eqn.primitive.name == "scan":
            consts, carried = eqn.params["num_consts"], eqn.params["num_carry"]
            if j != consts + i if i < carried else j < consts + carried:
                return var
        var = eqn.invars[j]
    return var


def _dotted(path: Sequence[Any]) -> str:
    return ".".join(map(str, path))


def _arrays(variable: Any) -> list[tuple[Any, Any]]:
    """Return the arrays in an ``nnx.Variable`` with their paths; an array that a module holds without one is its own."""
    return jax.tree_util.tree_leaves_with_path(variable.get_value() if isinstance(variable, nnx.Variable) else variable)


def _layout(state: Any) -> tuple[list[str], Any]:
    """Return the dotted names of a state's leaves, and its structure."""
    names = [_dotted(path) + jax.tree_util.keystr(within) for path, variable in nnx.to_flat_state(state) for within, _ in _arrays(variable)]
    return names, jax.tree.structure(state)
