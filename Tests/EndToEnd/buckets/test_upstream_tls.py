"""Upstreams with HTTP/1.1 over TLS: one that executes a request on a reused connection and closes it without a response,
so that the request is executed once and reported as done; and one whose certificate is revoked."""

import itertools
import ssl
import types

import pytest

import gcs_model
import upstreams
import wire as wire_client
from fault_proxy import FaultProxy, each_upstream
from identities import Certificate, loopback_names
from program import wait_until

NUMBERS = itertools.count(1)
LIMITS = ("upstream: { connectTimeout: 2s, firstByteTimeout: 5s, progressTimeout: 5s, retryDelay: 10ms, "
          "maximumRetryDelay: 50ms }\n")
LARGE = bytes(600_000)


class Handler(gcs_model.Handler):
    """Omits the response to the next request of a method that is not the first on its connection."""

    def setup(self):
        super().setup()
        self.requests = 0

    def respond(self, status, content=b"", fields=None):
        self.requests += 1
        model = self.server.model
        if isinstance(self.connection, ssl.SSLSocket):
            model.ciphers.add(self.connection.cipher()[0])
        is_next = self.command in model.silent and (self.command != "PUT" or "content-range" in self.headers)
        if is_next and self.requests > 1 and status < 300:
            model.silent.remove(self.command)
            self.close_connection = True
        else:
            super().respond(status, content, fields)


real = each_upstream("gcs-model")


@pytest.fixture
def silent(certificate, launch):
    model, port = gcs_model.Model(), upstreams.free_port()
    model.silent, model.ciphers = [], set()
    service = gcs_model.serve(model, port, Handler)
    scheme, tls = "http", ""
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.chain, certificate.key)
        # The client's order of ciphers counts.
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        service.socket = context.wrap_socket(service.socket, server_side=True, do_handshake_on_connect=False)
        scheme, tls = "https", f", tls: {{ certificateAuthorities: {certificate.chain} }}"
    server = launch(buckets=f"  photos: {{ gcs: {{ endpoint: \"{scheme}://127.0.0.1:{port}\", bucket: photos, "
                            f"credentials: anonymous }}{tls} }}\n", extra=LIMITS)
    yield types.SimpleNamespace(model=model, server=server, client=wire_client.Wire(server))
    service.shutdown()
    service.server_close()


@pytest.fixture
def name():
    return f"tls/{next(NUMBERS)}"


def made(silent, name):
    """The number of times that the object was stored; every fault must have occurred."""
    assert silent.model.silent == []
    return sum(1 for stored, _ in silent.model.commits if stored == name)


@pytest.mark.parametrize("fields", [(), ("If-None-Match: *",)], ids=["plain", "create-only"])
@pytest.mark.parametrize("method, body", [("POST", b"small"), ("PUT", LARGE)], ids=["small", "session"])
def test_an_upload_is_stored_once(silent, name, method, body, fields):
    silent.client.missing(name)
    silent.model.silent = [method]
    response = silent.client.put(name, body, *fields)
    assert response.status == 201 and made(silent, name) == 1, response
    assert silent.client.get(name).body == body


def test_aes_128_is_preferred(silent, name, certificate):
    silent.client.stored(name)
    assert silent.model.ciphers == ({"TLS_AES_128_GCM_SHA256"} if certificate else set())


@pytest.mark.parametrize("fields", [(), ("X-Object-Metageneration-Match: 1",)], ids=["plain", "pinned"])
def test_a_patch_is_applied_once(silent, name, fields):
    silent.client.stored(name)
    silent.model.silent = ["PATCH"]
    response = silent.client.patch(name, {"cacheControl": "no-store"}, *fields)
    assert response.status == 200 and silent.model.silent == [], response
    assert int(silent.client.metadata(name)["metageneration"]) == 2


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_deletion_is_made(silent, name, is_pinned):
    generation = silent.client.stored(name)["generation"]
    silent.model.silent = ["DELETE"]
    fields = [f"X-Object-Generation-Match: {generation}"] if is_pinned else []
    response = silent.client.delete(name, *fields)
    assert response.status == 204 and silent.model.silent == [], response
    silent.client.missing(name)


def test_a_read_is_repeated(silent, name):
    silent.client.stored(name, b"bytes")
    for _ in range(3):
        silent.model.silent = ["GET"]
        assert silent.client.metadata(name)["size"] == "5" and silent.model.silent == []
    assert silent.client.get(name).body == b"bytes"


def test_a_revoked_upstream_gets_no_request(real, launch, tmp_path):
    root = Certificate(tmp_path, "root", "root", is_authority=True)
    proxy = FaultProxy(real.port, root.issue("proxy", "proxy", names=loopback_names()))
    lists = tmp_path / "revoked.pem"
    lists.write_bytes(root.revocations(proxy.certificate))
    server = launch(buckets=f"  photos: {{ {real.store(proxy.endpoint)}, tls: {{ certificateAuthorities: "
                            f"{root.chain}, revoked: {lists} }} }}\n", extra=LIMITS, ready=503)
    assert wire_client.Wire(server).get("first").status == 502
    assert "certificate revoked" in server.readiness()[1] and not proxy.requests
    # A new list is used without a restart.
    lists.write_bytes(root.revocations())
    wait_until(lambda: wire_client.Wire(server).get("first").status == 200, what="a response of the upstream")
    proxy.stop()
