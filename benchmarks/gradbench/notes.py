"""What the figures mean, for the page; written by hand after profiling."""

NOTES = """## Where the tape is slow, and why

- *Small functions of many operations* (`det`, `llsq`, `ode`, `lstm`, `ht`): recording an operation costs about half a microsecond, in every
  evaluation, and finding the program some 20 microseconds more (`hello` is nothing else). A function that JAX has compiled knows nothing of its
  loops any more: 331 operations of `ode` on 50 numbers are recorded in 160 us, and run in 10. This is the price of plain Python. Where arrays
  are large, or the loop's body is, it disappears.
- *Before compiling.* A structure is interpreted until it has cost a share of what its compilation will, and while the background compiles it. So
  the first evaluation is the quickest of both compiled systems, and some dozens follow that are not at full speed.
- *NumPy arrays in loops.* `power * t` with a NumPy array `t` copies it in each turn, as it may change until the next one, and hands the program one
  argument for each: `llsq` with 128 turns took 2.7 times as long to record and 4.4 times as long to run as with `tape.constant(t)`, which the
  evals use for all data.
- *Looks.* `if x[1] <= 0`, `while norm > 1e-5`: a Python decision ends a program. `particle` takes one for each of its 353 Euler steps. In seconds
  of one core, a gradient through such a trajectory of gradients takes 0.12 on the tape, 0.23 in PyTorch and 0.45 in HIPS autograd.
- *Forward mode* (`ff`, `rf`) is made of two reverse sweeps, direction by direction; `rr` is the natural choice.

JAX has no reverse mode through `while_loop`, so that `rr` and `rf` are not there in its column; PyTorch and HIPS autograd do `rr`.
"""
