"""How many files this process, and what it starts, may have open."""

from __future__ import annotations

import resource


def raise_file_limit() -> str:
    """Use as many descriptors as the system allows: connections and segments take them, and 1024 are soon gone.

    Where that is not to be had, a sentence about it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS says unlimited and means less
            return f"at most {soft} files can be open"
    return ""
