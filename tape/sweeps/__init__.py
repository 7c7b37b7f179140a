"""Sweeps: planned once per structure, written on the tape as further entries, and repeated as one step."""
