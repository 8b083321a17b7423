"""Bounds of resident memory, and transfers to measure it with."""

import concurrent.futures
import os
import subprocess

import firebase
import sessions
import tus

MIB = 1 << 20
BOUND = 48 * 1024
FULL = os.environ.get("MEMORY_FULL") == "1"
DOWNLOAD = 1024 * MIB if FULL else 64 * MIB
UPLOAD = 1024 * MIB if FULL else 16 * MIB
#: The configuration of a gateway with many upload sessions.
SESSIONS = "firebase: true\nuploads: { sessions: 0, stagedBytes: 0 }\n"


def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)
    return str(path)


def held(server, report, what):
    peak, now = server.status("VmHWM"), server.status("VmRSS")
    report(f"{what}: peak {peak / 1024:.1f} MiB, now {now / 1024:.1f} MiB")
    assert peak <= BOUND, f"{what}: {peak} KiB"


def many(commands):
    running = [subprocess.Popen(["curl", "-sS", "--fail", "-k", "--max-time", "900", *command, "-o", os.devnull])
               for command in commands]
    assert [process.wait() for process in running] == [0] * len(running)


def last_append(server, client, dialect, name, source):
    """The arguments of curl for a new session's only append."""
    size = os.path.getsize(source)
    if dialect == "ietf":
        path = sessions.begin(client, name).path
        fields = ["Upload-Offset: 0", "Upload-Complete: ?1", f"Content-Type: {sessions.PARTIAL}"]
    elif dialect == "tus":
        path = tus.create(client, name, size).path
        fields = ["Tus-Resumable: 1.0.0", "Upload-Offset: 0", ": ".join(tus.CHUNK)]
    else:
        path = firebase.Firebase(client).begin(name, size).path
        fields = ["X-Goog-Upload-Command: upload, finalize", "X-Goog-Upload-Offset: 0"]
    method = "POST" if dialect == "firebase" else "PATCH"
    return ["-X", method, "-T", source, *(part for field in fields for part in ("-H", field)), server.url(path)]


def a_hundred_appends(server, client, dialect, source):
    """Uploads a file a hundred times at once, each time by a session with one append."""
    def begun(number):
        return last_append(server, client, dialect, f"o{number}", source)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        commands = list(pool.map(begun, range(100)))
    many(commands)
    size = str(os.path.getsize(source))
    assert all(client.metadata(f"o{number}")["size"] == size for number in (0, 99))
