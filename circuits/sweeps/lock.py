"""Who may write into a folder: the processes of one launch, each block of lines by one of them at a time.

All locks are ranges of bytes of one file, held by the operating system for as long as the process lives, so a dead one holds none.

    byte 0              held for a moment by whoever looks around
    bytes 1 … 65535     one for each process at work, by its rank
    bytes 65536 …       one for each block of lines

1. A process that finds nobody at work writes the name of its launch into the file. One that finds others must be of their launch.
2. Processes started together (`accelerate launch`, `torchrun`, MPI) know their rank and their launch from the environment, and
   of one another only through these locks: nobody waits for one that is dead.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from circuits.errors import FileError
from circuits.sweeps.store import writing

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None

_RANKS: Final = (1, 2**16 - 1)  # first byte, number of bytes
_BLOCKS: Final = 2**16
_PATIENCE: Final = 30.0  # seconds
_RANK: Final = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
_SIZE: Final = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_LOCAL: Final = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")
_LAUNCH: Final = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "SLURM_JOB_ID")

_held_here: set[Path] = set()  # the system's locks do not keep a process from itself


@dataclass(frozen=True, slots=True)
class Launch:
    """This process among those that were started together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    name: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Launch:
        known = os.environ if environment is None else environment
        rank, size, local = (
            _number(known, names, missing) for names, missing in ((_RANK, 0), (_SIZE, 1), (_LOCAL, 0))
        )
        if size < 2:
            return cls(local_rank=local, name=f"one process, {socket.gethostname()} {os.getpid()}")
        if not 0 <= rank < min(size, _RANKS[1] - 1):
            raise FileError(
                f"this process is said to have rank {rank} of {size}; start it through accelerate launch or torchrun"
            )
        return cls(
            rank, size, local, f"{size} processes, " + " ".join(known.get(name, "-") for name in _LAUNCH)
        )


def _number(known: Mapping[str, str], names: tuple[str, ...], missing: int) -> int:
    given = next((known[name] for name in names if known.get(name)), None)
    try:
        return missing if given is None else int(given)
    except ValueError as why:
        raise FileError(
            f"{given!r} is no number of a process; start it through accelerate launch or torchrun"
        ) from why


class Lock:
    """An open lock file. It must not be opened a second time in this process: closing it would give up every lock."""

    def __init__(self, file: int, folder: Path) -> None:
        self._file, self._folder = file, folder

    def take_block(self, block: int) -> bool:
        """Whether this block is ours now."""
        return self._take(_BLOCKS + block)

    def leave_block(self, block: int) -> None:
        assert fcntl is not None
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _BLOCKS + block)

    @contextmanager
    def looking_around(self) -> Iterator[None]:
        """Alone for a moment."""
        assert fcntl is not None
        end = time.monotonic() + _PATIENCE
        while not self._take(0):
            if time.monotonic() > end:
                raise FileError(
                    f"another process has been starting a sweep in {self._folder} for {_PATIENCE:g} s; look what it does"
                )
            time.sleep(0.02)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, 0)

    def enter(self, launch: Launch) -> bool:
        """Take the place of this rank, or refuse; tells whether nobody else is at work. Only while looking around."""
        assert fcntl is not None
        if self._take(*_RANKS):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, launch.name.encode(), 0)
            self._keep_only(launch.rank)
            return True
        others = os.pread(self._file, 4096, 0).decode(errors="replace")
        if others != launch.name or not self._take(_RANKS[0] + launch.rank):
            raise FileError(
                f"another sweep is at work in {self._folder}; wait until it ends, or choose another folder"
            )
        return False

    def _keep_only(self, rank: int) -> None:
        """Of the places of all ranks this one alone."""
        assert fcntl is not None
        first, count = _RANKS
        if rank:  # a length of 0 would mean: all bytes from there on
            fcntl.lockf(self._file, fcntl.LOCK_UN, rank, first)
        fcntl.lockf(self._file, fcntl.LOCK_UN, count - rank - 1, first + rank + 1)

    def _take(self, start: int, count: int = 1) -> bool:
        assert fcntl is not None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, start)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
        except OSError as why:
            raise FileError(
                f"cannot lock {self._folder}: {why.strerror or why}; choose a folder on another disk"
            ) from why
        return True


@contextmanager
def opened_lock(folder: Path) -> Iterator[Lock]:
    """The lock of a folder, which is made where it is missing."""
    if fcntl is None:
        raise FileError("a sweep needs file locks as Unix systems have them; run it on one")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        place = folder.resolve()
        if place in _held_here:
            raise FileError(
                f"another sweep is at work in {folder}; wait until it ends, or choose another folder"
            )
        file = os.open(place / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    _held_here.add(place)
    try:
        yield Lock(file, folder)
    finally:
        _held_here.discard(place)
        os.close(file)
