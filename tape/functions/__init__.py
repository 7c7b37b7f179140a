"""Functions of the user's own: ``tape.Function`` and what it becomes on the tape and for JAX."""
