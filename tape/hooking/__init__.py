"""Hooks: functions of the user's that see gradients, ops, or what is kept for sweeps, and may put something else in their place."""
