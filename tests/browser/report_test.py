#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reports of the built programs in a real browser: report_test.py TREE BIN.

Every page is opened on a phone's and a desktop's screen, light and dark: no script error, every figure drawn, no text
clipped, overlapping or too small, nothing fetched, and the two colour schemes differ and can be read.
"""

import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from running_server import RunningServer  # noqa: E402  pylint: disable=wrong-import-position

TREE, BIN = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
SCREENS = {"phone": (375, 800), "desktop": (1280, 900)}
SCHEMES = {"light": 1, "dark": 0}  # blink's preferred colour scheme
MEASURE = (pathlib.Path(__file__).parent / "measure.js").read_text(encoding="utf-8")
MINILM = TREE / "tests/data/minilm/inputs.safetensors"
SMOLLM2 = TREE / "tests/data/smollm2/inputs.safetensors"


def browser():
    for name in ("chromium-headless-shell", "chromium"):
        if path := shutil.which(name):
            return path
    raise SystemExit("no Chromium here: run ./dev test --label browser")


class Reports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.browser = browser()
        cls.address = cls.enterClassContext(RunningServer(BIN, "--repository", TREE / "tests/data")).address
        cls.headwise("load", "m", "--checkpoint", "minilm", "--layer", "0")
        cls.headwise("load", "s", "--checkpoint", "smollm2", "--layer", "12")

    @classmethod
    def headwise(cls, *words):
        done = subprocess.run([BIN / "headwise", "--server", cls.address, *words], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stdout

    def report(self, *verb):
        page = self.folder / "report.html"
        file, tensor = (MINILM, "layer0.x") if verb[1] == "m" else (SMOLLM2, "layer12.x")
        self.headwise(*verb, "--input", f"{file}:{tensor}", "--lengths-from", f"{file}:lengths", "--report", page)
        return page.read_text(encoding="utf-8")

    def measure(self, page, screen, scheme):
        copy = self.folder / "measured.html"
        copy.write_text(page.replace("</body>", f"<script>{MEASURE}</script></body>"), encoding="utf-8")
        width, height = SCREENS[screen]
        command = [self.browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   f"--user-data-dir={self.folder / 'profile'}", f"--window-size={width},{height}",
                   f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
                   "--enable-logging=stderr", "--log-level=0", "--host-resolver-rules=MAP * ~NOTFOUND",
                   "--virtual-time-budget=3000", "--dump-dom", copy.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        self.assertNotIn(":CONSOLE", done.stderr, "the page logs something")
        found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.S)
        self.assertIsNotNone(found, "the page was not measured")
        return json.loads(html.unescape(found.group(1)))

    def check(self, page, figures):
        for screen, (width, _) in SCREENS.items():
            backgrounds = set()
            for scheme in SCHEMES:
                with self.subTest(screen=screen, scheme=scheme):
                    measured = self.measure(page, screen, scheme)
                    self.assertEqual(measured["errors"], [])
                    self.assertEqual(measured["width"], width)
                    self.assertLessEqual(measured["pageWidth"], width, "the page is wider than the screen")
                    self.assertEqual(measured["clipped"], [])
                    self.assertEqual(measured["overlapping"], [])
                    self.assertEqual(measured["tiny"], [])
                    self.assertEqual(measured["fetched"], [])
                    self.assertIn("tokens", measured["scope"])
                    self.assertGreaterEqual(measured["contrast"], 7)
                    self.assertGreaterEqual(measured["captionContrast"], 4.5)
                    self.assertEqual(set(measured["figures"]), set(figures))
                    for name, least in figures.items():
                        figure = measured["figures"][name]
                        self.assertGreaterEqual(figure["drawn"], least, name)
                        self.assertGreater(figure["width"], 300, name)
                        self.assertGreater(figure["height"], 80, name)
                    backgrounds.add(measured["background"])
            self.assertEqual(len(backgrounds), 2, "light and dark look alike")

    def test_forward(self):
        self.check(self.report("forward", "m"), {"weights": 24, "tensors": 4})

    def test_analyze(self):
        self.check(self.report("analyze", "m", "--permutations", "99"),
                   {"heads": 96, "similarity": 132, "weights": 24})

    def test_analyze_grouped(self):
        self.check(self.report("analyze", "s", "--permutations", "99"),
                   {"heads": 72, "similarity": 72, "weights": 18})

    def test_leave_one_out(self):
        self.check(self.report("ablate", "m", "--sweep", "leave-one-out"), {"effects": 12})

    def test_keep_one(self):
        self.check(self.report("ablate", "m", "--sweep", "keep-one"), {"effects": 12})

    def test_pairs(self):
        self.check(self.report("ablate", "m", "--sweep", "pairs"), {"effects": 64, "interactions": 132})

    def test_pairs_of_groups(self):
        self.check(self.report("ablate", "s", "--sweep", "pairs", "--target", "groups"),
                   {"effects": 3, "interactions": 6})

    def test_prune_plan(self):
        self.check(self.report("ablate", "m", "--sweep", "prune-plan"), {"effects": 12, "prune": 4})

    def test_cumulative(self):
        self.check(self.report("ablate", "s", "--sweep", "cumulative"), {"effects": 9})

    def test_load(self):
        page = self.folder / "load.html"
        subprocess.run([BIN / "headwise-load", "m", "--server", self.address, "--rate", "200", "--duration", "3s",
                        "--lengths", "uniform:16-64", "--html", page], capture_output=True, check=True)
        self.check(page.read_text(encoding="utf-8"),
                   {"spectrum": 2, "throughput": 2, "latency": 2, "split": 4, "percentiles": 35})

    def test_a_broken_page_is_noticed(self):
        """The measurements see what they are there for."""
        page = self.report("ablate", "m", "--sweep", "leave-one-out")
        broken = page.replace("</body>", '<svg width="40" height="10"><text x="30" y="9">clipped</text>'
                              '<text x="31" y="9">over</text></svg><div style="width:2000px">wide</div>'
                              "<script>setTimeout(() => { throw new Error('late') }); console.log('x')</script></body>")
        with self.assertRaises(AssertionError):
            self.measure(broken, "phone", "light")
        quiet = broken.split("<script>", maxsplit=1)[0] + "</body></html>"
        measured = self.measure(quiet, "phone", "light")
        self.assertIn("clipped", measured["clipped"])
        self.assertEqual(measured["overlapping"], ["clipped / over"])
        self.assertGreater(measured["pageWidth"], 375)


if __name__ == "__main__":
    os.environ["LC_ALL"] = "C.UTF-8"
    unittest.main(argv=[sys.argv[0], "-v"])
