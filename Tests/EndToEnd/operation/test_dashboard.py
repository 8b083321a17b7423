"""The dashboard and the alerts in a real Prometheus, with real traffic: each query has a result, and each panel shows
something. test_observability.py compares names."""

import time

import pytest

from program import ROOT, Server, wait_until
from prometheus import Dashboard, Prometheus, legend
from traffic import BUCKETS, Client, Deployment

#: The lines that the traffic must cause, by the title of the panel. Others may be there too.
LINES = {
    "Requests by operation": {"get", "list", "create", "update", "delete"},
    "Requests by status": {"2xx", "4xx", "5xx"},
    "Bytes received and sent": {"received", "sent"},
    "Requests by group of callers": {"batch"},
    "Requests by bucket": {*BUCKETS, "none"},
    "Errors (5xx) by bucket": {"cloud"},
    "Requests to services": {"bucket cloud 2xx", "bucket cloud 5xx"},
    "Queue, circuit and retries": {"bucket cloud retries/s"},
    "Reads served from the cache": {"cloud"},
    "Bytes of cached buckets by source": {"cache", "service"},
    "Decisions": {"allowed", "denied", "shadow: denied"},
    "Credentials": {"known", "unknown-token"},
    "Limits of callers": {"batch requests"},
    "Limits of connections": {"headerBytes"},
    "Uncommitted uploads": {"photos, sessions"},
    "Upload sessions": {"photos open", "finished/s"},
    "Deliveries by result": {"hook settled", "photos recorded"},
}


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    """The dashboard of two gateways, one with traffic. Values are a second apart, as scrapes."""
    deployment = Deployment(tmp_path_factory.mktemp("deployment"))
    idle = Server(tmp_path_factory.mktemp("idle"), tls=False)
    busy, quiet = (f"127.0.0.1:{server.operator}" for server in (deployment.server, idle))
    prometheus = Prometheus(tmp_path_factory.mktemp("prometheus") / "server", [busy, quiet], 1,
                            ROOT / "deploy" / "grafana" / "alerts.yaml")
    clients = [Client(deployment, seed, 0.005) for seed in range(4)]
    for client in clients:
        client.start()
    dashboard = Dashboard(prometheus)
    dashboard.deployment, dashboard.busy, dashboard.idle = deployment, busy, quiet
    yield dashboard
    assert all(client.is_alive() for client in clients), "a client has ended with an error"
    for client in clients:
        client.stop()
    prometheus.stop()
    idle.stop()
    deployment.stop()


def empty(dashboard, instances=None):
    """What is not shown: queries without a result, panels with zeros only, and lines that are not there."""
    missing, now = [], time.time()
    for panel in dashboard.panels:
        drawn = dashboard.draw(panel, now - 10, now, 1, instances)
        missing += [f"{panel['title']} {query}: no result" for query, series in drawn.items() if not series]
        shown = {legend(target, labels) for target in panel["targets"] for labels, values in drawn[target["refId"]]
                 if any(value for _, value in values)}
        if not LINES.get(panel["title"], set()) <= shown or not shown:
            missing.append(f"{panel['title']}: {sorted(shown)}")
    return missing


@pytest.mark.parametrize("choice", ["all", "one"])
def test_each_panel_shows_the_traffic(dashboard, choice):
    wait_until(lambda: len(dashboard.choices("instance")) == 2, what="the first scrapes")
    instances = None if choice == "all" else [dashboard.busy]
    wait_until(lambda: not empty(dashboard, instances), 40, lambda: f"a dashboard without {empty(dashboard, instances)}")


def test_only_gateways_are_shown(dashboard):
    """The same Prometheus scrapes itself, and has metrics of the same names."""
    wait_until(lambda: len(dashboard.prometheus.values("process_open_fds")) == 3, what="all scrapes")
    now = time.time()
    shown = set()
    for panel in dashboard.panels:
        for series in dashboard.draw(panel, now - 5, now, 1).values():
            shown |= {labels["instance"] for labels, _ in series if "instance" in labels}
    assert shown == {dashboard.busy, dashboard.idle}


def test_a_panel_that_has_nothing_to_show_says_so(dashboard):
    """The other gateway has no requests, no service, no certificate and no collector."""
    def silent():
        now = time.time()
        return [panel for panel in dashboard.panels
                if not any(dashboard.draw(panel, now - 5, now, 1, [dashboard.idle]).values())]

    def speechless():
        return [panel["title"] for panel in silent() if not panel["fieldConfig"]["defaults"].get("noValue")]
    # A rate has its first value with the second scrape.
    wait_until(lambda: not speechless(), what=lambda: f"a value, or a text instead, in {speechless()}")
    titles = {panel["title"] for panel in silent()}
    assert "Requests to services" in titles and "Ready, draining and reload" not in titles


def test_each_alert_can_be_evaluated(dashboard):
    def rules():
        found = [rule for group in dashboard.prometheus.get("rules")["groups"] for rule in group["rules"]]
        return found if all(rule["health"] != "unknown" for rule in found) else None
    found = wait_until(rules, what="an evaluation of each alert")
    assert len(found) > 10 and [rule for rule in found if rule["health"] != "ok"] == []


def test_the_latency_has_exemplars(dashboard):
    panel, = [panel for panel in dashboard.panels if panel["title"] == "Latency by operation"]
    query = dashboard.expand(panel["targets"][0]["expr"], 1)

    def traces():
        now = time.time()
        found = dashboard.prometheus.get("query_exemplars", query=query, start=now - 60, end=now)
        return {exemplar["labels"]["trace_id"] for series in found for exemplar in series["exemplars"]}
    recorded = {span["traceId"] for span in dashboard.deployment.collector.spans}
    wait_until(lambda: traces() & {span["traceId"] for span in dashboard.deployment.collector.spans},
               what=lambda: f"one of {len(traces())} traces in the {len(recorded)} of the collector")
