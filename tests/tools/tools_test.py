# SPDX-License-Identifier: Apache-2.0
"""grpcurl, grpc-health-probe and ghz against the server, with and without TLS and tokens.
Usage: tools_test.py BIN_DIR. The tools come from `./dev tools`."""
import base64
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from running_server import RunningServer  # noqa: E402  pylint: disable=wrong-import-position

CACHE = pathlib.Path(os.environ.get("HEADWISE_CACHE") or pathlib.Path.home() / ".cache/headwise")
TOOLS = CACHE / "tools"
TOKENS = {"forward": "forward-0123456789", "analyze": "analyze-0123456789", "admin": "admin-0123456789"}
X = base64.b64encode(struct.pack("<4f", 1, 2, 3, 4)).decode()
REQUEST = json.dumps({"layer": "two-head", "input": {"x": {"dtype": "F32", "shape": [1, 4], "data": X}}})
FORWARD = "headwise.v1.Headwise/Forward"


def run(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60)


def check(result, expected_code, *texts):
    said = result.stdout + result.stderr
    assert result.returncode == expected_code, f"{result.args}: {result.returncode}\n{said}"
    for text in texts:
        assert text in said, f"{result.args}: no {text} in\n{said}"


def try_tools(address, curl, probe, ghz):
    """What works alike over every kind of door: flags of each tool are given."""
    check(run(TOOLS / "grpc-health-probe", "-addr", address, *probe), 0, "SERVING")
    check(run(TOOLS / "grpc-health-probe", "-addr", address, "-service", "layer/two-head", *probe), 0, "SERVING")
    assert run(TOOLS / "grpc-health-probe", "-addr", address, "-service", "layer/none", *probe).returncode != 0
    check(run(TOOLS / "grpcurl", *curl, address, "list"), 0, "headwise.v1.Headwise", "grpc.health.v1.Health")
    check(run(TOOLS / "grpcurl", *curl, address, "describe", "headwise.v1.Headwise.Forward"), 0, "ForwardRequest")
    answer = run(TOOLS / "grpcurl", *curl, "-d", REQUEST, address, FORWARD)
    check(answer, 0)
    tensor = json.loads(answer.stdout)["tensors"][0]
    assert tensor["shape"] == [1, 4] and len(base64.b64decode(tensor["data"])) == 16, tensor
    unknown = run(TOOLS / "grpcurl", *curl, "-d", REQUEST.replace("two-head", "none"), address, FORWARD)
    check(unknown, 64 + 5, "NotFound", 'was "none"')
    report = run(TOOLS / "ghz", *ghz, "--call", FORWARD.replace("/", "."), "-d", REQUEST, "-n", "200", "-c", "4",
                 "-O", "json", address)
    check(report, 0)
    assert json.loads(report.stdout)["statusCodeDistribution"] == {"OK": 200}, report.stdout


def make_certificates(folder):
    """A root, and a certificate for localhost that serves callers as well."""
    for command in (
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=root",
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out leaf.csr -subj /CN=localhost",
            "x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -set_serial 5 -days 1 -extfile san -out cert.pem"):
        (folder / "san").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


def main():
    binaries = pathlib.Path(sys.argv[1])
    for tool in ("grpcurl", "grpc-health-probe", "ghz"):
        assert (TOOLS / tool).exists(), f"{TOOLS / tool}: run ./dev tools first"
    with RunningServer(binaries, "--demo") as server:
        try_tools(server.address, ["-plaintext"], [], ["--insecure"])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_certificates(folder)
        tls = ["--tls-cert", folder / "cert.pem", "--tls-key", folder / "key.pem"]
        ca, own = folder / "ca.pem", ["-cert", folder / "cert.pem", "-key", folder / "key.pem"]
        (folder / "tokens").write_text("".join(f"{right} {token}\n" for right, token in TOKENS.items()))
        (folder / "token").write_text(TOKENS["forward"])
        with RunningServer(binaries, "--demo", *tls, "--token-file", folder / "tokens", host="localhost",
                           health=["--tls-ca", ca, "--token-file", folder / "token"]) as server:
            token = "authorization: Bearer " + TOKENS["forward"]
            headers = json.dumps({"authorization": "Bearer " + TOKENS["forward"]})
            try_tools(server.address, ["-cacert", ca, "-H", token], ["-tls", "-tls-ca-cert", ca],
                      ["--cacert", ca, "-m", headers, "--reflect-metadata", headers])
            check(run(TOOLS / "grpcurl", "-cacert", ca, server.address, "list"), 1,
                  "Unauthenticated")
            unload = run(TOOLS / "grpcurl", "-cacert", ca, "-H", token, "-d", '{"name": "two-head"}', server.address,
                         "headwise.v1.Headwise/UnloadLayer")
            check(unload, 64 + 7, "PermissionDenied", "right admin")
            check(run(TOOLS / "grpcurl", "-plaintext", server.address, "list"), 1)
        with RunningServer(binaries, "--demo", *tls, "--tls-client-ca", ca, host="localhost",
                           health=["--tls-ca", ca, "--tls-cert", own[1], "--tls-key", own[3]]) as server:
            probe = ["-tls", "-tls-ca-cert", ca, "-tls-client-cert", own[1], "-tls-client-key", own[3]]
            try_tools(server.address, ["-cacert", ca, *own], probe,
                      ["--cacert", ca, "--cert", own[1], "--key", own[3]])
            assert run(TOOLS / "grpcurl", "-cacert", ca, server.address, "list").returncode != 0
    print("the tools work")


if __name__ == "__main__":
    main()
