"""The HTTP contract of single objects: uploads, downloads, metadata, deletion."""

import datetime
import email.utils
import hashlib
import re
import time
import unicodedata

import pytest

from digests import crc32c, md5

BODY = b"Quercus robur, thirty metres tall.\n"
KEYS = {"bucket", "fullPath", "name", "generation", "metageneration", "size", "timeCreated", "updated", "etag",
        "md5Hash", "crc32c", "contentType"}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def seconds(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def check_metadata(json, name, body, extra=frozenset()):
    assert set(json) == KEYS | set(extra)
    assert json["bucket"] == "photos"
    assert json["fullPath"] == name and json["name"] == name.rsplit("/", 1)[-1]
    assert json["size"] == str(len(body)) and re.fullmatch(r"[1-9]\d*", json["generation"])
    assert json["md5Hash"] == md5(body) and json["crc32c"] == crc32c(body)
    assert TIME.fullmatch(json["timeCreated"]) and TIME.fullmatch(json["updated"])
    assert abs(seconds(json["timeCreated"]) - time.time()) < 60
    assert json["etag"] and '"' not in json["etag"]


# Uploads


def test_upload_new_then_replaced(wire, folder):
    name = f"{folder}/images/forest.jpg"
    first = wire.put(name, BODY)
    assert first.status == 201
    assert first["content-type"] == "application/json"
    assert first["location"] == f"/b/photos/o/{name}"
    check_metadata(first.json, name, BODY)
    assert first.json["metageneration"] == "1" and first.json["timeCreated"] == first.json["updated"]
    assert first["etag"] == f'"{first.json["etag"]}"'

    second = wire.put(name, BODY + b"!")
    assert second.status == 200
    check_metadata(second.json, name, BODY + b"!")
    assert int(second.json["generation"]) > int(first.json["generation"])
    assert second.json["metageneration"] == "1" and second.json["etag"] != first.json["etag"]
    assert seconds(second.json["timeCreated"]) >= seconds(first.json["timeCreated"])
    assert wire.get(name).body == BODY + b"!"


def test_the_location_leads_to_the_object(wire, folder):
    for name in ("a%20b", "%C3%A9%23x", "100%25", "q%3Fmetadata", "plus+plus", "semi;colon,comma=&"):
        response = wire.put(f"{folder}/{name}", BODY)
        assert response.status == 201
        assert wire.call("GET", response["location"]).body == BODY


def test_equal_bytes_are_a_new_generation_with_none_of_the_old_metadata(wire, folder):
    name = f"{folder}/a.txt"
    first = wire.stored(name, BODY, "Content-Type: image/png", "Cache-Control: no-cache",
                        "Content-Disposition: inline", "Content-Encoding: br", "Content-Language: fr",
                        "X-Object-Meta-Key: value")
    assert {"cacheControl", "contentDisposition", "contentEncoding", "contentLanguage",
            "customMetadata"} <= set(first)
    wire.patch(name, {"cacheControl": "private"})
    second = wire.stored(name, BODY)
    check_metadata(second, name, BODY)
    assert second["contentType"] == "text/plain" or second["contentType"].startswith("text/plain;")
    assert second["generation"] != first["generation"] and second["metageneration"] == "1"
    assert second["etag"] != first["etag"]


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 65535, 65536, 65537, 131072, 1_000_003])
def test_every_size_round_trips(wire, folder, size):
    body = hashlib.shake_256(b"seed").digest(size)
    json = wire.stored(f"{folder}/o", body)
    check = dict(json, crc32c="") if size > 100_000 else json
    assert check["size"] == str(size) and check["md5Hash"] == md5(body)
    if size <= 100_000:
        assert json["crc32c"] == crc32c(body)
    response = wire.get(f"{folder}/o")
    assert response.body == body and response["content-length"] == str(size)


def test_a_chunked_upload_and_one_without_a_body(http1, folder):
    response = http1.call("PUT", f"/b/photos/o/{folder}/c", ["Transfer-Encoding: chunked"], BODY)
    assert response.status == 201 and response.json["size"] == str(len(BODY))
    response = http1.call("PUT", f"/b/photos/o/{folder}/none")
    assert response.status == 201 and response.json["size"] == "0"
    check_metadata(response.json, f"{folder}/none", b"", set())


def test_attributes_of_an_upload(wire, folder):
    name = f"{folder}/a.txt"
    fields = {
        "Content-Type": "text/vnd.trees; charset=utf-8", "Cache-Control": "public, max-age=300",
        "Content-Disposition": "attachment; filename=\"arbre.txt\"", "Content-Encoding": "gzip",
        "Content-Language": "fr, en", "X-Object-Meta-Species": "Quercus robur", "X-Object-Meta-n": "7",
    }
    json = wire.stored(name, BODY, *fields.items())
    assert json["contentType"] == fields["Content-Type"]
    assert json["cacheControl"] == fields["Cache-Control"]
    assert json["contentDisposition"] == fields["Content-Disposition"]
    assert json["contentEncoding"] == "gzip" and json["contentLanguage"] == "fr, en"
    assert json["customMetadata"] == {"species": "Quercus robur", "n": "7"}
    for response in (wire.get(name), wire.head(name)):
        for field, value in fields.items():
            assert response[field.lower()] == value
    assert wire.metadata(name) == json


EXTENSIONS = {
    "a.txt": "text/plain", "a.html": "text/html", "a.css": "text/css", "a.json": "application/json",
    "a.jpg": "image/jpeg", "a.JPG": "image/jpeg", "a.jpeg": "image/jpeg", "a.png": "image/png", "a.gif": "image/gif",
    "a.webp": "image/webp", "a.svg": "image/svg+xml", "a.pdf": "application/pdf", "a.mp4": "video/mp4",
    "a.mp3": "audio/mpeg", "a.xml": "", "a.zip": "application/zip", "a.tar.gz": "", "a.wasm": "application/wasm",
    "plain": "application/octet-stream", "a.nothing-known": "application/octet-stream",
    "d.png/file": "application/octet-stream", ".png": "", "a.": "application/octet-stream",
}


def test_content_type_by_extension(http1, folder):
    for name, wanted in EXTENSIONS.items():
        json = http1.stored(f"{folder}/{name}", b"x")
        got = http1.get(f"{folder}/{name}")["content-type"]
        assert json["contentType"] == got, name
        assert got.split(";")[0] == wanted or not wanted, (name, got)


# Downloads


def test_every_field_of_a_download(wire, folder):
    name = f"{folder}/a.png"
    json = wire.stored(name, BODY)
    response = wire.get(name)
    assert response.status == 200 and response.body == BODY
    assert response["content-length"] == str(len(BODY)) and response["content-type"] == "image/png"
    assert response["etag"] == f'"{json["etag"]}"'
    assert response["x-object-generation"] == json["generation"]
    assert response["x-object-metageneration"] == "1"
    assert response["x-content-type-options"] == "nosniff"
    assert response["accept-ranges"] == "bytes"
    assert f"md5=:{md5(BODY)}:" in response["repr-digest"] and f"crc32c=:{crc32c(BODY)}:" in response["repr-digest"]
    modified = email.utils.parsedate_to_datetime(response["last-modified"]).timestamp()
    assert modified == int(seconds(json["timeCreated"])) and response["last-modified"].endswith(" GMT")
    assert response["date"]
    head = wire.head(name)
    ignored = {"date", "x-request-id"}
    assert [f for f in head.fields if f[0] not in ignored] == [f for f in response.fields if f[0] not in ignored]


def test_a_file_name_outside_ascii_is_sent_in_ascii(wire, folder):
    name, given = f"{folder}/a.png", 'attachment; filename="имя.png"'
    wire.stored(name, BODY)
    assert wire.patch(name, {"contentDisposition": given}).json["contentDisposition"] == given
    expected = "attachment; filename=\"___.png\"; filename*=UTF-8''%D0%B8%D0%BC%D1%8F.png"
    for response in (wire.get(name), wire.head(name), wire.get(name, "Range: bytes=0-1")):
        assert response["content-disposition"] == expected, response
    assert wire.metadata(name)["contentDisposition"] == given


def test_an_encoded_object_is_sent_as_it_is_stored(wire, folder):
    name = f"{folder}/a.gz"
    wire.stored(name, BODY, "Content-Encoding: gzip")
    for accepted in ("identity", "gzip;q=0, *;q=1"):
        response = wire.get(name, f"Accept-Encoding: {accepted}")
        assert (response.status, response["content-encoding"], response["vary"]) == (200, "gzip", "Accept-Encoding")
        assert response.body == BODY
    assert wire.get(name, f"If-None-Match: {response['etag']}")["vary"] == "Accept-Encoding"
    wire.stored(name, BODY)
    assert wire.get(name)["vary"] is None


def test_custom_metadata_that_no_field_can_carry_exactly_is_in_the_json_alone(wire, folder):
    name = f"{folder}/a"
    wire.stored(name)
    pairs = {"plain": "visible ASCII", "Case": "kept in JSON", "not a token": "x", "accents": "é", "line": "a\r\nb: c",
             " blank": "x", "ends": "blank ", "tab": "a\tb", "clé": "x", "empty": "", "colon:": "x"}
    response = wire.patch(name, {"customMetadata": pairs})
    assert response.status == 200 and response.json["customMetadata"] == pairs
    assert wire.metadata(name)["customMetadata"] == pairs
    shown = {field: value for field, value in wire.get(name).fields if field.startswith("x-object-meta-")}
    assert shown == {"x-object-meta-plain": "visible ASCII", "x-object-meta-case": "kept in JSON",
                     "x-object-meta-empty": ""}


def test_keys_that_differ_only_in_case_stay_apart_in_the_json(http1, folder):
    name = f"{folder}/a"
    http1.stored(name)
    pairs = {"Key": "1", "key": "2"}
    assert http1.patch(name, {"customMetadata": pairs}).json["customMetadata"] == pairs
    assert http1.get(name)["x-object-meta-key"] is None


def test_keys_that_look_the_same_are_different(http1, folder):
    name = f"{folder}/a"
    http1.stored(name)
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    http1.patch(name, {"customMetadata": {composed: "1"}})
    both = {composed: "1", decomposed: "2"}
    assert http1.patch(name, {"customMetadata": {decomposed: "2"}}).json["customMetadata"] == both
    assert http1.metadata(name)["customMetadata"] == both
    swapped = {composed: "3", decomposed: "4"}
    assert http1.patch(name, {"customMetadata": swapped}).json["customMetadata"] == swapped
    assert http1.patch(name, {"customMetadata": {composed: None}}).json["customMetadata"] == {decomposed: "4"}


def test_more_custom_metadata_than_a_header_should_have(wire, folder):
    name = f"{folder}/many"
    wire.stored(name, BODY)
    pairs = {f"k{n}": "v" for n in range(64)}
    assert wire.patch(name, {"customMetadata": pairs}).status == 200
    shown = {field: value for field, value in wire.get(name).fields if field.startswith("x-object-meta-")}
    assert shown == {f"x-object-meta-{key}": value for key, value in pairs.items()}
    # All fields of these would have more than the 64 KiB that a header block can have.
    pairs |= {f"{n:x}": "" for n in range(2600)}
    assert wire.patch(name, {"customMetadata": pairs}).status == 200
    for response in (wire.get(name), wire.head(name)):
        assert response.status == 200 and not [field for field, _ in response.fields if field.startswith("x-object-meta-")]
    assert wire.get(name).body == BODY
    assert wire.metadata(name)["customMetadata"] == pairs


def test_metadata_as_json(wire, folder):
    name = f"{folder}/a"
    json = wire.stored(name, BODY)
    response = wire.get(name + "?metadata")
    assert response.status == 200 and response.json == json and response["content-type"] == "application/json"
    head = wire.head(name + "?metadata")
    assert head.status == 200 and head["content-length"] == response["content-length"]
    assert wire.get(name + "?metadata=&unknown=1").json == json
    assert wire.get(name + "?unknown=1").body == BODY


# Deletion


def test_deletion(wire, folder):
    name = f"{folder}/a"
    wire.stored(name)
    response = wire.delete(name)
    assert response.status == 204 and response.body == b""
    wire.missing(name)
    wire.get(name + "?metadata").is_problem("object-not-found")
    assert wire.head(name).status == 404
    wire.delete(name).is_problem("object-not-found")
    wire.patch(name, {"cacheControl": "x"}).is_problem("object-not-found")
    assert wire.put(name).status == 201


def test_generations_are_unique(http1, folder):
    seen = []
    for _ in range(5):
        seen.append(int(http1.stored(f"{folder}/a")["generation"]))
        http1.delete(f"{folder}/a")
    assert seen == sorted(set(seen))
