"""Accounts: what is kept of runs and compilations for :func:`tape.stats`, and the words for it."""
