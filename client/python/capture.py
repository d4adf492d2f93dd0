#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What enters attention layers of a transformers model on one's own texts, as safetensors that `headwise` takes.

    capture.py MODEL TEXTS OUT.safetensors --layers 0,5            MODEL: a folder or a name; TEXTS: a text a line
    capture.py MODEL TEXTS OUT.safetensors --layers encoder.0,decoder.1,cross.1

Layers are named as `headwise load --layer` names them. Texts run one by one, so nothing is padded. OUT holds

    layerI.x (PART.I.x where a model has parts)   [N, D] what enters the q projection, F32
    PART.I.memory                                 [M, D] what k and v of a cross attention are computed from
    lengths, positions, token_ids                 [B], [N], [N] I64; with parts, encoder.lengths, decoder.lengths, …
    layerI.y with --outputs                       [N, D] what leaves the output projection, before the residual

and `headwise forward L --input OUT:layer0.x --lengths-from OUT:lengths --positions OUT:positions` takes it from there.
"""

import argparse
import collections
import re

import torch
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer

# Projections by the last part of their name, in every family that Headwise loads.
QUERY = {"query", "q_proj", "q", "q_lin", "c_attn", "attn_qkv", "query_key_value", "qkv_proj", "Wqkv", "in_proj"}
KEY = {"query": "key", "q_proj": "k_proj", "q": "k", "q_lin": "k_lin"}
OUTPUT = ("output.dense", "o_proj", "out_proj", "o", "out_lin", "c_proj", "dense", "Wo")
CROSS = re.compile(r"encoder_attn|EncDecAttention|crossattention|cross_attn")


def attention_layers(model):
    """Headwise's name of every attention layer, with its q, k and output projections."""
    modules = dict(model.named_modules())
    parts = bool(getattr(model.config, "is_encoder_decoder", False))
    layers = {}
    for name in modules:
        if name.rsplit(".", 1)[-1] not in QUERY:
            continue
        index = re.search(r"\.(\d+)\.", f".{name}")
        block = name.rsplit(".", 1)[0].removesuffix(".self")
        output = next((modules[f"{block}.{o}"] for o in OUTPUT if f"{block}.{o}" in modules), None)
        if index is None or output is None:
            continue
        label = index.group(1)
        if parts or CROSS.search(name):
            part = "cross" if CROSS.search(name) else ("decoder" if "decoder" in name else "encoder")
            label = f"{part}.{index.group(1)}"
        stem, last = name.rsplit(".", 1)
        layers[label] = (modules[name], modules.get(f"{stem}.{KEY.get(last, last)}"), output)
    return layers


def prefix(label):
    """Of the names of a layer's tensors."""
    return label if "." in label else f"layer{label}"


class Capture:
    """Keeps what passes the chosen layers, text after text."""

    def __init__(self, chosen, outputs):
        self.rows = collections.defaultdict(list)
        self.hooks = []
        for label, (query, key, output) in chosen.items():
            self.hooks.append(query.register_forward_pre_hook(self.keep_input(f"{prefix(label)}.x")))
            if label.startswith("cross."):
                self.hooks.append(key.register_forward_pre_hook(self.keep_input(f"{prefix(label)}.memory")))
            if outputs:
                self.hooks.append(output.register_forward_hook(self.keep_output(f"{prefix(label)}.y")))

    def keep_input(self, name):
        return lambda _module, inputs: self.keep(name, inputs[0])

    def keep_output(self, name):
        return lambda _module, _inputs, output: self.keep(name, output)

    def keep(self, name, tensor):
        self.rows[name].append(tensor.detach().float().reshape(-1, tensor.shape[-1]).cpu())

    def tensors(self):
        return {name: torch.cat(rows).contiguous() for name, rows in self.rows.items()}


def tokens_of(ids):
    """lengths, positions and token_ids of the texts' ids."""
    return {"lengths": torch.tensor([len(one) for one in ids]),
            "positions": torch.cat([torch.arange(len(one)) for one in ids]),
            "token_ids": torch.cat(ids)}


def run(model, tokenizer, texts, max_tokens):
    """Runs every text by itself; returns the token tensors by name."""
    encoded, decoded = [], []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", truncation=max_tokens is not None, max_length=max_tokens).input_ids
        if ids.shape[1] == 0:
            raise SystemExit(f"texts: every line must have a token; was {text!r}")
        encoded.append(ids[0])
        more = {}
        if model.config.is_encoder_decoder:
            # The text again, as a decoder sees it while it is trained: shifted by its start token.
            start = torch.full((1, 1), model.config.decoder_start_token_id)
            more["decoder_input_ids"] = torch.cat([start, ids[:, :-1]], dim=1)
            decoded.append(more["decoder_input_ids"][0])
        with torch.inference_mode():
            model(input_ids=ids, use_cache=False, **more)
    if not decoded:
        return tokens_of(encoded)
    both = (("encoder", encoded), ("decoder", decoded))
    return {f"{part}.{name}": value for part, ids in both for name, value in tokens_of(ids).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("texts")
    parser.add_argument("out")
    parser.add_argument("--layers", required=True, help="0,5 or encoder.0,decoder.1,cross.1")
    parser.add_argument("--max-tokens", type=int, help="of a text; more are cut off")
    parser.add_argument("--outputs", action="store_true", help="also what leaves each layer")
    args = parser.parse_args()

    model = AutoModel.from_pretrained(args.model).float().eval()
    layers = attention_layers(model)
    wanted = args.layers.split(",")
    missing = [name for name in wanted if name not in layers]
    if missing:
        raise SystemExit(f"layers: must be some of {', '.join(layers)}; was {', '.join(missing)}")
    with open(args.texts, encoding="utf-8") as file:
        texts = [line.rstrip("\n") for line in file if line.strip()]
    capture = Capture({name: layers[name] for name in wanted}, args.outputs)
    tokens = run(model, AutoTokenizer.from_pretrained(args.model), texts, args.max_tokens)
    save_file({**capture.tensors(), **tokens}, args.out)
    print(f"wrote {args.out}: {len(texts)} texts, layers {', '.join(wanted)}")


if __name__ == "__main__":
    main()
