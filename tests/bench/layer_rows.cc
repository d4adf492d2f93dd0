// SPDX-License-Identifier: Apache-2.0
// Whole layers, in process, through the engine's door.
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "absl/log/check.h"
#include "core/engine.h"
#include "tests/bench/bench.h"
#include "tests/bench/layer_case.h"
#include "tests/support/engine_helper.h"
#include "tests/support/test_layer.h"

namespace headwise::bench {
namespace {

// `count` forwards, each queued when the one before is answered: no client has to be woken up.
void ForwardChain(LayerCase* c, int count) {
  std::promise<void> ended;
  std::function<void()> next = [&] {
    c->engine->Forward(MakeForward("layer", *c->input),
                       [&](const absl::StatusOr<ForwardResult>& result) {
                         CHECK(result.ok()) << result.status();
                         if (--count > 0) {
                           next();
                         } else {
                           ended.set_value();
                         }
                       });
  };
  next();
  ended.get_future().wait();
}

// Forwards enough for some 20 ms, so that a client's waking up, which is no part of a layer, counts
// for nothing.
int ChainLength(const LayerCase& c) {
  return static_cast<int>(std::clamp(4e9 / c.flops(), 1.0, 50.0));
}

void LayerRow(const Settings& settings, Peak* peak, const std::string& name, DType dtype,
              const AttentionShape& shape, std::vector<Row>* rows) {
  if (!settings.Wants(name)) return;
  auto c = MakeCase(settings, dtype, shape);
  const int count = ChainLength(*c);
  rows->push_back(
      ShareOfPeak(settings, name, count * c->flops(), peak, [&] { ForwardChain(c.get(), count); }));
  rows->back().error = CheckLayer(c.get());
}

AblateResult Sweep(LayerCase* c, SweepKind sweep) {
  AblateRequest request;
  request.layer = "layer";
  request.input = c->input->get();
  request.sweep = sweep;
  auto result = AblateNow(c->engine.get(), std::move(request));
  CHECK(result.ok()) << result.status();
  return *std::move(result);
}

// Effects against y and y' themselves: the first and the last ablation, each by an output of its
// own.
std::string CheckSweep(LayerCase* c, SweepKind sweep) {
  AblateRequest request;
  request.layer = "layer";
  request.input = c->input->get();
  request.sweep = sweep;
  request.return_y = true;
  const int64_t heads = c->spec.heads;
  const int64_t last = (sweep == SweepKind::kPairs ? heads * (heads - 1) / 2 : heads) - 1;
  request.return_ablation_y = {0, last};
  auto result = AblateNow(c->engine.get(), std::move(request));
  CHECK(result.ok()) << result.status();
  std::vector<double> expected, actual;
  for (size_t i = 1; i < 3; ++i) {
    const NamedOutput& y = result->outputs[0];
    const NamedOutput& ablated = result->outputs[i];
    double delta = 0.0, norm = 0.0;
    for (size_t j = 0; j < y.data.size() / sizeof(float); ++j) {
      const double plain = static_cast<double>(y.floats()[j]);
      const double difference = plain - static_cast<double>(ablated.floats()[j]);
      delta += difference * difference;
      norm += plain * plain;
    }
    expected.push_back(std::sqrt(delta / norm));
    const size_t a = i == 1 ? 0 : static_cast<size_t>(last);
    actual.push_back(*result->ablations[a].pooled.relative_l2);
  }
  return Compare(expected, actual, Tolerance(c->dtype));
}

void SweepRow(const Settings& settings, const std::string& name, SweepKind sweep,
              const AttentionShape& shape, std::vector<Row>* rows) {
  if (!settings.Wants(name)) return;
  auto c = MakeCase(settings, DType::kF32, shape);
  rows->push_back(
      TimeRatio(settings, name, [&] { Sweep(c.get(), sweep); }, [&] { Forward(c.get()); }));
  rows->back().error = CheckSweep(c.get(), sweep);
}

// Seconds a run: not in the quick bench, and few repetitions.
void PairsRow(Settings settings, std::vector<Row>* rows) {
  if (settings.quick && settings.only.empty()) return;
  settings.quick = true;
  SweepRow(settings, "pairs_over_forward", SweepKind::kPairs, {20, 500, 4096, 64}, rows);
}

void Int8Row(const Settings& settings, std::vector<Row>* rows) {
  if (!settings.Wants("layer_int8_over_bf16")) return;
  auto int8 = MakeCase(settings, DType::kI8, AttentionShape{8, 512, 768, 12});
  auto bf16 = MakeCase(settings, DType::kBF16, AttentionShape{8, 512, 768, 12});
  rows->push_back(TimeRatio(
      settings, "layer_int8_over_bf16", [&] { Forward(int8.get()); },
      [&] { Forward(bf16.get()); }));
  rows->back().error = CheckLayer(int8.get());
}

// What a setting costs: the layer with it over the layer without.
void SettingRow(const Settings& settings, const std::string& name,
                const std::function<void(LayerSpec*)>& set, std::vector<Row>* rows) {
  if (!settings.Wants(name)) return;
  auto plain = MakeCase(settings, DType::kF32, AttentionShape{8, 512, 768, 12});
  LayerSpec spec = BasicSpec(plain->spec.d_model, 12);
  set(&spec);
  auto with = MakeCase(settings, DType::kF32, spec, plain->lengths);
  rows->push_back(
      TimeRatio(settings, name, [&] { Forward(with.get()); }, [&] { Forward(plain.get()); }));
  rows->back().error = CheckLayer(with.get());
}

void WeightsRow(const Settings& settings, std::vector<Row>* rows) {
  if (!settings.Wants("weights_over_plain")) return;
  auto c = MakeCase(settings, DType::kF32, AttentionShape{8, 512, 768, 12});
  rows->push_back(TimeRatio(
      settings, "weights_over_plain", [&] { Forward(c.get(), kOutputY | kOutputP); },
      [&] { Forward(c.get()); }));
  rows->back().error = CheckLayer(c.get());
}

// Lengths 16, 32, … 512 against sequences of one length with as many tokens and as much score work:
// sum of squares over sum of lengths.
void RaggedRow(const Settings& settings, std::vector<Row>* rows) {
  if (!settings.Wants("ragged_over_equal")) return;
  std::vector<int64_t> ragged, equal;
  int64_t tokens = 0, pairs = 0;
  for (int64_t length = 16; length <= 512; length += 16) {
    ragged.push_back(length);
    tokens += length;
    pairs += length * length;
  }
  for (int64_t left = tokens; left > 0; left -= equal.back()) {
    equal.push_back(std::min(left, (pairs + tokens - 1) / tokens));
  }
  const LayerSpec spec = BasicSpec(settings.Size(64, 0) * 12, 12);
  auto one = MakeCase(settings, DType::kF32, spec, ragged);
  auto other = MakeCase(settings, DType::kF32, spec, equal);
  rows->push_back(TimeRatio(
      settings, "ragged_over_equal", [&] { Forward(one.get()); }, [&] { Forward(other.get()); }));
  rows->back().error = CheckLayer(one.get());
}

void ThreadsRow(const Settings& settings, std::vector<Row>* rows) {
  if (!settings.Wants("two_threads_speedup")) return;
  auto one = MakeCase(settings, DType::kF32, AttentionShape{8, 512, 768, 12}, 1);
  auto two = MakeCase(settings, DType::kF32, AttentionShape{8, 512, 768, 12}, 2);
  rows->push_back(TimeRatio(
      settings, "two_threads_speedup", [&] { Forward(one.get()); }, [&] { Forward(two.get()); }));
  rows->back().error = CheckLayer(two.get());
}

// Requests a second of `clients` threads that each ask again as soon as they are answered.
double RequestsPerSecond(LayerCase* c, int clients, double seconds) {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> answered{0};
  std::vector<std::thread> threads;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        Forward(c);
        answered.fetch_add(1);
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return static_cast<double>(answered.load()) / spent.count();
}

// No T x S tensor: what a long forward holds at its peak beside its N * D terms.
void MemoryRow(const Settings& settings, std::vector<Row>* rows) {
  const std::string name = "forward_t16384_extra_bytes";
  if (settings.quick || !settings.Wants(name)) return;
  auto c = MakeCase(settings, DType::kF32, AttentionShape{1, 16384, 768, 12});
  const int64_t before = ResidentBytes();
  ResetPeak();
  Forward(c.get());
  const int64_t terms = 5 * c->lengths[0] * c->spec.d_model * static_cast<int64_t>(sizeof(float));
  const double extra = static_cast<double>(PeakResidentBytes() - before - terms) / (1 << 20);
  rows->push_back(MakeRow(name, {extra, extra, extra}, "MiB"));
  rows->back().error = CheckLayer(c.get());
}

}  // namespace

Work LayerWork(const Settings& settings, DType dtype, const AttentionShape& shape) {
  const std::shared_ptr<LayerCase> c = MakeCase(settings, dtype, shape);
  const int count = ChainLength(*c);
  return {.run = [c, count] { ForwardChain(c.get(), count); },
          .count = count,
          .check = [c] { return CheckLayer(c.get()); }};
}

void LayerRows(const Settings& settings, Peaks* peaks, std::vector<Row>* rows) {
  const AttentionShape wide{8, 512, 768, 12}, brief{8, 128, 768, 12}, small{1, 10, 512, 8};
  LayerRow(settings, &peaks->f32, "layer_f32", DType::kF32, wide, rows);
  LayerRow(settings, &peaks->bf16, "layer_bf16", DType::kBF16, wide, rows);
  LayerRow(settings, &peaks->f32, "layer_f32_t128", DType::kF32, brief, rows);
  LayerRow(settings, &peaks->bf16, "layer_bf16_t128", DType::kBF16, brief, rows);
  Int8Row(settings, rows);
  LayerRow(settings, &peaks->f32, "layer_small", DType::kF32, small, rows);
  LayerRow(settings, &peaks->bf16, "layer_small_bf16", DType::kBF16, small, rows);
  SweepRow(settings, "leave_one_out_over_forward", SweepKind::kLeaveOneOut, wide, rows);
  SweepRow(settings, "leave_one_out_over_forward_wide", SweepKind::kLeaveOneOut, {1, 512, 4096, 32},
           rows);
  PairsRow(settings, rows);
  RaggedRow(settings, rows);
  ThreadsRow(settings, rows);
  SettingRow(
      settings, "rope_over_plain",
      [](LayerSpec* spec) { spec->rope.emplace().layout = RopeLayout::kHalf; }, rows);
  SettingRow(
      settings, "alibi_over_plain",
      [](LayerSpec* spec) {
        spec->position_bias.emplace();
        for (int r = 1; r <= 12; ++r) spec->position_bias->slopes.push_back(0.01f * r);
      },
      rows);
  SettingRow(settings, "softcap_over_plain", [](LayerSpec* spec) { spec->softcap = 30.0; }, rows);
  WeightsRow(settings, rows);
  MemoryRow(settings, rows);
}

void BatchRows(const Settings& settings, std::vector<Row>* rows) {
  if (!settings.Wants("batch_gain")) return;
  auto c = MakeCase(settings, DType::kF32, AttentionShape{1, 1, 2048, 16});
  const double seconds = settings.quick ? 0.2 : 1.0;
  std::vector<double> gains;
  for (int i = 0; i < settings.repetitions(); ++i) {
    const double one = RequestsPerSecond(c.get(), 1, seconds);
    gains.push_back(RequestsPerSecond(c.get(), 16, seconds) / one);
  }
  const Spread spread = SpreadOf(std::move(gains));
  rows->push_back({.name = "batch_gain",
                   .value = spread.median,
                   .low = spread.low,
                   .high = spread.high,
                   .unit = "ratio",
                   .error = CheckLayer(c.get())});
}

}  // namespace headwise::bench
