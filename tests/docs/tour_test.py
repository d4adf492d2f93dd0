# SPDX-License-Identifier: Apache-2.0
"""README's tour, run again: each command of it against a server, its output against what is pasted.

Usage: tour_test.py ROOT BIN [--update]     BIN holds the built programs; --update pastes anew.

Compared are words and numbers, not blanks. Times may differ (they become T), numbers by a part in a
thousand, and errors below 1e-4 in any way that stays below it: they are rounding, which is another
CPU's own.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from running_server import RunningServer  # noqa: E402  pylint: disable=wrong-import-position

TITLE = "## A tour in ten minutes"
INDENT = "    "
TIME = re.compile(r"\b\d+(\.\d+)? (us|ms|s)\b")
NUMBER = re.compile(r"^-?[\d,]*\.?\d+(e[-+]?\d+)?$")
RELATIVE, ABSOLUTE, ROUNDING = 1e-3, 2e-4, 1e-4


def tour_of(readme):
    """[(first line, line past the last, command, pasted lines)], in order; lines count from 0."""
    lines = readme.splitlines()
    begin = lines.index(TITLE)
    end = next((i for i in range(begin + 1, len(lines)) if lines[i].startswith("## ")), len(lines))
    steps, i = [], begin
    while i < end:
        if not lines[i].startswith(INDENT + "$ "):
            i += 1
            continue
        command = lines[i][len(INDENT) + 2:]
        i += 1
        while command.endswith("\\"):
            command = command[:-1] + lines[i].strip()
            i += 1
        first = i
        # Output may have blank lines; the next command or text that isn't indented ends it.
        while i < end and (not lines[i] or lines[i].startswith(INDENT)) and \
                not lines[i].startswith(INDENT + "$ "):
            i += 1
        last = i
        while last > first and not lines[last - 1]:
            last -= 1
        steps.append((first, last, command, [line[len(INDENT):] for line in lines[first:last]]))
    return steps


def number_of(word):
    word = word.strip("()[];:,%")
    return float(word.replace(",", "")) if NUMBER.match(word) else None


def same_word(pasted, printed):
    if pasted == printed:
        return True
    a, b = number_of(pasted), number_of(printed)
    if a is None or b is None:
        return False
    if "e-" in pasted and abs(a) < ROUNDING and abs(b) < ROUNDING:
        return True
    return abs(a - b) <= max(ABSOLUTE, RELATIVE * max(abs(a), abs(b)))


def differences(pasted, printed):
    """What differs between two outputs, as lines for people."""
    a = [TIME.sub("T", line).split() for line in pasted if line.strip()]
    b = [TIME.sub("T", line).split() for line in printed if line.strip()]
    faults = []
    for i in range(max(len(a), len(b))):
        was, now = (a[i] if i < len(a) else None), (b[i] if i < len(b) else None)
        if was is None or now is None or len(was) != len(now) or \
                not all(same_word(x, y) for x, y in zip(was, now)):
            faults.append(f"  pasted : {' '.join(was) if was is not None else '(nothing)'}\n"
                          f"  printed: {' '.join(now) if now is not None else '(nothing)'}")
    return faults


def self_test():
    """What has changed is found, what may change is not."""
    same = [("in 340 us after 1.2 ms", "in 9.1 ms after 8 us"), ("a  1.0000", "a 1.0004"),
            ("off by 1.9e-07", "off by 3.0e-08"), ("(1,600)", "(1,600)"), ("x", "x  ")]
    other = [("a 1.0", "a 1.01"), ("a", "b"), ("1,600 scores", "1,601.9 scores"), ("a b", "a"),
             ("off by 1.9e-07", "off by 1.9e-03"), ("0.5", "-0.5"), ("340 us", "340 B")]
    for was, now in same:
        assert not differences([was], [now]), (was, now)
    for was, now in other:
        assert differences([was], [now]), (was, now)
    assert differences(["a"], ["a", "b"]) and differences(["a", "b"], ["a"])
    readme = f"x\n{TITLE}\n\ntext\n\n    $ one \\\n        --flag\n    out\n\n    more\n    $ two\n\n## End\n    $ three\n"
    assert [step[2:] for step in tour_of(readme)] == [
        ("one --flag", ["out", "", "more"]), ("two", [])]


def run(root, programs, address, command, work):
    """What the command prints, as the README's reader sees it. `headwise` talks to our server."""
    shell = f'headwise() {{ "{programs}/headwise" --server {address} --timeout 60s "$@"; }}\n{command}'
    done = subprocess.run(["bash", "-c", shell], cwd=root, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120,
                          env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TMPDIR": work})
    return done.stdout.rstrip("\n").split("\n")


def update(path, readme, steps, printed):
    lines = readme.splitlines()
    for (first, last, _, _), output in reversed(list(zip(steps, printed))):
        lines[first:last] = [(INDENT + line).rstrip() for line in output]
    path.write_text("\n".join(lines) + "\n")


def main():
    self_test()
    root, programs = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    path = root / "README.md"
    readme = path.read_text()
    steps = tour_of(readme)
    if len(steps) < 6:
        sys.exit(f"README.md: the tour must have six steps or more; was {len(steps)}")
    with (RunningServer(programs, "--repository", "tests/data", "--demo", "--threads", "2", cwd=root) as server,
          tempfile.TemporaryDirectory() as work):
        printed = [run(root, programs, server.address, step[2], work) for step in steps]
    if "--update" in sys.argv[3:]:
        update(path, readme, steps, printed)
        return 0
    faults = 0
    for (first, _, command, pasted), output in zip(steps, printed):
        wrong = differences(pasted, output)
        faults += len(wrong)
        if wrong:
            print(f"README.md:{first}: $ {command}", *wrong, sep="\n")
    print(f"{len(steps)} commands, {faults} lines that differ"
          + (" (tests/docs/tour_test.py ROOT BIN --update pastes anew)" if faults else ""))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
