"""``python -m pytriton_lite`` is the command ``pytriton-lite``."""

import sys

from pytriton_lite.cli import main

if __name__ == "__main__":
    sys.exit(main())
