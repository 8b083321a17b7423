"""Lists over the Firebase Storage protocol, their pages, and pages of other origins."""

import pytest

import wire as wire_client
from firebase import Firebase, refused


@pytest.fixture
def tree(client, folder):
    for name in ("a", "b", "prefix/c", "prefix/d/e", "z"):
        client.stored(f"{folder}/{name}", b"")
    return folder


def names(page, folder):
    return [item["name"][len(folder) + 1:] for item in page["items"]], [prefix[len(folder) + 1:] for prefix in page["prefixes"]]


def test_a_list(each, folder):
    for name in ("a", "b", "prefix/c", "z"):
        each.stored(f"{folder}/{name}", b"")
    answer = each.list(prefix=f"{folder}/", delimiter="/")
    assert answer.status == 200 and answer.json == {
        "prefixes": [f"{folder}/prefix/"],
        "items": [{"name": f"{folder}/{name}", "bucket": "photos"} for name in ("a", "b", "z")]}, answer
    assert names(each.list(prefix=f"{folder}/").json, folder) == (["a", "b", "prefix/c", "z"], [])
    assert each.list(prefix=f"{folder}/none/", delimiter="/").json == {"prefixes": [], "items": []}


def test_the_root(client, tree):
    for path in ("?delimiter=/", "?prefix=&delimiter=%2F", "/?delimiter=/&maxResults=1000"):
        page = client.call("GET", path).json
        assert f"{tree}/" in page["prefixes"] and not any(item["name"].startswith(tree) for item in page["items"])


def test_pages_count_prefixes_and_items_together(client, tree):
    pages, token = [], ""
    while token is not None:
        page = client.list(prefix=f"{tree}/", delimiter="/", maxResults=2, pageToken=token).json
        pages.append(names(page, tree))
        token = page.get("nextPageToken")
    assert pages == [(["a", "b"], []), (["z"], ["prefix/"])]
    one, token = [], ""
    while token is not None:
        page = client.list(prefix=f"{tree}/", delimiter="/", maxResults=1, pageToken=token).json
        one += page["items"] + page["prefixes"]
        token = page.get("nextPageToken")
    assert [entry if isinstance(entry, str) else entry["name"] for entry in one] == [
        f"{tree}/a", f"{tree}/b", f"{tree}/prefix/", f"{tree}/z"]


def test_page_tokens_belong_to_their_list(client, tree):
    token = client.list(prefix=f"{tree}/", delimiter="/", maxResults=1).json["nextPageToken"]
    for query in ({"prefix": f"{tree}/prefix/", "delimiter": "/"}, {"delimiter": "/"}, {"prefix": f"{tree}/"}):
        refused(client.list(pageToken=token, **query), 400)
    for wrong in ("x", token[:-1], token + "A", "!"):
        refused(client.list(prefix=f"{tree}/", delimiter="/", pageToken=wrong), 400)


@pytest.mark.parametrize("query", ["prefix=a", "prefix=a%2F%2F", "prefix=a/b", "delimiter=x", "delimiter=//", "maxResults=0", "maxResults=x",
                                   "maxResults=-1", "maxResults=", "prefix=%ff/", "prefix=a/&prefix=b/", "prefix=%0a/"])
def test_malformed_lists(client, query):
    text = refused(client.call("GET", f"?{query}"), 400)
    if query in ("prefix=a", "prefix=a%2F%2F", "prefix=a/b"):
        assert text == "The prefix parameter is required to be empty or ends with a single / character."


def test_more_results_than_a_page_has(client, tree):
    for many in ("1000", "1001", "99999999999999999999999"):
        assert len(client.list(prefix=f"{tree}/", maxResults=many).json["items"]) == 5


def test_lists_are_decided_by_rules(ruled):
    client = ruled()
    client("alice").stored("open/a")
    assert refused(client().list(prefix="users/alice/", delimiter="/"), 403) == "Permission denied. No LIST permission."
    assert client().list(prefix="open/", delimiter="/").json["items"] == [{"name": "open/a", "bucket": "photos"}]


def test_rules_of_version_1_list_nothing(launch, tmp_path):
    rules = tmp_path / "storage.rules"
    rules.write_text("service firebase.storage { match /b/{b}/o { match /{n=**} { allow read, write; } } }\n")
    client = Firebase(wire_client.Wire(launch(extra="firebase: true\n", rules=rules)))
    native = client.wire.call("GET", "/b/photos/o").json["detail"]
    assert refused(client.list(), 400) == native


EXPOSED = ("Content-Type, Content-Length, Content-Range, ETag, X-Request-Id, X-Firebase-Storage-Version, X-Goog-Upload-Chunk-Granularity, "
           "X-Goog-Upload-Command, X-Goog-Upload-Control-URL, X-Goog-Upload-Header-Content-Length, X-Goog-Upload-Header-Content-Type, "
           "X-Goog-Upload-Protocol, X-Goog-Upload-Size-Received, X-Goog-Upload-Status, X-Goog-Upload-URL, X-GUploader-UploadID, X-Goog-Hash, "
           "X-Goog-Generation, X-Goog-Metageneration")
ORIGIN = ("Origin", "https://app.example")
PREFLIGHT = [ORIGIN, ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization,x-goog-upload-command")]


def test_every_origin_by_default(each, folder):
    answer = each.call("OPTIONS", "?name=x", PREFLIGHT)
    assert answer.status == 204 and answer["access-control-allow-origin"] == "*"
    assert answer["access-control-allow-methods"] == "GET, HEAD, PUT, PATCH, POST, DELETE, OPTIONS"
    assert answer["access-control-allow-headers"] == "authorization,x-goog-upload-command" and answer["access-control-max-age"] == "3600"
    assert answer["access-control-allow-credentials"] is None and answer["vary"]
    for got in (each.put(f"{folder}/a", b"x", fields=[ORIGIN]), each.metadata(f"{folder}/a", ORIGIN), each.metadata(f"{folder}/none", ORIGIN),
                each.get(f"{folder}/a", ORIGIN), each.start(f"{folder}/b", fields=[ORIGIN]), each.call("TRACE", "/a", [ORIGIN])):
        assert got["access-control-allow-origin"] == "*" and got["access-control-expose-headers"] == EXPOSED, got
    # The native surface has none.
    native = each.wire.get(f"{folder}/a", ORIGIN)
    assert native["access-control-allow-origin"] is None and native["vary"] is None


def test_configured_origins_alone(launch):
    client = Firebase(wire_client.Wire(launch(extra='firebase: true\ncors: { origins: ["https://app.example"], maximumAge: 60s }\n')))
    answer = client.call("OPTIONS", "/a", PREFLIGHT)
    assert answer["access-control-allow-origin"] == "https://app.example" and answer["access-control-max-age"] == "60"
    assert "Origin" in ", ".join(answer.all("vary"))
    got = client.metadata("none", ("Origin", "https://other.example"))
    assert got["access-control-allow-origin"] is None and got["access-control-expose-headers"] is None
    assert client.wire.get("none", ORIGIN)["access-control-expose-headers"] == "*"
