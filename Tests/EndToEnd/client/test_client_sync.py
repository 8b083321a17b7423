"""`sluice sync`: what it compares, sends and removes."""

import json
import os
import signal
import subprocess
import time

import pytest

from faults import Alter
from program import wait_until

FULL = "view=full"


def tree(root, names):
    for name, content in names.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def content(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def summary(lines):
    return {key: value for key, value in lines[-1].items() if key != "action"}


def test_the_second_run_sends_nothing(through, proxy):
    names = {f"d{n % 3}/f{n}": os.urandom(n * 100) for n in range(50)}
    names["large"] = os.urandom(1 << 20)
    tree(through.home / "site", names)
    lines = through.lines("sync", "./site", "photos/second", "-j", "8")
    assert summary(lines)["transferred"] == 51
    proxy.requests.clear()
    assert summary(through.lines("sync", "./site", "photos/second")) == {
        "checked": 51, "transferred": 0, "bytes": 0, "deleted": 0}
    assert [request.method for request in proxy.requests] == ["GET"] and FULL in proxy.requests[0].target
    # The other direction.
    assert summary(through.lines("sync", "photos/second", "./back"))["transferred"] == 51
    assert content(through.home / "back") == names
    proxy.requests.clear()
    assert summary(through.lines("sync", "photos/second", "./back"))["transferred"] == 0
    assert len(proxy.requests) == 1


def test_changes_are_found(client):
    site = tree(client.home / "site", {"same": b"1", "longer": b"1", "other": b"1"})
    client.fine("sync", "./site", "photos/changed")
    before = os.stat(site / "other").st_mtime
    tree(site, {"longer": b"22", "other": b"2", "new": b"3"})
    os.utime(site / "other", (before, before))
    os.utime(site / "same", (time.time() + 100, time.time() + 100))
    sent = [line["target"] for line in client.lines("sync", "./site", "photos/changed") if line["action"] == "upload"]
    assert sorted(sent) == [f"sluice://photos/changed/{name}" for name in ("longer", "new", "other")]
    assert client.fine("cat", "photos/changed/other") == "2"


def test_delete_and_dry_run(client):
    site = tree(client.home / "site", {"a": b"1", "d/b": b"2", "d/e/c": b"3"})
    client.fine("sync", "./site", "photos/deleted")
    (site / "d/b").unlink()
    (site / "d/e/c").unlink()
    out = client.fine("sync", "--dry-run", "--delete", "./site", "photos/deleted")
    assert out == "delete sluice://photos/deleted/d/b\ndelete sluice://photos/deleted/d/e/c\n"
    client.fine("sync", "./site", "photos/deleted")
    assert client.fine("ls", "-R", "photos/deleted") == "a\nd/b\nd/e/c\n"
    client.fine("sync", "./site", "photos/deleted", "--delete")
    assert client.fine("ls", "-R", "photos/deleted") == "a\n"
    # Locally, with the directories that are empty then.
    tree(client.home / "local", {"a": b"1", "x/y/z": b"2", "keep/it": b"3"})
    client.fine("put", "-", "photos/deleted/keep/it", given="3")
    client.fine("sync", "photos/deleted", "./local", "--delete")
    assert content(client.home / "local") == {"a": b"1", "keep/it": b"3"}
    assert not (client.home / "local/x").exists()


def test_nothing_is_removed_after_an_error(client):
    site = tree(client.home / "site", {"a": b"1"})
    client.fine("put", "-", "photos/careful/old", given="x")
    (site / "bad\nname").write_text("x")
    status, _, err = client.run("sync", "./site", "photos/careful", "--delete")
    assert status == 2 and "Nothing was removed" in err
    assert client.fine("ls", "-R", "photos/careful") == "a\nold\n"


def test_between_buckets_and_gateways(client, launch):
    tree(client.home / "site", {"a": b"1", "b/c": os.urandom(2 << 20)})
    client.fine("sync", "./site", "photos/between")
    client.fine("meta", "set", "photos/between/a", "customMetadata.k=v")
    second = launch()
    target = f"{second.url('')}/b/photos/o/copy/"
    assert summary(client.lines("sync", "photos/between", target))["transferred"] == 2
    assert summary(client.lines("sync", "photos/between", target))["transferred"] == 0
    [copy] = client.lines("stat", f"{target}a")
    assert copy["customMetadata"] == {"k": "v"}
    client.fine("sync", target, "sluice://other/again")
    assert client.fine("cat", "sluice://other/again/b/c", text=False) == (client.home / "site/b/c").read_bytes()


def test_which_side_is_local(client):
    tree(client.home, {"photos/x/a": b"1", "site/a": b"1"})
    # A file of this name exists, but the other side is local.
    client.fine("sync", "./site", "photos/x")
    assert client.fine("ls", "photos/x") == "a\n"
    status, _, err = client.run("sync", "site", "photos/x")
    assert status == 1 and "sluice://" in err
    status, _, err = client.run("sync", "./site", "./photos")
    assert status == 1 and "local" in err
    status, _, err = client.run("sync", "./absent", "photos/x", "--delete")
    assert status == 2 and client.fine("ls", "photos/x") == "a\n"


def test_hidden_properties(client, launch, tmp_path):
    """Where the rules hide properties in lists, they are requested one by one."""
    rules = tmp_path / "storage.rules"
    rules.write_text("rules_version = '2';\nservice firebase.storage { match /b/{b}/o { match /{n=**} {\n"
                     "  allow list, write; allow get: if resource.size < 1000000; } } }\n")
    gateway = launch(rules=str(rules))
    tree(client.home / "site", {"a": b"1", "b": b"2"})
    environment = {"SLUICE_URL": gateway.url("")}
    client.fine("sync", "./site", "photos/hidden", environment=environment)
    lines = client.lines("sync", "./site", "photos/hidden", environment=environment)
    assert summary(lines)["transferred"] == 0


def test_times_of_whole_seconds(through, proxy):
    """Some stores have no hashes in lists, and whole seconds only."""
    def change(status, fields, body):
        page = json.loads(body)
        for item in page["items"]:
            del item["crc32c"], item["md5Hash"]
            item["updated"] = "2026-01-01T00:00:10.000Z"
        return status, fields, json.dumps(page).encode()

    site = tree(through.home / "site", {"same": b"1", "newer": b"1"})
    through.fine("sync", "./site", "photos/seconds")
    os.utime(site / "same", (1767225610.9, 1767225610.9))
    os.utime(site / "newer", (1767225611, 1767225611))
    proxy.fault(Alter(change), method="GET", target=FULL)
    sent = [line["target"] for line in through.lines("sync", "./site", "photos/seconds") if line["action"] == "upload"]
    assert sent == ["sluice://photos/seconds/newer"]


def test_one_list_for_a_thousand_files(through, proxy):
    names = {f"{n % 10}/{n}": b"%d" % n for n in range(2500)}
    tree(through.home / "many", names)
    through.fine("sync", "./many", "photos/many", "-j", "8", "--quiet")
    assert len(proxy.sent("GET")) <= 4 and len(proxy.sent("PUT")) == 2500
    proxy.requests.clear()
    assert summary(through.lines("sync", "./many", "photos/many", "-j", "8"))["transferred"] == 0
    assert 3 <= len(proxy.requests) <= 4


def test_watch_follows_the_source(client, launch, tmp_path):
    server = launch(extra="eventOptions: { watch: true }\n")
    environment = {"SLUICE_URL": server.url("")}
    tree(client.home / "site", {"a": b"1", "below/b": b"2"})
    client.fine("sync", "./site", "photos/followed", environment=environment)
    process = client.start("sync", "--watch", "--delete", "photos/followed", "./copy", environment=environment,
                           stderr=subprocess.DEVNULL)
    copy = client.home / "copy"
    try:
        before = {"a": b"1", "below/b": b"2"}
        wait_until(lambda: copy.exists() and content(copy) == before, what="the first run")
        name = sorted(before)[0]
        assert server.stop() == 0
        server.start()
        (client.home / "new").write_bytes(b"new")
        client.fine("put", "./new", "photos/followed/later/new", environment=environment)
        wait_until(lambda: (copy / "later" / "new").exists(), what="a new object")
        client.fine("rm", f"photos/followed/{name}", environment=environment)
        wait_until(lambda: not (copy / name).exists(), what="a deletion")
        assert {key: value for key, value in content(copy).items() if key != "later/new"} == {
            key: value for key, value in before.items() if key != name}
        client.fine("rm", "-R", "photos/followed", environment=environment)
        wait_until(lambda: not content(copy), what="an emptied source")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    status, _, err = client.run("sync", "--watch", "./site", "photos/x", environment=environment)
    assert status == 1 and "remote source" in err
    assert client.run("sync", "--watch", "--dry-run", "photos/x", "./y", environment=environment)[0] == 64
