"""Multipart uploads by boto3: parts in any order and at once, lists, copies, checksums, and their ends."""

import concurrent.futures
import hashlib
import os

import pytest

import s3_clients
from s3_clients import fails

MIB = 1 << 20
FIVE = os.urandom(5 * MIB)


def tag_of(*parts):
    digests = b"".join(hashlib.md5(part).digest() for part in parts)
    return f'"{hashlib.md5(digests).hexdigest()}-{len(parts)}"'


class Upload:
    def __init__(self, s3, key, **more):
        self.s3, self.where = s3, {"Bucket": "photos", "Key": key}
        self.where["UploadId"] = s3.create_multipart_upload(**self.where, **more)["UploadId"]
        self.tags = {}

    def part(self, number, body, **more):
        done = self.s3.upload_part(**self.where, PartNumber=number, Body=body, **more)
        assert done["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
        self.tags[number] = done["ETag"]
        return done

    def complete(self, numbers=None, **more):
        parts = [{"PartNumber": number, "ETag": self.tags[number]} for number in numbers or sorted(self.tags)]
        return self.s3.complete_multipart_upload(**self.where, MultipartUpload={"Parts": parts}, **more)

    def complete_small(self, **more):
        self.part(1, b"x")
        return self.complete(**more)

    def abort(self):
        return self.s3.abort_multipart_upload(**self.where)


@pytest.fixture
def upload(s3, folder):
    return Upload(s3, f"{folder}/a", ContentType="image/png", Metadata={"kind": "oak"})


def test_parts_in_any_order(s3, folder, upload):
    last = os.urandom(1000)
    for number, body in ((3, last), (1, FIVE), (2, FIVE)):
        upload.part(number, body)
    with fails(404, "NoSuchKey"):
        s3.get_object(Bucket="photos", Key=f"{folder}/a")
    done = upload.complete()
    assert done["ETag"] == tag_of(FIVE, FIVE, last) and done["Key"] == f"{folder}/a"
    got = s3.get_object(Bucket="photos", Key=f"{folder}/a")
    assert got["Body"].read() == FIVE + FIVE + last and got["ETag"] == done["ETag"]
    assert got["ContentType"] == "image/png" and got["Metadata"] == {"kind": "oak"}
    listed = s3.list_objects_v2(Bucket="photos", Prefix=f"{folder}/a")["Contents"][0]
    assert listed["ETag"] == done["ETag"] and listed["Size"] == 10 * MIB + 1000
    assert s3.get_object(Bucket="photos", Key=f"{folder}/a", IfMatch=done["ETag"], Range="bytes=0-3")["Body"].read() == FIVE[:4]
    s3.put_object(Bucket="photos", Key=f"{folder}/a", Body=b"x", IfMatch=done["ETag"])


def test_a_part_by_its_number(s3_clear, folder):
    upload = Upload(s3_clear, f"{folder}/a")
    upload.part(4, FIVE)
    upload.part(9, b"end")
    upload.complete()
    for method in (s3_clear.get_object, s3_clear.head_object):
        part = method(Bucket="photos", Key=f"{folder}/a", PartNumber=2)
        assert part["PartsCount"] == 2 and part["ContentLength"] == 3
        assert part["ContentRange"] == f"bytes {5 * MIB}-{5 * MIB + 2}/{5 * MIB + 3}"
        with fails(400, "InvalidPart" if method == s3_clear.get_object else "400"):
            method(Bucket="photos", Key=f"{folder}/a", PartNumber=3)


def test_a_part_of_a_store_that_knows_it(s3_clear, folder):
    upload = Upload(s3_clear, f"{folder}/a")
    upload.part(1, FIVE)
    upload.part(2, b"end")
    done = upload.complete()
    for number, body, first in ((1, FIVE, 0), (2, b"end", 5 * MIB)):
        wanted = f"bytes {first}-{first + len(body) - 1}/{5 * MIB + 3}", len(body), 2, done["ETag"]
        got = s3_clear.get_object(Bucket="photos", Key=f"{folder}/a", PartNumber=number)
        assert got["Body"].read() == body
        for part in (got, s3_clear.head_object(Bucket="photos", Key=f"{folder}/a", PartNumber=number)):
            assert (part["ContentRange"], part["ContentLength"], part["PartsCount"], part["ETag"]) == wanted
    for method, code in ((s3_clear.get_object, "InvalidPart"), (s3_clear.head_object, "400")):
        with fails(400, code):
            method(Bucket="photos", Key=f"{folder}/a", PartNumber=3)


def test_the_only_part_of_an_object(s3_clear, folder):
    for body in (b"", b"bytes"):
        s3_clear.put_object(Bucket="photos", Key=f"{folder}/a", Body=body)
        assert s3_clear.get_object(Bucket="photos", Key=f"{folder}/a", PartNumber=1)["Body"].read() == body
        assert s3_clear.head_object(Bucket="photos", Key=f"{folder}/a", PartNumber=1)["ContentLength"] == len(body)
        with fails(400, "InvalidPart"):
            s3_clear.get_object(Bucket="photos", Key=f"{folder}/a", PartNumber=2)


def test_a_replaced_part(launch, s3_key, tmp_path, folder):
    server = launch(s3=True, extra=f"s3: {{ keys: {s3_clients.write_keys(tmp_path / 'keys', s3_key)} }}\n")
    s3 = s3_clients.client(server, s3_key)
    upload = Upload(s3, f"{folder}/a")
    upload.part(1, os.urandom(5 * MIB))
    upload.part(1, FIVE)
    assert s3.list_parts(**upload.where)["Parts"][0]["ETag"] == upload.tags[1]
    upload.part(2, b"end")
    upload.complete()
    assert s3.get_object(Bucket="photos", Key=f"{folder}/a")["Body"].read() == FIVE + b"end"


def test_parts_at_once(s3, folder, upload):
    bodies = {number: os.urandom(5 * MIB) for number in range(1, 6)}
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda number: upload.part(number, bodies[number]), bodies))
    upload.complete()
    whole = b"".join(bodies[number] for number in sorted(bodies))
    assert s3.get_object(Bucket="photos", Key=f"{folder}/a")["Body"].read() == whole


def test_gaps_and_unlisted_parts(s3, folder, upload):
    upload.part(2, b"unlisted")
    upload.part(7, FIVE)
    upload.part(10_000, b"end")
    listed = s3.list_parts(**upload.where, MaxParts=2)
    assert [part["PartNumber"] for part in listed["Parts"]] == [2, 7] and listed["IsTruncated"]
    rest = s3.list_parts(**upload.where, PartNumberMarker=listed["NextPartNumberMarker"])
    assert [part["PartNumber"] for part in rest["Parts"]] == [10_000] and not rest["IsTruncated"]
    assert listed["Parts"][1]["ETag"] == upload.tags[7] and listed["Parts"][1]["Size"] == 5 * MIB
    assert upload.complete([7, 10_000])["ETag"] == tag_of(FIVE, b"end")
    assert s3.get_object(Bucket="photos", Key=f"{folder}/a")["Body"].read() == FIVE + b"end"


def test_wrong_completions(s3, folder, upload):
    upload.part(1, b"small")
    upload.part(2, b"end")
    with fails(400, "EntityTooSmall"):
        upload.complete()
    upload.part(1, FIVE)
    with fails(400, "InvalidPartOrder"):
        upload.complete([2, 1])
    with fails(400, "InvalidPartOrder"):
        upload.complete([1, 1])
    with fails(400, "InvalidPart"):
        s3.complete_multipart_upload(**upload.where, MultipartUpload={"Parts": [{"PartNumber": 3, "ETag": "x"}]})
    with fails(400, "InvalidPart"):
        s3.complete_multipart_upload(**upload.where, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": "x"}]})
    with fails(400, "MalformedXML"):
        s3.complete_multipart_upload(**upload.where, MultipartUpload={"Parts": []})
    for number in (0, 10_001):
        with fails(400, "InvalidArgument"):
            s3.upload_part(**upload.where, PartNumber=number, Body=b"x")
    # None of these has ended the upload.
    upload.complete([1, 2])
    assert s3.get_object(Bucket="photos", Key=f"{folder}/a")["Body"].read() == FIVE + b"end"


def test_the_end_is_repeatable(s3, folder, upload):
    upload.part(1, b"bytes")
    first = upload.complete()
    assert upload.complete()["ETag"] == first["ETag"]
    s3.delete_object(Bucket="photos", Key=f"{folder}/a")
    upload.complete()
    with fails(404, "NoSuchKey"):
        s3.get_object(Bucket="photos", Key=f"{folder}/a")


def test_completions_at_once(s3_clear, folder):
    for number in range(10):
        upload = Upload(s3_clear, f"{folder}/{number}")
        upload.part(1, FIVE)
        upload.part(2, b"end")
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            tags = {done["ETag"] for done in pool.map(lambda _: upload.complete(), range(6))}
        assert tags == {tag_of(FIVE, b"end")}
    with fails(404, "NoSuchUpload"):
        upload.complete([1])
    with fails(404, "NoSuchUpload"):
        s3_clear.list_parts(**upload.where)


def test_an_aborted_upload(s3, folder, upload):
    upload.part(1, b"bytes")
    upload.abort()
    for call in (upload.abort, upload.complete):
        with fails(404, "NoSuchUpload"):
            call()
    with fails(404, "NoSuchUpload"):
        s3.upload_part(**upload.where, PartNumber=2, Body=b"x")
    with fails(404, "NoSuchUpload"):
        s3.list_parts(**upload.where)
    with fails(404, "NoSuchKey"):
        s3.get_object(Bucket="photos", Key=f"{folder}/a")


def test_a_completed_upload_is_not_aborted(s3, upload):
    done = upload.complete_small()
    with fails(404, "NoSuchUpload"):
        upload.abort()
    assert upload.complete()["ETag"] == done["ETag"]


def test_another_object_or_token(s3, folder, upload):
    for wrong in ({"Key": f"{folder}/b"}, {"UploadId": upload.where["UploadId"][:-2] + "xx"}, {"UploadId": "nonsense"}):
        with fails(404, "NoSuchUpload"):
            s3.upload_part(**{**upload.where, **wrong}, PartNumber=1, Body=b"x")
    upload.abort()


def test_the_list_of_uploads(s3_clear, folder):
    uploads = [Upload(s3_clear, f"{folder}/{name}") for name in ("a", "b", "b", "c/d")]
    listed = s3_clear.list_multipart_uploads(Bucket="photos", Prefix=f"{folder}/")
    assert [item["Key"] for item in listed["Uploads"]] == [f"{folder}/{name}" for name in ("a", "b", "b", "c/d")]
    found = {item["UploadId"] for item in listed["Uploads"]}
    assert found == {each.where["UploadId"] for each in uploads}
    folded = s3_clear.list_multipart_uploads(Bucket="photos", Prefix=f"{folder}/", Delimiter="/")
    assert [item["Prefix"] for item in folded["CommonPrefixes"]] == [f"{folder}/c/"] and len(folded["Uploads"]) == 3
    keys, query = [], {}
    while True:
        page = s3_clear.list_multipart_uploads(Bucket="photos", Prefix=f"{folder}/", MaxUploads=1, **query)
        keys += [item["UploadId"] for item in page["Uploads"]]
        if not page["IsTruncated"]:
            break
        query = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
    assert len(keys) == 4 and set(keys) == found
    prefixes, query = [], {}
    for _ in range(5):
        page = s3_clear.list_multipart_uploads(Bucket="photos", Prefix=f"{folder}/", Delimiter="/", MaxUploads=1, **query)
        prefixes += [item["Prefix"] for item in page.get("CommonPrefixes", ())]
        keys += [item["UploadId"] for item in page.get("Uploads", ())]
        if not page["IsTruncated"]:
            break
        query = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
    assert prefixes == [f"{folder}/c/"] and len(keys) == 7 and not page["IsTruncated"]
    for each in uploads:
        each.abort()
    assert "Uploads" not in s3_clear.list_multipart_uploads(Bucket="photos", Prefix=f"{folder}/")


def test_parts_copied_from_an_object(s3, folder, upload):
    source = f"{folder}/source"
    s3.put_object(Bucket="photos", Key=source, Body=FIVE + b"0123456789")
    for number, more, part in ((1, {"CopySourceRange": f"bytes=0-{5 * MIB - 1}"}, FIVE),
                               (2, {"CopySourceRange": f"bytes={5 * MIB + 2}-{5 * MIB + 4}"}, b"234")):
        done = s3.upload_part_copy(**upload.where, PartNumber=number, CopySource=f"photos/{source}", **more)
        assert done["CopyPartResult"]["ETag"] == f'"{hashlib.md5(part).hexdigest()}"'
        upload.tags[number] = done["CopyPartResult"]["ETag"]
    with fails(416, "InvalidRange"):
        s3.upload_part_copy(**upload.where, PartNumber=3, CopySource=f"photos/{source}", CopySourceRange="bytes=0-99999999")
    for wrong in ("bytes=0-2,3-5", "0-2", "bytes=2-1", "bytes=a-b", "bytes=0"):
        with fails(400, "InvalidArgument"):
            s3.upload_part_copy(**upload.where, PartNumber=3, CopySource=f"photos/{source}", CopySourceRange=wrong)
    upload.complete()
    assert s3.get_object(Bucket="photos", Key=f"{folder}/a")["Body"].read() == FIVE + b"234"


def test_conditions_of_the_end(s3, folder, upload):
    upload.part(1, b"bytes")
    s3.put_object(Bucket="photos", Key=f"{folder}/a", Body=b"other")
    with fails(404, "NoSuchKey"):
        Upload(s3, f"{folder}/none").complete_small(IfMatch="*")
    with fails(412, "PreconditionFailed"):
        upload.complete(IfNoneMatch="*")
    with fails(412, "PreconditionFailed"):
        upload.complete(IfMatch='"900150983cd24fb0d6963f7d28e17f72"')
    upload.complete(IfMatch=f'"{hashlib.md5(b"other").hexdigest()}"')
    assert s3.get_object(Bucket="photos", Key=f"{folder}/a")["Body"].read() == b"bytes"


@pytest.mark.parametrize(("algorithm", "kind"), [
    ("CRC32", "COMPOSITE"), ("CRC32", "FULL_OBJECT"), ("CRC32C", "FULL_OBJECT"), ("CRC64NVME", "FULL_OBJECT"),
    ("SHA1", "COMPOSITE"), ("SHA256", "COMPOSITE")])
def test_checksums_of_parts(s3_clear, folder, algorithm, kind):
    upload = Upload(s3_clear, f"{folder}/a", ChecksumAlgorithm=algorithm, ChecksumType=kind)
    parts = []
    for number, body in ((1, FIVE), (2, b"end")):
        done = upload.part(number, body, ChecksumAlgorithm=algorithm)
        parts.append({"PartNumber": number, "ETag": done["ETag"], f"Checksum{algorithm}": done[f"Checksum{algorithm}"]})
    wrong = [{**parts[0], f"Checksum{algorithm}": parts[1][f"Checksum{algorithm}"]}, parts[1]]
    with fails(400, "InvalidPart"):
        s3_clear.complete_multipart_upload(**upload.where, MultipartUpload={"Parts": wrong})
    done = s3_clear.complete_multipart_upload(**upload.where, MultipartUpload={"Parts": parts})
    again = s3_clear.complete_multipart_upload(
        **upload.where, MultipartUpload={"Parts": parts}, **{f"Checksum{algorithm}": done[f"Checksum{algorithm}"]})
    assert again["ETag"] == done["ETag"]
    whole = s3_clear.put_object(Bucket="photos", Key=f"{folder}/b", Body=FIVE + b"end", ChecksumAlgorithm=algorithm)
    if kind == "FULL_OBJECT":
        assert done[f"Checksum{algorithm}"] == whole[f"Checksum{algorithm}"]
    else:
        assert done[f"Checksum{algorithm}"].endswith("-2")
    assert done["ChecksumType"] == kind
    head = s3_clear.head_object(Bucket="photos", Key=f"{folder}/a", ChecksumMode="ENABLED")
    assert head[f"Checksum{algorithm}"] == done[f"Checksum{algorithm}"]
    assert s3_clear.get_object(Bucket="photos", Key=f"{folder}/a", ChecksumMode="ENABLED")["Body"].read() == FIVE + b"end"


def test_an_upload_belongs_to_its_creator(launch, tmp_path, folder):
    keys = [s3_clients.Key("alice"), s3_clients.Key("bob")]
    server = launch(s3=True, extra=f"s3: {{ keys: {s3_clients.write_keys(tmp_path / 'keys', *keys)} }}\n")
    alice, bob, nobody = (s3_clients.client(server, key) for key in (*keys, None))
    upload = Upload(alice, f"{folder}/a")
    upload.part(1, b"bytes")
    for other in (bob, nobody):
        with fails(403, "AccessDenied"):
            other.upload_part(**upload.where, PartNumber=2, Body=b"x")
        with fails(403, "AccessDenied"):
            other.abort_multipart_upload(**upload.where)
        with fails(403, "AccessDenied"):
            other.list_parts(**upload.where)
        assert "Uploads" not in other.list_multipart_uploads(Bucket="photos")
    with fails(403, "AccessDenied"):
        nobody.create_multipart_upload(Bucket="photos", Key=f"{folder}/b")
    upload.complete()


def test_attributes_of_parts(s3, folder, upload):
    for number in (1, 4, 7):
        upload.part(number, FIVE)
    upload.part(9, b"last")
    upload.complete()
    ask = {"Bucket": "photos", "Key": f"{folder}/a", "ObjectAttributes": ["ObjectParts", "ObjectSize"]}
    found = s3.get_object_attributes(**ask)
    assert found["ObjectSize"] == 3 * len(FIVE) + 4
    parts = found["ObjectParts"]
    assert parts["TotalPartsCount"] == 4 and not parts["IsTruncated"] and parts["MaxParts"] == 1000
    assert [(part["PartNumber"], part["Size"]) for part in parts["Parts"]] == [
        (1, len(FIVE)), (2, len(FIVE)), (3, len(FIVE)), (4, 4)]
    parts = s3.get_object_attributes(**ask, MaxParts=2, PartNumberMarker=1)["ObjectParts"]
    assert parts["IsTruncated"] and parts["NextPartNumberMarker"] == 3 and parts["PartNumberMarker"] == 1
    assert [part["PartNumber"] for part in parts["Parts"]] == [2, 3]
    assert "Parts" not in s3.get_object_attributes(**ask, PartNumberMarker=4)["ObjectParts"]
    with fails(400, "InvalidArgument"):
        s3.get_object_attributes(**ask, MaxParts=-1)
