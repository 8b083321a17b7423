"""What is wrong is said: readiness, certificates, files with secrets, HTTP on the TLS port, and the levels of requests."""

import datetime
import json
import os
import socket

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from program import Server, curl, free_port, log_lines, sluice, wait_until


def certificate(directory, days):
    """Writes cert.pem and key.pem for 127.0.0.1, which expire in `days`."""
    now = datetime.datetime.now(datetime.timezone.utc)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    end = now + datetime.timedelta(days=days)
    made = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_after(end)
            .not_valid_before(now - datetime.timedelta(days=90)).sign(key, hashes.SHA256()))
    (directory / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = directory / "key.pem"
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                          serialization.NoEncryption()))
    private.chmod(0o600)
    return end.replace(microsecond=0)


def tls(directory):
    port = free_port()
    return port, (f"listen: {{ http: 127.0.0.1:{free_port()}, operator: 127.0.0.1:{free_port()}, https: {{ "
                  f"address: 127.0.0.1:{port}, certificate: cert.pem, key: key.pem }} }}\nrules: none\n"
                  f"buckets: {{ photos: {{ directory: {{ path: {directory}/photos }} }} }}\n")


def messages(server, text):
    return [line for line in log_lines(server, "sluice") if line["message"] == text]


def test_changes_of_readiness_are_logged_without_a_probe(tmp_path):
    server = Server(tmp_path)
    try:
        wait_until(lambda: messages(server, "ready"), what="the first line")
        (tmp_path / "photos").rename(tmp_path / "away")
        line = wait_until(lambda: messages(server, "not ready"), what="the failure")[0]
        assert line["level"] == "error" and "bucket photos: " in line["metadata"]["cause"], line
        (tmp_path / "away").rename(tmp_path / "photos")
        wait_until(lambda: len(messages(server, "ready")) == 2, what="the recovery")
        assert len(messages(server, "not ready")) == 1, "one line for each change"
    finally:
        server.stop()
    assert len(messages(server, "not ready")) == 1, "draining is no fault"


@pytest.mark.parametrize("days, expected", [(60, None), (3, "expires soon, on "), (-1, "has expired on ")])
def test_check_and_start_warn_of_a_certificate_that_expires(tmp_path, days, expected):
    end = certificate(tmp_path, days).isoformat().replace("+00:00", "Z")
    _, config = tls(tmp_path)
    (tmp_path / "sluice.yaml").write_text(config)
    status, _, error = sluice("check", tmp_path / "sluice.yaml")
    warning = expected and f"listen.https: warning: the certificate {expected}{end[:19]}"
    assert status == 0 and (warning in error if warning else error == ""), error
    server = Server(tmp_path, tls=False)
    server.stop()
    https = f"  https: {{ address: 127.0.0.1:{free_port()}, certificate: cert.pem, key: key.pem }}\n"
    text = server.config.read_text()
    server.config.write_text(text.replace("threads:", https + "threads:"))
    (tmp_path / "server.log").write_text("")
    server.start()
    try:
        wait_until(lambda: messages(server, "ready"), what="the lines of the start")
        found = [line["metadata"]["finding"] for line in messages(server, "certificate")]
        assert len(found) == (1 if expected else 0) and all(expected in line for line in found)
        status, text = server.readiness()
        line = next(line for line in text.splitlines() if line[4:].startswith("certificates "))
        assert status == 200 and end[:19] in line and line.startswith("[-]" if expected else "[+]"), line
        assert server.metrics()["sluice_certificate_expiry_timestamp_seconds"] == datetime.datetime.fromisoformat(
            end.replace("Z", "+00:00")).timestamp()
        # A new certificate ends the warning.
        renewed = certificate(tmp_path, 90)
        wait_until(lambda: server.metrics()["sluice_certificate_expiry_timestamp_seconds"] == renewed.timestamp(),
                   what="the new certificate")
        assert '[+] certificates ok: "valid until' in server.readiness()[1]
    finally:
        server.stop()


def test_secret_files_that_everybody_can_read_cause_a_warning(tmp_path):
    certificate(tmp_path, 60)
    _, config = tls(tmp_path)
    (tmp_path / "sluice.yaml").write_text(config)
    key = tmp_path / "key.pem"
    for mode in 0o600, 0o640:
        key.chmod(mode)
        assert sluice("check", tmp_path / "sluice.yaml")[2] == ""
    key.chmod(0o644)
    _, _, error = sluice("check", tmp_path / "sluice.yaml")
    assert error == f"{key}: warning: every user can read this file with secrets (chmod o-r)\n"


def test_a_secret_in_the_configuration_that_everybody_can_read_causes_a_warning(tmp_path):
    file = tmp_path / "sluice.yaml"
    file.write_text("rules: none\nbuckets: { a: { s3: { bucket: a, endpoint: 'http://127.0.0.1:9', accessKeyId: k, "
                    "secretAccessKey: s } } }\n")
    file.chmod(0o644)
    assert f"{file}: warning: every user can read this file with secrets" in sluice("check", file)[2]
    file.chmod(0o640)
    assert "every user" not in sluice("check", file)[2]
    file.write_text(file.read_text().replace(", secretAccessKey: s", ""))
    file.chmod(0o644)
    secret = {"SLUICE_BUCKETS_A_S3_SECRETACCESSKEY": "s"}
    assert "every user" not in sluice("check", file, environment=secret)[2], "it is not in the file"
    text = file.read_text()
    file.write_text(text.replace("accessKeyId: k", "accessKeyId: k, secretAccessKey: null"))
    assert "every user" not in sluice("check", file, environment=secret)[2], "null is none"
    file.write_text(text.replace("accessKeyId: k", "accessKeyId: k, secretAccessKey: old"))
    assert "every user" in sluice("check", file, environment=secret)[2], "it is in the file, though not used"
    file.write_text(text + "upstream: { proxy: 'http://proxy.example.com:3128' }\n")
    assert "every user" not in sluice("check", file, environment=secret)[2], "the proxy has no password"
    file.write_text(text + "upstream: { proxy: 'http://me:hush@proxy.example.com:3128' }\n")
    assert "every user" in sluice("check", file, environment=secret)[2], "the proxy has a password"


def test_a_key_that_everybody_can_read_is_replaced_for_its_group_at_most(tmp_path):
    keys = tmp_path / "link-keys"
    assert sluice("sign", "--new-key", "one", "--keys", keys) == (0, "", "")
    keys.chmod(0o644)
    owner = (65534, 65534) if os.getuid() == 0 else (os.getuid(), os.getgid())
    os.chown(keys, *owner)
    assert sluice("sign", "--new-key", "two", "--keys", keys) == (0, "", "")
    assert keys.stat().st_mode & 0o777 == 0o640
    assert (keys.stat().st_uid, keys.stat().st_gid) == owner, "the service can still read it"


def test_a_new_key_is_written_for_its_owner_only(tmp_path):
    keys = tmp_path / "link-keys"
    old = os.umask(0o022)
    try:
        assert sluice("sign", "--new-key", "one", "--keys", keys) == (0, "", "")
    finally:
        os.umask(old)
    assert keys.stat().st_mode & 0o777 == 0o600
    assert sluice("sign", "--new-key", "two", "--keys", keys) == (0, "", "")
    assert [line.split()[0] for line in keys.read_text().splitlines()] == ["two", "one"], "the new key signs"
    assert keys.stat().st_mode & 0o777 == 0o600
    status, out, _ = sluice("sign", "--keys", keys, "--path", "/b/photos/o/a")
    assert status == 0 and "two" in out
    status, _, error = sluice("sign", "--new-key", "one", "--keys", keys)
    assert status == 1 and "a second key 'one'" in error
    keys.chmod(0o644)
    server = Server(tmp_path / "server", extra=f"links: {{ keys: {keys} }}\n")
    try:
        message = "every user can read a file that only its owner should read"
        (line,) = wait_until(lambda: messages(server, message), what="the warning")
        assert line["level"] == "warning" and line["metadata"] == {"path": str(keys)}
    finally:
        server.stop()


@pytest.mark.parametrize("request_line", ["GET / HTTP/1.1", "PUT /b/photos/o/a HTTP/1.1", "POST /x HTTP/1.0", "DELETE / HTTP/1.1",
                                          "OPTIONS * HTTP/1.1"])
def test_http_on_the_tls_port_gets_a_400_in_words(tmp_path, request_line):
    server = Server(tmp_path)
    try:
        with socket.create_connection(("127.0.0.1", server.https), timeout=10) as peer:
            peer.sendall(f"{request_line}\r\nHost: localhost\r\n\r\n".encode())
            response = b""
            while piece := peer.recv(4096):
                response += piece
        head, body = response.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"connection: close" in head, head
        problem = json.loads(body)
        assert problem["detail"] == "This port needs TLS: use https." and f"content-length: {len(body)}".encode() in head
        assert problem["instance"].encode() in head
        # Other bytes get TLS's own alert, and a client with TLS is served.
        with socket.create_connection(("127.0.0.1", server.https), timeout=10) as peer:
            peer.sendall(b"\x00" * 64)
            assert not peer.recv(4096).startswith(b"HTTP")
        assert curl("-k", "-o", os.devnull, "-w", "%{http_code}", server.url("/b/photos/o/a", "https")) == b"404"
        wait_until(lambda: not {name for name in server.live() if "connection" in name}, what="no connection left")
    finally:
        server.stop()


def test_http_2_on_the_tls_port_gets_a_400_in_words(tmp_path):
    server = Server(tmp_path)
    try:
        url = f"http://127.0.0.1:{server.https}/b/photos/o/a"
        said = curl("--http2-prior-knowledge", "-w", "%{http_code} %{content_type}", url).decode()
        body, rest = said.split("\n")
        assert rest == "400 application/problem+json", said
        assert json.loads(body)["detail"] == "This port needs TLS: use https."
        line, = wait_until(lambda: [json.loads(line) for line in server.output().splitlines() if '"status":400' in line],
                           what="the access line")
        assert line["protocol"] == "HTTP/2" and line["tls"] is False, "nothing was encrypted"
        wait_until(lambda: not {name for name in server.live() if "connection" in name}, what="no connection left")
    finally:
        server.stop()


def test_access_lines_say_who_asked_and_404_is_no_warning(tmp_path):
    server = Server(tmp_path)
    try:
        url = server.url("/b/photos/o/a")
        curl("-A", "tester/1", "-H", "x-request-id: my-id.1", "-o", os.devnull, url)
        curl("-H", "x-request-id: not one", "-A", "", "-o", os.devnull, url)
        curl("-T", "-", "-H", "if-match: \"x\"", "-o", os.devnull, url)
        curl("-X", "BREW", "-o", os.devnull, url)

        def lines():
            found = [json.loads(line) for line in server.output().splitlines() if '"duration_ms"' in line]
            return found if len(found) == 4 else None

        first, second, third, fourth = wait_until(lines, what="four access lines")
        assert (first["status"], first["level"], first["user_agent"]) == (404, "info", "tester/1")
        assert first["host"] == f"127.0.0.1:{server.http}" and first["caller_request"] == "my-id.1"
        assert first["request"] != "my-id.1", "the gateway's ids are its own"
        assert second["status"] == 404 and "caller_request" not in second and "user_agent" not in second
        assert (third["status"], third["level"]) == (412, "info")
        assert fourth["level"] == "warning"
    finally:
        server.stop()
