"""Torch on the device of JAX's and on another one: what a call computes with is on one device, and what comes back where it belongs."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp

torch = pytest.importorskip("torch", reason="the bridge to PyTorch needs it: pip install torch, the build for CPUs")

from tests.interop.modules.elsewhere import DEVICE, pretended  # noqa: E402 - needs torch

HOST = torch.device("cpu")
X = np.random.default_rng(3).normal(size=(5, 3))
JAX_DEVICE = torch.device("cuda", 0) if jax.default_backend() != "cpu" and torch.cuda.is_available() else HOST
SETUPS = {  # where JAX is, and torch
    "both on the host": (HOST, HOST),
    "torch elsewhere": (HOST, DEVICE),
    "JAX elsewhere": (DEVICE, HOST),
    "both elsewhere": (DEVICE, DEVICE),
}
if torch.cuda.is_available():
    SETUPS |= {"as it is": (JAX_DEVICE, HOST), "torch on the accelerator": (JAX_DEVICE, torch.device("cuda", 0))}


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=SETUPS.values(), ids=SETUPS)
def devices(request):
    pretending = DEVICE in request.param or (JAX_DEVICE != HOST and request.param == (HOST, HOST))
    with pretended(request.param[0]) if pretending else contextlib.nullcontext():
        yield request.param


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3, bias=False)
        self.norm = torch.nn.BatchNorm1d(3)
        self.devices = set()

    def forward(self, x, *more):
        self.devices |= {t.device for t in (x, *more, *self.parameters(), *self.buffers())}
        return torch.tanh(self.norm(self.layer(x))) * sum(more, 1.0)


def _net():
    torch.manual_seed(0)
    return Net().double()


def same(a, b):
    a, b = (x.detach().cpu() if isinstance(x, torch.Tensor) else x for x in (a, b))
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-12)


def test_a_module_trains_where_it_is(devices):
    native = _net()
    module = interop.torch.from_torch(_net().to(devices[1]))
    assert all(isinstance(v.value, jax.Array) and v.value.devices() == jnp.ones(1).devices() for v in module.parameters())
    x = tape.Variable(X)
    t = torch.from_numpy(X.copy()).requires_grad_()
    for _ in range(3):
        ours = module(x, X, torch.from_numpy(X))  # a Variable, an array of NumPy and a tensor
        theirs = native(t, torch.from_numpy(X), torch.from_numpy(X))
        (g,) = tape.gradients((ours**2).sum(), [x], create_graph=True)
        (h,) = torch.autograd.grad((theirs**2).sum(), [t], create_graph=True)
        same(g.detach(), h)
        (g**2).sum().backward()
        (h**2).sum().backward()
        for v, p in zip(module.parameters(), native.parameters(), strict=True):
            same(v.grad, p.grad)
            v.value = v.value - 0.01 * v.grad.value
            p.data -= 0.01 * p.grad
    same(x.grad, t.grad)
    assert module.unwrap().devices == {devices[1]}
    assert {p.device for p in module.unwrap().parameters()} == {devices[1]}
    for name, value in native.state_dict().items():
        same(module.state_dict()[name], value)
    module.load_state_dict(_net().to(devices[1]).state_dict())
    same(module.layer(X).detach(), _net().layer(torch.from_numpy(X)))


def test_a_compiled_step_computes_there_too(devices):
    module = interop.torch.from_torch(_net().to(devices[1]))
    other = interop.torch.from_torch(_net())

    def step(module, x):
        (g,) = tape.gradients((module(x) ** 2).sum(), [x], create_graph=True)
        return (g, *tape.gradients((g**2).sum(), [x, *module.parameters()]))

    wanted = step(other, tape.Variable(X))
    for run in (step, tape.jit(lambda x: step(module, x))):
        found = run(tape.Variable(X)) if run is not step else step(module, tape.Variable(X))
        for a, b in zip(found, wanted, strict=True):
            same(a.detach(), b.detach())
    assert module.unwrap().devices == {devices[1]}
    assert int(module.norm.num_batches_tracked) == 2


class Held:
    def __init__(self, *held):
        self.held = held


def test_a_function_runs_where_jax_does(devices):
    seen = set()

    def fun(x, y, z, held):
        seen.update(t.device for t in (x, y, z, *held.held))
        return (x.sin() * y * z * held.held[0] * held.held[1]).cumsum(0)

    def reference(x):
        return (jnp.sin(x) * X**4).cumsum(0)

    f = interop.torch.from_torch(fun)
    weights = np.arange(15.0).reshape(5, 3)
    first = jax.grad(lambda x: (reference(x) * weights).sum())
    second = jax.grad(lambda x: (first(x) ** 2).sum())

    def step(x):
        y = f(x, X, torch.from_numpy(X), Held(torch.from_numpy(X), x * 0 + X))
        (g,) = tape.gradients((y * weights).sum(), [x], create_graph=True)
        return y, g, tape.gradients((g**2).sum(), [x])[0]

    for run in (step, tape.jit(step)):
        y, g, h = run(tape.Variable(X))
        same(y.detach(), reference(X))
        same(g.detach(), first(X))
        same(h, second(X))
    assert seen == {devices[0]}


def test_masks_drawn_there_inside_of_jit_are_those_of_derivatives(devices):
    dropout = interop.torch.from_torch(
        torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(64, 64, bias=False)).double().to(devices[1])
    )
    dropout.load_state_dict({"1.weight": np.eye(64)})

    @tape.jit
    def run(x):
        y = dropout(x * x)
        (g,) = tape.gradients(y.sum(), [x], create_graph=True)
        return y, g, tape.gradients(g.sum(), [x])[0]

    masks = []
    for _ in range(2):
        y, g, h = (np.asarray(v.detach()) for v in run(tape.Variable(np.full((1, 64), 3.0))))
        masks.append(y / 9)
        assert set(masks[-1].ravel()) == {0.0, 2.0}
        same(g, 6 * masks[-1])
        same(h, 2 * masks[-1])
    assert not np.array_equal(*masks)


@pytest.mark.parametrize("jitted", [False, True])
def test_results_and_gradients_come_back_to_the_tensors_device(devices, jitted):
    def fun(x, y):
        return tnp.tanh(x) * y, x.sum()

    f = interop.torch.to_torch(tape.jit(fun) if jitted else fun)
    x, y = (torch.from_numpy(X + i).to(devices[1]).requires_grad_() for i in range(2))
    a, b = (torch.from_numpy(X + i).requires_grad_() for i in range(2))
    results = f(x, y)
    wanted = torch.tanh(a) * b, a.sum()
    found = torch.autograd.grad((results[0] ** 2).sum() + results[1], [x, y], create_graph=True)
    expected = torch.autograd.grad((wanted[0] ** 2).sum() + wanted[1], [a, b], create_graph=True)
    for g, h in zip((*results, *found), (*wanted, *expected), strict=True):
        assert g.device == devices[1]
        same(g, h)
    (found[0] ** 2).sum().backward()
    (expected[0] ** 2).sum().backward()
    for t, s in ((x, a), (y, b)):
        assert t.grad.device == devices[1]
        same(t.grad, s.grad)


def test_each_tensor_gets_its_gradient_where_it_is(devices):
    x, y = torch.ones(3, dtype=torch.float64, requires_grad=True), torch.ones(3, dtype=torch.float64, device=devices[1], requires_grad=True)
    for first, second in ((x, y), (y, x)):
        result = interop.torch.to_torch(lambda x, y: tnp.sin(x) * y)(first, second)
        assert result.device == first.device
        result.sum().backward()
    assert (x.grad.device, y.grad.device) == (x.device, y.device)
    same(x.grad, np.full(3, np.sin(1.0) + np.cos(1.0)))
    assert interop.torch.to_torch(lambda: tnp.ones(3))().device == torch.empty(0).device


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "bfloat16", "float16", "float32", "complex64"])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 2), (70_000,)])
@pytest.mark.parametrize("wide", [False, True])
def test_numbers_of_any_dtype_and_size_go_there_and_back(devices, dtype, shape, wide):
    class Same(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("other", torch.zeros(2, device=devices[1]))

        def forward(self, x, y):
            assert {x.device, y.device} == {devices[1]}
            return x.T if x.ndim == 2 else x, y[1:] if y.ndim == 1 else y

    with jax.enable_x64(wide):
        value = jnp.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 120, dtype)
        v = tape.Variable(value)
        f = interop.torch.from_torch(Same())
        for x, y in (f(v, tape.constant(value)), f(np.asarray(value), v)):
            np.testing.assert_array_equal(np.asarray(x.detach()), np.asarray(value).T)
            np.testing.assert_array_equal(np.asarray(y.detach()), np.asarray(value)[1:] if value.ndim == 1 else np.asarray(value))
            assert x.dtype == y.dtype == v.dtype
        if v.requires_grad:
            gradient = tape.gradients(f(v, value)[0], v, value.T)
            np.testing.assert_array_equal(np.asarray(gradient), np.asarray(value))


def test_memory_that_goes_is_not_written_to_while_it_is_read(devices):
    class Slow(torch.nn.Linear):
        def forward(self, x):
            for _ in range(10):
                x = torch.sin(x)
            return x

    def reference(x):
        for _ in range(10):
            x = jnp.sin(x)
        return x.sum()

    f, g = interop.torch.from_torch(Slow(1, 1).to(devices[1])), interop.torch.to_torch(lambda x: tnp.exp(x) * 2)
    for i in range(4):
        start = np.full(100_000, i + 1.0)
        v = tape.Variable(start)
        (gradient,) = tape.gradients(f(v).sum(), [v])
        del v
        others = [jnp.full(100_000, -1.0 - k) for k in range(3)]
        same(gradient, jax.grad(reference)(start))
        t = torch.from_numpy(start).to(devices[1])
        result = g(t * 1)
        del t, others
        more = [torch.full((100_000,), -1.0 - k, dtype=torch.float64, device=devices[1]) for k in range(3)]
        same(result, 2 * np.exp(start))
        del more
