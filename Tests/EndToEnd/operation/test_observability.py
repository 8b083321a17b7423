"""deploy/grafana: the dashboard and the alerts use metrics and labels that the program has. `make alerts` tests the alerts
themselves."""

import json
import re
import urllib.request

import pytest
import yaml

from program import ROOT, Server, curl
from upstreams import GCSModel

GRAFANA = ROOT / "deploy" / "grafana"
NAME = re.compile(r"\b(?:sluice|process)_[a-z_]+\b")
#: Labels that Prometheus and its operator add, and that of histograms.
ADDED = {"instance", "job", "namespace", "le"}


def expressions():
    """All queries, by where they are."""
    dashboard = json.loads((GRAFANA / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for group in yaml.safe_load((GRAFANA / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


@pytest.fixture(scope="module")
def scrape(tmp_path_factory):
    """Names of metrics with their type, and all labels, of a gateway with everything that has metrics."""
    directory = tmp_path_factory.mktemp("scrape")
    upstream = GCSModel(directory)
    buckets = (f"  photos: {{ directory: {{ path: {directory}/photos }} }}\n"
               f"  cloud: {{ {upstream.store()}, cache: {{ freshness: 1s }} }}\n")
    server = Server(directory, buckets=buckets,
                    extra=f"cache: {{ directory: {directory}/cache, reserve: 0 }}\n"
                    'telemetry: { traces: { endpoint: "http://127.0.0.1:9" } }\n'
                          'events: { hook: { url: "http://127.0.0.1:9/", buckets: [photos] } }\n')
    try:
        curl("-T", "/dev/null", server.url("/b/photos/o/a"))
        curl("-o", "/dev/null", server.url("/b/cloud/o/a"))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.operator}/metrics", timeout=5) as response:
            text = response.read().decode()
    finally:
        server.stop()
        upstream.stop()
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    return kinds, set(re.findall(r"[{,]([a-z_]+)=", text))


#: Metrics that need an issuer of tokens.
CONDITIONAL = {"sluice_issuer_keys": "gauge"}
#: Metrics of gateways with TLS.
ONLY_TLS = {"sluice_certificate_expiry_timestamp_seconds", "sluice_tls_info"}


def test_every_metric_exists(scrape):
    kinds = {**scrape[0], **CONDITIONAL}
    found = list(expressions())
    assert len(found) > 40
    for where, expression in found:
        names = NAME.findall(expression)
        assert names or expression.startswith("up{"), where
        for name in names:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in kinds or kinds.get(base) == "histogram", f"{where}: {name}"
            if re.search(rf"rate\({name}\b|increase\({name}\b", expression):
                assert kinds.get(name) == "counter" or kinds.get(base) == "histogram", f"{where}: {name} is no counter"


def test_every_label_exists(scrape):
    # Labels of metrics that have no samples yet are in the table of the page.
    page = (ROOT / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| `sluice_.*", page, re.M))))
    for where, expression in expressions():
        used = set(re.findall(r"[{,]\s*([a-z_]+)\s*[=!]", expression))
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            used |= {label.strip() for label in group.split(",")}
        assert used <= scrape[1] | documented | ADDED, where


def test_every_metric_is_documented(scrape):
    page = (ROOT / "docs" / "operations.md").read_text()
    documented = set(NAME.findall("".join(line.rsplit("|", 4)[0] for line in re.findall(r"^\| `(?:sluice|process)_.*", page, re.M))))
    assert documented - CONDITIONAL.keys() - ONLY_TLS <= set(scrape[0]) <= documented


def test_the_dashboard_is_one():
    dashboard = json.loads((GRAFANA / "dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {"Requests", "Upstreams", "Decisions and limits", "Saturation", "Events"} == {
        panel["title"] for panel in panels if panel["type"] == "row"}
    assert [panel["title"] for panel in panels if panel["type"] == "heatmap"] == ["Latency"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places), "no panel covers another one"
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_every_alert_is_explained():
    names = [rule["alert"] for group in yaml.safe_load((GRAFANA / "alerts.yaml").read_text())["groups"]
             for rule in group["rules"]]
    page = (ROOT / "docs" / "observability.md").read_text()
    assert len(names) > 10 and [name for name in names if f"`{name}`" not in page] == []


def test_every_alert_is_tested():
    """`make alerts` runs the tests: each alert fires in one, and is silent in another."""
    names = {rule["alert"] for group in yaml.safe_load((GRAFANA / "alerts.yaml").read_text())["groups"]
             for rule in group["rules"]}
    cases = [case for test in yaml.safe_load((GRAFANA / "alerts.test.yaml").read_text())["tests"]
             for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names
