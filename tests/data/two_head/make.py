#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the two hand-sized layers and every number that they pass through.

Needs numpy and shares nothing with the C++ code. For each layer: spec.json and weights.safetensors
(what `headwise load NAME --spec … --weights …` takes), x.npy, layer.json with all three (what
`headwise trace --layer-json …` takes), expected.json with q, k, v, scores, p, z, y and
contributions in float64. two_head/unscaled_y.npy is the y of code that forgot to divide by sqrt(dk),
for an audit to name. Run it in this folder: ./make.py
"""

import json
import pathlib
import struct

import numpy as np

X = [[1, 0, 2, 0],
     [0, 1, 0, 1],
     [1, 1, 0, 2]]

TWO_HEAD = {
    "folder": "two_head", "dk": [2, 2], "dv": [2, 2], "x": X,
    "wq": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
    "wk": [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, -1, 0], [0, 1, 0, 1]],
    "wv": [[2, 0, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 2]],
    "wo": [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, -1, 0], [0, 2, 0, 1]],
}

TWO_HEAD_UNEQUAL = {
    "folder": "two_head_unequal", "dk": [1, 3], "dv": [2, 1], "x": X,
    "wq": [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]],
    "wk": [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]],
    "wv": [[1, 0, 0, 0], [0, 0, 2, 0], [0, 1, 0, 1]],
    "wo": [[1, 0, 2], [0, 1, 0], [1, 1, 0], [0, 0, 1]],
    "bq": [0.5, 0, 0, -0.5], "bk": [0, 1, 0, 0.5], "bv": [1, 0, -1], "bo": [0.5, -0.5, 0, 1],
}

ROLES = {"wq": "q", "wk": "k", "wv": "v", "wo": "o",
         "bq": "q_bias", "bk": "k_bias", "bv": "v_bias", "bo": "o_bias"}


def head_columns(widths):
    """The columns of each head: [slice, …]."""
    ends = np.cumsum(widths)
    return [slice(end - width, end) for width, end in zip(widths, ends)]


def forward(layer, scaled=True):
    """Causal attention, one head after the other."""
    def bias(name):
        return np.array(layer.get(name, 0.0), dtype=np.float64)

    x, wq, wk, wv, wo = (np.array(layer[name], dtype=np.float64)
                         for name in ("x", "wq", "wk", "wv", "wo"))
    q, k, v = x @ wq.T + bias("bq"), x @ wk.T + bias("bk"), x @ wv.T + bias("bv")
    hidden = np.triu(np.ones((len(x), len(x)), dtype=bool), 1)

    scores, p, z, contributions = [], [], [], []
    for key, value, dk in zip(head_columns(layer["dk"]), head_columns(layer["dv"]), layer["dk"]):
        s = q[:, key] @ k[:, key].T / (np.sqrt(dk) if scaled else 1)
        visible = np.where(hidden, -np.inf, s)
        e = np.exp(visible - visible.max(axis=-1, keepdims=True))
        weights = e / e.sum(axis=-1, keepdims=True)
        reading = weights @ v[:, value]
        scores.append(s)
        p.append(weights)
        z.append(reading)
        contributions.append(reading @ wo[:, value].T)
    z = np.concatenate(z, axis=-1)
    return {"q": q, "k": k, "v": v, "scores": np.stack(scores), "p": np.stack(p), "z": z,
            "y": z @ wo.T + bias("bo"), "contributions": np.stack(contributions, axis=1)}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, value in tensors.items():
        raw = np.array(value, dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(np.shape(value)),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def as_json(values):
    """One line a member."""
    lines = [f'{json.dumps(name)}: {json.dumps(value)}' for name, value in values.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(layer, root):
    folder = root / layer["folder"]
    tensors = {name: layer[name] for name in ROLES if name in layer}
    spec = {"d_model": len(layer["wq"][0]), "heads": len(layer["dk"]), "dk": layer["dk"],
            "dv": layer["dv"], "orientation": "OUT_IN", "fused_layout": "SEPARATE",
            "mask": {"causal": True}, "tensors": {ROLES[name]: name for name in tensors}}
    (folder / "spec.json").write_text(as_json(spec))
    write_safetensors(folder / "weights.safetensors", tensors)
    typed = {name: value for name, value in spec.items() if name != "tensors"}
    (folder / "layer.json").write_text(as_json(
        {"spec": typed, "weights": {ROLES[name]: layer[name] for name in tensors}, "x": layer["x"]}))
    np.save(folder / "x.npy", np.array(layer["x"], dtype="<f4"))
    values = {name: value.tolist() for name, value in forward(layer).items()}
    (folder / "expected.json").write_text(as_json(values))


if __name__ == "__main__":
    data = pathlib.Path(__file__).resolve().parent.parent
    for each in (TWO_HEAD, TWO_HEAD_UNEQUAL):
        write(each, data)
    np.save(data / "two_head/unscaled_y.npy", forward(TWO_HEAD, scaled=False)["y"])
