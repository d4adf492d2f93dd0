# SPDX-License-Identifier: Apache-2.0
"""A rival answers line by line and ends with its benchmark, however that ends. Usage: rival_pipe_test.py"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import rival_pipe

DEADLINE_S = 60
FOLDER = pathlib.Path(__file__).resolve().parent
RIVAL = """
import sys
sys.path.insert(0, sys.argv[1])
import rival_pipe
rival_pipe.answer_all(sys.argv[2], int(sys.argv[3]), lambda asked: {"twice": 2 * asked["number"]})
print("ended")
"""


class RivalPipe(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.pipes = os.path.join(self._folder.name, "rival")
        for end in (".in", ".out"):
            os.mkfifo(self.pipes + end)

    def test_questions_are_answered_until_the_pipe_is_closed(self):
        command = [sys.executable, "-c", RIVAL, FOLDER, self.pipes, str(os.getpid())]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as rival:
            with rival_pipe.RivalPipe(self.pipes) as asking:
                self.assertEqual([asking.ask(number=number) for number in (1, 2, 3)], [{"twice": 2}, {"twice": 4}, {"twice": 6}])
            self.assertEqual(rival.communicate(timeout=DEADLINE_S)[0], "ended\n")

    def test_a_benchmark_that_never_asks_leaves_no_rival_behind(self):
        # The shell is the benchmark: it ends without having opened the pipes. The rival holds its output.
        script = f'"$0" -c "$1" {FOLDER} {self.pipes} $$ & echo started'
        with subprocess.Popen(["sh", "-c", script, sys.executable, RIVAL], stdout=subprocess.PIPE, text=True) as benchmark:
            self.assertEqual(benchmark.wait(timeout=DEADLINE_S), 0)
            self.assertEqual(benchmark.stdout.read(), "started\nended\n")


if __name__ == "__main__":
    unittest.main()
