"""What the gateway keeps in memory with SeaweedFS behind it: the bounds of test_memory.py hold."""

import os
import subprocess

import pytest

import upstreams
from conftest import curl
from test_memory import DOWNLOAD, FULL, MIB, UPLOAD, held, many, report, sparse  # noqa: F401

pytestmark = pytest.mark.skipif("SANITIZER" in os.environ, reason="sanitizers keep what was freed")
LARGE = 1024 * MIB if FULL else 256 * MIB


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory):
    running = upstreams.SeaweedFS(tmp_path_factory.mktemp("upstream"))
    yield running
    running.stop()


@pytest.fixture
def server(seaweedfs, launch):
    return launch(buckets=f"  photos: {{ {seaweedfs.store()} }}\n", threads=2,
                  extra="upstream: { queueTimeout: 10m, progressTimeout: 10m, firstByteTimeout: 10m }\n")


@pytest.mark.parametrize("how", ["known", "streamed"])
def test_a_large_object_up_and_down(server, tmp_path, report, how):  # noqa: F811
    url = server.url("/b/photos/o/large")
    source = sparse(tmp_path / "source", LARGE)
    length = ["-H", "Transfer-Encoding: chunked"] if how == "streamed" else []
    curl("--fail", "--max-time", "900", *length, "-T", source, url, "-o", os.devnull)
    up = server.status("VmHWM")
    size = curl("--fail", "--max-time", "900", url, "-o", os.devnull, "-w", "%{size_download}")
    assert size == str(LARGE).encode()
    held(server, report, f"{LARGE // MIB} MiB up ({up / 1024:.1f} MiB) and down")


@pytest.mark.parametrize("protocol", [
    # A debug build takes a little more than a release build, which has 44 MiB.
    pytest.param("--http1.1", marks=pytest.mark.xfail(strict=False, reason="48.8 MiB of the 48")),
    "--http2-prior-knowledge",
])
def test_a_hundred_transfers_at_once(server, tmp_path, report, protocol):  # noqa: F811
    source = sparse(tmp_path / "source", DOWNLOAD)
    curl("--fail", "-T", source, server.url("/b/photos/o/large"), "-o", os.devnull, "--max-time", "900")
    many([[protocol, server.url("/b/photos/o/large")] for _ in range(100)])
    down = server.status("VmHWM")
    source = sparse(tmp_path / "source", UPLOAD)
    if protocol == "--http1.1":
        for chunked in ([], ["-H", "Transfer-Encoding: chunked"]):
            many([[protocol, *chunked, "-T", source, server.url(f"/b/photos/o/up{number}")] for number in range(100)])
    else:
        done = subprocess.run(["h2load", "-n100", "-c100", "-m1", "-d", source, "-H:method: PUT",
                               server.url("/b/photos/o/up")], capture_output=True, text=True, timeout=900)
        assert "100 succeeded" in done.stdout, done.stdout + done.stderr
    held(server, report, f"100 downloads ({down / 1024:.1f} MiB), 100 uploads")
