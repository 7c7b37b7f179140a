"""Every name that the project takes from JAX outside ``jax.numpy``, ``jax.lax``, ``jax.nn``, ``jax.scipy`` and ``jax.tree``.

All of them are public.  When a JAX release moves or renames one, this is the only module to change.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import jax
import jax.ad_checkpoint
import jax.errors
import jax.extend.core as extend
import jax.flatten_util
import jax.tree_util
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.core import ShapedArray, Tracer, ensure_compile_time_eval, eval_jaxpr
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.debug import callback as debug_callback
from jax.dtypes import float0
from jax.extend import linear_util
from jax.extend import source_info_util as names
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, jaxpr_as_fun, primitives
from jax.interpreters import ad, batching, mlir, partial_eval

__all__ = [  # what is taken over as it is
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "ShapedArray",
    "SymbolicZero",
    "Tracer",
    "Var",
    "ad",
    "batching",
    "checkpoint_name",
    "custom_vmap",
    "debug_callback",
    "ensure_compile_time_eval",
    "eval_jaxpr",
    "float0",
    "jaxpr_as_fun",
    "mlir",
    "names",
    "primitives",
]


def words(text: str) -> frozenset[str]:
    """Return the words of a text: how tables of JAX's names are written."""
    return frozenset(text.split())


# The files whose functions take trees apart and put them together.
_FILES = {f.__code__.co_filename for f in (jax.tree.leaves, jax.tree_util.tree_leaves, jax.flatten_util.ravel_pytree)}
TREE_FILES = frozenset(_FILES | {str(Path(file).with_name("flattree.py")) for file in _FILES})  # the latter in newer releases


def hands_over(code: CodeType) -> bool:
    """Tell whether JAX's ``code`` puts a tree together for a function that it traces, rather than for whoever called JAX."""
    name = code.co_name
    return Path(code.co_filename).parent.name == "interpreters" or "flatten_" in name or name == "f_wrapped"


RAVELS = jax.flatten_util.ravel_pytree.__code__


def _core(name: str, *otherwise: Any) -> Any:
    """Return a name of ``jax.extend.core``, which older releases have in ``jax.core`` (some of them deprecated there)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(extend, name, None) or getattr(jax.core, name, *otherwise)


DropVar: Any = _core("DropVar")
axes_are_named: Callable[[], bool] = _core("nonempty_axis_env_DO_NOT_USE")
_axis_names: Callable[[], list[Any]] = _core("unsafe_get_axis_names_DO_NOT_USE")
_trace_state, _taken_trace, _set_trace = map(_core, ("get_opaque_trace_state", "take_current_trace", "set_current_trace"))
_CONTEXT: Any = _core("trace_ctx", None)  # in a quarter of the time, where a release has it
_OUTSIDE, _NO_TRACE = _trace_state("nnx"), getattr(_CONTEXT, "trace", None)


def named_axes() -> tuple[tuple[Any, int], ...]:
    """Return the axes that ``vmap`` and ``shard_map`` have named here, and their lengths: a trace may contain them as numbers."""
    return tuple([(name, jax.lax.axis_size(name)) for name in _axis_names()]) if axes_are_named() else ()


def fetches(code: CodeType) -> bool:
    """Tell whether JAX's ``code`` is ``jax.device_get``."""
    return code.co_name in {"device_get", "_device_get"}


def takes_jacobians(code: CodeType) -> bool:
    """Tell whether JAX's ``code`` is ``jax.jacfwd``, ``jax.jacrev`` or ``jax.hessian`` at work."""
    return code.co_name == "jacfun"


CONCRETE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
)


def primitive(name: str) -> Primitive | None:
    """Return the ``lax`` primitive called ``name`` (without ``_p``), or None where this JAX release has none."""
    known = getattr(primitives, f"{name}_p", None) or getattr(jax.lax, f"{name}_p", None)  # some are listed there only
    listed = (p for table in (ad.primitive_jvps, ad.primitive_transposes) for p in table if p.name == name)
    return known if isinstance(known, Primitive) else next(listed, None)


class Setting:
    """One setting of JAX: a name of ``jax.config`` that has a context manager in ``jax``."""

    def __init__(self, name: str) -> None:
        self.name = name
        manager = getattr(jax, name.removeprefix("jax_"), None)
        self.set_to: Callable[[Any], Any] = manager  # type: ignore[assignment]  # those without one are left out below
        self.known = callable(manager) and hasattr(jax.config, name)

    @property
    def value(self) -> Any:
        """What is in force in this thread."""
        return getattr(jax.config, self.name)


# What changes the meaning of an op, where it runs, or what is checked while it runs.
SETTINGS: tuple[Setting, ...] = tuple(
    setting
    for name in [
        "jax_enable_x64",
        "jax_default_matmul_precision",
        "jax_default_device",
        "jax_debug_nans",
        "jax_debug_infs",
        "jax_disable_jit",
        "jax_default_prng_impl",
        "jax_enable_custom_prng",
        "jax_legacy_prng_key",
        "jax_threefry_partitionable",
        "jax_debug_key_reuse",
        "jax_numpy_rank_promotion",
        "jax_numpy_dtype_promotion",
        "jax_softmax_custom_jvp",
        "jax_allow_f16_reductions",
    ]
    if (setting := Setting(name)).known
)
# Cholesky's factor is one of the triangle that is read, and so is its derivative since this release; before it was given for both.
CHOLESKY_BY_TRIANGLE = jax.__version_info__ >= (0, 12)
USUAL_PROMOTION = {"jax_numpy_rank_promotion": "allow", "jax_numpy_dtype_promotion": "standard"}
X64: Any = jax.enable_x64  # which every backward pass asks, three times as quick as jax.config


def in_trace() -> bool:
    """Tell whether a JAX transformation is tracing right now."""
    return not (_trace_state("nnx") == _OUTSIDE if _NO_TRACE is None else _CONTEXT.trace is _NO_TRACE)


def folds() -> bool:
    """Tell whether what depends on constants only is computed at once, as in ``jax.ensure_compile_time_eval``."""
    return bool(getattr(jax.config, "eager_constant_folding", False))


def current_trace() -> Any:
    """Return what stands for the JAX transformation that is running."""
    if _NO_TRACE is not None:
        return _CONTEXT.trace
    with _taken_trace() as trace:
        return trace


@contextlib.contextmanager
def within(trace: object) -> Iterator[None]:
    """Have what is computed belong to another JAX transformation that is running, around the innermost one."""
    if current_trace() is trace:
        yield
        return
    with _set_trace(trace):
        yield


def makes_jaxpr(trace: object) -> bool:
    """Tell whether a JAX transformation writes a jaxpr (``jax.jit``, ``lax.scan`` ...): only those take over a call as it is."""
    return type(trace).__name__ == "DynamicJaxprTrace" and _call_form() is not None


# With these options of ``custom_vjp.defvjp`` the calls that ``jax.vmap`` makes one may share results; newer releases refuse it without.
SHARING: dict[str, Any] = {"generic_batching": True} if "generic_batching" in inspect.signature(jax.custom_vjp.defvjp).parameters else {}

# Primitives that merely call a jaxpr, with the parameter that holds it.
CALL_JAXPR_PARAMS: dict[Primitive, str] = {
    known: key
    for name, key in {"jit": "jaxpr", "closed_call": "call_jaxpr", "call": "call_jaxpr"}.items()
    if (known := primitive(name)) is not None
}


def closed(jaxpr: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    """Close an open jaxpr without constants; a closed one is returned as it is."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else extend.ClosedJaxpr(jaxpr, ())


def bind(primitive: Primitive, params: dict[str, Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Apply ``primitive`` to ``inputs`` under whatever JAX trace is running and return all outputs as a tuple."""
    bound: Any = primitive
    parts = bound.get_bind_params(params)
    subfunctions, options = parts if isinstance(parts, tuple) else ((), parts)  # older releases answer with both
    outputs = bound.bind(*subfunctions, *inputs, **options)
    return tuple(outputs) if primitive.multiple_results else (outputs,)


def _call_form() -> dict[str, Any] | None:
    """Return the parameters of a ``jit`` call of a function of 2 inputs and 3 results, in the context in force (a mesh may be)."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh not in _FORMS:
        number = ShapedArray((), np.dtype("float32"))
        (eqn,) = jax.make_jaxpr(jax.jit(lambda a, b: (a + b, a - b, a * b)))(number, number).eqns
        known = eqn.primitive in CALL_JAXPR_PARAMS and isinstance(eqn.params.get("jaxpr"), ClosedJaxpr)
        _FORMS[mesh] = dict(eqn.params, primitive=eqn.primitive) if known else None
    return _FORMS[mesh]


_FORMS: dict[Any, dict[str, Any] | None] = {}


def call(name: str, closed: ClosedJaxpr, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Apply a jaxpr under the running JAX transformation as one ``jit`` call, without tracing it again."""
    form = dict(_call_form() or {})
    called: Primitive = form.pop("primitive")
    lengths = {2: len(inputs), 3: len(closed.jaxpr.outvars)}  # what is given per input or per result, is given for all alike
    params = {k: v[:1] * lengths[len(v)] if isinstance(v, tuple) and len(v) in lengths else v for k, v in form.items()}
    return bind(called, {**params, "jaxpr": closed, "name": name}, inputs)


@functools.cache
def no_origin() -> Any:
    """Return what JAX notes of the origin of a jaxpr, for one that no function was traced to."""
    return jax.make_jaxpr(lambda: ())().jaxpr.debug_info.with_unknown_names()


def trace(fun: Callable[..., Any], *avals: object) -> tuple[ClosedJaxpr, Any]:
    """Trace ``fun`` on abstract inputs; return its jaxpr and the tree of its results' shapes and dtypes."""

    def fresh(*args: object) -> object:  # JAX keeps jaxprs by the function's identity, also where it has captured another trace's values
        return fun(*args)

    jaxpr, shapes = jax.make_jaxpr(fresh, return_shape=True)(*avals)
    return _owning(jaxpr.jaxpr, jaxpr.consts), shapes


def trace_quickly(fun: Callable[..., Any], *avals: Any) -> tuple[ClosedJaxpr, Any]:
    """:func:`trace` without what ``jax.jit`` does around it, most of it for an op: where a release lets that be, and where it succeeds."""
    bare = jax.sharding.get_abstract_mesh().empty and not getattr(jax.config, "jax_debug_key_reuse", False)
    if bare and (dynamic := _dynamic()) and all(aval.__class__ is ShapedArray and aval.sharding.mesh.empty for aval in avals):
        trees: list[Any] = []

        def flat(*args: object) -> list[Any]:
            trees.append(jax.tree.structure(results := fun(*args)))
            return jax.tree.leaves(results)

        with contextlib.suppress(Exception):  # what is wrong with a function, JAX says better there
            jaxpr, shapes, consts = dynamic(linear_util.wrap_init(flat, debug_info=no_origin()), avals)
            return _owning(jaxpr, consts), jax.tree.unflatten(trees[0], shapes)
    return trace(fun, *avals)


@functools.cache
def _dynamic() -> Any:
    """Return what JAX traces with; None where a release has it in another form."""
    with contextlib.suppress(Exception):
        jaxpr, _, _ = partial_eval.trace_to_jaxpr_dynamic(linear_util.wrap_init(list, debug_info=no_origin()), [])
        return partial_eval.trace_to_jaxpr_dynamic if isinstance(jaxpr, Jaxpr) else None
    return None


def _owning(jaxpr: Jaxpr, consts: Sequence[Any]) -> ClosedJaxpr:
    """Close a jaxpr, which from now on shares no array with others."""
    _own(jaxpr)
    return ClosedJaxpr(jaxpr, [_copied(c) for c in consts])


class ForwardRule:
    """The forward rule of a ``custom_vjp`` call in a jaxpr, which is traced for each choice of inputs that are differentiated."""

    def __init__(self, rule: Any) -> None:
        self.rule, self.debug_info = rule, rule.debug_info
        self._choice: tuple[bool, ...] = ()

    def call_wrapped(self, *choice: bool) -> Any:
        if choice != self._choice:  # JAX keeps what it traced for each choice, but only for the last one the trees of the residuals
            self._choice = ()  # for what fails leaves none
            for memory in [c.cell_contents for c in getattr(self.rule.f, "__closure__", None) or () if type(c.cell_contents) is dict]:
                memory.clear()
        traced, self._choice = self.rule.call_wrapped(*choice), choice
        return traced


def _own(jaxpr: Jaxpr) -> None:
    """Copy what a jaxpr, and those in it, hold of NumPy's arrays: whoever has those may change them."""
    for eqn in jaxpr.eqns:
        if hasattr(rule := eqn.params.get("fwd_jaxpr_thunk"), "call_wrapped") and not isinstance(rule, ForwardRule):
            eqn.params["fwd_jaxpr_thunk"] = ForwardRule(rule)
    for atom in (*jaxpr.outvars, *[atom for eqn in jaxpr.eqns for atom in eqn.invars]):
        if isinstance(atom, Literal):
            atom.val = _copied(atom.val)
    for inner in jax.tree.leaves([[*eqn.params.values()] for eqn in jaxpr.eqns], is_leaf=lambda x: isinstance(x, (Jaxpr, ClosedJaxpr))):
        if isinstance(inner, (Jaxpr, ClosedJaxpr)):
            _own(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)
            if isinstance(consts := getattr(inner, "consts", None), list):
                consts[:] = map(_copied, consts)


def _copied(value: Any) -> Any:
    """Return a copy of an array of NumPy that nobody changes; of such a copy, itself."""
    array = value if isinstance(value, np.ndarray) else getattr(value, "val", None)  # in which JAX 0.9 has those of literals
    if not isinstance(array, np.ndarray) or (array.flags.owndata and not array.flags.writeable):
        return value
    value = copy.deepcopy(value)
    (value if isinstance(value, np.ndarray) else value.val).flags.writeable = False
    return value


def saveable(decision: object) -> bool:
    """Tell whether a checkpoint policy's answer lets a value be kept; one that it would move to the host is kept where it is."""
    return decision if isinstance(decision, bool) else decision is not jax.ad_checkpoint.Recompute


def described(value: object) -> Any:
    """Return what ``jax.jit`` needs to know of an argument to compile for it, without its value; a Python scalar is returned as it is."""
    if not isinstance(value, jax.Array):
        return value
    aval = jax.typeof(value)
    sharding = value.sharding if value.committed else None
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding, weak_type=aval.weak_type)


def to_host(array: jax.Array) -> tuple[Any, Any]:
    """Copy an array (or tracer) to the host's memory; return the copy, and what :func:`from_host` needs to bring it back."""
    if isinstance(array, Tracer):
        return jax.device_put(array, jax.memory.Space.Host), (jax.memory.Space.Device, _space(array))
    if not array.committed and jax.local_device_count() > 1:  # in the host's memory there would be a device that it is committed to
        return np.asarray(array), None
    return jax.device_put(array, jax.memory.Space.Host), (array.sharding, _space(array))


def _space(array: jax.Array) -> object:
    return getattr(jax.typeof(array), "memory_space", None)


def from_host(kept: tuple[Any, Any]) -> Any:
    """Bring back what :func:`to_host` returned."""
    copy, home = kept
    if home is None:
        return jax.device_put(copy)
    place, space = home
    array = jax.device_put(copy, place)
    # Where host and device share their memory, older releases take equal shardings for equal places, and leave the mark of the host.
    return array if _space(array) == space else jax.device_put(array, space)


def restrict(closed: ClosedJaxpr, kept: Sequence[int]) -> ClosedJaxpr:
    """Drop the inputs that are not in ``kept`` (nothing may read them)."""
    jaxpr = closed.jaxpr
    return ClosedJaxpr(_with_inputs(jaxpr, jaxpr.constvars, [jaxpr.invars[i] for i in kept]), closed.consts)


def hoist(closed: ClosedJaxpr, kept: Sequence[int]) -> ClosedJaxpr:
    """Make inputs of the constants, which come first, and drop the inputs that are not in ``kept`` (nothing may read them)."""
    jaxpr = closed.jaxpr
    return ClosedJaxpr(_with_inputs(jaxpr, [], [*jaxpr.constvars, *[jaxpr.invars[i] for i in kept]]), [])


def _with_inputs(jaxpr: Jaxpr, constants: Sequence[Var], inputs: Sequence[Var]) -> Jaxpr:
    return assembled(constants, inputs, jaxpr.outvars, jaxpr.eqns, jaxpr.effects, jaxpr.debug_info.with_unknown_names())


def assembled(
    constants: Sequence[Var], inputs: Sequence[Var], outputs: Sequence[Any], eqns: Sequence[JaxprEqn], effects: Any, origin: Any
) -> Jaxpr:
    """Return a jaxpr that tells JAX whether a primitive in it is one that JAX itself takes apart, as newer releases' searchsorted is."""
    high = any(eqn.primitive.is_high(*[v.aval for v in eqn.invars], **eqn.params) for eqn in eqns)
    return Jaxpr(constants, inputs, outputs, eqns, effects, origin, is_high=high)


partial: Any = jax.tree_util.Partial  # binds arrays to a function as a pytree: they may pass a transformation's boundary with it
