"""The exclusive lock that one process keeps on a database file for its whole life."""

from __future__ import annotations

import fcntl
import json
import os
import weakref
from pathlib import Path

from lineside_service.stores.errors import StoreOpenError


class FileLock:
    """An flock on the file `<database>.lock` beside the database, with the owner's name in it.

    The kernel gives it back when the process ends, kill -9 included; a child that a tool forked has no part
    in it. The file stays: removing it would let two processes lock two files of the same name.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        me = weakref.ref(self)

        def leave_it_to_the_parent() -> None:
            if (lock := me()) is not None:
                lock.release()  # closes the child's copy; the lock itself stays until the parent's is closed

        os.register_at_fork(after_in_child=leave_it_to_the_parent)

    @classmethod
    def take(cls, database: Path, incarnation: str) -> FileLock:
        """Lock the database for this process. Raises StoreOpenError, which names the owner."""
        path = database.with_name(database.name + ".lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreOpenError(
                f"cannot create the lock file {path}: {error.strerror}; "
                "the service needs to write in the directory of its database"
            ) from error
        try:
            _lock(descriptor, database, path)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "incarnation": incarnation}).encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise StoreOpenError(f"cannot write the lock file {path}: {error.strerror}") from error
        except StoreOpenError:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def release(self) -> None:
        """Let the next process have the database. Does nothing the second time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _lock(descriptor: int, database: Path, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreOpenError(
            f"{database} is in use by {_owner(path)}; stop that service, or give this one another file "
            "(one process owns a database for its whole life)"
        ) from error


def _owner(path: Path) -> str:
    try:
        named = json.loads(path.read_bytes())
        return f"process {named['pid']} (incarnation {named['incarnation']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
