"""Access to an S3 service: over TLS, with the bucket in the host name, and to a plain file server.

SeaweedFS verifies the signatures here: with another secret every request fails.
"""

import contextlib
import hashlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

import program
import upstreams
import wire as wire_client

SMALL = b"Quercus robur, thirty metres tall.\n"
LARGE = hashlib.shake_256(b"large").digest((9 << 20) + 1)
SECRET = upstreams.SignedSeaweedFS.key
DOMAIN = upstreams.SignedSeaweedFS.domain


class TLSProxy:
    """Terminates TLS in front of a real server and records the first bytes of each connection."""

    def __init__(self, upstream, directory):
        self.upstream, self.heard = upstream, []
        self.certificate, key = directory / "certificate.pem", directory / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-days", "2", "-keyout", key, "-out", self.certificate, "-subj", "/CN=proxy", "-addext",
                        f"subjectAltName=IP:127.0.0.1,DNS:{DOMAIN},DNS:*.{DOMAIN}"], check=True, capture_output=True)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.certificate, key)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with contextlib.suppress(OSError):
            client = self.context.wrap_socket(client, server_side=True)
            upstream = socket.create_connection(("127.0.0.1", self.upstream))
            threading.Thread(target=self.pump, args=(upstream, client, None), daemon=True).start()
            self.pump(client, upstream, self.heard)

    def pump(self, source, target, heard):
        with contextlib.suppress(OSError):
            while block := source.recv(65536):
                if heard is not None:
                    heard.append(block)
                target.sendall(block)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def requests(self):
        """The received request heads."""
        said = b"".join(self.heard)
        return re.findall(rb"(?:GET|HEAD|PUT|POST|DELETE) \S+ HTTP/1.1\r\n(?:[^\r\n]+\r\n)+", said)


class ForwardProxy(TLSProxy):
    """An HTTP proxy, which has CONNECT alone."""

    def serve(self, client):
        with contextlib.suppress(OSError), client.makefile("rb") as lines:
            head = b"".join(iter(lines.readline, b"\r\n"))
            self.heard.append(head)
            upstream = socket.create_connection(("127.0.0.1", self.upstream))
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            threading.Thread(target=self.pump, args=(upstream, client, None), daemon=True).start()
            self.pump(client, upstream, None)


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory):
    with upstreams.warm(upstreams.SignedSeaweedFS, tmp_path_factory.mktemp("upstream")) as running:
        yield running


@pytest.fixture
def proxy(seaweedfs, tmp_path):
    running = TLSProxy(seaweedfs.port, tmp_path)
    yield running
    running.listener.close()


@pytest.fixture
def overlaid(tmp_path, monkeypatch):
    """Starts servers that see other contents of system files: `overlaid({"/etc/hosts": "…"})`."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("only root may mount")

    def overlay(files):
        mounts = []
        for number, (path, text) in enumerate(files.items()):
            copy = tmp_path / f"overlay{number}"
            copy.write_text(text)
            mounts.append(f"mount --bind {copy} {path}")
        script = tmp_path / "overlaid"
        script.write_text(f"#!/bin/sh\nexec unshare -m sh -ec '{'; '.join(mounts)}; exec \"$@\"' - {program.BINARY} \"$@\"\n")
        script.chmod(0o755)
        monkeypatch.setattr(program, "BINARY", script)
        return script
    return overlay


def store(endpoint, secret=SECRET, addressing="path"):
    return (f"s3: {{ endpoint: \"{endpoint}\", bucket: photos, addressing: {addressing}, accessKeyId: sluice, "
            f"secretAccessKey: {secret} }}")


def round_trip(client, folder):
    """Every operation of S3 once."""
    for name, body, fields in [("small", SMALL, []), ("known", LARGE, []), ("parts", LARGE, ["Transfer-Encoding: chunked"])]:
        name = f"{folder}/{name} ä+&"
        quoted = name.replace(" ", "%20").replace("&", "%26").replace("ä", "%C3%A4")
        client.stored(quoted, body, *fields)
        assert client.get(quoted).body == body
        assert client.get(quoted, "Range: bytes=10-19").body == body[10:20]
        assert client.patch(quoted, {"customMetadata": {"Place": "Malmö"}}).status == 200
        assert client.metadata(quoted)["customMetadata"] == {"Place": "Malmö"}
        assert [item["name"] for item in client.get(f"{folder}/").json["items"]] == [name.split("/")[1]]
        assert client.delete(quoted).status == 204
        assert client.get(quoted).status == 404


def test_over_tls_bodies_are_not_signed(proxy, launch):
    server = launch(buckets=f"  photos: {{ {store(f'https://127.0.0.1:{proxy.port}')}, "
                            f"tls: {{ certificateAuthorities: {proxy.certificate} }} }}\n")
    round_trip(wire_client.Wire(server), "tls")
    heads = proxy.requests()
    streamed = [head for head in heads if b"partNumber=" in head]
    assert len(streamed) >= 2
    assert all(b"x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n" in head for head in streamed), streamed[0]
    assert not any(b"aws-chunked" in head or b"STREAMING" in head for head in heads)


def test_in_clear_text_bodies_are_signed_in_chunks(seaweedfs, launch):
    server = launch(buckets=f"  photos: {{ {store(seaweedfs.endpoint)} }}\n")
    round_trip(wire_client.Wire(server), "clear")


def test_a_wrong_secret_is_rejected(seaweedfs, launch):
    server = launch(buckets=f"  photos: {{ {store(seaweedfs.endpoint, 'another-secret')} }}\n", ready=503)
    response = wire_client.Wire(server).put("refused", SMALL)
    assert response.status == 502, response
    assert "another-secret" not in server.output()


def test_a_certificate_of_an_unknown_authority(proxy, launch):
    server = launch(buckets=f"  photos: {{ {store(f'https://127.0.0.1:{proxy.port}')} }}\n", ready=503)
    assert wire_client.Wire(server).get("first").status == 502
    assert proxy.requests() == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_bucket_in_the_hosts_name(seaweedfs, proxy, launch, overlaid, scheme):
    overlaid({"/etc/hosts": f"127.0.0.1 localhost {DOMAIN} photos.{DOMAIN}\n"})
    port = seaweedfs.port if scheme == "http" else proxy.port
    tls = f", tls: {{ certificateAuthorities: {proxy.certificate} }}" if scheme == "https" else ""
    described = store(f"{scheme}://{DOMAIN}:{port}", addressing="virtual-host")
    server = launch(buckets=f"  photos: {{ {described}{tls} }}\n")
    round_trip(wire_client.Wire(server), scheme)
    if scheme == "https":
        heads = proxy.requests()
        assert heads and all(f"\r\nhost: photos.{DOMAIN}:{port}\r\n".encode() in head.lower() for head in heads), heads[0]
        assert not any(head.split(b" ")[1].startswith(b"/photos") for head in heads)


def test_requests_go_through_an_http_proxy(seaweedfs, proxy, launch, tmp_path):
    (tmp_path / "forward").mkdir()
    forward = ForwardProxy(proxy.port, tmp_path / "forward")
    server = launch(buckets=f"  photos: {{ {store(f'https://127.0.0.1:{proxy.port}')}, "
                            f"tls: {{ certificateAuthorities: {proxy.certificate} }} }}\n",
                    extra=f"upstream: {{ proxy: \"http://sluice:{SECRET}@127.0.0.1:{forward.port}\" }}\n")
    round_trip(wire_client.Wire(server), "forwarded")
    heads = list(forward.heard)
    assert heads and all(head.startswith(f"CONNECT 127.0.0.1:{proxy.port} HTTP/1.1\r\n".encode()) for head in heads)
    assert all(b"\r\nProxy-Authorization: Basic " in head for head in heads) and proxy.requests()
    forward.listener.close()
    assert SECRET not in server.output()


def test_without_libcurl_upstreams_behind_a_proxy_are_rejected_at_the_start(overlaid, tmp_path):
    libraries = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    paths = {os.path.realpath(path) for path in re.findall(r"libcurl\.so\.4 .*=> (\S+)", libraries)}
    script = overlaid({path: "" for path in paths})
    for scheme, proxy in [("https", "null"), ("http", "http://127.0.0.1:1"), ("https", "http://127.0.0.1:1")]:
        config = tmp_path / "sluice.yaml"
        config.touch(0o600)
        config.write_text(f"listen: {{ http: 127.0.0.1:0, operator: null }}\nrules: none\n"
                          f"upstream: {{ proxy: {proxy} }}\n"
                          f"buckets:\n  photos: {{ {store(f'{scheme}://127.0.0.1:1')} }}\n")
        done = subprocess.run([script, "check", "--connect", config], capture_output=True, text=True, timeout=60)
        said = done.stdout + done.stderr
        assert done.returncode != 0 and ("libcurl" in said) == (scheme == "https" and proxy != "null"), said
        assert "Fatal error" not in said
    done = subprocess.run([script, "serve", "--config", config], capture_output=True, text=True, timeout=60)
    assert done.returncode > 0 and "bucket photos: requests through a proxy need libcurl" in done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_a_plain_file_server(launch, tmp_path):
    data, port = tmp_path / "data", upstreams.free_port()
    (data / "photos").mkdir(parents=True)
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; user root; pid {tmp_path}/pid; error_log {tmp_path}/error.log;\n"
        f"events {{ }}\nhttp {{ access_log off; client_max_body_size 0; client_body_temp_path {tmp_path}/body;\n"
        f"server {{ listen 127.0.0.1:{port}; root {data}; dav_methods PUT DELETE; create_full_put_path on; }} }}\n")
    nginx = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")], stderr=subprocess.DEVNULL)
    try:
        server = launch(buckets=f"  photos: {{ s3: {{ endpoint: \"http://127.0.0.1:{port}\", bucket: photos, "
                                f"credentials: anonymous }} }}\n")
        client = wire_client.Wire(server)
        for name, body in [("small", SMALL), ("large", LARGE)]:
            assert client.put(f"folder/{name}", body).status in (200, 201)
            assert (data / "photos" / "folder" / name).read_bytes() == body
            assert client.get(f"folder/{name}").body == body
            assert client.get(f"folder/{name}", "Range: bytes=5-9").body == body[5:10]
            assert client.head(f"folder/{name}")["content-length"] == str(len(body))
            assert client.delete(f"folder/{name}").status == 204
            assert client.get(f"folder/{name}").status == 404
        assert [path for path in (data / "photos").rglob("*") if path.is_file()] == []
    finally:
        nginx.terminate()
        nginx.wait(20)

