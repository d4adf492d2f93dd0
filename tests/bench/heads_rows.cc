// SPDX-License-Identifier: Apache-2.0
// The same width cut into 1 to 32 heads: what more heads cost here, and what they do to attention.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/log/check.h"
#include "core/base/worker_pool.h"
#include "core/kernel/project.h"
#include "core/layer/attention_layer.h"
#include "tests/bench/bench.h"
#include "tests/bench/layer_case.h"

namespace headwise::bench {
namespace {

constexpr int64_t kWidth = 768, kBatch = 4, kLength = 256;
constexpr int64_t kHeadCounts[] = {1, 2, 4, 8, 16, 32};

// A row of the table.
struct HeadsRow {
  int64_t heads = 0, dk = 0;
  Spread milliseconds;   // of a forward
  Spread layout_share;   // packing, and storing q, k and v as attention reads them
  double entropy = 0.0;  // mean over heads, as a share of ln T
  double entropy_low = 0.0, entropy_high = 0.0;  // of the heads
  double entropy_deviation = 0.0;
  std::string error;
};

// q, k and v of all heads from a tile of results to where attention reads them, as the projection
// does it right after each product: the same calls on the same rows, without the products.
class Layout {
 public:
  Layout(const LayerCase& c, int threads) : pool_(threads), layer_(MakeLayer(c)) {
    const int64_t width = c.spec.d_model;
    int64_t slot = 0;
    for (const int64_t length : c.lengths) {
      SequencePlan s;
      s.queries = s.keys = length;
      s.q_row = s.kv_row = pass_.query_rows;
      s.key_slot = slot;
      slot += s.padded_keys();
      pass_.query_rows += length;
      pass_.sequences.push_back(s);
    }
    pass_.key_rows = pass_.query_rows;
    pass_.padded_key_rows = slot;
    for (std::vector<float>* buffer : {&q_, &kt_}) {
      buffer->resize(static_cast<size_t>((slot + kQueryTile) * width));
    }
    v_.resize(static_cast<size_t>(slot * layer_->value_width()));
    flags_.resize(static_cast<size_t>(slot * c.spec.kv_heads));
    pass_.q = q_.data();
    pass_.kt = kt_.data();
    pass_.v = v_.data();
    pass_.v_not_finite = flags_.data();
    tiles_.resize(static_cast<size_t>(threads));
    scratch_.resize(static_cast<size_t>(threads));
    for (std::vector<float>& tile : tiles_) tile = RandomFloats(kTileRows * width, 3);
  }

  void Run() {
    const int64_t heads = layer_->spec().heads;
    const int64_t a_sequence = (pass_.sequences[0].queries + kTileRows - 1) / kTileRows;
    const int64_t tasks = static_cast<int64_t>(pass_.sequences.size()) * a_sequence;
    pool_.Run(tasks, [&](int64_t i, int worker) {
      const SequencePlan& s = pass_.sequences[static_cast<size_t>(i / a_sequence)];
      const int64_t first = i % a_sequence * kTileRows;
      const int64_t rows = std::min(kTileRows, s.queries - first);
      const size_t w = static_cast<size_t>(worker);
      const int64_t width = layer_->spec().d_model, dk = width / heads;
      for (int64_t head = 0; head < heads; ++head) {
        const HeadRows block{&s, first, {tiles_[w].data() + head * dk, rows, dk, width}};
        StoreQueries(*layer_, head, block, &pass_);
        StoreKeys(*layer_, head, block, &pass_, &scratch_[w]);
        StoreValues(*layer_, head, block, &pass_);
      }
    });
  }

 private:
  static std::shared_ptr<const AttentionLayer> MakeLayer(const LayerCase& c) {
    LayerInfo info;
    info.spec = c.spec;
    auto layer = AttentionLayer::Create(std::move(info), c.layer.matrices, BestKernelPath());
    CHECK(layer.ok()) << layer.status();
    return *layer;
  }

  WorkerPool pool_;
  const std::shared_ptr<const AttentionLayer> layer_;
  PassData pass_;
  std::vector<float> q_, kt_, v_;
  std::vector<uint8_t> flags_;
  std::vector<std::vector<float>> tiles_;
  std::vector<WorkerScratch> scratch_;
};

// Mean entropy of each head's rows as a share of ln T.
std::vector<double> Entropies(LayerCase* c) {
  const ForwardResult result = Forward(c, kOutputP);
  std::vector<double> sums(static_cast<size_t>(c->spec.heads), 0.0);
  double rows = 0.0;
  for (size_t b = 0; b < c->lengths.size(); ++b) {
    const int64_t length = c->lengths[b];
    const float* p = result.outputs[b].floats();
    for (double& sum : sums) {
      for (int64_t i = 0; i < length * length; ++i, ++p) {
        const double weight = static_cast<double>(*p);
        if (weight > 0.0) sum -= weight * std::log(weight) / std::log(static_cast<double>(length));
      }
    }
    rows += static_cast<double>(length);
  }
  for (double& sum : sums) sum /= rows;
  return sums;
}

HeadsRow Measure(const Settings& settings, int64_t heads) {
  auto c = MakeCase(settings, DType::kF32, AttentionShape{kBatch, kLength, kWidth, heads});
  Layout layout(*c, settings.threads);
  HeadsRow row{.heads = heads,
               .dk = c->spec.dk[0],
               .milliseconds = {},
               .layout_share = {},
               .error = CheckLayer(c.get())};
  std::vector<double> times, shares;
  layout.Run();
  for (int i = 0; i < settings.repetitions(); ++i) {
    const double forward = BestSeconds(settings.seconds(), [&] { Forward(c.get()); });
    const double store = BestSeconds(settings.seconds() / 4, [&] { layout.Run(); });
    const double pack = 1e-6 * static_cast<double>(Forward(c.get()).pass.pack_us);
    times.push_back(1e3 * forward);
    shares.push_back((store + pack) / forward);
  }
  row.milliseconds = SpreadOf(std::move(times));
  row.layout_share = SpreadOf(std::move(shares));
  const std::vector<double> entropies = Entropies(c.get());
  const auto [low, high] = std::minmax_element(entropies.begin(), entropies.end());
  row.entropy_low = *low, row.entropy_high = *high;
  for (const double entropy : entropies) row.entropy += entropy / static_cast<double>(heads);
  for (const double entropy : entropies) {
    row.entropy_deviation += (entropy - row.entropy) * (entropy - row.entropy);
  }
  row.entropy_deviation = std::sqrt(row.entropy_deviation / static_cast<double>(heads));
  return row;
}

nlohmann::json ToJson(const HeadsRow& row) {
  return {{"heads", row.heads},
          {"dk", row.dk},
          {"milliseconds", row.milliseconds.median},
          {"milliseconds_low", row.milliseconds.low},
          {"milliseconds_high", row.milliseconds.high},
          {"layout_share", row.layout_share.median},
          {"entropy_share", row.entropy},
          {"entropy_low", row.entropy_low},
          {"entropy_high", row.entropy_high},
          {"entropy_deviation", row.entropy_deviation},
          {"error", row.error}};
}

}  // namespace

nlohmann::json HeadsTable(const Settings& settings) {
  std::printf(
      "B %lld, T %lld, D %lld, f32, random weights and x; median and range of %d repetitions\n"
      "layout: packing the batch, and storing q, k (transposed) and v a head at a time\n"
      "entropy: of a row of attention weights as a share of ln T, mean over rows; over heads\n\n"
      "%5s %5s %9s %19s %8s %8s %15s %17s %10s\n",
      static_cast<long long>(kBatch), static_cast<long long>(kLength),
      static_cast<long long>(kWidth), settings.repetitions(), "heads", "dk", "ms", "range", "/ one",
      "layout", "entropy, mean", "lowest - highest", "deviation");
  nlohmann::json out = nlohmann::json::array();
  double one = 0.0;
  for (const int64_t heads : kHeadCounts) {
    const HeadsRow row = Measure(settings, heads);
    if (heads == 1) one = row.milliseconds.median;
    std::printf("%5lld %5lld %9.3f   %7.3f - %6.3f %8.2f %7.1f%% %15.4f %8.4f - %6.4f %10.4f\n",
                static_cast<long long>(heads), static_cast<long long>(row.dk),
                row.milliseconds.median, row.milliseconds.low, row.milliseconds.high,
                row.milliseconds.median / one, 100.0 * row.layout_share.median, row.entropy,
                row.entropy_low, row.entropy_high, row.entropy_deviation);
    if (!row.error.empty()) std::printf("  WRONG NUMBER: %s\n", row.error.c_str());
    std::fflush(stdout);
    out.push_back(ToJson(row));
  }
  return out;
}

}  // namespace headwise::bench
