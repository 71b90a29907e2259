import hashlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dips.data.download import fetch
from dips.errors import DataError

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serve CONTENT; cut the first answers short; support Range unless disabled."""

    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        if server.status is not None:
            self.send_error(server.status)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if asked and server.ranges and start >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        resumed = bool(asked) and server.ranges
        body = CONTENT[start:] if resumed else CONTENT
        self.send_response(206 if resumed else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)

    def log_message(self, *args):
        pass


@contextmanager
def serving(cuts=(), ranges=True, status=None):
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.cuts, server.ranges, server.status = [], list(cuts), ranges, status
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/data.zip"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def left(path):
    return sorted(file.name for file in path.iterdir())


def test_a_file_arrives_with_progress(tmp_path):
    seen = []
    with serving() as (_, url):
        fetch(url, tmp_path / "x.zip", md5=MD5, progress=lambda *step: seen.append(step))
    assert (tmp_path / "x.zip").read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert left(tmp_path) == ["x.zip"]


def test_a_cut_connection_is_resumed(tmp_path):
    with serving(cuts=[1000, 5000]) as (server, url):
        fetch(url, tmp_path / "x.zip", md5=MD5, wait=0)
    assert (tmp_path / "x.zip").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1000-", "bytes=6000-"]


def test_a_later_call_resumes(tmp_path):
    with serving(cuts=[1000]) as (server, url):
        with pytest.raises(DataError, match=r"the connection ended after|cannot be reached"):
            fetch(url, tmp_path / "x.zip", md5=MD5, attempts=1)
        assert left(tmp_path) == ["x.zip.part"]
        fetch(url, tmp_path / "x.zip", md5=MD5)
        assert server.asked == [None, "bytes=1000-"]
    assert (tmp_path / "x.zip").read_bytes() == CONTENT
    assert left(tmp_path) == ["x.zip"]


def test_a_server_without_ranges_starts_again(tmp_path):
    with serving(cuts=[1000], ranges=False) as (_, url):
        fetch(url, tmp_path / "x.zip", md5=MD5, wait=0)
    assert (tmp_path / "x.zip").read_bytes() == CONTENT


def test_a_complete_part_is_accepted(tmp_path):
    (tmp_path / "x.zip.part").write_bytes(CONTENT)
    with serving() as (_, url):
        fetch(url, tmp_path / "x.zip", md5=MD5)
    assert left(tmp_path) == ["x.zip"]


def test_a_part_of_another_file_is_discarded(tmp_path):
    (tmp_path / "x.zip.part").write_bytes(CONTENT + b"more")
    with serving() as (_, url):
        fetch(url, tmp_path / "x.zip", md5=MD5, wait=0)
    assert (tmp_path / "x.zip").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_no_file(tmp_path):
    with serving() as (_, url), pytest.raises(DataError, match=f"checksum {MD5} instead of 00"):
        fetch(url, tmp_path / "x.zip", md5="00")
    assert left(tmp_path) == []


def test_a_refusal_names_the_url_and_the_fix(tmp_path):
    with (
        serving(status=404) as (server, url),
        pytest.raises(
            DataError, match=r"data\.zip: the server answers 404 .*by hand.* --from FILE"
        ),
    ):
        fetch(url, tmp_path / "x.zip")
    assert len(server.asked) == 1
    assert left(tmp_path) == []


def test_a_server_that_is_down(tmp_path):
    with serving() as (_, url):
        pass
    with pytest.raises(DataError, match=r"data\.zip: it cannot be reached .* --from FILE"):
        fetch(url, tmp_path / "x.zip", attempts=2, wait=0)
    assert left(tmp_path) == []
