"""Steps: what ``tape.jit`` compiles, with the Variables that it reads and writes."""
