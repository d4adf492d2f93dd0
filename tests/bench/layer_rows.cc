// SPDX-License-Identifier: Apache-2.0
// Whole layers, in process, through the engine's door.
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "absl/log/check.h"
#include "core/engine.h"
#include "core/reference/reference.h"
#include "tests/bench/bench.h"
#include "tests/support/engine_helper.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise::bench {
namespace {

// Error of y against the reference: dot products of D terms in f32, several in a row.
constexpr double kTolerance = 1e-5;

struct LayerCase {
  TestLayer layer;
  LayerSpec spec;  // resolved
  int64_t batch, length;
  std::unique_ptr<TestInput> input;
  std::unique_ptr<Engine> engine;

  double flops() const {
    const double n = static_cast<double>(batch * length);
    const double d = static_cast<double>(spec.d_model);
    return 8.0 * n * d * d + 4.0 * n * static_cast<double>(length) * d;
  }
};

std::unique_ptr<LayerCase> MakeLayerCase(const Settings& settings, int64_t batch, int64_t length,
                                         int64_t d_model, int64_t heads) {
  auto c = std::make_unique<LayerCase>();
  c->batch = batch;
  c->length = settings.Size(length, 1);
  // The width keeps its divisor: heads stay equal.
  const int64_t width = settings.Size(d_model / heads, 0) * heads;
  c->layer = RandomLayer(BasicSpec(width, heads), 7);
  auto spec = ResolveSpec(c->layer.spec);
  CHECK(spec.ok()) << spec.status();
  c->spec = *std::move(spec);
  c->input =
      std::make_unique<TestInput>(width, RandomFloats(batch * c->length * width, 11),
                                  std::vector<int64_t>(static_cast<size_t>(batch), c->length));
  c->engine = MakeEngine(settings.threads);
  Load(c->engine.get(), "layer", c->layer);
  return c;
}

ForwardResult Forward(LayerCase* c) {
  auto result = ForwardNow(c->engine.get(), MakeForward("layer", *c->input));
  CHECK(result.ok()) << result.status();
  return *std::move(result);
}

// 64 rows of the last sequence against the reference.
std::string CheckLayer(LayerCase* c) {
  const ForwardResult result = Forward(c);
  auto input = ReadReferenceInput(c->spec, c->input->get());
  CHECK(input.ok()) << input.status();
  const int64_t first = (c->batch - 1) * c->length;
  const int64_t step = std::max<int64_t>(1, c->length / 64);
  ReferenceOptions options;
  for (int64_t t = 0; t < c->length; t += step) options.rows.push_back(first + t);
  const ReferenceSequence expected =
      ReferenceLayer(c->spec, c->layer.matrices).Run(*input, options).back();
  std::vector<double> actual;
  for (const int64_t row : options.rows) {
    const float* y = result.outputs[0].floats() + row * c->spec.d_out;
    actual.insert(actual.end(), y, y + c->spec.d_out);
  }
  return Compare(expected.y, actual, kTolerance);
}

void LayerRow(const Settings& settings, Peak* peak, const std::string& name, LayerCase* c,
              std::vector<Row>* rows) {
  rows->push_back(ShareOfPeak(settings, name, c->flops(), peak, [&] { Forward(c); }));
  rows->back().error = CheckLayer(c);
}

AblateResult LeaveOneOut(LayerCase* c) {
  AblateRequest request;
  request.layer = "layer";
  request.input = c->input->get();
  request.sweep = SweepKind::kLeaveOneOut;
  auto result = AblateNow(c->engine.get(), std::move(request));
  CHECK(result.ok()) << result.status();
  return *std::move(result);
}

// Effects against y and y' themselves: two heads, each by an output of its own.
std::string CheckLeaveOneOut(LayerCase* c) {
  AblateRequest request;
  request.layer = "layer";
  request.input = c->input->get();
  request.sweep = SweepKind::kLeaveOneOut;
  request.return_y = true;
  request.return_ablation_y = {0, c->spec.heads - 1};
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
    const size_t head = i == 1 ? 0 : static_cast<size_t>(c->spec.heads - 1);
    actual.push_back(*result->ablations[head].pooled.relative_l2);
  }
  return Compare(expected, actual, kTolerance);
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

}  // namespace

void LayerRows(const Settings& settings, Peaks* peaks, std::vector<Row>* rows) {
  if (!settings.only.empty() && settings.only[0] != (char)0x6c) return;
  auto wide = MakeLayerCase(settings, 8, 512, 768, 12);
  LayerRow(settings, &peaks->f32, "layer_f32", wide.get(), rows);
  rows->push_back(TimeRatio(
      settings, "leave_one_out_over_forward", [&] { LeaveOneOut(wide.get()); },
      [&] { Forward(wide.get()); }));
  rows->back().error = CheckLeaveOneOut(wide.get());
  auto short_sequences = MakeLayerCase(settings, 8, 128, 768, 12);
  LayerRow(settings, &peaks->f32, "layer_f32_t128", short_sequences.get(), rows);
  auto small = MakeLayerCase(settings, 1, 10, 512, 8);
  LayerRow(settings, &peaks->f32, "layer_small", small.get(), rows);
}

void BatchRows(const Settings& settings, std::vector<Row>* rows) {
  if (!settings.Wants("batch_gain")) return;
  auto c = MakeLayerCase(settings, 1, 1, 2048, 16);
  const double seconds = settings.quick ? 0.3 : 1.0;
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
