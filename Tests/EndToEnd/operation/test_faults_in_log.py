"""Each fault of the operation is in the log within a second, without a probe of readiness, and so is its end."""

import concurrent.futures
import datetime
import json
import os
import signal
import socket
import time

import pytest

import upstreams
from fault_proxy import FaultProxy
from identities import Certificate
from program import Server, free_port, log_lines, status, wait_until

#: Seconds. Sanitizers slow everything down.
LIMIT = 5 if os.environ.get("SANITIZER") else 1
OPEN = "service firebase.storage { match /b/{bucket}/o { match /{name=**} { allow read, write; } } }\n"


def when(line):
    return datetime.datetime.fromisoformat(line["time"]).timestamp()


def said(server, message, since, words=""):
    """Waits for a line that has these words in what belongs to it, and checks that it came within a second."""
    def found():
        return [line for line in log_lines(server, "sluice") if line["message"].startswith(message)
                and words in json.dumps(line.get("metadata", {})) and when(line) > since - 0.002]
    line = wait_until(found, what=lambda: f"{message} {words} in\n{server.output()[-3000:]}")[0]
    assert when(line) - since <= LIMIT, (when(line) - since, line)
    return line


def begun(server):
    """When the first line was logged."""
    return when(wait_until(lambda: log_lines(server, "sluice"), what="a line")[0])


def replace(path, text):
    """Replaces a file in one step, so that nobody reads a half of it."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    now = time.time()
    fresh.rename(path)
    return now


def test_a_directory_that_is_gone(launch):
    server = launch()
    said(server, "ready", begun(server))
    photos, away = server.directory / "photos", server.directory / "away"
    for _ in range(3):
        now = time.time()
        photos.rename(away)
        assert said(server, "not ready", now, "bucket photos: ")["level"] == "error"
        now = time.time()
        away.rename(photos)
        said(server, "ready", now)


def test_a_service_that_is_gone(launch, tmp_path):
    real = upstreams.GCSModel(tmp_path / "gcs")
    proxy = FaultProxy(real.port)
    server = launch(buckets=f"  photos: {{ {proxy.store(real)} }}\n")
    said(server, "ready", begun(server))
    proxy.pause()
    now = time.time()
    # Their failures open the circuit.
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda n: status(server.url(f"/b/photos/o/{n}")), range(10)))
    assert set(found) <= {502, 503}
    assert f":{proxy.port}" in said(server, "not ready", now, "bucket photos: ")["metadata"]["cause"]
    proxy.resume()
    wait_until(lambda: log_lines(server, "sluice")[-1]["message"] == "ready", what="the recovery without a request")
    proxy.stop()
    real.stop()


def test_keys_of_an_issuer_that_can_not_be_fetched(launch):
    port = free_port()
    server = launch(ready=503, extra=f"issuers: {{ ci: {{ jwks: {{ issuer: ci, audiences: [sluice], "
                                     f"keys: \"http://127.0.0.1:{port}/keys\" }} }} }}\n")
    said(server, "not ready", begun(server), "issuers: ci: ")
    # Why, and only once until it succeeds.
    said(server, "issuer's keys", begun(server), f"127.0.0.1:{port}")
    wait_until(lambda: server.metrics()["sluice_issuer_key_refresh_failures_total"] >= 2, what="another attempt")
    assert server.output().count("issuer's keys") == 1


def test_rules_that_do_not_load(launch, tmp_path):
    rules = tmp_path / "storage.rules"
    rules.write_text(OPEN)
    server = launch(rules=rules)
    for _ in range(3):
        said(server, "rules not loaded", replace(rules, OPEN.replace("allow", "alow")), str(rules))
        said(server, "rules loaded", replace(rules, OPEN))


def test_a_configuration_that_does_not_load(launch):
    server = launch()
    good = server.config.read_text()
    for text, message in (good + "nonsense: 1\n", "configuration not reloaded"), (good, "configuration"):
        replace(server.config, text)
        now = time.time()
        server.process.send_signal(signal.SIGHUP)
        said(server, message, now)


@pytest.fixture
def over_tls(tmp_path):
    """Starts a server whose certificate is valid for that many seconds. `tls` is the address of its TLS listener."""
    started = []

    def start(ends):
        certificate = Certificate(tmp_path, "own", "localhost", ends=ends)
        os.chmod(certificate.key, 0o600)
        port = free_port()
        server = Server(tmp_path / "server", tls=False, arguments=(
            "--set", f"listen.https.address=127.0.0.1:{port}", "--set", f"listen.https.certificate={certificate.chain}",
            "--set", f"listen.https.key={certificate.key}"))
        server.tls, server.certificate = port, certificate
        started.append(server)
        return server
    yield start
    for server in started:
        server.stop()


def test_a_certificate_that_does_not_load(over_tls, tmp_path):
    server = over_tls(3600)
    chain, good = tmp_path / "own.chain.pem", (tmp_path / "own.chain.pem").read_text()
    said(server, "certificate not loaded", replace(chain, "nothing\n"))
    said(server, "certificate loaded", replace(chain, good))
    other = Certificate(tmp_path, "other", "localhost")
    said(server, "certificate not loaded", replace(chain, other.pem.decode()))
    said(server, "certificate loaded", replace(chain, good))


def test_a_certificate_that_expires(over_tls, tmp_path):
    server = over_tls(4)
    said(server, "certificate", begun(server) - 0.001, "expires soon")
    end = server.certificate.certificate.not_valid_after_utc.timestamp()
    wait_until(lambda: time.time() > end, what="its end")
    # It is valid until the end of that second.
    said(server, "certificate", end + 1, "has expired")
    key = tmp_path / "own.key.pem"
    renewed = Certificate(tmp_path, "renewed", "localhost", ends=60)
    replace(key, open(renewed.key).read())
    now = replace(tmp_path / "own.chain.pem", open(renewed.chain).read())
    said(server, "certificate loaded", now)
    said(server, "certificate", now, "expires soon")
    assert len([line for line in log_lines(server, "sluice") if "finding" in line.get("metadata", {})]) == 3, "each once"


def test_http_on_the_tls_port(over_tls):
    server = over_tls(3600)
    now = time.time()
    with socket.create_connection(("127.0.0.1", server.tls), timeout=10) as peer:
        peer.sendall(b"GET /b/photos/o/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert peer.recv(4096).startswith(b"HTTP/1.1 400 ")
    line, = wait_until(lambda: [json.loads(line) for line in server.output().splitlines() if '"duration_ms"' in line],
                       what="the access line")
    assert line["status"] == 400 and "needs TLS" in line["cause"] and when(line) - now <= LIMIT


def test_a_file_of_secrets_that_everybody_can_read(launch, tmp_path):
    keys = tmp_path / "fields"
    keys.write_text("Authorization: Bearer x\n")
    keys.chmod(0o644)
    server = launch(extra=f"telemetry: {{ traces: {{ endpoint: \"http://127.0.0.1:9\", headers: {keys} }} }}\n")
    said(server, "every user can read a file", begun(server), str(keys))
