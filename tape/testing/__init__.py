"""Checks of gradients that can be trusted."""
