"""Torch functions and modules on the tape: gradients of any order, parameters, buffers, random numbers, memory, dtypes, what is refused."""

import copy
import dataclasses
import functools
import gc
import math
import subprocess
import sys
import threading
import typing
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop
import tape
import tape.numpy as tnp
from tape import extend
from tape.errors import (
    LostGradientError,
    TapeAttributeError,
    TapeError,
    TapeOverflowError,
    TapeRuntimeError,
    TapeTypeError,
    TapeValueError,
)
from tape.testing import check_gradients

torch = pytest.importorskip("torch", reason="the bridge to PyTorch needs it: pip install torch, the build for CPUs")

WIDE = jax.config.jax_enable_x64
X = np.random.default_rng(7).normal(size=(5, 3))


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def from_torch(what):
    return interop.torch.from_torch(what)


def same(a, b, rtol=1e-12):
    a, b = (x.cpu() if isinstance(x, torch.Tensor) else x for x in (a, b))
    a, b = (np.asarray(x.detach() if hasattr(x, "detach") else x) for x in (a, b))
    np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-14)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)])
        self.norm = torch.nn.BatchNorm1d(4)
        self.dropout = torch.nn.Dropout(0.5)
        self.scale = 1.0

    def forward(self, x):
        return self.layers[1](self.dropout(self.encode(x)))

    def encode(self, x, *, shift=0.0):
        return torch.tanh(self.norm(self.layers[0](x))) * self.scale + shift

    def size(self):
        return 7

    def first(self):
        return self.layers[0]


def _net():
    torch.manual_seed(3)
    return Net().double()


# -- functions --------------------------------------------------------------------------------------------------------


def test_gradients_of_any_order_are_those_of_jax():
    f = from_torch(lambda a, b: torch.sin(a) * b + (a * b).sum() ** 2)

    def g(a, b):
        return jnp.sin(a) * b + (a * b).sum() ** 2

    a, b = tape.Variable(X), tape.Variable(X[::-1] + 2)

    def third(f, grad, total, *args):
        first = grad(lambda a, b: total(f(a, b) ** 2), (0, 1))
        second = grad(lambda a, b: total(first(a, b)[0] * first(a, b)[1]), (0, 1))
        return grad(lambda a, b: total(second(a, b)[0] ** 2), (0, 1))(*args)

    for ours, theirs in zip(third(f, tape.grad, tnp.sum, a, b), third(g, jax.grad, jnp.sum, X, X[::-1] + 2), strict=True):
        same(ours, theirs, rtol=1e-9)


def test_check_gradients_passes():
    jax.config.update("jax_enable_x64", True)  # for all threads
    try:
        check_gradients(from_torch(lambda x: torch.logsumexp(x, 1) * torch.cumsum(x, 0)[:, 0]), X, against=("numeric",))
    finally:
        jax.config.update("jax_enable_x64", WIDE)


def test_a_callback_keeps_digits_where_other_threads_have_x64_mode_off():
    f = from_torch(lambda x, n: (x * 3, n + 1))
    for x in (X, X + 1j * X):
        run = jax.jit(interop.lower(lambda x, n: f(x, n)))
        y, n = run(x, np.array([2**40]))
        same(y, 3 * x)
        assert int(n[0]) == 2**40 + 1
        same(jax.vmap(run, (0, None))(x, np.array([1]))[0], 3 * x)


def test_complex_gradients_are_those_of_jax():
    z = X + 1j * X[::-1]
    f = from_torch(lambda z: z * z * torch.exp(z.conj()))

    def loss(f, xp, z):
        return (xp.abs(f(z)) ** 2).sum()

    def g(z):
        return z * z * jnp.exp(z.conj())

    v = tape.Variable(z)
    first = tape.gradients(loss(f, tnp, v), v, create_graph=True)
    same(first, jax.grad(lambda z: loss(g, jnp, z))(z))
    second = tape.gradients((first * (1 + 2j)).real.sum(), v)
    same(second, jax.grad(lambda z: (jax.grad(lambda z: loss(g, jnp, z))(z) * (1 + 2j)).real.sum())(z))


class Pair(typing.NamedTuple):
    left: object
    right: object


@dataclasses.dataclass
class Output:
    loss: object
    hidden: object = None
    name: str = "x"


def test_structures_keep_their_types_and_what_is_no_tensor():
    @from_torch
    def f(tree, *, pair, n, flag):
        return {
            "u": [tree["a"] * n, tree["b"][0]],
            "o": Output(pair.left + pair.right, (tree["a"],), "y"),
            "p": Pair(1, tree["a"]),
            "f": flag,
        }

    a, b = tape.Variable(2.0), tape.Variable(3.0)
    out = f({"a": a, "b": (b, None)}, pair=Pair(a, np.float64(4.0)), n=5, flag=True)
    assert isinstance(out["o"], Output)
    assert out["o"].name == "y"
    assert isinstance(out["p"], Pair)
    assert out["p"].left == 1
    assert out["f"] is True
    assert float(out["u"][0]) == 10.0
    ga, gb = tape.gradients([out["u"][0], out["u"][1], out["o"].loss, out["o"].hidden[0]], [a, b])
    assert (float(ga), float(gb)) == (7.0, 1.0)


def test_a_call_is_one_op_and_torch_runs_once():
    runs, seen = [], []

    def noted(x):
        runs.append(1)
        return torch.tanh(x)

    class Seen(tape.OpHook):
        def forward_postprocess(self, op, inputs, outputs):
            seen.append(op.name)

    x = tape.Variable(X)
    with tape.hooks(Seen()):
        y = from_torch(noted)(x)
    assert [name for name in seen if "detach" not in name] == ["noted"]
    g = tape.gradients(y.sum(), x, create_graph=True)
    tape.gradients(g.sum(), x)
    assert len(runs) == 1


def test_the_graph_goes_with_the_tape_and_is_kept_for_a_second_sweep():
    kept = []

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            kept.append(weakref.ref(ctx))
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

    x = tape.Variable(2.0)
    y = from_torch(Cube.apply)(x)
    assert float(tape.gradients(y, x, retain_graph=True)) == 12.0
    assert float(tape.gradients(y, x)) == 12.0
    with pytest.raises(TapeError, match="retain_graph=True"):
        tape.gradients(y, x)
    del y
    gc.collect()
    assert kept[0]() is None


def test_jacobians_go_row_by_row():
    f = from_torch(lambda x: torch.tanh(x) @ torch.ones(3, 2, dtype=x.dtype, device=x.device))
    same(tape.jacobian(f)(X), jax.jacobian(lambda x: jnp.tanh(x) @ jnp.ones((3, 2)))(X))
    same(tape.hessian(lambda x: (f(x) ** 2).sum())(X), jax.hessian(lambda x: ((jnp.tanh(x) @ jnp.ones((3, 2))) ** 2).sum())(X))


def test_what_torch_cuts_off_is_constant():
    x = tape.Variable(X)
    y, n, d = from_torch(lambda x: (x * 2, x.argmax(), x.detach()))(x)
    assert (y.requires_grad, n.requires_grad, d.requires_grad) == (True, False, False)
    with tape.no_grad():
        assert not from_torch(torch.sin)(x).requires_grad
    with torch.no_grad():
        same(tape.gradients(from_torch(torch.sin)(x).sum(), x), np.cos(X))
    with torch.inference_mode():
        same(tape.gradients(from_torch(torch.sin)(x).sum(), x), np.cos(X))


def test_operations_in_place_change_no_variable():
    kept = torch.zeros(5, 3, dtype=torch.float64)

    def write(x, c):
        kept.add_(1)
        return x.mul_(2), c.add_(1), kept, torch.relu_(x)

    x, c = tape.Variable(X), tape.constant(X)
    f = from_torch(write)
    doubled, added, shared, _ = f(x, c)
    f(x, c)  # writes to what it returned before
    same(x, X)
    same(c, X)
    same(shared, np.ones((5, 3)))
    same(added, X + 1)
    same(tape.gradients(doubled.sum(), x), np.where(X > 0, 2.0, 0.0))


def test_large_arrays_are_not_written_to_either():
    big = np.arange(100_000.0)
    x, c = tape.Variable(big), tape.constant(big)
    y = from_torch(lambda x, c: x.mul_(2) + c.mul_(3))(x, c)
    same(y, 5 * big)
    same(x, big)
    same(c, big)
    (g,) = tape.gradients(y, [x], np.ones_like(big))
    same(g, np.full_like(big, 2.0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "bool", "int8", "int32", "int64", "uint32"])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 2)])
def test_dtypes_and_shapes_pass_both_ways(dtype, shape):
    v = tape.Variable(jnp.ones(shape, dtype))
    seen = []
    y = from_torch(lambda x: (seen.append(x.dtype), x.T if x.ndim else x)[1])(v)
    assert (y.dtype, y.shape) == (v.dtype, shape[::-1])
    assert str(seen[0]) == f"torch.{dtype}"
    np.testing.assert_array_equal(np.asarray(y.detach()), np.ones(shape[::-1], v.dtype))
    if v.requires_grad:
        g = tape.gradients(y, v, jnp.ones(y.shape, dtype))
        assert (g.dtype, g.shape) == (v.dtype, v.shape)


def test_strides_do_not_matter():
    f = from_torch(lambda x: (x.T, x[:, 1], x.expand(2, *x.shape), x.flip(0), torch.complex(x, x).conj().imag))
    x = tape.Variable(X[::-2, ::-1])
    want = X[::-2, ::-1]
    for y, z in zip(f(x), (want.T, want[:, 1], np.stack([want] * 2), want[::-1], -want), strict=True):
        same(y, z)
    same(tape.gradients(f(x)[2].sum(), x), np.full(want.shape, 2.0))


def test_without_x64_nothing_is_rounded_silently():
    with jax.enable_x64(False):
        x = tape.Variable(np.eye(3, dtype=np.float32))
        with pytest.raises(TapeTypeError, match=r"result 0 is torch\.float64.*jax_enable_x64"):
            from_torch(lambda x: x.double())(x)
        with pytest.raises(TapeTypeError, match=r"parameter weight is torch\.float64"):
            from_torch(torch.nn.Linear(2, 2).double())
        loss = from_torch(torch.nn.functional.cross_entropy)(x, np.array([0, 1, 2]))  # whose classes are int64
        assert loss.dtype == np.float32
        n = from_torch(lambda x: x.argmax(1))(x)
        assert n.dtype == np.int32
        with pytest.raises(TapeOverflowError, match="need 64 bits"):
            from_torch(lambda x: x.long() * 2**40)(x)


def test_lost_gradients_are_refused():
    layer = torch.nn.Linear(3, 2).double()
    x = tape.Variable(X)
    with pytest.raises(LostGradientError, match=r"requires grad \(shape \(2, 3\)|shape \(2,\)"):
        from_torch(lambda x: layer.to(x.device)(x))(x)
    with pytest.raises(LostGradientError, match="an argument is a torch tensor that requires grad"):
        from_torch(lambda x, w: x @ w)(x, torch.ones(3, 1, dtype=torch.float64, requires_grad=True))
    same(from_torch(lambda x, w: x @ w)(x, torch.ones(3, 1, dtype=torch.float64)), X.sum(1, keepdims=True))

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = [torch.nn.Linear(3, 2).double()]

        def forward(self, x):
            return self.hidden[0].to(x.device)(x)

    with pytest.raises(LostGradientError, match="Hidden: the result depends on a tensor that requires grad"):
        from_torch(Hidden())(x)


MEETINGS = {
    "a function": lambda v, t: torch.sin(v),
    "a loss": lambda v, t: torch.nn.functional.mse_loss(v, t),
    "a module": lambda v, t: torch.nn.Linear(3, 2)(v),
    "an operand": lambda v, t: v * t,
    "the first operand": lambda v, t: t @ v.T,
    "a comparison": lambda v, t: v == t,  # would be False
    "an index": lambda v, t: t[v.astype(int)],
    "a part": lambda v, t: t.__setitem__(0, v[0]),
}


@pytest.mark.parametrize("meet", MEETINGS.values(), ids=MEETINGS)
@pytest.mark.parametrize("make", [tape.Variable, tape.constant])
def test_functions_of_torch_refuse_variables(make, meet):
    with pytest.raises(
        TapeRuntimeError, match=r"met a Variable.* interop\.torch\.from_torch\(f\)\(x\), use the counterpart in tape\.numpy"
    ):
        meet(make(X), torch.from_numpy(X.copy()))


def test_what_is_advised_for_functions_of_torch_works():
    x = tape.Variable(X)
    for loss in (from_torch(torch.sin)(x).sum(), tnp.sin(x).sum()):
        (gradient,) = tape.gradients(loss, [x])
        np.testing.assert_allclose(gradient.numpy(), np.cos(X))
    same(torch.as_tensor(x.numpy()), X)
    with pytest.raises(TapeRuntimeError, match=r"make a tape\.constant\(tensor\) of a tensor of data"):
        torch.from_numpy(X) * x
    same(tape.constant(torch.from_numpy(X)) * x, X * X)
    with pytest.raises(TapeTypeError, match=r"sin: argument x is of type torch\.Tensor; pass tape\.constant\(value\)"):
        tnp.sin(torch.from_numpy(X))
    same(tnp.sin(tape.constant(torch.from_numpy(X))), np.sin(X))
    same(torch.as_tensor(tape.constant(X)), X)  # which takes anything for data


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: from_torch(3), TapeTypeError, "expected a torch.nn.Module or a function, got int"),
        (lambda: interop.torch.Module(torch.sin), TapeTypeError, "expected a torch.nn.Module"),
        (lambda: from_torch(lambda x: x)(jax.random.key(0)), TapeTypeError, "typed random key"),
        (lambda: from_torch(lambda x: x.to_sparse())(tape.Variable(X)), TapeTypeError, "to_dense"),
        (lambda: from_torch(torch.nn.LazyLinear(3)), TapeTypeError, "call the torch module once before it is wrapped"),
        (lambda: from_torch(torch.jit.script(torch.nn.Linear(1, 1))), TapeTypeError, "wrap the module that torch.jit.script"),
        (lambda: from_torch(Net()).double(), TapeTypeError, "before it is wrapped"),
        (lambda: setattr(from_torch(Net()), "new", torch.nn.Linear(1, 1)), TapeAttributeError, "set it before the module is wrapped"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_what_cannot_be_is_said(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_torchs_own_errors_come_through():
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        from_torch(lambda x: x @ x)(tape.Variable(X))


def test_op_hooks_and_hooks_see_the_call():
    x = tape.Variable(X)
    h = from_torch(torch.sin)(x)
    h.register_hook(lambda g: g * 2)
    h.sum().backward()
    same(x.grad, 2 * np.cos(X))


# -- modules ----------------------------------------------------------------------------------------------------------


def test_a_module_trains_as_in_torch():
    native = _net()
    module = from_torch(native)
    sgd = torch.optim.SGD(native.parameters(), lr=0.05, momentum=0.9)
    optimizer = interop.optax.Optimizer(module.parameters(), optax.sgd(0.05, momentum=0.9))
    for i in range(5):
        torch.manual_seed(i)
        theirs = (native(torch.from_numpy(X)) ** 2).mean()
        sgd.zero_grad()
        theirs.backward()
        torch.manual_seed(i)
        ours = (module(X) ** 2).mean()
        optimizer.zero_grad()
        ours.backward()
        same(ours, theirs.detach(), rtol=1e-10)
        for p, v in zip(native.parameters(), module.parameters(), strict=True):
            np.testing.assert_allclose(np.asarray(v.grad), p.grad, rtol=1e-8, atol=1e-12)
        sgd.step()
        optimizer.step()
    for name, value in native.state_dict().items():
        np.testing.assert_allclose(module.state_dict()[name], value, rtol=1e-8, atol=1e-12)
    assert int(module.norm.num_batches_tracked) == 5


def test_names_state_and_attributes():
    native = _net()
    module = from_torch(native)
    assert list(module.state_dict()) == list(native.state_dict())
    named = dict(module.named_parameters())
    assert list(named) == [n for n, _ in native.named_parameters()]
    assert all(v.is_leaf and v.requires_grad and v.name == n for n, v in named.items())
    assert module.layers[0].weight is named["layers.0.weight"]
    assert [dict(part.named_parameters()).keys() for part in module.layers] == [{"weight", "bias"}] * 2
    assert module.scale == 1.0
    assert module.size() == 7
    assert isinstance(module.norm.running_mean, tape.Variable)
    assert "encode" in dir(module)
    module.scale = 2.0
    assert module.unwrap().scale == 2.0
    assert native.scale == 1.0
    assert repr(module).startswith("interop.torch.Module(Net(")
    with pytest.raises(AttributeError):
        module.nothing
    assert module.train() is module
    assert module.training
    assert not module.eval().norm.training
    module.layers[0].weight = np.zeros((4, 3))
    same(named["layers.0.weight"], np.zeros((4, 3)))


def test_a_compiled_step_is_another_one_in_another_mode():
    native = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).double()
    module, plain = from_torch(native), from_torch(native)
    step = tape.jit(lambda: module(X))
    for change in (lambda m: m, lambda m: m.eval(), lambda m: m.train(), lambda m: m[1].eval(), lambda m: m.train()):
        change(module)
        change(plain)
        same(step(), plain(X).detach())
    same(module.state_dict()["1.running_mean"], plain.state_dict()["1.running_mean"])
    assert step.cache_info().traces == 3


def test_methods_and_parts_are_recorded():
    native = _net().eval()
    module = from_torch(native)
    x = tape.Variable(X)
    same(module.encode(x, shift=1.0), native.encode(torch.from_numpy(X), shift=1.0).detach())
    y = module.layers[1](module.encode(x))
    same(y, native(torch.from_numpy(X)).detach())
    same(module.first()(x), native.layers[0](torch.from_numpy(X)).detach())
    y.sum().backward()
    native(torch.from_numpy(X)).sum().backward()
    for p, v in zip(native.parameters(), module.parameters(), strict=True):
        same(v.grad, p.grad, rtol=1e-9)


def test_unwrap_has_present_values_and_is_apart():
    native = _net()
    module = from_torch(native)
    for v in module.parameters():
        v.value = v.value + 1
    back = module.unwrap()
    for (name, p), q in zip(back.named_parameters(), native.parameters(), strict=True):
        same(p.detach(), q.detach() + 1)
        assert p.requires_grad, name
    with torch.no_grad():
        next(back.parameters()).zero_()
    assert float(abs(module.parameters()[0]).sum()) > 0
    again = copy.deepcopy(module)
    same(again.eval()(X), module.eval()(X))


def test_state_is_loaded_or_nothing_is():
    native, other = _net(), Net().double()
    module = from_torch(native)
    module.load_state_dict(other.state_dict())
    for name, value in other.state_dict().items():
        same(module.state_dict()[name], value)
    same(module.eval()(X), other.eval()(torch.from_numpy(X)).detach())
    before = module.state_dict()
    state = {n: np.asarray(v) + 1 for n, v in before.items()}
    for bad, words in (
        ({**state, "layers.1.bias": np.ones(3)}, "expected shape"),
        ({n: v for n, v in state.items() if n != "layers.1.bias"}, "missing 'layers.1.bias'"),
        ({**state, "more": np.ones(3)}, "unknown 'more'"),
    ):
        with pytest.raises(TapeValueError, match=words):
            module.load_state_dict(bad)
    for name, value in before.items():
        same(module.state_dict()[name], value)
    module.load_state_dict({"layers.1.bias": np.zeros(2)}, strict=False)
    same(module.layers[1].bias, np.zeros(2))


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(3, 3, bias=False)
        self.b = torch.nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.b.bias.requires_grad_(False)

    def forward(self, x):
        return torch.tanh(self.a(x)) + self.b(x)


def test_shared_and_frozen_parameters():
    native = Tied().double()
    module = from_torch(native)
    assert [n for n, _ in module.named_parameters()] == ["a.weight"]
    assert list(module.state_dict()) == ["a.weight", "b.weight", "b.bias"]
    assert module.a.weight is module.b.weight
    assert not module.b.bias.requires_grad
    (module(X) ** 2).sum().backward()
    (native(torch.from_numpy(X)) ** 2).sum().backward()
    same(module.a.weight.grad, native.a.weight.grad, rtol=1e-9)
    back = module.unwrap()
    assert back.a.weight is back.b.weight
    state = module.state_dict()
    with pytest.raises(TapeValueError, match="are one parameter"):
        module.load_state_dict({**state, "b.weight": np.zeros((3, 3))})
    for wrong in (np.full((3, 3), np.nan), np.zeros(4)):
        with pytest.raises(TapeValueError, match="are one parameter"):
            module.load_state_dict({**state, "b.weight": wrong})
    module.load_state_dict({**state, "a.weight": np.full((3, 3), np.nan), "b.weight": np.full((3, 3), np.nan)})
    same(module.b.weight, np.full((3, 3), np.nan))
    module.load_state_dict({**state, "a.weight": np.zeros((3, 3)), "b.weight": np.zeros((3, 3))})
    same(module.b.weight, np.zeros((3, 3)))
    module.b.requires_grad_()
    assert [n for n, _ in module.named_parameters()] == ["a.weight", "b.bias"]
    module.zero_grad()
    module(X).sum().backward()
    same(module.b.bias.grad, np.full(3, 5.0))
    module.requires_grad_(False)
    assert module.parameters() == []
    assert not module(X).requires_grad
    with pytest.raises(TapeTypeError, match=r"zero_grad: there is no argument set_to_none=; use zero_grad\(\) without it"):
        module.zero_grad(set_to_none=True)
    module.zero_grad()  # as in torch, of frozen ones, too
    assert module.b.bias.grad is None


@pytest.mark.parametrize("make", [lambda: torch.nn.LSTM(3, 4, num_layers=2), lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, 0.0)])
def test_modules_that_hold_their_weights_twice(make):
    native = make().double()
    module = from_torch(native)
    for v, p in zip(module.parameters(), native.parameters(), strict=True):
        v.value = v.value * 1.5
        p.data.mul_(1.5)
    data = np.random.default_rng(0).normal(size=(5, 2, 3 if isinstance(native, torch.nn.LSTM) else 4))
    ours, theirs = module(data), native(torch.from_numpy(data))
    ours, theirs = (ours[0], theirs[0]) if isinstance(theirs, tuple) else (ours, theirs)
    same(ours, theirs.detach())
    (ours**2).sum().backward()
    (theirs**2).sum().backward()
    for v, p in zip(module.parameters(), native.parameters(), strict=True):
        np.testing.assert_allclose(np.asarray(v.grad), p.grad, rtol=1e-8, atol=1e-12)


def test_what_a_call_writes_to_parameters_is_kept():
    native = torch.nn.Embedding(4, 3, max_norm=1.0, dtype=torch.float64)
    module = from_torch(native)
    n = np.array([0, 2])
    same(module(n), native(torch.from_numpy(n)).detach())
    same(module.weight, native.weight.detach())


def test_rebinding_a_value_after_the_call_does_not_change_its_gradient():
    # Contract 11, also where torch runs a part of the module again.
    import torch.utils.checkpoint as again

    class Again(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3).double()

        def forward(self, x):
            return again.checkpoint(lambda x: torch.tanh(self.layer(x)) ** 2, x, use_reentrant=False)

    native = Again()
    module = from_torch(native)
    y = module(tape.Variable(X)).sum()
    v = module.layer.weight
    v.value = v.value * 3
    module(X)
    y.backward()
    native(torch.from_numpy(X).requires_grad_()).sum().backward()
    same(v.grad, native.layer.weight.grad, rtol=1e-9)


def test_double_backprop_has_the_masks_of_the_forward():
    native = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Dropout(0.5), torch.nn.Tanh()).double()
    module = from_torch(native)
    x, t = tape.Variable(X), torch.from_numpy(X).requires_grad_()
    torch.manual_seed(5)
    g = tape.gradients((module(x) ** 2).sum(), x, create_graph=True)
    torch.rand(7)
    (g**2).sum().backward()
    torch.manual_seed(5)
    (h,) = torch.autograd.grad((native(t) ** 2).sum(), t, create_graph=True)
    torch.rand(7)
    (h**2).sum().backward()
    same(g, h.detach(), rtol=1e-9)
    same(x.grad, t.grad, rtol=1e-9)
    for v, p in zip(module.parameters(), native.parameters(), strict=True):
        np.testing.assert_allclose(np.asarray(v.grad), p.grad, rtol=1e-8, atol=1e-12)


# -- inside of JAX's transformations ----------------------------------------------------------------------------------


def _stepped(module, x):
    module.zero_grad()
    loss = (module(x) ** 2).mean()
    loss.backward()
    return loss


def test_jit_and_checkpoint_equal_the_plain_call():
    module = from_torch(_net()).eval()
    x = tape.Variable(X)
    loss = _stepped(module, x)
    wanted = [np.asarray(v.grad) for v in module.parameters()]
    jitted = tape.jit(lambda x: _stepped(module, x))
    for _ in range(2):
        same(jitted(x), loss)
        for v, g in zip(module.parameters(), wanted, strict=True):
            same(v.grad, g, rtol=1e-9)
    module.zero_grad()
    (tape.checkpoint(module)(x) ** 2).mean().backward()
    for v, g in zip(module.parameters(), wanted, strict=True):
        same(v.grad, g, rtol=1e-9)
    module.layers[0].weight.value = module.layers[0].weight.value * 2
    same(jitted(x), _stepped(module, x))


def test_jax_differentiates_what_was_lowered():
    f = from_torch(lambda x, b: {"y": torch.sin(x) * b})

    def lowered(x):
        return (interop.lower(lambda x: f(x, X)["y"] ** 2)(x)).sum()

    def plain(x):
        return ((jnp.sin(x) * X) ** 2).sum()

    same(jax.grad(lowered)(X), jax.grad(plain)(X))
    same(jax.jit(jax.grad(lowered))(X), jax.grad(plain)(X))
    second = [jax.jit(jax.grad(lambda x, h=h: (jax.grad(h)(x) ** 2).sum()))(X) for h in (lowered, plain)]
    same(*second, rtol=1e-9)
    same(jax.vmap(jax.grad(lambda x, b: (interop.lower(lambda x, b: f(x, b)["y"])(x, b)).sum()))(X, X), jnp.cos(X) * X)


def test_jit_keeps_statistics_and_draws_new_masks():
    native = torch.nn.BatchNorm1d(3).double()
    module = from_torch(native)
    step = tape.jit(lambda x: _stepped(module, x))
    for i in range(3):
        step(X + i)
        native(torch.from_numpy(X + i))
    same(module.running_mean, native.running_mean)
    same(module.running_var, native.running_var)
    module(X)
    native(torch.from_numpy(X))
    same(module.running_var, native.running_var)
    assert int(module.num_batches_tracked) == 4
    dropout = from_torch(torch.nn.Dropout(0.5))
    masked = tape.jit(lambda x: dropout(x))
    ones = np.ones(64)
    assert not np.array_equal(np.asarray(masked(ones)), np.asarray(masked(ones)))


def test_a_mask_inside_jit_is_that_of_its_derivatives():
    dropout = from_torch(torch.nn.Dropout(0.5))

    @tape.jit
    def run(x):
        y = dropout(x * x)
        (g,) = tape.gradients(y.sum(), [x], create_graph=True)
        (h,) = tape.gradients(g.sum(), [x])
        return y, g, h

    y, g, h = (np.asarray(v.detach()) for v in run(tape.Variable(np.full(64, 3.0))))
    mask = y / 9
    assert set(mask) == {0.0, 2.0}
    same(g, 6 * mask)
    same(h, 2 * mask)


@pytest.mark.parametrize("transform", [lambda f: jax.jit(interop.lower(f)), tape.checkpoint])
@pytest.mark.parametrize(
    ("make", "words"), [(torch.nn.Dropout, "draws random numbers"), (lambda: torch.nn.BatchNorm1d(3), "changes buffers")]
)
def test_what_no_transformation_but_jit_can_keep_is_refused(transform, make, words):
    module = from_torch(make().double())
    with pytest.raises(TapeTypeError, match=words):
        transform(lambda x: module(x))(X)


def test_shapes_that_depend_on_values_are_refused_inside_jit():
    with pytest.raises(TapeTypeError, match="shapes may not depend on values"):
        tape.jit(from_torch(lambda x: x[x > 0]))(np.ones(3))
    f = tape.jit(from_torch(lambda x: x[: 2 + int(x.sum() > 5)]))
    with pytest.raises(Exception, match="when it was traced on zeros"):
        f(tape.constant(np.full(3, 2.0))).block_until_ready()


def test_a_sweep_inside_jit_through_a_call_outside_is_refused():
    x = tape.Variable(X)
    y = from_torch(torch.sin)(x)
    with pytest.raises(TapeError):
        tape.jit(lambda g: tape.gradients(y, [x], g, retain_graph=True))(X)


# -- threads, loading -------------------------------------------------------------------------------------------------


def test_threads_share_a_module():
    module = from_torch(_net()).eval()
    wanted = {i: np.asarray(module(X + i).detach()) for i in range(4)}
    wrong = []

    def work(i):
        jax.enable_x64(True).__enter__()  # which is a thread's own
        for _ in range(10):
            y = module(X + i)
            tape.gradients(y.sum(), module.parameters())
            if not np.allclose(np.asarray(y.detach()), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


class Holder:
    def __init__(self, held):
        self.held = held

    @classmethod
    def round(cls, held):
        made = cls([held])
        made.held.append(made)
        return made


@pytest.mark.parametrize(
    "hide",
    [
        lambda y: torch.distributions.Normal(y, 1.0),
        lambda y: {y},
        lambda y: Holder([{y}]),
        lambda y: Holder.round(y),
        lambda y: lambda: y,
        lambda y: functools.partial(torch.add, y),
    ],
    ids=["distribution", "set", "object", "cycle", "closure", "partial"],
)
def test_a_result_that_hides_a_tensor_from_the_tape_is_refused(hide):
    v = tape.Variable(X)
    with pytest.raises(LostGradientError, match=r"holds a Tensor \(shape \(5, 3\)"):
        from_torch(lambda t: (t.sum(), hide(t * 2)))(v)
    with pytest.raises(LostGradientError, match="holds a Tensor"):
        from_torch(lambda t: hide(t * 2))(v)
    with pytest.raises(LostGradientError, match="holds a Tensor"):  # its numbers would be those of zeros
        tape.jit(from_torch(lambda t: (t.sum(), hide(t.detach()))))(v)
    constant, other = from_torch(lambda t: (t.sum(), hide(t * 2)))(X)
    assert not constant.requires_grad
    assert not extend.is_variable(other)


def test_attributes_of_objects_go_in_and_out_with_their_gradients():
    def first(t):
        return t.sum(), Holder([{"y": t * 2}, Holder(t**2), "kept", 3])

    def second(holder):
        return holder.held[0]["y"] * holder.held[1].held.sin()

    t = torch.tensor(X, requires_grad=True)
    second(first(t)[1]).sum().backward()

    def both(v):
        total, holder = from_torch(first)(v)
        assert type(holder) is Holder
        assert holder.held[2:] == ["kept", 3]
        return total, from_torch(second)(holder).sum(), holder.held[0]["y"], holder.held[1].held  # the argument is as it was

    for fun in (both, tape.jit(both)):
        v = tape.Variable(X)
        *roots, doubled, squared = fun(v)
        tape.backward(roots)
        same(v.grad, t.grad.numpy() + 1)
        same(doubled, 2 * X)
        same(squared, X**2)
    holder = Holder(torch.tensor(X, requires_grad=True) * 2)
    with pytest.raises(LostGradientError, match=r"an object of type Holder that holds a torch tensor which requires grad \(shape \(5, 3\)"):
        from_torch(lambda h, t: h.held * t)(holder, v)
    holder.held = holder.held.detach()
    same(from_torch(lambda h, t: h.held * t)(holder, v), 2 * X * X)


def test_a_tensor_that_a_call_leaves_on_the_module_is_no_constant():
    class Auxiliary(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3, dtype=torch.float64))
            self.seen = []

        def forward(self, x):
            self.loss = self.linear(x).pow(2).mean()
            self.seen.append(x.detach() * 2)
            return self.loss

    model = from_torch(Auxiliary())
    loss = model(X)
    with pytest.raises(LostGradientError, match=r"return it from the module's forward"):
        _ = model.loss
    with pytest.raises(LostGradientError, match=r"tape.no_grad\(\)"):
        _ = model.linear.weight  # computed from two parameters
    with tape.no_grad():
        assert float(model.loss) == float(loss)
        assert not model.linear.weight.requires_grad
    same(model.seen[0], 2 * X)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_numbers_that_depend_on_values_are_not_those_of_zeros_inside_of_jit():
    v = tape.Variable(X)
    number = from_torch(lambda t: (t * 2, t.sum().item(), "mean", 3))
    doubled, total, *rest = number(v)
    assert (total, rest) == (pytest.approx(X.sum()), ["mean", 3])
    with pytest.raises(TapeTypeError, match=r"a float that depends on values \(0.0 for zeros\)"):
        tape.jit(number)(v)
    assert tape.jit(from_torch(lambda t: (t * 2, "mean", 3, math.nan)))(v)[1:3] == ("mean", 3)

    class Normed(torch.nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y, y.norm().item()

    with pytest.raises(TapeTypeError, match="a float that depends on values"):
        tape.jit(from_torch(Normed(3, 1, dtype=torch.float64)))(v)
    same(doubled, 2 * X)


def test_packed_sequences_go_in_and_out():
    lengths = [5, 3, 1]
    x = np.random.default_rng(1).normal(size=(3, 5, 2))
    lstm = torch.nn.LSTM(2, 3, batch_first=True, dtype=torch.float64)

    def pack(t):
        return torch.nn.utils.rnn.pack_padded_sequence(t, lengths, batch_first=True)

    def unpack(packed):
        return torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0]

    t = torch.tensor(x, requires_grad=True)
    out, (h, _) = lstm(pack(t))
    (unpack(out).sin().sum() + h.sum()).backward()
    v = tape.Variable(x)
    packed, (h, _) = from_torch(lstm)(from_torch(pack)(v))
    assert isinstance(packed, torch.nn.utils.rnn.PackedSequence)
    (tnp.sin(from_torch(unpack)(packed)).sum() + h.sum()).backward()
    same(v.grad, t.grad.numpy())


LOADED = """
import sys, interop, tape
assert "torch" in dir(interop) and "torch" not in sys.modules
interop.torch.from_torch
assert "torch" in sys.modules
"""
MISSING = """
import sys
sys.modules["torch"] = None  # what is not installed
import interop, tape
try:
    interop.torch
except ImportError as e:
    assert isinstance(e, tape.errors.TapeError)
    assert "pip install 'jax-tape[torch]'" in str(e), e
else:
    raise AssertionError
"""


@pytest.mark.parametrize("script", [LOADED, MISSING], ids=["loaded", "missing"])
def test_torch_is_imported_at_its_first_use(script):
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603 - its own interpreter
