"""The console's API, as curl and the page use it."""

import concurrent.futures
import json
import signal
import socket
import time

import pytest

from console_gateway import RULES, Console
from program import ROOT, curl, free_port, sluice, status, wait_until

API = ["/api/state", "/api/metrics", "/api/configuration", "/api/requests", "/api/requests/explanation?request=a", "/api/rules",
       "/api/rules/source?bucket=photos", "/api/uploads", "/b/photos/o", "/b/photos/o/a", "/tus"]
FILES = ["/", *("/" + path.name for path in sorted((ROOT / "Sources" / "Console" / "Web").iterdir()) if path.name != "index.html")]
EDITED = RULES.replace("request.resource.size < 1000", "request.resource.size < 10")


def put(console, path, *arguments):
    return status("-T", "/etc/hostname", *arguments, console.server.url(f"/b/photos/o/{path}"))


def bearer(console):
    return "-H", f"Authorization: Bearer {console.caller}"


def test_a_denial_is_seen_and_explained(console):
    assert console.get("/api/requests") == {"next": 0, "lost": 0, "requests": []}
    assert put(console, "users/alice/a", *bearer(console)) == 201
    assert put(console, "users/bob/a", *bearer(console)) == 403
    page = console.get("/api/requests?after=0&wait=20s&decision=denied")
    assert page["lost"] == 0 and len(page["requests"]) == 1
    found = page["requests"][0]
    assert found["decision"] == "denied" and found["explains"] and found["seq"] == page["next"] == 2
    line = found["line"]
    assert (line["status"], line["operation"], line["principal"], line["path"]) == (403, "create", "alice", "/b/photos/o/users/bob/a")
    explained = console.get(f"/api/requests/explanation?request={line['request']}")
    assert explained["decision"] == "denied" and explained["rules"] == {"file": str(console.rules), "isCurrent": True}
    assert explained["explanation"]["blocks"][0]["captures"] == {"bucket": "'photos'", "uid": "'bob'", "file": "/a"}
    assert "request.auth.uid == uid → false" in explained["text"]
    inputs = explained["inputs"]
    assert inputs["auth"] == {"uid": "alice", "token": {}} or inputs["auth"]["uid"] == "alice"
    assert (inputs["method"], inputs["path"]) == ("create", "/b/photos/o/users/bob/a")
    # What the inputs say is what 'sluice rules' says.
    suite = console.server.directory / "case.yaml"
    suite.write_text(explained["case"])
    assert sluice("rules", "test", console.rules, "--suite", suite)[0] == 0, explained["case"]
    again = console.post("/api/rules/explain", source=None, bucket="photos", request=inputs)
    assert again["text"] == explained["text"] and again["explanation"] == explained["explanation"]
    # Rules that change make it an explanation by former rules.
    console.rules.write_text(EDITED)
    wait_until(lambda: not console.get(f"/api/requests/explanation?request={line['request']}")["rules"]["isCurrent"],
               what="the new rules")


def test_a_poll_waits_for_what_it_wants(console):
    after = console.get("/api/requests?decision=denied")["next"]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        begun = time.monotonic()
        poll = threads.submit(console.get, f"/api/requests?decision=denied&after={after}&wait=25s")
        while not poll.done() and time.monotonic() - begun < 20:
            assert put(console, "public/a") in (200, 201)
            if time.monotonic() - begun > 1:
                put(console, "users/bob/a")
        found = poll.result(timeout=30)["requests"]
    assert found and {one["decision"] for one in found} == {"denied"} and time.monotonic() - begun < 15
    assert console.get(f"/api/requests?decision=denied&after={10 ** 6}&status=5xx&wait=1s")["requests"] == []


def test_what_an_edit_would_change(console):
    console.get("/api/requests")
    for name, uid in (("a", "alice"), ("b", "alice"), ("a", "bob")):
        put(console, f"users/{uid}/{name}", *bearer(console))
    assert status(console.server.url("/b/photos/o/users/alice/a")) == 200
    same = console.post("/api/rules/replay", source=RULES, bucket="photos")
    assert (same["evaluated"], same["same"], same["denied"], same["allowed"], same["changed"]) == (4, 4, 0, 0, [])
    edited = console.post("/api/rules/replay", source=EDITED.replace("< 10", "< 1"), bucket="photos")
    assert (edited["evaluated"], edited["same"], edited["denied"], edited["allowed"]) == (4, 2, 2, 0)
    assert [(one["was"], one["now"], one["line"]["path"], one["position"]["line"]) for one in edited["changed"]] == [
        ("allowed", "denied", "/b/photos/o/users/alice/b", 6), ("allowed", "denied", "/b/photos/o/users/alice/a", 6)]
    counts = {one["sourcePosition"]["line"]: one["values"] for one in edited["coverage"]["conditions"]}
    assert counts[6] == [{"value": "false", "count": 3}] and counts[5] == [{"value": "true", "count": 1}] and counts[8] == []
    # What it said is what the rules do.
    console.rules.write_text(EDITED.replace("< 10", "< 1"))
    wait_until(lambda: put(console, "users/alice/c", *bearer(console)) == 403, what="the edited rules")


def test_rules_are_checked_and_tested(console):
    found = console.get("/api/rules")["buckets"]
    assert [(one["bucket"], one["file"], one["version"], one["failure"], one["isOpen"]) for one in found] == [
        ("photos", str(console.rules), 2, None, False)]
    assert console.raw("GET", "/api/rules/source?bucket=photos")[2].decode() == RULES
    console.get("/api/rules/source?bucket=other", 404)
    console.get("/api/rules/source?bucket=photos&shadow", 404)
    wrong = console.post("/api/rules/check", source=RULES.replace("uid ==", "uid ="))
    assert wrong["issues"][0]["severity"] == "ERROR" and wrong["issues"][0]["sourcePosition"]["line"] == 6
    assert wrong["formatted"] is None
    assert console.post("/api/rules/check", source=RULES.replace("  ", " "))["formatted"].startswith("rules_version = '2';")
    turned = console.post("/api/rules/check", source=RULES.replace("if true", "if true /* \u202e */"))["issues"]
    assert ("WARNING", "U+202E") in [(one["severity"], one["description"].split()[0]) for one in turned]
    suite = "cases:\n- {name: a, method: get, path: /b/photos/o/users/x/y, expect: allow}\n- {name: b, method: get, path: /b/p/o/x, expect: allow}\n"
    tested = console.post("/api/rules/test", source=None, bucket="photos", suite=suite)
    assert (tested["passed"], tested["failed"]) == (1, 1)
    assert [one["state"] for one in tested["results"]] == ["SUCCESS", "FAILURE"] and "expected allow" in tested["results"][1]["failure"]
    refused = console.post("/api/rules/test", 400, source=None, bucket="photos", suite="casess: 1")
    assert "did you mean 'cases'?" in refused["detail"]
    assert "6:" in console.post("/api/rules/replay", 400, source=RULES.replace("uid ==", "uid ="), bucket="photos")["detail"]
    # A file that fails to load: the rules before stay, and the failure is shown.
    console.rules.write_text("nonsense")
    wait_until(lambda: console.get("/api/rules")["buckets"][0]["failure"], what="the failure")
    assert console.raw("GET", "/api/rules/source?bucket=photos")[2].decode() == RULES


def test_objects_are_those_of_the_caller(console):
    assert put(console, "public/page.html") == 201
    answer = console.raw("GET", "/b/photos/o/public/page.html")
    assert answer[0] == 200 and answer[2] == open("/etc/hostname", "rb").read()
    assert answer[1].get_all("Content-Disposition") == ["attachment"]
    assert answer[1].get_all("Content-Security-Policy") == ["sandbox; default-src 'none'"]
    assert answer[1]["Content-Type"] == "text/html" and answer[1]["X-Content-Type-Options"] == "nosniff"
    # The token of the console gives no rights.
    assert console.raw("PUT", "/b/photos/o/users/alice/a", b"x")[0] == 401
    assert console.raw("PUT", "/b/photos/o/users/alice/a", b"x", {"Authorization": f"Bearer {console.caller}"})[0] == 201
    assert console.raw("PUT", "/b/photos/o/users/bob/a", b"x", {"Authorization": f"Bearer {console.caller}"})[0] == 403
    denied = console.raw("GET", "/b/photos/o")
    assert denied[0] == 403
    assert console.get("/api/requests")["requests"] == []   # nobody had watched
    denied = console.raw("GET", "/b/photos/o")
    assert console.get(f"/api/requests/explanation?request={denied[1]['X-Request-Id']}")["inputs"]["method"] == "list"


def test_upload_sessions(console):
    assert status("-X", "POST", "-H", "Upload-Complete: ?0", "-H", "Upload-Draft-Interop-Version: 8",
                  "-H", f"X-Console-Token: {console.token}", f"{console.url}/b/photos/o/public/big") == 201
    found = console.get("/api/uploads")
    assert found["isComplete"] and [(one["bucket"], one["offset"]) for one in found["uploads"]] == [("photos", 0)]
    cancelled = console.raw("DELETE", f"/api/uploads?id={found['uploads'][0]['id']}")
    assert cancelled[0] == 200 and console.get("/api/uploads")["uploads"] == []
    assert console.raw("DELETE", "/api/uploads?id=none")[0] == 404 and console.raw("DELETE", "/api/uploads")[0] == 400


def test_the_state(console):
    state = console.get("/api/state")
    assert state["ready"] and not state["draining"] and {"name": "bucket photos"} in state["checks"]
    assert state["listeners"]["console"] == f"127.0.0.1:{console.port}" and state["buckets"][0]["name"] == "photos"
    shown = console.raw("GET", "/api/configuration")[2].decode()
    assert f"console: 127.0.0.1:{console.port}" in shown and console.caller not in shown
    assert state["waitingForRestart"] == []
    metrics = console.raw("GET", "/api/metrics")
    assert metrics[1]["Content-Type"].startswith("text/plain") and b"sluice_requests_total" in metrics[2]


def test_values_that_wait_for_a_restart(console):
    config = console.server.config
    config.write_text(config.read_text() + "fileThreads: 7\n")
    console.server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: console.get("/api/state")["waitingForRestart"] == ["fileThreads"], what="the reload")
    assert "fileThreads: 4" in console.raw("GET", "/api/configuration")[2].decode()
    config.write_text(config.read_text().replace("fileThreads: 7\n", ""))
    console.server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: console.get("/api/state")["waitingForRestart"] == [], what="the reload")


def test_sessions_beside_a_store_that_fails(launch, tmp_path):
    """The sessions of the other buckets are listed, and the failure is named."""
    dead = f"http://127.0.0.1:{free_port()}"
    console = Console(launch, tmp_path, ready=503, buckets=(
        f"  photos: {{ directory: {{ path: {tmp_path}/photos }} }}\n"
        f"  far: {{ s3: {{ bucket: far, endpoint: '{dead}', accessKeyId: a, secretAccessKey: b }} }}\n"))
    assert status("-X", "POST", "-H", "Upload-Complete: ?0", "-H", "Upload-Draft-Interop-Version: 8",
                  "-H", f"X-Console-Token: {console.token}", f"{console.url}/b/photos/o/public/big") == 201
    found = console.get("/api/uploads")
    assert [one["bucket"] for one in found["uploads"]] == ["photos"] and not found["isComplete"]
    assert [one["bucket"] for one in found["failures"]] == ["far"] and found["failures"][0]["detail"]


def test_secrets_in_queries_are_hidden(launch, tmp_path):
    console = Console(launch, tmp_path)
    console.rules.write_text(RULES.replace("allow get: if true", "allow get: if request.params.key == 'right-key-of-the-object'"))
    wait_until(lambda: status(console.server.url("/b/photos/o/users/a/a")) == 403, what="the rules")
    console.get("/api/requests")
    assert status(console.server.url("/b/photos/o/users/a/a?key=secret-guess-of-a-key")) == 403
    found = console.get("/api/requests")["requests"][-1]["line"]["request"]
    text = json.dumps(console.get(f"/api/requests/explanation?request={found}"))
    assert "secret-guess" not in text and "<redacted>" in text
    replayed = json.dumps(console.post("/api/rules/replay", source=RULES.replace("if true", "if request.params.key.lower() == 'x'"), bucket="photos"))
    assert "secret-guess" not in replayed and "<redacted>" in replayed


# MARK: Access


def test_all_needs_the_token_but_the_page(console):
    for target in API:
        answer = console.raw("GET", target, token=False)
        assert answer[0] == 401 and json.loads(answer[2])["code"] == "unauthenticated", target
        assert "WWW-Authenticate" not in answer[1] and "Access-Control-Allow-Origin" not in answer[1]
    for target in FILES:
        answer = console.raw("GET", target, token=False)
        assert answer[0] == 200 and "require-trusted-types-for 'script'" in answer[1]["Content-Security-Policy"], target
        assert console.raw("GET", target, fields={"If-None-Match": answer[1]["ETag"]})[0] == 304
        head = console.raw("HEAD", target)
        assert head[0] == 200 and head[2] == b"" and int(head[1]["Content-Length"]) == len(answer[2])
    assert sum(len(console.raw("GET", target)[2]) for target in FILES) <= 60 * 1024
    assert console.raw("GET", "/api/nothing")[0] == 404 and console.raw("GET", "/../etc/passwd")[0] == 404
    assert console.raw("POST", "/api/state")[0] == 405 and console.raw("PUT", "/")[0] == 405
    console.get("/api/state")
    wait_until(lambda: '"console opened"' in console.server.output(), what="the log line")


@pytest.mark.parametrize("fields, wanted", [
    ({"Host": "evil.example"}, 421), ({"Host": "127.0.0.1.evil.example"}, 421), ({"Host": "localhost:1"}, 200),
    ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403), ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Sec-Fetch-Site": "none"}, 200)])
def test_other_pages_and_hosts(console, fields, wanted):
    for target in ("/api/state", "/"):
        assert console.raw("GET", target, fields=fields)[0] == wanted, target
    assert console.raw("PUT", "/b/photos/o/public/a", b"x", fields)[0] == (201 if wanted == 200 else wanted)


def test_a_preflight_request_gets_nothing(launch, tmp_path):
    console = Console(launch, tmp_path, extra='cors: { origins: ["*"] }\n')
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "GET",
             "Access-Control-Request-Headers": "x-console-token"}
    for target in ("/api/state", "/b/photos/o"):
        answer = console.raw("OPTIONS", target, fields=asked, token=False)
        assert answer[0] == 403 and not [name for name in answer[1] if name.lower().startswith("access-control")]


def test_guessing_ends(console):
    for _ in range(10):
        assert console.raw("GET", "/api/state", token=False, fields={"X-Console-Token": "guess"})[0] == 401
    answer = console.raw("GET", "/api/state")
    assert answer[0] == 200
    answer = console.raw("GET", "/api/state", token=False, fields={"X-Console-Token": "guess"})
    assert answer[0] == 429 and 0 < int(answer[1]["Retry-After"]) <= 61
    assert console.raw("GET", "/", token=False)[0] == 200


@pytest.mark.parametrize("body, kind, wanted", [
    (b"{}", "text/plain", 415), (b"{}", "application/x-www-form-urlencoded", 415), (b"{", "application/json", 400),
    (b"[]", "application/json", 400), (b"{}", "application/json; charset=utf-8", 400), (b"\xff", "application/json", 400),
    (b'{"source":' + b"[" * 5000, "application/json", 400), (b" " * (5 << 20), "application/json", 413)])
def test_malformed_bodies(console, body, kind, wanted):
    for target in ("check", "explain", "test", "replay"):
        answer = console.raw("POST", f"/api/rules/{target}", body, {"Content-Type": kind})
        assert answer[0] == wanted and answer[1]["Content-Type"] == "application/problem+json", (target, answer)


@pytest.mark.parametrize("query", ["after=x", "after=-1", "wait=26s", "wait=1m", "status=abc", "status=6xx", "status=99", "decision=maybe"])
def test_malformed_queries(console, query):
    assert "detail" in console.get(f"/api/requests?{query}", 400)


def test_large_sources(console):
    assert console.post("/api/rules/check", source="/" * (300 << 10))["issues"][0]["description"].startswith("The source has more than")
    assert console.raw("POST", "/api/rules/test", json.dumps({"bucket": "photos", "suite": "x" * (2 << 20)}),
                       {"Content-Type": "application/json"})[0] == 413


# MARK: Load


def test_evaluation_has_a_share_of_the_time(console):
    """Rules that are slow to evaluate are refused after a while, and the gateway serves meanwhile."""
    cases = "".join(f"- {{name: c{n}, method: get, path: /b/photos/o/users/x/{n}, expect: allow}}\n" for n in range(4000))
    answers = []
    for _ in range(60):
        answers.append(console.raw("POST", "/api/rules/test", json.dumps({"bucket": "photos", "suite": "cases:\n" + cases}),
                                   {"Content-Type": "application/json"}))
        if answers[-1][0] == 429:
            break
        assert put(console, "public/a") in (200, 201)
    assert answers[-1][0] == 429 and int(answers[-1][1]["Retry-After"]) >= 1
    assert {answer[0] for answer in answers} <= {200, 400, 429}


def test_a_viewer_that_stops_reading(console):
    """Many denials for a viewer that never reads its answers: they are dropped, and memory is bounded."""
    console.get("/api/requests")
    before = console.server.status("VmRSS")
    with socket.create_connection(("127.0.0.1", console.port)) as stalled:
        for _ in range(50):
            stalled.sendall(f"GET /api/requests?after=0 HTTP/1.1\r\nHost: localhost\r\nX-Console-Token: {console.token}\r\n\r\n".encode())
        url = console.server.url("/b/photos/o/users/bob/" + "x" * 500)
        curl("-s", "-o", "/dev/null", "-X", "PUT", "-Z", "--parallel-max", "8", url + "[1-1500]")
        assert console.server.status("VmRSS") - before < 16 * 1024
    page = console.get("/api/requests?after=0")
    assert page["lost"] > 0 and page["requests"][-1]["decision"] == "denied"


def test_a_viewer_more_ends_the_oldest_poll(console):
    """A browser that changes its filter leaves a poll behind, which the server can't see."""
    polls = []
    for number in range(5):
        poll = socket.create_connection(("127.0.0.1", console.port), timeout=20)
        poll.sendall(f"GET /api/requests?after=0&wait=25s&status=50{number} HTTP/1.1\r\nHost: localhost\r\n"
                     f"X-Console-Token: {console.token}\r\n\r\n".encode())
        polls.append(poll)
    assert b'"requests":[]' in polls[0].recv(4096)
    polls[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        polls[1].recv(1)
    for poll in polls:
        poll.close()


# MARK: Start


def test_the_flag_makes_a_token(tmp_path, launch):
    console = Console(launch, tmp_path)
    started = sluice("check", "--set", "listen.console=0.0.0.0:9091", "--config", str(console.server.config))
    assert started[0] != 0 and "is not a loopback address" in started[1] + started[2]
    text = console.server.config.read_text()
    lines = [line for line in text.splitlines() if not line.startswith("console:")]
    console.server.config.write_text("\n".join(lines) + "\n")
    started = sluice("check", "--set", "listen.console=127.0.0.1:9091", "--config", str(console.server.config))
    assert started[0] != 0 and "the console has no token" in started[1] + started[2]
    console.server.config.write_text(text)
    started = sluice("check", "--config", str(console.server.config))
    assert started[0] != 0 and "'console.token' requires 'listen.console'" in started[1] + started[2]
