"""The life of a pod with a gateway as its sidecar: what the chart renders is started and probed as by a kubelet, with real
processes in a network namespace of their own."""

import contextlib
import os
import random
import re
import signal
import socket
import stat
import subprocess
import urllib.error
import urllib.request

import pytest

import program
from chart import CHART, gateway, pod, render, values
from namespaces import POSSIBLE, Namespace, Network
from program import wait_until

pytestmark = pytest.mark.skipif(not POSSIBLE, reason="needs the right to make network namespaces")


class Pod:
    """A network namespace in which the gateway and the application run."""

    def __init__(self, directory, example="sidecar.yaml"):
        given = values(CHART / "examples" / example)
        given["config"]["buckets"] = {"photos": {"directory": {"path": str(directory / "photos")}}}
        given["volumeMounts"] = given.get("volumeMounts", []) + [{"name": "photos", "mountPath": str(directory)}]
        objects = render(given)
        self.spec, self.container = pod(objects), gateway(objects)
        self.ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        for name, text in objects["ConfigMap"][0]["data"].items():
            (directory / name).write_text(text.replace("/run/sluice", str(directory)))
        self.directory = directory
        self.network = Network()
        self.namespace = Namespace(self.network)
        self.address, self.inside = self.namespace.address, self.namespace.inside
        self.sidecar = None

    def start(self):
        """Starts the gateway with the manifest's arguments and environment."""
        arguments = [word.replace("/etc/sluice", str(self.directory)) for word in self.container["args"]]
        environment = {one["name"]: re.sub("^/tmp|/run/sluice", str(self.directory), one["value"])
                       for one in self.container["env"]}
        with open(self.directory / "log", "ab") as log:
            self.sidecar = subprocess.Popen(self.inside(str(program.BINARY), *arguments), stderr=log,
                                            env={"PATH": os.environ["PATH"], **environment})

    def probe(self, name):
        """Performs a probe of the manifest; returns its status, or None where nobody listens."""
        found = self.container[name]["httpGet"]
        url = f"http://{self.address}:{self.ports[found['port']]}{found['path']}"
        try:
            with urllib.request.urlopen(url, timeout=self.container[name]["timeoutSeconds"]) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def application(self, *arguments):
        """Starts curl as the application's container, with the URL or the socket of the manifest."""
        (application,) = self.spec["containers"]
        given = {one["name"]: one["value"] for one in application["env"]}
        url = given.get("STORAGE_URL", "http://localhost")
        if socket := given.get("STORAGE_SOCKET"):
            arguments = ("--unix-socket", socket.replace("/run/sluice", str(self.directory)), *arguments)
        return subprocess.Popen(self.inside("curl", "-sS", "--fail", *arguments, url + "/b/photos/o/a"),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def upload(self, size, rate):
        """Begins an upload that takes a while; returns the process when the gateway has begun to receive it."""
        path = self.directory / "large"
        path.write_bytes(random.randbytes(size))
        uploading = self.application("--limit-rate", rate, "-H", "Expect:", "-T", str(path))
        wait_until(lambda: self.metric("sluice_streams_live"), what="the upload")
        return uploading

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self.address}:{self.ports['operator']}/metrics", timeout=5) as response:
            text = response.read().decode()
        return int(next(line for line in text.splitlines() if line.startswith(name + " ")).split()[1])

    def end(self, limit=None):
        """Ends the sidecar as a kubelet does; returns its exit status."""
        self.sidecar.send_signal(signal.SIGTERM)
        return self.sidecar.wait(limit or self.spec["terminationGracePeriodSeconds"])

    def close(self):
        if self.sidecar and self.sidecar.poll() is None:
            self.sidecar.kill()
            self.sidecar.wait()
        self.namespace.close()
        self.network.close()


@pytest.fixture
def life(tmp_path):
    made = Pod(tmp_path)
    with contextlib.closing(made):
        yield made


def finish(process):
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    return out


def test_the_application_starts_with_a_gateway_that_works(life):
    # A container that starts before the application, and goes on beside it.
    assert life.container in life.spec["initContainers"] and life.container["restartPolicy"] == "Always"
    assert life.probe("startupProbe") is None
    life.start()
    wait_until(lambda: life.probe("startupProbe") == 200, what="the start")
    # The application's first request succeeds, without a repetition.
    finish(life.application("-T", "/etc/hostname"))
    assert finish(life.application()) == open("/etc/hostname", "rb").read()
    assert life.probe("readinessProbe") == life.probe("livenessProbe") == 200


def test_only_the_pod_reaches_the_bucket(life):
    life.start()
    wait_until(lambda: life.probe("startupProbe") == 200, what="the start")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((life.address, 8080), timeout=5)
    finish(life.application("-T", "/etc/hostname"))


def test_the_application_uses_a_socket(tmp_path):
    with contextlib.closing(Pod(tmp_path, "sidecar-socket.yaml")) as life:
        life.start()
        wait_until(lambda: life.probe("startupProbe") == 200, what="the start")
        finish(life.application("-T", "/etc/hostname"))
        assert finish(life.application()) == open("/etc/hostname", "rb").read()
        # The pod's group may use it, as the application may have another user; and there is no port.
        assert stat.S_IMODE(os.stat(tmp_path / "http.sock").st_mode) == 0o660
        listening = subprocess.run(life.inside("ss", "-Htln"), capture_output=True, text=True, check=True).stdout
        assert [line.split()[3] for line in listening.splitlines()] == ["0.0.0.0:9090"]


def test_the_application_ends_before_the_gateway(life):
    """A kubelet ends sidecars when the application has ended: what it still does at its end works."""
    life.start()
    wait_until(lambda: life.probe("startupProbe") == 200, what="the start")
    finish(life.upload(4 << 20, "4M"))
    assert life.end(limit=20) == 0
    assert life.probe("readinessProbe") is None


def test_an_upload_survives_the_end_of_the_gateway(life):
    """An application that is slow to end: the gateway is no longer ready, but completes what it has begun."""
    life.start()
    wait_until(lambda: life.probe("startupProbe") == 200, what="the start")
    uploading = life.upload(6 << 20, "2M")
    life.sidecar.send_signal(signal.SIGTERM)
    wait_until(lambda: life.probe("readinessProbe") in (503, None), what="the end of readiness")
    assert uploading.poll() is None
    finish(uploading)
    assert life.sidecar.wait(life.spec["terminationGracePeriodSeconds"]) == 0
    life.start()
    wait_until(lambda: life.probe("startupProbe") == 200, what="the next start")
    assert finish(life.application()) == (life.directory / "large").read_bytes()


def test_a_gateway_that_was_killed_starts_again(life):
    life.start()
    wait_until(lambda: life.probe("startupProbe") == 200, what="the start")
    finish(life.application("-T", "/etc/hostname"))
    uploading = life.upload(6 << 20, "2M")
    life.sidecar.kill()
    life.sidecar.wait()
    assert uploading.wait(60) != 0
    life.start()
    wait_until(lambda: life.probe("startupProbe") == 200, what="the restart")
    assert finish(life.application()) == open("/etc/hostname", "rb").read()
