// SPDX-License-Identifier: Apache-2.0
// Against what a user would pick instead: peers.py answers from another process, which runs where
// its packages are, and both sides are measured in turn.
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tests/bench/bench.h"

namespace headwise::bench {
namespace {

constexpr std::array<AttentionShape, 5> kShapes = {{{1, 10, 512, 8},
                                                    {1, 128, 384, 12},
                                                    {8, 128, 768, 12},
                                                    {8, 512, 768, 12},
                                                    {1, 2048, 1024, 16}}};

// The peers' side: two pipes with names.
class Peers {
 public:
  // `path`.in and `path`.out: opened in that order, as the other side does.
  explicit Peers(const std::string& path) : ask_(path + ".in"), answers_(path + ".out") {
    CHECK(ask_ && answers_) << path << ": no peers answer there";
  }

  // The fastest peer and its seconds.
  std::pair<std::string, double> Measure(bool core, DType dtype, const AttentionShape& shape,
                                         double seconds) {
    ask_ << nlohmann::json{{"core", core},
                           {"dtype", absl::AsciiStrToLower(DTypeName(dtype))},
                           {"shape", {shape.batch, shape.length, shape.d_model, shape.heads}},
                           {"seconds", seconds}}
         << std::endl;
    std::string line;
    CHECK(std::getline(answers_, line)) << "peers: must answer; was the end";
    std::pair<std::string, double> best;
    const nlohmann::json times = nlohmann::json::parse(line);
    for (const auto& [name, ms] : times.items()) {
      const double took = ms.get<double>() * 1e-3;
      if (best.first.empty() || took < best.second) best = {name, took};
    }
    CHECK(!best.first.empty()) << "peers: at least one must be installed";
    return best;
  }

 private:
  std::ofstream ask_;
  std::ifstream answers_;
};

}  // namespace

void PeerRows(const Settings& settings, const std::string& path, std::vector<Row>* rows) {
  Peers peers(path);
  WorkerPool pool(settings.threads);
  std::vector<double> medians;
  for (const bool core : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const AttentionShape& shape : kShapes) {
        const std::string name =
            absl::StrCat("faster_than_peers_", core ? "core_" : "layer_",
                         absl::AsciiStrToLower(DTypeName(dtype)), "_b", shape.batch, "_t",
                         shape.length, "_d", shape.d_model, "_h", shape.heads);
        if (!settings.Wants(name)) continue;
        const Work work = core ? CoreWork(dtype, shape, &pool) : LayerWork(settings, dtype, shape);
        work.run();
        std::vector<double> ratios;
        std::string rival;
        for (int i = 0; i < settings.repetitions(); ++i) {
          const auto [peer, seconds] = peers.Measure(core, dtype, shape, settings.seconds());
          rival = peer;
          ratios.push_back(BestSeconds(settings.seconds(), work.run) / work.count / seconds);
        }
        rows->push_back(MakeRow(name, SpreadOf(std::move(ratios)), "ratio"));
        rows->back().peer = rival;
        rows->back().error = work.check();
        medians.push_back(rows->back().value);
      }
    }
  }
  // The median of all rows: of some it would say nothing.
  if (!settings.Wants("faster_than_peers")) return;
  rows->push_back(MakeRow("faster_than_peers", SpreadOf(std::move(medians)), "ratio"));
}

}  // namespace headwise::bench
