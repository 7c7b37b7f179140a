"""What the figures mean, for the page; written by hand after profiling."""

NOTES = ""
