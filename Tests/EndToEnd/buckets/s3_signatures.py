"""Makes requests with botocore's signatures, which the Swift tests of the signer read.

To write them: `python Tests/EndToEnd/buckets/s3_signatures.py > Tests/CredentialsTests/Fixtures/signatures.jsonl`.
test_s3_signatures.py checks that the file is up to date.
"""

import datetime
import hashlib
import json
import random
import sys
import unittest.mock
import urllib.parse

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ODD = "".join(chr(code) for code in range(0x20, 0x7F)) + "äöü日本🌲\u0301\u00ad"
SAFE = "-_.~"
COUNT = 400


def text(random_, low, high, letters=ODD):
    return "".join(random_.choice(letters) for _ in range(random_.randint(low, high)))


def field_value(random_):
    letters = "abcXYZ019 \"'()/:;<=>?@[]{}~!#$%&*+-.^_`|,"
    words = [text(random_, 1, 9, letters.replace(" ", "")) for _ in range(random_.randint(1, 4))]
    return "".join(word + random_.choice([" ", "  ", "   "]) for word in words).strip()


def query(random_):
    pairs = []
    for _ in range(random_.choice([0, 0, 1, 2, 3, 5, 8])):
        name = urllib.parse.quote(text(random_, 1, 6, ODD + "aaabbA-_.~"), safe=SAFE)
        style = random_.randint(0, 5)
        if style == 0:
            pairs.append(name)
        elif style == 1:
            pairs.append(name + "=")
        else:
            pairs.append(name + "=" + urllib.parse.quote(text(random_, 0, 9), safe=SAFE))
    if pairs and random_.random() < 0.4:
        pairs.append(random_.choice(pairs).split("=")[0] + "=" + random_.choice(["", "0", "a%2Fb", "zz"]))
    random_.shuffle(pairs)
    return "&".join(pairs)


def one(random_):
    method = random_.choice(["GET", "PUT", "HEAD", "DELETE", "POST"])
    host = random_.choice(["127.0.0.1:8333", "b.s3.eu-central-1.amazonaws.com", "[::1]:9000", "minio.internal"])
    scheme = random_.choice(["http", "https"])
    key = random_.choice(["", text(random_, 1, 40), "a//b/../c/./d", text(random_, 1, 12) + "/" + text(random_, 1, 12)])
    path = "/" + urllib.parse.quote("bucket/" + key, safe=SAFE + "/")
    target = path + ("?" + found if (found := query(random_)) else "")
    fields = []
    for _ in range(random_.randint(0, 4)):
        name = random_.choice(
            ["x-amz-meta-" + text(random_, 1, 8, "abcdefghijklmnop0123-"), "content-type", "range", "cache-control"]
        )
        if name not in [known for known, _ in fields]:
            fields.append([name, field_value(random_)])
    body = bytes(random_.randrange(256) for _ in range(random_.choice([0, 0, 1, 20, 300])))
    payload = random_.choice(["bytes", "UNSIGNED-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"])
    secret = text(random_, 20, 80, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/")
    token = random_.choice([None, text(random_, 20, 300, "abcdefABCDEF0123456789+/=")])
    region = random_.choice(["us-east-1", "eu-central-1", "cn-north-1", "auto"])
    time = random_.randint(0, 4_000_000_000)

    class Auth(botocore.auth.S3SigV4Auth):
        def payload(self, request):
            return hashlib.sha256(body).hexdigest() if payload == "bytes" else payload

    request = AWSRequest(method, f"{scheme}://{host}{target}", headers=dict(fields), data=body)
    request.headers["host"] = host
    now = datetime.datetime.fromtimestamp(time, datetime.timezone.utc)
    # Only here: other tests of the process sign with the current time.
    with unittest.mock.patch("botocore.auth.get_current_datetime", lambda: now):
        Auth(Credentials("AKIDEXAMPLE", secret, token), "s3", region).add_auth(request)
    return {
        "method": method, "host": host, "target": target, "fields": fields, "body": body.hex(),
        "payload": payload, "secret": secret, "token": token, "region": region, "time": str(time),
        "authorization": request.headers["Authorization"],
    }


def lines():
    random_ = random.Random(20261121)
    return [json.dumps(one(random_), ensure_ascii=True, separators=(",", ":")) for _ in range(COUNT)]


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
