"""The checkers that are compared: each says of a function and its arguments ``pass``, ``fail``, ``inconclusive`` or ``error``."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import time
import warnings

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np

from tests.power.catalogue import CASES
from tests.power.labels import on_leaves

LIMIT = 120  # seconds of processor time for one case
LARGE = 500  # elements, above which gradcheck runs in its fast mode: the other one would take minutes


def tape_checker(fun, args, domain=None):
    """``tape.testing.check_gradients`` with its defaults, told where the function is meant if that is more than its arguments span."""
    import tape.testing

    try:
        report = tape.testing.check_gradients(fun, *args, domain=domain)
    except tape.testing.GradientMismatch as mismatch:
        return "fail", str(mismatch)
    return report.verdict, str(report)


def check_grads(fun, args):
    """``jax.test_util.check_grads`` at order 2; both modes where the function has both."""
    plain, leaves = on_leaves(fun, jax.tree.map(jnp.asarray, args))
    if not leaves:
        return "pass", ""
    try:
        try:
            jax.test_util.check_grads(plain, tuple(leaves), order=2)
        except TypeError as error:
            if "forward-mode" not in str(error):
                raise
            jax.test_util.check_grads(plain, tuple(leaves), order=2, modes=("rev",))
    except AssertionError as mismatch:
        return "fail", str(mismatch)
    return "pass", ""


def gradcheck(fun, args):
    """``torch.autograd.gradcheck`` and ``gradgradcheck`` of a ``torch.autograd.Function`` that calls JAX."""
    import torch

    plain, leaves = on_leaves(fun, jax.tree.map(jnp.asarray, args))
    tensors = [torch.from_numpy(np.array(leaf)).requires_grad_() for leaf in leaves]
    fast = sum(t.numel() for t in tensors) > LARGE

    def call(*values):
        outputs = _torch_function().apply(plain, *values)
        return tuple(o for o in outputs if o.requires_grad)

    try:
        torch.autograd.gradcheck(call, tensors, fast_mode=fast)
        torch.autograd.gradgradcheck(call, tensors, fast_mode=fast)
    except RuntimeError as mismatch:  # GradcheckError is one
        return "fail", str(mismatch)
    return "pass", ""


def _torch_function():
    """A ``torch.autograd.Function`` whose backward is another call of itself, on JAX's VJP."""
    import torch

    def to_torch(x):
        return torch.from_numpy(np.array(x))

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(ctx, fun, *tensors):
            ctx.fun = fun
            ctx.save_for_backward(*tensors)
            return tuple(map(to_torch, fun(*(jnp.asarray(t.detach().numpy()) for t in tensors))))

        @staticmethod
        def backward(ctx, *cotangents):
            tensors, fun = ctx.saved_tensors, ctx.fun

            def pull(*values):  # PyTorch's gradients of complex arguments are the conjugates of JAX's
                out, vjp = jax.vjp(fun, *values[: len(tensors)])
                grads = vjp([jnp.conj(c).astype(o.dtype) for c, o in zip(values[len(tensors) :], out, strict=True)])
                return [jnp.conj(g) for g in grads]

            return (None, *Call.apply(pull, *tensors, *cotangents))

    return Call


CHECKERS = {"tape.testing": tape_checker, "check_grads": check_grads, "gradcheck": gradcheck}


def available():
    """Names of the checkers that can run here."""
    found = ["check_grads"]
    if importlib.util.find_spec("tape.testing"):
        found.insert(0, "tape.testing")
    if importlib.util.find_spec("torch"):
        found.append("gradcheck")
    return found


def applies(checker, dtype):
    """Tell whether ``checker`` is meant for ``dtype``: gradcheck asks for double precision."""
    return checker != "gradcheck" or dtype == "float64"


class _TooSlowError(Exception):
    """A checker did not answer in time."""


@contextlib.contextmanager
def _within(seconds):
    def stop(*_):
        raise _TooSlowError

    old = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # processor time, so that a busy machine changes no verdict
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def judge(checker, case, dtype):
    """What ``checker`` says of ``case`` in ``dtype``: a dictionary for the table."""
    start = time.process_time()
    with jax.enable_x64(dtype == "float64"):
        fun, args = case.make(dtype)
        try:
            with _within(LIMIT):
                told = {"domain": case.domain} if checker == "tape.testing" else {}
                verdict, message = CHECKERS[checker](fun, args, **told)
        except _TooSlowError:
            verdict, message = "timeout", f"more than {LIMIT} s"
        except Exception as error:  # noqa: BLE001 - whatever a checker stumbles over is its answer
            verdict, message = "error", f"{type(error).__name__}: {error}"
    seconds = time.process_time() - start
    found = {"case": case.name, "kind": case.kind, "wrong": case.wrong, "shows": case.shows, "dtype": dtype}
    return found | {"checker": checker, "verdict": verdict, "seconds": seconds, "message": message}


def judge_all(lines):
    """Judge some (checker, name of a case, dtype) in this process."""
    warnings.simplefilter("ignore")  # the cases overflow on purpose
    named = {case.name: case for case in CASES}
    return [judge(checker, named[name], dtype) for checker, name, dtype in lines]


def good(line):
    """Tell whether a verdict is what the label asks for; an error counts as a kill, and as a false alarm."""
    return (line["verdict"] in {"fail", "error"}) == line["wrong"] and line["verdict"] != "timeout"
