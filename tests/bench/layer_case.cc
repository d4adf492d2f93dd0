// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/layer_case.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "core/reference/reference.h"
#include "tests/support/engine_helper.h"

namespace headwise::bench {

double Tolerance(DType dtype) { return dtype == DType::kF32 ? 1e-5 : 2e-2; }

std::unique_ptr<LayerCase> MakeCase(const Settings& settings, DType dtype, LayerSpec spec,
                                    std::vector<int64_t> lengths, int threads) {
  auto c = std::make_unique<LayerCase>();
  c->dtype = dtype;
  c->lengths = std::move(lengths);
  const int64_t width = spec.d_model;
  c->layer = RandomLayer(spec, 7);
  auto resolved = ResolveSpec(c->layer.spec);
  CHECK(resolved.ok()) << resolved.status();
  c->spec = *std::move(resolved);
  int64_t tokens = 0;
  for (const int64_t length : c->lengths) tokens += length;
  c->input = std::make_unique<TestInput>(width, RandomFloats(tokens * width, 11), c->lengths);
  c->engine = MakeEngine(threads == 0 ? settings.threads : threads);
  Load(c->engine.get(), "layer", c->layer, dtype);
  return c;
}

std::unique_ptr<LayerCase> MakeCase(const Settings& settings, DType dtype,
                                    const AttentionShape& shape, int threads) {
  // The width keeps its divisor: heads stay equal.
  const int64_t width = settings.Size(shape.d_model / shape.heads, 0) * shape.heads;
  return MakeCase(
      settings, dtype, BasicSpec(width, shape.heads),
      std::vector<int64_t>(static_cast<size_t>(shape.batch), settings.Size(shape.length, 1)),
      threads);
}

ForwardResult Forward(LayerCase* c, uint32_t outputs) {
  auto result = ForwardNow(c->engine.get(), MakeForward("layer", *c->input, outputs));
  CHECK(result.ok()) << result.status();
  return *std::move(result);
}

std::string CheckLayer(LayerCase* c) {
  const ForwardResult result = Forward(c);
  auto input = ReadReferenceInput(c->spec, c->input->get());
  CHECK(input.ok()) << input.status();
  const int64_t length = c->lengths.back();
  const int64_t first = c->input->get().x.shape[0] - length;
  const int64_t step = std::max<int64_t>(1, length / 64);
  ReferenceOptions options;
  for (int64_t t = 0; t < length; t += step) options.rows.push_back(first + t);
  const ReferenceSequence expected =
      ReferenceLayer(c->spec, c->layer.matrices).Run(*input, options).back();
  std::vector<double> actual;
  for (const int64_t row : options.rows) {
    const float* y = result.outputs[0].floats() + row * c->spec.d_out;
    actual.insert(actual.end(), y, y + c->spec.d_out);
  }
  return Compare(expected.y, actual, Tolerance(c->dtype));
}

}  // namespace headwise::bench
