"""Security Rules in a running server: bodies, races, reloads, shadow rules, logs and metrics."""

import concurrent.futures
import http.client
import json
import os
import signal
import socket
import subprocess
import urllib.request

import pytest

from program import curl, log_lines, status, wait_until
from raw import connect, read_to_end, responses
from rulesets import rules


@pytest.fixture
def ruled(launch, tmp_path):
    """Starts a server with these rules; the file can be rewritten."""
    def start(*statements, shadow=None, **options):
        file = tmp_path / "storage.rules"
        file.write_text(rules(*statements))
        environment = {"SLUICE_RULES": str(file)}
        if shadow:
            (tmp_path / "shadow.rules").write_text(rules(*shadow))
            environment["SLUICE_SHADOWRULES"] = str(tmp_path / "shadow.rules")
        running = launch(extra="log: { format: json, allowedSample: 1 }\n", environment=environment, **options)
        running.rules = file
        return running
    return start


def test_a_body_ends_at_the_limit_of_the_rules(ruled):
    """Bytes that the rules can't allow are not staged."""
    server = ruled("match /{name=**} { allow create: if request.resource.size <= 10; }")
    with connect(("127.0.0.1", server.http)) as raw:
        raw.sendall(b"PUT /b/photos/o/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                    b"a\r\n0123456789\r\n1\r\n0\r\n")
        # The last chunk never comes.
        assert responses(read_to_end(raw))[0].status == 403
    def line():
        found = [json.loads(text) for text in server.output().splitlines() if '"bytes_in"' in text]
        return found[-1] if found else None
    wait_until(line, what="the access line")
    assert line()["bytes_in"] <= 10
    assert server.metrics()['sluice_staged_bytes{bucket="photos"}'] == 0


@pytest.mark.parametrize("size", [100, 20_000, 300_000])
def test_allowed_uploads_of_one_name_all_succeed(ruled, size):
    """Each is conditional on the object that its decision read, which the others change."""
    server = ruled("match /{name=**} { allow create: if resource == null || resource.size < 1000000; allow update, "
                   "delete: if resource.size > 0; }", threads=2)
    workers, rounds = 24, 8

    def put(worker):
        found = []
        peer = http.client.HTTPConnection("127.0.0.1", server.http, timeout=120)
        for round in range(rounds):
            if worker % 8 == 7 and round % 2:
                peer.request("PATCH", "/b/photos/o/a", b'{"cacheControl": "no-cache"}')
            else:
                peer.request("PUT", "/b/photos/o/a", bytes([worker]) * size)
            response = peer.getresponse()
            response.read()
            found.append(response.status)
        peer.close()
        return found

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        statuses = [status for found in pool.map(put, range(workers)) for status in found]
    assert set(statuses) <= {200, 201} and statuses.count(201) == 1
    assert server.metrics()['sluice_staged_bytes{bucket="photos"}'] == 0


SIZES = "match /{name=**} { allow read; allow create: if request.resource.size <= 1000 && request.resource.contentType == 'text/plain'; }"


@pytest.mark.parametrize("protocol", ["--http1.1", "--http2-prior-knowledge"])
def test_bodies_are_decided_by_their_true_size(ruled, tmp_path, protocol):
    server = ruled(SIZES)
    url = server.url("/b/photos/o/a.txt")
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"s" * 1000)
    large.write_bytes(b"l" * 1001)
    assert status(protocol, "-T", str(small), url) == 201
    assert status(protocol, "-T", str(large), url) == 403
    # Without a length, from a pipe.
    with open(large, "rb") as pipe:
        done = subprocess.run(["curl", "-sS", protocol, "-T", "-", url, "-o", os.devnull, "-w", "%{http_code}"],
                              stdin=pipe, capture_output=True, timeout=60)
    assert done.stdout == b"403"
    assert curl(url) == small.read_bytes()
    assert status(protocol, "-T", str(small), server.url("/b/photos/o/a.png")) == 403


def test_wrong_or_incomplete_bodies_keep_the_old_object(ruled):
    server = ruled(SIZES)
    url = server.url("/b/photos/o/a.txt")
    assert status("-X", "PUT", "--data-binary", "old", "-H", "Content-Type: text/plain", url) == 201
    head = b"PUT /b/photos/o/a.txt HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
    chunk = b"3e9\r\n" + b"x" * 1001 + b"\r\n"
    for sent, codes in [
        (head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n", [403]),
        (head + b"Content-Length: 1001\r\n\r\n" + b"x" * 1001, [403]),
        (head + b"Content-Length: 900\r\n\r\n" + b"x" * 100, []),
        (head + b"Transfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n" + b"x" * 1000 + b"\r\n", []),
        # An upload that the rules can't allow is denied at its start.
        (head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk, [403]),
        (head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nxxxxxx\r\n", [400]),
    ]:
        with connect(("127.0.0.1", server.http)) as raw:
            raw.sendall(sent)
            if codes:
                # The response does not wait for the end, which could come first.
                raw.recv(1, socket.MSG_PEEK)
            raw.shutdown(socket.SHUT_WR)
            assert [response.status for response in responses(read_to_end(raw))] == codes
        assert curl(url) == b"old"
    assert sorted(os.listdir(server.directory / "photos" / "staging")) == []


def test_create_only_has_one_winner(ruled):
    """Two writers of a thousand names: exactly one creates each object."""
    server = ruled("match /{name=**} { allow get; allow create: if resource == null; }", threads=2)

    def writer(which):
        results = []
        with connect(("127.0.0.1", server.http), timeout=60) as raw:
            file = raw.makefile("rb")
            for number in range(1000):
                raw.sendall(f"PUT /b/photos/o/n{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n{which}".encode())
                code = int(file.readline().split()[1])
                length = 0
                while (line := file.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                file.read(length)
                results.append(code)
        return results

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(writer, "ab")
    for number, codes in enumerate(zip(first, second)):
        assert sorted(codes) == [201, 403], (number, codes)
        assert curl(server.url(f"/b/photos/o/n{number}")) == (b"a" if codes[0] == 201 else b"b")


def test_a_reload_takes_all_or_nothing(ruled):
    server = ruled("match /{name=**} { allow create: if true; }")
    url = server.url("/b/photos/o/a")
    assert status("-T", __file__, url) == 201 and status(url) == 403
    server.rules.write_text(rules("match /{name=**} { allow read, write: if true; }"))
    wait_until(lambda: status(url) == 200, what="the new rules")
    server.rules.write_text(rules("match /{name=**} { allow read: true; }"))
    readiness = f"http://127.0.0.1:{server.operator}/readyz?verbose"

    def ready():
        with urllib.request.urlopen(readiness, timeout=5) as response:
            return response.read().decode()

    wait_until(lambda: "[-] rules failed" in ready(), what="the failure")
    assert ready().endswith("ready\n") and status(url) == 200
    metrics = server.metrics()
    assert metrics["sluice_rules_current"] == 0 and metrics["sluice_rules_reload_failures_total"] == 1
    wait_until(lambda: any("not loaded" in line["message"] for line in log_lines(server, "sluice")), what="the log")
    failure = [line for line in log_lines(server, "sluice") if "not loaded" in line["message"]][-1]
    assert "storage.rules:4:" in failure["metadata"]["cause"] and "^" in failure["metadata"]["cause"]
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: any("not reloaded" in line["message"] for line in log_lines(server, "sluice")), what="SIGHUP")
    assert status(url) == 200
    server.rules.write_text(rules("match /{name=**} { allow read: if false; }"))
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: status(url) == 403, what="the repaired rules")
    assert server.metrics()["sluice_rules_current"] == 1
    assert "[+] rules ok" in ready()


def test_an_invalid_file_does_not_affect_others(ruled, tmp_path):
    server = ruled("match /{name=**} { allow read, write: if true; }", shadow=["match /{name=**} { allow read; }"])
    url = server.url("/b/photos/o/a")
    assert status("-T", __file__, url) == 201
    (tmp_path / "shadow.rules").write_text("junk")
    wait_until(lambda: server.metrics()["sluice_rules_current"] == 0, what="the failure")
    server.rules.write_text(rules("match /{name=**} { allow read: if false; }"))
    wait_until(lambda: status(url) == 403, what="the tightened rules")
    assert server.metrics()["sluice_rules_current"] == 0


def test_changed_rules_apply_to_open_uploads(ruled):
    server = ruled("match /{name=**} { allow read, write: if true; }")
    with connect(("127.0.0.1", server.http)) as raw:
        raw.sendall(b"PUT /b/photos/o/a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nhal")
        wait_until(lambda: server.metrics()["sluice_streams_live"] > 0, what="the upload")
        server.rules.write_text(rules("match /{name=**} { allow get: if true; }"))
        wait_until(lambda: status("-T", __file__, server.url("/b/photos/o/b")) == 403, what="the new rules")
        raw.sendall(b"f")
        assert raw.recv(4096).startswith(b"HTTP/1.1 403")
    assert status(server.url("/b/photos/o/a")) == 404


def test_rules_that_become_readable_are_loaded(ruled, tmp_path):
    server = ruled("match /{name=**} { allow create: if true; }")
    url = server.url("/b/photos/o/a")
    os.rename(server.rules, tmp_path / "away")
    os.mkfifo(server.rules)
    wait_until(lambda: server.metrics()["sluice_rules_current"] == 0, what="the failure")
    assert status("-T", __file__, url) == 201
    os.remove(server.rules)
    server.rules.write_text(rules("match /{name=**} { allow read: if true; }"))
    wait_until(lambda: server.metrics()["sluice_rules_current"] == 1, what="the repair")
    assert status(url) == 200


def test_invalid_rules_prevent_the_start(ruled):
    with pytest.raises(AssertionError) as found:
        ruled("match /{name=**} { allow read: true; }")
    assert "SLUICE_RULES" in str(found.value) and "Missing 'if' before conditional expression." in str(found.value)


def test_decisions_are_logged_and_counted(ruled):
    server = ruled(
        "match /open/{name} { allow read, write: if true; }",
        "match /shut/{name} { allow read: if resource.size < 5; }",
        shadow=["match /open/{name} { allow create: if true; }"])
    assert status("-T", __file__, server.url("/b/photos/o/open/a")) == 201
    assert status(server.url("/b/photos/o/open/a")) == 200
    response = curl("-i", server.url("/b/photos/o/shut/a?token=secret")).decode()
    identifier = next(line.split(": ")[1].strip() for line in response.splitlines() if line.startswith("x-request-id"))
    wait_until(lambda: len(log_lines(server)) == 3, what="three decisions")
    allowed, different, denied = log_lines(server)
    assert allowed["message"] == "allowed" and "shadow" not in allowed["metadata"]
    assert different["metadata"]["shadow"] == "denied"
    assert denied["message"] == "denied" and denied["metadata"]["request"] == identifier
    assert "resource.size" in denied["metadata"]["reason"] and "Null value error." in denied["metadata"]["reason"]
    assert "Null value" not in response and "secret" not in server.output()
    metrics = server.metrics()
    assert metrics['sluice_decisions_total{operation="get",outcome="denied"}'] == 1
    assert metrics['sluice_decisions_total{operation="create",outcome="allowed"}'] == 1
    assert metrics['sluice_shadow_differences_total{operation="get",shadow="denied"}'] == 1
    assert metrics['sluice_decision_duration_seconds_count{operation="get"}'] == 2
