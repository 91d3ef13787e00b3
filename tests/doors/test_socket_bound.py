"""The Unix socket at its path: private from its first moment, one daemon's at a time, and replaced when it is stale."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from postroom.doors.socket.bound import MAX_PATH, BoundSocket
from postroom.errors import Misconfigured


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="pr-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def refused(path: Path) -> str:
    with pytest.raises(Misconfigured) as caught:
        BoundSocket(path)
    assert caught.value.field == "socket"
    return caught.value.message


# T1
def test_it_is_0600_in_a_0700_folder_whatever_the_umask(folder: Path) -> None:
    path = folder / "new" / "s"
    before = os.umask(0)
    try:
        bound = BoundSocket(path)
    finally:
        os.umask(before)
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    assert sorted(one.name for one in path.parent.iterdir()) == ["s", "s.lock"]
    bound.close()
    assert not path.exists()


# T1
def test_it_never_stands_there_open_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step that changes the folder is watched: no socket in it ever has another mode, and the path answers."""
    path = folder / "s"
    seen: list[tuple[str, int]] = []

    def watched(call: Any) -> Any:
        def watch(*arguments: Any, **more: Any) -> Any:
            done = call(*arguments, **more)
            for one in folder.iterdir():
                if one.is_socket():
                    seen.append((one.name, mode(one)))
            if path.exists():
                with socket.socket(socket.AF_UNIX) as peer:
                    peer.connect(str(path))
            return done

        return watch

    for name in ("umask", "replace", "unlink"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    bound = BoundSocket(path)
    monkeypatch.undo()
    bound.close()
    assert {name for name, _ in seen} == {f".{os.getpid():x}", "s"}
    assert {found for _, found in seen} == {0o600}


def test_a_stale_socket_is_replaced_and_a_live_one_never(folder: Path) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    first = BoundSocket(path)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
    said = refused(path)
    assert str(os.getpid()) in said
    assert path.is_socket()
    first.close()
    # One that has no lock, as another program's, is found by asking.
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        assert "another daemon answers" in refused(path)
        assert path.is_socket()
    path.unlink()
    BoundSocket(path).close()


def test_a_listener_that_takes_nobody_now_is_not_stale(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as other, contextlib.ExitStack() as queued:
        other.bind(str(path))
        other.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                peer = queued.enter_context(socket.socket(socket.AF_UNIX))
                peer.setblocking(False)
                peer.connect(str(path))
        identity = path.lstat().st_ino
        assert "another daemon answers" in refused(path)
        for number in (errno.EAGAIN, errno.EACCES, errno.EPERM, errno.EPROTOTYPE, errno.EMFILE):
            monkeypatch.setattr(socket.socket, "connect", Mock(side_effect=OSError(number, os.strerror(number))))
            assert str(path) in refused(path)
        monkeypatch.undo()
        assert path.lstat().st_ino == identity
    BoundSocket(path).close()


def test_of_many_at_once_one_has_it(folder: Path) -> None:
    path, started = folder / "s", threading.Barrier(8)
    bound: list[BoundSocket] = []
    said: list[str] = []

    def try_it() -> None:
        started.wait()
        try:
            bound.append(BoundSocket(path))
        except Misconfigured as error:
            said.append(error.message)

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(bound) == 1
    assert len(said) == 7
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
    bound[0].close()


def test_what_a_killed_process_left_of_its_own_is_in_nobodys_way(folder: Path) -> None:
    (folder / f".{os.getpid():x}").touch()
    bound = BoundSocket(folder / "s")
    bound.close()


def test_another_ones_file_at_the_path_is_left_alone(folder: Path) -> None:
    path = folder / "s"
    for make in (lambda: path.write_text("mine"), path.mkdir, lambda: path.symlink_to(folder / "nothing")):
        make()
        assert "is no socket" in refused(path)
        assert path.lstat()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    bound = BoundSocket(path)
    path.unlink()
    path.write_text("mine")
    bound.close()
    assert path.read_text() == "mine"


def test_a_path_that_is_too_long_is_refused_by_name(folder: Path) -> None:
    name = "s" * (MAX_PATH - len(str(folder)) - 1)
    BoundSocket(folder / name).close()
    path = folder / (name + "s")
    assert refused(path) == f"socket: {path} is longer than {MAX_PATH} bytes"
    deep = folder / ("d" * (MAX_PATH - len(str(folder)) - 4)) / "s"
    assert "is longer than" in refused(deep)
    assert not deep.parent.exists()


def test_a_folder_that_others_write_to_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    assert "others may write" in refused(folder / "s")
    folder.chmod(0o1777)
    BoundSocket(folder / "s").close()
    (folder / "file").touch()
    assert "cannot bind" in refused(folder / "file" / "s")
