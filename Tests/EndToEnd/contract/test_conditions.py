"""The HTTP contract of preconditions and ranges (RFC 9110, sections 13 and 14)."""

import pytest

PAST, FUTURE = "Sat, 01 Jan 2000 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"
BODY = b"0123456789"


@pytest.fixture
def name(folder):
    return f"{folder}/a.txt"


def act(wire, method, name, *fields):
    if method == "PUT":
        return wire.put(name, b"new", *fields)
    if method == "PATCH":
        return wire.patch(name, {"cacheControl": "new"}, *fields)
    if method == "METADATA":
        return wire.get(name + "?metadata", *fields)
    return wire.call(method, f"/b/photos/o/{name}", fields)


# The effect of each condition on an existing object, for reads and for writes: 2 performs, 3 is 304, 4 is 412.
HERE = {
    "If-Match: *": (2, 2), "If-Match: {etag}": (2, 2), 'If-Match: "other", {etag}': (2, 2), 'If-Match: "other"': (4, 4),
    "If-Match: W/{etag}": (4, 4), "If-None-Match: *": (3, 4), "If-None-Match: {etag}": (3, 4),
    "If-None-Match: W/{etag}": (3, 4), 'If-None-Match: "a", {etag}': (3, 4), 'If-None-Match: "other"': (2, 2),
    f"If-Modified-Since: {PAST}": (2, 2), f"If-Modified-Since: {FUTURE}": (3, 2),
    "If-Modified-Since: {date}": (3, 2), "If-Modified-Since: nonsense": (2, 2),
    f"If-Unmodified-Since: {PAST}": (4, 4), f"If-Unmodified-Since: {FUTURE}": (2, 2),
    "If-Unmodified-Since: {date}": (2, 2), "If-Unmodified-Since: nonsense": (2, 2),
    "X-Object-Generation-Match: {generation}": (None, 2), "X-Object-Generation-Match: 1": (None, 4),
    "X-Object-Generation-Match: 0": (None, 4), "X-Object-Metageneration-Match: 1": (None, 2),
    "X-Object-Metageneration-Match: 2": (None, 4), "X-Object-Metageneration-Match: 0": (None, 4),
}


@pytest.mark.parametrize("condition", HERE)
def test_conditions_on_an_existing_object(wire, name, condition):
    for method in ("GET", "HEAD", "METADATA", "PUT", "PATCH", "DELETE"):
        before = wire.stored(name, BODY)
        head = wire.head(name)
        field = condition.format(etag=head["etag"], date=head["last-modified"], generation=before["generation"])
        reading, writing = HERE[condition]
        wanted = reading if method in ("GET", "HEAD", "METADATA") else writing
        if method == "METADATA" and wanted == 3:
            # It has no entity tag, so it is never unmodified.
            wanted = 2
        response = act(wire, method, name, field)
        if wanted is None:
            assert response.status in (200, 412)
            continue
        assert response.status // 100 == min(wanted, 4), (method, field, response)
        if wanted == 3:
            assert response.status == 304 and response.body == b"" and response["etag"] == head["etag"]
        if wanted == 4:
            if method == "HEAD":
                assert response.status == 412
            else:
                response.is_problem("precondition-failed")
            assert wire.metadata(name) == before and wire.get(name).body == BODY


# The effect on a PUT of a missing object (2 performs, 4 is 412). Other methods are 404, or 412 by their own header.
MISSING = {
    "If-Match: *": 4, 'If-Match: "x"': 4, "If-None-Match: *": 2, 'If-None-Match: "x"': 2,
    f"If-Modified-Since: {FUTURE}": 2, f"If-Unmodified-Since: {PAST}": 2, "X-Object-Generation-Match: 0": 2,
    "X-Object-Generation-Match: 5": 4, "X-Object-Metageneration-Match: 0": 2, "X-Object-Metageneration-Match: 1": 4,
}


@pytest.mark.parametrize("condition", MISSING)
def test_conditions_on_a_missing_object(wire, name, condition):
    for method in ("GET", "METADATA", "PATCH", "DELETE"):
        act(wire, method, name, condition).is_problem("object-not-found")
    response = act(wire, "PUT", name, condition)
    if MISSING[condition] == 2:
        assert response.status == 201
    else:
        response.is_problem("precondition-failed")
        wire.missing(name)


def test_several_conditions_hold_together(http1, name):
    json = http1.stored(name, BODY)
    good, bad = f"X-Object-Generation-Match: {json['generation']}", "X-Object-Metageneration-Match: 9"
    http1.delete(name, good, bad).is_problem("precondition-failed")
    http1.put(name, b"x", good, "If-None-Match: *").is_problem("precondition-failed")
    # If-Match takes precedence over If-Unmodified-Since, If-None-Match before If-Modified-Since (section 13.2.2).
    etag = http1.head(name)["etag"]
    assert http1.get(name, f"If-Match: {etag}", f"If-Unmodified-Since: {PAST}").status == 200
    assert http1.get(name, 'If-None-Match: "x"', f"If-Modified-Since: {FUTURE}").status == 200
    assert http1.get(name, 'If-None-Match: "x"', f"If-None-Match: {etag}").status == 304
    assert http1.get(name, f"If-Modified-Since: {FUTURE}", f"If-Modified-Since: {FUTURE}").status == 200
    assert http1.delete(name, good, f"If-Match: {etag}").status == 204


@pytest.mark.parametrize("field", [
    "If-Match: unquoted", 'If-None-Match: "open', "If-None-Match: ", "X-Object-Generation-Match: x",
    "X-Object-Generation-Match: -1", "X-Object-Metageneration-Match: 1.5", "X-Object-Generation-Match: ",
    "X-Object-Generation-Match: 1, 2", "X-Object-Generation-Match: 99999999999999999999",
])
def test_a_malformed_condition_is_not_ignored(http1, name, field):
    before = http1.stored(name, BODY)
    response = act(http1, "PUT", name, field)
    assert response.status in (400, 412), response
    response.is_problem("invalid-argument" if response.status == 400 else "precondition-failed")
    assert http1.metadata(name) == before


def test_the_entity_tag_of_replaced_bytes_no_longer_matches(wire, name):
    old = wire.put(name, b"a")["etag"]
    new = wire.put(name, b"a", f"If-Match: {old}")["etag"]
    assert new != old
    wire.put(name, b"b", f"If-Match: {old}").is_problem("precondition-failed")
    assert wire.get(name, f"If-None-Match: {new}").status == 304
    assert wire.patch(name, {}, f"If-Match: {new}", "X-Object-Metageneration-Match: 1").status == 200
    wire.patch(name, {}, "X-Object-Metageneration-Match: 1").is_problem("precondition-failed")


# Ranges of the ten digits.
RANGES = {
    "bytes=0-0": (0, 1), "bytes=0-9": (0, 10), "bytes=2-4": (2, 5), "bytes=9-9": (9, 10), "bytes=5-": (5, 10),
    "bytes=0-": (0, 10), "bytes=5-99": (5, 10), "bytes=0-18446744073709551616": (0, 10), "bytes=-1": (9, 10),
    "bytes=-10": (0, 10), "bytes=-99": (0, 10), "BYTES=2-4": (2, 5),
    "bytes=10-": None, "bytes=10-20": None, "bytes=99999999999999999999-": None, "bytes=-0": None,
}


@pytest.mark.parametrize("range", RANGES)
def test_a_single_range(wire, name, range):
    wire.stored(name, BODY)
    whole = wire.get(name)
    response = wire.get(name, f"Range: {range}")
    if RANGES[range] is None:
        response.is_problem("range-not-satisfiable")
        assert response["content-range"] == "bytes */10"
        return
    start, end = RANGES[range]
    assert response.status == 206 and response.body == BODY[start:end]
    assert response["content-range"] == f"bytes {start}-{end - 1}/10"
    assert response["content-length"] == str(end - start)
    for field in ("repr-digest", "etag", "last-modified", "content-type", "accept-ranges", "x-object-generation"):
        assert response[field] == whole[field]
    head = wire.head(name, f"Range: {range}")
    assert head.status == 200 and head["content-length"] == "10" and head["content-range"] is None


@pytest.mark.parametrize("range", [
    "bytes=0-1,3-4", "bytes=4-2", "bytes=a-b", "bytes=", "bytes=-", "bytes", "lines=1-2", "bytes=1-2-3",
    "bytes=0x1-2", "bytes=+1-2", "bytes=--1",
])
def test_other_than_a_single_range_gets_the_whole_object(wire, name, range):
    wire.stored(name, BODY)
    response = wire.get(name, f"Range: {range}")
    assert response.status == 200 and response.body == BODY and response["content-range"] is None


def test_ranges_of_an_empty_object(wire, name):
    wire.stored(name, b"")
    for range in ("bytes=0-", "bytes=0-0", "bytes=5-"):
        response = wire.get(name, f"Range: {range}")
        response.is_problem("range-not-satisfiable")
        assert response["content-range"] == "bytes */0"
    assert wire.get(name, "Range: bytes=-5").status in (200, 416)
    assert wire.get(name).body == b""


def test_ranges_of_a_large_object(wire, name):
    body = bytes(range(256)) * 4096
    wire.stored(name, body)
    for start, end in ((0, 1), (65535, 65537), (1_000_000, len(body)), (1, len(body) - 1)):
        response = wire.get(name, f"Range: bytes={start}-{end - 1}")
        assert response.status == 206 and response.body == body[start:end]


def test_if_range(wire, name):
    wire.stored(name, BODY)
    head = wire.head(name)
    part = "Range: bytes=2-4"
    assert wire.get(name, part, f"If-Range: {head['etag']}").status == 206
    # A date is a weak validator: the object may have been replaced twice in its second.
    for validator in (head["last-modified"], '"other"', f"W/{head['etag']}", PAST, FUTURE, "nonsense"):
        response = wire.get(name, part, f"If-Range: {validator}")
        assert response.status == 200 and response.body == BODY
    assert wire.get(name, f"If-Range: {head['etag']}").status == 200
    wire.get(name, "Range: bytes=50-", f"If-Range: {head['etag']}").is_problem("range-not-satisfiable")
    assert wire.get(name, "Range: bytes=50-", 'If-Range: "other"').status == 200


def test_conditions_precede_ranges(http1, name):
    http1.stored(name, BODY)
    etag = http1.head(name)["etag"]
    assert http1.get(name, "Range: bytes=2-4", f"If-None-Match: {etag}").status == 304
    http1.get(name, "Range: bytes=2-4", 'If-Match: "x"').is_problem("precondition-failed")
    assert http1.get(name, "Range: bytes=2-4", f"If-Match: {etag}").status == 206


def test_an_upload_with_a_content_range(wire, name):
    wire.put(name, BODY, "Content-Range: bytes 0-9/20").is_problem("invalid-argument")
    wire.missing(name)
    wire.stored(name, b"old")
    wire.put(name, BODY, "Content-Range: bytes 0-9/20").is_problem("invalid-argument")
    assert wire.get(name).body == b"old"
