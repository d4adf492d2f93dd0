# SPDX-License-Identifier: Apache-2.0
"""What the documents promise is there. Usage: docs_test.py ROOT DEPENDENCY_LIST"""
import pathlib
import re
import sys

CASES = ("N1 N3 N4 N6 N7 N8 N9 N10 N11 N12 N13 N14 N15 N16 N17 N18 N21 N22 N23 N24 Q1 Q2 Q4 Q5 Q6 A1 A2 A3 A4 A5 A8 A9 "
         "A10 L1 L2 L3 L4 L5 L6 L7 L8 S1 S2 S3 S4 S5 S6 S7 S8 S10 S11 S12 S14 S15 S16 T1 T2 T3 T4 T6 T7 T8 T9").split()
TEST = re.compile(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)")
NAMED = re.compile(r"`(\w+\.\w+)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def tests_in(root):
    found = set()
    for file in (root / "tests").rglob("*.cc"):
        found |= {".".join(match) for match in TEST.findall(file.read_text())}
    return found


def case_faults(table, tests):
    rows = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and re.fullmatch(r"[A-Z]\d+", cells[0]):
            rows[cells[0]] = cells[2]
    yield from (f"{case}: no row" for case in CASES if not rows.get(case))
    for case, held in rows.items():
        yield from (f"{case}: {name} is no test" for name in NAMED.findall(held) if name not in tests)


def link_faults(root):
    for page in [*root.glob("*.md"), *root.glob("docs/*.md"), root / "deploy/README.md"]:
        for target in LINK.findall(page.read_text()):
            if not (page.parent / target).exists():
                yield f"{page.relative_to(root)}: {target} is not there"


def dependency_faults(text):
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    packages = {row[0] for row in rows if len(row) == 4 and all(row)}
    yield from (f"not whole: {row}" for row in rows if len(row) != 4 or not all(row))
    for start in ("libgrpc++", "libdnnl", "libprotobuf", "libssl", "nlohmann-json"):
        if not any(package.startswith(start) for package in packages):
            yield f"dependencies: none begins {start}"


def self_test():
    """The checks find what they are for."""
    assert "N1: Cases.N1_Gone is no test" in list(case_faults("| N1 | x | `Cases.N1_Gone` |", {"Cases.N1_There"}))
    assert "T9: no row" in list(case_faults("| N1 | x | `Cases.N1_There` |", {"Cases.N1_There"}))
    assert list(dependency_faults("package\tversion\thow\tlicences\nlibgrpc++1\t1\tlinked\t\n"))


def main():
    root = pathlib.Path(sys.argv[1])
    self_test()
    faults = list(case_faults((root / "docs/cases.md").read_text(), tests_in(root)))
    faults += link_faults(root)
    faults += dependency_faults(pathlib.Path(sys.argv[2]).read_text())
    print("\n".join(faults) or "no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
