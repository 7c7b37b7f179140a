"""One of two processes that share four devices, for :mod:`test_processes`; it prints what it found."""

import importlib.util
import json
import pathlib
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import interop
import tape
from tape.errors import TapeRuntimeError, TapeValueError

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
MESH = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
VALUES = np.arange(8, dtype=np.float32)


def put(*spec):
    return jax.make_array_from_callback(VALUES.shape, NamedSharding(MESH, PartitionSpec(*spec)), lambda index: VALUES[index])


def refused(look):
    try:
        look()
    except TapeRuntimeError as e:
        return "other processes" in str(e)
    return False


w, whole = tape.Variable(put("data")), tape.Variable(put())
found = {"refused": [], "losses": [], "launched": []}
for look in (
    w.numpy,
    w.tolist,
    lambda: w.item(3),
    lambda: np.asarray(w.detach()),
    lambda: pickle.dumps(w),
    lambda: (w * 2).numpy(),
):
    found["refused"].append(refused(look))
found["repr"] = repr(w)
found["gathered"] = process_allgather(w.value, tiled=True).tolist()
found["shards"] = [shard.data.tolist() for shard in w.value.addressable_shards]
found["whole"] = whole.numpy().tolist()
found["number"] = float((w * whole).sum())
found["element"] = float(w[5])

# Of each process another part of the steps takes long: what is compiled when may not depend on that.
burden = jnp.ones((300, 300)) if int(sys.argv[2]) else None
for step in range(12):
    for length in range(1, 3 + step % 3):
        w.zero_grad()
        h = w
        for _ in range(length):
            h = (h * whole).mean() * 1e-2 + h
        loss = (h**2).mean()
        loss.backward()
        with tape.no_grad():
            w -= 0.1 * w.grad
        if burden is not None:
            for _ in range(20):
                burden = burden @ burden * 1e-3
        found["losses"].append(float(loss))
    found["launched"].append([tape.stats().compiles, tape.stats().interpreted, tape.stats().hits])


def told(state, path):
    try:
        interop.save(path, state)
    except TapeValueError as e:
        return str(e)
    return ""


def saved(path):
    """Save what all have at one path, both at once, several times, and read it meanwhile and again."""
    interop.save(path, {"w": whole, "step": 0})
    between = []
    for step in range(1, 6):
        interop.save(path, {"w": whole, "step": step})
        between.append(interop.load(path)["w"].tolist())
    process_allgather(jnp.ones(1))  # both are done
    values = interop.load(path)
    return [between, values["w"].tolist(), values["step"], sorted(x.name for x in pathlib.Path(sys.argv[3]).iterdir())]


if all(map(importlib.util.find_spec, ("safetensors", "orbax"))):
    found["saved"] = saved(f"{sys.argv[3]}/run.safetensors")
    found["elsewhere"] = told({"w": w}, f"{sys.argv[3]}/run.safetensors")
    found["together"] = told({"w": whole}, f"{sys.argv[3]}/run")
print(json.dumps(found))
