"""The HTTP contract of lists: pages, prefixes, order, tokens, and names stored by other means."""

import base64
import contextlib
import hashlib
import re
import sqlite3
import threading
import urllib.parse

import pytest

import wire as wire_client


def listed(response):
    assert response.status == 200 and response["content-type"] == "application/json", response
    page = response.json
    assert set(page) <= {"prefixes", "items", "nextPageToken"} and set(page) >= {"prefixes", "items"}
    for item in page["items"]:
        assert set(item) == {"bucket", "fullPath", "name"}
        assert item["name"] == item["fullPath"].rsplit("/", 1)[-1]
    return page


def ask(client, bucket="photos", **parameters):
    return client.call("GET", f"/b/{bucket}/o?" + urllib.parse.urlencode(parameters))


def all_pages(client, bucket="photos", each=lambda page: None, **parameters):
    """The full paths and prefixes of all pages, in the order they came."""
    items, prefixes, token = [], [], {}
    while True:
        page = listed(ask(client, bucket, **parameters, **token))
        count = len(page["items"]) + len(page["prefixes"])
        assert count <= int(parameters.get("maxResults", 1000))
        items += [item["fullPath"] for item in page["items"]]
        prefixes += page["prefixes"]
        each(page)
        if "nextPageToken" not in page:
            return items, prefixes
        token = {"pageToken": page["nextPageToken"]}


@pytest.fixture
def seed(upstream, store):
    """Puts names below the HTTP surface: into the upstream, or, while the server is stopped, into its index."""
    def put(server, bucket, names):
        if upstream is not None:
            for name in names:
                upstream.put(store.buckets[bucket], name)
            return
        if server.process.poll() is None:
            assert server.stop() == 0
        insert(server.directory / bucket / "index.sqlite", names)
        server.start()

    return put


def insert(path, names):
    with contextlib.closing(sqlite3.connect(path)) as index, index:
        last = index.execute("SELECT last_generation FROM state").fetchone()[0]
        first = last + 1
        digest = hashlib.md5(b"").digest()
        index.executemany(
            "INSERT INTO objects(name, generation, metageneration, size, created, updated, md5, crc32c)"
            " VALUES (?, ?, 1, 0, 0, 0, ?, 0)",
            [(name, first + offset, digest) for offset, name in enumerate(names)])
        index.execute("UPDATE state SET last_generation = ?", (first + len(names),))


@pytest.fixture
def trees(launch, tmp_path, store):
    """A server of a test's own with two buckets."""
    directory = tmp_path / "s0"
    return launch(buckets="".join(f"  {name}: {{ {store(directory, name)} }}\n" for name in ("trees", "shrubs")))


def test_a_folder_and_the_bucket(wire, folder):
    for name in ("a.png", "images/b.png", "images/uid/c.png", "z"):
        wire.stored(f"{folder}/{name}")
    page = listed(wire.get(f"{folder}/"))
    assert page == {"prefixes": [f"{folder}/images/"], "items": [
        {"bucket": "photos", "fullPath": f"{folder}/a.png", "name": "a.png"},
        {"bucket": "photos", "fullPath": f"{folder}/z", "name": "z"}]}
    assert listed(wire.get(f"{folder}%2F")) == page
    assert listed(ask(wire, prefix=f"{folder}/", delimiter="/")) == page
    assert listed(wire.get(f"{folder}/?unknown=1&delimiter=/")) == page
    everything = [f"{folder}/{name}" for name in ("a.png", "images/b.png", "images/uid/c.png", "z")]
    for page in (ask(wire, prefix=f"{folder}/"), ask(wire, prefix=f"{folder}/", delimiter=""),
                 wire.get(f"{folder}/?delimiter=")):
        page = listed(page)
        assert [item["fullPath"] for item in page["items"]] == everything and page["prefixes"] == []
    assert [i["fullPath"] for i in listed(ask(wire, prefix=f"{folder}/im"))["items"]] == everything[1:3]
    assert listed(ask(wire, prefix=f"{folder}/im", delimiter="/"))["prefixes"] == [f"{folder}/images/"]
    assert listed(wire.get(f"{folder}/none/")) == {"prefixes": [], "items": []}
    assert listed(ask(wire, prefix=f"{folder}/z"))["items"][0]["name"] == "z"
    head = wire.head(f"{folder}/")
    assert head.status == 200 and head["content-length"] == str(len(wire.get(f"{folder}/").body))


def test_the_root(trees):
    for transport in wire_client.TRANSPORTS:
        client = wire_client.Wire(trees, transport)
        for name in ("b", "a/b", "a/c"):
            client.put(name, b"", bucket="trees")
        for path in ("/b/trees/o/", "/b/trees/o?delimiter=/"):
            page = listed(client.call("GET", path))
            assert page["prefixes"] == ["a/"] and [item["fullPath"] for item in page["items"]] == ["b"]
        page = listed(client.call("GET", "/b/trees/o"))
        assert page["prefixes"] == [] and [item["fullPath"] for item in page["items"]] == ["a/b", "a/c", "b"]
        assert listed(client.call("GET", "/b/shrubs/o/")) == {"prefixes": [], "items": []}


@pytest.mark.parametrize("query", [
    "maxResults=0", "maxResults=1001", "maxResults=-1", "maxResults=x", "maxResults=", "maxResults=1.0",
    "maxResults=99999999999999999999", "delimiter=x", "delimiter=//", "prefix=" + "x" * 1025, "prefix=a%00",
    "prefix=a%0Ab", "prefix=a%0D", "prefix=%FF", "prefix=%", "pageToken=", "pageToken=x", "pageToken=AAAAAAAAAAAAAAAA",
    "pageToken=%00", "view=", "view=all", "view=full&view=full", "maxResults=1&maxResults=2", "prefix=a&prefix=b",
])
def test_invalid_arguments(wire, query):
    wire.call("GET", "/b/photos/o?" + query).is_problem("invalid-argument")


@pytest.mark.parametrize("query", [
    "maxResults=1", "maxResults=1000", "prefix=" + "x" * 1024, "prefix=//", "prefix=../", "delimiter=%2F", "unknown=%", "",
    "&&", "view=names", "prefix=%E2%98%83+%26",
])
def test_valid_arguments(wire, query):
    listed(wire.call("GET", "/b/photos/o?" + query))


def test_a_full_view(wire, folder):
    """Items have the properties that the metadata has; S3 services do not list all of them."""
    for name, body in (("a.txt", b"hello"), ("b/c.png", b"x" * 1000), ("z", b"")):
        wire.put(f"{folder}/{name}", body)
    for target in (f"/b/photos/o/{folder}/?view=full", f"/b/photos/o?view=full&prefix={folder}/"):
        response = wire.call("GET", target)
        assert response.status == 200
        page = response.json
        names = [item["fullPath"] for item in page["items"]]
        assert names == sorted(names) and f"{folder}/a.txt" in names
        assert listed(wire.call("GET", target.replace("full", "names")))["prefixes"] == page["prefixes"]
        for item in page["items"]:
            metadata = wire.get(item["fullPath"] + "?metadata").json
            assert {"bucket", "fullPath", "name", "size", "updated", "etag"} <= set(item)
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", item.pop("updated"))
            assert item == {name: metadata[name] for name in item}
    first = ask(wire, prefix=f"{folder}/", maxResults=1, view="full").json
    second = ask(wire, prefix=f"{folder}/", maxResults=2, view="full", pageToken=first["nextPageToken"]).json
    assert [item["size"] for item in first["items"] + second["items"]] == ["5", "1000", "0"]


def test_a_folder_that_no_object_can_be_in(http1):
    for folder in ("a//", "../", "./", "%20/"):
        assert listed(http1.get(folder)) == {"prefixes": [], "items": []}
    for folder in ("%00/", "%0A/", "x" * 1024 + "/", "%FF/", "%/"):
        http1.get(folder).is_problem("invalid-name")
    http1.get("a/?prefix=b").is_problem("invalid-argument")


def test_pages_of_a_thousand(trees, seed):
    seed(trees, "trees", [f"n{number:05}" for number in range(2500)])
    client = wire_client.Wire(trees)
    sizes = []
    items, _ = all_pages(client, "trees", lambda page: sizes.append(len(page["items"])))
    assert items == [f"n{number:05}" for number in range(2500)] and sizes == [1000, 1000, 500]
    sizes.clear()
    all_pages(client, "trees", lambda page: sizes.append(len(page["items"])), maxResults=1000, prefix="n00")
    assert sizes == [1000]


def test_prefixes_and_items_count_together_in_byte_order(wire, folder):
    names = ["a", "a!b", "a/b", "a/c/d", "a0", "B", "z", "é", "e\u0301", "ﬁ", "\U0001F333/x", "\uffff", "\x01", " ", "~", "%41",
             "a/b/c", "A/1"]
    for name in names:
        wire.stored(f"{folder}/" + urllib.parse.quote(name, safe="/"))
    ordered = sorted((f"{folder}/{name}" for name in names), key=str.encode)
    for size in (1, 2, 3, 1000):
        items, prefixes = all_pages(wire, prefix=f"{folder}/", maxResults=size)
        assert items == ordered and prefixes == []
    folded = {f"{folder}/{name.split('/')[0]}/" for name in names if "/" in name}
    for size in (1, 2, 5, 1000):
        seen = []
        items, prefixes = all_pages(
            wire, each=lambda page: seen.append((page["prefixes"], [i["fullPath"] for i in page["items"]])),
            prefix=f"{folder}/", delimiter="/", maxResults=size)
        assert prefixes == sorted(folded, key=str.encode)
        assert items == [name for name in ordered if "/" not in name[len(folder) + 1:]]
        flat = [name for page in seen for name in sorted(page[0] + page[1], key=str.encode)]
        assert flat == sorted(prefixes + items, key=str.encode)


def test_names_that_can_not_be_requested_are_not_listed(trees, seed):
    seed(trees, "trees", ["correctPrefix/happyItem", "wrongPrefix//sadItem", "lonelyItem/"])
    for transport in wire_client.TRANSPORTS:
        client = wire_client.Wire(trees, transport)
        root = listed(client.call("GET", "/b/trees/o/"))
        assert root == {"prefixes": ["correctPrefix/", "lonelyItem/", "wrongPrefix/"], "items": []}
        inside = listed(client.get("correctPrefix/", bucket="trees"))
        assert [item["name"] for item in inside["items"]] == ["happyItem"]
        assert client.get("correctPrefix/happyItem", bucket="trees").status == 200
        for name in ("wrongPrefix/", "lonelyItem/", "wrongPrefix//"):
            assert listed(client.get(name, bucket="trees")) == {"prefixes": [], "items": []}
        items, prefixes = all_pages(client, "trees", maxResults=1)
        assert items == ["correctPrefix/happyItem"] and prefixes == []


def test_hidden_names_are_skipped_between_pages(trees, seed):
    hidden = [f"a{number:03}//x" for number in range(50)] + [f"b{number:03}/" for number in range(50)]
    hidden += ["/lead", "//", "x/", "c/../d", "c/./d", "..", ".", "c/..", ".well-known/acme-challenge/t", ".sluice/uploads/x", "line\nbreak", "d\r/x"]
    shown = ["a010", "b010/y", "zz"]
    seed(trees, "trees", hidden + shown)
    client = wire_client.Wire(trees)
    for size in (1, 2, 1000):
        items, _ = all_pages(client, "trees", maxResults=size)
        assert items == shown
        items, prefixes = all_pages(client, "trees", maxResults=size, delimiter="/")
        assert items == ["a010", "zz"]
        for prefix in prefixes:
            assert client.get(urllib.parse.quote(prefix), bucket="trees").status == 200, prefix


def token_of(client, bucket, **parameters):
    return listed(ask(client, bucket, maxResults=1, **parameters))["nextPageToken"]


def test_a_damaged_or_foreign_token(trees, seed):
    for bucket in ("trees", "shrubs"):
        seed(trees, bucket, ["a/1", "a/2", "a/3", "b/1", "b/2"])
    for transport in ("http1", "h2"):
        client = wire_client.Wire(trees, transport)
        token = token_of(client, "trees", prefix="a/")
        good = listed(ask(client, "trees", prefix="a/", pageToken=token))
        assert [item["name"] for item in good["items"]] == ["2", "3"]
        listed(ask(client, "trees", prefix="a/", pageToken=token, maxResults=7))
        for bucket, parameters in (("shrubs", {"prefix": "a/"}), ("trees", {"prefix": "b/"}), ("trees", {}),
                                   ("trees", {"prefix": "a/", "delimiter": "/"}), ("trees", {"prefix": "a"})):
            ask(client, bucket, pageToken=token, **parameters).is_problem("invalid-argument")
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for offset in range(len(raw)):
        broken = raw[:offset] + bytes([raw[offset] ^ 1]) + raw[offset + 1:]
        text = base64.urlsafe_b64encode(broken).decode().rstrip("=")
        ask(client, "trees", prefix="a/", pageToken=text).is_problem("invalid-argument")
    for text in (token[:-1], token + "A", token[1:], token + "=", "A" * 5000):
        ask(client, "trees", prefix="a/", pageToken=text).is_problem("invalid-argument")


def test_a_token_outlives_a_restart_and_works_on_another_replica(trees, launch, seed, store):
    names = ["a", "b", "c"]
    seed(trees, "trees", names)
    token = token_of(wire_client.Wire(trees), "trees")
    assert trees.stop() == 0
    trees.start()
    replica = launch(buckets=f"  trees: {{ {store(trees.directory, 'replica')} }}\n")
    for name in names:
        wire_client.Wire(replica).put(name, bucket="trees")
    for server in (trees, replica):
        page = listed(ask(wire_client.Wire(server), "trees", pageToken=token))
        assert [item["name"] for item in page["items"]] == ["b", "c"]


def test_pages_while_objects_come_and_go(trees, seed):
    """An object that exists throughout is returned exactly once, whatever happens around it."""
    seed(trees, "trees", [f"{folder:02}/keep{number:02}" for folder in range(20) for number in range(5)])
    kept = sorted(f"{folder:02}/keep{number:02}" for folder in range(20) for number in range(5))
    stop, client, failures = threading.Event(), wire_client.Wire(trees), []

    def churn(which):
        worker, number = wire_client.Wire(trees), 0
        try:
            while not stop.is_set():
                number += 1
                name = f"{number * 7 % 20:02}/{'a' if number % 2 else 'z'}{which}"
                assert worker.put(name, b"", bucket="trees").status in (200, 201)
                assert worker.delete(name, bucket="trees").status == 204
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    try:
        for size in (3, 7, 10):
            items, _ = all_pages(client, "trees", maxResults=size)
            assert [name for name in items if "keep" in name] == kept
            assert items == sorted(set(items))
            _, prefixes = all_pages(client, "trees", maxResults=size, delimiter="/")
            assert prefixes == [f"{folder:02}/" for folder in range(20)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def test_the_last_object_of_a_page_may_be_deleted(http1, folder):
    for name in "abcd":
        http1.stored(f"{folder}/{name}")
    token = listed(ask(http1, prefix=f"{folder}/", maxResults=2))["nextPageToken"]
    http1.delete(f"{folder}/b")
    page = listed(ask(http1, prefix=f"{folder}/", maxResults=2, pageToken=token))
    assert [item["name"] for item in page["items"]] == ["c", "d"] and "nextPageToken" not in page
