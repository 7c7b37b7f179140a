"""Sites: from which of the user's lines a run comes.

A run costs some microseconds, and to go up the frames would be a part of that.  So each program keeps its last site, with how many frames
above the user's one is; that one is asked for at once, and tells by its code and instruction whether the run comes from there again.
"""

from __future__ import annotations

import sys

from tape.accounts.records import Site
from tape.graph.lines import user_frame
from tape.statistics import STATS

_getframe = sys._getframe


def flushed(reason: str, site: Site | None) -> Site:
    """Count a run of what is pending; return the site that it comes from, which is ``site`` where that is the one."""
    if site is not None and site.reason is reason:
        try:
            frame = _getframe(site.depth)
        except ValueError:  # there are not so many frames
            return _found(reason)
        if frame.f_code is site.code and frame.f_lasti == site.instruction:
            site.count += 1
            return site
    return _found(reason)


def _found(reason: str) -> Site:
    """Look for the user's frame; count the run."""
    frame, depth = user_frame(_getframe(1))
    site = STATS.sites.of(reason, None if frame is None else (frame.f_code.co_filename, frame.f_lineno))
    if frame is not None:
        site.code, site.instruction, site.depth = frame.f_code, frame.f_lasti, depth
    site.count += 1
    return site
