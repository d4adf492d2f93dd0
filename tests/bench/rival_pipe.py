# SPDX-License-Identifier: Apache-2.0
"""Lines of JSON through two named pipes, PATH.in and PATH.out, between a benchmark and a rival that needs another Python.

Both sides open PATH.in first. A rival is started by `./dev`, whose process becomes the benchmark's.
"""
import json
import os
import threading
import time


def answer_all(path, benchmark, answer):
    """The rival's side: `answer(asked)` for each line, until the benchmark, a process id, closes the pipe or has ended."""
    threading.Thread(target=_end_with, args=(benchmark, path), daemon=True).start()
    with open(path + ".in", encoding="utf-8") as asked, open(path + ".out", "w", encoding="utf-8") as answers:
        for line in asked:
            print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def _end_with(process, path):
    while os.path.exists(f"/proc/{process}"):
        time.sleep(1)
    # Whoever waits for the benchmark to open the pipes sees them opened, and the end of what it asks.
    os.open(path + ".out", os.O_RDONLY | os.O_NONBLOCK)
    os.close(os.open(path + ".in", os.O_WRONLY))


class RivalPipe:
    """The benchmark's side. A rival has let go of its pipes, and ends, once `with` is left."""

    def __init__(self, path):
        self._path = path
        self._ask = open(path + ".in", "w", encoding="utf-8")
        self._answers = open(path + ".out", encoding="utf-8")

    def ask(self, **question):
        print(json.dumps(question), file=self._ask, flush=True)
        line = self._answers.readline()
        assert line, f"{self._path}: the rival ended"
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ask.close()
        self._answers.read()
        self._answers.close()
