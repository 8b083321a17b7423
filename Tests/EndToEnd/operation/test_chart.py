"""deploy/chart: what Helm makes of it is valid for two versions of Kubernetes, strictly, and the program takes the
configuration in it."""

import json
import pathlib
import re

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml

import config_schema
from authorities import Authorities
from chart import CHART, gateway, pod, render, texts, values
from program import ROOT, sluice

EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
#: The oldest supported one, and a current one.
VERSIONS = ["1.29", "1.37"]
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))


def validate(found, version):
    """Strictly: unknown fields are errors. The resource of the Prometheus operator has no schema in Kubernetes."""
    if found["kind"] == "PodMonitor":
        (endpoint,) = found["spec"]["podMetricsEndpoints"]
        assert endpoint == {"port": "operator", "path": "/metrics"}
        return
    kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_valid(example, version):
    objects = render(values(example))
    for found in sum(objects.values(), []):
        validate(found, version)
        assert found["metadata"]["name"].startswith("storage")
    allowed = {"ConfigMap", "ServiceAccount", "Service", "NetworkPolicy", "PodDisruptionBudget", "HorizontalPodAutoscaler",
               "PodMonitor", "Deployment", "StatefulSet"}
    assert set(objects) <= allowed, "no roles, no bindings"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_plain_manifests_are_valid(path, version):
    for found in yaml.safe_load_all(path.read_text()):
        validate(found, version)


def test_a_mistake_is_found():
    objects = render(values(EXAMPLES[0]))
    (found,) = objects["ServiceAccount"]
    with pytest.raises(kubernetes_validate.ValidationError):
        validate({**found, "automountToken": False}, VERSIONS[0])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_program_takes_the_configuration(example, tmp_path):
    objects = render(values(example))
    for config in objects["ConfigMap"]:
        for name, text in config["data"].items():
            # The paths of the volumes, which this machine does not have.
            text = re.sub(r"/etc/sluice-\w+|/var/lib/sluice|/run/sluice", str(tmp_path), text)
            (tmp_path / name).write_text(text)
    status, line, _ = sluice("sign", "--new-key", "one")
    assert status == 0
    (tmp_path / "link-keys").write_text(line)
    (tmp_path / "link-keys").chmod(0o600)
    (tmp_path / "ca.crt").write_bytes(Authorities(tmp_path).root.pem)
    environment = {one["name"]: one["value"].replace("/run/sluice", str(tmp_path)) for one in gateway(objects)["env"]
                   if one["name"].startswith("SLUICE_")}
    # A self-signed certificate stands for the secret.
    arguments = ["--set", "listen.https.certificate=self-signed", "--set", "listen.https.key=null"]
    served = "service" in {port["name"] for port in gateway(objects)["ports"]}
    status, out, error = sluice("check", tmp_path / "sluice.yaml", *(arguments if served else []), environment=environment)
    assert status == 0 and "error" not in error, error
    effective = yaml.safe_load(out)["listen"]
    assert effective["operator"] == "0.0.0.0:9090"
    # The ports that the manifests name are those that it listens on.
    address = effective["https"]["address"] if served else effective["http"]
    assert address in (["0.0.0.0:8443"] if served else ["127.0.0.1:8080", f"unix:{tmp_path}/http.sock"])
    given = yaml.safe_load(example.read_text())["config"].get("listen", {})
    assert effective["trustedProxies"] == given.get("trustedProxies", [])
    assert effective["socketMode"] == given.get("socketMode", "0600")
    authorities = given.get("https", {}).get("clients", {}).get("authorities")
    assert effective["https"]["clients"]["authorities"] == (authorities and f"{tmp_path}/ca.crt")
    if served:
        assert effective["http"] is None
        assert {"name": "service", "containerPort": 8443} in gateway(objects)["ports"]
        for service in objects["Service"]:
            assert [port["targetPort"] for port in service["spec"]["ports"]] == ["service"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_pods_have_no_more_rights_than_they_need(example):
    objects = render(values(example))
    spec, container = pod(objects), gateway(objects)
    assert spec["securityContext"]["runAsNonRoot"] and not spec["enableServiceLinks"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                            "capabilities": {"drop": ["ALL"]}}
    for probe in "startupProbe", "readinessProbe", "livenessProbe":
        assert container[probe]["httpGet"]["port"] == "operator" and container[probe]["timeoutSeconds"] >= 2
    # 25 s drain, 8 s closing.
    assert spec["terminationGracePeriodSeconds"] > 25 + 8
    names = {volume["name"] for volume in spec["volumes"]} | {
        claim["metadata"]["name"] for workload in objects.get("StatefulSet", [])
        for claim in workload["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= names
    for volume in spec["volumes"]:
        assert volume.get("secret", {}).get("defaultMode", 0o440) & 0o007 == 0, "only the group reads secrets"


def configuration(objects):
    (found,) = (one for one in objects["ConfigMap"] if "sluice.yaml" in one["data"])
    return yaml.safe_load(found["data"]["sluice.yaml"])


def test_a_shared_gateway_waits_until_nodes_know_that_it_leaves():
    given = values(CHART / "examples" / "gateway.yaml")
    assert configuration(render(given))["limits"]["drainDelay"] == "5s"
    given["config"] = {**given["config"], "limits": {"drainDelay": "9s", "connections": 100}}
    assert configuration(render(given))["limits"] == {"drainDelay": "9s", "connections": 100}
    assert "drainDelay" not in configuration(render(values(CHART / "examples" / "sidecar.yaml"))).get("limits", {})


@pytest.mark.parametrize(("shape", "tls", "listeners", "port"), [
    ("gateway", {"secretName": "x"}, {"https": "0.0.0.0:9443"}, 9443), ("gateway", {"plaintext": True}, {"http": "0.0.0.0:9000"}, 9000),
    ("sidecar", {}, {"http": "127.0.0.1:9000"}, None)])
def test_a_listener_for_s3_clients(shape, tls, listeners, port):
    given = {**values(CHART / "examples" / f"{shape}.yaml"), "s3": {"enabled": True}, "tls": tls}
    objects = render(given)
    assert configuration(objects)["listen"]["s3"] == listeners
    assert [each["containerPort"] for each in gateway(objects)["ports"] if each["name"] == "s3"] == ([port] if port else [])
    ports = [each["port"] for service in objects.get("Service", []) for each in service["spec"]["ports"] if each["name"] == "s3"]
    assert ports == ([port] if port else [])
    given["s3"]["enabled"] = False
    assert "s3" not in configuration(render(given))["listen"]


@pytest.mark.parametrize("shape", ["gateway", "directory", "sidecar"])
def test_the_console_is_at_loopback_alone(shape):
    given = {**values(CHART / "examples" / f"{shape}.yaml"), "console": {"enabled": True},
             "env": [{"name": "SLUICE_CONSOLE_TOKEN", "valueFrom": {"secretKeyRef": {"name": "console", "key": "sha256"}}}]}
    objects = render(given)
    assert configuration(objects)["listen"]["console"] == "127.0.0.1:9091"
    assert not [port for port in gateway(objects)["ports"] if port["containerPort"] == 9091]
    assert [each["name"] for each in gateway(objects)["env"]].count("SLUICE_CONSOLE_TOKEN") == 1
    given["console"]["enabled"] = False
    assert "console" not in configuration(render(given))["listen"]


@pytest.mark.parametrize("shape", ["gateway", "sidecar"])
def test_the_read_cache_is_on_a_volume_of_its_own(shape, tmp_path):
    bucket = {"gcs": {"bucket": "b"}, "cache": {"freshness": "30s"}}
    given = {**values(CHART / "examples" / f"{shape}.yaml"), **config(cache={"size": "1GiB"}, buckets={"photos": bucket}),
             "cache": {"enabled": True, "sizeLimit": "2Gi", "medium": "Memory"}}
    objects = render(given)
    for found in sum(objects.values(), []):
        validate(found, VERSIONS[0])
    made = configuration(objects)["cache"]
    assert made == {"size": "1GiB", "directory": "/var/cache/sluice/objects"}
    (mount,) = (each for each in gateway(objects)["volumeMounts"] if each["name"] == "cache")
    # Not the volume itself, which every process of its group may enter.
    assert made["directory"].startswith(mount["mountPath"] + "/") and "readOnly" not in mount
    (volume,) = (each for each in pod(objects)["volumes"] if each["name"] == "cache")
    assert volume["emptyDir"] == {"sizeLimit": "2Gi", "medium": "Memory"}
    given["cache"] = {"enabled": False}
    del given["config"]["buckets"]["photos"]["cache"]
    objects = render(given)
    assert "directory" not in configuration(objects)["cache"]
    assert not [each for each in pod(objects)["volumes"] if each["name"] == "cache"]


def test_the_default_volume_has_the_space_of_the_default_cache():
    chart, reference = (yaml.safe_load(path.read_text()) for path in (CHART / "values.yaml", ROOT / "config" / "reference.yaml"))
    assert chart["cache"]["sizeLimit"] == "12Gi" and reference["cache"]["size"] == "10GiB", "an eighth more, and a little"


def test_the_shapes():
    objects = render(values(CHART / "examples" / "gateway.yaml"))
    assert "replicas" not in objects["Deployment"][0]["spec"], "the autoscaler sets them"
    assert objects["HorizontalPodAutoscaler"][0]["spec"]["scaleTargetRef"]["name"] == objects["Deployment"][0]["metadata"]["name"]
    assert objects["PodDisruptionBudget"][0]["spec"]["maxUnavailable"] == 1
    labels = objects["Deployment"][0]["spec"]["template"]["metadata"]["labels"]
    for kind, path in ("Service", ["spec", "selector"]), ("NetworkPolicy", ["spec", "podSelector", "matchLabels"]), (
            "PodMonitor", ["spec", "selector", "matchLabels"]):
        found = objects[kind][0]
        for key in path:
            found = found[key]
        assert found.items() <= labels.items(), kind
    objects = render(values(CHART / "examples" / "directory.yaml"))
    spec = objects["StatefulSet"][0]["spec"]
    assert spec["replicas"] == 1 and spec["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert "HorizontalPodAutoscaler" not in objects
    # A StatefulSet needs a Service without an address, for the pod's name; callers need one with an address.
    heads = {service["metadata"]["name"]: service["spec"] for service in objects["Service"]}
    assert {name: one.get("clusterIP") for name, one in heads.items()} == {"storage": None, "storage-pods": "None"}
    assert spec["serviceName"] == "storage-pods"
    labels = spec["template"]["metadata"]["labels"]
    assert all(one["selector"].items() <= labels.items() for one in heads.values())
    objects = render(values(CHART / "examples" / "sidecar.yaml"))
    assert pod(objects)["initContainers"][0]["restartPolicy"] == "Always" and "Service" not in objects


#: Where pods run and what they are, which the chart passes on.
SCHEDULING = {
    "imagePullSecrets": [{"name": "registry"}],
    "priorityClassName": "storage",
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "storage", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                                   "whenUnsatisfiable": "DoNotSchedule",
                                   "labelSelector": {"matchLabels": {"app.kubernetes.io/instance": "storage"}}}],
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_pods_are_scheduled_as_the_values_say(example):
    objects = render(values(example, **SCHEDULING, service={"annotations": {"example.org/dns": "storage"}}))
    for found in sum(objects.values(), []):
        validate(found, VERSIONS[0])
    spec = pod(objects)
    assert {name: spec.get(name) for name in SCHEDULING} == SCHEDULING
    for service in objects.get("Service", []):
        assert service["metadata"].get("annotations") == (
            {"example.org/dns": "storage"} if service["metadata"]["name"] == "storage" else None)
    plain = pod(render(values(example)))
    assert [one["topologyKey"] for one in plain.get("topologySpreadConstraints", [])] == (
        ["kubernetes.io/hostname"] if "Deployment" in objects and "Service" in objects else [])


@pytest.mark.parametrize("example, changes, said", [
    ("gateway", {}, 'curl --cacert ca.crt -H "Authorization: Bearer $TOKEN" https://storage.storage.svc/b/photos/o'),
    ("directory", {"tls": {"plaintext": True}, "open": True, "rules": ""}, "curl http://storage.storage.svc/b/photos/o"),
    ("clients", {}, "curl --cacert ca.crt --cert client.crt --key client.key https://storage.storage.svc/b/photos/o"),
    ("sidecar", {}, "the gateway at http://127.0.0.1:8080."),
    ("sidecar-socket", {}, "the gateway at unix:/run/sluice/http.sock."),
])
def test_the_notes_say_where_it_is(example, changes, said):
    assert said + "\n" in texts(values(CHART / "examples" / f"{example}.yaml", **changes))["NOTES.txt"]


def test_the_alerts_find_the_job():
    """The operator takes the job's name from the label of the pods that jobLabel names; without it, it is the monitor's."""
    objects = render(values(CHART / "examples" / "gateway.yaml"))
    label = objects["PodMonitor"][0]["spec"]["jobLabel"]
    job = objects["Deployment"][0]["spec"]["template"]["metadata"]["labels"][label]
    alerts = yaml.safe_load((ROOT / "deploy" / "grafana" / "alerts.yaml").read_text())["groups"][0]["rules"]
    (down,) = (rule["expr"] for rule in alerts if rule["alert"] == "SluiceDown")
    assert re.fullmatch(re.search(r'job=~"([^"]+)"', down).group(1), job)


def test_nobody_connects_unless_the_policy_names_them():
    given = values(CHART / "examples" / "gateway.yaml")
    rules = render(given)["NetworkPolicy"][0]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in rules] == ["service", "operator"]
    given["networkPolicy"] = {}
    assert not render(given)["NetworkPolicy"][0]["spec"].get("ingress")


def test_another_configuration_restarts_the_pods_and_other_rules_do_not():
    def checksum(**changes):
        (workload,) = render(values(CHART / "examples" / "gateway.yaml", **changes))["Deployment"]
        return workload["spec"]["template"]["metadata"]["annotations"]["checksum/configuration"]

    assert checksum() == checksum(rules="service firebase.storage {}")
    assert checksum() != checksum(config={"buckets": {"photos": {"gcs": {"bucket": "other"}}}})


def config(**changes):
    """Values with a configuration of one bucket, and the changes."""
    return {"config": {"buckets": {"photos": {"gcs": {"bucket": "example"}}}, **changes}}


def in_directory(path):
    return config(buckets={"photos": {"directory": {"path": path}}})


@pytest.mark.parametrize("changes, fault", [
    ({"rules": ""}, "rules"),
    ({"open": True}, "rules"),
    ({"tls": {"secretName": ""}}, "tls"),
    ({"tls": {"secretName": "x", "plaintext": True}}, "tls"),
    ({"config": {}}, "config"),
    (config(rules="none"), "rules"),
    (config(bucketz={}), "bucketz"),
    (config(limits={"drainDelai": "5s"}), "drainDelai"),
    (config(limits={"drainDelay": 5}), "drainDelay"),
    (config(limits={"drainDelay": "5 s"}), "drainDelay"),
    (config(limits={"connections": "100"}), "connections"),
    (config(limits={"headerBytes": "32kb"}), "headerBytes"),
    (config(limits={"headerBytes": 100}), "headerBytes"),
    (config(log={"level": "loud"}), "level"),
    (config(buckets={"a": {}}), "/config/buckets/a"),
    (config(buckets={"a": {"gcs": {"bucket": "a"}, "s3": {"bucket": "a"}}}), "/config/buckets/a"),
    (config(buckets={"a": {"gcs": {"bukket": "a"}}}), "bukket"),
    # YAML's yes is true, which the program does not take.
    (config(buckets={"a": {"s3": {"bucket": "a", "conditionalWrites": True}}}), "conditionalWrites"),
    (config(buckets={"a": {"s3": {"bucket": "a"}, "cache": {"freshness": "always"}}}), "freshness"),
    (config(listen={"operator": "0.0.0.0:1"}), "operator"),
    (config(listen={"http": "0.0.0.0:1"}), "http"),
    (config(listen={"https": {"certificate": "self-signed"}}), "certificate"),
    (config(listen={"socketMode": 0o660}), "socketMode"),
    ({"shape": "cluster"}, "shape"),
    ({"replica": 2}, "replica"),
    ({"networkPolicy": {"callers": "all"}}, "callers"),
    ({"shape": "sidecar"}, "sidecar"),
])
def test_the_schema_rejects(changes, fault):
    with pytest.raises(helm_python.HelmError) as caught:
        render(values(CHART / "examples" / "gateway.yaml", **changes))
    assert fault in str(caught.value)


@pytest.mark.parametrize("example, changes, fault", [
    ("gateway", config(limits={"drainDelay": "50s"}), "terminationGracePeriodSeconds"),
    ("gateway", config(limits={"drainDelay": "27001ms"}), "terminationGracePeriodSeconds"),
    ("gateway", config(limits={"drainTimeout": "1h"}), "terminationGracePeriodSeconds"),
    ("directory", {"terminationGracePeriodSeconds": 30}, "terminationGracePeriodSeconds"),
    ("gateway", in_directory("/var/lib/sluice/photos"), "config.buckets.photos.directory"),
    ("gateway", config(listen={"http": "unix:/run/sluice/http.sock"}), "config.listen.http"),
    ("gateway", {**config(listen={"https": {"clients": {}}}), "tls": {"plaintext": True}}, "config.listen.https.clients"),
    ("directory", config(), "shape directory"),
    ("directory", in_directory("/data/photos"), "config.buckets.photos.directory.path"),
    ("directory", in_directory("/var/lib/sluice-photos"), "config.buckets.photos.directory.path"),
    ("directory", in_directory("photos"), "config.buckets.photos.directory.path"),
    ("directory", {**in_directory("/data"), "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}]},
     "config.buckets.photos.directory.path"),
    ("sidecar", in_directory("/var/lib/sluice/photos"), "config.buckets.photos.directory.path"),
    ("sidecar", config(listen={"https": {"clients": {"authorities": "/a"}}}), "config.listen.https.clients"),
    ("sidecar-socket", {"volumeMounts": []}, "config.listen.http"),
    ("gateway", config(cache={"directory": "/var/cache/sluice"}), "config.cache.directory"),
    ("gateway", {**config(cache={"directory": "/c"}), "cache": {"enabled": True}}, "config.cache.directory"),
    ("gateway", config(buckets={"photos": {"gcs": {"bucket": "a"}, "cache": {"freshness": "1h"}}}), "cache.enabled"),
    ("gateway", config(buckets={"my-photos": {"s3": {"bucket": "b", "accessKeyId": "k", "secretAccessKey": "s"}}}),
     "SLUICE_BUCKETS_MY_PHOTOS_S3_SECRETACCESSKEY"),
    ("gateway", config(upstream={"proxy": "http://me:hush@proxy.example.com:3128"}), "SLUICE_UPSTREAM_PROXY"),
    ("gateway", {**config(limits={"drainDelay": "090s"}), "terminationGracePeriodSeconds": 120}, "terminationGracePeriodSeconds"),
])
def test_the_templates_reject(example, changes, fault):
    with pytest.raises(helm_python.HelmError) as caught:
        render(values(CHART / "examples" / f"{example}.yaml", **changes))
    assert fault in str(caught.value)


@pytest.mark.parametrize("example, changes", [
    ("gateway", config(limits={"drainDelay": "27s"})),
    ("gateway", config(limits={"drainDelay": 0, "drainTimeout": "52s"})),
    ("gateway", config(limits={"drainDelay": "017s"}, upstream={"proxy": "http://proxy.example.com:3128"})),
    ("gateway", {**config(limits={"drainDelay": "1m"}), "terminationGracePeriodSeconds": 93}),
    ("directory", in_directory("/var/lib/sluice")),
    ("directory", {**in_directory("/data/photos"), "volumeMounts": [{"name": "data", "mountPath": "/data/"}]}),
    ("gateway", config(buckets={"photos": {"gcs": {"bucket": "a"}, "maximumObjectSize": 104857600}})),
])
def test_the_templates_take(example, changes):
    found = configuration(render(values(CHART / "examples" / f"{example}.yaml", **changes)))
    assert found["buckets"] == changes["config"]["buckets"]


def test_the_schema_has_the_keys_of_the_reference():
    """`python Tests/EndToEnd/operation/config_schema.py` makes them equal."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["config"]
    assert schema == config_schema.schema()
    reference = yaml.safe_load((ROOT / "config" / "reference.yaml").read_text())
    # Its own values pass, and no key of it is missing.
    del reference["rules"], reference["listen"]
    jsonschema.validate(reference, schema, jsonschema.Draft7Validator)
    assert len(config_schema.keys()) > 120

    def names(part):
        for name, inner in part.get("properties", {}).items():
            yield from ([name] if "properties" not in inner and "additionalProperties" not in inner else
                        (f"{name}.{one}" for one in names(inner)))
        if part.get("additionalProperties"):
            yield from (f"NAME.{one}" for one in names(part["additionalProperties"]))

    missing = set(config_schema.keys()) - set(names(schema))
    assert missing == {"rules", "listen.operator", "listen.https.address", "listen.https.certificate", "listen.https.key",
                       "listen.s3.http", "listen.s3.https", "listen.console"}


def test_the_schema_is_one_and_names_every_value():
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())) == set(schema["properties"]) - {"global"}
    version = re.search(r'version: "([^"]+)", commit', (ROOT / "Sources/Telemetry/BuildInfo.swift").read_text()).group(1)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version
