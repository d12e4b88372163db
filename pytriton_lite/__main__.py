"""The command ``pytriton-lite``, also as ``python -m pytriton_lite``."""

import sys


def main() -> int:
    """Run the command; the exit status."""
    if sys.platform == "win32":
        # Before anything is imported: half of it is not there.
        print(
            "pytriton-lite runs on Linux and macOS; on Windows, use it in WSL 2 or in a Linux container",
            file=sys.stderr,
        )
        return 1
    try:
        from pytriton_lite.cli import main as run
    except KeyboardInterrupt:
        return 130  # as `run` does

    return run()


if __name__ == "__main__":
    sys.exit(main())
