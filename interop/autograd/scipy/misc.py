"""``logsumexp`` by its old name."""

from interop.autograd.scipy.special import logsumexp

__all__ = ["logsumexp"]
