#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads a layer, ablates each head, prints and plots the effects: example.py HOST:PORT CHECKPOINT LAYER X.npy OUT.svg"""
import sys

import grpc
import numpy as np
from stubs import pb, rpc

server, checkpoint, layer, x_file, plot = sys.argv[1:]
headwise = rpc.HeadwiseStub(grpc.insecure_channel(server))

# Load: the folder is one under the server's --repository.
loaded = headwise.LoadLayer(pb.LoadLayerRequest(name="example", checkpoint=checkpoint, layer=layer, replace=True)).layer
print(f"loaded {loaded.name} version {loaded.version}: {loaded.heads} heads, width {loaded.d_model}")

# Ablate: x is [N, D], one sequence, or [B, T, D]. Progress comes first, then the result.
x = np.ascontiguousarray(np.load(x_file), dtype="<f4")
request = pb.AblateRequest(layer="example", sweep=pb.LEAVE_ONE_OUT)
request.input.x.CopyFrom(pb.Tensor(dtype=pb.F32, shape=x.shape, data=x.tobytes()))
result = next(part.result for part in headwise.Ablate(request) if part.HasField("result"))

# Print: how much of y each head's absence changes.
for ablation in result.ablations:
    print(f"head {ablation.heads[0]:2}: relative L2 {ablation.effect.relative_l2:.4f}, cosine {ablation.effect.cosine:.4f}")
print(result.scope.text)

# Plot: a bar a head.
effects = np.array([ablation.effect.relative_l2 for ablation in result.ablations])
bars = "".join(
    f'<text x="4" y="{20 * i + 15}">head {a.heads[0]}</text><rect x="70" y="{20 * i + 3}" width="{width:.1f}" height="14"/>'
    for i, (a, width) in enumerate(zip(result.ablations, 300 * effects / effects.max())))
with open(plot, "w", encoding="utf-8") as out:
    out.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="380" height="{20 * len(effects)}">{bars}</svg>\n')
print(f"wrote {plot}")
