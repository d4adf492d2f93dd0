// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_layer.h"

#include <cmath>
#include <random>
#include <utility>

#include "absl/log/check.h"

namespace headwise {
namespace {

LayerSpec Resolved(const LayerSpec& spec) {
  absl::StatusOr<LayerSpec> resolved = ResolveSpec(spec);
  CHECK_OK(resolved.status());
  return *std::move(resolved);
}

// Weights of the norm before the layer, drawn by themselves: a layer has the same other numbers
// with such a norm or without.
void AddPreNorm(uint32_t seed, bool biases, TestLayer* layer) {
  const int64_t width = layer->spec.d_model;
  const NormKind kind = layer->spec.pre_norm->kind;
  std::vector<float>& weight = layer->matrices.pre_norm;
  weight = RandomFloats(width, ~seed);
  for (float& w : weight) w = (kind == NormKind::kRmsPlusOne ? 0.0f : 1.0f) + 0.5f * w;
  if (biases && kind == NormKind::kLayerNorm) {
    layer->matrices.pre_norm_bias = RandomFloats(width, ~seed - 1);
  }
}

}  // namespace

LayerTensors::LayerTensors(const TestLayer& layer) {
  const LayerSpec& spec = layer.spec;
  const LayerMatrices& m = layer.matrices;
  owned_.reserve(20);
  Add(TensorRole::kQWeight, "wq", {spec.q_width(), spec.d_model}, m.wq);
  Add(TensorRole::kKWeight, "wk", {spec.k_width(), spec.d_memory}, m.wk);
  Add(TensorRole::kVWeight, "wv", {spec.v_width(), spec.d_memory}, m.wv);
  Add(TensorRole::kOWeight, "wo", {spec.d_out, spec.z_width()}, m.wo);
  Add(TensorRole::kQBias, "bq", {spec.q_width()}, m.bq);
  Add(TensorRole::kKBias, "bk", {spec.k_width()}, m.bk);
  Add(TensorRole::kVBias, "bv", {spec.v_width()}, m.bv);
  Add(TensorRole::kOBias, "bo", {spec.d_out}, m.bo);
  const auto row = [](const std::vector<float>& values) {
    return Shape{static_cast<int64_t>(values.size())};
  };
  Add(TensorRole::kQNorm, "q_norm", row(m.q_norm), m.q_norm);
  Add(TensorRole::kKNorm, "k_norm", row(m.k_norm), m.k_norm);
  Add(TensorRole::kQNormBias, "q_norm_bias", row(m.q_norm_bias), m.q_norm_bias);
  Add(TensorRole::kKNormBias, "k_norm_bias", row(m.k_norm_bias), m.k_norm_bias);
  Add(TensorRole::kPreNorm, "pre_norm", row(m.pre_norm), m.pre_norm);
  Add(TensorRole::kPreNormBias, "pre_norm_bias", row(m.pre_norm_bias), m.pre_norm_bias);
  const int64_t q_rows = spec.q_statistic_rows(), k_rows = spec.k_statistic_rows();
  Add(TensorRole::kQStatistic, "q_statistic", {q_rows, spec.d_model}, m.wq_statistic);
  Add(TensorRole::kKStatistic, "k_statistic", {k_rows, spec.d_memory}, m.wk_statistic);
  Add(TensorRole::kQStatisticBias, "q_statistic_bias", {q_rows}, m.bq_statistic);
  Add(TensorRole::kKStatisticBias, "k_statistic_bias", {k_rows}, m.bk_statistic);
  Add(TensorRole::kSinks, "sinks", {spec.heads}, m.sinks);
  if (m.position_bias.empty()) return;
  Add(TensorRole::kPositionBias, "position_bias", {spec.position_bias->buckets, spec.heads},
      m.position_bias);
}

void LayerTensors::Add(TensorRole role, const char* name, Shape shape,
                       const std::vector<float>& values) {
  if (values.empty()) return;
  owned_.push_back(FloatTensor(std::move(shape), values));
  roles_.push_back({role, name, owned_.back().view()});
}

LayerSpec BasicSpec(int64_t d_model, int64_t heads) {
  LayerSpec spec;
  spec.d_model = d_model;
  spec.heads = heads;
  spec.orientation = Orientation::kOutIn;
  return spec;
}

std::vector<float> Identity(int64_t n) {
  std::vector<float> matrix(static_cast<size_t>(n * n), 0.0f);
  for (int64_t i = 0; i < n; ++i) matrix[static_cast<size_t>(i * n + i)] = 1.0f;
  return matrix;
}

TestLayer IdentityLayer(int64_t d_model, int64_t heads) {
  TestLayer layer;
  layer.spec = Resolved(BasicSpec(d_model, heads));
  layer.matrices.wq = layer.matrices.wk = layer.matrices.wv = layer.matrices.wo = Identity(d_model);
  return layer;
}

TestLayer AverageLayer(int64_t d_model, int64_t heads) {
  TestLayer layer = IdentityLayer(d_model, heads);
  layer.matrices.wq.assign(layer.matrices.wq.size(), 0.0f);
  return layer;
}

std::vector<float> RandomFloats(int64_t count, uint32_t seed, float amplitude) {
  std::mt19937 generator(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    const float unit = static_cast<float>(generator() >> 8) * 0x1p-24f;  // [0, 1)
    value = amplitude * (2.0f * unit - 1.0f);
  }
  return values;
}

TestLayer RandomLayer(const LayerSpec& spec, uint32_t seed, bool biases) {
  TestLayer layer;
  layer.spec = Resolved(spec);
  const LayerSpec& s = layer.spec;
  LayerMatrices& m = layer.matrices;
  uint32_t stream = seed * 16;
  const auto weight_of = [](int64_t out, int64_t in, uint32_t from) {
    return RandomFloats(out * in, from, std::sqrt(3.0f / static_cast<float>(in)));
  };
  const auto weight = [&](int64_t out, int64_t in) { return weight_of(out, in, stream++); };
  m.wq = weight(s.q_width(), s.d_model);
  m.wk = weight(s.k_width(), s.d_memory);
  m.wv = weight(s.v_width(), s.d_memory);
  m.wo = weight(s.d_out, s.z_width());
  m.wq_statistic = weight_of(s.q_statistic_rows(), s.d_model, ~seed - 2);
  m.wk_statistic = weight_of(s.k_statistic_rows(), s.d_memory, ~seed - 3);
  if (s.qk_norm.has_value()) {
    const bool shared = s.qk_norm->span == QkNormSpan::kHead;
    m.q_norm = RandomFloats(shared ? s.dk.front() : s.q_width(), stream++);
    m.k_norm = RandomFloats(shared ? s.dk.front() : s.k_width(), stream++);
    for (std::vector<float>* norm : {&m.q_norm, &m.k_norm}) {
      const float middle = s.qk_norm->kind == NormKind::kRmsPlusOne ? 0.0f : 1.0f;
      for (float& value : *norm) value = middle + 0.5f * value;
    }
  }
  if (s.sinks) m.sinks = RandomFloats(s.heads, stream++);
  if (s.position_bias && s.position_bias->kind == PositionBiasKind::kT5Buckets) {
    m.position_bias = RandomFloats(s.position_bias->buckets * s.heads, stream++);
  }
  if (s.pre_norm.has_value()) AddPreNorm(seed, biases, &layer);
  if (!biases) return layer;
  if (s.qk_norm && s.qk_norm->kind == NormKind::kLayerNorm) {
    m.q_norm_bias = RandomFloats(static_cast<int64_t>(m.q_norm.size()), stream++);
    m.k_norm_bias = RandomFloats(static_cast<int64_t>(m.k_norm.size()), stream++);
  }
  m.bq_statistic = RandomFloats(s.q_statistic_rows(), ~seed - 4);
  m.bk_statistic = RandomFloats(s.k_statistic_rows(), ~seed - 5);
  m.bq = RandomFloats(s.q_width(), stream++);
  m.bk = RandomFloats(s.k_width(), stream++);
  m.bv = RandomFloats(s.v_width(), stream++);
  m.bo = RandomFloats(s.d_out, stream++);
  return layer;
}

}  // namespace headwise
