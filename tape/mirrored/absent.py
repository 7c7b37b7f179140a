"""What to write for a name that other libraries have: a method that a Variable lacks, or a function that a namespace lacks."""

from __future__ import annotations

import importlib
import sys

import jax.numpy as jnp

from tape.errors import TapeAttributeError

_NAMESPACES = ("numpy", "nn", "numpy.linalg", "lax", "scipy.special", "random")  # below jax; some are imported only when they are asked
_SPELLINGS = {  # names of PyTorch, Chainer and TensorFlow, where JAX's differs
    "array": "value",
    "assign": "value = ...",
    "bfloat16": "astype('bfloat16')",
    "cleargrad": "zero_grad()",
    "clamp": "clip(min, max)",
    "clone": "copy()",
    "contiguous": "copy()",
    "creator": "op",
    "cpu": "to_device(jax.devices('cpu')[0])",
    "cuda": "to_device(jax.devices('gpu')[0])",
    "data": "value",
    "detach_": "unchain()",
    "dim": "ndim",
    "double": "astype('float64')",
    "element_size": "itemsize",
    "float": "astype('float32')",
    "grad_fn": "op",
    "grad_var": "grad",
    "half": "astype('float16')",
    "index_add": "at[index].add(value)",
    "int": "astype('int32')",
    "is_floating_point": "dtype",
    "long": "astype('int64')",
    "nelement": "size",
    "numel": "size",
    "permute": "transpose(axes)",
    "reshape_as": "reshape(other.shape)",
    "scatter_add": "at[index].add(value)",
    "select": "take(index, axis)",
    "t": "T",
    "to": "astype(dtype), or variable.to_device(device)",
    "type": "astype(dtype)",
    "type_as": "astype(other.dtype)",
    "view_as": "reshape(other.shape)",
}
_FUNCTIONS = {
    "bernoulli": "random.bernoulli(key, variable)",
    "chunk": "numpy.split(variable, sections)",
    "expand": "numpy.broadcast_to(variable, shape)",
    "expand_as": "numpy.broadcast_to(variable, other.shape)",
    "gather": "numpy.take_along_axis(variable, index, axis)",
    "index_select": "numpy.take(variable, index, axis)",
    "masked_fill": "numpy.where(mask, value, variable)",
    "masked_select": "numpy.extract(mask, variable)",
    "mm": "numpy.matmul(variable, other)",
    "multinomial": "random.categorical(key, tape.numpy.log(variable))",
    "polygamma": "scipy.special.polygamma(n, variable)",
    "topk": "lax.top_k(variable, k)",
    "unbind": "numpy.unstack(variable)",
    "unsqueeze": "numpy.expand_dims(variable, axis)",
    "where": "numpy.where(condition, variable, other)",
}
_IN_PLACE = {"add", "addcdiv", "addcmul", "clamp", "div", "fill", "index_add", "lerp", "mul", "relu", "scatter_add", "sub", "zero"}
_RENAMED = {  # functions of PyTorch, and of NumPy where JAX dropped or renamed them
    "alltrue": "numpy.all",
    "asfarray": "numpy.asarray",
    "bmm": "numpy.matmul",
    "cat": "numpy.concatenate",
    "clamp": "numpy.clip",
    "cumproduct": "numpy.cumprod",
    "fix": "numpy.trunc",
    "from_numpy": "numpy.asarray",
    "in1d": "numpy.isin",
    "product": "numpy.prod",
    "rand": "random.uniform",
    "randn": "random.normal",
    "require": "numpy.asarray",
    "row_stack": "numpy.vstack",
    "sometrue": "numpy.any",
    "tensor": "numpy.asarray",
    "trapz": "numpy.trapezoid",
}
_MODULES = "interop.nnx.Module(module), interop.equinox.Module(module) or interop.torch.from_torch(module) for modules of others"
_NAMED = {  # by namespace: what other libraries call it there
    "tape": {
        "GradientTape": "tape.gradients(outputs, inputs)",
        "Parameter": "tape.Variable(value)",
        "Tensor": "tape.Variable(value)",
        "as_variable": "tape.constant(value)",
        "autograd": "tape.gradients(outputs, inputs)",
        "compile": "tape.jit(function)",
        "custom_gradient": "tape.Function",
        "custom_jvp": "tape.Function",
        "custom_vjp": "tape.Function",
        "elementwise_grad": "tape.grad(lambda x: function(x).sum())",
        "func": "tape.grad, tape.jacrev, tape.hessian, tape.jvp, tape.vjp or tape.vmap",
        "gradcheck": "tape.testing.check_gradients(function, *inputs)",
        "inference_mode": "tape.no_grad()",
        "load": "interop.load(path)",
        "make_jvp": "tape.jvp(function, primals, tangents)",
        "make_vjp": "tape.vjp(function, *primals)",
        "manual_seed": "tape.random.key(seed)",
        "no_backprop_mode": "tape.no_grad()",
        "optim": "interop.optax.Optimizer(parameters, transformation)",
        "optimizers": "interop.optax.Optimizer(parameters, transformation)",
        "save": "interop.save(path, state)",
        "set_detect_anomaly": "tape.detect_anomaly() in a with statement",
        "tensor": "tape.Variable(value)",
    },
    "tape.nn": {
        "Linear": _MODULES,
        "Module": _MODULES,
        "Parameter": "tape.Variable(value)",
        "Sequential": _MODULES,
        "cross_entropy": "-tape.numpy.take_along_axis(tape.nn.log_softmax(x), labels[:, None], axis=1).mean()",
        "functional": "tape.nn.relu(x) and the like: those functions are here",
        "mse_loss": "((x - y) ** 2).mean()",
    },
}


def missing(variable: object, name: str) -> AttributeError:
    """Return the error for an attribute that a Variable does not have."""
    msg = f"'{type(variable).__name__}' object has no attribute {name!r}"
    repair = None if name.startswith("_") else _repair(name)
    return _error(msg, repair, name, variable)


def missing_function(module: str, name: str) -> AttributeError:
    """Return the error for a name that a mirrored namespace does not have."""
    repair = _NAMED.get(module, {}).get(name)
    if repair is None and not name.startswith("_"):
        function = _RENAMED.get(name) or (_FUNCTIONS[name].partition("(")[0] if name in _FUNCTIONS else None) or _elsewhere(name)
        repair = None if function is None or f"tape.{function}" == f"{module}.{name}" else f"tape.{function}"
    return _error(f"module {module!r} has no attribute {name!r}", repair, name, sys.modules.get(module))


def _error(msg: str, repair: str | None, name: str, where: object) -> AttributeError:
    error = TapeAttributeError(msg if repair is None else f"{msg}; use {repair}")
    error.name, error.obj = name, where
    return error


def _repair(name: str) -> str | None:
    if name in _SPELLINGS:
        return f"variable.{_SPELLINGS[name]}"
    if name in _FUNCTIONS:
        return f"tape.{_FUNCTIONS[name]}"
    stem = name.removesuffix("_")
    if stem != name and (stem in dir(jnp) or stem in _FUNCTIONS or stem in _IN_PLACE):
        repair = "an augmented assignment (variable += ... under tape.no_grad() for a leaf that requires grad), or variable.value = ..."
        return f"x.zero_grad() for the gradient of x, {repair}" if stem == "zero" else repair
    function = _elsewhere(name)
    return None if function is None else f"tape.{function}(variable)"


def _elsewhere(name: str) -> str | None:
    """Return the function of a namespace that has this name."""
    for where in _NAMESPACES:
        function = getattr(importlib.import_module(f"jax.{where}"), name, None)
        if callable(function) and not isinstance(function, type):
            return f"{where}.{name}"
    return None
