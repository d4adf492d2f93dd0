# SPDX-License-Identifier: Apache-2.0
"""Measures the service with headwise-load and writes docs/performance.md. Nothing else should run meanwhile.

  ./dev service [--triton] [--seconds 10] [--output docs/performance.md]

--triton PIPES: triton_rate.py answers there and is measured at the same shapes, in turns with ours.
"""
import argparse
import contextlib
import heapq
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import rival_pipe
from service_shapes import SHAPES

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from running_server import RunningServer  # noqa: E402  pylint: disable=wrong-import-position

BIN = ROOT / "build/release/bin"
PACKED_RATE = ROOT / "build/release/tests/bin/headwise-packed-rate"
LENGTHS = "uniform:16-512"
CORES = os.cpu_count()
RUNS = 5  # of what is measured in turns


def write_layer(folder, width, heads):
    """A spec and random weights of a layer; the two files' names."""
    spec = {"d_model": width, "heads": heads, "orientation": "OUT_IN", "fused_layout": "SEPARATE",
            "tensors": {"q": "q", "k": "k", "v": "v", "o": "o", "q_bias": "qb", "k_bias": "kb", "v_bias": "vb", "o_bias": "ob"}}
    generator = np.random.default_rng(7)
    tensors = {name: generator.standard_normal((width, width)).astype(np.float32) / width**0.5 for name in "qkvo"}
    tensors |= {name + "b": generator.standard_normal(width).astype(np.float32) for name in "qkvo"}
    header, data = {}, b""
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "weights.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder / "spec.json", folder / "weights.safetensors"


@contextlib.contextmanager
def serving(width, heads, *flags, core=None):
    """A RunningServer with one layer, "m"."""
    with RunningServer(BIN, *flags, core=core) as server, tempfile.TemporaryDirectory() as folder:
        spec, weights = write_layer(pathlib.Path(folder), width, heads)
        subprocess.run([BIN / "headwise", "--server", server.address, "load", "m", "--spec", spec, "--weights", weights],
                       check=True, stdout=subprocess.DEVNULL)
        yield server


def load(servers, *flags, core=None):
    """A run of headwise-load; its report."""
    pin = ["taskset", "-c", str(core)] if core is not None else []
    command = [*pin, BIN / "headwise-load", "m", "--server", ",".join(server.address for server in servers), "--warmup", "20",
               "--json", "-", *map(str, flags)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    if "p99" not in report["latency_us"]:
        sys.exit(f"service_report: --seconds: must be long enough for a p99; was {report['requests']['ok']} answers in a run")
    return report


def packed_rate(width, heads, lengths, concurrency, seconds, threads):
    done = subprocess.run([PACKED_RATE, *map(str, (width, heads, lengths, concurrency, seconds, threads))], check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout)


def windows_of(reports):
    """The windows of runs that hold answers, in the order in which they were measured."""
    return [window for report in reports for window in report["windows"] if window["latency_us"]]


def queue_p99(windows, rate, seconds=400.0, seed=1):
    """p99 in us of a queue with one server and Poisson arrivals, fed with measured service times.

    Each is drawn from the window that was measured at that time, so that a machine's slow moments last as long as they did.
    """
    generator = random.Random(seed)
    length_us = windows[0]["seconds"] * 1e6
    service = [tuple(zip(*window["latency_us"])) for window in windows]
    now, free, waits = 0.0, 0.0, []
    while now < seconds * 1e6:
        now += generator.expovariate(rate) * 1e6
        begin = max(free, now)
        free = begin + generator.choices(*service[int(begin / length_us) % len(service)])[0]
        waits.append(free - now)
    return heapq.nlargest(max(1, len(waits) // 100), waits)[-1]


def row(name, value, bound, ok):
    kept = {True: "yes", False: "no", None: ""}[ok]
    return shown(f"| {name} | {value} | {bound} | {kept} |")


def shown(line):
    """A row of a table, told at once: the whole report takes minutes."""
    print(line, file=sys.stderr, flush=True)
    return line


def p99_row(arrivals, reports, base, base_us, most):
    """p99 of several runs over `base_us`: a neighbour's burst spoils some of the runs, not the median."""
    p99s = sorted(report["latency_us"]["p99"] for report in reports)
    p99 = statistics.median(p99s)
    each = ", ".join(f"{value / 1e3:.1f}" for value in p99s)
    return row(f"{arrivals}, median of {len(reports)} runs: p99 over {base}",
               f"{each} ms; {p99 / 1e3:.1f} over {base_us / 1e3:.1f} ms = {p99 / base_us:.2f}", f"≤ {most:g}",
               p99 <= most * base_us)


def mixed_lengths(seconds):
    """The rows for B 1, lengths 16 to 512, D 768, H 12."""
    inside = packed_rate(768, 12, LENGTHS, 32, seconds, CORES)["requests_per_s"]
    rows = []
    with serving(768, 12) as server:
        peak = load([server], "--lengths", LENGTHS, "--concurrency", 32, "--duration", f"{seconds}s")
        rate, cores = peak["requests_per_s"], peak["generator"]["cores"]
        left = inside * (CORES - cores) / CORES
        rows.append(row("closed loop of 32, requests/s over the in-process packed rate on the cores that the generator leaves",
                        f"{rate:.1f} of {left:.1f} = {rate / left:.2f} (in process {inside:.1f} on {CORES} cores; generator "
                        f"{cores:.2f} cores)", "≥ 0.85", rate >= 0.85 * left))

        def run(*flags):
            return load([server], "--lengths", LENGTHS, "--duration", f"{seconds}s", *flags)

        # In turns, so that all see the machine in the same moods.
        idle, constant, poisson = [], [], []
        for _ in range(RUNS):
            idle.append(run("--concurrency", 1))
            constant.append(run("--rate", 0.7 * rate))
            poisson.append(run("--rate", 0.7 * rate, "--arrivals", "poisson"))
        idle_p50 = statistics.median(report["latency_us"]["p50"] for report in idle)
        rows.append(p99_row("70 % of that rate, constant arrivals", constant, "idle p50", idle_p50, 5))
        rows.append(p99_row("70 %, Poisson arrivals", poisson,
                            "that of a simulated queue with the service times measured idle between them",
                            queue_p99(windows_of(idle), 0.7 * rate), 1.25))
        for timeout, wanted in (("30s", 0.9), ("2s", None)):
            over = load([server], "--lengths", LENGTHS, "--rate", 2 * rate, "--duration", f"{seconds}s", "--timeout", timeout,
                        "--connections", 4)
            share = over["requests_per_s"] / rate
            rows.append(row(f"twice that rate, answers within {timeout}: goodput over peak",
                            f"{over['requests_per_s']:.1f} of {rate:.1f} = {share:.2f} ({over['requests']['failed']} of "
                            f"{over['requests']['sent']} calls refused or late)", f"≥ {wanted}" if wanted else "",
                            share >= wanted if wanted else None))
    return rows


def median_of(runs, *path):
    """The median over `runs` of what each holds at `path`."""
    values = []
    for run in runs:
        for key in path:
            run = run[key]
        values.append(run)
    return statistics.median(values)


def fixed_shapes(seconds, triton):
    """The rows of 4 clients at two shapes; with a RivalPipe to Triton, in turns with it."""
    rows = []
    for tokens, width, heads, wanted in SHAPES:
        ours, theirs = [], []
        with serving(width, heads) as server:
            for _ in range(RUNS):
                ours.append(load([server], "--lengths", f"fixed:{tokens}", "--concurrency", 4, "--duration", f"{seconds / 2}s"))
                if triton:
                    theirs.append(triton.ask(shape=[1, tokens, width], seconds=seconds / 2))
        beside = "| not measured | |"
        if theirs:
            ratios = sorted(our["requests_per_s"] / their["requests_per_s"] for our, their in zip(ours, theirs))
            times = statistics.median(ratios)
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            beside = (f"| {median_of(theirs, 'requests_per_s'):.0f} (p50 {median_of(theirs, 'p50_ms'):.2f}, p99 "
                      f"{median_of(theirs, 'p99_ms'):.2f} ms): ours is {each} × that, median {times:.2f}, wanted ≥ {wanted:g} "
                      f"| {'yes' if times >= wanted else 'no'} |")
        p50, p99 = (median_of(ours, "latency_us", name) / 1e3 for name in ("p50", "p99"))
        rows.append(shown(f"| B 1, T {tokens}, D {width}, H {heads} | {median_of(ours, 'requests_per_s'):.0f} | {p50:.2f} ms | "
                          f"{p99:.2f} ms | {median_of(ours, 'tokens_per_s'):.0f} {beside}"))
    return rows


def replicas(seconds):
    """One replica on a core, then two on two, the generator beside them."""
    flags = ("--lengths", "fixed:128", "--duration", f"{seconds}s")
    with serving(768, 12, "--threads", "1", core=0) as first, serving(768, 12, "--threads", "1", core=1) as second:
        one = load([first], *flags, "--concurrency", 4, core=1)
        two = load([first, second], *flags, "--concurrency", 8)
    generator = two["generator"]["cores"]
    expected = (2 - generator) * one["requests_per_s"]
    share = two["requests_per_s"] / expected
    parts = ", ".join(f"{part['ok']} from the {name}" for part, name in zip(two["servers"], ("first", "second")))
    return [row("2 replicas of one core each over (2 − g) × one replica with the other core to the generator",
                f"{two['requests_per_s']:.1f} over {expected:.1f} = {share:.2f} (one: {one['requests_per_s']:.1f}; g = "
                f"{generator:.2f} cores; {parts})", "≥ 0.95", share >= 0.95)]


def ceiling():
    """How fast headwise-load itself can go: a layer of next to no work."""
    with serving(8, 2) as server:
        done = subprocess.run([BIN / "headwise-load", "m", "--server", server.address, "--lengths", "fixed:1", "--find-rate",
                               "p99<20ms", "--rate", "4000", "--duration", "2s", "--connections", "4", "--json", "-"],
                              capture_output=True, text=True)
        report = json.loads(done.stdout)
        kept = [trial["rate"] for trial in report["find_rate"]["trials"] if trial["met"] and not trial["generator_limited"]]
        closed = load([server], "--lengths", "fixed:1", "--concurrency", 16, "--duration", "3s", "--connections", 4)
    return max(kept, default=0), report["find_rate"]["generator_limited"], closed


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=10)
    arguments.add_argument("--triton", metavar="PIPES")
    arguments.add_argument("--output", default=str(ROOT / "docs/performance.md"))
    options = arguments.parse_args()
    seconds = int(options.seconds) if options.seconds.is_integer() else options.seconds
    # Triton first: it ends with its pipe.
    with rival_pipe.RivalPipe(options.triton) if options.triton else contextlib.nullcontext() as triton:
        shapes = fixed_shapes(seconds, triton)
    mixed, two = mixed_lengths(seconds), replicas(seconds)
    rate, limited, closed = ceiling()
    head = ["| what | measured | wanted | kept |", "|---|---|---|---|"]
    text = "\n".join([
        "# Performance of the service", "",
        "Written by `./dev service --triton`: server, load tester and, where named, the engine in "
        f"process, on one machine over loopback. {cpu_name()}, {CORES} cores, {time.strftime('%Y-%m-%d')}. The kernels' own "
        "figures are in [ARCHITECTURE.md](../ARCHITECTURE.md#where-the-time-goes).", "",
        f"## B 1, lengths {LENGTHS}, D 768, H 12, f32", "", *head, *mixed, "",
        "Latency counts from the planned send. The generator runs on the same cores: what it uses is no server's to give.", "",
        "## Four clients, fixed shapes, f32", "",
        f"Triton serves the same layer from OpenVINO (PyTriton) to four tritonclients; x and y are raw f32 in both. Medians of "
        f"{RUNS} runs of each, in turns.", "",
        "| shape | requests/s | p50 | p99 | tokens/s | Triton's requests/s | kept |", "|---|---|---|---|---|---|---|", *shapes, "",
        "## Two replicas, B 1, T 128, D 768, H 12, f32", "", *head, *two, "",
        "## The load tester's own ceiling", "",
        f"A layer of next to no work (D 8, one token), open loop: {rate:.0f} calls/s with p99 below 20 ms"
        + (", where the generator itself was the limit" if limited else ", where the server was the limit")
        + f". Closed loop of 16: {closed['requests_per_s']:.0f} calls/s, busiest thread of the generator at "
        f"{100 * closed['generator']['cpu_share']:.0f} % of a core, {closed['generator']['cores']:.2f} cores in all.", ""])
    pathlib.Path(options.output).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
