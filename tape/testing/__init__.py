"""Checks of gradients that can be trusted: find wrong ones, blame no right one, say what is wrong."""

from __future__ import annotations

from tape.errors import GradientMismatch
from tape.testing.checking import check_custom_vjp, check_gradients, check_vjp
from tape.testing.report import ArgumentReport, Report

__all__ = ["ArgumentReport", "GradientMismatch", "Report", "check_custom_vjp", "check_gradients", "check_vjp"]
