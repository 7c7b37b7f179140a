"""Where the value of a Variable lies: its pieces on devices, and whether this process has all of them, as :class:`jax.Array` says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from tape.errors import ConcretizationError, TapeIndexError, TapeTypeError
from tape.graph.scope import note_given
from tape.programs.program import look
from tape.sweeps.seeds import describe
from tape.variables.conversion import Convertible, as_array


class Placed(Convertible):
    """The part of a Variable that says where its value lies; what it hands out are arrays of JAX, through which no gradient flows."""

    __slots__ = ()

    @property
    def addressable_shards(self) -> Sequence[Any]:
        """The pieces of the value that lie on devices of this process (``jax.Shard``: device, index, data)."""
        note_given(self)
        return _placed(self, "addressable_shards").addressable_shards

    @property
    def global_shards(self) -> Sequence[Any]:
        """The pieces of the value on all devices; ``data`` is None for those of other processes."""
        note_given(self)
        return _placed(self, "global_shards").global_shards

    def addressable_data(self, index: int) -> jax.Array:
        """Return the piece of the value on one device of this process, a ``jax.Array``; ``index`` counts those devices."""
        array = _placed(self, "addressable_data")
        try:
            piece = array.addressable_data(index)
        except IndexError as e:
            count = len(array.addressable_shards)
            here = f"this process has {count} of its {len(array.sharding.device_set)} pieces"
            msg = f"addressable_data: there is no piece {index} of a Variable ({describe(self)}); {here}, counted from 0"
            raise TapeIndexError(msg) from e
        except TypeError as e:
            msg = f"addressable_data: the number of a device is an int, got {index!r} ({type(index).__name__})"
            raise TapeTypeError(msg) from e
        note_given(self)
        return piece

    @property
    def committed(self) -> bool:
        """Whether the value was put on its device, so that ops on it run there; where not, JAX chooses."""
        return bool(_placed(self, "committed").committed)

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process has all of the value; where not, each process can look at its own pieces only."""
        return bool(_placed(self, "is_fully_addressable").is_fully_addressable)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device that holds the value has all of it."""
        return bool(_placed(self, "is_fully_replicated").is_fully_replicated)

    def copy_to_host_async(self) -> None:
        """Run what is pending, and begin to copy the value to the host, where ``numpy()``, ``item()`` and printing will want it."""
        _placed(self, "copy_to_host_async").copy_to_host_async()


def _placed(variable: Placed, what: str) -> jax.Array:
    """Return the array that holds the value.

    Raises:
        ConcretizationError: there is none, inside a JAX transformation.

    """
    value = look(variable)
    if isinstance(value, jax.core.Tracer):
        msg = (
            f"{what}: where the value of a Variable ({describe(variable)}) lies is not known inside a JAX transformation; ask outside of "
            "it, or read jax.typeof(v.value).sharding"
        )
        raise ConcretizationError(msg)
    return as_array(value)
