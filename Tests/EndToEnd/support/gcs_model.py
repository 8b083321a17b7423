"""A model of Google Cloud Storage's JSON API, as strict as the service in details that the emulators ignore.

It has preconditions on generations and metagenerations, chunks of 256 KiB, sessions that persist less than was sent,
verification of declared digests, merging patches and page tokens. `commits` has every object that became visible.
Of the XML API it has multipart uploads, whose objects have no md5.
"""

import base64
import email.utils
import functools
import hashlib
import html
import http.server
import itertools
import json
import re
import threading
import time
import urllib.parse

import digests
from secret_words import secret

QUANTUM = 256 * 1024
#: The least size of all parts of an upload but the last.
MINIMUM_PART = 5 << 20
#: Header fields of the XML API and the members of a resource for them.
PROPERTIES = {"content-type": "contentType", "cache-control": "cacheControl", "content-disposition": "contentDisposition",
              "content-encoding": "contentEncoding", "content-language": "contentLanguage"}
crc32c = functools.lru_cache(maxsize=4)(digests.crc32c)


def timestamp():
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + ".%06dZ" % (now % 1 * 1e6)


class Refused(Exception):
    def __init__(self, status, message="", fields=None):
        super().__init__(message)
        self.status, self.message, self.fields = status, message, fields or {}


class Model:
    """Buckets, objects, sessions and uploads in parts. Every request holds the lock."""

    def __init__(self):
        self.lock = threading.RLock()
        self.objects, self.sessions, self.uploads, self.rewrites, self.commits = {}, {}, {}, {}, []
        self.numbers = itertools.count()
        self.generation, self.buckets = 1_700_000_000_000_000, {"photos"}
        #: The maximum number of bytes that are kept of each chunk except the last; None for all.
        self.persisted = None
        #: The permissions that testIamPermissions grants; None for all.
        self.granted = None

    def next_generation(self):
        self.generation += 1
        return self.generation

    def check(self, query, found):
        """Checks a query's preconditions against an object, or None for a missing one."""
        def given(name):
            return int(query[name]) if name in query else None

        generation = found["generation"] if found else "0"
        if (wanted := given("ifGenerationMatch")) is not None and wanted != int(generation):
            raise Refused(412, "generation")
        if (unwanted := given("ifGenerationNotMatch")) is not None and unwanted == int(generation):
            raise Refused(304 if found else 412, "generation")
        if (wanted := given("ifMetagenerationMatch")) is not None:
            if not found or wanted != int(found["metageneration"]):
                raise Refused(412, "metageneration")

    def find(self, bucket, name, query):
        found, content = self.objects.get((bucket, name), (None, None))
        if found is None or query.get("generation", found["generation"]) != found["generation"]:
            raise Refused(404, f"No such object: {bucket}/{name}")
        return found, content

    def commit(self, bucket, query, metadata, content, content_type=None):
        name = metadata.get("name") or query.get("name")
        found, _ = self.objects.get((bucket, name), (None, None))
        self.check(query, found)
        facts = {"crc32c": crc32c(content)}
        if "componentCount" not in metadata:
            facts["md5Hash"] = digests.md5(content)
        for key, value in facts.items():
            if metadata.get(key, value) != value:
                raise Refused(400, f"Provided {key} doesn't match calculated")
        generation = str(self.next_generation())
        now = timestamp()
        made = {key: value for key, value in metadata.items() if value not in (None, {})}
        made.update(facts, kind="storage#object", name=name, bucket=bucket, generation=generation,
                    metageneration="1", size=str(len(content)), timeCreated=now, updated=now,
                    storageClass="STANDARD", etag=generation)
        if content_type and "contentType" not in made:
            made["contentType"] = content_type
        self.objects[bucket, name] = (made, content)
        if not name.startswith(".sluice/"):
            self.commits.append((name, generation))
        return made


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A response is written in two pieces, and the second one must not wait for an acknowledgement.
    disable_nagle_algorithm = True

    def log_message(self, *arguments):
        pass

    def respond(self, status, content=b"", fields=None):
        if isinstance(content, (dict, list)):
            content = json.dumps(content).encode()
            fields = {"content-type": "application/json; charset=UTF-8", **(fields or {})}
        self.send_response(status)
        for name, value in (fields or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def body(self):
        if "chunked" in self.headers.get("transfer-encoding", ""):
            blocks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                blocks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(blocks)
        length = int(self.headers.get("content-length", 0))
        content = self.rfile.read(length)
        if len(content) < length:
            raise ConnectionError("a body that broke off")
        return content

    def handle_request(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        try:
            content = self.body()
            with self.server.model.lock:
                status, response, fields = self.route(url.path, query, content)
        except Refused as refused:
            error = {"error": {"code": refused.status, "message": refused.message}}
            status, response, fields = refused.status, error, refused.fields
            if status == 304:
                response = b""
        except ConnectionError:
            self.close_connection = True
            return
        self.respond(status, response, fields)

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = do_HEAD = handle_request

    def route(self, path, query, content):
        if not path.startswith(("/storage/", "/upload/")):
            return self.xml(path, query, content)
        if match := re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", path):
            if match[1] not in self.server.model.buckets:
                raise Refused(404, "The specified bucket does not exist.")
            return self.upload(match[1], query, content)
        if path == "/storage/v1/b" and self.command == "POST":
            self.server.model.buckets.add(json.loads(content)["name"])
            return 200, json.loads(content), {}
        if match := re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)/moveTo/o/([^/]+)", path):
            return self.move(match[1], urllib.parse.unquote(match[2]), urllib.parse.unquote(match[3]), query)
        if match := re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)", path):
            bucket, name, new_bucket, new_name = map(urllib.parse.unquote, match.groups())
            return self.rewrite((bucket, name), (new_bucket, new_name), query, content)
        match = re.fullmatch(r"/storage/v1/b/([^/]+)(?:/(o|iam/testPermissions)(?:/([^/]+))?)?", path)
        if not match:
            raise Refused(404, "Not Found")
        bucket, kind, name = match.groups()
        if bucket not in self.server.model.buckets:
            raise Refused(404, "The specified bucket does not exist.")
        if kind is None:
            return 200, {"kind": "storage#bucket", "name": bucket}, {}
        if kind == "iam/testPermissions":
            asked = [value for key, value in urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query)
                     if key == "permissions"]
            granted = self.server.model.granted
            return 200, {"kind": "storage#testIamPermissionsResponse",
                         "permissions": [one for one in asked if granted is None or one in granted]}, {}
        if name is None:
            return self.list(bucket, query)
        return self.object(bucket, urllib.parse.unquote(name), query, content)

    # Objects

    def object(self, bucket, name, query, content):
        model = self.server.model
        found, stored = model.find(bucket, name, query)
        model.check(query, found)
        if self.command == "DELETE":
            del model.objects[bucket, name]
            return 204, b"", {}
        if self.command == "PATCH":
            for key, value in json.loads(content).items():
                if key == "metadata" and isinstance(value, dict):
                    merged = {**found.get("metadata", {}), **value}
                    value = {key: text for key, text in merged.items() if text is not None} or None
                found.pop(key, None) if value is None else found.update({key: value})
            found.update(metageneration=str(int(found["metageneration"]) + 1), updated=timestamp())
            return 200, found, {}
        if query.get("alt") != "media":
            return 200, found, {}
        return self.media(found, stored)

    def move(self, bucket, name, new_name, query):
        """Renames an object with its metadata, in one step."""
        found, content = self.server.model.find(bucket, name, {})
        if query.get("ifSourceGenerationMatch", found["generation"]) != found["generation"]:
            raise Refused(412, "source generation")
        metadata = {key: value for key, value in found.items()
                    if key in ("metadata", "componentCount") or key.startswith(("content", "cache"))}
        made = self.server.model.commit(bucket, query, {**metadata, "name": new_name}, content)
        del self.server.model.objects[bucket, name]
        return 200, made, {}

    def rewrite(self, source, target, query, content):
        """Copies an object, at most 100,000 bytes with each request. The properties in the body replace all of it."""
        model = self.server.model
        found, stored = model.find(*source, {"generation": query["sourceGeneration"]} if "sourceGeneration" in query else {})
        for key, member in (("ifSourceGenerationMatch", "generation"), ("ifSourceMetagenerationMatch", "metageneration")):
            if query.get(key, found[member]) != found[member]:
                raise Refused(412, key)
        model.check(query, model.objects.get(target, (None, None))[0])
        done = 0
        if "rewriteToken" in query:
            key, done = model.rewrites.pop(query["rewriteToken"], (None, 0))
            if key != (source, target, found["generation"]):
                raise Refused(400, "rewriteToken")
        done = min(len(stored), done + 100_000)
        progress = {"kind": "storage#rewriteResponse", "totalBytesRewritten": str(done), "objectSize": str(len(stored))}
        if done < len(stored):
            token = f"rewrite-{next(model.numbers)}"
            model.rewrites[token] = ((source, target, found["generation"]), done)
            return 200, {**progress, "done": False, "rewriteToken": token}, {}
        kept = {key: found[key] for key in ("componentCount",) if key in found}
        made = model.commit(target[0], query, {**json.loads(content or b"{}"), **kept, "name": target[1]}, stored)
        return 200, {**progress, "done": True, "resource": made}, {}

    def media(self, found, content):
        fields = {
            "content-type": found.get("contentType", "application/octet-stream"),
            "x-goog-generation": found["generation"], "x-goog-metageneration": found["metageneration"],
            "x-goog-hash": ",".join(f"{key}={found[member]}" for key, member in (("crc32c", "crc32c"), ("md5", "md5Hash"))
                                    if member in found),
            "x-goog-stored-content-encoding": found.get("contentEncoding", "identity"),
            "x-goog-stored-content-length": found["size"], "etag": found["etag"],
            "last-modified": email.utils.formatdate(usegmt=True),
        }
        if "contentEncoding" in found:
            fields["content-encoding"] = found["contentEncoding"]
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("range", ""))
        if not match:
            return 200, content, fields
        size = len(content)
        if match[1]:
            first, last = int(match[1]), min(int(match[2] or size), size - 1)
        else:
            first, last = max(0, size - int(match[2])), size - 1
        if first >= size:
            raise Refused(416, "range", {"content-range": f"bytes */{size}"})
        return 206, content[first:last + 1], {**fields, "content-range": f"bytes {first}-{last}/{size}"}

    def list(self, bucket, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = base64.b64decode(query.get("pageToken", "")).decode()
        limit = min(int(query.get("maxResults", 1000)), 1000)
        start, inclusive = query.get("startOffset", "").encode(), {}
        for name in sorted((name for owner, name in self.server.model.objects if owner == bucket),
                           key=lambda name: name.encode()):
            if not name.startswith(prefix) or name.encode() < start:
                continue
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            entry = name[:cut + 1] if cut >= 0 else name
            if entry.encode() > after.encode():
                inclusive[entry] = cut >= 0
        page = list(inclusive.items())[:limit]
        response = {"kind": "storage#objects"}
        items = [self.server.model.objects[bucket, name][0] for name, folded in page if not folded]
        folded = [name for name, folded in page if folded]
        if items:
            response["items"] = items
        if folded:
            response["prefixes"] = folded
        if len(page) < len(inclusive):
            response["nextPageToken"] = base64.b64encode(page[-1][0].encode()).decode()
        return 200, response, {}

    # Uploads

    def upload(self, bucket, query, content):
        model, kind = self.server.model, query.get("uploadType")
        if "upload_id" in query:
            return self.session(query["upload_id"], content)
        if kind == "media":
            return 200, model.commit(bucket, query, {}, content, self.headers.get("content-type")), {}
        if kind == "multipart":
            boundary = re.search(r"boundary=\"?([^\";]+)", self.headers["content-type"])[1].encode()
            _, first, second, _ = content.split(b"--" + boundary)
            metadata = json.loads(first.split(b"\r\n\r\n", 1)[1])
            head, body = second.split(b"\r\n\r\n", 1)
            assert body.endswith(b"\r\n")
            named = re.search(rb"content-type: *([^\r]+)", head, re.I)
            return 200, model.commit(
                bucket, query, metadata, body[:-2], named and named[1].decode()), {}
        if kind == "resumable":
            found, _ = model.objects.get((bucket, query.get("name")), (None, None))
            model.check(query, found)
            token = secret(f"session-{next(model.numbers)}-secret")
            model.sessions[token] = {
                "bucket": bucket, "query": query, "metadata": json.loads(content or b"{}"),
                "type": self.headers.get("x-upload-content-type"), "content": b"", "made": None}
            host = self.headers["host"]
            return 200, b"", {
                "location": f"http://{host}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={token}"}
        raise Refused(400, "uploadType")

    def session(self, token, content):
        model = self.server.model
        session = model.sessions.get(token)
        if session is None:
            raise Refused(404, "session")
        if session["made"]:
            return 200, session["made"], {}
        if self.command == "DELETE":
            del model.sessions[token]
            raise Refused(499, "cancelled")
        match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|(\*)(?:-\*)?)/(\d+|\*)",
                             self.headers.get("content-range") or f"bytes 0-{len(content) - 1}/{len(content)}")
        if not match:
            raise Refused(400, "content-range")
        kept, total = session["content"], None if match[4] == "*" else int(match[4])
        if match[3] is None:
            first, last = int(match[1]), int(match[2])
            if last - first + 1 != len(content):
                raise Refused(400, "length and range differ")
            if first > len(kept):
                raise Refused(503, f"the session has {len(kept)} bytes")
            # Bytes at offsets that it has are ignored.
            kept += content[len(kept) - first:]
            if total is None or len(kept) < total:
                if len(content) % QUANTUM:
                    raise Refused(400, "a chunk must be a multiple of 256 KiB")
                if model.persisted is not None:
                    allowed = model.persisted - model.persisted % QUANTUM
                    kept = kept[:max(len(session["content"]), first + allowed)]
            session["content"] = kept
        if total is not None and len(kept) == total:
            declared = dict(one.split("=", 1) for one in self.headers.get("x-goog-hash", "").split(",") if one)
            digests = {"crc32c": "crc32c", "md5": "md5Hash"}
            session["made"] = model.commit(
                session["bucket"], session["query"],
                {**session["metadata"], **{digests[key]: value for key, value in declared.items()}},
                kept, session["type"])
            return 200, session["made"], {}
        return 308, b"", {"range": f"bytes=0-{len(kept) - 1}"} if kept else {}

    # Multipart uploads of the XML API, which evaluate no preconditions

    def xml(self, path, query, content):
        bucket, _, name = path[1:].partition("/")
        try:
            status, text, fields = self.parts(bucket, urllib.parse.unquote(name), query, content)
        except Refused as refused:
            status, text, fields = refused.status, f"<Error><Code>{refused.message}</Code></Error>", {}
        if text:
            text = f"<?xml version='1.0' encoding='UTF-8'?>{text}"
        return status, text.encode(), {"content-type": "application/xml; charset=UTF-8", **fields}

    def parts(self, bucket, name, query, content):
        model = self.server.model
        if bucket not in model.buckets:
            raise Refused(404, "NoSuchBucket")
        about = f"<Bucket>{bucket}</Bucket><Key>{html.escape(name)}</Key>"
        if "uploads" in query:
            return self.begin(bucket, name, about) if self.command == "POST" else self.uploads(bucket, query)
        upload = model.uploads.get(query.get("uploadId"))
        if upload is None or (upload["bucket"], upload["name"]) != (bucket, name):
            raise Refused(404, "NoSuchUpload")
        if self.command == "PUT":
            return self.part(upload, int(query["partNumber"]), content)
        if self.command == "GET":
            return self.list_parts(upload, query, about)
        if self.command == "POST":
            count = self.join(upload, content.decode())
            about += f'<ETag>"joined-{count}"</ETag>'
        del model.uploads[query["uploadId"]]
        if self.command == "DELETE":
            return 204, "", {}
        return 200, f"<CompleteMultipartUploadResult>{about}</CompleteMultipartUploadResult>", {}

    def begin(self, bucket, name, about):
        model = self.server.model
        given = {key.lower(): value for key, value in self.headers.items()}
        metadata = {member: given[field] for field, member in PROPERTIES.items() if field in given}
        prefix = "x-goog-meta-"
        metadata["metadata"] = {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
        token = f"upload-{next(model.numbers)}"
        model.uploads[token] = {"bucket": bucket, "name": name, "metadata": metadata, "parts": {}}
        about += f"<UploadId>{token}</UploadId>"
        return 200, f"<InitiateMultipartUploadResult>{about}</InitiateMultipartUploadResult>", {}

    def uploads(self, bucket, query):
        listed = "".join(
            f"<Upload><Key>{html.escape(upload['name'])}</Key><UploadId>{token}</UploadId></Upload>"
            for token, upload in self.server.model.uploads.items()
            if upload["bucket"] == bucket and upload["name"].startswith(query.get("prefix", "")))
        return 200, f"<ListMultipartUploadsResult>{listed}</ListMultipartUploadsResult>", {}

    def part(self, upload, number, content):
        if not 1 <= number <= 10_000:
            raise Refused(400, "InvalidArgument")
        if self.headers.get("content-md5", digests.md5(content)) != digests.md5(content):
            raise Refused(400, "BadDigest")
        tag = hashlib.md5(content).hexdigest()
        upload["parts"][number] = {"content": content, "tag": tag, "time": timestamp()}
        return 200, "", {"etag": f'"{tag}"', "x-goog-hash": f"crc32c={crc32c(content)}"}

    def list_parts(self, upload, query, about):
        after, limit = int(query.get("part-number-marker", 0)), min(int(query.get("max-parts", 1000)), 1000)
        numbers = sorted(number for number in upload["parts"] if number > after)
        for number in numbers[:limit]:
            part = upload["parts"][number]
            about += (f"<Part><PartNumber>{number}</PartNumber><LastModified>{part['time']}</LastModified>"
                      f'<ETag>"{part["tag"]}"</ETag><Size>{len(part["content"])}</Size></Part>')
        about += f"<IsTruncated>{str(len(numbers) > limit).lower()}</IsTruncated>"
        return 200, f"<ListPartsResult>{about}</ListPartsResult>", {}

    def join(self, upload, text):
        """Makes the object of the listed parts; returns their number."""
        listed = [(int(number), tag) for number, tag in re.findall(
            r'<Part><PartNumber>(\d+)</PartNumber><ETag>"([^"<]*)"</ETag></Part>', text)]
        numbers = [number for number, _ in listed]
        if not listed or numbers != sorted(set(numbers)):
            raise Refused(400, "MalformedXML")
        for number, tag in listed:
            if number not in upload["parts"] or upload["parts"][number]["tag"] != tag:
                raise Refused(400, "InvalidPart")
        contents = [upload["parts"][number]["content"] for number in numbers]
        if any(len(content) < MINIMUM_PART for content in contents[:-1]):
            raise Refused(400, "EntityTooSmall")
        self.server.model.commit(
            upload["bucket"], {}, {**upload["metadata"], "name": upload["name"], "componentCount": len(contents)},
            b"".join(contents))
        return len(contents)


class ThreadingServer(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 512

    def handle_error(self, request, address):
        pass


def serve(model, port, handler=Handler, host="127.0.0.1"):
    """Serves the model on a port; returns the server. Its `shutdown` ends it."""
    server = ThreadingServer((host, port), handler)
    server.model = model
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server
