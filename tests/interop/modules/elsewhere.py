"""Another device of torch's, in the memory of the host: what an accelerator refuses is refused, and numbers are those of the host."""

import contextlib
from unittest import mock

import jax.numpy as jnp
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from interop.torch import programs, tensors

DEVICE = torch.device("meta")  # every build of torch knows it, and computes nothing there


class Elsewhere(torch.Tensor):
    """A tensor that says it is there."""

    @staticmethod
    def __new__(cls, held):
        held = held.resolve_conj().resolve_neg()
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=DEVICE)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {})


def _computed(func, args, kwargs):
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    there = {id(t.held): t for t in given if isinstance(t, Elsewhere)}
    name = func.overloadpacket.__name__
    if there and name not in ("_to_copy", "copy_") and any(t.dim() and not isinstance(t, Elsewhere) for t in given):
        msg = f"Expected all tensors to be on the same device, in {name}"
        raise RuntimeError(msg)
    device = kwargs.get("device")
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    results = func(*_held(args), **_held(kwargs))
    if not there if device is None else torch.device(device) != DEVICE:
        return results
    return tree_map(lambda t: there.get(id(t), t) if id(t) in there or type(t) is not torch.Tensor else Elsewhere(t), results)


def _held(tree):
    return tree_map(lambda t: t.held if isinstance(t, Elsewhere) else t, tree)


@contextlib.contextmanager
def pretended(jax_device):
    """Have torch compute on that device where it is told so; JAX is said to be on ``jax_device`` of torch's."""
    host = programs._Program.host

    def in_callbacks(*args):  # in threads of their own
        with _Mode():
            return host(*args)

    changed = {
        "_is_accelerated": lambda: jax_device == DEVICE,
        "_is_at": lambda _: jax_device,
        "_twin": lambda _: jax_device,
        "_by_dlpack": lambda array: Elsewhere(tensors.by_numpy(array)),
        "_to_jax": lambda tensor: jnp.array(tensors.to_numpy(tensor.cpu().contiguous())),
    }
    with mock.patch.multiple(tensors, **changed), mock.patch.object(programs._Program, "host", in_callbacks), _Mode():
        yield
