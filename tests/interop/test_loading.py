"""``import interop`` is enough: submodules load at their first use, and say what they need."""

import gc
import importlib.util
import subprocess
import sys

import pytest

import interop
import tape

FRAMEWORKS = ("optax", "flax", "equinox", "torch", "orbax", "safetensors", "einops", "autograd", "scipy.optimize")
EARLY = """
import sys
before = set(sys.modules)
import tape, interop
dir(interop)
early = [m for m in set(sys.modules) - before if m in {frameworks!r} or m.split(".")[0] in {frameworks!r}]
early += [m for m in sys.modules if m.startswith("interop.") and m.split(".")[1] in {modules!r}]
assert not early, early
"""
MODULES = ("autograd", "einops", "equinox", "linen", "nnx", "optax", "orbax", "safetensors", "scipy", "torch")
NEEDS = {
    "einops": ("einops", "einops"),
    "equinox": ("equinox", "equinox"),
    "linen": ("flax", "flax"),
    "nnx": ("flax", "flax"),
    "optax": ("optax", "optax"),
    "orbax": ("orbax", "orbax"),
    "safetensors": ("safetensors", "safetensors"),
    "torch": ("torch", "torch"),
}
SCRIPT = """
import sys, interop
assert "interop.optax" not in sys.modules and "optax" not in sys.modules
assert "optax" in dir(interop) and "lift" in dir(interop)
assert interop.optax.Optimizer is sys.modules["interop.optax"].Optimizer
assert callable(interop.lift)  # a function still, not the module of its name
"""
MISSING = """
import sys
import interop, tape
for module, (package, extra) in {needs!r}.items():
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
    sys.modules[package] = None  # what is not installed
    for use in (lambda: getattr(interop, module), lambda: __import__("interop." + module)):
        try:
            use()
        except ImportError as e:
            assert isinstance(e, tape.errors.TapeError), e
            assert f"pip install 'jax-tape[{{extra}}]'" in str(e), e
        else:
            raise AssertionError(module)
for format in ("safetensors", "orbax"):
    try:
        interop.save("nowhere", {{"a": 1}}, format=format)
    except ImportError as e:
        assert f"jax-tape[{{format}}]" in str(e)
    else:
        raise AssertionError(format)
"""


def there(name):
    return importlib.util.find_spec(f"interop.{name}") is not None


def run(script):
    return subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)  # noqa: S603 - its own interpreter


def test_submodules_load_at_their_first_use():
    assert not run(SCRIPT).stderr


def test_a_missing_package_says_which_extra_to_install():
    done = run(MISSING.format(needs={name: need for name, need in NEEDS.items() if there(name)}))
    assert done.returncode == 0, done.stderr


def test_nothing_is_imported_early():
    script = EARLY.format(frameworks=FRAMEWORKS, modules=MODULES)
    assert run(script).returncode == 0, run(script).stderr
    framework = next(name for name in ("equinox", "flax", "optax") if importlib.util.find_spec(name))
    for planted in ("import interop.optax", f"import {framework}", "interop.scipy"):  # the test would see it
        assert "AssertionError: [" in run(script.replace("dir(interop)", planted)).stderr


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_listed_and_load(name):
    if not there(name):
        pytest.skip(f"interop.{name} is not here")
    assert name in dir(interop)
    package = NEEDS.get(name, ("numpy", None))[0]
    pytest.importorskip(package)
    assert getattr(interop, name) is sys.modules[f"interop.{name}"]


def test_what_there_is_not_is_an_ordinary_error():
    assert not hasattr(interop, "wombat")
    with pytest.raises(tape.errors.TapeError, match="module 'interop' has no attribute 'wombat'"):
        interop.wombat


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_as_it_was_after_an_import(monkeypatch, collects):
    spec = importlib.util.spec_from_file_location("tape_again", tape.__file__)
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        assert gc.isenabled() is collects
        monkeypatch.setitem(sys.modules, "tape.statistics", None)  # an import in it fails
        with pytest.raises(ImportError):
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()
