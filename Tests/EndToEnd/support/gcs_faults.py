"""The model with the behaviour and fault injection of Google's test bench for clients. An instruction applies to one
request of a method:

    bench.instruct("storage.objects.insert", "return-503", "return-503-after-256K")

A request uses the first instruction of its method, if it fits the request. The test bench also differs from the service
in ways that clients must accept: errors outside of the `error` member, no members with the value 0, its own keys in
custom metadata, responses without a length, and status 200 with a range.
"""

import json
import re
import select
import socket
import struct
import urllib.parse

import gcs_model
from gcs_model import Refused

METHODS = {"GET": "get", "PATCH": "patch", "DELETE": "delete", "POST": "insert", "PUT": "insert"}


class Bench(gcs_model.Model):
    """A model whose requests follow instructions."""

    def __init__(self):
        super().__init__()
        self.instructions = {}
        #: Whether the first byte of each stored object is changed.
        self.damages = False

    def instruct(self, method, *instructions):
        self.instructions.setdefault(method, []).extend(instructions)

    def left(self):
        """The instructions that no request has used."""
        return [one for pending in self.instructions.values() for one in pending]

    def commit(self, bucket, query, metadata, content, content_type=None):
        if self.damages:
            content = (b"B" if content[:1] == b"A" else b"A") + content[1:]
        if query.get("uploadType") == "resumable":
            metadata = {key: value for key, value in metadata.items() if key not in ("md5Hash", "crc32c")}
        custom = {**metadata.get("metadata", {}), "x_emulator_upload": query.get("uploadType", "move"),
                  "x_testbench_upload": query.get("uploadType", "move"), "noted_by_the_server": "yes"}
        try:
            made = super().commit(bucket, query, {**metadata, "metadata": custom}, content, content_type)
        except Refused as refused:
            if refused.status == 400:
                raise Refused(412, "md5Hash validation failed.") from None
            raise
        if not content:
            del made["size"]
        return made


class Handler(gcs_model.Handler):
    def handle_request(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        operation = "list" if url.path.endswith("/o") and self.command == "GET" else METHODS[self.command]
        model = self.server.model
        try:
            content = self.body()
            with model.lock:
                pending = model.instructions.get(f"storage.objects.{operation}", [])
                taken = pending[0] if pending else ""
                if self.before(taken, pending, query, content):
                    return
                status, response, fields = self.route(url.path, query, content)
        except Refused as refused:
            self.respond(refused.status, {"code": refused.status, "message": json.dumps(
                {"error": {"errors": [{"domain": "global", "message": refused.message}]}})}, refused.fields)
            return
        except ConnectionError:
            self.close_connection = True
            return
        if isinstance(response, (dict, list)):
            response = json.dumps(response).encode()
        self.after(taken, pending, query, status, response, fields)

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = handle_request

    def list(self, bucket, query):
        return super().list(bucket, {key: query[key] for key in query if key not in ("maxResults", "pageToken")})

    def media(self, found, content):
        status, part, fields = super().media({"size": "0", **found}, content)
        return status, part, {"content-range": f"bytes 0-{len(content) - 1}/{len(content)}", **fields}

    def before(self, taken, pending, query, content):
        """Applies an instruction before the request is executed; returns whether the request is done."""
        if match := re.fullmatch(r"return-(\d+)", taken):
            pending.pop(0)
            self.respond(int(match[1]), {"code": int(match[1]), "message": {"error": {"message": "injected"}}})
            return True
        if taken == "return-reset-connection":
            pending.pop(0)
            self.reset()
            return True
        bounds = re.fullmatch(r"bytes (\d+)-(\d+)/.*", self.headers.get("content-range", ""))
        session = self.server.model.sessions.get(query.get("upload_id"))
        if not bounds or not session or session["made"]:
            return False
        first, last = int(bounds[1]), int(bounds[2])
        if match := re.fullmatch(r"(?:return-(\d+)|stall-for-(\d+)s)-after-(\d+)K", taken):
            offset = int(match[3]) * 1024
            kept = session["content"]
            if not len(kept) <= offset <= last + 1:
                return False
            pending.pop(0)
            session["content"] = kept + content[len(kept) - first:offset - first]
            if match[2]:
                select.select([self.connection], [], [], int(match[2]))
                return False
            self.respond(int(match[1]), {"code": int(match[1]), "message": "injected during a resumable upload"})
            return True
        return False

    def after(self, taken, pending, query, status, content, fields):
        """Sends the response, as far as the instruction permits."""
        is_media = query.get("alt") == "media"
        if taken == "return-corrupted-data" and is_media:
            pending.pop(0)
            content = (b"B" if content[:1] == b"A" else b"A") + content[1:]
        final = re.fullmatch(r"return-broken-stream-final-chunk-after-(\d+)B", taken)
        if final and status == 200 and "upload_id" in query:
            pending.pop(0)
            self.respond(200, content[:int(final[1])], {"content-type": "application/json"})
            return
        broken = re.fullmatch(r"(?:return-broken-stream|stall-for-(\d+)s)(?:-after-(\d+)K)?", taken)
        if broken and (self.command == "GET" or not broken[2]):
            limit = int(broken[2]) * 1024 if broken[2] else 4
            if len(content) >= limit:
                pending.pop(0)
                # The status of an error is lost.
                self.send_chunked(200, fields, content[:limit])
                if broken[1]:
                    select.select([self.connection], [], [], int(broken[1]))
                    self.send_chunk(content[limit:])
                    self.send_chunk(b"")
                else:
                    self.reset()
                return
        if is_media and status in (200, 206):
            self.send_chunked(status, fields, content)
            self.send_chunk(b"")
        else:
            self.respond(status, content, fields)

    def send_chunked(self, status, fields, content):
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if content:
            self.send_chunk(content)

    def send_chunk(self, content):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

    def reset(self):
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
