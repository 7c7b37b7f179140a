"""Rules of primitives that hold a jaxpr, which sweep it: importing this module enters them."""

from __future__ import annotations

from tape.ops.rules import calls, composites, control_flow, reflections
