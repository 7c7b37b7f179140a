"""Purity: what a traced function may use without being followed into: functions whose results depend on their arguments alone.

These are listed, by the modules that hold them; what anything else is to a snapshot (:mod:`tape.callables.snapshot`) goes by its type.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
import types
from abc import ABCMeta
from enum import Enum
from typing import Any

import jax
import numpy as np

from tape.bounded import Bounded
from tape.callables.objects import COMPOSED
from tape.graph.lines import LIBRARIES, STANDARD
from tape.graph.segment import Handle
from tape.jaxapi import Tracer, words

_MODULES = words(
    "jax.numpy jax.lax jax.nn jax.random jax.scipy jax.image jax.ops jax.tree jax.tree_util jax.dtypes tape.image tape.ops tape.numpy "
    "tape.lax tape.nn tape.random tape.scipy math cmath operator _operator numpy numpy.linalg numpy.fft functools itertools"
)
_SUBMODULES = ("jax.numpy", "jax.lax", "jax.nn", "jax.scipy", "tape.numpy", "tape.lax", "tape.nn", "tape.scipy")
# Where most names are not functions of their arguments, or keep what they were given: those that are.
_SINGLE = {
    "jax": words(
        "Array ShapeDtypeStruct checkpoint eval_shape grad hessian jacfwd jacrev jvp linearize named_scope remat typeof value_and_grad vjp "
        "vmap"
    ),
    "tape": words(
        "Variable checkpoint checkpoint_name constant enable_grad grad gradients hessian hvp jacfwd jacobian jacrev jvp linearize no_grad "
        "stop_gradient value_and_grad vjp"
    ),
}
# Files, settings, uninitialized memory, counters that go on, and attributes whose names no code has.
_EXCEPT = words(
    "load loadtxt genfromtxt fromfile fromregex memmap save savez savez_compressed savetxt from_dlpack frombuffer empty empty_like nditer "
    "seterr geterr errstate seterrcall geterrcall set_printoptions get_printoptions printoptions getbufsize setbufsize test info "
    "show_config show_runtime get_include attrgetter methodcaller count cycle tee lru_cache cache cached_property singledispatch infeed "
    "outfeed rng_uniform register_dataclass register_pytree_node register_pytree_node_class register_pytree_with_keys register_static"
)
BUILTINS = {
    name: getattr(builtins, name)
    for name in words(
        "abs all any bool complex dict divmod enumerate filter float frozenset int isinstance issubclass len list map max min next iter "
        "pow range reversed round set slice sorted str sum tuple type zip ArithmeticError AssertionError AttributeError Exception "
        "IndexError KeyError NotImplementedError RuntimeError TypeError ValueError"
    )
}


def _attributes() -> frozenset[str]:
    kinds = (list, tuple, dict, set, frozenset, str, int, float, complex, range, slice, jax.Array, np.ndarray)
    names = frozenset([name for kind in kinds for name in dir(kind) if not name.startswith("_")])
    names |= words(
        "at get set multiply divide power min max apply eps tiny bits smallest_normal kind dtype requires_grad is_leaf eigenvalues "
        "eigenvectors U S Vh Q R sign logabsdet detach _replace _asdict _fields __class__ reduce accumulate reduceat outer __name__ "
        "__qualname__"
    )
    return names - words(
        "item tolist tofile dump dumps data flags ctypes base setflags numpy value format format_map delete is_deleted is_ready device "
        "devices sharding traceback on_device_size_in_bytes unsafe_buffer_pointer block_until_ready copy_to_host_async"
    )


# What may be taken of values that are not known before the trace: arrays, Variables, containers, results of the functions above.
ATTRIBUTES = _attributes()

_ROOTS = frozenset(
    {"jax", "jaxlib", "numpy", "tape", "interop", "functools", "itertools", "math", "cmath", "_operator", "operator", "builtins", "enum"}
)
_KNOWN: dict[int, Any] = {}  # with the values, so that their ids stay theirs for good


def is_pure(value: object) -> bool:
    """Tell whether a value is a listed function, type or constant of JAX, NumPy, the standard library or the tape."""
    if id(value) in _KNOWN:
        return True
    if type(value).__module__.split(".")[0] not in _ROOTS and not isinstance(value, Enum):
        return False
    if isinstance(value, types.FunctionType) and (not value.__code__.co_filename.startswith(_TRUSTED) or "<locals>" in value.__qualname__):
        return False  # put in place of a listed one, or made anew at every call: to look for it in all modules would take long
    if not _is_listed(value):
        return False
    _KNOWN[id(value)] = value
    return True


def _is_listed(value: object) -> bool:
    if isinstance(value, Enum):
        return type(value).__module__.split(".")[0] in _ROOTS
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and BUILTINS.get(name) is value:
        return True
    if isinstance(name, str) and not isinstance(value, types.ModuleType):
        for module in _listing(len(sys.modules)):
            names = vars(sys.modules[module])
            if names.get(name) is value and (name in _SINGLE[module] if module in _SINGLE else name not in _EXCEPT):
                return True
    return any(v is value for v in vars(jax.checkpoint_policies).values())


@functools.lru_cache(maxsize=2)
def _listing(_count: int) -> tuple[str, ...]:
    """Return the modules listed that are imported so far."""
    listed = [*_MODULES, *_SINGLE, *[m for m in sys.modules if m.startswith(tuple([s + "." for s in _SUBMODULES])) and "._" not in m]]
    return tuple([m for m in dict.fromkeys(listed) if m in sys.modules])


_TRUSTED = (*LIBRARIES, STANDARD, os.path.dirname(np.__file__) + os.sep)  # noqa: PTH120 - as code objects have it


# -- categories -----------------------------------------------------------------------------------------------------------

_COMPILED = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MemberDescriptorType)
_TUPLE = words(
    "__doc__ __slots__ _fields _field_defaults __new__ _make _replace __replace__ __repr__ _asdict __getnewargs__ __match_args__ "
    "__module__ __annotations__ __orig_bases__ __static_attributes__ __firstlineno__ __annotate__ __annotate_func__ __annotations_cache__ "
    "__classdictcell__"
)
CATEGORIES: Bounded[type, str] = Bounded("types", 1024)
_OF_PYTHON: dict[type, str] = {
    **dict.fromkeys((int, bool, str, bytes, type(None), type(...), type(NotImplemented)), "atom"),
    **dict.fromkeys((list, tuple, set, frozenset), "items"),
    **dict.fromkeys((float, complex), "inexact"),
    **dict.fromkeys(COMPOSED, "composed"),
    dict: "mapping",
    types.FunctionType: "function",
    types.ModuleType: "unknown",
    types.SimpleNamespace: "instance",
    np.ndarray: "numpy",
}
_POLICY: type = type(jax.checkpoint_policies.dots_saveable)


def category(value: object) -> str:
    """Return how a value becomes part of a key: the method of the snapshot that adds it.

    "_instance" is one of a class written in Python outside the libraries, "_own" one of the tape's, "_library" anything of another library.
    """
    kind = type(value)
    return CATEGORIES.cached(kind, lambda: "_" + (_OF_PYTHON.get(kind) or _categorized(kind, value)))


def _categorized(kind: type, value: object) -> str:
    if issubclass(kind, Handle):
        return "variable"
    if isinstance(value, Tracer):
        return "unknown"
    if isinstance(value, jax.Array):
        return "array"
    for base, name in ((np.generic, "numpy"), (np.dtype, "atom"), (Enum, "member"), (types.ModuleType, "unknown"), (type, "type")):
        if issubclass(kind, base):
            return name
    if is_plain_tuple(kind):
        return "named_tuple"
    home = kind.__module__.split(".")[0]
    if home in {"tape", "interop"}:
        return "own" if kind.__module__ in {"tape.callables.higher_order", "tape.modes"} else "library"
    if kind.__module__ == _POLICY.__module__ != "builtins":  # what checkpoint_policies makes
        return "own"
    if home in {"jax", "jaxlib", "numpy", "builtins", "functools", "itertools", "operator"}:
        return "library"
    return "instance" if is_followed(kind) else "unknown"


def is_followed(kind: type) -> bool:
    """Tell whether a class is written in Python, without a metaclass of its own."""
    return type(kind) in (type, ABCMeta) and all(_in_python(cls) for cls in kind.__mro__[:-1])


def _in_python(cls: type) -> bool:
    slots = vars(cls).get("__slots__", ())
    names = {slots} if isinstance(slots, str) else set(slots)
    return all(name in names for name, held in vars(cls).items() if isinstance(held, _COMPILED)) and cls.__module__ != "builtins"


def is_plain_tuple(kind: Any) -> bool:
    """Tell whether a class is a named tuple without methods of its own."""
    return kind.__bases__ == (tuple,) and "_fields" in vars(kind) and _TUPLE.union(kind._fields).issuperset(vars(kind))


@functools.lru_cache(maxsize=1024)
def fields_of(tree: jax.tree_util.PyTreeDef) -> frozenset[str] | None:
    """Return the names of the fields in a tree of arguments; None where it has nodes of other classes than Python's containers."""
    fields: set[str] = set()
    stack = [tree]
    while stack:
        node = stack.pop()
        data = node.node_data()
        if data is None:
            continue
        kind: Any = data[0]
        if kind not in (tuple, list, dict, type(None)):
            if not is_plain_tuple(kind):
                return None
            fields.update(kind._fields)
        stack += node.children()
    return frozenset(fields)
