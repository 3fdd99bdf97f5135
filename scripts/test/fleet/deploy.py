"""Checks the files of deploy/: schemas, and the dashboard's expressions on a running server. Called by scripts/test/deploy-check."""

import json
import pathlib
import re
import sys
import tempfile
import time
from urllib.parse import quote

import yaml

import workers

ROOT = pathlib.Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
PORT = 28400
VERSION = "1.33"


def manifests():
    import kubernetes_validate

    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
        for document in documents:
            kubernetes_validate.validate(document, VERSION, strict=True)
        print(f"{path.relative_to(ROOT)}: {len(documents)} valid as of Kubernetes {VERSION}")


def compose():
    from compose_spec import PyOptions

    path = DEPLOY / "compose/compose.yaml"
    options = PyOptions()
    options.apply_merge = True
    # The package knows no variables: they have their defaults here.
    text = re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", path.read_text())
    whole = options.from_yaml(text)
    whole.validate()
    print(f"{path.relative_to(ROOT)}: valid, services {', '.join(sorted(whole.service_names()))}")


def dashboard():
    from grafana_foundation_sdk.models.dashboard import Dashboard

    path = DEPLOY / "compose/grafana/dashboards/riffle.json"
    content = json.loads(path.read_text())
    loaded = Dashboard.from_json(content)
    assert loaded.title == "Riffle" and len(loaded.panels) == len(content["panels"])
    print(f"{path.relative_to(ROOT)}: {len(loaded.panels)} panels load into Grafana's types")
    return [target["expr"] for panel in content["panels"] for target in panel["targets"]]


def names(expression):
    return re.findall(r"\b(?:vllm|riffle):[a-z0-9_]+", expression)


def expressions(riffle, wanted):
    """Each expression has to give a number on a server that has answered some requests."""
    with tempfile.TemporaryDirectory() as folder, workers.Programs() as programs:
        command = [riffle, "serve", "--model", ROOT / "fixtures/model", "--port", PORT, "--ctx", 4096, "--parallel", 2, "--quiet"]
        command += ["--threads", 1, "--kv-events", f"tcp://127.0.0.1:{PORT + 1}"]
        server = programs.add("worker", command, folder)
        workers.wait_for(server, PORT)
        exported = {line.split("{")[0].split(" ")[0] for line in workers.get(PORT, "/metrics")[1].decode().splitlines() if line}
        config = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
        config["global"]["scrape_interval"] = "1s"
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{PORT}"]
        del config["scrape_configs"][1]
        path = pathlib.Path(folder) / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        command = ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{PORT + 2}"]
        prometheus = programs.add("prometheus", command, folder)
        workers.wait_for(prometheus, PORT + 2, "/-/ready")
        deadline, prompt = time.time() + 40, "It was the best of times, it was the worst of times. " * 20
        left = list(wanted)
        while left and time.time() < deadline:
            status, answer = workers.post(PORT, "/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0})
            assert status == 200, answer
            time.sleep(0.5)
            left = [expression for expression in left if not numbers(expression)]
        exported |= {line.split("{")[0].split(" ")[0] for line in workers.get(PORT, "/metrics")[1].decode().splitlines() if line}
        unknown = {name for expression in wanted for name in names(expression) if name not in exported}
        if unknown or left:
            sys.exit(f"not exported: {sorted(unknown)}; without a number: {left}")
        print(f"{len(wanted)} expressions of the dashboard give numbers")


def numbers(expression):
    status, data = workers.get(PORT + 2, f"/api/v1/query?query={quote(expression)}")
    result = json.loads(data)
    if status != 200:
        sys.exit(f"{expression}: {result}")
    return [value for value in result["data"]["result"] if value["value"][1] != "NaN"]


if __name__ == "__main__":
    manifests()
    compose()
    expressions(sys.argv[1], dashboard())
