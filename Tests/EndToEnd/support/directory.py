"""Objects of a directory bucket: requests that may fail, and what is on disk afterwards."""

import contextlib
import hashlib
import socket
import sqlite3

import raw


def content(seed, size):
    return hashlib.shake_256(str(seed).encode()).digest(size)


def exchange(port, request, timeout=30):
    """Sends one request on a new connection; returns None without a complete response."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.sendall(request)
            taken = b""
            while more := connection.recv(1 << 16):
                taken += more
        return raw.responses(taken)[-1] if taken else None
    except (OSError, AssertionError):
        return None


def request(method, name, body=b""):
    return (f"{method} /b/photos/o/{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            .encode() + body)


def leftovers(directory):
    """Files on disk that the index does not name, and names in the index without their file."""
    with contextlib.closing(sqlite3.connect(f"file:{directory}/index.sqlite?mode=ro", uri=True)) as index:
        rows = dict(index.execute("SELECT blob, size FROM objects WHERE blob IS NOT NULL"))
        garbage = {blob for blob, in index.execute("SELECT blob FROM garbage")}
        inline = {generation for generation, in index.execute("SELECT generation FROM contents")}
        owners = {generation for generation, in index.execute(
            "SELECT generation FROM objects WHERE blob IS NULL AND size > 0")}
    files = {int(path.name): path.stat().st_size for path in (directory / "blobs").rglob("*") if path.is_file()}
    assert inline == owners
    assert {blob: files.get(blob) for blob in rows} == rows, "a blob is missing or has another size"
    staged = [path.name for path in (directory / "staging").iterdir()]
    return sorted(set(files) - set(rows) - garbage) + staged
