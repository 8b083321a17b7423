"""Sluice in front of an upstream, beside proxies: CPU of requests, and how long small ones wait beside large ones.

TLS and HTTP/2 to the client. The upstream is one nginx on the load generator's CPU: static files, and WebDAV for
uploads. To Sluice it is an S3 service without credentials; Sluice evaluates rules, the others only forward. It is reached
in clear text, over TLS with HTTP/2 (by all but nginx, which can't), and over TLS with HTTP/1.1 only, as AWS speaks.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import time

from measuring import ROOT, RUN_SLUICE, SIZES, WORK, Server, free_port, h2load, measure, table

ENVOY = next(ROOT.glob(".bench/lib/*/site-packages/**/_bin/envoy"), "envoy")
RULES = """rules_version = '2';
service firebase.storage { match /b/{bucket}/o { match /{name=**} {
  allow read, delete: if request.auth == null && request.path != null;
  allow create, update: if request.auth == null && request.resource.size < 64 * 1024 * 1024;
} } }
"""
NGINX = """
worker_processes 1; daemon off; user root; pid {work}/nginx-{port}.pid; error_log {work}/nginx.err warn;
worker_rlimit_nofile 19000; events {{ worker_connections 8192; multi_accept on; }}
http {{ access_log {log}; sendfile on; tcp_nopush on; tcp_nodelay on; default_type application/octet-stream;
  keepalive_timeout 600; keepalive_requests 100000000; open_file_cache max=1000 inactive=600s; open_file_cache_valid 600s;
  client_max_body_size 0; client_body_buffer_size 64k; client_body_temp_path {work}/nginx-body; proxy_temp_path {work}/nginx-proxy;
  http2_max_concurrent_streams 256;
  ssl_certificate {work}/cert.pem; ssl_certificate_key {work}/key.pem; ssl_protocols TLSv1.3;
  {servers} }}
"""


CLEAR, TLS, TLS_HTTP1 = WAYS = "clear", "TLS", "TLS HTTP/1.1"


class Upstream:
    """One nginx with a port for each way to reach it, and the files of both sizes at `/o/SIZE`."""

    access_log = "off"

    def __enter__(self):
        self.http, self.https, self.http2 = free_port(), free_port(), free_port()
        root = WORK / "upstream"
        (root / "o").mkdir(parents=True, exist_ok=True)
        os.chmod(WORK, 0o755)
        for size in SIZES.values():
            (root / "o" / str(size)).write_bytes(os.urandom(size))
        listens = (f"{self.http}", f"{self.https} ssl", f"{self.http2} ssl http2")
        servers = "".join(f"server {{ listen 127.0.0.1:{listen} backlog=4096; root {root}; "
                          "location / { dav_methods PUT; create_full_put_path on; } }\n" for listen in listens)
        configuration = WORK / "upstream.conf"
        configuration.write_text(NGINX.format(work=WORK, port=self.http, log=self.access_log, servers=servers))
        self.process = subprocess.Popen(["taskset", "-c", "1", "/usr/sbin/nginx", "-c", configuration],
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def address(self, way):
        return f"127.0.0.1:{ {CLEAR: self.http, TLS: self.http2, TLS_HTTP1: self.https}[way] }"

    def origin(self, way):
        return f"{'http' if way == CLEAR else 'https'}://{self.address(way)}"


def sluice(upstream, way):
    port = free_port()
    (WORK / "proxy.rules").write_text(RULES)
    trust = f", tls: {{ certificateAuthorities: {WORK}/cert.pem }}" if way != CLEAR else ""
    configuration = WORK / "proxy-sluice.yaml"
    configuration.write_text(
        f"listen: {{ http: null, operator: null, https: {{ address: \"127.0.0.1:{port}\", "
        f"certificate: {WORK}/cert.pem, key: {WORK}/key.pem }} }}\n"
        f"threads: 1\nlog: {{ access: false }}\nrules: {WORK}/proxy.rules\n"
        f"buckets: {{ o: {{ s3: {{ bucket: o, endpoint: \"{upstream.origin(way)}\", credentials: anonymous, "
        f"conditionalWrites: yes }}{trust} }} }}\n")
    base = f"https://127.0.0.1:{port}"
    return Server("sluice", [*RUN_SLUICE, "serve", "--config", configuration], base, url=lambda key: f"{base}/b/o/o/{key}")


def forwarding(name, command, port):
    base = f"https://127.0.0.1:{port}"
    return Server(name, command, base, url=lambda key: f"{base}/o/{key}")


def nginx(upstream, way):
    port = free_port()
    scheme, address = ("http", upstream.address(CLEAR)) if way == CLEAR else ("https", upstream.address(TLS_HTTP1))
    servers = f"""
  upstream up {{ server {address}; keepalive 512; keepalive_requests 100000000; }}
  http2_chunk_size 64k; proxy_buffers 8 64k; proxy_buffer_size 64k; proxy_busy_buffers_size 128k; http2_body_preread_size 1m;
  server {{ listen 127.0.0.1:{port} ssl http2 backlog=4096; location / {{ proxy_pass {scheme}://up;
    proxy_http_version 1.1; proxy_set_header Connection ""; proxy_request_buffering off; proxy_max_temp_file_size 0;
    proxy_ssl_protocols TLSv1.3; }} }}"""
    configuration = WORK / "proxy-nginx.conf"
    configuration.write_text(NGINX.format(work=WORK, port=port, log="off", servers=servers))
    return forwarding("nginx", ["/usr/sbin/nginx", "-c", configuration], port)


def haproxy(upstream, way):
    port = free_port()
    (WORK / "both.pem").write_bytes((WORK / "cert.pem").read_bytes() + (WORK / "key.pem").read_bytes())
    server = upstream.address(way) + {CLEAR: "", TLS: " ssl verify none alpn h2", TLS_HTTP1: " ssl verify none"}[way]
    configuration = WORK / "proxy-haproxy.cfg"
    configuration.write_text(f"""
global
  nbthread 1
  no strict-limits
  maxconn 4000
  tune.h2.max-concurrent-streams 256
  ssl-default-bind-options ssl-min-ver TLSv1.3
defaults
  mode http
  timeout connect 10s
  timeout client 600s
  timeout server 600s
frontend f
  bind 127.0.0.1:{port} ssl crt {WORK}/both.pem alpn h2 backlog 4096
  default_backend b
backend b
  http-reuse always
  server s {server} pool-max-conn -1
""")
    return forwarding("haproxy", ["/usr/sbin/haproxy", "-f", configuration], port)


def envoy(upstream, way):
    port, address = free_port(), upstream.address(way).split(":")
    types = "type.googleapis.com/envoy.extensions"
    options = "http2_protocol_options: {}" if way == TLS else "http_protocol_options: {}"
    secure = f"""
    transport_socket: {{ name: tls, typed_config: {{ "@type": {types}.transport_sockets.tls.v3.UpstreamTlsContext,
      common_tls_context: {{ alpn_protocols: [{"h2" if way == TLS else "http/1.1"}], tls_params: {{ tls_maximum_protocol_version: TLSv1_3 }} }} }} }}"""
    configuration = WORK / "proxy-envoy.yaml"
    configuration.write_text(f"""
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": {types}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          codec_type: HTTP2
          http2_protocol_options: {{ max_concurrent_streams: 256 }}
          route_config: {{ virtual_hosts: [{{ name: all, domains: ["*"], routes: [{{
            match: {{ prefix: / }}, route: {{ cluster: up, timeout: 0s }} }}] }}] }}
          http_filters: [{{ name: router, typed_config: {{ "@type": {types}.filters.http.router.v3.Router }} }}]
      transport_socket: {{ name: tls, typed_config: {{ "@type": {types}.transport_sockets.tls.v3.DownstreamTlsContext,
        common_tls_context: {{ alpn_protocols: [h2], tls_params: {{ tls_minimum_protocol_version: TLSv1_3 }},
          tls_certificates: [{{ certificate_chain: {{ filename: {WORK}/cert.pem }}, private_key: {{ filename: {WORK}/key.pem }} }}] }} }} }}
  clusters:
  - name: up
    type: STATIC
    circuit_breakers: {{ thresholds: [{{ max_connections: 9000, max_pending_requests: 9000, max_requests: 9000 }}] }}
    typed_extension_protocol_options: {{ envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{
      "@type": {types}.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {{ {options} }} }} }}
    load_assignment: {{ cluster_name: up, endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{
      address: {address[0]}, port_value: {address[1]} }} }} }} }}] }}] }}{secure if way != CLEAR else ""}
""")
    command = [ENVOY, "-c", configuration, "--concurrency", "1", "--log-level", "error", "--disable-hot-restart"]
    return forwarding("envoy", command, port)


PROXIES = (sluice, nginx, haproxy, envoy)


def shuffled():
    """The proxies. A small GET costs 4 % more after Envoy than after another, so none always follows the same one."""
    return random.sample(PROXIES, len(PROXIES))


#: Short turns of servers that run side by side: the speed of a virtual machine changes within seconds.
TURNS = 4


def proxy(rounds):
    """CPU time of a request, for each way to reach the upstream."""
    rows = {make.__name__: {} for make in PROXIES}
    body = WORK / "body"
    body.write_bytes(os.urandom(SIZES["16 MiB"]))
    loads = (("GET 1 KiB", "1 KiB", 15000, 8, 32, None), ("GET 16 MiB", "16 MiB", 32, 8, 2, None),
             ("PUT 16 MiB", "16 MiB", 24, 8, 1, body))
    with Upstream() as upstream:
        for way in WAYS:
            with contextlib.ExitStack() as running:
                servers = {make: running.enter_context(make(upstream, way)) for make in PROXIES}
                for title, size, count, clients, streams, content in loads:
                    load = {"body": content, "method": "PUT"} if content else {}
                    urls = {make: [server.url("new" if content else SIZES[size])] for make, server in servers.items()}
                    for make in PROXIES:
                        h2load(urls[make], 16, clients, streams, **load)
                    for _ in range(rounds * TURNS):
                        for make in shuffled():
                            rate, spent = measure(servers[make], urls[make], count, clients, streams, **load)
                            scale = 1e6 if size == "1 KiB" else 1e9 / SIZES[size]
                            rows[make.__name__].setdefault(f"{title}, {way}", []).append(rate and spent * scale)
    table("In front of an upstream: CPU µs a request at 1 KiB, s/GB at 16 MiB (in brackets: divided by Sluice's figure)",
          rows, lambda value: f"{value:.2f}", "sluice", lower_is_better=True)


def latencies(url, count):
    """The latencies of `count` requests, one at a time, in ms, in order of size."""
    log = WORK / "latencies"
    log.unlink(missing_ok=True)
    subprocess.run(["taskset", "-c", "1", "h2load", "-n", str(count), "-c", "1", "-m", "1", f"--log-file={log}", url],
                   stdout=subprocess.DEVNULL, timeout=120, check=True)
    lines = [line.split() for line in log.read_text().splitlines()]
    return sorted(int(line[2]) / 1000 for line in lines if re.fullmatch("2..", line[1]))


def mix(rounds):
    """How long a small GET takes, alone and beside eight large downloads."""
    quantile = lambda values, part: values[int(len(values) * part)] if values else None
    rows = {make.__name__: {} for make in PROXIES}
    with Upstream() as upstream:
        for _ in range(rounds):
            for make in shuffled():
                with make(upstream, CLEAR) as server:
                    small, large = server.url(SIZES["1 KiB"]), server.url(SIZES["16 MiB"])
                    cells = rows[server.name]
                    alone = latencies(small, 1500)
                    load = subprocess.Popen(
                        ["timeout", "-s", "KILL", "20", "taskset", "-c", "1", "h2load", "-c", "4", "-m", "2", "-n", "100000", large],
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
                    time.sleep(1)
                    beside = latencies(small, 500)
                    os.killpg(load.pid, signal.SIGKILL)
                    load.wait()
                    for column, values, part in (("alone, p50", alone, .5), ("alone, p99", alone, .99),
                                                 ("beside downloads, p50", beside, .5), ("beside downloads, p99", beside, .99)):
                        cells.setdefault(column, []).append(quantile(values, part))
    table("A GET of 1 KiB, alone and beside eight downloads of 16 MiB: latency in ms (in brackets: divided by Sluice's figure)",
          rows, lambda value: f"{value:.2f}", "sluice", lower_is_better=True)
