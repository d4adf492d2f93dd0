# SPDX-License-Identifier: Apache-2.0
"""Runs the wrong code of docs/mistakes, audits what it gives and compares with the pages.

Usage: mistakes_test.py ROOT BIN [--write]
A page holds a block of Python that leaves `y`, a block with y's rows and a block with the audit's command and
answer. --write fills the last two in.
"""
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from running_server import RunningServer  # noqa: E402  pylint: disable=wrong-import-position

BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.S)


def write_npy(path, rows):
    """A .npy file of f64 [rows, columns]."""
    shape = (len(rows), len(rows[0]))
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    values = [float(v) for row in rows for v in row]
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                     struct.pack(f"<{len(values)}d", *values))


def audit(binaries, address, command, folder):
    words = command.split()[2:]
    run = subprocess.run([binaries / "headwise", "--server", address, *words], cwd=folder, capture_output=True,
                         text=True, timeout=60)
    return run.stdout + run.stderr


def fill_in(text, prelude, folder, ask):
    """The page with its numbers and answers as they are now."""
    blocks = list(BLOCK.finditer(text))
    assert [b.group(1) for b in blocks] == ["python", "", ""], "a page has three blocks"
    names = {}
    code = blocks[0].group(2)
    if prelude != code:
        exec(prelude, names)  # pylint: disable=exec-used
        right = names["y"]
        lines = [line for line in code.splitlines() if line.strip()]
        assert len(lines) <= 12, f"{len(lines)} lines of wrong code"
    exec(code, names)  # pylint: disable=exec-used
    if prelude != code:
        assert names["y"] != right, "the wrong code gives the right numbers"
    write_npy(folder / "x.npy", names["x"])
    write_npy(folder / "y.npy", names["y"])
    command = blocks[2].group(2).splitlines()[0]
    rows = "\n".join("  ".join(f"{v:8.5f}" for v in row) for row in names["y"])
    for block, now in ((blocks[2], f"{command}\n{ask(command)}"), (blocks[1], f"{rows}\n")):
        text = text[:block.start(2)] + now + text[block.end(2):]
    return text


def main():
    root, binaries = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    pages = sorted((root / "docs" / "mistakes").glob("*.md"))
    prelude = BLOCK.search((root / "docs" / "mistakes" / "README.md").read_text()).group(2)
    stale = []
    with RunningServer(binaries, "--demo") as server, tempfile.TemporaryDirectory() as folder:
        for page in pages:
            text = page.read_text()
            now = fill_in(text, prelude, pathlib.Path(folder),
                          lambda command: audit(binaries, server.address, command, folder))
            # A page is about its mistake: the audit names it.
            if page.stem != "README" and f"\n{page.stem}: " not in now:
                stale.append(f"{page.name}: the audit doesn't name {page.stem}:\n{now}")
            if now == text:
                continue
            if "--write" in sys.argv:
                page.write_text(now)
            else:
                stale.append(f"{page.name} is stale; it should read:\n{now}")
    print("\n".join(stale) or f"{len(pages)} pages, none stale")
    return 1 if stale or len(pages) < 6 else 0


if __name__ == "__main__":
    sys.exit(main())
