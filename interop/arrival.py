"""Libraries that ask who handles an array are told of Variables when they are imported, before or after ``interop``: einops."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from tape.errors import TapeImportError


@contextlib.contextmanager
def needing(package: str, module: str, extra: str = "") -> Iterator[None]:
    """While a library is imported for a module of ours: where it is not there, say what to install."""
    try:
        yield
    except ImportError as e:
        msg = f"interop.{module} needs the package {package}, which is not installed; run pip install 'jax-tape[{extra or module}]'"
        raise TapeImportError(msg, name=e.name, path=e.path) from e


def expect(library: str, module: str) -> None:
    """Import a module of ours as soon as a library is imported; nothing is imported where it never is."""
    if library in sys.modules:
        _greet(module)
    else:
        sys.meta_path.insert(0, _Arrival(library, module))


def _greet(module: str) -> None:
    with contextlib.suppress(ImportError, AttributeError):  # of another release: whoever imports the module itself is told
        importlib.import_module(module)


class _Arrival(importlib.abc.MetaPathFinder):
    """Finds one library where the others do, and nothing else."""

    def __init__(self, library: str, module: str) -> None:
        self.awaited, self.module = library, module

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002 - Python's
        if name != self.awaited:
            return None
        with contextlib.suppress(ValueError):  # another thread was quicker
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                _greet(self.module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec
