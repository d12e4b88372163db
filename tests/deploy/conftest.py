"""`benchmarks/balancers.py` runs the balancers; its modules lie beside it, and are imported as it imports them."""

from __future__ import annotations

import sys

from tests.harness import PROJECT

sys.path.insert(0, str(PROJECT / "benchmarks"))
