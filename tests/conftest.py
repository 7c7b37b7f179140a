"""How JAX compiles for the tests, Hypothesis profiles, and the fixtures that all tests share."""

import contextlib
import ctypes
import gc
import importlib.metadata
import os
import pathlib
import shutil
import sys

# Compiling takes most of the suite's time, so it is done without optimisation, and once: what was compiled is kept from run to run, by all
# workers together.  Programs that the tests start inherit both.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]  # in one piece: 20 to 22 ms for 25
BEFORE = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11)  # what some of this was tried with
if BEFORE:  # later ones know no other emitters
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")  # 0.08 in place of 0.21 CPU seconds a program
COMPILED = pathlib.Path(__file__).parent.parent / ".pytest_cache" / "d" / "jax"  # pytest --cache-clear drops it
BYTECODE = COMPILED.with_name("bytecode")  # of Python's modules, where containers forbid to keep it beside them
SPACE = 4 << 30  # bytes of compiled programs after which the next run begins anew
if "--xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS]).strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
if BEFORE:  # in later ones, what a callback raises is told with the frames, and cut short for them
    os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")  # a thirtieth, for frames that are left out of tracebacks that tests expect
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # nobody reads lines in MLIR; they took a tenth of the suite's time

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # with it every worker and every program that a test starts compiles them again
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(BYTECODE)

import jax
import pytest
from hypothesis import settings
from jax.interpreters import mlir

import tape
from tape import layout
from tape.graph import trie
from tape.graph.scope import LOCAL, no_segment
from tape.programs import policy
from tape.sweeps import differentiation
from tests import idle

if BEFORE and jax.default_backend() == "cpu":  # with jaxlib 0.12, XLA's compiler has crashed then
    # JAX lowers each program in an MLIR context of its own, and loads into each all dialects that it knows: 3 of 10 ms, and 0.8 of 1.2 MB, of
    # a program that was compiled before.  What it writes for CPUs needs those that it registers one by one, and this one; others are an error.
    mlir.ir.Context.load_all_available_dialects = lambda context: context.dialects["func"]

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=50, derandomize=True, print_blob=True, deadline=None)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def pytest_configure(config):
    """Hand out files as they are listed, not those with the most tests first, so that no long one of few tests is the last."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Search for no garbage while tests are collected, nor later in what is there then: there is little, and looking took a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionstart(session):
    """Begin anew where the programs compiled in former runs take too much room; one of the processes does it, before there are workers."""
    if not hasattr(session.config, "workerinput"):
        with contextlib.suppress(OSError):  # it is not there yet, or another run uses it
            if sum(entry.stat().st_size for entry in os.scandir(COMPILED)) > SPACE:
                shutil.rmtree(COMPILED)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Wait for the compiler at once, and as long as it takes, so that what runs compiled does not depend on what else the machine does."""
    monkeypatch.setattr(policy, "STALL", 60.0)
    monkeypatch.setattr(policy, "PART", 1.0)
    monkeypatch.setattr(policy, "LIMIT", 60.0)
    monkeypatch.setattr(policy, "GAP", 0.0)


def pytest_runtest_setup():
    """Begin each test with an idle background, nothing pending, and room for structures: what counts, counts what is its own."""
    idle.settle()
    LOCAL.segment = no_segment  # what another test left there, because it failed or something still holds it, runs when somebody looks
    if trie._count > trie._limit // 2:
        drop_structures()


@pytest.fixture
def stats():
    """The counters of ``tape.stats()``, from zero."""
    counters = tape.stats()
    counters.reset()
    return counters


@pytest.fixture(params=["lazy", "eager"])
def tier(request):
    """Both tiers, in turns: recorded for later, and run at once."""
    with tape.eager() if request.param == "eager" else contextlib.nullcontext():
        yield request.param


MEMORY = 3 << 30  # bytes; what is dropped beyond them has to be lowered again
HEAP = 300_000  # objects; JAX's search for leaks, and every full collection, visits all that are not frozen


def resident():
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    statm = pathlib.Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def give_back():
    """Return what is free to the system, which the allocator of glibc does not (3.9 of 4 GB): else each module after the first drops all."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def drop_structures():
    """Forget the structures met so far, also what of them was frozen."""
    trie._ROOTS.clear()
    trie._count = 0
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory():
    """Keep what a module left away from the collector, and drop compiled programs where they are too many."""
    yield
    full = resident() > MEMORY
    if full:
        drop_structures()
        jax.clear_caches()
    if full or len(gc.get_objects()) > HEAP:
        gc.collect()
        gc.freeze()
    if full:
        give_back()


@pytest.fixture
def sweeps_through_python():
    """Have calls of backward() and gradients() that are found again go through Python, so that a test sees them."""
    if layout.NATIVE is not None:
        layout.NATIVE.sweeping(*[None] * len(differentiation._AGAIN))
    yield
    if layout.NATIVE is not None:
        layout.NATIVE.sweeping(*differentiation._AGAIN)
