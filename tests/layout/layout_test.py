# SPDX-License-Identifier: Apache-2.0
"""Who may include what, and how large a file may grow. Usage: layout_test.py ROOT"""
import pathlib
import re
import sys

# A file's folder -> prefixes of what it may include of ours, and outside libraries that it may not.
# The longest matching prefix of a path decides.
LEAF = ["core/base/dtype.h", "core/base/tensor.h", "core/format/"]
RULES = {
    "core/format": (LEAF, ["grpc", "google/protobuf", "headwise/v1", "oneapi", "hwy"]),
    "core": (["core/"], ["grpc", "google/protobuf", "headwise/v1", "prometheus"]),
    "core/reference": (["core/base/", "core/layer/spec.h", "core/layer/weights.h", "core/request.h",
                        "core/reference/"], ["grpc", "google/protobuf", "headwise/v1", "oneapi", "hwy"]),
    "server": (["server/", "core/"], ["oneapi", "dnnl"]),
    "client": (["client/", "core/format/", "core/base/dtype.h", "core/base/tensor.h"],
               ["oneapi", "dnnl", "hwy", "server/"]),
    "tests": (["core/", "server/", "client/", "tests/"], []),
}
# oneDNN's headers and its exceptions stay in one file of the product.
ONEDNN_HOME = "core/kernel/tile_kernel.cc"
OURS = re.compile(r"^(core|server|client|tests|proto)/")
MAX_LINES = 450
MAX_FUNCTION_LINES = 60
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def rule_for(path):
    best = max((p for p in RULES if path.startswith(p + "/")), key=len)
    return RULES[best]


def include_faults(path, text):
    allowed, banned = rule_for(path)
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(1)
        where = f"{path}:{number}"
        if OURS.match(header) and not any(header.startswith(prefix) for prefix in allowed):
            yield f"{where}: {path.split('/')[0]} may not include {header}"
        if any(header.startswith(prefix) for prefix in banned):
            yield f"{where}: {header} is not for {path.rsplit('/', 1)[0]}"
        if header.startswith("oneapi/") and path.startswith("core/") and path != ONEDNN_HOME:
            yield f"{where}: only {ONEDNN_HOME} includes oneDNN"


def length_faults(path, text):
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        yield f"{path}: {len(lines)} lines, at most {MAX_LINES}"
    # A function's body in our format begins on a line that ends with "{" and ends with "}" in the
    # first column (or in the third, inside a class).
    begin = None
    for number, line in enumerate(lines, 1):
        if re.match(r"^[A-Za-z].*\) (const |override |noexcept )*\{$", line) or (
                begin is None and re.match(r"^ {4,}.*\) (const )?\{$", line) and lines[number - 2][:1].isalpha()):
            begin = number
        elif line == "}" and begin is not None:
            if number - begin + 1 > MAX_FUNCTION_LINES:
                yield f"{path}:{begin}: a function of {number - begin + 1} lines, at most {MAX_FUNCTION_LINES}"
            begin = None


def faults_of(path, text):
    yield from include_faults(path, text)
    yield from length_faults(path, text)
    if not text.startswith(("// SPDX-License-Identifier: Apache-2.0", "# SPDX", "#!")):
        yield f"{path}: no SPDX line"


def self_test():
    """The checks find what they are for."""
    spdx = "// SPDX-License-Identifier: Apache-2.0\n"
    planted = [
        ("core/batch/x.cc", spdx + '#include "headwise/v1/headwise.pb.h"\n'),
        ("client/x.cc", spdx + '#include "core/engine.h"\n'),
        ("server/x.cc", spdx + "#include <oneapi/dnnl/dnnl.hpp>\n"),
        ("core/kernel/x.cc", spdx + "#include <oneapi/dnnl/dnnl.hpp>\n"),
        ("core/format/x.cc", spdx + '#include "core/layer/spec.h"\n'),
        ("core/reference/x.cc", spdx + '#include "core/kernel/rope.h"\n'),
        ("core/x.cc", spdx + "int f(int x) {\n" + "  ++x;\n" * 60 + "}\n"),
        ("core/x.cc", spdx + "int x;\n" * 450),
        ("core/x.cc", "int x;\n"),
    ]
    for path, text in planted:
        assert list(faults_of(path, text)), f"not found: {path}\n{text[:200]}"
    assert not list(faults_of("server/x.cc", spdx + '#include "core/engine.h"\n'))


def main():
    root = pathlib.Path(sys.argv[1])
    self_test()
    faults = []
    files = 0
    for folder in ("core", "server", "client", "tests"):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".h", ".cc"):
                files += 1
                faults += faults_of(str(file.relative_to(root)), file.read_text())
    for folder in ("proto", "server", "client", "core", "deploy", "tests"):
        if not (root / folder).is_dir():
            faults.append(f"{folder}: folder missing")
    for name in ("CMakeLists.txt", "Dockerfile"):
        if not (root / name).is_file():
            faults.append(f"{name}: missing")
    print("\n".join(faults) or f"{files} files, no fault")
    return 1 if faults or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
