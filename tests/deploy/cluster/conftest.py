"""As in tests/deploy, for who names this folder alone."""

from __future__ import annotations

import sys

from tests.harness import PROJECT

sys.path.insert(0, str(PROJECT / "benchmarks"))
