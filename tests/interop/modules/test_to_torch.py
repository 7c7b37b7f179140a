"""Functions of the tape in torch's graph: torch's own checkers, structures, flags, threads, what is refused."""

import threading

import jax
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import LostGradientError, TapeTypeError

torch = pytest.importorskip("torch", reason="the bridge to PyTorch needs it: pip install torch, the build for CPUs")


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def to_torch(fun):
    return interop.torch.to_torch(fun)


def _tensor(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()


@pytest.mark.parametrize(
    ("fun", "tensors"),
    [
        (lambda x, y: tnp.tanh(x @ y), [(3, 2), (2, 4)]),
        (lambda x, y: (tnp.sin(x) * y, (x * x * y).sum()), [(3, 2), (3, 2)]),
        (lambda x, y: x * 3 + 0 * y, [(3,), (3,)]),
        (lambda x, y: tape.gradients((x**3 * y).sum(), x, create_graph=True), [(3,), (3,)]),
    ],
    ids=["matmul", "two", "linear", "gradient"],
)
def test_gradcheck_and_gradgradcheck_pass(fun, tensors):
    given = [_tensor(*shape) for shape in tensors]
    assert torch.autograd.gradcheck(to_torch(fun), given)
    assert torch.autograd.gradgradcheck(to_torch(fun), given)


def test_complex_derivatives_are_torchs():
    z = _tensor(3, dtype=torch.complex128)
    f = to_torch(lambda z: z * z * tnp.exp(z.conj()))
    assert torch.autograd.gradcheck(f, [z])
    assert torch.autograd.gradgradcheck(f, [z])


def test_it_trains_inside_of_a_torch_model():
    torch.manual_seed(0)
    nets = [torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Identity(), torch.nn.Linear(8, 1)).double() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    x = _tensor(5, 3).detach()
    for net, activation in zip(nets, (torch.tanh, to_torch(tnp.tanh)), strict=True):
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(4):
            loss = (net[2](activation(net[0](x))) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


def test_a_jitted_function_is_compiled_and_may_not_capture_either():
    f = to_torch(tape.jit(lambda x: tnp.tanh(x) * x))
    assert torch.autograd.gradcheck(f, [_tensor(3)])
    assert torch.autograd.gradgradcheck(f, [_tensor(3)])
    w = tape.Variable(np.ones(3))
    with pytest.raises(LostGradientError):
        to_torch(tape.jit(lambda x: x * w))(_tensor(3))


def test_structures_flags_and_what_does_not_depend():
    def fun(tree, *, n):
        return {"y": (tree["x"] * n, tree["w"]), "i": tnp.argmax(tree["x"]), "c": tree["c"] + 1, "s": "text", "a": np.ones(2)}

    x, w, c = _tensor(3), _tensor(2), _tensor(4).detach()
    out = to_torch(fun)({"x": x, "w": w, "c": c}, n=2)
    assert out["y"][0].requires_grad
    assert [out[name].requires_grad for name in "ica"] == [False] * 3
    assert out["s"] == "text"
    assert out["i"].dtype == torch.int64
    torch.testing.assert_close(out["a"], torch.ones(2, dtype=torch.float64))
    out["y"][0].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0, dtype=torch.float64))
    assert w.grad is None
    with torch.no_grad():
        assert not to_torch(tnp.sin)(x).requires_grad
    assert not to_torch(tnp.sin)(x.detach()).requires_grad


def test_it_runs_once_and_nothing_is_shared():
    runs = []

    def fun(x):
        runs.append(1)
        return x * x

    x = _tensor(3)
    y = to_torch(fun)(x)
    value = x.detach().clone()
    with torch.no_grad():
        x.add_(1)  # neither what was saved for the sweep
    y.sum().backward(retain_graph=True)
    torch.testing.assert_close(x.grad, 2 * value)
    with torch.no_grad():
        y.zero_()
    (g,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(g, 2 * value)
    assert len(runs) == 1


def test_masks_are_those_of_the_forward():
    state = np.random.default_rng(0)
    f = to_torch(lambda x: x * x * state.integers(0, 2, 64))
    x = torch.full((64,), 3.0, dtype=torch.float64, requires_grad=True)
    y = f(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(g.detach(), y.detach() / 9 * 6)
    torch.testing.assert_close(h, y.detach() / 9 * 2)


def test_backward_in_another_thread():
    x = _tensor(3)
    y = to_torch(lambda x: tnp.sin(x).sum())(x)
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    torch.testing.assert_close(x.grad, torch.cos(x.detach()))


def test_modes_of_the_tape_around_do_not_matter():
    x = _tensor(3)
    with tape.no_grad():
        y = to_torch(lambda x: tnp.sin(x).sum())(x)
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(h, -torch.sin(x.detach()))


def test_both_ways_at_once():
    f = interop.torch.from_torch(to_torch(lambda x: tnp.sin(x) * x))
    x = tape.Variable(np.arange(3.0))
    g = tape.gradients(f(x).sum(), x, create_graph=True)
    h = tape.gradients(g.sum(), x)
    np.testing.assert_allclose(np.asarray(h), 2 * np.cos(np.arange(3.0)) - np.arange(3.0) * np.sin(np.arange(3.0)), rtol=1e-12)


def test_what_cannot_be_is_said():
    with pytest.raises(TapeTypeError, match="expected a function, got int"):
        to_torch(3)
    w = tape.Variable(np.ones((2, 2)))
    with pytest.raises(LostGradientError, match="is not an argument, so its gradient would be lost"):
        to_torch(lambda x: x @ w)(_tensor(3, 2))
    to_torch(lambda x: x @ w.detach())(_tensor(3, 2)).sum().backward()
    with jax.enable_x64(False), pytest.raises(TapeTypeError, match=r"tensor 0 is torch\.float64.*jax_enable_x64"):
        to_torch(tnp.sin)(_tensor(3))
    with pytest.raises(TapeTypeError, match="to_dense"):
        to_torch(tnp.sin)(_tensor(3).detach().to_sparse())
    for transformed in (torch.vmap(to_torch(tnp.sin)), torch.func.grad(lambda x: to_torch(tnp.sin)(x).sum())):
        with pytest.raises(RuntimeError, match="functorch transforms"):
            transformed(_tensor(3))


def test_a_gradient_that_no_tensor_asks_for_is_not_lost_either():
    w = tape.Variable(np.ones(3))
    data = torch.ones(3, dtype=torch.float64)  # requires no grad
    for call in (lambda: to_torch(lambda x: (x * w).sum())(data), lambda: to_torch(tnp.sum)(w), lambda: to_torch(lambda: w * 2)()):
        with pytest.raises(LostGradientError, match="and, as a tensor, is not an argument"):
            call()
        for off in (torch.no_grad, torch.inference_mode, tape.no_grad):
            with off():
                assert not call().requires_grad
    assert to_torch(lambda x: (x * tnp.sign(w)).sum())(data) == 3  # no gradient flows through it
    assert to_torch(lambda x: (x * w.detach()).sum())(data) == 3
    torch.testing.assert_close(to_torch(lambda x: tape.gradients((x * w * w).sum(), w))(data), 2 * data)


def test_a_result_that_hides_a_variable_from_torch_is_refused():
    x = _tensor(3)
    other = tape.Variable(2.0)
    for hide in (lambda y: {y}, lambda y: lambda: y, lambda y: {"a": frozenset([y])}):
        with pytest.raises(LostGradientError, match=r"holds a Variable \(shape \(3,\)"):
            to_torch(lambda v, hide=hide: (v.sum(), hide(v * 2)))(x)
        with pytest.raises(LostGradientError, match="holds a Variable"):
            to_torch(lambda v, hide=hide: (v.sum(), hide(v)))(x)
        to_torch(lambda v, hide=hide: (v.sum(), hide(v.detach()), hide(other)))(x)[0].backward()
        to_torch(lambda v, hide=hide: (v.sum(), hide(v)))(x.detach())
