"""Small GETs with presigned URLs and large PUTs with signed hashes: Sluice beside other servers of S3."""

import datetime
import hashlib
import hmac
import json
import os
import urllib.parse

from measuring import SIZES, WORK, measure, request, table

KEY_ID, SECRET = "SLUICEBENCHMARKSKEYS", "a-secret-of-the-benchmarks-alone"
NOW = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
SCOPE = f"{NOW[:8]}/us-east-1/s3/aws4_request"


def identities():
    """SeaweedFS's file of keys."""
    path = WORK / "identities.json"
    path.write_text(json.dumps({"identities": [{
        "name": "bench", "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List"]}]}))
    return path


def signature(method, path, query, fields, payload):
    """Signature Version 4. The fields are ordered, and in lower case."""
    lines = "".join(f"{name}:{value}\n" for name, value in fields)
    canonical = f"{method}\n{path}\n{query}\n{lines}\n{';'.join(name for name, _ in fields)}\n{payload}"
    key = f"AWS4{SECRET}".encode()
    for part in SCOPE.split("/"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    text = f"AWS4-HMAC-SHA256\n{NOW}\n{SCOPE}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def presigned(url, method="GET", expires=86400):
    parts = urllib.parse.urlsplit(url)
    query = (f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={urllib.parse.quote(f'{KEY_ID}/{SCOPE}', safe='')}"
             f"&X-Amz-Date={NOW}&X-Amz-Expires={expires}&X-Amz-SignedHeaders=host")
    signed = signature(method, parts.path, query, [("host", parts.netloc)], "UNSIGNED-PAYLOAD")
    return f"{url}?{query}&X-Amz-Signature={signed}"


def signed_fields(url, method, payload):
    """The fields of a request whose body has this SHA-256."""
    parts = urllib.parse.urlsplit(url)
    fields = [("host", parts.netloc), ("x-amz-content-sha256", payload), ("x-amz-date", NOW)]
    signed = signature(method, parts.path, "", fields, payload)
    names = ";".join(name for name, _ in fields)
    return [f"{name}: {value}" for name, value in fields[1:]] + [
        f"authorization: AWS4-HMAC-SHA256 Credential={KEY_ID}/{SCOPE}, SignedHeaders={names}, Signature={signed}"]


def signed(rounds, servers):
    """CPU time of signed requests, HTTP/1.1 in clear text."""
    rows, body = {}, WORK / "body"
    for _ in range(rounds):
        for make in servers:
            with make(keys=True) as server:
                cells = rows.setdefault(server.name, {})
                url = server.url("small")
                assert request("PUT", presigned(url, "PUT"), os.urandom(1024)) in (200, 201)
                for label, urls, clients in (
                    ("GET 1 KiB, one URL", [presigned(url)], 16),
                    # One connection, because each client of h2load begins with the first URL.
                    ("GET 1 KiB, each URL once", [presigned(url, expires=90000 + index) for index in range(10000)], 1)):
                    rate, spent = measure(server, urls, 10000, clients, http1=True)
                    cells.setdefault(f"{label}, requests/s", []).append(rate)
                    cells.setdefault(f"{label}, CPU µs", []).append(rate and spent * 1e6)
                body.write_bytes(os.urandom(SIZES["16 MiB"]))
                url, digest = server.url("large"), hashlib.sha256(body.read_bytes()).hexdigest()
                rate, _ = measure(server, [url], 48, 4, body=body, method="PUT", http1=True,
                                  fields=signed_fields(url, "PUT", digest))
                cells.setdefault("PUT 16 MiB with its hash, MB/s", []).append(rate and rate * SIZES["16 MiB"] / 1e6)
    table("Signed requests of S3, one CPU (in brackets: Sluice's figure divided by the peer's)",
          rows, lambda value: f"{value:,.1f}", "sluice")
