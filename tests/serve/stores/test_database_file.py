"""One process writes to a database file, by whatever path; a file that was moved is noticed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dips.serve.keeper import open_keeper
from dips.serve.stores.base import StoreError, Table
from dips.serve.stores.database_file import DatabaseFile
from dips.serve.stores.sqlite import SqliteStore
from tests.serve.models import make_model

OPEN = """
import pathlib, sys
from dips.serve.stores.sqlite import SqliteStore
SqliteStore(pathlib.Path(sys.argv[1])).close()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "s.db"


@pytest.fixture
def store(path):
    made = SqliteStore(path)
    made.commit({Table.USERS: {b"a": b"1"}})
    yield made
    made.close()


def error_of_another_process(path):
    done = subprocess.run([sys.executable, "-c", OPEN, path], capture_output=True, text=True)
    return done.stderr


def spelled(path, spelling):
    """Return another path of the same file."""
    if spelling == "symbolic link":
        link = path.parent.parent / "link.db"
        link.symlink_to(path)
        return link
    if spelling == "link to the folder":
        (path.parent.parent / "other").symlink_to(path.parent)
        return path.parent.parent / "other" / path.name
    if spelling == "relative":
        return os.path.relpath(path)
    if spelling == "hard link":
        os.link(path, path.with_name("hard.db"))
        return path.with_name("hard.db")
    return path


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("the same", "is in use: another process writes to it"),
        ("relative", "is in use: another process writes to it"),
        ("symbolic link", "is in use: another process writes to it"),
        ("link to the folder", "is in use: another process writes to it"),
        ("hard link", r"has a second name \(a hard link\)"),
    ],
)
def test_a_second_writer_is_refused(store, path, spelling, message):
    other = spelled(path, spelling)
    assert message.replace("\\", "") in error_of_another_process(other)
    with pytest.raises(StoreError, match=message):
        SqliteStore(type(path)(other))


def test_a_second_writer_is_refused_after_all_side_files_were_removed(store, path):
    for file in path.parent.iterdir():
        if file != path:
            file.unlink()
    assert "is in use" in error_of_another_process(path)


def test_a_renamed_store_is_locked(store, path):
    path.rename(path.with_name("renamed.db"))
    assert "is in use" in error_of_another_process(path.with_name("renamed.db"))


@pytest.mark.parametrize(
    "change", ["rename", "rename the folder", "replace", "remove", "-wal", "-shm"]
)
def test_a_writer_notices_that_its_files_were_moved(store, path, change):
    if change == "rename":
        path.rename(path.with_name("renamed.db"))
    elif change == "rename the folder":
        path.parent.rename(path.parent.with_name("renamed"))
    elif change == "replace":
        path.with_name("copy.db").write_bytes(path.read_bytes())
        path.with_name("copy.db").replace(path)
    elif change == "remove":
        path.unlink()
    else:
        path.with_name(path.name + change).unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match="was moved, replaced or removed while the store was"):
            store.commit({Table.USERS: {b"a": b"2"}})
    assert store.get(Table.USERS, [b"a"]) == [b"1"]


def test_files_that_are_moved_during_a_commit_are_noticed_before_its_acknowledgement(
    store, path, monkeypatch
):
    write = store._write_staged

    def write_and_move():
        path.rename(path.with_name("renamed.db"))
        return write()

    monkeypatch.setattr(store, "_write_staged", write_and_move)
    with pytest.raises(StoreError, match="was moved, replaced or removed"):
        store.commit({Table.USERS: {b"a": b"2"}})


def test_a_store_that_was_renamed_while_open_holds_all_its_commits(store, path):
    path.rename(path.with_name("renamed.db"))
    store.close()
    again = SqliteStore(path.with_name("renamed.db"))
    assert again.get(Table.USERS, [b"a"]) == [b"1"]
    again.close()


def test_two_writers_that_no_lock_keeps_apart_lose_nothing(path, monkeypatch):
    """For example on a file system without locks: the first one is told at its next commit."""
    monkeypatch.setattr(DatabaseFile, "lock", lambda file: None)
    trained, kept = make_model("last", 3), []
    with open_keeper(trained, f"sqlite:{path}") as first:
        kept += [f"a {n}" for n in range(3) if first.observe(f"a {n}", "1", 3)]
        with open_keeper(trained, f"sqlite:{path}") as second:
            with pytest.raises(StoreError, match="was written to by another process: stop one"):
                first.observe("a 3", "1", 3)
            kept += [f"b {n}" for n in range(3) if second.observe(f"b {n}", "1", 3)]
            assert [second.sketch(user).seen for user in [*kept, "a 3"]] == [1] * 6 + [0]
            assert second.stats()["users"] == 6


on_linux = pytest.mark.skipif(
    not os.path.exists("/proc/locks"), reason="locks and descriptors are counted in /proc"
)


def locks(path):
    """Return the numbers of locks that this process has on a file, by kind."""
    about, found = path.stat(), []
    with open("/proc/locks") as file:
        for line in file:
            _, kind, _, _, process, inode, *_ = line.replace("-> ", "").split()
            if int(process) == os.getpid() and int(inode.split(":")[2]) == about.st_ino:
                found.append(kind)
    return sorted(found)


@on_linux
def test_the_lock_of_sqlite_outlives_other_stores_of_the_process(store, path):
    """Closing any descriptor of the file would release it: see `database_file`."""
    held = locks(path)
    assert "FLOCK" in held
    assert "POSIX" in held
    SqliteStore(path, readonly=True).close()
    with pytest.raises(StoreError, match="is in use"):
        SqliteStore(path)
    assert locks(path) == held


@on_linux
def test_a_reader_keeps_the_lock_of_sqlite_after_the_writer_was_closed(path):
    SqliteStore(path).close()
    reader = SqliteStore(path, readonly=True)
    writer = SqliteStore(path)
    assert "FLOCK" in locks(path)
    assert reader.get(Table.USERS, [b"a"]) == [None]
    writer.close()
    assert "POSIX" in locks(path)
    assert "FLOCK" not in locks(path)
    SqliteStore(path).close()
    reader.close()
    assert locks(path) == []


FORK = """
import os, pathlib, signal, sys
from dips.serve.stores.sqlite import SqliteStore
held = SqliteStore(pathlib.Path(sys.argv[1]))
if os.fork() == 0:
    held._file.close()  # in a child it releases nothing
    print("closed", flush=True)
    sys.stdin.read()
else:
    os.waitid(os.P_ALL, 0, os.WEXITED)
"""


def test_an_idle_child_does_not_hold_the_lock(path):
    """The lock is that of the parent, and ends with it."""
    command = [sys.executable, "-c", FORK, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"closed\n"
        with pytest.raises(StoreError, match="is in use"):
            SqliteStore(path)
        parent.kill()
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
        SqliteStore(path).close()
        parent.stdin.close()  # ends the child


def test_a_loop_of_links_is_reported(path):
    path.parent.mkdir()
    path.symlink_to(path)
    with pytest.raises(StoreError, match="cannot be opened"):
        SqliteStore(path)


@on_linux
def test_closed_stores_leave_no_descriptor_open(path):
    SqliteStore(path).close()
    opened = os.listdir("/proc/self/fd")
    for readonly in (False, True):
        SqliteStore(path, readonly=readonly).close()
    path.write_bytes(b"not a database, but long enough to look at " * 50)
    for readonly in (False, True):
        with pytest.raises(StoreError, match="file is not a database"):
            SqliteStore(path, readonly=readonly)
    assert os.listdir("/proc/self/fd") == opened
