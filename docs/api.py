"""The pages of the reference: every public name, in groups; a name that nobody put into a group stands under "Further"."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import types
from pathlib import Path

from sphinx.ext.autodoc.mock import mock

import tape.statistics
from tape.hooking import observing
from tape.insight import entries, explaining, picture
from tape.op_hooks import timing

GROUPS: dict[str, dict[str, list[str]]] = {
    "tape": {
        "Variables": ["Variable", "constant", "stop_gradient"],
        "Sweeps": ["backward", "gradients", "stream_gradients", "register_multi_grad_hook"],
        "Modes": ["no_grad", "enable_grad", "set_grad_enabled", "eager"],
        "Transforms": ["grad", "value_and_grad", "vjp", "jvp", "linearize", "jacrev", "jacfwd", "jacobian", "hessian", "hvp", "vmap"],
        "Compiled steps": ["jit"],
        "Memory": [
            "checkpoint",
            "checkpoint_name",
            "checkpoint_policies",
            "checkpoint_scan",
            "checkpoint_sequential",
            "saved_value_hooks",
            "save_on_host",
        ],
        "Derivatives of your own": ["Function", "once_differentiable"],
        "Seeing every op": ["OpHook", "hooks", "detect_anomaly"],
        "Insight": ["Tape", "draw", "explain", "profile", "memory", "stats", "log_compiles"],
    },
    "tape.testing": {
        "Checks": ["check_gradients", "check_vjp", "check_custom_vjp", "gradient_property"],
        "What they say": ["Report", "ArgumentReport", "GradientMismatch"],
    },
    "tape.testing.strategies": {},
    "tape.rules": {
        "Rules": ["defvjp", "lookup", "registered", "Rule", "Domain", "Example"],
        "What has which rule": ["coverage", "Coverage"],
    },
    "tape.op_hooks": {},
    "tape.extend": {},
    "interop": {},
    "interop.optax": {},
    "interop.nnx": {},
    "interop.linen": {},
    "interop.equinox": {},
    "interop.torch": {},
    "interop.scipy": {},
    "interop.einops": {},
    "interop.saving": {},
    "interop.safetensors": {},
    "interop.orbax": {},
    "interop.autograd": {},
}
ABOUT = {
    "tape": "What a program on the tape is written with. Namespaces of arrays are [mirrored from JAX](/generated/namespaces.md).",
    "tape.testing": "Checks of gradients.",
    "tape.testing.strategies": "Hypothesis strategies for the arguments that matter to derivatives.",
    "tape.rules": "VJP rules of primitives; [coverage](/coverage.md) lists them.",
    "tape.op_hooks": "Op hooks that come with the tape.",
    "tape.extend": "What authors of optimizers and of bridges need beyond what users do.",
    "interop": "From JAX to the tape and back, and what is written to files.",
    "interop.optax": "Optax on Variables.",
    "interop.nnx": "Modules of Flax NNX.",
    "interop.linen": "Modules of Flax Linen.",
    "interop.equinox": "Modules of Equinox.",
    "interop.torch": "PyTorch's modules and functions on the tape, and functions of the tape inside PyTorch.",
    "interop.scipy": "SciPy's optimizers with exact derivatives.",
    "interop.einops": "Einops on Variables: after `import interop`, einops knows them; there is nothing to call.",
    "interop.saving": "Trees of Variables by name; `interop.save` and `interop.load` are its shorter names.",
    "interop.safetensors": "Files of safetensors, as `interop.save` writes them.",
    "interop.orbax": "Checkpoints of orbax, as `interop.save` writes them.",
    "interop.autograd": "Programs written for HIPS autograd; its NumPy and SciPy are `interop.autograd.numpy` and `interop.autograd.scipy`.",
}

MOCKED = [name for name in ["torch"] if importlib.util.find_spec(name) is None]  # it is large, and only its names are needed
PYTHONS = {"builtins", "interop.autograd.builtins"}  # which the facade has because HIPS autograd does


def results() -> str:
    """Return the page of what public functions return, though nobody makes it by its name."""
    classes = [
        tape.statistics.Stats,
        observing.SeenOp,
        entries.Entry,
        picture.Picture,
        explaining.Explanation,
        timing.TimerRow,
        timing.MemoryRow,
    ]
    names = [f"   {c.__module__}.{c.__qualname__}" for c in classes]
    return "\n".join(
        [
            "# Results",
            "",
            "What functions return and hooks are given.",
            "",
            "```{eval-rst}",
            ".. autosummary::",
            "   :toctree: names",
            "   :nosignatures:",
            "",
            *names,
            "```",
            "",
        ]
    )


def grouped(module: str) -> dict[str, list[str]]:
    """Return the public names of a module by group, each once."""
    loaded = importlib.import_module(module)
    names = [
        n
        for n in loaded.__all__
        if getattr(getattr(loaded, n), "__module__", "") not in PYTHONS and not isinstance(getattr(loaded, n), types.ModuleType)
    ]
    groups = {title: [n for n in chosen if n in names] for title, chosen in GROUPS[module].items()}
    further = [n for n in names if not any(n in chosen for chosen in groups.values())]
    return {title: chosen for title, chosen in {**groups, "Further" if groups else "Names": further}.items() if chosen}


def page(module: str) -> str:
    """Return the page of a module."""
    described = "automodule" if module.startswith("interop.") or module == "tape.extend" else "py:module"
    parts = [f"# {module}", "", ABOUT[module], "", "```{eval-rst}", f".. {described}:: {module}", "```", ""]
    for title, names in grouped(module).items():
        parts += [
            f"## {title}",
            "",
            "```{eval-rst}",
            f".. currentmodule:: {module}",
            "",
            ".. autosummary::",
            "   :toctree: names",
            "   :nosignatures:",
            "",
        ]
        parts += [f"   {name}" for name in names]
        parts += ["```", ""]
    return "\n".join(parts)


def write(folder: Path) -> None:
    """Write the pages that differ from what is there; those of packages that are not installed say so."""
    shutil.rmtree(folder, ignore_errors=True)  # with pages of names that are no more
    folder.mkdir(parents=True)
    for module in GROUPS:
        path = folder / f"{module}.md"
        with mock(MOCKED):
            text = page(module)
        _put(path, text)
    _put(folder / "results.md", results())


def _put(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
