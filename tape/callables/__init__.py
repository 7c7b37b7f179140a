"""Callables given to ops: what they depend on, the Variables that they capture, and their traces."""
