# SPDX-License-Identifier: Apache-2.0
"""Existing clients of the Open Inference Protocol, unchanged: tritonclient, and perf_analyzer where it installs.
Usage: tritonclient_test.py ROOT BIN"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from running_server import RunningServer  # noqa: E402  pylint: disable=wrong-import-position


def read_safetensors(path, names):
    """The named F32 and integer tensors of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    kinds = {"F32": np.float32, "I64": np.int64, "I32": np.int32}
    for name in names:
        begin, end = header[name]["data_offsets"]
        values = np.frombuffer(data[8 + size + begin:8 + size + end], dtype=kinds[header[name]["dtype"]])
        yield values.reshape(header[name]["shape"])


def tensor(name, values, datatype=None):
    kinds = {np.dtype(np.float32): "FP32", np.dtype(np.float16): "FP16", np.dtype(np.int64): "INT64",
             np.dtype(np.int32): "INT32"}
    item = triton.InferInput(name, list(values.shape), datatype or kinds[values.dtype])
    item.set_data_from_numpy(values)
    return item


def check_management(client):
    assert client.is_server_live() and client.is_server_ready()
    assert not client.is_model_ready("minilm.3")
    index = {model.name: model.state for model in client.get_model_repository_index().models}
    assert index["minilm.3"] == "UNAVAILABLE", index
    client.load_model("minilm.3")
    assert client.is_model_ready("minilm.3") and client.is_model_ready("minilm.3", "1")
    metadata = client.get_model_metadata("minilm.3")
    assert [output.name for output in metadata.outputs][:2] == ["y", "z"], metadata
    assert client.get_model_config("minilm.3").config.name == "minilm.3"
    client.unload_model("minilm.3")
    assert not client.is_model_ready("minilm.3")
    assert "model_repository" in client.get_server_metadata().extensions


def check_numbers(client, root):
    data = root / "tests/data/minilm"
    x, lengths = read_safetensors(data / "inputs.safetensors", ["layer0.x", "lengths"])
    expected, = read_safetensors(data / "expected.safetensors", ["layer0.y"])
    client.load_model("minilm.0")
    answer = client.infer("minilm.0", [tensor("x", x), tensor("lengths", lengths)], request_id="one",
                          outputs=[triton.InferRequestedOutput("y"), triton.InferRequestedOutput("z")])
    y = answer.as_numpy("y")
    assert answer.get_response().id == "one"
    assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max(), np.abs(y - expected).max()
    assert answer.as_numpy("z").shape == (x.shape[0], 12, 32)
    # Dense: the first tokens of two sequences as [2, T, D].
    dense = np.stack([x[:4], x[lengths[0]:lengths[0] + 4]])
    both = client.infer("minilm.0", [tensor("x", dense)]).as_numpy("y")
    alone = client.infer("minilm.0", [tensor("x", dense[1])]).as_numpy("y")
    assert both.shape == (2, 4, 384) and (both[1] == alone).all()
    half = client.infer("minilm.0", [tensor("x", x[:5].astype(np.float16))])
    assert half.get_output("y").datatype == "FP16" and half.as_numpy("y").dtype == np.float16
    brain = triton.InferInput("x", [5, 384], "BF16")
    brain.set_data_from_numpy(np.array(x[:5], dtype=ml_dtypes.bfloat16))
    assert client.infer("minilm.0", [brain]).get_output("y").datatype == "BF16"
    for wrong in ([tensor("x", x[:, :8])], [tensor("input_ids", x)], []):
        try:
            client.infer("minilm.0", wrong)
        except InferenceServerException as error:
            assert error.status() == "StatusCode.INVALID_ARGUMENT", error
        else:
            raise AssertionError("not refused")
    statistics = client.get_inference_statistics("minilm.0").model_stats[0]
    assert statistics.inference_stats.success.count == 5, statistics
    assert statistics.inference_stats.fail.count == 3, statistics


def check_perf_analyzer(address):
    program = shutil.which("perf_analyzer", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("perf_analyzer")
    if program is None:
        print("perf_analyzer: has no package for this machine")
        return
    # It sends every input that the model has, the optional lengths as well.
    data = {"data": [{"x": {"content": [0.5] * (16 * 384), "shape": [16, 384]},
                      "lengths": {"content": [7, 9], "shape": [2]}}]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(data, file)
        file.flush()
        run = subprocess.run([program, "-m", "minilm.0", "-i", "grpc", "-u", address, "--input-data", file.name,
                              "--concurrency-range", "2", "--measurement-interval", "1000", "--max-trials", "4",
                              "-s", "50"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and "Throughput:" in run.stdout, run.stdout + run.stderr
    print(*[line for line in run.stdout.splitlines() if "Throughput" in line or "latency" in line][:4], sep="\n")


def main():
    root, binaries = pathlib.Path(sys.argv[1]), sys.argv[2]
    with RunningServer(binaries, "--repository", root / "tests/data") as server:
        client = triton.InferenceServerClient(server.address)
        check_management(client)
        check_numbers(client, root)
        check_perf_analyzer(server.address)
    print("tritonclient works unchanged")


if __name__ == "__main__":
    main()
