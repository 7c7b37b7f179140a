"""An op runs under the JAX configuration that was in force when it was recorded, whenever it runs."""

import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape import configuration, jaxapi
from tape.errors import TapeError
from tape.graph import segment
from tape.programs import execution

A = np.array([1.0, -2.0, 0.5], np.float32)

OTHER = {
    "jax_default_matmul_precision": "float32",
    "jax_default_prng_impl": "rbg",
    "jax_legacy_prng_key": "error",
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
}
OTHER |= {s.name: not s.value for s in jaxapi.SETTINGS if isinstance(s.value, bool)}
SETTINGS = [s for s in jaxapi.SETTINGS if s.name in OTHER]


@pytest.fixture(params=["watching", "asking"])
def way(request, monkeypatch):
    """JAX's settings tell when they change; where a release does not allow that, they are asked at every entry."""
    if request.param == "asking":
        watching = configuration.CHANGES
        for module in [m for name, m in list(sys.modules.items()) if name.startswith("tape.") and getattr(m, "CHANGES", None) is watching]:
            monkeypatch.setattr(module, "CHANGES", configuration._Asking())
    else:
        assert isinstance(configuration.CHANGES, configuration.Changes), "this release of JAX does not let its settings be watched"


@pytest.fixture
def runs(monkeypatch):
    """Pairs of the configuration that a run should have and the one that it has."""
    seen = []
    original = execution.Program.run

    def run(self, state, leaves, *inner):
        root = state
        while root.parent is not None:
            root = root.parent
        (number,) = [key[0] for key, value in segment.root.__globals__["_ROOTS"].items() if value is root]
        (recorded,) = [settings for settings in configuration._KNOWN.values() if id(settings) == number]  # equal ones are one object
        seen.append((recorded, configuration._read()))
        return original(self, state, leaves, *inner)

    monkeypatch.setattr(execution.Program, "run", run)
    return seen


def test_all_settings_are_tried():
    assert {s.name for s in jaxapi.SETTINGS} - {"jax_default_device"} == {s.name for s in SETTINGS}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_a_setting_changed_in_the_middle_of_a_segment(setting, runs):
    x = tape.constant(A)
    position = jaxapi.SETTINGS.index(setting)

    def program(value):
        a = tnp.sin(x)
        with setting.set_to(value):
            b = tnp.cos(a)
        return a, b, tnp.tanh(b)

    for _ in range(4):  # the structure is known without the change
        program(setting.value)[2].value
    del runs[:]
    for look_inside in (False, True):
        a, b, c = program(OTHER[setting.name])
        a_value, b_value, c_value = [v._segment.configuration[position] for v in (a, b, c)]
        assert a_value == c_value != b_value
        with setting.set_to(OTHER[setting.name] if look_inside else setting.value):
            found = [np.asarray(v.value) for v in (c, b, a)]
        np.testing.assert_allclose(found[0], np.tanh(np.cos(np.sin(A))), rtol=1e-5)
    assert len(runs) >= 5
    assert all(recorded == present for recorded, present in runs)
    assert {present[position] for _, present in runs} == {setting.value, next(p[position] for _, p in runs if p[position] != setting.value)}


@pytest.mark.usefixtures("way")
def test_a_setting_changed_for_the_whole_process():
    x = tape.constant(A)
    for _ in range(4):
        tnp.log(tnp.sin(x)).value
    a = tnp.sin(x)
    jax.config.update("jax_debug_nans", True)
    try:
        b = tnp.log(a)
    finally:
        jax.config.update("jax_debug_nans", False)
    c = tnp.log(a)
    assert np.isnan(c.value).any()
    with pytest.raises(FloatingPointError):
        b.value


def test_a_setting_changed_for_the_whole_process_by_another_thread():
    x = tape.constant(A)
    for _ in range(4):
        tnp.log(tnp.sin(x)).value
    a = tnp.sin(x)
    try:
        thread = threading.Thread(target=jax.config.update, args=("jax_debug_nans", True))
        thread.start()
        thread.join()
        b = tnp.log(a)
    finally:
        jax.config.update("jax_debug_nans", False)
    with pytest.raises(FloatingPointError):
        b.value


@pytest.mark.usefixtures("way")
def test_a_setting_of_one_thread_is_not_another_threads():
    x = tape.constant(A)
    inside, done = threading.Event(), threading.Event()

    def other():
        with jax.debug_nans(True):
            inside.set()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    y = tnp.log(x)
    done.set()
    thread.join()
    assert np.isnan(y.value).any()


def dots(v):
    """Precisions of the matrix products that lead to ``v``."""
    steps = v._segment.state.path()
    return [e.params["precision"] for s in steps if s.kernel for e in s.kernel.jaxpr.eqns if str(e.primitive) == "dot_general"]


@pytest.mark.usefixtures("way")
def test_precision_is_that_of_the_line():
    x = tape.constant(np.ones((3, 3), np.float32))
    for _ in range(4):
        ((x @ x) @ x).value
    y = x @ x
    with jax.default_matmul_precision("float32"):
        z = y @ x
    u = z @ x
    assert dots(y) == dots(u) == [None]
    ((precision, _),) = dots(z)
    assert "HIGHEST" in str(precision)


@pytest.mark.usefixtures("way")
def test_promotion_rules_are_those_of_the_line():
    x, m = tape.constant(A), tape.constant(np.ones((3, 3), np.float32))
    i = tape.constant(np.arange(3, dtype=np.int32))
    for _ in range(4):
        (x + m).value, (x + i).value
    y = x + 1
    with jax.numpy_rank_promotion("raise"), pytest.raises(TapeError, match="rank"):
        y + m
    with jax.numpy_dtype_promotion("strict"), pytest.raises(TapeError, match="promotion"):
        y + i
    np.testing.assert_array_equal((y + i).value, A + 1 + np.arange(3))


@pytest.mark.usefixtures("way")
def test_keys_are_of_the_line():
    def drawn():
        return jax.random.key_impl(tape.random.key(3).value)

    for _ in range(3):
        default = str(drawn())
    with jax.default_prng_impl("rbg"):
        key = tape.random.key(3)
    assert str(jax.random.key_impl(key.value)) == "rbg" != default
    assert str(drawn()) == default


# -- 64 bits -----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("times", range(4))
def test_sixty_four_bits_in_the_middle_of_a_segment(times):
    """Recorded with 64 bits, run and swept without."""
    x = tape.Variable(A)
    for _ in range(times + 1):
        before = x * 3
        with jax.enable_x64(True):
            wide = tape.Variable(A.astype(np.float64) / 3)
            y = tnp.sin(wide) * before.astype("float64")
            total = y.sum()
        after = before + 1
    assert (before.dtype, y.dtype, after.dtype) == (np.float32, np.float64, np.float32)
    np.testing.assert_allclose(y.value, np.sin(A.astype(np.float64) / 3) * 3 * A, rtol=1e-15)
    total.backward(retain_graph=True)
    assert (wide.grad.dtype, x.grad.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(wide.grad.value, np.cos(A.astype(np.float64) / 3) * 3 * A, rtol=1e-14)
    np.testing.assert_allclose(x.grad.value, 3 * np.sin(A / 3), rtol=1e-6)
    total = 2 * after.sum()
    total.backward()
    np.testing.assert_allclose(x.grad.value, 3 * np.sin(A / 3) + 6, rtol=1e-6)


@pytest.mark.parametrize("times", range(3))
def test_sixty_four_bits_accumulate_and_differentiate_again(times):
    with jax.enable_x64(True):
        x = tape.Variable(A.astype(np.float64))
        y = [tnp.sin(x).sum() for _ in range(2)]
    for v in y:
        v.backward()
    assert x.grad.dtype == np.float64
    np.testing.assert_allclose(x.grad.value, 2 * np.cos(A.astype(np.float64)), rtol=1e-14)
    with jax.enable_x64(True):
        z = (x**3).sum()
    g = tape.gradients(z, x, create_graph=True)
    assert g.dtype == np.float64
    h = tape.gradients(g, x, np.ones(3))
    np.testing.assert_allclose(h.value, 6 * A.astype(np.float64), rtol=1e-14)


def test_thirty_two_bits_are_kept_where_sixty_four_are_allowed():
    x = tape.Variable(A)
    y = (tnp.sin(x) * 2).sum()
    with jax.enable_x64(True):
        y.backward()
    assert x.grad.dtype == np.float32
    np.testing.assert_allclose(x.grad.value, 2 * np.cos(A), rtol=1e-6)


# -- devices -----------------------------------------------------------------------------------------------------------------

DEVICES = """
import jax, numpy as np, tape, tape.numpy as tnp
first, second = jax.devices()
x = tape.constant(np.ones(3, np.float32))
def program(device):
    y = tnp.sin(x)
    with jax.default_device(device):
        z = tape.numpy.zeros(3) + 1
        u = z * 2
    return y, z, u, tape.numpy.zeros(3)
for _ in range(4):
    for v in program(first): v.value
for _ in range(4):
    y, z, u, w = program(second)
    assert (w.device, u.device, z.device, y.device) == (first, second, second, first), (w.device, u.device, z.device, y.device)
print("right")
"""


def test_ops_run_on_the_default_device_of_their_line():
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", DEVICES],
        env={
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": ":".join(p for p in sys.path if p) or ".",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "right\n", done.stderr


# -- the power of these tests ------------------------------------------------------------------------------------------------


def test_a_change_that_goes_unnoticed_fails_them(monkeypatch, runs):
    monkeypatch.setattr(configuration, "_LISTENERS", [])
    setting = next(s for s in SETTINGS if s.name == "jax_debug_infs")
    with pytest.raises(AssertionError):
        test_a_setting_changed_in_the_middle_of_a_segment(setting, runs)


def test_a_lifted_function_is_traced_anew():
    lifted = interop.lift(lambda x: x @ x)
    x = tape.constant(np.ones((2, 2), np.float32))
    lifted(x).value
    with jax.default_matmul_precision("float32"):
        y = lifted(x)
    assert dots(y) != dots(lifted(x))
    assert jnp.allclose(y.value, 2)
