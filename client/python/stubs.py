# SPDX-License-Identifier: Apache-2.0
"""Makes headwise.v1's Python stubs where they are missing, and imports them.

    from stubs import pb, rpc      # messages; HeadwiseStub

They are generated from the proto beside this tree by protoc and gRPC's plugin (Debian: protobuf-compiler,
protobuf-compiler-grpc) or by grpcio-tools, into a folder of the user's cache that is named after the protos' bytes.
"""

import hashlib
import importlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
SOURCES = sorted((PROTO / "headwise" / "v1").glob("*.proto"))


def _commands(out):
    flags = [f"-I{PROTO}", f"--python_out={out}", f"--grpc_python_out={out}", *map(str, SOURCES)]
    plugin = shutil.which("grpc_python_plugin")
    if plugin and shutil.which("protoc"):
        yield ["protoc", f"--plugin=protoc-gen-grpc_python={plugin}", *flags]
    yield [sys.executable, "-m", "grpc_tools.protoc", *flags]


def _generate():
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    folder = cache / "headwise-python" / digest
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = pathlib.Path(scratch) / "stubs"
        for command in _commands(made):
            made.mkdir(exist_ok=True)
            if subprocess.run(command, check=False).returncode == 0:
                break
        else:
            raise SystemExit("stubs: neither protoc with grpc_python_plugin nor grpcio-tools could make them")
        try:
            made.rename(folder)
        except OSError:  # somebody else was faster
            if not folder.exists():
                raise
    return folder


sys.path.insert(0, str(_generate()))


class pb:
    """Every message of headwise.v1 by its name."""


for _name in (source.stem for source in SOURCES):
    _module = importlib.import_module(f"headwise.v1.{_name}_pb2")
    for _key, _value in vars(_module).items():
        if not _key.startswith("_"):
            setattr(pb, _key, _value)

rpc = importlib.import_module("headwise.v1.headwise_pb2_grpc")
