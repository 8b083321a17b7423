"""The HTTP contract of PATCH: a JSON Merge Patch (RFC 7396) of the writable properties, atomically."""

import json
import time

import pytest

PROPERTIES = ["cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType"]
READ_ONLY = ["bucket", "fullPath", "name", "generation", "metageneration", "size", "timeCreated", "updated", "etag",
             "md5Hash", "crc32c"]


@pytest.fixture
def name(folder):
    return f"{folder}/a.txt"


def test_only_named_properties_change(wire, name):
    before = wire.stored(name, b"x", "Cache-Control: no-cache", "X-Object-Meta-A: 1", "X-Object-Meta-B: 2")
    head = wire.head(name)
    # So that `updated` must move where it has three decimals.
    time.sleep(0.005)
    response = wire.patch(name, {"contentLanguage": "fr", "customMetadata": {"b": "3", "C": "4"}})
    assert response.status == 200 and response["content-type"] == "application/json"
    after = response.json
    changed = {"contentLanguage": "fr", "customMetadata": {"a": "1", "b": "3", "C": "4"}, "metageneration": "2",
               "updated": after["updated"]}
    assert after == {**before, **changed}
    assert after["updated"] > before["updated"]
    assert wire.metadata(name) == after
    again = wire.head(name)
    assert again["etag"] == head["etag"] == response["etag"]
    assert again["last-modified"] == head["last-modified"]
    assert again["x-object-generation"] == head["x-object-generation"]
    assert again["x-object-metageneration"] == "2"


@pytest.mark.parametrize("key", PROPERTIES)
def test_each_property_is_set_and_deleted(http1, name, key):
    http1.stored(name)
    assert http1.patch(name, {key: "text/x-y"}).json[key] == "text/x-y"
    after = http1.patch(name, {key: None}).json
    assert key not in after and after["metageneration"] == "3"
    assert http1.get(name).status == 200


def test_null_deletes_a_key_and_all_of_custom_metadata(wire, name):
    wire.stored(name, b"x", "X-Object-Meta-A: 1", "X-Object-Meta-B: 2")
    after = wire.patch(name, {"customMetadata": {"a": None, "none": None}}).json
    assert after["customMetadata"] == {"b": "2"}
    after = wire.patch(name, {"customMetadata": None}).json
    assert "customMetadata" not in after
    after = wire.patch(name, {"customMetadata": {"z": "1"}}).json
    assert after["customMetadata"] == {"z": "1"}
    after = wire.patch(name, {"customMetadata": {"z": None}}).json
    assert "customMetadata" not in after and after["metageneration"] == "5"


def test_an_empty_patch_counts(http1, name):
    before = http1.stored(name)
    assert http1.patch(name, {}).json["metageneration"] == "2"
    assert http1.patch(name, {"customMetadata": {}}).json["metageneration"] == "3"
    assert http1.metadata(name)["generation"] == before["generation"]


def refused(wire, name, change, *fields):
    before = wire.metadata(name)
    detail = wire.patch(name, change, *fields).is_problem("invalid-argument")
    assert wire.metadata(name) == before
    return detail


@pytest.mark.parametrize("key", [*READ_ONLY, "unknown", "Cachecontrol", "", "custom", "acl"])
def test_read_only_and_unknown_properties_are_named(http1, name, key):
    http1.stored(name)
    assert key in refused(http1, name, {"cacheControl": "private", key: "1"})
    assert key in refused(http1, name, {key: None, "cacheControl": "private"})


@pytest.mark.parametrize("value", [1, 1.5, True, False, [], ["a"], {}, {"a": "b"}])
def test_a_wrong_type_is_named(http1, name, value):
    http1.stored(name)
    for key in PROPERTIES:
        assert key in refused(http1, name, {"customMetadata": {"a": "1"}, key: value})
    assert "customMetadata.deep" in refused(http1, name, {"customMetadata": {"a": "1", "deep": value}})
    if not isinstance(value, dict):
        assert "customMetadata" in refused(http1, name, {"customMetadata": value})


@pytest.mark.parametrize("text", [
    b"", b"{", b"[]", b"1", b"null", b'"x"', b"{}{}", b"{}x", b"{'a':1}", b'{"cacheControl":"a",}', b'{"a":"\xff"}',
    b'{"cacheControl":"\\ud800"}', b"\xef\xbb\xbf{}", b"[" * 40_000, b'{"cacheControl":' * 4000,
    b'{"cacheControl": NaN}', b'{"cacheControl":"a\nb"}',
])
def test_a_body_that_is_not_a_json_object(http1, name, text):
    http1.stored(name)
    refused(http1, name, text)


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: x", "a\0b", "a\x7fb", " a", "a ", "x" * 2049])
def test_values_that_no_field_can_carry(http1, name, value):
    http1.stored(name)
    for key in PROPERTIES:
        assert key in refused(http1, name, {key: value})


def test_custom_metadata_has_at_most_8_kib(wire, name):
    wire.stored(name, b"x", "X-Object-Meta-Kept: " + "k" * 96)
    exact = {"key": "v" * (8192 - 100 - 3)}
    over = {"key": exact["key"] + "v"}
    assert "8192" in refused(wire, name, {"customMetadata": over})
    assert wire.patch(name, {"customMetadata": exact}).status == 200
    assert "8192" in refused(wire, name, {"customMetadata": {"x": ""}})
    replaced = {"kept": None, "key": "v" * 4000, "other": "é" * 2000}
    assert wire.patch(name, {"customMetadata": replaced}).json["customMetadata"].keys() == {"key", "other"}
    assert "customMetadata" in refused(wire, name, {"customMetadata": {"": "x"}})
    assert "customMetadata" in refused(wire, name, {"customMetadata": {"a\0": "x"}})


def test_an_upload_with_too_much_custom_metadata(wire, name):
    fields = [f"X-Object-Meta-K{n}: " + "v" * (2048 - 2) for n in range(4)]
    assert wire.put(name, b"x", *fields).status == 201
    wire.put(name, b"y", *fields, "X-Object-Meta-Z: ").is_problem("invalid-argument")
    assert wire.get(name).body == b"x"


def test_the_patch_may_have_a_content_type(http1, name):
    http1.stored(name)
    for type in ("application/json", "application/merge-patch+json; charset=utf-8", "Application/JSON"):
        assert http1.patch(name, {}, f"Content-Type: {type}").status == 200
    response = http1.patch(name, {}, "Content-Type: text/plain")
    response.is_problem("unsupported-media-type")
    assert "application/merge-patch+json" in response["accept-patch"]


def test_a_patch_that_is_too_long(http1, name):
    http1.stored(name)
    http1.patch(name, b" " * 70_000 + b"{}").is_problem("payload-too-large")
    assert http1.patch(name, b" " * 60_000 + b"{}").status == 200


def test_a_duplicate_key_changes_nothing_or_the_last_one_wins(http1, name):
    http1.stored(name)
    response = http1.patch(name, '{"cacheControl":"a","cacheControl":"b"}')
    stored = http1.metadata(name).get("cacheControl")
    assert (response.status, stored) in [(400, None), (200, "b")]


def test_any_text_survives(http1, name):
    http1.stored(name)
    pairs = {"a": "\u0000".replace("\0", "\u0001"), "\U0001F333": "\u2028\ud7ff\ue000\U0010FFFF", "q": "\"\\/\b\f\n\r\t"}
    text = json.dumps({"customMetadata": pairs})
    assert http1.patch(name, text).json["customMetadata"] == pairs
    text = json.dumps({"customMetadata": pairs}, ensure_ascii=False)
    assert http1.patch(name, text).json["customMetadata"] == pairs
    assert http1.metadata(name)["customMetadata"] == pairs


@pytest.mark.parametrize("field", ["Content-MD5: AAAAAAAAAAAAAAAAAAAAAA==", "Content-Digest: md5=:AAAA:", "Repr-Digest: a=?1"])
def test_a_patch_with_a_digest_is_rejected(http1, folder, field):
    before = http1.stored(f"{folder}/a")
    http1.patch(f"{folder}/a", {"cacheControl": "x"}, field).is_problem("invalid-argument")
    assert http1.metadata(f"{folder}/a") == before
