#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""client/python/example.py against the built server: example_test.py TREE BIN."""

import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from running_server import RunningServer  # noqa: E402  pylint: disable=wrong-import-position

TREE, BIN = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(address, folder):
    example = TREE / "client/python/example.py"
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 40
    x = np.random.default_rng(3).standard_normal((2, 9, 384)).astype(np.float32)
    np.save(folder / "x.npy", x)
    plot = folder / "effects.svg"
    printed = run(sys.executable, example, address, "minilm", "3", folder / "x.npy", plot)
    assert "loaded example version 1: 12 heads, width 384" in printed, printed
    assert "2 sequences, 18 tokens" in printed, printed
    # The same figures as the command line's.
    answer = json.loads(run(BIN / "headwise", "--server", address, "ablate", "example", "--json", "--sweep",
                            "leave-one-out", "--input", folder / "x.npy"))
    for ablation in answer["ablations"]:
        effect = ablation["effect"]
        line = f"head {ablation['heads'][0]:2}: relative L2 {effect['relative_l2']:.4f}, cosine {effect['cosine']:.4f}"
        assert line in printed, (line, printed)
    bars = xml.etree.ElementTree.parse(plot).getroot().findall("{*}rect")
    widths = [float(bar.get("width")) for bar in bars]
    assert len(widths) == 12 and max(widths) == 300.0, widths


def main():
    with RunningServer(BIN, "--repository", TREE / "tests/data") as server, tempfile.TemporaryDirectory() as folder:
        check(server.address, pathlib.Path(folder))


if __name__ == "__main__":
    main()
