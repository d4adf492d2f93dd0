# SPDX-License-Identifier: Apache-2.0
"""The manifests and the chart by kubectl, helm, promtool and the Kubernetes API types. Usage: kubernetes_test.py ROOT BIN

kubectl and helm are built from their Go modules, once."""
import hashlib
import os
import pathlib
import re
import subprocess
import sys

import yaml


def run(command, text=None, **options):
    done = subprocess.run(command, input=text, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
    return done.stdout


def build_tools(source):
    """kubectl, helm and decode as programs below the cache."""
    cache = pathlib.Path(os.environ.get("HEADWISE_CACHE") or pathlib.Path.home() / ".cache/headwise")
    key = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(source.rglob("*")) if file.is_file()))
    tools = cache / f"kubernetes-tools-{key.hexdigest()[:16]}"
    names = {"kubectl": "./kubectl", "helm": "helm.sh/helm/v3/cmd/helm", "decode": "./decode"}
    environment = os.environ | {"GOPATH": str(cache / "go"), "GOCACHE": str(cache / "go-build"), "GOFLAGS": "-mod=readonly",
                                "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    for name, package in names.items():
        if not (tools / name).exists():
            run(["go", "build", "-ldflags", "-s -w", "-o", str(tools / name), package], cwd=source, env=environment)
    return {name: str(tools / name) for name in names}


def decoded(tools, text):
    """The names of the objects in `text`, all of which the API types must take."""
    return run([tools["decode"]], text).split()


def check_decoder(tools):
    """What must be refused is refused."""
    good = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 1}]}\n"
    assert decoded(tools, good) == ["Service/a"]
    for wrong in (good.replace("ports", "portz"), good.replace("port: 1", "port: one"), good.replace("v1", "v9"),
                  good + "spec: {}\n", ""):
        assert subprocess.run([tools["decode"]], input=wrong, capture_output=True, text=True).returncode == 1, wrong


def objects(text):
    return {document["kind"]: document for document in yaml.safe_load_all(text) if document}


def check_consistency(what, by_kind, server_flags):
    pod = by_kind["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    selectors = [by_kind["Deployment"]["spec"]["selector"]["matchLabels"], by_kind["Service"]["spec"]["selector"],
                 by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
                 by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]]
    for selector in selectors:
        assert selector and selector.items() <= labels.items(), (what, selector, labels)
    assert by_kind["Service"]["spec"]["clusterIP"] == "None", what
    container, = pod["spec"]["containers"]
    text = " ".join(container["args"])
    for flag in re.findall(r"--[a-z-]+", text):
        assert flag in server_flags, f"{what}: the server has no flag {flag}"
    stop = sum(int(re.search(rf"--{name}[= ](\d+)s", text).group(1)) for name in ("lame-duck", "grace"))
    assert pod["spec"]["terminationGracePeriodSeconds"] > stop, what
    assert container["startupProbe"]["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["securityContext"]["readOnlyRootFilesystem"] and pod["spec"]["securityContext"]["runAsNonRoot"]
    assert container["resources"]["limits"].keys() == {"cpu", "memory"}, what
    if "HorizontalPodAutoscaler" in by_kind:
        scaler = by_kind["HorizontalPodAutoscaler"]["spec"]
        assert "replicas" not in by_kind["Deployment"]["spec"], f"{what}: the autoscaler's replicas would be reset"
        assert scaler["scaleTargetRef"]["name"] == by_kind["Deployment"]["metadata"]["name"]
        return scaler["metrics"][0]["pods"]["metric"]["name"]
    return None


def main():
    root, binaries = pathlib.Path(sys.argv[1]), sys.argv[2]
    deploy, chart = root / "deploy", str(root / "deploy/helm/headwise")
    tools = build_tools(root / "tests/deploy/kubernetes")
    check_decoder(tools)
    server_flags = run([f"{binaries}/headwise-server", "--help"])
    metrics = set()
    always = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    chart_values = ["--set", "autoscaling.enabled=true", "--set", "layers[0]=m=dir:0:bf16", "--set", "extraArgs[0]=--threads=2",
                    "--set", "models.persistentVolumeClaim.claimName=c", "--set", "models.emptyDir=null"]
    rendered = {
        "base": run([tools["kubectl"], "kustomize", str(deploy / "kubernetes/base")]),
        "autoscaling": run([tools["kubectl"], "kustomize", str(deploy / "kubernetes/autoscaling")]),
        "chart": run([tools["helm"], "template", "one", chart]),
        "chart with values": run([tools["helm"], "template", "one", chart, *chart_values]),
    }
    for what, text in rendered.items():
        names = decoded(tools, text)
        kinds = always | ({"HorizontalPodAutoscaler"} if what in ("autoscaling", "chart with values") else set())
        assert {name.split("/")[0] for name in names} == kinds, (what, names)
        metrics.add(check_consistency(what, objects(text), server_flags))
        print(f"{what}: {' '.join(names)}")
    print(run([tools["helm"], "lint", "--strict", chart]).strip().splitlines()[-1])
    runtime = (deploy / "kserve/serving-runtime.yaml").read_text()
    assert decoded(tools, runtime) == ["ServingRuntime/headwise"]
    assert yaml.safe_load(runtime)["spec"]["protocolVersions"] == ["grpc-v2"]
    # The autoscaler's metric is the adapter's, and the server has it.
    metrics.discard(None)
    adapter = yaml.safe_load((deploy / "prometheus/adapter.yaml").read_text())
    assert metrics == {"headwise_queued_tokens"} and adapter["rules"][0]["seriesQuery"].startswith(*metrics)
    run(["promtool", "check", "rules", str(deploy / "prometheus/alerts.yaml")])
    run(["promtool", "check", "config", str(deploy / "prometheus/prometheus.yaml")])
    version = re.search(r"project\(headwise VERSION (\S+)", (root / "CMakeLists.txt").read_text()).group(1)
    about = yaml.safe_load((deploy / "helm/headwise/Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == version, (about, version)
    compose = yaml.safe_load((deploy / "compose.yaml").read_text())["services"]["headwise"]
    for flag in re.findall(r"--[a-z-]+", " ".join(compose["command"])):
        assert flag in server_flags, f"compose: the server has no flag {flag}"
    print("manifests, chart, rules and compose file are in step with the server")


if __name__ == "__main__":
    main()
