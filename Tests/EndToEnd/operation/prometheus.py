"""A Prometheus that scrapes gateways and itself, and the queries of a Grafana dashboard as Grafana sends them to it."""

import json
import math
import re
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from program import ROOT, wait_until
from upstreams import free_port


class Prometheus:
    """Listens on loopback. `gateways`: the addresses of their operator's listeners; `interval`: seconds from one scrape to the
    next; `rules`: a file of alerts."""

    def __init__(self, directory, gateways, interval, rules):
        self.directory, self.interval, self.port = directory, interval, free_port()
        directory.mkdir()
        address = f"127.0.0.1:{self.port}"
        (directory / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": f"{interval}s", "evaluation_interval": f"{interval}s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {"job_name": "sluice", "static_configs": [{"targets": gateways}]},
                {"job_name": "prometheus", "static_configs": [{"targets": [address]}]}]}))
        with open(directory / "log", "wb") as log:
            self.process = subprocess.Popen(
                [ROOT / ".ci" / "prometheus", f"--config.file={directory}/prometheus.yml", f"--web.listen-address={address}",
                 f"--storage.tsdb.path={directory}/data", "--enable-feature=exemplar-storage"], stdout=log, stderr=log)
        wait_until(self.is_ready, 60, lambda: f"a ready Prometheus: {(directory / 'log').read_text()}")

    def is_ready(self):
        assert self.process.poll() is None, (self.directory / "log").read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False

    def get(self, path, **parameters):
        """The `data` of a response of its API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def values(self, expression):
        """The values of a query now."""
        return [float(series["value"][1]) for series in self.get("query", query=expression)["result"]]

    def series(self, expression, start, end, step):
        """The series of a query as (labels, [(time, value)]), without values that are no numbers."""
        found = [(series["metric"], [(time, float(value)) for time, value in series["values"] if math.isfinite(float(value))])
                 for series in self.get("query_range", query=expression, start=start, end=end, step=step)["result"]]
        return [(labels, values) for labels, values in found if values]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


class Dashboard:
    """A dashboard's panels, and their queries with the variables expanded."""

    def __init__(self, prometheus):
        self.prometheus = prometheus
        self.model = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text())
        self.variables = {variable["name"]: variable for variable in self.model["templating"]["list"]}
        self.panels = [panel for panel in self.model["panels"] if panel["type"] != "row"]

    def choices(self, name):
        """What a variable of the type `query` offers."""
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", self.variables[name]["query"]["query"]).groups()
        return self.prometheus.get(f"label/{label}/values", **{"match[]": metric})

    def chosen(self, name, values=None):
        """A variable as Grafana writes it into a query, with these values; None: with all."""
        if values is None and "allValue" in self.variables[name]:
            return self.variables[name]["allValue"]
        escaped = [re.sub(r"([\\^$.*+?()\[\]{}|])", r"\\\\\1", value) for value in values or self.choices(name)]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"

    def expand(self, expression, step, instances=None):
        """A query, drawn with a value every `step` seconds."""
        interval = self.prometheus.interval
        named = {"__rate_interval": f"{max(step + interval, 4 * interval)}s", "instance": self.chosen("instance", instances)}
        return re.sub(r"\$(\w+)", lambda match: named[match[1]], expression)

    def draw(self, panel, start, end, step, instances=None):
        """The series of a panel by the letter of the query, as `Prometheus.series` has them."""
        return {target["refId"]: self.prometheus.series(self.expand(target["expr"], step, instances), start, end, step)
                for target in panel["targets"]}


def legend(target, labels):
    """A series' name in a panel."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), target["legendFormat"])
