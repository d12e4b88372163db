"""Shared-memory regions that clients register, by name: system ones here, those on a GPU as far as they can be opened.

What the operator allows is checked here and nowhere else, for every protocol:

* Nothing, unless client shared memory is allowed.
* A key is one name in the system's shared memory. It is never a path: ``..``, slashes and links lead nowhere.
* Names of our own segments and of Triton's are refused, and what `RegionLimits` leaves out.
* What a name leads to must be an ordinary segment, neither a pipe nor a directory nor a device.

A system region is a descriptor, never a mapping (ipc/region.py); one on a device is a handle, which only other processes open
(device_helper.py). Whoever uses a region keeps its segment, so one may be unregistered at any moment, as newer Triton has it
(HTTP spec, section 12).
"""

from __future__ import annotations

import logging
import os
import resource
import stat
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor, Window
from pytriton_lite.ipc.device import HANDLE_BYTES
from pytriton_lite.ipc.device_segment import DeviceSegment, is_on_device
from pytriton_lite.ipc.messages import INLINE_BYTES
from pytriton_lite.ipc.region import ClientSegment

logger = logging.getLogger(__name__)

CUDA_HANDLE_BYTES = HANDLE_BYTES

CudaOpener = Callable[[bytes, int, int], Awaitable[DeviceSegment]]
"""Handle, device and byte size to the memory, which was opened once. Raises InferenceError when that cannot be."""

_SHM_FOLDER = "/dev/shm"
_TRITON_PREFIX = "triton_python_backend_shm_region_"
_UINT64_MAX = (1 << 64) - 1
_MOST_TEXT_BYTES = 64 << 20
"""How many bytes of BYTES inputs one request may have in regions, as many as a body of HTTP by default: they are read in the
loop, which does nothing else then. Pages that their client has never touched take as long, and cost it nothing."""
_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


@dataclass(frozen=True)
class RegionLimits:
    """What the operator allows beside the server's own rules.

    ``key_prefixes``: a key, without its leading slashes, begins with one of them; empty allows every key. ``max_byte_size``: no
    region reaches beyond that many bytes of its segment, offset included; 0 is no limit.
    """

    key_prefixes: tuple[str, ...] = ()
    max_byte_size: int = 0


@dataclass(frozen=True)
class SystemRegion:
    """``byte_size`` bytes from ``offset`` on of the POSIX segment ``key``, which is as the client wrote it."""

    name: str
    key: str
    offset: int
    byte_size: int
    segment: ClientSegment = field(repr=False, compare=False)


@dataclass(frozen=True)
class CudaRegion:
    """Memory of a client on a device, which whoever needs it opens outside of this process."""

    name: str
    device_id: int
    byte_size: int
    segment: DeviceSegment = field(repr=False, compare=False)


_Kind = TypeVar("_Kind", SystemRegion, CudaRegion)

_KIND_NAMES: dict[type, str] = {SystemRegion: "system", CudaRegion: "CUDA"}


def _nothing(name: str) -> None:
    """Nobody listens."""


class Regions:
    """The regions of one server. Everything raises InferenceError with Triton's texts (HTTP spec, section 12)."""

    def __init__(
        self,
        *,
        is_allowed: bool,
        limits: RegionLimits | None = None,
        own_prefixes: Iterable[str] = (),
        open_cuda: CudaOpener | None = None,
    ) -> None:
        """*own_prefixes* begin the names of the server's own segments. Without *open_cuda* no CUDA region is registered."""
        self._is_allowed = is_allowed
        self._limits = limits or RegionLimits()
        self._reserved = (*own_prefixes, _TRITON_PREFIX)
        self._open_cuda = open_cuda
        self._regions: dict[str, SystemRegion | CudaRegion] = {}
        self._opening = 0
        self.on_change: Callable[[str], None] = _nothing
        """Called with the name of a region that was registered or is not any more."""

    # ------------------------------------------------------------------------------------------ registration

    def check_can_register(self, name: str, kind: str) -> None:
        """Refuse what needs no look at the rest of a request. *kind*, ``system`` or ``cuda``, is for the text."""
        self._check_allowed()
        if not name:
            text = f"'region name' is necessary to register {kind} shared memory region"
            raise InferenceError(ErrorCode.INVALID_ARG, text)
        if name in self._regions:
            raise InferenceError(ErrorCode.ALREADY_EXISTS, f"shared memory region '{name}' already in manager")
        if len(self._regions) + self._opening >= _most_regions():
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"failed to register shared memory region '{name}': {len(self._regions)} regions are registered, more "
                "would take the descriptors that connections need. Raise the server's limit of open files (ulimit -n).",
            )

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open the segment *key* and know a window of it as *name*."""
        self.check_can_register(name, "system")
        component = self._component(name, key)
        end = offset + byte_size
        segment = _open(component, key)  # before the sizes are looked at, as in Triton
        if offset < 0 or byte_size < 0:
            raise _invalid_window(name)
        if byte_size == 0:
            text = f"failed to register shared memory region '{name}': unable to process address spaceInvalid argument"
            raise InferenceError(ErrorCode.INVALID_ARG, text)
        self._check_limit(name, end)
        if end > segment.nbytes:
            raise _invalid_window(name)
        self.put(SystemRegion(name, key, offset, byte_size, segment))

    async def register_cuda(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """Have memory opened that another process exported, and know it as *name*."""
        self.check_can_register(name, "cuda")
        if self._open_cuda is None:
            raise InferenceError(
                ErrorCode.INVALID_ARG, f"failed to register CUDA shared memory region: '{name}', GPUs not supported"
            )
        invalid = InferenceError(ErrorCode.INVALID_ARG, "failed to register shared memory region: invalid args")
        if len(raw_handle) != CUDA_HANDLE_BYTES or byte_size <= 0:
            raise invalid
        self._check_limit(name, byte_size)
        self._opening += 1  # what is being opened has its place, too
        try:
            segment = await self._open_cuda(raw_handle, device_id, byte_size)
        except InferenceError as error:
            # Triton's text, which clients may know; why is for the log of whoever runs the server.
            logger.warning("CUDA shared memory region '%s' is not registered: %s", name, error.message)
            raise invalid from error
        finally:
            self._opening -= 1
        self.check_can_register(name, "cuda")  # somebody may have been quicker
        self.put(CudaRegion(name, device_id, byte_size, segment))

    def put(self, region: SystemRegion | CudaRegion) -> None:
        """Know a region that was checked, here or in the process that had it registered."""
        self._regions[region.name] = region
        self.on_change(region.name)

    def get(self, name: str) -> SystemRegion | CudaRegion | None:
        """The region of that name, of either kind."""
        return self._regions.get(name)

    def names(self) -> list[str]:
        """Names of all regions."""
        return list(self._regions)

    def forget(self, name: str) -> None:
        """Know *name* no more; nothing happens where it is not known."""
        if self._regions.pop(name, None) is not None:
            self.on_change(name)

    def unregister_system(self, name: str = "") -> None:
        """Forget a system region, or all for ""; an unknown one is no error. Requests that use it keep its segment."""
        self._unregister(SystemRegion, name)

    def unregister_cuda(self, name: str = "") -> None:
        """`unregister_system` for CUDA regions."""
        self._unregister(CudaRegion, name)

    def close(self) -> None:
        """Forget everything, when the server ends."""
        self._regions.clear()

    # ------------------------------------------------------------------------------------------ use

    def system_status(self, name: str = "") -> list[SystemRegion]:
        """The system region *name*, or all for "", sorted by name. Raises NOT_FOUND for an unknown one."""
        return self._status(SystemRegion, name)

    def cuda_status(self, name: str = "") -> list[CudaRegion]:
        """`system_status` for CUDA regions."""
        return self._status(CudaRegion, name)

    def window(self, region: str, offset: int, byte_size: int) -> Window:
        """The *byte_size* bytes from *offset* on of a region, for one tensor; the segment stays open as long as it lives.

        Raises InferenceError for a region that is not there, not so large, or was made smaller by its owner.
        """
        found = self._regions.get(region)
        if found is None:
            raise InferenceError(ErrorCode.NOT_FOUND, f"Unable to find shared memory region: '{region}'")
        _check_inside(found, offset, byte_size)
        if isinstance(found, CudaRegion):
            return Window(found.segment, offset, byte_size)
        start = found.offset + offset
        _check_still_there(found, start + byte_size)
        return Window(found.segment, start, byte_size)

    def tensor(
        self, name: str, datatype: DataType, shape: tuple[int, ...], *, region: str, offset: int, byte_size: int
    ) -> Tensor:
        """An input tensor that lies in a region. Raises InferenceError as `window` does.

        What travels inside messages anyway, and texts, whose lengths have to be checked, are read here and now. Where anything
        else lies is all that the server knows; the worker looks there.
        """
        segment, start, nbytes = self.window(region, offset, byte_size)
        if isinstance(segment, DeviceSegment):
            return Tensor(name, datatype, shape, None, nbytes, home=(segment, start))
        if nbytes <= INLINE_BYTES or datatype is dtypes.BYTES:
            return Tensor(name, datatype, shape, segment.read(start, nbytes))
        return Tensor(name, datatype, shape, None, nbytes, home=(segment, start))

    def add_input(
        self,
        request: InferenceRequest,
        name: str,
        datatype: DataType,
        shape: tuple[int, ...],
        *,
        region: str,
        offset: int,
        byte_size: int,
    ) -> None:
        """Give *request* the input that is `tensor`.

        Raises InferenceError as that does, and for texts where those of the request are too much to be read.
        """
        if datatype is dtypes.BYTES and byte_size > 0:
            request.region_text_bytes += byte_size
            if request.region_text_bytes > _MOST_TEXT_BYTES:
                raise InferenceError(
                    ErrorCode.INVALID_ARG,
                    f"input '{name}': BYTES inputs in shared memory may have {_MOST_TEXT_BYTES} bytes in one request",
                )
        tensor = self.tensor(name, datatype, shape, region=region, offset=offset, byte_size=byte_size)
        request.inputs.append(tensor)
        request.on_device = request.on_device or is_on_device(tensor)

    def add_window(self, request: InferenceRequest, name: str, region: str, offset: int, byte_size: int) -> None:
        """Have output *name* of *request* go into `window`. Raises InferenceError as that does."""
        request.output_windows = request.output_windows or {}
        window = request.output_windows[name] = self.window(region, offset, byte_size)
        request.on_device = request.on_device or isinstance(window.segment, DeviceSegment)

    # ------------------------------------------------------------------------------------------ rules

    def _check_allowed(self) -> None:
        if not self._is_allowed:
            raise InferenceError(ErrorCode.UNSUPPORTED, _DISABLED)

    def _component(self, name: str, key: str) -> str:
        """The one name that *key* stands for; slashes in front are optional, as for Triton."""
        component = key.lstrip("/")
        if component in ("", ".", "..") or "/" in component or "\0" in component or not _is_unicode(component):
            raise InferenceError(
                ErrorCode.INVALID_ARG, f"cannot register shared memory region '{name}' - invalid shm key '{key}'"
            )
        for prefix in self._reserved:
            if component.startswith(prefix):
                raise InferenceError(
                    ErrorCode.INVALID_ARG,
                    f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved "
                    f"prefix '{prefix}'",
                )
        allowed = self._limits.key_prefixes
        if allowed and not component.startswith(allowed):
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"cannot register shared memory region '{name}' with key '{key}' as this server allows only keys that "
                f"begin with {' or '.join(map(repr, allowed))} (--client-shm-key-prefix)",
            )
        return component

    def _check_limit(self, name: str, end: int) -> None:
        limit = self._limits.max_byte_size
        if limit and end > limit:
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"failed to register shared memory region '{name}': offset and byte size reach to {end} bytes, this "
                f"server allows {limit} (--client-shm-max-byte-size)",
            )

    def _unregister(self, kind: type[_Kind], name: str) -> None:
        self._check_allowed()
        for key in [name] if name else list(self._regions):
            if isinstance(self._regions.get(key), kind):
                self.forget(key)

    def _status(self, kind: type[_Kind], name: str) -> list[_Kind]:
        if not name:
            found = [region for region in self._regions.values() if isinstance(region, kind)]
            return sorted(found, key=lambda region: region.name)
        region = self._regions.get(name)
        if isinstance(region, kind):
            return [region]
        label = _KIND_NAMES[kind]
        if region is None:
            text = f"Unable to find {label.lower()} shared memory region: '{name}'"
        else:
            other = _KIND_NAMES[type(region)]
            text = f"The region named '{name}' is registered as {other} shared memory, not {label} shared memory"
        raise InferenceError(ErrorCode.NOT_FOUND, text)


def _is_unicode(text: str) -> bool:
    """Whether *text* can be shown again: bytes of a JSON string that are not UTF-8 arrive as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _most_regions() -> int:
    """Half of the files that may be open: a client that never unregisters must not keep others from connecting."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit // 2


def _check_inside(region: SystemRegion | CudaRegion, offset: int, byte_size: int) -> None:
    """Refuse a tensor that does not lie in *region*. Triton's integers have 64 bits, ours have no end; its texts remain."""
    if not 0 <= offset < region.byte_size:
        raise InferenceError(ErrorCode.INVALID_ARG, f"Invalid offset for shared memory region: '{region.name}'")
    if offset + byte_size > _UINT64_MAX:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value "
            f"({_UINT64_MAX}) for region '{region.name}'",
        )
    if byte_size < 0 or offset + byte_size > region.byte_size:
        raise InferenceError(
            ErrorCode.INVALID_ARG, f"Invalid offset + byte size for shared memory region: '{region.name}'"
        )


def _check_still_there(region: SystemRegion, end: int) -> None:
    """Refuse a segment that its owner has truncated since: better here than by a worker in the middle of a batch."""
    # The size by a seek, which costs a third of what a stat does: nobody reads or writes at a position.
    nbytes = os.lseek(region.segment.fd, 0, os.SEEK_END)
    if end > nbytes:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"shared memory region '{region.name}' was made smaller: {end} bytes of '{region.key}' are needed, it has "
            f"{nbytes}",
        )


def _invalid_window(name: str) -> InferenceError:
    return InferenceError(ErrorCode.INVALID_ARG, f"failed to register shared memory region '{name}': invalid args")


def _open(component: str, key: str) -> ClientSegment:
    """The segment of that name. Raises InferenceError(INTERNAL), as Triton does, for what cannot be opened or is none."""
    try:
        fd = _shm_open(component)
    except OSError as error:
        raise _not_opened(key) from error
    status = os.fstat(fd)
    # To macOS shared memory is no file at all, so nothing else can be behind a name there.
    if sys.platform == "linux" and not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise _not_opened(key)
    return ClientSegment(fd, status.st_size)


def _not_opened(key: str) -> InferenceError:
    return InferenceError(ErrorCode.INTERNAL, f"Unable to open shared memory region: '{key}'")


def _shm_open(component: str) -> int:
    """shm_open, which on Linux is a file's open. Not blocking, since anybody can put a pipe there."""
    if sys.platform == "linux":
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        return os.open(f"{_SHM_FOLDER}/{component}".encode(), flags)  # whatever the locale: clients say it in UTF-8
    import _posixshmem

    return int(_posixshmem.shm_open(f"/{component}", os.O_RDWR, 0o600))
