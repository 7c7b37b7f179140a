"""Variables: the handles that users hold, and what can be done with one."""
