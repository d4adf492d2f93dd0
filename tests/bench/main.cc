// SPDX-License-Identifier: Apache-2.0
// headwise-bench [--quick] [--heads] [--json FILE|-] [--threads N] [--jitter SEED] [--only PREFIX]
//                [--peers PIPES]
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "core/base/cpu_budget.h"
#include "core/engine.h"
#include "core/kernel/tile_kernel.h"
#include "core/kernel/vector_ops.h"
#include "tests/bench/bench.h"

namespace headwise::bench {
namespace {

bool Ok(const Row& row) {
  const Bound& bound = FindBound(row.name);
  const bool reached =
      bound.direction == Direction::kAtLeast ? row.value >= bound.value : row.value <= bound.value;
  return row.error.empty() && reached;
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

void PrintRows(const std::vector<Row>& rows) {
  std::printf("%-48s %8s %17s  %-9s %s\n", "row", "value", "range", "bound", "");
  for (const Row& row : rows) {
    const Bound& bound = FindBound(row.name);
    const char* sign = bound.direction == Direction::kAtLeast ? ">=" : "<=";
    std::printf("%-48s %8.3f   %6.3f - %6.3f  %s %-6.2f %-5s %s%s%s\n", row.name.c_str(), row.value,
                row.low, row.high, sign, bound.value, Ok(row) ? "ok" : "short", bound.what,
                row.peer.empty() ? "" : ": ", row.peer.c_str());
    if (!row.error.empty()) std::printf("  WRONG NUMBER: %s\n", row.error.c_str());
  }
}

void WriteJson(const nlohmann::json& out, const std::string& path) {
  if (path.empty()) return;
  if (path == "-") {
    std::cout << out.dump(1) << "\n";
  } else {
    std::ofstream(path) << out.dump(1) << "\n";
  }
}

nlohmann::json ToJson(const std::vector<Row>& rows) {
  nlohmann::json out = nlohmann::json::array();
  for (const Row& row : rows) {
    out.push_back({{"name", row.name},
                   {"value", row.value},
                   {"unit", row.unit},
                   {"bound", FindBound(row.name).value},
                   {"ok", Ok(row)},
                   {"low", row.low},
                   {"high", row.high},
                   {"error", row.error}});
  }
  return out;
}

int Usage(const std::string& what) {
  std::fprintf(stderr,
               "headwise-bench: %s\n"
               "usage: headwise-bench [--quick] [--heads] [--json FILE|-] [--threads N]\n"
               "                      [--jitter SEED] [--only PREFIX] [--peers PIPES]\n",
               what.c_str());
  return 2;
}

int HeadsMain(const Settings& settings, const std::string& json) {
  const nlohmann::json rows = HeadsTable(settings);
  WriteJson(rows, json);
  for (const nlohmann::json& row : rows) {
    if (!row["error"].get<std::string>().empty()) return 1;
  }
  return 0;
}

int Main(int argc, char** argv) {
  Settings settings;
  std::optional<int64_t> threads;
  std::string json, peers;
  bool heads = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool has_value = i + 1 < argc;
    if (flag == "--quick") {
      settings.quick = true;
    } else if (flag == "--heads") {
      heads = true;
    } else if (flag == "--json" && has_value) {
      json = argv[++i];
    } else if (flag == "--threads" && has_value &&
               absl::SimpleAtoi(argv[i + 1], &threads.emplace())) {
      ++i;
    } else if (flag == "--peers" && has_value) {
      peers = argv[++i];
    } else if (flag == "--only" && has_value) {
      settings.only = argv[++i];
    } else if (flag == "--jitter" && has_value && absl::SimpleAtoi(argv[i + 1], &settings.jitter)) {
      ++i;
    } else {
      return Usage("unknown or incomplete: " + flag);
    }
  }
#ifndef NDEBUG
  std::fprintf(stderr,
               "headwise-bench: a debug build times nothing worth knowing; use --preset release\n");
  return 1;
#endif
  auto budget = ChooseCpuBudget(SystemCpuBudgetInputs(threads));
  if (!budget.ok()) return Usage(std::string(budget.status().message()));
  settings.threads = static_cast<int>(budget->threads);
  Peaks peak_rates(settings.threads);
  std::printf(
      "cpu %s\noneDNN %s on %s, vectors %s, kernel %s, threads %d (%s)\npeak %.0f GFLOP/s f32%s\n",
      CpuName().c_str(), OneDnnVersion().c_str(), IsaName().c_str(), VectorTargetName(),
      KernelPathName(BestKernelPath()), settings.threads, budget->source.c_str(),
      peak_rates.f32.Measure() * 1e-9, settings.jitter == 0 ? "" : ", jittered");
  std::fflush(stdout);
  if (heads) return HeadsMain(settings, json);
  std::vector<Row> rows;
  CoreRows(settings, &peak_rates, &rows);
  ProjectionRows(settings, &rows);
  LayerRows(settings, &peak_rates, &rows);
  BatchRows(settings, &rows);
  ServiceRows(settings, &rows);
  if (!peers.empty()) PeerRows(settings, peers, &rows);
  PrintRows(rows);
  WriteJson(ToJson(rows), json);
  for (const Row& row : rows) {
    if (!row.error.empty()) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace headwise::bench

int main(int argc, char** argv) { return headwise::bench::Main(argc, argv); }
