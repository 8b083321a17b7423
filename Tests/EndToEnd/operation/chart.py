"""What Helm makes of deploy/chart. No cluster is needed: Helm's own engine renders (it is in the package helm_python)."""

import pathlib

import helm_python
import yaml

from program import ROOT

CHART = ROOT / "deploy" / "chart"


def values(path, **changes):
    return {**yaml.safe_load(pathlib.Path(path).read_text()), **changes}


def texts(given):
    """What Helm renders, by the name of the template."""
    with helm_python.Chart.load(CHART) as chart:
        rendered = chart.render(given, name="storage", namespace="storage")
    return {pathlib.Path(path).name: text for path, text in rendered.items()}


def render(given):
    """The rendered objects, by kind."""
    objects = [found for name, text in texts(given).items() if name != "NOTES.txt"
               for found in yaml.safe_load_all(text) if found]
    by_kind = {}
    for found in objects:
        by_kind.setdefault(found["kind"], []).append(found)
    return by_kind


def pod(objects):
    (workload,) = objects.get("Deployment", []) + objects.get("StatefulSet", [])
    return workload["spec"]["template"]["spec"]


def gateway(objects):
    spec = pod(objects)
    return next(one for one in spec["containers"] + spec.get("initContainers", []) if one["name"] == "sluice")
