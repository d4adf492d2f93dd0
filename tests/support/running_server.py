# SPDX-License-Identifier: Apache-2.0
"""A server of the built programs for a test in Python.

    with RunningServer(BIN, "--demo") as server:
        ... server.address, server.metrics ...
"""
import pathlib
import subprocess
import tempfile
import time

DEADLINE_S = 60


class RunningServer:
    """`BIN/headwise-server FLAGS` on ports of its own, ready: the layers that its flags name are loaded.

    host: what it listens at. health: the words that `headwise health` needs besides the address (certificates). core: the
    only one that it may use. Ended by its id; a server that doesn't end well is an AssertionError with its log.
    """

    def __init__(self, binaries, *flags, host="127.0.0.1", health=(), cwd=None, core=None):
        self._log = tempfile.TemporaryFile("w+")
        pin = ["taskset", "-c", str(core)] if core is not None else []
        self.process = subprocess.Popen(
            [*pin, pathlib.Path(binaries) / "headwise-server", "--listen", f"{host}:0", "--metrics", "127.0.0.1:0", *flags],
            cwd=cwd, stdout=subprocess.PIPE, stderr=self._log, text=True)
        words = self.process.stdout.readline().split()
        if len(words) < 4 or words[0] != "listening":
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not start: {words}\n{self.log()}")
        self.address, self.metrics = words[1], words[3]
        try:
            self._await_ready([pathlib.Path(binaries) / "headwise", "--server", self.address, *health, "health"])
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _await_ready(self, command):
        deadline = time.monotonic() + DEADLINE_S
        while (asked := subprocess.run(command, capture_output=True, text=True, check=False)).returncode != 0:
            if time.monotonic() > deadline:
                raise AssertionError(f"the server never became ready: {asked.stderr}\n{self.log()}")
            time.sleep(0.05)

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def stop(self):
        self.process.terminate()
        code = self.process.wait(timeout=DEADLINE_S)
        self.process.stdout.close()
        assert code == 0, f"the server ended with {code}\n{self.log()}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
