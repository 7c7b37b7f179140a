"""What the figures mean, for the page; written by hand after profiling."""

NOTES = """## Where the tape is slow, and why

- *Small functions of many operations* (`det`, `llsq`, `ode`): recording an operation costs about half a microsecond, in every evaluation, and
  finding the program some 20 microseconds more (`hello` is nothing else). What JAX has compiled knows nothing of its loops any more: the 331
  operations of `ode` on 50 numbers are recorded in some 250 us, and JAX runs them in 10. This is the price of plain Python; where arrays are
  large it disappears.
- *Before compiling.* A structure is interpreted until that has cost a share of what its compilation will, and while the background compiles it.
  So first evaluations take a fraction of JAX's, and dozens follow that are not at full speed: by itself `lstm objective` (2 layers, 32 characters,
  2 600 operations) is interpreted in 20 ms 110 times, compiled in 4 s, and takes 2.1 ms from then on. The figures are of what comes after, but
  where structures are new for ever (`saddle`, `particle`): there the tape is timed after a while.
- *NumPy arrays in loops.* `power * t` with a NumPy array `t` copies it in each turn, as it may change until the next one, and hands the program one
  argument for each: `llsq` with 128 turns took 2.7 times as long to record and 4.4 times as long to run as with `tape.constant(t)`, which the
  evals use for all data.
- *Looks* (`saddle`, `particle`): `while norm > 1e-5` is a Python decision, and ends a program; what comes after is another structure, small, and in a
  descent of another length each time. `saddle` on the tape takes some 2 ms for each of 338 evaluations. A trajectory of `particle` does better: a
  gradient through 353 steps, each with a gradient, takes 0.12 s of one core, 0.23 in PyTorch and 0.45 in HIPS autograd.
- *Forward mode* (`ff`, `rf`) is made of two reverse sweeps, direction by direction; `rr` is the natural choice.

JAX has no reverse mode through `while_loop`, so that `rr` and `rf` are not there in its column; PyTorch and HIPS autograd do `rr`.
"""
