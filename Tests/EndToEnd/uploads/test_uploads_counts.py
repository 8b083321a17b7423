"""Upload sessions that other gateways end do not count, and sessions end with what allowed them."""

import signal
import subprocess

import pytest

import firebase
import program
import signed_links
import upstreams
from program import BINARY, wait_until
from rulesets import rules
from secret_words import secret
from sessions import Session, begin, complete, problem
from wire import Wire


@pytest.fixture(params=[upstreams.GCSModel, upstreams.Moto], ids=["gcs", "s3"])
def shared(request, launch, tmp_path):
    """Starts two gateways with the same keys and the same bucket."""
    real = request.param(tmp_path / "upstream")
    done = subprocess.run([str(BINARY), "uploads", "new-key", "k1"], capture_output=True, text=True, check=True)
    (tmp_path / "upload.keys").write_text(done.stdout)
    secret(done.stdout.split()[1])

    def start(uploads="", bucket=""):
        return [Wire(launch(buckets=f"  photos: {{ {real.store()}{bucket} }}\n",
                            extra=f"uploads: {{ keys: {tmp_path}/upload.keys{uploads} }}\n")) for _ in range(2)]

    yield start
    real.stop()


def opened(wire):
    return wire.server.metrics()['sluice_uploads_open{bucket="photos"}']


def test_sessions_that_end_elsewhere_do_not_count(shared):
    one, two = shared(", sessions: 4")
    for turn in range(3):
        sessions = [begin(one, f"o{number}", b"x") for number in range(4)]
        for number, session in enumerate(sessions):
            elsewhere = Session(two, session.created)
            assert (elsewhere.cancel().status == 204) if number % 2 else elsewhere.patch(1, b"y", last=True).status in (200, 201)
        if turn == 0:
            # The first gateway corrects its count before it refuses anybody, and then not again for some seconds.
            begin(one, "first", b"x").cancel()
        else:
            # A request about an ended session corrects it too.
            for session in sessions:
                session.head()
        begin(one, "more", b"x").cancel()


def test_a_real_limit_stays(shared):
    one, two = shared(", sessions: 2")
    sessions = [begin(one, "a", b"x"), begin(one, "b", b"x")]
    for _ in range(3):
        problem(one.put("c", b"x", complete(False)), 429, "too-many-uploads")
    # Nothing was lost.
    assert [session.offset() for session in sessions] == [1, 1]
    assert sessions[0].patch(1, b"y", last=True).status == 201
    begin(one, "c", b"x")


def test_staged_bytes_of_a_cancelled_session_are_free(shared):
    one, two = shared(", stagedBytes: 1GiB")
    session = begin(one, "huge", None, ("Upload-Length", str(1 << 30)))
    assert Session(two, session.created).cancel().status == 204
    begin(one, "other", None, ("Upload-Length", str(1 << 30)))


def test_the_sweep_corrects_the_count(shared):
    one, two = shared()
    for number in range(3):
        Session(two, begin(one, f"o{number}", b"x").created).cancel()
    kept = begin(one, "kept", b"x")
    assert opened(one) == 4
    subprocess.run([str(BINARY), "uploads", "sweep", "--operator", f"http://127.0.0.1:{one.server.operator}"],
                   capture_output=True, check=True)
    wait_until(lambda: opened(one) == 1, what="the count")
    assert kept.offset() == 1


# Revoked origins

def new_keys(path, *names):
    path.write_text("".join(signed_links.new_key(name) for name in names))


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_removed_link_key_revokes_the_uploads_that_its_links_began(launch, tmp_path, replaced):
    keys = tmp_path / "link.keys"
    new_keys(keys, "old", "kept")
    (tmp_path / "storage.rules").write_text(rules("match /{n} { allow read; }"))
    server = launch(extra=f"links: {{ keys: {keys} }}\n", rules=tmp_path / "storage.rules")
    wire = Wire(server)

    def session(name):
        return Session(wire, wire.call("PUT", signed_links.sign(keys, f"/b/photos/o/{name}", "--method", "PUT"),
                                       [complete(False)], b"12"))
    lines = keys.read_text().splitlines(keepends=True)
    revoked = [session(name) for name in "abc"]
    keys.write_text(lines[1])
    kept = session("kept")
    keys.write_text((signed_links.new_key("old") if replaced else "") + lines[1])
    wait_until(lambda: revoked[0].patch(2, b"3").status == 403, what="the keys")
    # Each append and the commit are refused, and nothing is stored.
    for upload in revoked:
        problem(upload.patch(upload.offset(), b"3"), 403, "link-expired")
        problem(upload.patch(upload.offset(), None, last=True), 403, "link-expired")
    for name in "abc":
        wire.missing(name)
    assert revoked[2].cancel().status == 204
    assert kept.patch(2, b"3", last=True).status == 201 and wire.get("kept").body == b"123"


def test_a_removed_static_token_revokes_uploads_whose_url_is_enough(launch, tmp_path):
    (token, entry), (_, other) = (program.new_token(name) for name in ("alice", "bob"))
    (tmp_path / "storage.rules").write_text(rules("match /{n} { allow read; allow write: if request.auth.uid == 'alice'; }"))
    server = launch(extra=f"firebase: true\ntokens:\n{entry}\n{other}\n", rules=tmp_path / "storage.rules")
    alice = firebase.Firebase(Wire(server), token=token)
    uploads = [alice.begin(name) for name in "ab"]
    for upload in uploads:
        assert upload.command("upload", 0, b"12").status == 200
    server.config.write_text(server.config.read_text().replace(entry, ""))
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in server.output(), what="the reload")
    assert uploads[0].command("upload", 2, b"3").status == 403
    assert uploads[1].command("finalize").status == 403
    for name in "ab":
        Wire(server).missing(name)
