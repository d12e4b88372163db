"""What the command line has to know of front ends in processes of their own, and nothing that is slow to import."""

from typing import Final

MOST_FRONT_ENDS: Final = 64
"""Far beyond what one engine can feed."""
