"""The list of mirrored names: what of ``jax.numpy``, ``jax.lax``, ``jax.nn``, ... is there under ``tape``."""

from __future__ import annotations

import importlib
import types
from pathlib import Path

ROOTS = ("numpy", "lax", "nn", "scipy", "random", "image", "ops")


def modules(name: str) -> dict[str, list[str]]:
    """Return the public names of a mirrored module that are no modules, and those of its submodules."""
    module = importlib.import_module(f"tape.{name}")
    found: dict[str, list[str]] = {name: []}
    for attribute in sorted(n for n in dir(module) if not n.startswith("_")):
        value = getattr(module, attribute)
        if isinstance(value, types.ModuleType):
            if value.__name__ == f"tape.{name}.{attribute}":
                found |= modules(f"{name}.{attribute}")
        else:
            found[name].append(attribute)
    return found


def write(path: Path) -> None:
    """Write the page, where it differs from what is there."""
    parts = [
        "# Mirrored namespaces",
        "",
        "These names are JAX's, and mean what they mean there: signatures and conventions are those of the function of the same name below `jax`,",
        "results are Variables, and what takes part in a gradient is recorded. What each is made of, and to which order its derivatives agree",
        "with `jax.grad`, stands in the [coverage](/coverage.md). The list is made from the installed JAX whenever this site is built.",
        "",
    ]
    for root in ROOTS:
        for name, names in modules(root).items():
            if names:
                parts += [f"## `tape.{name}`", "", f"{len(names)} names of `jax.{name}`.", "", " ".join(f"`{n}`" for n in names), ""]
    text = "\n".join(parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
