"""Signatures: raw requests, signed by botocore and by awscrt, and what is refused of them."""

import base64
import datetime
import hashlib
import http.client
import re
import urllib.parse

import awscrt.auth
import awscrt.http
import awscrt.io
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

import s3_clients
from program import log_lines, wait_until

EMPTY = hashlib.sha256(b"").hexdigest()


class Raw:
    """Sends requests as they are."""

    def __init__(self, server, key):
        self.server, self.key = server, key
        self.host = f"127.0.0.1:{server.s3}"

    def send(self, method, target, fields=(), body=None):
        connection = http.client.HTTPConnection(self.host, timeout=60)
        names = {name.lower() for name, _ in fields}
        connection.putrequest(method, target, skip_accept_encoding=True, skip_host="host" in names)
        if body is not None and "content-length" not in names:
            connection.putheader("Content-Length", str(len(body)))
        for name, value in fields:
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        code = re.search(rb"<Code>(\w+)</Code>", text)
        return answer.status, code and code.group(1).decode(), text, answer.headers

    def signed(self, method, path, fields=None, body=b"", query="", payload=None, key=None, auth=S3SigV4Auth):
        """The fields of a request that botocore has signed."""
        payload = payload or hashlib.sha256(body).hexdigest()
        request = AWSRequest(method, f"http://{self.host}{path}{query}", headers=fields or {})
        key = key or self.key
        signer = auth(Credentials(key.id, key.secret), "s3", "us-east-1")
        signer.payload = lambda _: payload
        signer.add_auth(request)
        return list(request.headers.items())

    def call(self, method, path, fields=None, body=b"", query="", **more):
        return self.send(method, path + query, self.signed(method, path, fields, body, query, **more), body)


@pytest.fixture
def raw(s3_server, s3_key):
    return Raw(s3_server, s3_key)


def presigned(raw, method, path, expires=60, key=None):
    key = key or raw.key
    request = AWSRequest(method, f"http://{raw.host}{path}")
    S3SigV4QueryAuth(Credentials(key.id, key.secret), "s3", "us-east-1", expires).add_auth(request)
    return request.url[len(f"http://{raw.host}"):]


def test_a_signed_request(raw, folder):
    assert raw.call("PUT", f"/photos/{folder}/a", body=b"bytes")[0] == 200
    status, _, text, fields = raw.call("GET", f"/photos/{folder}/a")
    assert (status, text) == (200, b"bytes") and fields["x-amz-request-id"] and fields["date"]


def test_paths_that_clients_write_in_different_ways(raw, folder):
    """The path in the request and the path that was signed may be encoded differently (traps 8)."""
    for sent, signed in (("a+b@c(d)=e:f", "a%2Bb%40c%28d%29%3De%3Af"), ("g%2Bh", "g%2Bh"), ("i%2fj", "i/j"), ("k~l", "k~l")):
        fields = raw.signed("PUT", f"/photos/{folder}/{signed}", body=b"x")
        assert raw.send("PUT", f"/photos/{folder}/{sent}", fields, b"x")[:2] == (200, None), sent


@pytest.mark.parametrize("path", ["/photos/a//b", "/photos/./a", "/photos/a/../b"])
def test_paths_are_not_normalized(raw, path):
    assert raw.call("GET", path)[:2] == (404, "NoSuchKey")


@pytest.mark.parametrize(("change", "status", "code"), [
    ({"Authorization": None}, 200, None),
    ({"Authorization": "AWS AKIA:signature"}, 400, "InvalidRequest"),
    ({"Authorization": "AWS4-ECDSA-P256-SHA256 Credential=x"}, 400, "InvalidRequest"),
    ({"Authorization": "AWS4-HMAC-SHA256 nonsense"}, 400, "AuthorizationHeaderMalformed"),
    ({"Authorization": "Basic eA=="}, 400, "InvalidArgument"),
    ({"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}, 403, "SignatureDoesNotMatch"),
    ({"X-Amz-Content-SHA256": None}, 400, "InvalidRequest"),
    ({"X-Amz-Date": "20200101T000000Z"}, 400, "AuthorizationHeaderMalformed"),
    ({"X-Amz-Date": None}, 403, "AccessDenied"),
    ({"x-amz-meta-added": "1"}, 403, "AccessDenied"),
    ({"x-amz-copy-source": "photos/other"}, 403, "AccessDenied"),
    ({"Host": "elsewhere.example"}, 403, "SignatureDoesNotMatch")])
def test_altered_requests(raw, folder, change, status, code):
    target = f"/photos/{folder}/a"
    fields = {**dict(raw.signed("PUT", target, body=b"bytes")), **change}
    found = raw.send("PUT", target, [(name, value) for name, value in fields.items() if value is not None], b"bytes")
    assert found[:2] == (status, code), found


def test_a_wrong_signature_is_explained_without_the_right_one(raw, s3_server, folder):
    wrong = s3_clients.Key("mallory")
    wrong.id = raw.key.id
    target = f"/photos/{folder}/a"
    status, code, text, _ = raw.call("GET", target, key=wrong)
    assert (status, code) == (403, "SignatureDoesNotMatch")
    assert b"<StringToSign>AWS4-HMAC-SHA256" in text and b"<CanonicalRequest>GET" in text
    right = dict(raw.signed("GET", target))["Authorization"].split("Signature=")[1].encode()
    assert right not in text and right.decode() not in s3_server.output()


def test_unknown_keys_and_skewed_clocks(raw, folder, monkeypatch):
    unknown = s3_clients.Key("alice")
    assert raw.call("GET", "/photos/a", key=unknown)[:2] == (403, "InvalidAccessKeyId")
    late = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=16)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda remove_tzinfo=True: late.replace(tzinfo=None))
    status, code, text, _ = raw.call("GET", "/photos/a")
    assert (status, code) == (403, "RequestTimeTooSkewed")
    assert b"<MaxAllowedSkewMilliseconds>900000<" in text and b"<ServerTime>" in text and b"<RequestTime>" in text


def test_presigned_urls_are_whole_or_refused(raw, folder):
    url = presigned(raw, "GET", f"/photos/{folder}/none")
    assert raw.send("GET", url)[:2] == (404, "NoSuchKey")
    path, query = url.split("?")
    pairs = query.split("&")
    for pair in pairs:
        rest = "&".join(each for each in pairs if each != pair)
        status, code, *_ = raw.send("GET", f"{path}?{rest}")
        assert (status, code) in ((400, "AuthorizationQueryParametersError"), (403, "SignatureDoesNotMatch")), (pair, code)
    assert raw.send("GET", f"{path}?{pairs[0]}")[:2] == (400, "AuthorizationQueryParametersError")
    assert raw.send("GET", url + "&x-amz-signature=1")[0] in (400, 403)
    assert raw.send("GET", url, [("Authorization", "AWS4-HMAC-SHA256 x")])[:2] == (400, "InvalidArgument")
    assert raw.send("GET", f"{path}?AWSAccessKeyId=x&Signature=y&Expires=1")[:2] == (400, "InvalidRequest")
    assert raw.send("PUT", url, body=b"x")[:2] == (403, "SignatureDoesNotMatch")
    for more in (("x-amz-meta-a", "1"), ("x-amz-copy-source", "photos/a")):
        target = presigned(raw, "PUT", f"/photos/{folder}/a")
        assert raw.send("PUT", target, [more], b"x")[:2] == (403, "AccessDenied")


@pytest.mark.parametrize("seconds", [0, 604_801])
def test_the_lifetime_of_presigned_urls(raw, seconds):
    assert raw.send("GET", presigned(raw, "GET", "/photos/a", seconds))[:2] == (400, "AuthorizationQueryParametersError")


def test_a_presigned_url_ends(raw, monkeypatch):
    past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=100)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda remove_tzinfo=True: past.replace(tzinfo=None))
    status, code, text, _ = raw.send("GET", presigned(raw, "GET", "/photos/a", 50))
    assert (status, code) == (403, "AccessDenied") and b"Request has expired" in text and b"<Expires>" in text


def test_a_checksum_in_a_presigned_url_counts_for_nothing(raw, folder):
    """SDKs for JavaScript put the checksum of an empty body into the URL (trap 24)."""
    url = presigned(raw, "PUT", f"/photos/{folder}/a?x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32")
    assert raw.send("PUT", url, body=b"bytes")[0] == 200


def test_the_hash_of_the_body(raw, folder):
    target = f"/photos/{folder}/a"
    fields = raw.signed("PUT", target, payload=hashlib.sha256(b"other").hexdigest())
    assert raw.send("PUT", target, fields, b"bytes")[:2] == (400, "XAmzContentSHA256Mismatch")
    assert raw.call("GET", target)[:2] == (404, "NoSuchKey")
    assert raw.call("PUT", target, body=b"bytes", payload="UNSIGNED-PAYLOAD")[0] == 200
    for payload, code in (("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "NotImplemented"), ("nonsense", "InvalidRequest")):
        assert raw.call("PUT", target, body=b"bytes", payload=payload)[1] == code
    assert raw.call("GET", target, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER")[:2] == (400, "InvalidRequest")


# Chunks, signed by awscrt.

CHUNK = 64 * 1024


class Chunked:
    """An upload in chunks that awscrt has signed."""

    def __init__(self, raw, target, body, trailer=None):
        self.credentials = awscrt.auth.AwsCredentialsProvider.new_static(raw.key.id, raw.key.secret)
        self.raw, self.target, self.trailer = raw, target, trailer
        self.chunks = [body[start:start + CHUNK] for start in range(0, len(body), CHUNK)] + [b""]
        value = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" + ("-TRAILER" if trailer else "")
        fields = awscrt.http.HttpHeaders([
            ("Host", raw.host), ("Content-Encoding", "aws-chunked"), ("x-amz-decoded-content-length", str(len(body)))])
        if trailer:
            fields.add("x-amz-trailer", trailer[0])
        request = awscrt.http.HttpRequest("PUT", target, fields)
        self.when = datetime.datetime.now(datetime.timezone.utc)
        awscrt.auth.aws_sign_request(request, self.config(
            awscrt.auth.AwsSignatureType.HTTP_REQUEST_HEADERS, value)).result(20)
        self.fields = [(name, text) for name, text in request.headers]
        self.seed = dict(self.fields)["Authorization"].split("Signature=")[1]

    def config(self, kind, value=None):
        return awscrt.auth.AwsSigningConfig(
            algorithm=awscrt.auth.AwsSigningAlgorithm.V4, signature_type=kind, credentials_provider=self.credentials,
            region="us-east-1", service="s3", date=self.when, use_double_uri_encode=False, should_normalize_uri_path=False,
            signed_body_value=value, signed_body_header_type=awscrt.auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256)

    def signatures(self):
        """By this module's own code, because awscrt for Python can't sign chunks."""
        scope = f"{self.when:%Y%m%d}/us-east-1/s3/aws4_request"
        signer = SigV4Auth(Credentials(self.raw.key.id, self.raw.key.secret), "s3", "us-east-1")
        request = AWSRequest("PUT", "http://x/")
        request.context["timestamp"] = f"{self.when:%Y%m%dT%H%M%SZ}"
        before, found = self.seed, []
        for chunk in self.chunks:
            text = "\n".join(["AWS4-HMAC-SHA256-PAYLOAD", request.context["timestamp"], scope, before, EMPTY,
                              hashlib.sha256(chunk).hexdigest()])
            before = signer.signature(text, request)
            found.append(before)
        if self.trailer:
            name, value = self.trailer
            text = "\n".join(["AWS4-HMAC-SHA256-TRAILER", request.context["timestamp"], scope, before,
                              hashlib.sha256(f"{name}:{value}\n".encode()).hexdigest()])
            found.append(signer.signature(text, request))
        return found

    def body(self, change=lambda number, signature: signature):
        signatures = [change(number, signature) for number, signature in enumerate(self.signatures())]
        text = b""
        for chunk, signature in zip(self.chunks, signatures):
            text += f"{len(chunk):x};chunk-signature={signature}\r\n".encode() + chunk + (b"\r\n" if chunk else b"")
        if self.trailer:
            text += f"{self.trailer[0]}:{self.trailer[1]}\r\nx-amz-trailer-signature:{signatures[-1]}\r\n".encode()
        return text + b"\r\n"

    def send(self, body):
        return self.raw.send("PUT", self.target, self.fields, body)



def trailer_of(body):
    import base64
    import zlib
    return ("x-amz-checksum-crc32", base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode())


@pytest.mark.parametrize("size", [0, 10, CHUNK, 3 * CHUNK + 100])
@pytest.mark.parametrize("has_trailer", [False, True])
def test_signed_chunks(raw, folder, size, has_trailer):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    target = f"/photos/{folder}/a"
    upload = Chunked(raw, target, body, trailer_of(body) if has_trailer else None)
    assert upload.send(upload.body())[:2] == (200, None)
    status, _, text, fields = raw.call("GET", target)
    assert (status, text) == (200, body) and "content-encoding" not in fields
    # A chunk of another upload, a chunk twice, and each wrong signature.
    for number in range(len(upload.signatures())):
        changed = upload.body(lambda index, signature: "0" * 64 if index == number else signature)
        assert upload.send(changed)[:2] == (403, "SignatureDoesNotMatch"), number
    assert upload.send(upload.body()[:-1 - len(body) // 2])[0] == 400


def test_wrong_chunks(raw, folder):
    target = f"/photos/{folder}/a"
    body = bytes(2 * CHUNK)
    upload = Chunked(raw, target, body, trailer_of(body))
    whole = upload.body()
    for wrong, codes in (
            (whole.replace(trailer_of(body)[1].encode(), b"AAAAAA=="), {"SignatureDoesNotMatch"}),
            (whole.split(b"x-amz-checksum")[0] + b"\r\n", {"MalformedTrailerError"}),
            (whole[:CHUNK + 90] + b"0\r\n\r\n", {"IncompleteBody", "SignatureDoesNotMatch", "InvalidRequest"}),
            (b"ffffffffffffffff;chunk-signature=" + b"0" * 64 + b"\r\n", {"IncompleteBody", "InvalidRequest"}),
            (b"zz\r\n", {"IncompleteBody", "InvalidRequest"}), (b"1" * 2000, {"IncompleteBody", "InvalidRequest"})):
        status, code, *_ = upload.send(wrong)
        assert status in (400, 403) and code in codes, (wrong[:80], code)
    assert raw.call("GET", target)[:2] == (404, "NoSuchKey")


def test_unsigned_chunks_need_a_signature(raw, folder, s3_server):
    """MinIO once took the unsigned trailer mode for a request without a signature (trap 1)."""
    target = f"/photos/{folder}/a"
    body = b"5\r\nbytes\r\n0\r\nx-amz-checksum-crc32:%s\r\n\r\n" % trailer_of(b"bytes")[1].encode()
    fields = {"x-amz-trailer": "x-amz-checksum-crc32", "x-amz-decoded-content-length": "5", "Content-Encoding": "aws-chunked"}
    payload = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    right = raw.signed("PUT", target, fields, payload=payload)
    assert raw.send("PUT", target, right, body)[0] == 200
    for wrong in ("Signature=" + "0" * 64, "Signature=x"):
        changed = [(name, re.sub("Signature=.*", wrong, value) if name == "Authorization" else value) for name, value in right]
        assert raw.send("PUT", target, changed, body)[0] == 403
    for length in ("4", "6"):
        changed = raw.signed("PUT", target, {**fields, "x-amz-decoded-content-length": length}, payload=payload)
        assert raw.send("PUT", target, changed, body)[0] == 400
    without = {name: value for name, value in fields.items() if name != "x-amz-decoded-content-length"}
    assert raw.send("PUT", target, raw.signed("PUT", target, without, payload=payload), body)[:2] == (411, "MissingContentLength")
    other = raw.signed("PUT", target, {**fields, "x-amz-sdk-checksum-algorithm": "SHA256"}, payload=payload)
    assert raw.send("PUT", target, other, body)[:2] == (400, "InvalidRequest")
    wrong = body.replace(trailer_of(b"bytes")[1].encode(), b"AAAAAA==")
    assert raw.send("PUT", target, raw.signed("PUT", target, fields, payload=payload), wrong)[:2] == (400, "BadDigest")


@pytest.mark.parametrize("body", [
    b"<Delete>" + b"<a/>" * 100_000 + b"</Delete>", b"<Other><Object><Key>a</Key></Object></Other>",
    b"<Delete a='" + b"x" * 5000 + b"'><Object><Key>a</Key></Object></Delete>"])
def test_lists_that_take_long_to_parse(raw, body):
    fields = {"Content-MD5": base64.b64encode(hashlib.md5(body).digest()).decode()}
    answer = raw.call("POST", "/photos", fields, body, query="?delete")
    assert answer[:2] == (400, "MalformedXML")


@pytest.mark.parametrize(("field", "value"), [("if-match", '"0123"'), ("if-none-match", "*")])
def test_a_copy_onto_itself_has_conditions(raw, folder, field, value):
    assert raw.call("PUT", f"/photos/{folder}/a", {"content-type": "text/plain"}, b"x")[0] == 200
    copy = {"x-amz-copy-source": f"photos/{folder}/a", "x-amz-metadata-directive": "REPLACE", "content-type": "text/html"}
    assert raw.call("PUT", f"/photos/{folder}/a", {**copy, field: value})[:2] == (412, "PreconditionFailed")
    assert raw.call("HEAD", f"/photos/{folder}/a")[3]["content-type"] == "text/plain"
    assert raw.call("PUT", f"/photos/{folder}/a", {**copy, "if-match": "*"})[0] == 200
    assert raw.call("HEAD", f"/photos/{folder}/a")[3]["content-type"] == "text/html"


@pytest.mark.parametrize("names", [["x"] * 3000, [f"x{number}" for number in range(300)]])
def test_too_many_signed_fields(raw, names):
    credential = f"{raw.key.id}/20260101/us-east-1/s3/aws4_request"
    answer = raw.send("GET", "/photos/a", [
        ("x-amz-date", "20260101T000000Z"), ("x", "y" * 20_000),
        ("Authorization", f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host;{';'.join(names)}, "
                          f"Signature={'0' * 64}")])
    assert answer[:2] == (400, "AuthorizationHeaderMalformed")


@pytest.mark.parametrize("source", ["photos%2F{}%2Fa%2541", "photos/{}/a%2541", "/photos%2F{}%2Fa%2541"])
def test_the_source_of_a_copy_is_decoded_once(raw, folder, source):
    for name, body in (("a%2541", b"right"), ("aA", b"wrong")):
        assert raw.call("PUT", f"/photos/{folder}/{name}", {}, body)[0] == 200
    assert raw.call("PUT", f"/photos/{folder}/b", {"x-amz-copy-source": source.format(folder)})[0] == 200
    assert raw.call("GET", f"/photos/{folder}/b")[2] == b"right"


def test_the_condition_that_failed_is_named(raw, folder):
    raw.call("PUT", f"/photos/{folder}/a", {}, b"x")
    for field in ("If-Match", "If-None-Match"):
        answer = raw.call("PUT" if field == "If-None-Match" else "GET", f"/photos/{folder}/a", {
            field: "*" if field == "If-None-Match" else '"0"'})
        assert answer[:2] == (412, "PreconditionFailed") and f"<Condition>{field}<".encode() in answer[2]


def test_paths_without_a_bucket(raw):
    assert raw.call("GET", "//photos/a")[:2] == (404, "NoSuchBucket")


def test_no_secret_is_logged(raw, s3_server, folder):
    url = presigned(raw, "GET", f"/photos/{folder}/none")
    raw.send("GET", url)
    signature = urllib.parse.parse_qs(url.split("?")[1])["X-Amz-Signature"][0]
    wait_until(lambda: f"/photos/{folder}/none" in s3_server.output(), what="the access line")
    assert signature not in s3_server.output() and raw.key.secret not in s3_server.output()
    assert any(line.get("s3_operation") == "GetObject" for line in log_lines(s3_server, None))
