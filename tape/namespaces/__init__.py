"""Namespaces: the modules that mirror those of JAX, filled at first use."""
