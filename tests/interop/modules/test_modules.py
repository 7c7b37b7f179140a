"""What a module is on the tape: names, state, attributes, methods, copies, and what is refused."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop
import tape
import tape.extend
import tape.numpy as tnp
from tape.errors import LeakedTracerError, LostGradientError, TapeRuntimeError, TapeTypeError, TapeValueError

nnx = pytest.importorskip("flax.nnx")
linen = pytest.importorskip("flax.linen")
eqx = pytest.importorskip("equinox")

X = jax.random.normal(jax.random.key(7), (5, 3))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)])
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.scale = 1.0
        self.calls = 0

    def __call__(self, x):
        return self.layers[1](self.dropout(self.encode(x)))

    def encode(self, x, *, shift=0.0):
        return jax.nn.tanh(self.norm(self.layers[0](x))) * self.scale + shift

    def count(self, x):
        self.calls += 1
        return x

    def grow(self, x):
        self.seen = nnx.Variable(x)
        return x

    def write(self, x):
        kernel = self.layers[0].kernel
        kernel[...] = kernel[...] * 2
        return x


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x, train=False):
        x = linen.BatchNorm(use_running_average=not train)(linen.Dense(4)(x))
        self.sow("intermediates", "hidden", x)
        return linen.Dense(2)(linen.Dropout(0.5, deterministic=not train)(x))

    def twice(self, x):
        return 2 * self(x)


def _nnx():
    return interop.nnx.Module(Net(nnx.Rngs(0)))


def _linen():
    net = LinenNet()
    return interop.linen.Module(net, net.init(jax.random.key(0), X))


def _equinox():
    return interop.equinox.Module(eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)))


def _out(module):
    return tape.vmap(module)(X) if isinstance(module, interop.equinox.Module) else module(X)


MAKE = pytest.mark.parametrize("make", [_nnx, _linen, _equinox])


@MAKE
def test_parameters_are_leaves_under_dotted_names(make):
    module = make()
    named = dict(module.named_parameters())
    assert all(v.is_leaf and v.requires_grad for v in named.values())
    leaves = jax.tree.leaves(module.parameters(), is_leaf=tape.extend.is_variable)
    assert {id(tape.extend.identity(v)) for v in leaves} == {id(v) for v in named.values()}
    assert set(named) <= set(module.state_dict())
    expected = {_nnx: "layers.0.kernel", _linen: "Dense_0.kernel", _equinox: "layers.0.weight"}[make]
    assert expected in named
    _out(module).sum().backward()
    assert named[expected].grad.shape == named[expected].shape


@MAKE
def test_a_call_is_one_op(make):
    module = make()
    seen = []

    class Seen(tape.OpHook):
        def forward_postprocess(self, op, inputs, outputs):
            seen.append(op.name)

    with tape.hooks(Seen()):
        _out(module)
    assert len([name for name in seen if "detach" not in name]) == 1


@MAKE
def test_state_is_saved_and_loaded(make):
    module, other = make(), make()
    for _, v in module.named_parameters():
        v.value = v.value + 1
    other.load_state_dict(
        {name: np.asarray(v) if not jnp.issubdtype(v.dtype, jax.dtypes.prng_key) else v for name, v in module.state_dict().items()}
    )
    for name, value in module.state_dict().items():
        assert (value == other.state_dict()[name]).all(), name


@MAKE
def test_a_state_that_does_not_fit_changes_nothing(make):
    module = make()
    before = module.state_dict()
    name = next(iter(before))
    changed = {n: v + 1 if jnp.issubdtype(v.dtype, jnp.inexact) else v for n, v in before.items()}
    for state, error, text in [
        ({n: v for n, v in changed.items() if n != name}, TapeValueError, f"missing '{name}'"),
        ({**changed, "wombat": X}, TapeValueError, "unknown 'wombat'"),
        ({**changed, name: jnp.zeros((9, 9))}, TapeValueError, "expected shape"),
        ({**changed, name: jnp.zeros(before[name].shape, int)}, TapeTypeError, "expected dtype float32, got int"),
    ]:
        with pytest.raises(error, match=text):
            module.load_state_dict(state)
        for n, value in before.items():
            assert (module.state_dict()[n] == value).all()
    module.load_state_dict({name: before[name] + 1, "wombat": X}, strict=False)
    np.testing.assert_allclose(module.state_dict()[name], before[name] + 1)


@MAKE
def test_copies_are_their_own(make):
    module = make()
    other = copy.deepcopy(module)
    assert type(other) is type(module)
    for (name, a), (again, b) in zip(module.named_parameters(), other.named_parameters(), strict=True):
        assert name == again
        assert a is not b
        b.value = b.value * 0
    assert any(np.asarray(v.detach()).any() for _, v in module.named_parameters())


@MAKE
def test_second_derivatives(make):
    module = make()
    if make is _nnx:
        module.eval()
    x = tape.Variable(X)
    out = tape.vmap(module)(x) if make is _equinox else module(x)
    (g,) = tape.gradients(tnp.tanh(out).sum(), [x], create_graph=True)
    (g**2).sum().backward()
    name, parameter = next((n, p) for n, p in module.named_parameters() if p.ndim == 2)

    frozen = module.unwrap()

    def penalty(value):
        again = nnx.clone(frozen) if make is _nnx else frozen
        if make is _linen:
            net, variables = again
            key = name.split(".")
            variables = {**variables, "params": {**variables["params"], key[0]: {**variables["params"][key[0]], key[1]: value}}}
            run = lambda x: net.apply(variables, x)  # noqa: E731
        elif make is _nnx:
            again.layers[0].kernel = nnx.Param(value)
            run = again
        else:
            run = jax.vmap(eqx.tree_at(lambda m: m.layers[0].weight, again, value))
        return (jax.grad(lambda x: jnp.tanh(run(x)).sum())(X) ** 2).sum()

    np.testing.assert_allclose(parameter.grad.numpy(), jax.grad(penalty)(parameter.value), rtol=2e-4, atol=1e-6)


@MAKE
def test_compiled_steps_and_checkpoints(make):
    modules = [make() for _ in range(3)]
    losses = []
    for module, wrap in zip(modules, [lambda f: f, tape.jit, tape.checkpoint], strict=True):
        optimizer = interop.optax.Optimizer(module.parameters(), optax.sgd(0.1))
        if make is _nnx:
            module.eval()
        loss_of = wrap(lambda module=module: (_out(module) ** 2).mean())
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_a_compiled_step_is_another_one_in_another_mode():
    module, plain = _nnx(), _nnx()
    step = tape.jit(lambda: module(X))
    part = tape.jit(lambda: module.layers[1](module.encode(X)))
    changes = [
        lambda m: None,
        lambda m: m.eval(),
        lambda m: m.train(),
        lambda m: setattr(m, "scale", 3.0),
        lambda m: m.dropout.eval(),
        lambda m: (setattr(m, "scale", 1.0), m.train()),
    ]
    for change in changes:
        change(module)
        change(plain)
        np.testing.assert_allclose(step().detach(), plain(X).detach(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(part().detach(), plain.layers[1](plain.encode(X)).detach(), rtol=1e-5, atol=1e-6)
    assert step.cache_info().traces == 4  # two of the modes are there twice
    assert "the mode of module: " in step.explain()


def test_nnx_attributes_are_the_modules():
    module = _nnx()
    assert module.scale == 1.0
    assert not module.dropout.deterministic
    module.eval()
    assert module.dropout.deterministic
    before = module.encode(X).detach().numpy()
    module.scale = 3.0
    np.testing.assert_allclose(module.encode(X).detach(), 3 * before, rtol=1e-6)
    np.testing.assert_allclose(module.encode(X, shift=1.0).detach(), 3 * before + 1, rtol=1e-6)
    module.layers[0].kernel = jnp.zeros((3, 4))
    assert not module.unwrap().layers[0].kernel[...].any()
    assert len(list(module.layers)) == 2
    loss = (module.layers[0](X) ** 2).sum()
    loss.backward()
    assert module.layers[0].bias.grad.shape == (4,)
    assert module.layers[1].bias.grad is None
    assert "layers" in dir(module)


def test_nnx_streams_and_statistics_go_on():
    native = Net(nnx.Rngs(0))
    module = interop.nnx.Module(native)
    for _ in range(3):
        np.testing.assert_allclose(module(X).detach(), native(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(module.norm.mean, native.norm.mean[...], rtol=1e-5)
    assert int(module.dropout.rngs.count) == int(native.dropout.rngs.count[...]) == 3
    assert not module.norm.mean.requires_grad


@pytest.mark.parametrize(
    ("method", "text"),
    [("count", "changes an attribute"), ("grow", r"adds state \(seen\)"), ("write", "writes to the parameter layers.0.kernel")],
)
def test_nnx_calls_that_lose_something_are_refused(method, text):
    module = _nnx()
    before = module.state_dict()
    with pytest.raises(TapeTypeError, match=text):
        getattr(module, method)(X)
    assert (module.state_dict()["layers.0.kernel"] == before["layers.0.kernel"]).all()


@pytest.mark.parametrize("norm", [nnx.SpectralNorm, nnx.WeightNorm])
def test_layers_of_nnx_that_write_to_their_parameters_can_be_lifted(norm):
    layer = norm(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(1))
    with pytest.raises(TapeTypeError, match=r"writes to the parameter layer_instance\.kernel.*interop\.lift\(lambda p, rest, x"):
        interop.nnx.Module(layer)(X)
    graph, parameters, rest = nnx.split(layer, nnx.Param, ...)

    def call(p, rest, x):
        return nnx.merge(graph, p, rest)(x)

    p = jax.tree.map(tape.Variable, parameters)
    (interop.lift(call)(p, rest, X) ** 2).sum().backward()
    wanted, _ = jax.grad(lambda p, rest: (call(p, rest, X) ** 2).sum(), argnums=(0, 1), allow_int=True)(parameters, rest)
    for v, g in zip(jax.tree.leaves(p, is_leaf=tape.extend.is_variable), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(v.grad, g, rtol=1e-4, atol=1e-6)


def test_nnx_modules_may_hold_arrays_without_nnx_variables():
    class Part(nnx.Module):
        def __init__(self, rngs):
            self.linear, self.table, self.more = nnx.Linear(3, 2, rngs=rngs), jnp.arange(3.0), nnx.data({"shift": jnp.ones(3)})

        def __call__(self, x):
            return self.linear(x * self.table + self.more["shift"])

    class Whole(nnx.Module):
        def __init__(self, rngs):
            self.part = self.again = Part(rngs)
            self.count = jnp.zeros((), jnp.int32)

        def __call__(self, x):
            self.count = self.count + 1
            return self.again(x)

    native = Whole(nnx.Rngs(0))
    module = interop.nnx.Module(native)
    for _ in range(2):
        np.testing.assert_allclose(module(X).detach(), native(X), rtol=1e-5, atol=1e-6)
    assert int(module.count) == int(module.unwrap().count) == 2
    assert not module.part.more["shift"].requires_grad
    table = jnp.array([3.0, 0.0, 1.0])
    native.again.table = module.again.table = table
    assert (module.part.table.value == table).all()
    np.testing.assert_allclose(module(X).detach(), native(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(module.unwrap()(X), native(X), rtol=1e-5, atol=1e-6)
    assert set(module.state_dict()) == {"count", *[f"again.{name}" for name in ("linear.bias", "linear.kernel", "more.shift", "table")]}


@MAKE
def test_frozen_parameters_are_frozen_in_a_copy(make):
    module = make()
    frozen = next(name for name, _ in module.named_parameters())
    dict(module.named_parameters())[frozen].requires_grad_(False)
    again = copy.deepcopy(module)
    assert [name for name, v in again._variables() if v.requires_grad] == [n for n, v in module._variables() if v.requires_grad]
    (_out(again) ** 2).mean().backward()
    assert {n for n, v in again._variables() if v.grad is not None} == {n for n, _ in module.named_parameters()} - {frozen}


@MAKE
def test_frozen_parameters_are_not_an_optimizers(make):
    module = make()
    (name, frozen), *others = module.named_parameters()
    frozen.requires_grad_(False)
    before = module.state_dict()
    optimizer = interop.optax.Optimizer(module.parameters(), optax.sgd(0.1))
    assert sorted(p.name for p in optimizer) == sorted(n for n, _ in others)
    (_out(module) ** 2).mean().backward()
    optimizer.step()
    after = module.state_dict()
    assert (after[name] == before[name]).all()
    assert any((after[n] != before[n]).any() for n, _ in others)


def test_nnx_state_inside_of_a_checkpoint_is_refused_or_the_modules_own_affair():
    class Net(nnx.Module):
        def __init__(self, rngs, *, remat):
            self.linear, self.norm = nnx.Linear(3, 3, rngs=rngs), nnx.BatchNorm(3, rngs=rngs)
            self.remat = remat

        def block(self, x):
            return jnp.tanh(self.norm(self.linear(x)))

        def __call__(self, x):
            return (nnx.remat(Net.block) if self.remat else Net.block)(self, x)

    plain = interop.nnx.Module(Net(nnx.Rngs(0), remat=False))
    for transform in (tape.checkpoint, tape.vmap):
        with pytest.raises(LeakedTracerError, match=r"changes state \(norm\.\w+, .*nnx\.remat"):
            transform(lambda x: plain(x))(X[None])
    mean = plain.norm.mean.numpy()
    assert not mean.any()
    module = interop.nnx.Module(Net(nnx.Rngs(0), remat=True))
    for model in (plain, module):
        (model(X) ** 2).sum().backward()
    np.testing.assert_allclose(module.linear.kernel.grad, plain.linear.kernel.grad, rtol=1e-4, atol=1e-6)  # float32
    np.testing.assert_allclose(module.norm.mean, plain.norm.mean, rtol=1e-6)
    assert module.norm.mean.numpy().any()
    plain.eval()
    tape.checkpoint(lambda x: plain(x))(X).sum().backward()


def test_nnx_tied_weights_are_one_parameter():
    class Tied(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(5, 3, rngs=rngs)
            self.head = self.embed

        def __call__(self, i):
            return self.head.attend(self.embed(i))

    module = interop.nnx.Module(Tied(nnx.Rngs(0)))
    assert len(dict(module.named_parameters())) == 1
    module(jnp.arange(5)).sum().backward()
    table = module.embed.embedding
    assert table is module.head.embedding
    np.testing.assert_allclose(table.grad.numpy(), jax.grad(lambda e: (e @ e.T).sum())(table.value), rtol=1e-5)


def test_nnx_filters_say_what_is_trained():
    native = nnx.LoRA(3, 2, 4, base_module=nnx.Linear(3, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(1))
    module = interop.nnx.Module(native, wrt=nnx.LoRAParam)
    assert [name for name, _ in module.named_parameters()] == ["lora_a", "lora_b"]
    module(X).sum().backward()
    assert not module.base_module.kernel.requires_grad
    assert copy.deepcopy(module).lora_a.requires_grad
    assert not copy.deepcopy(module).base_module.kernel.requires_grad


def test_linen_calls_that_write_to_a_parameter_are_refused():
    class Writes(linen.Module):
        @linen.compact
        def __call__(self, x):
            scale = self.param("scale", linen.initializers.ones, (3,))
            if not self.is_initializing():
                self.put_variable("params", "scale", scale * 2)
            return x * scale

    module = interop.linen.Module(Writes(), Writes().init(jax.random.key(0), X))
    with pytest.raises(TapeTypeError, match="writes to the collection 'params'"):
        module(X, mutable=["params"])
    assert (module.state_dict()["scale"] == 1).all()


@tape.reproducible()  # to the last bit, whatever is compiled by then
def test_linen_calls_see_other_variables_in_their_places():
    module = _linen()
    before = module(X)
    dense = module.variables["params"]["Dense_0"]
    kept = dense["bias"]
    dense["bias"] = tape.Variable(kept.value + 1)
    moved = module(X)
    moved.sum().backward()
    assert float(abs(moved - before).max()) > 0.1
    assert (dense["bias"].grad is not None, kept.grad) == (True, None)
    dense["bias"] = kept
    assert (module(X).value == before.value).all()
    dense["offset"] = dense.pop("bias")
    with pytest.raises(Exception, match="bias"):  # Flax's: the parameter is not there
        module(X)
    del dense["offset"]
    dense["bias"] = kept
    module.parameters()["Dense_0"]["bias"] = None  # a tree of its own
    assert (module(X).value == before.value).all()


def test_linen_returns_the_parameters_where_they_are_mutable():
    module = _linen()
    for mutable in (True, ["params"]):
        _, after = module(X, mutable=mutable)
        assert after["params"] is module.variables["params"]


def test_load_state_dict_says_what_is_missing():
    module = _linen()
    state = module.state_dict()
    del state["Dense_0.bias"]
    with pytest.raises(TapeValueError, match=r"load_state_dict: missing 'Dense_0.bias'; pass strict=False"):
        module.load_state_dict(state)


DOTS = {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(2)}}


class Dotted(eqx.Module):
    tree: dict

    def __call__(self, x):
        return x * self.tree["a.b"] + self.tree["a"]["b"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: interop.nnx.Module(nnx.Dict({"a.b": nnx.Param(jnp.ones(2)), "a": nnx.Dict({"b": nnx.Param(jnp.zeros(2))})})),
        lambda: interop.nnx.Module(nnx.Dict({"a.b": nnx.Param(jnp.ones(2)), "a": nnx.Dict({"b": nnx.BatchStat(jnp.zeros(2))})})),
        lambda: interop.linen.Module(LinenNet(), {"params": DOTS}),
        lambda: interop.linen.Module(LinenNet(), {"params": {"stats": {"a": jnp.ones(2)}}, "stats": {"a": jnp.ones(2)}}),
        lambda: interop.equinox.Module(Dotted(DOTS)),
    ],
)
def test_arrays_of_one_name_are_refused(make):
    """The one was read in place of the other."""
    with pytest.raises(TapeValueError, match="two arrays have the name"):
        make()


def test_state_keeps_the_dtype_that_calls_give_it(tmp_path):
    """Statistics of Linen become float64 with the parameters, and a fresh module would round them."""
    with jax.enable_x64(True):
        norm, x = linen.BatchNorm(use_running_average=False, param_dtype=jnp.float64), X.astype(jnp.float64)
        variables = norm.init(jax.random.key(0), x)
        trained, fresh, read = [interop.linen.Module(norm, variables) for _ in range(3)]
        trained(x, mutable=["batch_stats"])
        assert trained.state_dict()["batch_stats.mean"].dtype == jnp.float64
        fresh.load_state_dict(trained.state_dict())
        interop.save(tmp_path / "norm.safetensors", trained)
        interop.load(tmp_path / "norm.safetensors", read)
        for name, value in trained.state_dict().items():
            for module in (fresh, read):
                assert module.state_dict()[name].dtype == value.dtype
                assert (module.state_dict()[name] == value).all()


def test_linen_returns_what_is_mutable():
    module = _linen()
    net, variables = module.unwrap()
    key = jax.random.key(3)
    out, _ = module(X, train=True, mutable=["batch_stats"], rngs={"dropout": key})
    wanted, after = net.apply(variables, X, train=True, mutable=["batch_stats"], rngs={"dropout": key})
    np.testing.assert_allclose(out.detach(), wanted, rtol=1e-5, atol=1e-6)
    held = module.variables["batch_stats"]["BatchNorm_0"]["mean"]
    np.testing.assert_allclose(held, after["batch_stats"]["BatchNorm_0"]["mean"], rtol=1e-6)
    assert not held.requires_grad
    _, seen = module(X, mutable=["intermediates"])
    (hidden,) = seen["intermediates"]["hidden"]
    hidden.sum().backward()
    assert module.variables["params"]["Dense_0"]["bias"].grad is not None
    assert "intermediates" not in module.variables
    assert set(module(X, mutable={"intermediates"})[1]) == {"intermediates"}  # a set has no hash
    np.testing.assert_allclose(module(X, method="twice").detach(), 2 * module(X).detach(), rtol=1e-6)
    np.testing.assert_allclose(module(X, method=LinenNet.twice).detach(), 2 * module(X).detach(), rtol=1e-6)


def test_linen_state_of_any_structure_is_kept_and_what_a_call_adds_is_returned():
    class Counting(linen.Module):
        @linen.compact
        def __call__(self, x):
            self.sow("metrics", "input", x)
            held = self.variable("cache", "held", lambda: {"n": jnp.zeros(()), "sums": (jnp.zeros(()),)})
            held.value = {"n": held.value["n"] + 1, "sums": (held.value["sums"][0] + x.sum(),)}
            return linen.Dense(2)(x)

    net = Counting()
    variables = net.init(jax.random.key(0), X)
    module = interop.linen.Module(net, variables)
    for _ in range(2):
        _, expected = net.apply(variables, X, mutable=["metrics", "cache"])
        variables = {**variables, "cache": expected["cache"]}
        _, after = module(X, mutable=["metrics", "cache"])
    assert len(after["metrics"]["input"]) == len(expected["metrics"]["input"]) == 2
    for name, value in (("cache.held.n", expected["cache"]["held"]["n"]), ("cache.held.sums.0", expected["cache"]["held"]["sums"][0])):
        np.testing.assert_allclose(module.state_dict()[name], value)


def test_equinox_attributes_are_the_modules():
    module = _equinox()
    assert module.depth == 1
    assert module.layers[0].weight is dict(module.named_parameters())["layers.0.weight"]
    fixed = interop.equinox.Module(module.unwrap(), is_parameter=lambda x: x.ndim == 2)
    assert [name for name, _ in fixed.named_parameters()] == ["layers.0.weight", "layers.1.weight"]
    assert not copy.deepcopy(fixed).layers[0].bias.requires_grad


def test_an_equinox_module_does_not_take_what_a_call_would_not_see():
    module = _equinox()
    with pytest.raises(AttributeError, match="cannot be set"):
        module.layers = ()
    assert len(module.layers) == 2


def test_a_raw_call_of_a_part_does_not_lose_gradients():
    module = _equinox()
    with pytest.raises(LostGradientError):
        jax.nn.relu(module.layers[0].weight)


FILTERED = {
    "a result": lambda w, x: eqx.filter_jit(lambda x: w * x)(x),
    "an argument": lambda w, x: eqx.filter_jit(lambda tree, x: (tree["w"] * x).value)({"w": w}, x),  # whose later values it would not see
    "a result of constants": lambda w, x: eqx.filter_jit(tnp.sin)(x),
    "a gradient": lambda w, x: eqx.filter_grad(lambda w: (w * w).value)(w),  # would be None
    "rows": lambda w, x: eqx.filter_vmap(lambda x: w * x)(x),
    "a checkpoint": lambda w, x: eqx.filter_checkpoint(lambda x: w * x)(x),
    "shapes": lambda w, x: eqx.filter_eval_shape(lambda w: w * w, w),
    "both": lambda w, x: eqx.filter_vjp(lambda w: w * w, w),
    "a module's result": lambda w, x: eqx.filter_jit(_equinox())(x[0]),
}


@pytest.mark.parametrize("call", FILTERED.values(), ids=FILTERED)
def test_transformations_of_equinox_refuse_variables(call):
    w = tape.Variable(2.0)
    with pytest.raises(LostGradientError, match=r"use tape\.jit, tape\.vmap, tape\.grad or tape\.checkpoint in their place, make an op of"):
        call(w, X)


def test_what_is_advised_for_transformations_of_equinox_has_gradients():
    w = tape.Variable(2.0)

    def loss(w):
        return (w * X).sum()

    for fun in (tape.jit(loss), tape.checkpoint(loss), interop.lift(eqx.filter_jit(loss)), lambda w: tape.vmap(loss)(w[None])[0]):
        np.testing.assert_allclose(tape.gradients(fun(w), [w])[0].numpy(), X.sum(), rtol=1e-5)
    np.testing.assert_allclose(tape.grad(loss)(w).numpy(), X.sum(), rtol=1e-5)
    assert eqx.filter_jit(lambda x: (w * x).value)(X).shape == X.shape


HANDED = {
    "jax.jit": lambda f, module: jax.jit(f)(module),
    "jax.grad": lambda f, module: jax.grad(f)(module),
    "jnp.asarray": lambda f, module: jnp.asarray(module),
    "nnx.jit": lambda f, module: nnx.jit(f)(module),
    "nnx.value_and_grad": lambda f, module: nnx.value_and_grad(f)(module),
}


@pytest.mark.parametrize("call", HANDED.values(), ids=HANDED)
@MAKE
def test_jax_is_not_given_a_module_of_the_bridge(make, call):
    module = make()
    with pytest.raises(TapeRuntimeError, match="have the function close over the module"):
        call(lambda module: 0.0, module)


TAKEN_APART = {
    "nnx.Optimizer": lambda module: nnx.Optimizer(module, optax.adam(1e-3), wrt=nnx.Param),
    "nnx.state": nnx.state,
    "nnx.split": nnx.split,
    "nnx.clone": nnx.clone,  # was the bridge itself
    "nnx.update": lambda module: nnx.update(module, nnx.state(Net(nnx.Rngs(0)))),
    "of a part": lambda module: nnx.clone(module.layers[0]),
    "in a module of NNX": lambda module: nnx.state(nnx.Sequential(module)),
}


@pytest.mark.parametrize("call", TAKEN_APART.values(), ids=TAKEN_APART)
def test_nnx_does_not_take_a_bridge_apart(call):
    with pytest.raises(TapeRuntimeError, match=r"interop\.optax\.Optimizer\(module\.parameters\(\), transformation\)"):
        call(_nnx())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: interop.nnx.Module(3), TapeTypeError),
        (lambda: interop.equinox.Module(_equinox()), TapeTypeError),
        (lambda: interop.equinox.Module(_nnx()), TapeTypeError),
        (lambda: interop.linen.Module(3, {}), TapeTypeError),
        (lambda: interop.linen.Module(LinenNet(), {}), TapeValueError),
        (lambda: interop.equinox.Module(3), TapeTypeError),
        (lambda: tape.extend.replace(tape.Variable(1.0), tape.constant(1.0)), TapeValueError),
    ],
)
def test_what_is_no_module_is_refused(call, error):
    with pytest.raises(error, match=r"expected a|no collection 'params'|requires grad"):
        call()


@pytest.mark.filterwarnings("ignore:The 'm.iter_modules")  # a release of Flax
def test_the_nnx_module_that_was_given_stays_as_it_is():
    given = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    before = np.asarray(given.kernel[...])
    module = interop.nnx.Module(given)
    with tape.no_grad():
        module.kernel += 1.0
    module.bias = jnp.ones(2)
    module.further = 3
    repr(module)  # puts the present values into NNX's module, as methods of NNX's do
    with tape.no_grad():
        module.kernel += 1.0
    np.testing.assert_array_equal(dict(module.iter_modules())[()].kernel[...], before + 2)
    np.testing.assert_array_equal(given.kernel[...], before)
    np.testing.assert_array_equal(given.bias[...], np.zeros(2))
    assert not hasattr(given, "further")


def test_an_equinox_module_returns_from_inference():
    module = interop.equinox.Module(eqx.nn.Dropout(0.5))
    for value in (True, False):
        module = module.inference_mode(value)
        assert module.inference is value
    y = module(jnp.ones(64), key=jax.random.key(0))
    assert set(np.asarray(y.value if isinstance(y, tape.Variable) else y)) == {0, 2}
