"""Faults of the read cache's disk and of the service behind it. Every response is that of a gateway without a cache."""

import os
import shutil
import signal
import subprocess
import threading

import pytest

import wire as wire_client
from faults import Alter, Break, Reset, Stall, Status
from program import wait_until
from test_read_cache import LARGE, MIB, OTHER, chain, name, real, requests, status_of  # noqa: F401


def gone(chain):
    """Nothing of a request is left."""
    wait_until(lambda: chain.server.live() == {}, what="nothing is left")
    assert chain.server.metrics()["sluice_cache_fills"] == 0


def is_read(chain, name, body=LARGE):
    response = chain.client.get(name)
    assert response.status == 200 and response.body == body, (response.status, len(response.body), response.fields)
    return response


@pytest.mark.parametrize("fault", [Status(503), Reset(), Break(2 * MIB), Break(10), Break(5 * MIB, reset=False)],
                         ids=["status", "reset", "middle", "begin", "end"])
def test_a_broken_response_is_continued(chain, name, fault):
    chain = chain("forever")
    chain.other.stored(name, LARGE)
    chain.proxy.fault(fault, "GET", "alt=media|photos/cached")
    is_read(chain, name)
    requests(chain)
    is_read(chain, name)
    assert requests(chain) == (0, 0)
    gone(chain)


def test_wrong_bytes_are_not_kept(chain, name):
    chain = chain("forever")
    # The checksum of a larger object is not known to S3.
    body = LARGE if chain.real.kind == "gcs" else LARGE[:1_000_000]
    chain.other.stored(name, body)

    def wrong(status, fields, body):
        return status, fields, body[:-1] + bytes([body[-1] ^ 1])

    chain.proxy.fault(Alter(wrong), "GET", "alt=media|photos/cached")
    done = subprocess.run(["curl", "-sS", chain.server.url(f"/b/photos/o/{name}")], capture_output=True)
    assert done.returncode != 0 and len(done.stdout) < len(body), "the last bytes are withheld"
    is_read(chain, name, body)
    is_read(chain, name, body)
    gone(chain)


def test_the_first_reader_leaves(chain, name):
    chain = chain("forever")
    chain.other.stored(name, LARGE)
    stall = chain.proxy.fault(Stall(2 * MIB), "GET", "alt=media|photos/cached")
    first = subprocess.Popen(["curl", "-sS", chain.server.url(f"/b/photos/o/{name}")], stdout=subprocess.PIPE)
    assert first.stdout.read(MIB) == LARGE[:MIB]
    bodies = []
    second = threading.Thread(target=lambda: bodies.append(chain.client.get(name).body))
    second.start()
    wait_until(lambda: chain.server.metrics()["sluice_cache_joined_fills_total"] == 1, what="the second reader")
    first.kill()
    first.wait()
    stall.release()
    second.join()
    assert bodies == [LARGE]
    gone(chain)


def test_all_readers_leave(chain, name):
    chain = chain("forever")
    chain.other.stored(name, LARGE)
    chain.proxy.fault(Stall(MIB + 100), "GET", "alt=media|photos/cached")
    first = subprocess.Popen(["curl", "-sS", chain.server.url(f"/b/photos/o/{name}")], stdout=subprocess.PIPE)
    assert first.stdout.read(MIB) == LARGE[:MIB]
    first.kill()
    first.wait()
    gone(chain)
    is_read(chain, name)


def test_kills_during_fills(chain, name):
    chain = chain("forever")
    bodies = {f"{name}-{index}": LARGE[index:] + OTHER[:index] for index in range(4)}
    for each, body in bodies.items():
        chain.other.stored(each, body)
    for round in range(int(os.environ.get("TEST_KILLS", "4"))):
        clients = [subprocess.Popen(["curl", "-s", chain.server.url(f"/b/photos/o/{each}")], stdout=subprocess.PIPE)
                   for each in bodies]
        for client in clients:
            client.stdout.read(1 + (round * 700_001) % len(LARGE))
        chain.server.stop(signal.SIGKILL)
        for client in clients:
            client.stdout.read()
            client.wait()
        chain.server.start()
        wait_until(lambda: "[+] cache" in chain.server.readiness()[1], what="the cache")
        for each, body in bodies.items():
            is_read(chain, each, body)


def test_damage_on_the_disk(chain, name, tmp_path):
    chain = chain("forever")
    chain.other.stored(name, LARGE)
    is_read(chain, name)
    segments = [path for path in (tmp_path / "cache").iterdir() if len(path.name) == 16]
    for path in segments:
        with open(path, "r+b") as file:
            for place in range(4096 + 5000, 6 * MIB, MIB + 4096):
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([byte[0] ^ 0x40]))
    # The slices are fetched again.
    over_tls = wire_client.Wire(chain.server, "h2")
    assert over_tls.get(name).body == LARGE
    assert chain.server.metrics()['sluice_cache_evicted_slices_total{cause="damaged"}'] >= 1
    assert over_tls.get(name).body == LARGE
    gone(chain)


def test_a_tiny_disk(chain, name, disk):
    chain = chain("forever", directory=disk / "cache")
    chain.other.stored(name, LARGE)
    for _ in range(2):
        assert status_of(is_read(chain, name))
    assert "cache" in chain.server.readiness()[1] and chain.server.readiness()[0] == 200
    assert "[-] cache failed: \"full: " in chain.server.readiness()[1]
    gone(chain)


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_the_directory_goes(chain, name, tmp_path, what):
    chain = chain("forever")
    chain.other.stored(name, LARGE)
    is_read(chain, name)
    shutil.rmtree(tmp_path / "cache")
    if what == "replaced":
        (tmp_path / "cache").mkdir(mode=0o755)
    is_read(chain, name)
    for number in range(4):
        chain.other.stored(f"{name}-{number}", OTHER)
        is_read(chain, f"{name}-{number}", OTHER)
    assert chain.server.readiness()[0] == 200
    gone(chain)


def test_a_read_only_disk(chain, name, mounted):
    chain = chain("forever", directory=mounted("64m", "ro") / "cache", state="[-] cache failed")
    chain.other.stored(name, LARGE)
    for _ in range(2):
        is_read(chain, name)
    status, notes = chain.server.readiness()
    assert status == 200 and '[-] cache failed: "broken: ' in notes, notes
    gone(chain)


def test_the_disk_is_unmounted(chain, name, mounted):
    path = mounted("128m")
    chain = chain("forever", directory=path / "cache")
    chain.other.stored(name, LARGE)
    is_read(chain, name)
    subprocess.run(["umount", "--lazy", str(path)], check=True)
    assert list(path.iterdir()) == []
    is_read(chain, name)
    for number in range(4):
        chain.other.stored(f"{name}-{number}", OTHER)
        is_read(chain, f"{name}-{number}", OTHER)
    # After a restart it uses the directory below the mount point.
    chain.server.stop()
    chain.server.start()
    is_read(chain, name)
    assert chain.server.readiness()[0] == 200
    gone(chain)
