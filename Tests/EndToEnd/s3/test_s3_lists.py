"""Lists of objects by boto3: pages, delimiters, markers, versions and encodings."""

import itertools

import pytest

from s3_clients import fails

KEYS = ["a", "b/1", "b/2", "b/c/3", "d-e-1", "d-e-2", "d-f", "g/", "g/1", "z"]


@pytest.fixture(scope="module")
def filled(s3_clear):
    for key in KEYS:
        s3_clear.put_object(Bucket="photos", Key=f"lists/{key}", Body=key.encode())
    return "lists/"


def pages(s3, **query):
    """All pages of a list, by the second version; returns the keys and the prefixes."""
    keys, prefixes = [], []
    for _ in range(40):
        page = s3.list_objects_v2(Bucket="photos", **query)
        keys += [item["Key"] for item in page.get("Contents", [])]
        prefixes += [item["Prefix"] for item in page.get("CommonPrefixes", [])]
        assert page["KeyCount"] == len(page.get("Contents", [])) + len(page.get("CommonPrefixes", []))
        assert page["KeyCount"] <= page["MaxKeys"]
        if not page["IsTruncated"]:
            assert "NextContinuationToken" not in page
            return keys, prefixes
        query["ContinuationToken"] = page["NextContinuationToken"]
    raise AssertionError("the list does not end")


def expected(prefix, delimiter, names):
    """What S3 lists: the keys and the common prefixes."""
    keys, prefixes = [], []
    for name in names:
        if not name.startswith(prefix):
            continue
        end = name.find(delimiter, len(prefix)) if delimiter else -1
        if end < 0:
            keys.append(name)
        elif name[:end + len(delimiter)] not in prefixes:
            prefixes.append(name[:end + len(delimiter)])
    return keys, prefixes


@pytest.mark.parametrize(("prefix", "delimiter", "limit"), list(itertools.product(
    ["", "b/", "d-", "b", "g/", "none"], ["", "/", "-", "e-"], [1, 2, 3, 1000])))
def test_pages(s3_clear, filled, prefix, delimiter, limit):
    names = [filled + key for key in KEYS]
    found = pages(s3_clear, Prefix=filled + prefix, Delimiter=delimiter, MaxKeys=limit)
    assert found == expected(filled + prefix, delimiter, names)


@pytest.mark.parametrize("limit", [1, 2, 1000])
@pytest.mark.parametrize("delimiter", ["", "/", "-"])
def test_pages_of_the_first_version(s3_clear, filled, delimiter, limit):
    keys, prefixes, marker = [], [], ""
    for _ in range(40):
        page = s3_clear.list_objects(Bucket="photos", Prefix=filled, Delimiter=delimiter, MaxKeys=limit, Marker=marker)
        keys += [item["Key"] for item in page.get("Contents", [])]
        prefixes += [item["Prefix"] for item in page.get("CommonPrefixes", [])]
        assert all(item["Owner"]["DisplayName"] == "alice" for item in page.get("Contents", []))
        if not page["IsTruncated"]:
            break
        assert ("NextMarker" in page) == bool(delimiter)
        marker = page.get("NextMarker") or page["Contents"][-1]["Key"]
    assert (keys, prefixes) == expected(filled, delimiter, [filled + key for key in KEYS])


def test_the_properties_of_items(s3, filled):
    item = s3.list_objects_v2(Bucket="photos", Prefix=f"{filled}b/1")["Contents"][0]
    head = s3.head_object(Bucket="photos", Key=f"{filled}b/1")
    assert item["ETag"] == head["ETag"] and item["Size"] == 3 and item["StorageClass"] == "STANDARD"
    assert item["LastModified"] == head["LastModified"] and "Owner" not in item
    assert s3.list_objects_v2(Bucket="photos", Prefix=filled, FetchOwner=True)["Contents"][0]["Owner"]["DisplayName"] == "alice"


def test_the_list_of_buckets(s3):
    bucket, = s3.list_buckets()["Buckets"]
    assert bucket["Name"] == "photos"


def test_start_after(s3_clear, filled):
    keys, _ = pages(s3_clear, Prefix=filled, StartAfter=f"{filled}b/2", MaxKeys=2)
    assert keys == [filled + key for key in KEYS if key > "b/2"]
    keys, _ = pages(s3_clear, Prefix=filled, StartAfter="zzz")
    assert keys == []


def test_versions(s3_clear, filled):
    keys, marker = [], ""
    while True:
        page = s3_clear.list_object_versions(Bucket="photos", Prefix=filled, MaxKeys=3, KeyMarker=marker)
        for item in page["Versions"]:
            assert item["VersionId"] == "null" and item["IsLatest"] is True and item["Owner"]["DisplayName"] == "alice"
            keys.append(item["Key"])
        if not page["IsTruncated"]:
            break
        marker = page["NextKeyMarker"]
        assert page["NextVersionIdMarker"] == "null"
    assert keys == [filled + key for key in KEYS]


def test_limits_and_wrong_arguments(s3_clear, filled):
    page = s3_clear.list_objects_v2(Bucket="photos", Prefix=filled, MaxKeys=0)
    assert page["KeyCount"] == 0 and not page["IsTruncated"] and "Contents" not in page
    assert s3_clear.list_objects_v2(Bucket="photos", Prefix=filled, MaxKeys=5000)["MaxKeys"] == 1000
    for query in ({"MaxKeys": -1}, {"ContinuationToken": "nonsense"}, {"ContinuationToken": ""}):
        with fails(400, "InvalidArgument"):
            s3_clear.list_objects_v2(Bucket="photos", Prefix=filled, **query)
    token = s3_clear.list_objects_v2(Bucket="photos", Prefix=filled, MaxKeys=1)["NextContinuationToken"]
    with fails(400, "InvalidArgument"):
        s3_clear.list_objects_v2(Bucket="photos", Prefix=f"{filled}b", ContinuationToken=token)
    with fails(404, "NoSuchBucket"):
        s3_clear.list_objects_v2(Bucket="none")


@pytest.mark.parametrize("prefix", ["\n", "a\n", "x" * 1025, "a//"])
def test_prefixes_that_no_name_has(s3_clear, prefix):
    page = s3_clear.list_objects(Bucket="photos", Prefix=prefix, Delimiter="/")
    assert page["Prefix"] == prefix and "Contents" not in page and not page["IsTruncated"]


def test_more_objects_than_a_page(s3_clear, folder):
    names = [f"{folder}/{number:04}" for number in range(1100)]
    for name in names:
        s3_clear.put_object(Bucket="photos", Key=name, Body=b"")
    assert pages(s3_clear, Prefix=f"{folder}/") == (names, [])
    keys, prefixes = pages(s3_clear, Prefix=f"{folder}/", Delimiter="0")
    assert (keys, prefixes) == expected(f"{folder}/", "0", names)
    for first in (0, 1000):
        s3_clear.delete_objects(Bucket="photos", Delete={"Objects": [{"Key": name} for name in names[first:first + 1000]]})
    assert pages(s3_clear, Prefix=f"{folder}/") == ([], [])


def test_keys_that_end_in_the_delimiter(s3_clear, folder):
    names = [f"{folder}/{name}" for name in ("a-", "a-b", "a-c", "a-\U0010ffffx", "b", "c-")]
    for name in names:
        s3_clear.put_object(Bucket="photos", Key=name, Body=b"")
    for limit in (1, 2, 1000):
        found = pages(s3_clear, Prefix=f"{folder}/", Delimiter="-", MaxKeys=limit)
        assert found == ([f"{folder}/b"], [f"{folder}/a-", f"{folder}/c-"])
    with fails(400, "InvalidArgument"):
        s3_clear.list_objects_v2(Bucket="photos", Delimiter="x" * 1025)
