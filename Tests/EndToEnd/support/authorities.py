"""Certificate authorities for clients' certificates, and requests with one of them."""

import os
import subprocess

from identities import Certificate, dns, loopback_names, uri

SPIFFE = "spiffe://example.org/ns/media/sa/thumbnailer"


class Authorities:
    """A root, an authority below it, and a server's certificate."""

    def __init__(self, directory):
        self.directory = directory
        self.root = Certificate(directory, "root", "root", is_authority=True)
        self.middle = self.root.issue("intermediate", "intermediate", is_authority=True)
        self.server = self.root.issue("server", "localhost", names=loopback_names())
        self.worker = self.middle.issue("worker", "worker", names=[uri(SPIFFE), dns("worker.example")])
        self.trusted = self.write("trusted.pem", self.root.pem)
        self.revoked = str(directory / "revoked.pem")

    def write(self, name, content):
        """Replaces a file whole."""
        path = self.directory / name
        (self.directory / "new").write_bytes(content)
        os.rename(self.directory / "new", path)
        return str(path)

    def revoke(self, *certificates, ends=3600):
        return self.write("revoked.pem", self.root.revocations(ends=ends) + self.middle.revocations(*certificates, ends=ends))


def code(server, name, certificate=None, *options):
    """The status of a request with curl; None if the handshake failed."""
    done = subprocess.run(
        ["curl", "-sS", "--insecure", "--max-time", "30", "-o", os.devnull, "-w", "%{http_code}",
         *(certificate.options if certificate else []), *options, server.url(f"/b/photos/o/{name}", "https")],
        capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else None
