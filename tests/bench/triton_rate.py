# SPDX-License-Identifier: Apache-2.0
"""What Triton, with OpenVINO inside, serves of one attention layer: triton_rate.py PIPES BENCHMARK

A layer for each of service_shapes.py. Each line of PIPES.in, {"shape": [B, T, D], "seconds": S}, asks for a run of four
tritonclients in closed loop over gRPC, x [B, T, D] in and y of the same size out, f32; each line of PIPES.out answers one:
{"requests_per_s": R, "p50_ms": …, "p99_ms": …}. Runs on the machine's own Python with nvidia-pytriton, tritonclient and
openvino: `./dev service --triton` sees to that. It ends with the process BENCHMARK.
"""
import argparse
import threading
import time

import numpy as np
import openvino
import rival_pipe
import tritonclient.grpc
from openvino import opset13 as op
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from service_shapes import SHAPES

CLIENTS = 4
PORTS = {"grpc_port": 8011, "http_port": 8010, "metrics_port": 8012}  # PyTriton takes no port 0


def compiled_layer(width, heads):
    """One attention layer of random weights in OpenVINO, for any batch and length."""
    generator = np.random.default_rng(0)

    def constant(*shape):
        return op.constant((generator.standard_normal(shape) * 0.02).astype(np.float32))

    def split(projected):
        return op.transpose(op.reshape(projected, [0, 0, heads, width // heads], True), [0, 2, 1, 3])

    x = op.parameter([-1, -1, width], np.float32)
    q, k, v = (split(op.add(op.matmul(x, constant(width, width), False, True), constant(width))) for _ in range(3))
    z = op.transpose(op.scaled_dot_product_attention(q, k, v), [0, 2, 1, 3])
    y = op.add(op.matmul(op.reshape(z, [0, 0, width], True), constant(width, width), False, True), constant(width))
    return openvino.Core().compile_model(openvino.Model([y], [x]), "CPU", {"PERFORMANCE_HINT": "LATENCY"})


def bind(triton, width, heads):
    layer = compiled_layer(width, heads)

    def infer(x):
        return {"y": layer(x)[0]}
    tensors = [Tensor(name=name, dtype=np.float32, shape=(-1, width)) for name in "xy"]
    triton.bind(f"layer{width}", batch(infer), tensors[:1], tensors[1:],
                config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher()))


def measure(shape, seconds):
    batch_size, tokens, width = shape
    end = time.perf_counter() + 1 + seconds
    times = []

    def call():
        client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{PORTS['grpc_port']}")
        x = tritonclient.grpc.InferInput("x", [batch_size, tokens, width], "FP32")
        x.set_data_from_numpy(np.random.default_rng(1).standard_normal((batch_size, tokens, width)).astype(np.float32))
        while (began := time.perf_counter()) < end:
            client.infer(f"layer{width}", [x]).as_numpy("y")
            if began > end - seconds:  # the first second warms up
                times.append(time.perf_counter() - began)

    callers = [threading.Thread(target=call) for _ in range(CLIENTS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return {"requests_per_s": len(times) / seconds, "p50_ms": p50, "p99_ms": p99}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("pipes")
    arguments.add_argument("benchmark", type=int)
    options = arguments.parse_args()
    with Triton(config=TritonConfig(**PORTS)) as triton:
        for shape in SHAPES:
            bind(triton, shape.width, shape.heads)
        triton.run()
        rival_pipe.answer_all(options.pipes, options.benchmark, lambda asked: measure(**asked))


if __name__ == "__main__":
    main()
