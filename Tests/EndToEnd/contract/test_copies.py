"""The HTTP contract of copies, moves and deletions of many objects."""

import json
from urllib.parse import quote

import pytest


def quoted(name):
    return quote(name, safe="")


def copy(wire, name, source, *fields, how="copyFrom", more="", change=None):
    body = None if change is None else json.dumps(change)
    fields = [*fields, *([] if change is None else ["Content-Type: application/json"])]
    return wire.call("POST", f"/b/photos/o/{name}?{how}={quoted(source)}{more}", fields, body)


def delete(wire, objects):
    body = objects if isinstance(objects, str) else json.dumps({"objects": objects})
    return wire.call("POST", "/b/photos/o?delete", ["Content-Type: application/json"], body)


@pytest.mark.parametrize("size", [0, 5, 4097, 300_000])
def test_a_copy_has_the_bytes_and_the_properties(wire, folder, size):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    source = wire.stored(f"{folder}/a", body, "Content-Type: text/plain", "Cache-Control: no-cache",
                         "X-Object-Meta-Kind: oak")
    response = copy(wire, f"{folder}/b", f"{folder}/a")
    assert response.status == 201 and response["location"] == f"/b/photos/o/{folder}/b", response
    made = response.json
    assert made == wire.metadata(f"{folder}/b")
    assert made["fullPath"] == f"{folder}/b" and made["generation"] != source["generation"]
    assert response["x-object-generation"] == made["generation"] and response["etag"] == f'"{made["etag"]}"'
    for key in ("size", "crc32c", "contentType", "cacheControl", "customMetadata"):
        assert made.get(key) == source.get(key), key
    assert wire.get(f"{folder}/b").body == body
    again = copy(wire, f"{folder}/b", f"{folder}/a")
    assert again.status == 200 and again.json["generation"] != made["generation"]
    wire.delete(f"{folder}/a")
    assert wire.get(f"{folder}/b").body == body


def test_a_body_changes_the_properties_of_the_copy(wire, folder):
    wire.stored(f"{folder}/a", b"bytes", "Content-Type: text/plain", "X-Object-Meta-A: 1", "X-Object-Meta-B: 2")
    change = {"contentType": "image/png", "customMetadata": {"a": None, "c": "3"}}
    made = copy(wire, f"{folder}/b", f"{folder}/a", change=change).json
    assert made["contentType"] == "image/png"
    assert {key.lower(): value for key, value in made["customMetadata"].items()} == {"b": "2", "c": "3"}
    assert wire.metadata(f"{folder}/a")["contentType"] == "text/plain"
    for wrong in ({"size": "7"}, {"nonsense": 1}, {"customMetadata": {"k": "v" * 9000}}):
        copy(wire, f"{folder}/c", f"{folder}/a", change=wrong).is_problem("invalid-argument")
    response = wire.call("POST", f"/b/photos/o/{folder}/c?copyFrom={quoted(folder)}%2Fa", ["Content-Type: text/plain"], "x")
    response.is_problem("unsupported-media-type")
    wire.missing(f"{folder}/c")


def test_a_move_leaves_one_object(wire, folder):
    source = wire.stored(f"{folder}/a", b"x" * 5000, "Content-Type: text/plain")
    response = copy(wire, f"{folder}/b", f"{folder}/a", how="moveFrom")
    assert response.status == 201 and response.json["crc32c"] == source["crc32c"], response
    wire.missing(f"{folder}/a")
    assert wire.get(f"{folder}/b").body == b"x" * 5000
    wire.stored(f"{folder}/a", b"other")
    assert copy(wire, f"{folder}/b", f"{folder}/a", how="moveFrom").status == 200
    assert wire.get(f"{folder}/b").body == b"other"
    copy(wire, f"{folder}/b", f"{folder}/a", how="moveFrom").is_problem("object-not-found")
    assert wire.get(f"{folder}/b").body == b"other"


def test_names_of_every_kind_are_copied(wire, folder):
    for name in ("a b", "ä", "a+b", "a%b", "a?b=c&d", "a'b\"c"):
        wire.stored(f"{folder}/{quote(name, safe='')}", b"bytes")
        response = wire.call("POST", f"/b/photos/o/{folder}/to?copyFrom={quote(folder + '/' + name, safe='')}")
        assert response.status in (200, 201), (name, response)


def test_preconditions_are_about_the_name_of_the_copy(wire, folder):
    source = wire.stored(f"{folder}/a", b"bytes")
    assert copy(wire, f"{folder}/b", f"{folder}/a", "If-None-Match: *").status == 201
    copy(wire, f"{folder}/b", f"{folder}/a", "If-None-Match: *").is_problem("precondition-failed")
    now = wire.metadata(f"{folder}/b")
    field = f"X-Object-Generation-Match: {now['generation']}"
    assert copy(wire, f"{folder}/b", f"{folder}/a", field).status == 200
    copy(wire, f"{folder}/b", f"{folder}/a", field).is_problem("precondition-failed")
    fits = f"&sourceGeneration={source['generation']}"
    assert copy(wire, f"{folder}/c", f"{folder}/a", more=fits).status == 201
    copy(wire, f"{folder}/d", f"{folder}/a", more="&sourceGeneration=7").is_problem("precondition-failed")
    copy(wire, f"{folder}/d", f"{folder}/a", how="moveFrom", more="&sourceGeneration=7").is_problem("precondition-failed")
    wire.missing(f"{folder}/d")
    assert wire.get(f"{folder}/a").body == b"bytes"


def test_bad_requests(wire, folder):
    wire.stored(f"{folder}/a", b"bytes")
    copy(wire, f"{folder}/b", f"{folder}/none").is_problem("object-not-found")
    copy(wire, f"{folder}/a", f"{folder}/a").is_problem("invalid-argument")
    copy(wire, f"{folder}/a", f"{folder}/a", how="moveFrom").is_problem("invalid-argument")
    for source in ("", "//x", "%ff", "a%00b", "x" * 1025):
        assert wire.call("POST", f"/b/photos/o/{folder}/b?copyFrom={source}").status == 400, source
    for more in ("&copyFrom=x", "&moveFrom=x", "&sourceGeneration=", "&sourceGeneration=-1", "&sourceGeneration=1&sourceGeneration=1"):
        copy(wire, f"{folder}/b", f"{folder}/a", more=more).is_problem("invalid-argument")
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        response = wire.call(method, f"/b/photos/o/{folder}/a?copyFrom={quoted(folder)}%2Fb", (), "{}")
        response.is_problem("method-not-allowed")
        assert response["allow"] == "POST, OPTIONS"
    assert wire.get(f"{folder}/a").body == b"bytes"


def test_many_objects_are_deleted_with_one_request(wire, folder):
    names = [f"{folder}/{number}" for number in range(30)]
    for name in names:
        wire.stored(name, b"bytes")
    kept = wire.metadata(names[0])
    objects = [{"name": names[0], "generation": "1"}, *names[1:], f"{folder}/none", f"{folder}//bad",
               {"name": names[1] + "x", "metageneration": "3"}]
    results = delete(wire, objects).json["results"]
    assert [entry["name"] for entry in results] == [*names, f"{folder}/none", f"{folder}//bad", names[1] + "x"]
    assert [entry["status"] for entry in results] == [412] + [204] * 29 + [404, 400, 404]
    assert results[0]["code"] == "precondition-failed" and "code" not in results[1] and results[31]["detail"]
    assert wire.metadata(names[0]) == kept
    for name in names[1:3]:
        wire.missing(name)
    fits = {"name": names[0], "generation": kept["generation"], "metageneration": kept["metageneration"]}
    assert delete(wire, [fits]).json["results"] == [{"name": names[0], "status": 204}]
    wire.missing(names[0])


def test_bad_deletions(http1, folder):
    http1.stored(f"{folder}/a", b"bytes")
    good = json.dumps(f"{folder}/a")
    for body in ("", "{", "[]", "{}", '{"objects": []}', '{"objects": "a"}', '{"objects": [1]}',
                 f'{{"objects": [{good}], "more": 1}}', f'{{"objects": [{{"name": {good}, "size": 1}}]}}',
                 f'{{"objects": [{{"name": {good}, "generation": 5}}]}}', f'{{"objects": [{{"name": {good}, "generation": "x"}}]}}',
                 '{"objects": [{"generation": "5"}]}', json.dumps({"objects": [f"{folder}/a"] * 1001})):
        delete(http1, body).is_problem("invalid-argument")
    delete(http1, json.dumps({"objects": ["x" * (2 << 20)]})).is_problem("payload-too-large")
    for method in ("GET", "PUT", "DELETE"):
        assert http1.call(method, "/b/photos/o?delete")["allow"] == "POST, OPTIONS"
    assert http1.get(f"{folder}/a").body == b"bytes"
    results = delete(http1, [f"{folder}/a"] * 1000).json["results"]
    # A service reports the deletion of a missing object as a success.
    assert len(results) == 1000 and {entry["status"] for entry in results} <= {204, 404}
    http1.missing(f"{folder}/a")
