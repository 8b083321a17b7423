"""The gateways of test_openapi.py: each produces some of the statuses of the API."""

import contextlib
import socket
import sqlite3
import threading

from program import Server, curl, new_token
from signed_links import new_key
from upstreams import free_port


class Upstream:
    """A service that responds to every request with one status, or not at all."""

    def __init__(self, status):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.status = self.listener.getsockname()[1], status
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self.respond, args=(connection,), daemon=True).start()

    def respond(self, connection):
        with connection, contextlib.suppress(OSError):
            while connection.recv(65536):
                if self.status:
                    connection.sendall(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % self.status)

    def close(self):
        self.listener.close()


READS = """rules_version = '2';
service firebase.storage {
  match /b/{bucket}/o/{name=**} {
    allow list;
    allow get, create, update, delete: if resource == null || resource.size >= 0;
  }
}
"""
DENIES = "rules_version = '2';\nservice firebase.storage { match /b/{bucket}/o/{name=**} { allow get: if false; } }\n"


class Gateways:
    """Starts each kind of gateway when it is asked for first."""

    def __init__(self, directory):
        self.directory, self.running, self.upstreams = directory, {}, []
        (directory / "keys").write_text(new_key("k1"))
        (directory / "reads.rules").write_text(READS)
        (directory / "denies.rules").write_text(DENIES)

    def __getitem__(self, kind):
        if kind not in self.running:
            self.running[kind] = getattr(self, kind)()
        return self.running[kind]

    def start(self, kind, extra="", **options):
        root = self.directory / kind
        options.setdefault("buckets", "  photos: { directory: { path: %s/photos }, maximumObjectSize: 100000 }\n" % root)
        return Server(root, extra=f"links: {{ keys: {self.directory}/keys }}\n{extra}", tls=False, **options)

    def plain(self):
        server = self.start("plain", "uploads: { sessions: 100000 }\n")
        for name in ("dir/a.png", "dir/sub/b.png", "c.txt"):
            curl("--fail", "-X", "PUT", "--data-binary", "0123456789", "-H", "Content-Type: text/plain", "-H", "X-Object-Meta-K: v",
                 "-H", "Cache-Control: no-cache", "-H", "Content-Language: en", server.url(f"/b/photos/o/{name}"))
        return server

    def watched(self):
        return self.start("watched", "eventOptions: { watch: true }\n")

    def cors(self):
        return self.start("cors", "cors: { origins: ['https://app.example'] }\n")

    def strict(self):
        return self.start("strict", f"tokens: {{ backup: {{ sha256: \"{'0' * 64}\" }} }}\n")

    def keyless(self):
        return self.start("keyless", "issuers: { ci: { jwks: { issuer: ci, audiences: [sluice], "
                          f"keys: \"http://127.0.0.1:{free_port()}/keys\" }} }} }}\n", ready=503)

    def tight(self):
        """Each caller can have two uploads, and half of the bucket's 1,000 bytes."""
        tokens, lines = zip(*(new_token(name) for name in ("alice", "bob")))
        server = self.start("tight", "uploads: { sessions: 2 }\ntokens:\n%s\n" % "\n".join(lines), buckets="  photos: { "
                            "directory: { path: %s/photos }, stagedBytes: 1000 }\n" % (self.directory / "tight"))
        server.credentials = [("Authorization", f"Bearer {token}") for token in tokens]
        return server

    def denying(self):
        return self.start("denying", rules=self.directory / "denies.rules")

    def slow(self):
        return self.start("slow", "limits: { headerTimeout: 100ms, progressInterval: 200ms }\n")

    def limited(self):
        return self.start("limited", "callers: { default: { requests: 1 } }\n")

    def development(self):
        return self.start("development", arguments=["--unsigned-tokens"])

    def damaged(self):
        server = self.start("damaged", rules=self.directory / "reads.rules")
        with contextlib.closing(sqlite3.connect(server.directory / "photos" / "index.sqlite", timeout=10)) as index:
            index.execute("ALTER TABLE objects RENAME TO lost")
            index.commit()
        return server

    def behind(self, kind, port, more="", conditions="yes"):
        bucket = (f"  photos: {{ s3: {{ bucket: photos, endpoint: \"http://127.0.0.1:{port}\", accessKeyId: a, "
                  f"secretAccessKey: b, conditionalWrites: {conditions} }} }}\n")
        return self.start(kind, f"upstream: {{ attempts: 1{more} }}\n", buckets=bucket, ready=503,
                          rules=self.directory / "reads.rules")

    def upstream(self, status):
        self.upstreams.append(Upstream(status))
        return self.upstreams[-1].port

    def unconditional(self):
        """Without upload sessions."""
        return self.behind("unconditional", free_port(), conditions="no")

    def unreachable(self):
        return self.behind("unreachable", free_port())

    def busy(self):
        return self.behind("busy", self.upstream(503))

    @contextlib.contextmanager
    def stalled(self, name):
        """One for each request: after some that time out no more are sent to the upstream."""
        server = self.behind(f"stalled-{name}", self.upstream(None), ", firstByteTimeout: 200ms")
        yield server
        assert server.stop() == 0, server.output()

    def full(self):
        return self.behind("full", self.upstream(507))

    def stop(self):
        for server in self.running.values():
            assert server.stop() == 0, server.output()
        for upstream in self.upstreams:
            upstream.close()
