"""The command ``convert``: its options, its output, its exit status."""

from __future__ import annotations

from pathlib import Path

from pytriton_lite.commands import Arguments, Command, CommandError, Words, own_option
from pytriton_lite.convert.folder import NOTES, Conversion, ConversionError, write
from pytriton_lite.convert.mlserver import SETTINGS, convert_settings
from pytriton_lite.convert.torchserve import MANIFEST, convert_archive
from pytriton_lite.settings import TEXT, UsageError

_NAME = own_option("name", TEXT, "Name of the model's folder, where it should be another than before.", default="")

TO_DO = 2
"""The exit status where a folder was written that does not serve before somebody has done something."""


def run(arguments: Arguments) -> int:
    """Write the folder, and say what was not taken over. Raises UsageError and CommandError."""
    if len(arguments.words) != 2:
        raise UsageError(
            "error: convert needs what to convert and a repository, as in: pytriton-lite convert resnet.mar models"
        )
    source, repository = map(Path, arguments.words)
    try:
        conversion = _convert(source, str(arguments.value(_NAME)))
        written = write(conversion, repository, source.name)
    except ConversionError as error:
        raise CommandError(str(error)) from None
    folder = written[0].parent
    print(f"{folder}: {len(written)} files")
    for note in conversion.notes:
        print(f"\n  different: {note}")
    for text in conversion.remaining:
        print(f"\n  to do: {text}")
    ready = "It serves" if not conversion.remaining else "When that is done, it serves"
    print(f"\n{folder / NOTES} says the same. {ready}: pytriton-lite serve {repository}")
    return TO_DO if conversion.remaining else 0


def _convert(source: Path, name: str) -> Conversion:
    if not source.exists():
        raise ConversionError(f"'{source}' does not exist")
    if source.name == SETTINGS or (source / SETTINGS).is_file():
        return convert_settings(source, name=name)
    if source.suffix == ".war":
        raise ConversionError(
            f"'{source}' is a workflow of TorchServe; convert its models one by one, and write an ensemble of them"
        )
    if source.suffix == ".mar" or source.is_file() or (source / MANIFEST).is_file():
        return convert_archive(source, name=name)
    raise ConversionError(f"'{source}' has neither a {MANIFEST} nor a {SETTINGS}")


COMMAND = Command(
    usage=("convert SOURCE REPOSITORY [options]",),
    introduction="""\
Makes a model's folder in REPOSITORY of SOURCE, an archive of TorchServe (.mar) or a model-settings.json of MLServer, and says
what could not be taken over. What is made runs on Triton, too, and needs neither of the two. Nothing of the model is
executed. The exit status is 2 where something has to be done by hand before the model serves, and 1 where nothing was
written.""",
    options={_NAME.flag: _NAME},
    run=run,
    words=Words.FILES,
)
