"""The command that fuzzes the decoders with coverage, and keeps in the corpora what reaches new code.

python -m tools.decoder_fuzz --seconds 60                 all targets, one after the other
python -m tools.decoder_fuzz --target http2 --seconds 600
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

_LARGEST_INPUT = 4096


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.decoder_fuzz", description="Fuzz the decoders with coverage."
    )
    parser.add_argument("--target", action="append", help="which decoder (default: all); may be given several times")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="of what is mutated (default 1)")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="where findings are written")
    parser.add_argument("--in-process", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        import atheris  # noqa: F401  # asked for before anything is begun
    except ImportError:
        print("atheris is not installed: pip install 'pytriton-lite[fuzz]'", file=sys.stderr)
        return 2
    if arguments.in_process is not None:
        _fuzz(arguments.target[0], arguments.in_process)
        return 0
    from tools.decoder_fuzz.targets import TARGETS

    unknown = sorted(set(arguments.target or ()) - TARGETS.keys())
    if unknown:
        parser.error(f"no target is called {unknown[0]!r}, expected one of {', '.join(TARGETS)}")
    arguments.findings.mkdir(parents=True, exist_ok=True)
    failed = [
        name
        for name in arguments.target or TARGETS
        if not _campaign(name, arguments.seconds, arguments.seed, arguments.findings.resolve())
    ]
    for name in failed:
        print(f"FOUND something in {name}: see {arguments.findings}")
    return 1 if failed else 0


def _campaign(name: str, seconds: int, seed: int, findings: Path) -> bool:
    """Fuzz one target in a process of its own, and keep the smallest inputs that reach all that was reached."""
    from tools.decoder_fuzz import corpus
    from tools.decoder_fuzz.targets import TARGETS

    with tempfile.TemporaryDirectory(prefix="decoder-fuzz-") as folder:
        known, small = Path(folder, "known"), Path(folder, "small")
        for directory in (known, small):
            directory.mkdir()
        begin = corpus.read(name) + list(TARGETS[name].seeds)
        for number, data in enumerate(begin):
            (known / str(number)).write_bytes(data)
        options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={_LARGEST_INPUT}", "-timeout=10"]
        options += ["-rss_limit_mb=2048", f"-artifact_prefix={findings}/{name}-", "-print_final_stats=1"]
        command = [sys.executable, "-m", "tools.decoder_fuzz", "--target", name, "--in-process"]
        ended = subprocess.run([*command, *options, str(known)], capture_output=True, text=True, check=False)
        is_clean = ended.returncode == 0
        runs = _statistic(ended.stderr, "stat::number_of_executed_units")
        if is_clean:
            # libFuzzer merges in processes that it starts by the name of its program, with options of its own.
            again = Path(folder, "again")
            again.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            again.chmod(0o700)
            merge = [*command, f"--program={again}", "-merge=1", str(small), str(known)]
            subprocess.run(merge, capture_output=True, check=True)
            kept = corpus.write(name, [path.read_bytes() for path in small.iterdir()] + list(TARGETS[name].seeds))
            print(f"{name}: {runs} inputs, {kept} kept in the corpus, nothing found", flush=True)
        else:
            print(f"{name}: {ended.stdout[-2000:]}{ended.stderr[-4000:]}", flush=True)
    return is_clean


def _statistic(text: str, name: str) -> str:
    found = [line.split()[-1] for line in text.splitlines() if line.startswith(name)]
    return found[-1] if found else "?"


def _fuzz(name: str, options: list[str]) -> None:
    """Run libFuzzer over one target; it ends the process."""
    import atheris

    program = sys.argv[0]
    if options and options[0].startswith("--program="):
        program = options.pop(0).partition("=")[2]
    with atheris.instrument_imports(include=["pytriton_lite", "hpack"]):
        from tools.decoder_fuzz.targets import TARGETS

    atheris.Setup([program, *options], TARGETS[name].run)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
