"""Progress of a request of an upload: interim responses with offsets that are durable (draft-ietf-httpbis-resumable-upload)."""

import hashlib
import signal
import subprocess
import urllib.parse

import pytest

from program import BINARY
from secret_words import secret
from sessions import PARTIAL, Raw, append, begin, complete, problem
from wire import Wire

MIB = 1 << 20
#: The directory makes the bytes of a long request durable in steps of 64 MiB.
STEP = 64 * MIB
DATA = hashlib.shake_256(b"progress").digest(MIB)


def version(number):
    return ("Upload-Draft-Interop-Version", str(number))


@pytest.fixture
def server(launch, tmp_path):
    """A server of a directory, whichever store the others have: the steps are its own."""
    made = subprocess.run([str(BINARY), "uploads", "new-key", "one"], capture_output=True, text=True, check=True)
    keys = tmp_path / "keys"
    keys.write_text(made.stdout)
    secret(made.stdout.split()[1])
    return launch(extra=f"uploads: {{ keys: {keys} }}\n")


def test_a_long_append_reports_durable_offsets(server):
    session = begin(Wire(server), "o", b"x")
    request = append(server, session.path, 1, 2 * STEP, more=[version(8)])
    for _ in range(STEP // MIB + 1):
        request.send(DATA)
    status, fields = request.head()
    assert status == 104 and fields["upload-draft-interop-version"] == "8" and "location" not in fields, fields
    reported = int(fields["upload-offset"])
    assert STEP <= reported <= STEP + 1 + MIB
    # What was reported is there after a kill.
    server.stop(signal.SIGKILL)
    request.close()
    server.start()
    assert session.offset() >= reported


def test_a_slow_append_reports_its_progress(server):
    session = begin(Wire(server), "o")
    request = append(server, session.path, 0, 1000 * MIB, more=[version(5)])
    request.socket.settimeout(0.2)
    sent = 0
    # One step of bytes would be far more than this.
    while sent < 100:
        request.send(DATA[:64 * 1024])
        sent += 1
        try:
            status, fields = request.head()
            break
        except TimeoutError:
            continue
    assert status == 104 and 0 < int(fields["upload-offset"]) <= sent * 64 * 1024, fields
    request.close()


@pytest.mark.parametrize("number, reports", [(4, False), (5, True), (6, True), (7, True), (8, True), (9, False), (None, False)])
def test_versions(server, number, reports):
    session = begin(Wire(server), "o")
    request = append(server, session.path, 0, STEP + MIB, more=[version(number)] if number else [])
    for _ in range(STEP // MIB + 1):
        request.send(DATA)
    status, fields = request.head()
    if reports:
        assert status == 104 and STEP <= int(fields["upload-offset"]) <= STEP + MIB, fields
        status, fields = request.head()
    assert (status, fields["upload-offset"]) == (204, str(STEP + MIB))
    request.close()


def test_a_creation_reports_progress_after_its_url(server):
    request = Raw(server, "PUT", "/b/photos/o/o", [complete(True), version(8), ("Content-Length", STEP + MIB)])
    status, first = request.head()
    assert status == 104 and "upload-offset" not in first
    secret(urllib.parse.urlsplit(first["location"]).path.rpartition("/")[2])
    for _ in range(STEP // MIB + 1):
        request.send(DATA)
    status, second = request.head()
    assert status == 104 and int(second["upload-offset"]) >= STEP and "location" not in second, second
    status, last = request.head()
    assert (status, last["location"], last["upload-complete"]) == (201, first["location"], "?1")
    request.close()


@pytest.mark.parametrize("transport", ["h2c", "h2"])
def test_over_http2(server, transport):
    wire = Wire(server, transport)
    session = begin(wire, "o")
    fields = [("Content-Type", PARTIAL), ("Upload-Offset", "0"), complete(True), version(8)]
    answer = wire.call("PATCH", session.path, fields, DATA * (STEP // MIB + 1))
    assert answer.status == 201 and answer.interim == [104], answer
    assert wire.metadata("o")["size"] == str(STEP + MIB)


def test_what_counts_only_as_a_whole_reports_nothing(server):
    digest = "md5=:AAAAAAAAAAAAAAAAAAAAAA==:"
    wire = Wire(server)
    session = begin(wire, "o")
    fields = [("Content-Type", PARTIAL), ("Upload-Offset", "0"), complete(True), version(8), ("Content-Digest", digest)]
    answer = wire.call("PATCH", session.path, fields, DATA * (STEP // MIB + 1))
    problem(answer, 400, "checksum-mismatch")
    assert 104 not in answer.interim and session.offset() == 0
