"""The HTTP contract of object names: invalid names are rejected, and distinct names are distinct objects."""

import unicodedata

import pytest

import wire as wire_client
from program import Server

# Encoded names that are rejected, and a part of the error message.
BAD = {
    "%00": "NUL", "a%00b": "NUL at byte 1", "a%0Ab": "CR or LF at byte 1", "a%0Db": "CR or LF", "a%0d%0ab": "CR or LF",
    "%FF": "UTF-8 at byte 0", "ab%C3": "UTF-8 at byte 2", "%C0%AF": "UTF-8", "%ED%A0%80": "UTF-8", "%F5%80%80%80": "UTF-8",
    "%E0%80%AF": "UTF-8", "a%": "percent-encoding is malformed at byte 1", "a%2": "malformed", "a%zz": "malformed",
    "%%41": "malformed", "a%u0041": "malformed", "a//b": "empty segment", "a%2F/b": "empty segment", "a%2F%2Fb": "empty segment",
    "/a": "empty segment at byte 0", "%2Fa": "empty segment at byte 0", ".": "'.' or '..'", "..": "'.' or '..'",
    "a/.": "'.' or '..' at byte 2", "a/..": "'.' or '..'", "a/../b": "'.' or '..' at byte 2", "a/./b": "'.' or '..'",
    "../a": "'.' or '..'", "%2e%2e/a": "'.' or '..'", "a/%2E%2e/b": "'.' or '..'", "a%2F..%2Fb": "'.' or '..'", "./a": "'.' or '..'",
    ".sluice/x": ".sluice/", "%2Esluice%2fuploads/x": ".sluice/",
    ".well-known/acme-challenge/x": ".well-known", "%2ewell-known%2Facme-challenge%2Fx": ".well-known",
    "x" * 1025: "longer than 1024", "%C3%A9" * 512 + "x": "longer than 1024", "a/" * 512 + "b": "longer than 1024",
}


@pytest.mark.parametrize("name", BAD, ids=lambda name: name[:30])
def test_an_invalid_name_reports_the_limit_and_offset(wire, name):
    for response in (wire.put(name, b"x"), wire.get(name), wire.get(name + "?metadata"), wire.patch(name, {}),
                     wire.delete(name)):
        assert BAD[name] in response.is_problem("invalid-name")
    assert wire.head(name).status == 400


@pytest.mark.parametrize("name", ["a/", "a%2F", "a%2f", "a/b/", "", "%2F", "a//"])
def test_a_path_that_ends_in_a_slash_lists(wire, name):
    response = wire.get(name)
    assert response.status == 200 and set(response.json) >= {"prefixes", "items"}
    for method in ("PUT", "PATCH", "DELETE"):
        wire.call(method, f"/b/photos/o/{name}", body=b"{}").is_problem("invalid-name")


# Valid names, encoded, and the decoded name.
GOOD = {
    "x": "x", ".sluice": ".sluice", ".sluices/x": ".sluices/x", "d/.sluice/x": "d/.sluice/x", "...": "...", ".a": ".a", "a..b": "a..b", "..a/b..": "..a/b..", "a%2Fb": "a/b", "%61": "a", "a%2525": "a%25",
    "%252e%252e": "%2e%2e", "a%20b": "a b", "a+b": "a+b", "%E6%A3%AE/%F0%9F%8C%B3": "森/🌳", "%01%7F": "\x01\x7f", "%EF%BB%BFa": "\ufeffa",
    "%EF%BF%BD": "\ufffd", "a:b@c!$&'()*,;=~": "a:b@c!$&'()*,;=~", "%23%5B%5D%2A%3F": "#[]*?", "[a]*": "[a]*", "%22%5C": '"\\',
    "-rf": "-rf", "CON": "CON", "%EF%BF%BF": "\uffff", ".well-known/acme": ".well-known/acme", ".well-known/acme-challenges/x":
    ".well-known/acme-challenges/x", "d/.well-known/acme-challenge/x": "d/.well-known/acme-challenge/x", "metadata": "metadata",
    "%3Fmetadata": "?metadata", "o/b/o": "o/b/o", "%E2%80%A8": "\u2028", "x" * 1024: "x" * 1024, "%C3%A9" * 512: "é" * 512, "a/" * 511 + "bb":
    "a/" * 511 + "bb", "%09": "\t", "%20": " ", "a%20": "a ",
}


@pytest.mark.parametrize("encoded", GOOD, ids=lambda name: name[:30])
def test_every_other_name_is_decoded_once(wire, encoded):
    name = GOOD[encoded]
    json = wire.stored(encoded, name.encode())
    assert json["fullPath"] == name and json["name"] == name.rsplit("/", 1)[-1]
    response = wire.get(encoded)
    assert response.status == 200 and response.body == name.encode()
    assert wire.metadata(encoded)["fullPath"] == name
    everything = "".join("%%%02X" % byte for byte in name.encode())
    assert wire.get(everything).body == name.encode()
    assert wire.delete(encoded).status == 204


def test_names_are_compared_byte_by_byte(wire, folder):
    pairs = [tuple(unicodedata.normalize(form, text) for form in ("NFC", "NFD")) for text in ("é", "Å", "가")]
    pairs += [("a", "A"), ("ß", "ss"), ("K", "\u212a"), ("İ", "i"), ("a", "a\u200d"), ("a", "a "), ("ﬁ", "fi")]
    for first, second in pairs:
        encoded = [folder + "/" + "".join("%%%02X" % byte for byte in name.encode()) for name in (first, second)]
        wire.stored(encoded[0], b"first")
        wire.missing(encoded[1])
        wire.stored(encoded[1], b"second")
        for _ in range(2):
            assert wire.get(encoded[0]).body == b"first" and wire.get(encoded[1]).body == b"second"
        metadata = [wire.metadata(name) for name in encoded]
        assert [json["name"] for json in metadata] == [first, second]
        wire.patch(encoded[0], {"cacheControl": "private"})
        assert wire.get(encoded[0])["cache-control"] == "private" and wire.get(encoded[1])["cache-control"] == "private, max-age=0"
        assert len(wire.get(folder + "/").json["items"]) == 2
        wire.delete(encoded[0])
        wire.missing(encoded[0])
        assert wire.get(encoded[1]).body == b"second"
        wire.delete(encoded[1])


def test_an_object_and_a_folder_of_the_same_name(wire, folder):
    wire.stored(f"{folder}/a", b"file")
    wire.stored(f"{folder}/a/b", b"below")
    assert wire.get(f"{folder}/a").body == b"file" and wire.get(f"{folder}/a/b").body == b"below"
    json = wire.get(f"{folder}/").json
    assert json["prefixes"] == [f"{folder}/a/"] and [item["name"] for item in json["items"]] == ["a"]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    directory = tmp_path_factory.mktemp("narrow")
    paths = ("refuseDiscouraged: true", "maximumDepth: 3", "allowed: ['images/**', 'docs/*.pdf', 'docs/*/*']",
             "denied: ['**/secret/**', 'images/*.exe']")
    buckets = "".join(f"  b{number}: {{ directory: {{ path: {directory}/b{number} }}, paths: {{ {rule} }} }}\n"
                      for number, rule in enumerate(paths))
    running = Server(directory, buckets=buckets)
    yield running
    assert running.stop() == 0


RULED = [
    ("b0", ["a%23", "%5B", "a/%5D/b", "x*", "%3F", "x%2A"], ["a", "a%25", "a!b"]),
    ("b1", ["a/b/c/d", "a%2Fb%2Fc%2Fd"], ["a", "a/b/c"]),
    ("b2", ["other", "docs/a.txt", "docs/a/b/c", "images", "Images/a", "xdocs/a.pdf"],
     ["images/a", "images/a/b/c", "docs/a.pdf", "docs/.pdf", "docs/a/b"]),
    ("b3", ["secret/a", "x/secret/a", "x/secret/a/b", "images/a.exe"], ["secret", "x/secret", "images/x/a.exe", "a.exe"]),
]


@pytest.mark.parametrize("bucket, refused, taken", RULED, ids=["discouraged", "depth", "allowed", "denied"])
def test_an_operator_restricts_names(narrow, bucket, refused, taken):
    for transport in wire_client.TRANSPORTS:
        client = wire_client.Wire(narrow, transport)
        for name in refused:
            client.put(name, b"x", bucket=bucket).is_problem("invalid-name")
            client.get(name, bucket=bucket).is_problem("invalid-name")
            client.delete(name, bucket=bucket).is_problem("invalid-name")
        for name in taken:
            assert client.put(name, b"x", bucket=bucket).status in (200, 201)
            assert client.get(name, bucket=bucket).body == b"x"
