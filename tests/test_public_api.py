"""Public names and signatures stay as they are."""

import inspect

import pytest

import interop
import tape
from tape.jaxapi import primitive
from tape.rules.left import LEFT

NAMES = [
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

SIGNATURES = {
    tape.Variable: "(value, *, requires_grad=None, name=None)",
    tape.Tape: "(*, keep=False)",
    tape.memory: "()",
    tape.profile: "(*, entries=False, wait=True, memory=True, python=False)",
    tape.Tape.draw: "(self, path=None, *, group='function', fold=True, flow=None)",
    tape.Tape.of: "(outputs)",
    tape.explain: "(output, input)",
    tape.draw: "(outputs, path=None, *, group='function', fold=True, flow=False)",
    tape.Tape.text: "(self, *, width=None, color=None, fold=True, inner=False)",
    tape.Tape.gradients: "(self, outputs, inputs, grad_outputs=None, **options)",
    tape.Tape.function: "(self, inputs, outputs)",
    tape.constant: "(value, *, name=None)",
    tape.backward: "(outputs, grad_outputs=None, *, inputs=None, ignore=(), retain_graph=None, create_graph=False)",
    tape.gradients: "(outputs, inputs, grad_outputs=None, *, unconnected='raise', retain_graph=None, create_graph=False)",
    tape.stream_gradients: "(outputs, grad_outputs=None, *, inputs=None)",
    tape.Variable.backward: "(self, grad=None, *, inputs=None, ignore=(), retain_graph=None, create_graph=False)",
    tape.rules.accurate_logistic: "(ct, out, x, **_)",
    tape.rules.accurate_tanh: "(ct, out, x, **_)",
    tape.rules.defvjp: "(primitive, rule)",
    tape.grad: "(fun, argnums=0, has_aux=False, holomorphic=False, allow_int=False)",
    tape.value_and_grad: "(fun, argnums=0, has_aux=False, holomorphic=False, allow_int=False)",
    tape.jvp: "(fun, primals, tangents, has_aux=False)",
    tape.vjp: "(fun, *primals, has_aux=False)",
    tape.vmap: "(fun, in_axes=0, out_axes=0, *, axis_name=None, axis_size=None, spmd_axis_name=None)",
    tape.hvp: "(fun, primals, tangents)",
    tape.jit: "(fun=None, /, *, static_argnums=None, static_argnames=None, donate_argnums=None, donate_argnames=None, donate_state=False, keep_unused=False, compiler_options=None)",
    tape.detect_anomaly: "(*, inf=False)",
    tape.op_hooks.GradientClipper: "(*, value=None, norm=None)",
    tape.op_hooks.MemoryCounter: "(*, by='op')",
    tape.op_hooks.NaNWatcher: "(*, inf=False, raises=False)",
    tape.op_hooks.Printer: "(*, norms=True, file=None)",
    tape.op_hooks.Timer: "(*, by='op')",
    tape.hooks: "(*op_hooks, ops=None)",
    tape.register_multi_grad_hook: "(variables, hook, *, mode='all')",
    tape.hessian: "(fun, argnums=0, has_aux=False, holomorphic=False)",
    tape.checkpoint: "(fun, *, policy=None, prevent_cse=True, static_argnums=(), static_argnames=())",
    tape.save_on_host: "()",
    tape.saved_value_hooks: "(pack, unpack)",
    tape.checkpoint_name: "(value, name)",
    tape.checkpoint_scan: "(f, init, xs=None, length=None, reverse=False, unroll=1, *, schedule='log')",
    tape.checkpoint_sequential: "(functions, state, *, schedule='root')",
    interop.lift: "(jax_fun, *, inline=False)",
    interop.lower: "(tape_fun)",
    interop.save: "(path, state, *, format=None)",
    interop.load: "(path, state=None, *, strict=True, format=None)",
}

ATTRIBUTES = [
    "value",
    "grad",
    "requires_grad",
    "is_leaf",
    "op",
    "name",
    "shape",
    "dtype",
    "ndim",
    "size",
    "T",
    "mT",
    "device",
    "sharding",
    "itemsize",
    "nbytes",
    "at",
    "item",
    "numpy",
    "detach",
    "requires_grad_",
    "retain_grad",
    "zero_grad",
    "unchain",
    "unchain_backward",
    "block_until_ready",
    "backward",
    "register_hook",
    "register_post_accumulate_grad_hook",
]

OWN = [
    "sin",
    "mul",
    "div",
    "pow",
    "integer_pow",
    "reduce_sum",
    "reduce_max",
    "reduce_prod",
    "cumsum",
    "cumprod",
    "cumlogsumexp",
    "reshape",
    "transpose",
    "broadcast_in_dim",
    "concatenate",
    "pad",
    "gather",
    "scatter",
    "scatter-add",
    "dynamic_slice",
    "dynamic_update_slice",
    "dot_general",
    "conv_general_dilated",
    "reduce_window_max",
    "reduce_window_sum",
    "sort",
    "top_k",
    "select_n",
    "clamp",
    "lt",
    "floor",
    "round",
    "complex",
    "real",
    "imag",
    "conj",
    "fft",
    "cholesky",
    "qr",
    "lu",
    "eigh",
    "svd",
    "triangular_solve",
    "lgamma",
    "digamma",
    "erf",
    "igamma",
    "jit",
    "custom_jvp_call",
    "custom_vjp_call",
    "cond",
    "scan",
    "while",
]


def plain(function):
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    return str(inspect.Signature(parameters))


def test_what_an_interpreter_completes_is_what_there_is_to_use():
    spaces = {"extend", "image", "lax", "nn", "numpy", "random", "scipy", "testing"}
    assert {name for name in dir(tape) if not name.startswith("__")} == {*tape.__all__, *spaces}


def test_names():
    assert sorted(tape.__all__) == sorted(NAMES)
    assert sorted(interop.__all__) == ["export", "lift", "load", "lower", "save"]


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda f: f.__qualname__)
def test_signatures(function):
    assert plain(function) == SIGNATURES[function]


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_variables_have(name):
    assert hasattr(tape.Variable, name)


@pytest.mark.parametrize("name", OWN)
def test_rules_are_own(name):
    assert tape.rules.coverage()[name] == "own"


def test_what_is_left_to_jax():
    """Nothing slips in unseen: each has its reason (tests/rules/test_left.py)."""
    assert {name for name, whose in tape.rules.coverage().items() if whose == "jax"} <= set(LEFT)


def test_checkpoint_has_a_rule():
    assert tape.rules.lookup(primitive("remat")) is not None
