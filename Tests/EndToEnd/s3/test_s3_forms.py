"""Uploads by forms of browsers (POST policies)."""

import base64
import hashlib
import urllib.error
import urllib.request

import pytest

import s3_clients


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def post(form, body, fields=(), file="x.txt", host=None):
    """Sends a form; returns the status, the fields and the body of the response."""
    boundary = "----boundary7351"
    parts = [*form["fields"].items(), *dict(fields).items()]
    text = b""
    for name, value in parts:
        text += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    text += (f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{file}"\r\n'
             "Content-Type: text/plain\r\n\r\n").encode() + body + f"\r\n--{boundary}--\r\n".encode()
    request = urllib.request.Request(form["url"], data=text, method="POST",
                                     headers={"Content-Type": f"multipart/form-data; boundary={boundary}",
                                              **({"Host": host} if host else {})})
    try:
        with urllib.request.build_opener(NoRedirect).open(request) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def presigned(s3, key, fields=None, conditions=None):
    form = s3.generate_presigned_post("photos", key, Fields=fields, Conditions=conditions)
    return form


def test_a_form_uploads(s3_clear, folder):
    form = presigned(s3_clear, f"{folder}/${{filename}}", {"success_action_status": "201", "x-amz-meta-kind": "oak"},
                     [{"success_action_status": "201"}, {"x-amz-meta-kind": "oak"}])
    status, fields, body = post(form, b"bytes", file="dir/a b.txt")
    assert status == 201 and b"<PostResponse>" in body and b"a b.txt</Key>" in body, (status, body)
    got = s3_clear.get_object(Bucket="photos", Key=f"{folder}/a b.txt")
    assert got["Body"].read() == b"bytes" and got["Metadata"] == {"kind": "oak"} and got["ContentType"] == "text/plain"
    assert fields["etag"] == got["ETag"]


@pytest.mark.parametrize(("digest", "status", "code"), [
    (base64.b64encode(hashlib.md5(b"bytes").digest()).decode(), 204, b""), ("nonsense", 400, b"InvalidDigest"),
    (base64.b64encode(hashlib.md5(b"other").digest()).decode(), 400, b"BadDigest")])
def test_the_digest_of_a_form(s3_clear, folder, digest, status, code):
    form = presigned(s3_clear, f"{folder}/digest", {"Content-MD5": digest}, [{"Content-MD5": digest}])
    found, _, body = post(form, b"bytes")
    assert found == status and code in body, (found, body)
    if status == 400:
        assert s3_clear.list_objects_v2(Bucket="photos", Prefix=f"{folder}/digest")["KeyCount"] == 0


@pytest.mark.parametrize("url", ["/photos", "/photos/", "/"])
def test_the_location_of_an_object(launch, tmp_path, url):
    key = s3_clients.Key("alice")
    server = launch(s3=True, extra=f"s3: {{ keys: {s3_clients.write_keys(tmp_path / 'keys', key)}, domains: [s3.test] }}\n")
    form = presigned(s3_clients.client(server, key), "a/b c", {"success_action_status": "201"}, [{"success_action_status": "201"}])
    host = "photos.s3.test" if url == "/" else "s3.test"
    status, fields, body = post({**form, "url": f"http://127.0.0.1:{server.s3}{url}"}, b"x", host=host)
    location = f"http://{host}{url.rstrip('/')}/a/b%20c"
    assert status == 201 and fields["Location"] == location and f"<Location>{location}</Location>".encode() in body, (fields, body)


@pytest.mark.parametrize(("size", "code"), [(2, b"EntityTooSmall"), (11, b"EntityTooLarge"), (5, None), (10, None)])
def test_the_size_is_that_of_the_policy(s3_clear, folder, size, code):
    form = presigned(s3_clear, f"{folder}/a", conditions=[["content-length-range", 3, 10]])
    status, _, body = post(form, bytes(size))
    assert (status == 204) if code is None else (status == 400 and code in body), (status, body)


def test_everything_is_covered(s3_clear, folder):
    form = presigned(s3_clear, f"{folder}/a", {"Content-Type": "text/html"}, [["starts-with", "$Content-Type", "text/"]])
    assert post(form, b"x")[0] == 204
    for name, value in (("x-amz-meta-a", "1"), ("success_action_redirect", "http://127.0.0.1:1/"), ("Content-Type", "image/png"),
                        ("key", f"{folder}/b")):
        changed = {**form, "fields": {**form["fields"], name: value}}
        status, _, body = post(changed, b"x")
        assert status == 403 and b"AccessDenied" in body, (name, status, body)
    assert post({**form, "fields": {**form["fields"], "x-ignore-this": "1"}}, b"x")[0] == 204
    forged = {**form["fields"], "x-amz-signature": "0" * 64}
    status, _, body = post({**form, "fields": forged}, b"x")
    assert status == 403 and b"SignatureDoesNotMatch" in body


@pytest.mark.parametrize(("field", "value", "status", "code"), [
    ("acl", "public-read", 400, b"AccessControlListNotSupported"), ("tagging", "<Tagging/>", 501, b"NotImplemented"),
    ("acl", "private", 204, b"")])
def test_fields_that_ask_for_what_no_bucket_has(s3_clear, folder, field, value, status, code):
    form = presigned(s3_clear, f"{folder}/a", {field: value}, [{field: value}])
    found, _, body = post(form, b"x")
    assert found == status and code in body, (found, body)


def test_a_policy_with_an_empty_condition(s3_clear, folder):
    status, _, body = post(presigned(s3_clear, f"{folder}/a", conditions=[{}]), b"x")
    assert status == 400 and b"InvalidPolicyDocument" in body, (status, body)


def test_a_redirect(s3_clear, folder):
    target = "http://127.0.0.1:1/done"
    form = presigned(s3_clear, f"{folder}/a", {"success_action_redirect": target}, [{"success_action_redirect": target}])
    status, fields, _ = post(form, b"x")
    assert status == 303 and fields["location"].startswith(f"{target}?bucket=photos&key="), (status, fields)


def test_a_form_without_a_policy_is_anonymous(s3_server, s3_clear, folder):
    form = {"url": f"http://127.0.0.1:{s3_server.s3}/photos", "fields": {"key": f"{folder}/a"}}
    assert post(form, b"x")[0] == 204
    assert s3_clear.get_object(Bucket="photos", Key=f"{folder}/a")["Body"].read() == b"x"
    status, _, body = post({**form, "fields": {}}, b"x")
    assert status == 400 and b"InvalidArgument" in body
    status, _, body = post({**form, "fields": {"key": "k", "x": "y" * 21_000}}, b"x")
    assert status == 400 and b"MaxPostPreDataLengthExceeded" in body
