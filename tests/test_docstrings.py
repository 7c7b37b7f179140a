"""The examples of public docstrings run as they stand."""

import doctest
import importlib
import linecache
import pkgutil

import pytest

import interop
import tape

NEEDED = {
    "interop.einops": "einops",
    "interop.equinox": "equinox",
    "interop.linen": "flax",
    "interop.nnx": "flax",
    "interop.optax": "optax",
    "interop.optimizer_state": "optax",
    "interop.orbax": "orbax.checkpoint",
    "interop.safetensors": "safetensors",
    "interop.saving": "safetensors",
    "interop.states": "optax",
}
MIRRORED = ("tape.numpy", "tape.nn", "tape.scipy", "tape.lax", "tape.random", "tape.image")  # their docstrings are JAX's


def modules():
    for package in (tape, interop):
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not found.name.startswith(MIRRORED) and found.name != "tape.ops":  # which shows JAX's functions of that name
                yield found.name


@pytest.mark.parametrize("name", sorted(modules()))
def test_examples(name, monkeypatch):
    needed = "torch" if name.startswith("interop.torch") else NEEDED.get(name)
    if needed:
        pytest.importorskip(needed, reason=f"{name} needs it")
    module = importlib.import_module(name)
    monkeypatch.setattr(linecache, "checkcache", lambda filename=None: None)  # doctest's debugger asks for every file at each example
    failed, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert failed == 0


SHOWN = ["tape", "tape.testing", "tape.testing.strategies", "tape.rules", "tape.op_hooks", "tape.extend", "interop"]  # as the reference
SHOWN += [
    f"interop.{name}"
    for name in ("optax", "nnx", "linen", "equinox", "torch", "scipy", "einops", "saving", "safetensors", "orbax", "autograd")
]
GIVEN = {  # what functions return, hooks are handed and libraries call: a sentence says what it is
    *("ArgumentReport", "Coverage", "Domain", "Example", "GradientMismatch", "Report", "Rule"),
    *("Anomaly", "Backend", "Group", "LossScaleState", "checkpoint_policies"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_every_public_callable_has_an_example(name):
    needed = "torch" if name == "interop.torch" else NEEDED.get(name)
    if needed:
        pytest.importorskip(needed, reason=f"{name} needs it")
    module = importlib.import_module(name)
    public = [
        n for n in module.__all__ if n not in GIVEN and callable(getattr(module, n)) and not isinstance(getattr(module, n), type(tape))
    ]
    if name == "interop.autograd":  # its classes are those of the other library
        public = [n for n in public if not isinstance(getattr(module, n), type)]
    assert [n for n in public if ">>>" not in (getattr(module, n).__doc__ or "")] == []
