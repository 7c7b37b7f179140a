"""What the figures mean, for the page; written by hand after profiling."""

NOTES = """## Where the tape is slow, and why

- *Small functions of many operations* (`det`, `llsq`, `ode`, `gmm`): recording an operation costs a tenth to half a microsecond, in every evaluation,
  and finding the program some microseconds more (`hello` is nothing else). What JAX has compiled knows nothing of its loops
  any more: the 331 operations of `ode` on 50 numbers are recorded in some 100 us, and JAX runs them in 6. This is the price of plain Python; where
  arrays are large it disappears. In PyTorch `llsq` (a matrix of powers) and `gmm` (all components at once) are written without loops.
- *Before compiling.* A structure is interpreted until that has cost a share of what its compilation will, and while the background compiles it.
  So first evaluations take a fraction of JAX's, and dozens follow that are not at full speed: by itself `lstm objective` (2 layers, 32 characters,
  2 600 operations) is interpreted in 8 ms 100 times, compiled in 1.5 s, and takes 1.2 ms from then on. The figures are of what comes after, but
  where structures are new for ever (`saddle`, `particle`): there the tape is timed after a while. A second program, in which numbers that stay the
  same are constants, is compiled after that; on one core it shares that with what is timed.
- *NumPy arrays in loops.* `power * t` with a NumPy array `t` copies it in each turn, as it may change until the next one, and hands the program one
  argument for each: `llsq` with 128 turns took 2.7 times as long to record and 4.4 times as long to run as with `tape.constant(t)`, which the
  evals use for all data.
- *Looks* (`saddle`, `particle`): `while norm > 1e-5` is a Python decision, and ends a program; what comes after is another structure, small, and in a
  descent of another length each time. `saddle` looks 1 037 times in some 32 ms: 31 us for each program. A trajectory of `particle` does better: a
  gradient through 353 steps, each with a gradient, takes 0.12 s of one core, 0.23 in PyTorch and 0.45 in HIPS autograd.
- *Forward mode* (`ff`, `rf`) is made of two reverse sweeps, direction by direction; `rr` is the natural choice.

JAX has no reverse mode through `while_loop`, so that `rr` and `rf` are not there in its column; PyTorch and HIPS autograd do `rr`.
"""
