"""Programs of tests without root's privileges, before which alone a mode shuts a file or a directory."""

from __future__ import annotations

import os
import shutil

import pytest

UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
"""What a command begins with."""

needs_no_privileges = pytest.mark.skipif(shutil.which("setpriv") is None, reason="nothing takes root's privileges away")
