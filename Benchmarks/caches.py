"""Reads through a cache, beside nginx's: CPU of hits, and what 32 cold readers of one object cost the service.

TLS and HTTP/2 to the client, and clear HTTP/1.1. The upstream is one nginx on the load generator's CPU, whose access log
is counted: a hit must not reach it. The caches are in memory.
"""

import concurrent.futures
import os
import random
import shutil
import subprocess
import time

from measuring import RUN_SLUICE, SIZES, WORK, Server, free_port, h2load, measure, table
from proxies import CLEAR, NGINX, RULES, Upstream

COLD = 256 << 20


class CountedUpstream(Upstream):
    """An upstream with an access log, and an object for cold readers."""

    access_log = WORK / "upstream-access.log"

    def __enter__(self):
        (WORK / "upstream" / "o").mkdir(parents=True, exist_ok=True)
        (WORK / "upstream" / "o" / "cold").write_bytes(os.urandom(1 << 20) * (COLD >> 20))
        super().__enter__()
        end = time.monotonic() + 10
        while not self.access_log.exists() and time.monotonic() < end:
            time.sleep(0.05)
        return self

    def sent(self):
        """The requests for objects and the bytes of their bodies so far."""
        bodies = [int(line.split('" ')[1].split()[1]) for line in self.access_log.read_text().splitlines()
                  if " /o/" in line]
        return len(bodies), sum(bodies)


def sluice(upstream, tls, freshness):
    port, secure = free_port(), free_port()
    (WORK / "cache.rules").write_text(RULES)
    directory = WORK / "sluice-cache"
    shutil.rmtree(directory, ignore_errors=True)
    configuration = WORK / "cache-sluice.yaml"
    configuration.write_text(
        f"listen: {{ http: \"127.0.0.1:{port}\", operator: null, https: {{ address: \"127.0.0.1:{secure}\", "
        f"certificate: {WORK}/cert.pem, key: {WORK}/key.pem }} }}\n"
        f"threads: 1\nlog: {{ access: false }}\nrules: {WORK}/cache.rules\n"
        f"cache: {{ directory: {directory}, size: 2GiB, reserve: 0 }}\n"
        f"buckets: {{ o: {{ s3: {{ bucket: o, endpoint: \"{upstream.origin(CLEAR)}\", credentials: anonymous, "
        f"conditionalWrites: yes }}, cache: {{ freshness: {freshness} }} }} }}\n")
    base = f"https://127.0.0.1:{secure}" if tls else f"http://127.0.0.1:{port}"
    name = "sluice" if freshness == "1h" else f"sluice, {freshness}"
    return Server(name, [*RUN_SLUICE, "serve", "--config", configuration], base, url=lambda key: f"{base}/b/o/o/{key}")


def nginx(upstream, tls, slices):
    port, secure = free_port(), free_port()
    directory = WORK / "nginx-cache"
    shutil.rmtree(directory, ignore_errors=True)
    sliced = "slice 1m; proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range;" if slices else ""
    servers = f"""
  proxy_cache_path {directory} keys_zone=c:10m use_temp_path=off max_size=4g inactive=1h;
  upstream up {{ server 127.0.0.1:{upstream.http}; keepalive 512; keepalive_requests 100000000; }}
  http2_chunk_size 64k; proxy_buffers 8 64k; proxy_buffer_size 64k; proxy_busy_buffers_size 128k;
  server {{ listen 127.0.0.1:{port} backlog=4096; listen 127.0.0.1:{secure} ssl http2 backlog=4096;
    location / {{ proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection "";
    proxy_cache c; proxy_cache_lock on; proxy_cache_valid 200 206 1h; {sliced} }} }}"""
    configuration = WORK / f"cache-nginx-{slices}.conf"
    configuration.write_text(NGINX.format(work=WORK, port=port, log="off", servers=servers))
    base = f"https://127.0.0.1:{secure}" if tls else f"http://127.0.0.1:{port}"
    name = "nginx, slices" if slices else "nginx"
    return Server(name, ["/usr/sbin/nginx", "-c", configuration], base, url=lambda key: f"{base}/o/{key}")


CACHES = [(sluice, "1h"), (sluice, "validate"), (nginx, False), (nginx, True)]
#: Column, size, requests, clients, streams, TLS.
LOADS = (("GET 1 KiB, µs", "1 KiB", 60000, 8, 32, True), ("GET 16 MiB, s/GB", "16 MiB", 80, 8, 2, True),
         ("GET 16 MiB in clear text, s/GB", "16 MiB", 80, 8, 1, False))


def asks(server, size, count):
    """The most requests to the service that a load may cost."""
    return count if server.name.endswith("validate") else 0


def hits(rounds, upstream):
    rows = {}
    for _ in range(rounds):
        for make, how in random.sample(CACHES, len(CACHES)):
            for title, size, count, clients, streams, tls in LOADS:
                with make(upstream, tls, how) as server:
                    cells = rows.setdefault(server.name, {})
                    urls = [server.url(SIZES[size])]
                    h2load(urls, max(16, count // 10), clients, streams, http1=not tls)
                    before = upstream.sent()[0]
                    rate, spent = measure(server, urls, count, clients, streams, http1=not tls)
                    reached = upstream.sent()[0] - before
                    assert reached <= asks(server, size, count), f"{server.name}: {reached} requests reached the service"
                    cells.setdefault(title, []).append(rate and spent * (1e6 if size == "1 KiB" else 1e9 / SIZES[size]))
    rows = {"sluice": rows.pop("sluice"), **rows}
    table("Hits of a cache: CPU (in brackets: divided by Sluice's figure)",
          rows, lambda value: f"{value:.2f}", "sluice", lower_is_better=True)


def cold(upstream):
    """The bytes that the service sends for 32 cold readers of 256 MiB, divided by its size."""
    for make, how in CACHES[:2]:
        with make(upstream, False, how) as server:
            time.sleep(1)
            before = upstream.sent()[1]

            def read(_):
                command = ["taskset", "-c", "1", "curl", "-sS", "-o", os.devnull, "-w", "%{size_download}", server.url("cold")]
                return int(subprocess.run(command, capture_output=True, check=True).stdout)

            with concurrent.futures.ThreadPoolExecutor(32) as threads:
                assert list(threads.map(read, range(32))) == [COLD] * 32
            time.sleep(0.5)
            print(f"{server.name}: for 32 cold readers of 256 MiB the service sends "
                  f"{(upstream.sent()[1] - before) / COLD:.3f} x its bytes", flush=True)


def cache(rounds):
    with CountedUpstream() as upstream:
        hits(rounds, upstream)
        cold(upstream)
