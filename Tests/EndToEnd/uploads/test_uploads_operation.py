"""What operators see of upload sessions and do to them: the endpoints of their listener, and `sluice uploads`."""

import json
import re
import time
import urllib.error
import urllib.request

from program import new_token, sluice, wait_until
from sessions import begin, problem
from tus import create
from upstreams import free_port
from wire import Wire


def call(server, method, path, **fields):
    """A request to the operator's listener; returns its status and JSON."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.operator}{path}", method=method, headers=fields)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def uploads(server, query=""):
    status, answer = call(server, "GET", f"/uploads{query}")
    assert status == 200 and answer["isComplete"], answer
    return answer["uploads"]


def run(server, *arguments):
    return sluice("uploads", *arguments, "--operator", f"http://127.0.0.1:{server.operator}")


def test_what_is_open_and_whose(launch):
    token, entry = new_token("alice")
    server = launch(
        extra=f"tokens:\n{entry}\n",
        buckets="  photos: { directory: { path: ./photos } }\n  other: { directory: { path: ./other } }\n")
    wire = Wire(server)
    assert uploads(server) == []
    mine = begin(wire, "private-name", b"12345", ("Upload-Length", "9"), ("Authorization", f"Bearer {token}"))
    theirs = create(wire, "o", None, body=b"123", bucket="other")
    finished = begin(wire, "done", b"x")
    assert finished.patch(1, None, last=True).status == 201
    found = {entry["bucket"]: entry for entry in uploads(server)}
    assert set(found) == {"photos", "other"} and len(uploads(server)) == 2
    first, second = found["photos"], found["other"]
    assert (first["protocol"], first["caller"], first["offset"], first["length"]) == ("ietf", "alice", 5, 9)
    assert (second["protocol"], second["group"], second["caller"], second["offset"]) == ("tus", "anonymous", "127.0.0.1", 3)
    assert "length" not in second and 0 <= second["ageSeconds"] < 60 and second["created"] < second["expires"]
    # No object's name, and nothing that leads to a session.
    text = json.dumps([first, second])
    assert "private-name" not in text and all(path.rpartition("/")[2] not in text for path in (mine.path, theirs.path))
    assert re.fullmatch(r"[0-9a-f]{20}", first["id"]) and first["id"] != second["id"]
    problem(wire.call("GET", f"/b/photos/u/{first['id']}"), 404, "upload-not-found")
    assert uploads(server, "?bucket=other") == [second | {"ageSeconds": uploads(server, "?bucket=other")[0]["ageSeconds"]}]
    assert uploads(server, "?bucket=none") == []
    status, output, errors = run(server, "ls")
    head, *lines = output.splitlines()
    assert (status, errors) == (0, "") and head.split() == ["ID", "BUCKET", "PROTOCOL", "CALLER", "RECEIVED", "LENGTH", "AGE", "EXPIRES"]
    cells = {line.split()[1]: line.split() for line in lines}
    assert cells["photos"][0] == first["id"] and cells["photos"][2:6] == ["ietf", "alice:alice", "5", "9"], lines
    assert cells["other"][3:6] == ["anonymous:127.0.0.1", "3", "-"]
    status, output, _ = run(server, "ls", "--bucket", "photos", "--json")
    assert status == 0 and [entry["id"] for entry in json.loads(output)["uploads"]] == [first["id"]]


def test_cancelling(launch):
    server = launch()
    wire = Wire(server)
    session, other = begin(wire, "o", b"12345"), begin(wire, "p", b"12345")
    identity = next(entry["id"] for entry in uploads(server) if entry["offset"] == 5)
    assert call(server, "DELETE", "/uploads?id=00")[0] == 404 and call(server, "DELETE", "/uploads")[0] == 400
    # A page in the operator's browser can't do it.
    assert call(server, "DELETE", f"/uploads?id={identity}", Origin="https://evil.example")[0] == 403
    assert call(server, "POST", "/uploads/sweep", Origin="null")[0] == 403
    assert len(uploads(server)) == 2
    status, output, errors = run(server, "cancel", identity)
    assert (status, output, errors) == (0, f"cancelled {identity}\n", "")
    assert sorted(answer.status for answer in (session.head(), other.head())) == [204, 404]
    assert len(uploads(server)) == 1 == server.metrics()['sluice_uploads_open{bucket="photos"}']
    assert server.metrics()['sluice_uploads_total{bucket="photos",dialect="ietf",end="cancelled"}'] == 1
    status, _, errors = run(server, "cancel", identity)
    assert status == 1 and "status 404" in errors
    assert run(server, "cancel", "not-an-id")[0] == 64


def test_changes_need_the_operators_token(launch, tmp_path):
    file, wrong = tmp_path / "operator.token", tmp_path / "wrong.token"
    token = "0123456789abcdef"
    file.write_text(token + "\n")
    wrong.write_text(token + "0\n")
    server = launch(arguments=["--set", f"listen.operatorToken={file}"])
    begin(Wire(server), "o", b"12345")
    identity = uploads(server)[0]["id"]
    for value in (None, "Bearer", f"Bearer {token}0", f"Bearer {token[:-1]}", token, f"Basic {token}"):
        fields = {"Authorization": value} if value else {}
        for method, path in (("DELETE", f"/uploads?id={identity}"), ("POST", "/uploads/sweep")):
            status, answer = call(server, method, path, **fields)
            assert (status, answer["code"]) == (401, "unauthenticated"), (value, answer)
    assert call(server, "POST", "/uploads/sweep", Authorization=f"Bearer {token}", Origin="null")[0] == 403
    for arguments, reason in (([], "status 401"), (["--token", wrong], "status 401"), (["--token", "/none"], "/none")):
        status, _, errors = run(server, "cancel", identity, *arguments)
        assert status == 1 and reason in errors, errors
    assert len(uploads(server)) == 1
    assert call(server, "POST", "/uploads/sweep", Authorization=f"Bearer {token}")[0] == 200
    assert run(server, "cancel", identity, "--token", file)[0] == 0
    assert uploads(server) == []
    assert token not in server.output()


def test_a_malformed_operators_token(tmp_path):
    file, config = tmp_path / "operator.token", tmp_path / "sluice.yaml"
    config.write_text(f"listen: {{ operatorToken: {file} }}\nrules: none\nbuckets: {{ photos: {{ directory: {{ path: ./photos }} }} }}\n")
    for text in ("", "0123456789abcde\n", "0123456789abcdef\n0123456789abcdef\n", "0123456789 abcdef\n", "0123456789\nabcdef"):
        file.write_text(text)
        status, _, errors = sluice("check", config)
        assert status == 1 and "listen.operatorToken" in errors and "at least 16" in errors, (text, errors)
    file.write_text("0123456789abcdef")
    assert sluice("check", config)[0] == 0


def test_check_warns_of_a_bucket_that_one_caller_can_fill(tmp_path):
    config = tmp_path / "sluice.yaml"
    for limit, warns in ((0, True), (1000, False)):
        config.write_text(f"rules: none\nuploads: {{ stagedBytes: {limit} }}\n"
                          "buckets: { photos: { directory: { path: ./photos }, stagedBytes: 1MiB }, b: { directory: { path: ./b } } }\n")
        status, _, errors = sluice("check", config)
        assert status == 0 and ("buckets.photos.stagedBytes: warning" in errors) == warns and "buckets.b" not in errors, errors


def test_sweeping_now(launch):
    server = launch(extra="uploads: { lifetime: 2s, sweepInterval: 24h }\n")
    sessions = [begin(Wire(server), f"o{number}", b"x") for number in range(3)]
    # Not by requests: one that begins before the end and ends after it finds that the session is gone.
    end = time.time() + 3
    wait_until(lambda: time.time() > end, what="the end of the sessions")
    assert all(session.head().status == 404 for session in sessions)
    assert uploads(server) == [] and server.metrics()['sluice_uploads_open{bucket="photos"}'] == 3
    status, output, _ = run(server, "sweep")
    assert status == 0 and output.splitlines()[1].split() == ["photos", "3"], output
    assert server.metrics()['sluice_uploads_open{bucket="photos"}'] == 0
    status, output, _ = run(server, "sweep", "--json")
    assert status == 0 and json.loads(output) == {"removed": {"photos": 0}}


def test_methods_and_failures(launch):
    server = launch()
    for method, path in (("POST", "/uploads"), ("GET", "/uploads/sweep"), ("DELETE", "/metrics")):
        assert call(server, method, path)[0] == 405
    status, output, errors = sluice("uploads", "ls", "--operator", f"http://127.0.0.1:{free_port()}")
    assert (status, output) == (1, "") and "127.0.0.1" in errors
    assert sluice("uploads", "ls", "--operator", "127.0.0.1:9090")[0] == 64
    status, _, errors = sluice("uploads", "ls", "--operator", f"http://127.0.0.1:{server.http}")
    assert status == 1 and "status 404" in errors
    for verb in ("ls", "cancel", "sweep"):
        assert "Example" in sluice("uploads", verb, "--help")[1]
