"""The mirrored namespaces: JAX's functions as functions that record."""
