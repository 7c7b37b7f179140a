"""A tape autograd for JAX: define-by-run at the speed of jit."""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

_COLLECTS = gc.isenabled()
gc.disable()  # to look through all of JAX's objects for garbage, again and again, takes half of the time: what is imported stays
try:
    from tape import errors, rules
    from tape.hooking.handles import register_multi_grad_hook
    from tape.mirrored.absent import missing_function
    from tape.mirrored.detachment import stop_gradient
    from tape.modes import eager, enable_grad, no_grad, reproducible, set_grad_enabled
    from tape.programs.telling import log_compiles
    from tape.statistics import stats
    from tape.sweeps.differentiation import backward, gradients
    from tape.variables.variable import Variable, constant
finally:
    if _COLLECTS:
        gc.enable()

if TYPE_CHECKING:  # they are imported at their first use
    from tape import extend as extend
    from tape import image as image
    from tape import lax as lax
    from tape import nn as nn
    from tape import numpy as numpy
    from tape import op_hooks as op_hooks
    from tape import random as random
    from tape import scipy as scipy
    from tape import testing as testing
    from tape.callables.checkpoint import checkpoint, checkpoint_name, checkpoint_policies
    from tape.callables.schedules import checkpoint_scan, checkpoint_sequential
    from tape.functions.function import Function, once_differentiable
    from tape.hooking.observing import OpHook, hooks
    from tape.hooking.packing import save_on_host, saved_value_hooks
    from tape.insight.explaining import explain
    from tape.insight.listing import Tape, draw
    from tape.insight.memory import memory
    from tape.insight.profiling import profile
    from tape.jitting.jitted import jit
    from tape.op_hooks.anomalies import detect_anomaly
    from tape.sweeps.streaming import stream_gradients
    from tape.transforms import grad, hessian, hvp, jacfwd, jacobian, jacrev, jvp, linearize, value_and_grad, vjp, vmap

__all__ = [
    "Function",
    "OpHook",
    "Tape",
    "Variable",
    "backward",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "checkpoint_scan",
    "checkpoint_sequential",
    "constant",
    "detect_anomaly",
    "draw",
    "eager",
    "enable_grad",
    "errors",
    "explain",
    "grad",
    "gradients",
    "hessian",
    "hooks",
    "hvp",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "linearize",
    "log_compiles",
    "memory",
    "no_grad",
    "once_differentiable",
    "op_hooks",
    "profile",
    "register_multi_grad_hook",
    "reproducible",
    "rules",
    "save_on_host",
    "saved_value_hooks",
    "set_grad_enabled",
    "stats",
    "stop_gradient",
    "stream_gradients",
    "value_and_grad",
    "vjp",
    "vmap",
]
__version__ = "0.1.0"

_NAMESPACES = ("extend", "image", "lax", "nn", "numpy", "op_hooks", "random", "scipy", "testing")
_LATER = {  # what a step need not have, by the module that has it: half of what there is to import
    "callables.checkpoint": ("checkpoint", "checkpoint_name", "checkpoint_policies"),
    "callables.schedules": ("checkpoint_scan", "checkpoint_sequential"),
    "functions.function": ("Function", "once_differentiable"),
    "hooking.observing": ("OpHook", "hooks"),
    "hooking.packing": ("save_on_host", "saved_value_hooks"),
    "insight.explaining": ("explain",),
    "insight.listing": ("Tape", "draw"),
    "insight.memory": ("memory",),
    "insight.profiling": ("profile",),
    "jitting.jitted": ("jit",),
    "op_hooks.anomalies": ("detect_anomaly",),
    "sweeps.streaming": ("stream_gradients",),
    "transforms": ("grad", "hessian", "hvp", "jacfwd", "jacobian", "jacrev", "jvp", "linearize", "value_and_grad", "vjp", "vmap"),
}
_HOMES = {name: home for home, names in _LATER.items() for name in names}

if not TYPE_CHECKING:  # which would take every name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _NAMESPACES:
            return importlib.import_module(f"tape.{name}")
        if name in _HOMES:
            value = globals()[name] = getattr(importlib.import_module(f"tape.{_HOMES[name]}"), name)
            return value
        raise missing_function("tape", name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_NAMESPACES, *[name for name in globals() if name.startswith("__")]})
