#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times what a user would pick instead of Headwise, in process, on shapes that it is asked for.

  peers.py [--threads N] PIPES BENCHMARK     `./dev bench --peers` makes an environment with the packages and starts it

Each line of PIPES.in asks for one measurement, {"core": false, "dtype": "f32", "shape": [B, T, D, H], "seconds": 1}: a
whole self-attention layer (q, k, v projections, attention, output projection, biases, no mask) or, with core, attention
alone on ready q, k, v. Each line of PIPES.out answers one: {"onnxruntime": MS, "openvino": MS, "torch": MS,
"torch_module": MS}, the least of several runs; peers that aren't installed or can't do it are absent. It ends with the
process BENCHMARK.
"""
import argparse
import os
import sys
import time

import numpy as np
import rival_pipe

RANDOM = np.random.default_rng(0)


def weights(*shape):
    return (RANDOM.standard_normal(shape) * 0.02).astype(np.float32)


def best_ms(run, seconds):
    run(), run()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def torch_with(dtype, threads):
    """torch on so many threads, and its name of the type."""
    import torch

    torch.set_num_threads(threads)
    return torch, {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]


def without_gradients(torch, run):
    def inside():
        with torch.inference_mode():
            run()

    return inside


def torch_layer(shape, dtype, core, threads):
    """Projections and scaled_dot_product_attention, as most models call it."""
    torch, number = torch_with(dtype, threads)
    functional = torch.nn.functional
    b, t, d, h = shape
    if core:
        q, k, v = (torch.randn(b, h, t, d // h).to(number) for _ in range(3))
        return without_gradients(torch, lambda: functional.scaled_dot_product_attention(q, k, v))
    layer = torch.nn.MultiheadAttention(d, h, batch_first=True, dtype=number).eval()
    x = torch.randn(b, t, d).to(number)

    def run():
        qkv = functional.linear(x, layer.in_proj_weight, layer.in_proj_bias)
        q, k, v = qkv.view(b, t, 3, h, d // h).permute(2, 0, 3, 1, 4)
        z = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        return functional.linear(z, layer.out_proj.weight, layer.out_proj.bias)

    return without_gradients(torch, run)


def torch_module_layer(shape, dtype, core, threads):
    """nn.MultiheadAttention itself, whose fast path is code of its own."""
    if core:
        return None
    torch, number = torch_with(dtype, threads)
    b, t, d, h = shape
    layer = torch.nn.MultiheadAttention(d, h, batch_first=True, dtype=number).eval()
    x = torch.randn(b, t, d).to(number)
    return without_gradients(torch, lambda: layer(x, x, x, need_weights=False))


def onnxruntime_layer(shape, dtype, core, threads):
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    if dtype != "f32":
        return None  # its attention has no bf16 kernel on a CPU
    b, t, d, h = shape
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [b, t, d])
    constant = lambda name, *size: onnx.numpy_helper.from_array(weights(*size), name)
    nodes, constants = [], []
    inputs, output = [value(name) for name in "qkv"], "z"
    if not core:
        inputs = [value("x")]
        for name in "qkv":
            constants += [constant("w" + name, d, d), constant("b" + name, d)]
            nodes += [helper.make_node("MatMul", ["x", "w" + name], ["m" + name]),
                      helper.make_node("Add", ["m" + name, "b" + name], [name])]
    nodes.append(helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["z"], num_heads=h, domain="com.microsoft"))
    if not core:
        constants += [constant("wo", d, d), constant("bo", d)]
        nodes += [helper.make_node("MatMul", ["z", "wo"], ["mo"]), helper.make_node("Add", ["mo", "bo"], ["y"])]
        output = "y"
    graph = helper.make_graph(nodes, "layer", inputs, [value(output)], constants)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), options,
        providers=["CPUExecutionProvider"])
    feed = {node.name: RANDOM.standard_normal((b, t, d)).astype(np.float32) for node in session.get_inputs()}
    return lambda: session.run(None, feed)


def openvino_layer(shape, dtype, core, threads):
    import openvino
    from openvino import opset13 as op

    b, t, d, h = shape
    constant = lambda *size: op.constant(weights(*size))
    split = lambda x: op.transpose(op.reshape(x, [b, t, h, d // h], False), [0, 2, 1, 3])
    if core:
        inputs = [op.parameter([b, h, t, d // h], np.float32) for _ in range(3)]
        out = op.scaled_dot_product_attention(*inputs)
    else:
        inputs = [op.parameter([b, t, d], np.float32)]
        q, k, v = (split(op.add(op.matmul(inputs[0], constant(d, d), False, True), constant(d))) for _ in range(3))
        heads = op.transpose(op.scaled_dot_product_attention(q, k, v), [0, 2, 1, 3])
        out = op.add(op.matmul(op.reshape(heads, [b, t, d], False), constant(d, d), False, True), constant(d))
    model = openvino.Core().compile_model(openvino.Model([out], inputs), "CPU", {
        "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": dtype, "PERFORMANCE_HINT": "LATENCY"})
    request = model.create_infer_request()
    feed = [RANDOM.standard_normal(tuple(node.shape)).astype(np.float32) for node in inputs]
    return lambda: request.infer(feed, share_inputs=True, share_outputs=True)


PEERS = {"onnxruntime": onnxruntime_layer, "openvino": openvino_layer, "torch": torch_layer,
         "torch_module": torch_module_layer}


class Peers:
    """Layers of all peers, each made once."""

    def __init__(self, threads):
        self.threads = threads
        self.missing = set()
        self.layers = {}

    def layer(self, name, shape, dtype, core):
        key = name, shape, dtype, core
        if key not in self.layers and name not in self.missing:
            try:
                self.layers[key] = PEERS[name](shape, dtype, core, self.threads)
            except ImportError as error:
                print(f"peers: {name} is left out: {error}", file=sys.stderr)
                self.missing.add(name)
        return self.layers.get(key)

    def answer(self, asked):
        times = {}
        for name in PEERS:
            run = self.layer(name, tuple(asked["shape"]), asked["dtype"], asked["core"])
            if run is not None:
                times[name] = best_ms(run, asked["seconds"])
        return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("pipes")
    parser.add_argument("benchmark", type=int)
    options = parser.parse_args()
    rival_pipe.answer_all(options.pipes, options.benchmark, Peers(options.threads).answer)


if __name__ == "__main__":
    main()
