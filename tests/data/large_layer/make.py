#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint with one attention layer as wide as the largest public ones, of random weights in BF16.

    make.py FOLDER [--width 8192] [--heads 64] [--kv-heads 8] [--seed 1]

Numbers are of both signs and 2^-9 to 2^-5 in size, so that sums over the width stay near 1. The same arguments give
the same bytes. At the defaults the file has 302 MB.
"""
import argparse
import json
import pathlib
import random
import struct

CHUNK_NUMBERS = 1 << 22

# The high byte of a BF16 number holds its sign and most of its exponent: 0x3B and 0x3C are 2^-9 to 2^-5.
HIGH_BYTES = bytes((byte & 0x80) | (0x3B + (byte & 1)) for byte in range(256))


def random_numbers(count, source):
    """Yields the bytes of `count` BF16 numbers."""
    while count > 0:
        now = min(count, CHUNK_NUMBERS)
        numbers = bytearray(source.randbytes(2 * now))
        numbers[1::2] = numbers[1::2].translate(HIGH_BYTES)
        yield numbers
        count -= now


def config(args):
    return {
        "model_type": "llama",
        "hidden_size": args.width,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.kv_heads,
        "num_hidden_layers": 1,
        "rope_theta": 500000.0,
    }


def shapes(args):
    """Name and shape of each tensor, in the order of the file."""
    kv_width = args.width // args.heads * args.kv_heads
    prefix = "model.layers.0.self_attn."
    return [
        (prefix + "k_proj.weight", [kv_width, args.width]),
        (prefix + "o_proj.weight", [args.width, args.width]),
        (prefix + "q_proj.weight", [args.width, args.width]),
        (prefix + "v_proj.weight", [kv_width, args.width]),
    ]


def header(tensors):
    entries, end = {}, 0
    for name, (rows, columns) in tensors:
        begin, end = end, end + 2 * rows * columns
        entries[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "config.json").write_text(json.dumps(config(args), indent=1) + "\n")
    tensors = shapes(args)
    source = random.Random(args.seed)
    with open(args.folder / "model.safetensors", "wb") as file:
        file.write(header(tensors))
        for _, (rows, columns) in tensors:
            for numbers in random_numbers(rows * columns, source):
                file.write(numbers)


if __name__ == "__main__":
    main()
