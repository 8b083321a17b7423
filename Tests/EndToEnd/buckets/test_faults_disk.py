"""A full or read-only disk, a missing directory, and a damaged or foreign index."""

import contextlib
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess

import pytest

import wire as wire_client
from directory import content, exchange, leftovers, request
from program import BINARY, Server, free_port, wait_until
from raw import connect

# Disks


def on(path):
    return f"  photos: {{ directory: {{ path: {path} }} }}\n"


def is_ready(server, wanted=True):
    wait_until(lambda: (server.readiness()[0] == 200) == wanted, what="ready" if wanted else "not ready")


def fill(path):
    with open(path / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("transport", ["http1", "h2"])
def test_a_full_disk(disk, launch, transport):
    server = launch(buckets=on(disk / "photos"))
    client = wire_client.Wire(server, transport)
    before = {size: client.stored(f"old{size}", content(size, size)) for size in (100, 20_000, 300_000)}
    # Larger than the disk: rejected while it arrives, and the space is freed.
    response = client.put("large", bytes(12 << 20))
    response.is_problem("insufficient-storage")
    client.missing("large")
    assert client.put("after", bytes(1 << 20)).status == 201
    fill(disk)
    refused = set()
    for size in (100, 20_000, 60_000, 300_000):
        for attempt in range(40):
            response = client.put(f"new{size}", content(attempt, size))
            if response.status == 507:
                response.is_problem("insufficient-storage")
                refused.add(size)
                break
            assert response.status in (200, 201), response
    assert refused >= {20_000, 60_000, 300_000}
    for size, json in before.items():
        assert client.metadata(f"old{size}") == json and client.get(f"old{size}").body == content(size, size)
        response = client.put(f"old{size}", content("x", size))
        assert response.status in (200, 507)
        assert client.get(f"old{size}").body == content("x" if response.status == 200 else size, size)
    is_ready(server, False)
    (disk / "filler").unlink()
    is_ready(server)
    for size in (100, 20_000, 60_000, 300_000):
        assert client.put(f"new{size}", content("again", size)).status in (200, 201)
        assert client.get(f"new{size}").body == content("again", size)
    assert client.delete("old100").status == 204
    assert server.stop() == 0
    assert leftovers(disk / "photos") == []


def remount(path, how):
    return subprocess.run(["mount", "-o", f"remount,{how}", str(path)], capture_output=True).returncode == 0


def test_a_disk_that_becomes_read_only(disk, launch):
    server = launch(buckets=on(disk / "photos"))
    client = wire_client.Wire(server)
    for size in (100, 300_000):
        client.stored(f"o{size}", content(size, size))
    # A disk with files open for writing can't become read-only; a bind mount can.
    subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
    try:
        if not remount(disk, "bind,ro"):
            pytest.skip("a read-only bind mount is not possible")
        # The server's descriptors belong to the writable mount; only a restart uses the other.
        assert server.stop() == 0
        done = subprocess.run([str(BINARY), "serve", "--config", str(server.config)], capture_output=True, timeout=20)
        assert done.returncode == 2 and b"Read-only file system" in done.stderr, done.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    server.start()
    assert client.get("o100").body == content(100, 100)


@pytest.mark.parametrize("what", ["index.sqlite", "staging", "blobs"])
def test_immutable_files(launch, what):
    """Root ignores permissions, so the immutable attribute is used."""
    server = launch()
    client = wire_client.Wire(server)
    for size in (100, 300_000):
        client.stored(f"o{size}", content(size, size))
    path = server.directory / "photos" / what
    if subprocess.run(["chattr", "+i", str(path)], capture_output=True).returncode != 0:
        pytest.skip("the file system has no immutable attribute")
    try:
        for size in (100, 20_000, 300_000):
            response = client.put("new", content("n", size))
            assert response.status in (502, 503), response
            response.is_problem(response.json["code"])
            assert str(server.directory) not in response.body.decode()
        client.missing("new")
        assert client.get("o300000").body == content(300_000, 300_000)
        is_ready(server, False)
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)
    is_ready(server)
    for size in (100, 20_000, 300_000):
        assert client.put("new", content("n", size)).status in (200, 201)


# A log that can't be synced


@pytest.fixture
def failing_sync(tmp_path):
    """An environment and a file: while the file exists, syncs of paths with the suffix in it fail."""
    compiler = shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library, flag = tmp_path / "failing_sync.so", tmp_path / "fault"
    source = pathlib.Path(__file__).with_name("failing_sync.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O", "-o", str(library), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "FAILING_SYNC": str(flag)}, flag


def in_the_log(bucket, copy):
    """Names and contents as a start would find them now, with the whole log, synced or not."""
    copy.mkdir()
    for file in ("index.sqlite", "index.sqlite-wal"):
        shutil.copy(bucket / file, copy / file)
    found = {}
    with contextlib.closing(sqlite3.connect(copy / "index.sqlite")) as index:
        rows = index.execute("SELECT name, size, blob, bytes FROM objects LEFT JOIN contents USING (generation)")
        for name, size, blob, inline in rows:
            found[name] = inline if blob is None else (bucket / "blobs" / str(blob // 4096) / str(blob)).read_bytes()
            assert len(found[name]) == size
    return found


def test_a_log_that_can_not_be_synced(launch, failing_sync, tmp_path):
    environment, flag = failing_sync
    server = launch(environment=environment)
    client, bucket = wire_client.Wire(server), server.directory / "photos"
    sizes = (100, 20_000, 300_000)
    known = {}
    for size in sizes:
        for kind in ("replaced", "patched", "deleted"):
            name = f"{kind}{size}"
            client.stored(name, content(name, size))
            known[name] = content(name, size)
    before = {name: client.metadata(name) for name in known}

    def refused(response):
        response.is_problem("upstream-unavailable")

    for round in range(3):
        flag.write_text("-wal")
        # Possible contents after a kill: the last acknowledged write, or a later rejected one.
        possible = {name: {body} for name, body in known.items()}
        for size in sizes:
            for name in (f"replaced{size}", f"new{size}"):
                body = content((name, round), size)
                refused(client.put(name, body))
                possible.setdefault(name, {None}).add(body)
                if round == 1:
                    after = in_the_log(bucket, tmp_path / f"copy-{name}")
                    assert all(after.get(name) in bodies for name, bodies in possible.items())
            refused(client.patch(f"patched{size}", {"contentType": "a/b"}))
            refused(client.delete(f"deleted{size}"))
            possible[f"deleted{size}"].add(None)
        for name, body in known.items():
            assert client.get(name).body == body and client.metadata(name) == before[name]
        for size in sizes:
            client.missing(f"new{size}")
        is_ready(server, False)
        if round == 0:
            flag.unlink()
            is_ready(server)
        else:
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            flag.unlink()
            server.start()
            for name, bodies in possible.items():
                response = client.get(name)
                got = response.body if response.status == 200 else None
                assert got in bodies, (name, response.status, len(response.body))
        for size in sizes:
            client.delete(f"new{size}")
            for kind in ("replaced", "patched", "deleted"):
                name = f"{kind}{size}"
                known[name] = content((name, "after", round), size)
                before[name] = client.stored(name, known[name])
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        assert in_the_log(bucket, tmp_path / f"copy{round}") == known
        server.start()
        for name, body in known.items():
            assert client.get(name).body == body and client.metadata(name) == before[name]
        assert leftovers(bucket) == []
    assert server.stop() == 0
    assert leftovers(bucket) == []


@pytest.mark.parametrize("where", ["/photos/blobs", "/photos/blobs/0"])
def test_a_directory_of_blobs_that_can_not_be_synced(launch, failing_sync, where):
    environment, flag = failing_sync
    server = launch(environment=environment)
    client, bucket = wire_client.Wire(server), server.directory / "photos"
    flag.write_text(where)
    for size in (20_000, 300_000):
        client.put("new", content("new", size)).is_problem("upstream-unavailable")
        assert client.put("small", b"in the index").status in (200, 201)
    assert [path for path in (bucket / "blobs").rglob("*") if path.is_file()] == []
    # Its name is not durable, so no later blob may rely on it.
    assert (bucket / "blobs" / "0").exists() == (where != "/photos/blobs")
    client.missing("new")
    flag.unlink()
    is_ready(server)
    for size in (20_000, 300_000):
        client.stored("new", content("new", size))
        assert client.get("new").body == content("new", size)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    # The rejected blob is in the garbage table, since a crash could have restored it.
    with contextlib.closing(sqlite3.connect(bucket / "index.sqlite")) as index:
        [(next_blob,)] = index.execute("SELECT next_blob FROM state")
        [(blob,)] = index.execute("SELECT blob FROM objects WHERE blob IS NOT NULL")
        given_up = {blob for blob, in index.execute("SELECT blob FROM garbage")}
    assert given_up | {blob} == set(range(1, next_blob))
    server.start()
    assert client.get("new").body == content("new", 300_000)
    assert server.stop() == 0
    assert leftovers(bucket) == []


def test_a_sync_that_hangs_does_not_outlive_the_drain(launch, failing_sync, tmp_path):
    environment, flag = failing_sync
    hangs = tmp_path / "hangs"
    server = launch(environment={**environment, "FAILING_SYNC_HANGS": str(hangs)},
                    extra="limits: { drainTimeout: 1s }\nlog: { format: json }\n")
    flag.write_text("-wal")
    with connect(("127.0.0.1", server.http)) as peer:
        peer.sendall(b"PUT /b/photos/o/a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        wait_until(hangs.exists, what="the sync")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(40) == 3
    assert "the drain did not end" in server.output()


# Directories


@pytest.mark.parametrize("replaced", [False, True], ids=["vanished", "replaced by an empty one"])
def test_a_directory_that_vanishes_and_comes_back(launch, replaced):
    server = launch()
    client, path = wire_client.Wire(server), server.directory / "photos"
    for size in (100, 300_000):
        client.stored(f"o{size}", content(size, size))
    away = path.with_name("away")
    path.rename(away)
    if replaced:
        path.mkdir()

    def fails(response):
        return response.status in (502, 503)

    wait_until(lambda: fails(client.get("o100")), what="an unavailable bucket")
    for response in (client.put("new", b"x"), client.put("new", bytes(300_000)), client.delete("o100"), client.get(""),
                     client.patch("o100", {}), client.get("o100?metadata"), client.get("none")):
        assert fails(response), response
        response.is_problem(response.json["code"])
    is_ready(server, False)
    assert list(path.iterdir() if replaced else []) in ([], [path / "lock"])
    if replaced:
        shutil.rmtree(path)
    away.rename(path)
    is_ready(server)
    for size in (100, 300_000):
        assert client.get(f"o{size}").body == content(size, size)
        assert client.put(f"o{size}", content("back", size)).status == 200
    client.missing("new")
    assert server.stop() == 0
    assert leftovers(path) == []


def refused_start(server):
    assert server.process.poll() is not None
    done = subprocess.run([str(BINARY), "serve", "--config", str(server.config)], capture_output=True, timeout=30)
    assert done.returncode == 2, (done.returncode, done.stderr)
    text = done.stderr.decode()
    assert text.count("\n") <= 3 and "Fatal error" not in text, text
    return text


def another_program(path):
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE mine(x)")
        other.commit()


def newer(path):
    with contextlib.closing(sqlite3.connect(path)) as index:
        index.execute("PRAGMA user_version = 99")


DAMAGE = {
    "of another program": (another_program, "of another program or a newer version"),
    "of a newer version": (newer, "of another program or a newer version"),
    "no database": (lambda path: path.write_bytes(b"These are no bytes of a database. " * 200), "another program"),
    "missing": (lambda path: path.unlink(), "has blobs but no index.sqlite"),
    "a directory": (lambda path: (path.unlink(), path.mkdir()), "index.sqlite"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_index_that_can_not_be_used_is_not_changed(launch, damage):
    server = launch()
    wire_client.Wire(server).stored("o", content("o", 300_000))
    assert server.stop() == 0
    path = server.directory / "photos" / "index.sqlite"
    spoil, message = DAMAGE[damage]
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    text = refused_start(server)
    assert message in text and str(path.parent) in text, text
    assert (path.read_bytes() if path.is_file() else None) == before
    [blob] = [file for file in (path.parent / "blobs").rglob("*") if file.is_file()]
    assert blob.read_bytes() == content("o", 300_000)


def test_an_index_with_damaged_pages_causes_no_wrong_response(launch):
    server = launch()
    client = wire_client.Wire(server)
    for number in range(300):
        exchange(server.http, request("PUT", f"o{number:03}", content(number, 50)))
    assert server.stop() == 0
    path = server.directory / "photos" / "index.sqlite"
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096:page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)
    with contextlib.suppress(AssertionError):
        server.start()
    if server.process.poll() is None:
        for number in range(0, 300, 30):
            response = client.get(f"o{number:03}")
            assert response.status in (500, 502, 503) or response.body == content(number, 50), response
    else:
        assert server.process.returncode == 2, server.output()


def test_two_processes_on_one_directory(launch, tmp_path):
    first = launch(buckets=on(tmp_path / "one"))
    second = tmp_path / "second.yaml"
    second.write_text(first.config.read_text().replace(str(first.http), str(free_port()))
                      .replace(str(first.https), str(free_port())).replace(str(first.operator), str(free_port())))
    done = subprocess.run([str(BINARY), "serve", "--config", str(second)], capture_output=True, timeout=20)
    assert done.returncode == 2 and f"{tmp_path}/one is in use".encode() in done.stderr, done.stderr
    client = wire_client.Wire(first)
    client.stored("o", b"x")
    assert client.get("o").body == b"x"
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    # A lock ends with its process, so nothing has to be cleaned up.
    third = Server.__new__(Server)
    third.__dict__.update(first.__dict__, config=second)
    ports = re.findall(r"127\.0\.0\.1:(\d+)", second.read_text())
    third.http, third.https, third.operator = map(int, ports[:3])
    third.start()
    try:
        assert wire_client.Wire(third).get("o").body == b"x"
    finally:
        assert third.stop() == 0
