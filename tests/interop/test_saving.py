"""What is saved comes back bit for bit, or not at all, and a save that is cut off loses nothing."""

import contextlib
import pathlib
import pickle
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop
import interop.saving
import tape
import tape.numpy as tnp
from tape.errors import TapeTypeError, TapeValueError
from tests.tiers import by_xla

FORMATS = ["safetensors", "orbax"]


@pytest.fixture(params=FORMATS)
def place(request, tmp_path):
    """A path of each format."""
    pytest.importorskip({"safetensors": "safetensors", "orbax": "orbax.checkpoint"}[request.param])
    return tmp_path / ("run.safetensors" if request.param == "safetensors" else "run")


def everything(z):
    w, b = tape.Variable(np.full((2, 3), z, np.float32), name="w"), tape.Variable(1.0 * z)
    return {
        "w": w,
        "list": [b, (tape.constant(jnp.arange(3) * z), tape.constant(jax.random.key(z)))],
        "optimizer": interop.optax.Optimizer([w, b], optax.inject_hyperparams(optax.adam)(learning_rate=0.1 * z), loss_scale=8.0),
        "key": jax.random.key(z, impl="rbg"),
        "keys": jax.random.split(jax.random.key(z), 3),
        "raw key": jax.random.PRNGKey(z),
        "weak": jnp.asarray(0.5 * z),
        **{
            name: jnp.full((3,), z / 3, name)
            for name in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int4", "uint8", "complex64")
        },
        "mask": jnp.arange(3) > z,
        "double": np.full(2, z / 3),
        "complex double": np.full(2, z * 1j),
        "empty": np.zeros((0, 2)),
        "zeros": np.array([-0.0, np.nan, np.inf, 5e-324 * z]),
        "number": np.float64(z / 7),
        "big-endian": np.full(2, z, ">f4"),
        "transposed": np.arange(6.0 * z).reshape(z, 6).T[:2, :2],
        "step": z,
        "huge": 10**30 * z,
        "rate": 0.1 * z,
        "nan": float("nan"),
        "complex": 1j * z,
        "text": "é" * z,
        "flag": z == 3,
        "none": None,
        "function": jnp.sin,
        "generator": np.random.default_rng(z),
        "twister": np.random.Generator(np.random.MT19937(z)),
    }


def bits(value):
    """A value in a form in which equal ones are equal to the bit, with type, dtype and weak type."""
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if not hasattr(value, "dtype"):
        return type(value), repr(value)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return str(value.dtype), np.asarray(jax.random.key_data(value)).tobytes()
    return (
        isinstance(value, jax.Array),
        value.dtype.newbyteorder("="),
        getattr(value, "weak_type", None),
        value.shape,
        np.asarray(value).tolist().__repr__(),
    )


def same(a, b):
    a, b = interop.saving.state_dict(a), interop.saving.state_dict(b)
    assert list(a) == list(b)
    for name in a:
        assert bits(a[name]) == bits(b[name]), name


def train(state, steps):
    """Steps that draw random numbers from what is in the state, too."""
    w, (b, _), optimizer = state["w"], state["list"], state["optimizer"]
    for _ in range(steps):
        state["key"], key = jax.random.split(state["key"])
        noise = state["generator"].normal(size=(2, 3)).astype(np.float32) + jax.random.normal(key, (2, 3))
        optimizer.zero_grad()
        optimizer.backward((tnp.tanh(w * noise) ** 2).sum() + b * b)
        optimizer.step()
        state["step"] += 1


@by_xla()
def test_everything_comes_back_to_the_bit(place):
    saved, other = everything(3), everything(2)
    train(saved, 2)
    interop.save(place, saved)
    loaded = interop.load(place, other)
    same(loaded, saved)
    assert loaded["w"] is other["w"]
    assert loaded["optimizer"] is other["optimizer"]
    assert loaded["function"] is jnp.sin
    values = interop.load(place)
    assert (values["step"], values["list.0"].shape, values["double"].dtype) == (5, (), np.float64)
    with tape.eager():  # else a program that is ready for the second run alone would round its sums otherwise
        train(saved, 3)
        train(loaded, 3)
    same(loaded, saved)


def test_no_pickle_is_read(place, monkeypatch):
    interop.save(place, {"w": tape.Variable(1.0), "key": jax.random.key(0), "text": "x"})
    for name in ("loads", "load", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    assert interop.load(place)["text"] == "x"


@pytest.mark.parametrize("kind", ["nnx", "linen", "equinox"])
@by_xla()  # a step that is interpreted rounds otherwise than a compiled one, and another run may come to compile it sooner
def test_a_resumed_run_is_the_uninterrupted_one(kind, place):
    compiled = bool(place.suffix)
    pytest.importorskip({"nnx": "flax", "linen": "flax", "equinox": "equinox"}[kind])
    x = jnp.linspace(-1, 1, 12).reshape(4, 3)

    def begun(seed):
        if kind == "nnx":
            from flax import nnx

            class Net(nnx.Module):
                def __init__(self, rngs):
                    self.linear, self.norm, self.drop = (
                        nnx.Linear(3, 4, rngs=rngs),
                        nnx.BatchNorm(4, rngs=rngs),
                        nnx.Dropout(0.5, rngs=rngs),
                    )

                def __call__(self, x):
                    return self.drop(self.norm(self.linear(x)))

            model = interop.nnx.Module(Net(nnx.Rngs(seed)))
            call = model
        elif kind == "linen":
            from flax import linen

            net = linen.Sequential([linen.Dense(4, param_dtype=jnp.bfloat16), linen.BatchNorm(use_running_average=False)])
            model = interop.linen.Module(net, net.init(jax.random.key(seed), x))
            call = lambda x: model(x, mutable=["batch_stats"])[0]  # noqa: E731
        else:
            import equinox as eqx

            model = interop.equinox.Module(eqx.nn.MLP(3, 4, 5, 1, key=jax.random.key(seed)))
            call = tape.vmap(model)
        schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 9)
        optimizer = interop.optax.Optimizer(model.parameters(), optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(schedule)))

        def step():
            optimizer.zero_grad()
            (call(x) ** 2).sum().backward()
            optimizer.step()

        return {"model": model, "optimizer": optimizer}, tape.jit(step) if compiled else step

    whole, step = begun(0)
    for k in range(6):
        if k == 3:
            interop.save(place, whole)
        step()
    resumed, step = begun(1)
    interop.load(place, resumed)
    for _ in range(3):
        step()
    same(resumed, whole)


def test_other_programs_read_and_write_these_formats(place):
    values = {"a.b": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3)}
    if place.suffix:
        import safetensors.numpy as other

        interop.save(place, values)
        np.testing.assert_array_equal(other.load_file(place)["a.b"], values["a.b"])
        other.save_file(values, place)
    else:
        import orbax.checkpoint as ocp

        interop.save(place, values)
        with ocp.PyTreeCheckpointer() as checkpointer:
            np.testing.assert_array_equal(checkpointer.restore(place / "state")["a.b"], values["a.b"])
        place = place.with_name("theirs")
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(place, {"a": {"b": values["a.b"]}, "n": values["n"]})
    w = tape.Variable(np.zeros((2, 3), np.float32))
    assert int(interop.load(place, {"a": {"b": w}, "n": np.array(0)})["n"]) == 3
    np.testing.assert_array_equal(w.numpy(), values["a.b"])


WRONG = {
    "missing": (lambda s: {**s, "more": 1}, "'more' is missing.*strict=False"),
    "unknown": (lambda s: {"w": s["w"]}, "is not of the state"),
    "shape": (lambda s: {**s, "w": tape.Variable(np.ones(4, np.float32))}, r"'w' has shape \(2, 3\), and \(4,\) in the state"),
    "dtype": (lambda s: {**s, "w": tape.Variable(np.ones((2, 3), np.float16))}, "'w' has dtype float32, and float16 in the state"),
    "key": (lambda s: {**s, "key": jax.random.PRNGKey(0)}, r"'key' is of dtype key<rbg>, and of uint32"),
    "other key": (lambda s: {**s, "key": jax.random.key(0)}, r"'key' has dtype key<rbg>, and key<fry>"),
    "number": (lambda s: {**s, "step": "three"}, "'step' is a int, and a str in the state"),
    "float": (lambda s: {**s, "step": 3.0}, "'step' is a int, and a float in the state"),
    "optimizer": (
        lambda s: {**s, "optimizer": interop.optax.Optimizer([s["w"]], optax.sgd(0.1, momentum=0.5))},
        "'optimizer.state.0.trace.0' is missing; .*not of the state",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_said_and_nothing_changes(kind, place):
    change, words = WRONG[kind]
    interop.save(place, everything(3))
    state = change(everything(2))
    before = interop.saving.state_dict(state)
    with pytest.raises(TapeValueError, match=words):
        interop.load(place, state)
    after = interop.saving.state_dict(state)
    assert all(bits(after[name]) == bits(before[name]) for name in before)


@pytest.mark.parametrize("strict", [True, False])
def test_one_variable_of_two_names_takes_one_value(place, strict):
    interop.save(place, {"a": tape.Variable([1.0, np.nan]), "b": tape.Variable([1.0, np.nan]), "c": tape.Variable([2.0, 3.0])})
    w = tape.Variable([0.0, 0.0])
    with pytest.raises(TapeValueError, match="'c' has another value than 'a', and both are one Variable"):
        interop.load(place, {"a": w, "b": w, "c": w}, strict=strict)
    assert w.numpy().tolist() == [0.0, 0.0]
    v = tape.Variable([0.0, 0.0])
    interop.load(place, {"a": w, "b": w, "c": v}, strict=strict)
    np.testing.assert_array_equal(w.numpy(), [1.0, np.nan])
    assert v.numpy().tolist() == [2.0, 3.0]


def test_what_fits_is_loaded_where_names_may_differ(place):
    interop.save(place, {"w": tape.Variable([1.0, 2.0]), "gone": 1})
    w = tape.Variable(np.zeros(2, np.float16))
    assert interop.load(place, {"w": w, "new": 5}, strict=False)["new"] == 5
    assert w.numpy().tolist() == [1.0, 2.0]
    with pytest.raises(TapeValueError, match="shape"):
        interop.load(place, {"w": tape.Variable(1.0)}, strict=False)


@pytest.mark.parametrize(
    ("old", "value", "words"),
    [(0, 3.7, "float, and a int"), (0, np.nan, "float, and a int"), (True, 2, "int, and a bool"), (0.5, 2j, "complex, and a float")],
)
def test_a_number_is_not_rounded_to_another_kind(old, value, words):
    with pytest.raises(TapeValueError, match=f"'x' is a {words} in the state.*Nothing was changed"):
        interop.saving.load_state_dict({"x": old}, {"x": value}, strict=False)
    for array in (np.array(old), jnp.asarray(old)):
        with pytest.raises(TapeValueError, match=f"'x' is a {type(value).__name__}, and of {array.dtype} in the state"):
            interop.saving.load_state_dict({"x": array}, {"x": value})
    assert interop.saving.load_state_dict({"x": value}, {"x": old}, strict=False) == {"x": old}
    assert interop.saving.load_state_dict({"x": jnp.asarray(value)}, {"x": old})["x"] == old


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # orbax's own reads that go on in a loop which is closed
def test_damage_is_seen(place):
    state = {"w": tape.Variable(np.arange(40, dtype=np.float32)), "key": jax.random.key(3), "step": 3}
    interop.save(place, state)
    files = [place] if place.suffix else [f for f in place.rglob("*") if f.is_file()]
    damaged = 0
    for file in files:
        whole = file.read_bytes()
        cuts = [whole[:n] for n in {0, 7, len(whole) // 2, max(len(whole) - 1, 0)} if n < len(whole)]
        flips = [
            whole[:n] + bytes([whole[n] ^ 4]) + whole[n + 1 :]
            for n in range(0, len(whole), max(1, len(whole) // (40 if place.suffix else 4)))
        ]
        for content in cuts + flips:
            file.write_bytes(content)
            other = {"w": tape.Variable(np.zeros(40, np.float32)), "key": jax.random.key(4), "step": 0}
            try:
                found = interop.load(place, other)
            except TapeValueError as e:
                damaged += str(place) in str(e)
                assert not other["w"].numpy().any()
            else:
                same(found, state)  # it was in what nobody needs
        file.write_bytes(whole)
    assert damaged > 20
    if place.suffix:
        values = bytearray(place.read_bytes())
        values[-1] ^= 1
        place.write_bytes(values)
        with pytest.raises(TapeValueError, match=r"is damaged: the bytes of '(w|key)' changed; take another copy"):
            interop.load(place)


def test_nothing_there_is_no_damage(place):
    with pytest.raises(FileNotFoundError):
        interop.load(place, {"w": tape.Variable(1.0)})


def steps_of_a_save(place):
    """What a save does outside of this process, in order: places in which it may end."""
    if place.suffix:
        return [("safetensors.numpy", "save_file"), ("os", "fsync"), ("pathlib.Path", "replace")]
    return [("orbax.checkpoint.Checkpointer", "save"), ("pathlib.Path", "rename"), ("shutil", "rmtree")]


CUT = """
import importlib, os, signal, sys
import interop, interop.{format}, tape
place, owner, name, count, after = sys.argv[1:]
module, _, attribute = owner.rpartition(".")
try:
    owner = importlib.import_module(owner)
except ImportError:
    owner = getattr(importlib.import_module(module), attribute)
real, left = getattr(owner, name), int(count)
def cut(*args, **kwargs):
    global left
    mine = place in str(args[:2]) or name in ("fsync", "save_file", "save")
    left -= mine
    if mine and left < 0:
        if after == "after":
            real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)
setattr(owner, name, cut)
interop.save(place, {{"w": tape.Variable([5.0, 6.0]), "step": 2}})
"""


def test_a_save_that_is_killed_loses_nothing(place):
    """At each step that it makes, before it and after it."""
    script = CUT.format(format="safetensors" if place.suffix else "orbax")
    killed = 0
    for owner, name in steps_of_a_save(place):
        for count, after in [("0", "before"), ("0", "after"), ("1", "after")] if name == "rename" else [("0", "before")]:
            interop.save(place, {"w": tape.Variable([1.0, 2.0]), "step": 1})
            done = subprocess.run([sys.executable, "-c", script, str(place), owner, name, count, after], check=False, capture_output=True)  # noqa: S603
            killed += done.returncode == -signal.SIGKILL
            found = interop.load(place, {"w": tape.Variable([0.0, 0.0]), "step": 0})
            assert (found["step"], found["w"].numpy().tolist()) in [(1, [1.0, 2.0]), (2, [5.0, 6.0])], done.stderr
    assert killed == (3 if place.suffix else 5)


def test_a_save_that_fails_leaves_the_old_one_and_nothing_beside(place, monkeypatch):
    interop.save(place, {"step": 1, "w": tape.Variable(1.0)})

    def full(*_, **__):
        raise OSError(28, "no space left")

    for owner, name in steps_of_a_save(place):
        if name == "rmtree":
            continue
        with monkeypatch.context() as patch:
            target = {"pathlib.Path": pathlib.Path}.get(owner)
            patch.setattr(*((target, name, full) if target else (f"{owner}.{name}", full)))
            with contextlib.suppress(OSError):
                interop.save(place, {"step": 2, "w": tape.Variable(2.0)})
        assert interop.load(place)["step"] == 1, name
        assert [p.name for p in place.parent.iterdir()] == [place.name]


def test_a_part_that_refuses_changes_no_other(place):
    class Refusing:
        value = 1

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            if state["value"] == 3:
                msg = "not this"
                raise RuntimeError(msg)
            self.value = state["value"]

    state = {"a": tape.Variable(1.0), "generator": np.random.default_rng(0), "z": Refusing()}
    state["z"].value = 3
    interop.save(place, {**state, "a": tape.Variable(7.0), "generator": np.random.default_rng(5)})
    state["z"].value = 2
    before = interop.saving.state_dict(state)
    with pytest.raises(RuntimeError, match="not this"):
        interop.load(place, state)
    after = interop.saving.state_dict(state)
    assert all(bits(before[name]) == bits(after[name]) for name in before)


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ({"a": [object()]}, TapeTypeError, r"a\.0 is a object; what can be saved"),
        ({"a": np.array(["x"])}, TapeTypeError, "a is an array of dtype <U1"),
        ({"a.b": 1, "a": {"b": 2}}, TapeValueError, r"two values of the state have the name 'a\.b'"),
    ],
)
def test_what_cannot_be_saved_says_so(state, error, words, tmp_path):
    pytest.importorskip("orbax.checkpoint")
    with pytest.raises(error, match=words):
        interop.save(tmp_path / "run", state)
    with pytest.raises(TapeValueError, match="format must be one of 'safetensors', 'orbax' or None, got 'pickle'"):
        interop.save(tmp_path / "run", {"a": 1}, format="pickle")
    assert not list(tmp_path.iterdir())


def test_sharded_values_come_back_sharded(place):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    w = tape.Variable(jax.device_put(jnp.arange(8.0), sharding))
    interop.save(place, {"w": w})
    w.value = w.value * 0
    interop.load(place, {"w": w})
    assert w.sharding == sharding
    assert w.numpy().tolist() == list(range(8))
