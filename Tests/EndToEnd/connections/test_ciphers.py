"""Which cipher a connection over TLS gets."""

import os
import re
import socket
import ssl
import subprocess

import pytest

from program import curl

AES_128 = "TLS_AES_128_GCM_SHA256"
AES_256 = "TLS_AES_256_GCM_SHA384"
CHACHA = "TLS_CHACHA20_POLY1305_SHA256"


def cipher(server, *options):
    """The cipher of a handshake, as OpenSSL's client names it."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.https}", "-alpn", "http/1.1", *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stdout.splitlines() if line.startswith("New, ")]
    assert lines, done.stderr
    return lines[0].rpartition(" ")[2]


@pytest.mark.parametrize("options, wanted", [
    # OpenSSL's client prefers AES-256.
    ((), AES_128),
    (("-ciphersuites", f"{CHACHA}:{AES_256}:{AES_128}"), AES_128),
    (("-ciphersuites", AES_256), AES_256),
    (("-ciphersuites", CHACHA), CHACHA),
    (("-tls1_2",), "ECDHE-ECDSA-AES128-GCM-SHA256"),
    (("-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"), "ECDHE-ECDSA-AES256-GCM-SHA384"),
    (("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"), "(NONE)"),
])
def test_aes_128_is_preferred(server, options, wanted):
    assert cipher(server, *options) == wanted


def test_the_configuration_of_openssl_counts(launch, tmp_path):
    """What the system forbids stays forbidden."""
    configuration = tmp_path / "openssl.cnf"
    configuration.write_text(
        "openssl_conf = start\n[start]\nssl_conf = ssl\n[ssl]\nsystem_default = tls\n"
        f"[tls]\nCiphersuites = {CHACHA}:{AES_256}\n")
    server = launch(environment={"OPENSSL_CONF": str(configuration)})
    assert cipher(server, "-ciphersuites", f"{AES_256}:{CHACHA}:{AES_128}") == CHACHA
    assert cipher(server, "-ciphersuites", AES_256) == AES_256
    assert cipher(server, "-ciphersuites", AES_128) == "(NONE)"


@pytest.mark.parametrize("options", [
    ("--tls13-ciphers", AES_128), ("--tls13-ciphers", AES_256), ("--tls13-ciphers", CHACHA),
    ("--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ("--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384"),
])
@pytest.mark.parametrize("size", [0, 1, 1000, 16_384, 300_000])
def test_bodies_arrive_with_every_cipher(server, tmp_path, options, size):
    body = os.urandom(size)
    url = server.url(f"/b/photos/o/ciphers-{size}", "https")
    (tmp_path / "body").write_bytes(body)
    curl("-k", "--fail", *options, "-T", tmp_path / "body", url)
    assert curl("-k", "--fail", *options, url) == body


def test_the_library_of_tls_is_shown(server):
    version = subprocess.run(["openssl", "version"], capture_output=True, text=True, check=True).stdout.split()[1]
    curl("-k", server.url("/b/photos/o/none", "https"))
    metrics = server.metrics()
    assert metrics[f'sluice_openssl_info{{version="{version}"}}'] == 1
    assert metrics['sluice_tls_info{aes_gcm="openssl"}'] == 1


def test_a_changed_record_ends_the_connection(server):
    """One bit of an encrypted request is different: nothing of it is served."""
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = version
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = context.wrap_bio(incoming, outgoing)
        with socket.create_connection(("127.0.0.1", server.https), 20) as connection:
            def exchange(step):
                while True:
                    try:
                        return step()
                    except ssl.SSLWantReadError:
                        if outgoing.pending:
                            connection.sendall(outgoing.read())
                        received = connection.recv(65_536)
                        assert received, "the connection ends with an alert"
                        incoming.write(received)
            exchange(session.do_handshake)
            if outgoing.pending:
                connection.sendall(outgoing.read())
            session.write(b"GET /b/photos/o/none HTTP/1.1\r\nHost: localhost\r\n\r\n")
            record = bytearray(outgoing.read())
            record[-1] ^= 1
            connection.sendall(record)
            # Alerts and tickets may come, and no response.
            with pytest.raises(ssl.SSLError):
                exchange(lambda: session.read(1))


def test_keys_may_change(server, tmp_path):
    """KeyUpdate of TLS 1.3 (RFC 8446, section 4.6.3), in one direction and in both."""
    body = tmp_path / "body"
    body.write_bytes(b"known bytes")
    curl("-k", "--fail", "-T", body, server.url("/b/photos/o/keys", "https"))
    client = subprocess.Popen(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{server.https}", "-tls1_3", "-alpn", "http/1.1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seen = b""

    def until(pattern, count):
        nonlocal seen
        while len(re.findall(pattern, seen)) < count:
            more = os.read(client.stdout.fileno(), 65_536)
            assert more, seen
            seen += more

    request = b"GET /b/photos/o/keys HTTP/1.1\r\nHost: localhost\r\n\r\n"
    until(b"Verify return code.*\n---\n", 1)
    for number, command in enumerate((b"k\n", b"K\n"), start=1):
        client.stdin.write(command)
        client.stdin.flush()
        until(b"KEYUPDATE", number)
        client.stdin.write(request)
        client.stdin.flush()
        until(b"known bytes", number)
    client.kill()
    client.communicate()
