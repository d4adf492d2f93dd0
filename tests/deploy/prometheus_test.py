# SPDX-License-Identifier: Apache-2.0
"""The alert rules, the dashboard and a real Prometheus against a real server. Usage: prometheus_test.py ROOT BIN"""
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from running_server import RunningServer  # noqa: E402  pylint: disable=wrong-import-position

METRIC = re.compile(r"\bheadwise_[a-z_]+")
SUFFIX = re.compile(r"_(bucket|count|sum)$")
DEADLINE_S = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def dashboard_queries(dashboard):
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def names_faults(what, text, known):
    for name in METRIC.findall(text):
        if name not in known and SUFFIX.sub("", name) not in known:
            yield f"{what}: no metric {name}"


def query(prometheus, expression):
    answer = json.loads(fetch(f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
    assert answer["status"] == "success", answer
    return answer["data"]["result"]


def scrape(root, metrics, dashboard, folder):
    """Starts Prometheus with the rules, waits until it has scraped the server, asks what the dashboard asks."""
    config = folder / "prometheus.yaml"
    config.write_text(f"""global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{root}/deploy/prometheus/alerts.yaml"]
scrape_configs:
  - job_name: headwise
    static_configs: [{{targets: ["{metrics}"]}}]
""")
    port = free_port()
    with open(folder / "prometheus.log", "w") as log:
        process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                                    f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                if query(address, 'up{job="headwise"} == 1') and query(address, "headwise_build_info"):
                    break
            except OSError:
                pass
            assert time.monotonic() < deadline, (folder / "prometheus.log").read_text()
            time.sleep(0.2)
        for _, expression in dashboard_queries(dashboard):
            for name, value in (("$instance", ".*"), ("$layer", ".*"), ("$__rate_interval", "1m")):
                expression = expression.replace(name, value)
            query(address, expression)  # a fault in it is an error
        labels = query(address, 'headwise_stage_seconds_count{stage="compute"}')
        assert any(entry["metric"]["layer"] == "two-head" for entry in labels), labels
        rules = json.loads(fetch(f"{address}/api/v1/rules"))["data"]["groups"][0]["rules"]
        assert all(rule["health"] in ("ok", "unknown") for rule in rules), rules
    finally:
        process.terminate()
        process.wait()


def main():
    root, binaries = pathlib.Path(sys.argv[1]), sys.argv[2]
    rules = root / "deploy/prometheus/alerts.yaml"
    subprocess.run(["promtool", "check", "rules", rules], check=True)
    subprocess.run(["promtool", "check", "config", root / "deploy/prometheus/prometheus.yaml"], check=True)
    dashboard = json.loads((root / "deploy/grafana/headwise.json").read_text())
    with tempfile.TemporaryDirectory() as name, RunningServer(binaries, "--demo") as server:
        # Series appear with the first calls.
        subprocess.run([f"{binaries}/headwise-load", "two-head", "--server", server.address, "--lengths", "fixed:4",
                        "--duration", "1s"], capture_output=True, check=True)
        text = fetch(f"http://{server.metrics}/metrics")
        subprocess.run(["promtool", "check", "metrics"], input=text, text=True, check=True)
        known = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
        faults = list(names_faults("alerts", rules.read_text(), known))
        for title, expression in dashboard_queries(dashboard):
            faults += names_faults(f"dashboard, {title}", expression, known)
        assert not faults, "\n".join(faults)
        scrape(root, server.metrics, dashboard, pathlib.Path(name))


if __name__ == "__main__":
    main()
