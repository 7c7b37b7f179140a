"""What is left to JAX, and why: the primitives with a derivative, or of numbers with one, that have no record."""

from __future__ import annotations

_PLACED = "how it is transposed depends on the mesh and on what varies over which of its axes, which only JAX's trace knows"
_CHOSEN = "JAX has no derivative of it either"
_STATE = "changes an array in place: one made inside the op becomes a value before the sweep, one from outside is refused"
_EFFECT = "runs for its effect, and no value with a derivative comes out of it"
_HOST = "runs outside of JAX, where nobody knows its derivative"
_TYPE = "changes between a type of JAX's extensions and the one underneath"
_INSIDE = "stands in what JAX writes for itself while it differentiates"
_LOW = "multiplies numbers of so few bits that no cotangent has their type"
_NOWHERE = "no public function makes one, and JAX has no derivative of it"


def _each(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


LEFT = {
    **_each(
        _PLACED,
        "all_gather all_gather_invariant all_gather_reduced all_to_all pbroadcast pbroadcast_dynamic ppermute preduced psum psum_invariant "
        "pvary pcast ragged_all_to_all reduce_scatter reduced_vary_cast reduced_vary_cast_p reshard relayout shard_map "
        "unreduced_psum unreduced_reduce_scatter vary_unreduced_cast vary_unreduced_cast_p sharding_cast xla_pmap psend precv pgather "
        "psum_scatter_start collective_start collective_done global_array_to_host_local_array host_local_array_to_global_array",
    ),
    **_each(_CHOSEN, "pmax pmin"),
    **_each(_STATE, "accum_grad_in_ref addupdate empty_ref free_ref freeze get new_ref run_state swap box_get box_set new_box"),
    **_each(_EFFECT, "check dce_sink debug_callback debug_print inspect_sharding log_extend log_read new_log"),
    **_each(_HOST, "ffi_call io_callback pure_callback"),
    **_each(_TYPE, "from_edtype to_edtype"),
    **_each(_INSIDE, "call call_hi_primitive custom_lin custom_transpose_call eval_jaxpr linear_map remat_opt stage tie"),
    **_each(_LOW, "scaled_dot"),
    **_each(_NOWHERE, "select_and_scatter"),
    "schur": "JAX has no derivative of it: the vectors' signs and phases are free, and equal or complex eigenvalues have no smooth form",
    "random_clone": "hands on a key; of numbers, of which it can be asked too, JAX has no derivative",
    **_each("notes something for the compiler, and in the sweep what JAX notes there", "xla_metadata_call xla_metadata_value"),
    "layout_constraint": "lays a value out for the device, and its cotangent as JAX chooses",
    "with_memory_space_constraint": "puts a value into a memory of the device, and its cotangent as JAX chooses",
}
"""The reason for each, by the primitive's name; releases of JAX know more or fewer of them."""
