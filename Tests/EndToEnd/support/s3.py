"""Bodies, responses and limits for the tests of faults of S3 services."""

import hashlib

from faults import SMALL

#: Larger than the bodies that are kept in memory for a retry.
BODY = hashlib.shake_256(b"body").digest(1_300_000)
LARGE = hashlib.shake_256(b"large").digest(9 << 20)
NEWER = b"stored by somebody else meanwhile"
LIMITS = ("upstream: { connectTimeout: 10s, firstByteTimeout: 10s, progressTimeout: 1s, attempts: 3, retryDelay: 10ms, "
          "maximumRetryDelay: 50ms }\n")
#: Rules that need the whole body for their decision.
UNDECIDED = ("rules_version = '2';\nservice firebase.storage { match /b/{b}/o { match /{name=**} {\n"
             "  allow read, delete: if true;\n  allow write: if request.resource.md5Hash != 'none';\n} } }\n")
#: The request that makes an object visible.
VISIBLE = {"memory": ("PUT", r"uploads/\d+$"), "single": ("PUT", r"uploads/\d+$"), "parts": ("POST", "uploadId=")}
FAILED = b"<?xml version=\"1.0\"?><Error><Code>InternalError</Code><Message>We failed.</Message></Error>"
XML = {"content-type": "application/xml"}


def upload(broken, name, how, *fields):
    """Uploads in one request from memory, in one streamed request, or in parts; returns the body and the response."""
    body = SMALL if how == "memory" else BODY
    return body, broken.client.put(name, body, *fields, *(["Transfer-Encoding: chunked"] if how == "parts" else []))
