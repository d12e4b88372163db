"""The way in: a source for each scheme that fsspec reads."""

from __future__ import annotations

from pytriton_lite.plugins.fsspec.access import find_access
from pytriton_lite.plugins.fsspec.archive import WebArchive
from pytriton_lite.plugins.fsspec.filesystem import ObjectStore, WebDirectory, open_filesystem
from pytriton_lite.remote.source import Source, SourceTools
from pytriton_lite.remote.url import RemoteUrl


def open_source(url: RemoteUrl, tools: SourceTools) -> Source:
    """See `remote.source.OpenSource`."""
    access = find_access(url, tools.environ)
    filesystem = open_filesystem(url, access)
    if url.scheme != "https":
        return ObjectStore(filesystem, url, access)
    if url.is_archive:
        return WebArchive(filesystem, url, access, tools.folder, tools.is_closing)
    return WebDirectory(filesystem, url, access, tools.executor)
