// SPDX-License-Identifier: Apache-2.0
#include "tests/core/audit/planted.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/str_split.h"
#include "tests/core/audit/planted_writer.h"

namespace headwise {

double RoundBits(double value, int bits, int least) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value) + 1 - bits, least);
  return std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
}

double PlantedWriter::Store(double value) const {
  switch (arithmetic_) {
    case Arithmetic::kF64:
      return value;
    case Arithmetic::kBf16:
      return RoundBits(value, 8, -133);
    case Arithmetic::kF16:
      return std::fabs(value) >= 65520.0 ? value * std::numeric_limits<double>::infinity()
                                         : RoundBits(value, 11, -24);
    default:
      return static_cast<double>(static_cast<float>(value));
  }
}

double PlantedWriter::Sum(double value) const {
  if (arithmetic_ == Arithmetic::kBf16Sums) return RoundBits(value, 8, -133);
  if (arithmetic_ == Arithmetic::kBf16) return static_cast<double>(static_cast<float>(value));
  return Store(value);
}

Table PlantedWriter::ToTable(const std::vector<float>& flat, int64_t width) const {
  Table table;
  for (size_t at = 0; at < flat.size(); at += static_cast<size_t>(width)) {
    table.emplace_back();
    for (int64_t i = 0; i < width; ++i) {
      table.back().push_back(Store(static_cast<double>(flat[at + static_cast<size_t>(i)])));
    }
  }
  return table;
}

namespace {

Table Transpose(const Table& m) {
  Table out(m[0].size(), std::vector<double>(m.size()));
  for (size_t i = 0; i < m.size(); ++i) {
    for (size_t j = 0; j < m[0].size(); ++j) out[j][i] = m[i][j];
  }
  return out;
}

// The memory of m, read with the axes swapped.
Table Reread(const Table& m) {
  std::vector<double> flat;
  for (const auto& row : m) flat.insert(flat.end(), row.begin(), row.end());
  Table out(m.size(), std::vector<double>(m[0].size()));
  for (size_t i = 0; i < m[0].size(); ++i) {
    for (size_t o = 0; o < m.size(); ++o) out[o][i] = flat[i * m.size() + o];
  }
  return out;
}

struct Fuse {
  Table weight;
  std::vector<double> bias;
};

void Take(const Table& w, const std::vector<double>& b, size_t first, size_t count, Fuse* out) {
  for (size_t r = first; r < first + count; ++r) {
    out->weight.push_back(w[r]);
    out->bias.push_back(b.empty() ? 0.0 : b[r]);
  }
}

}  // namespace

// Writes the fused weight in the layout `from`, reads it in the layout `to`.
void PlantedWriter::Refuse(FusedLayout from, const std::string& to) {
  const size_t w = static_cast<size_t>(dk_), heads = static_cast<size_t>(heads_);
  const size_t groups = static_cast<size_t>(groups_), share = heads / groups;
  Fuse fused;
  if (from == FusedLayout::kPerHead) {
    for (size_t h = 0; h < heads; ++h) {
      Take(wq_, bq_, h * w, w, &fused);
      Take(wk_, bk_, h * w, w, &fused);
      Take(wv_, bv_, h * w, w, &fused);
    }
  } else if (from == FusedLayout::kPerGroup) {
    for (size_t g = 0; g < groups; ++g) {
      Take(wq_, bq_, g * share * w, share * w, &fused);
      Take(wk_, bk_, g * w, w, &fused);
      Take(wv_, bv_, g * w, w, &fused);
    }
  } else {
    Take(wq_, bq_, 0, heads * w, &fused);
    Take(wk_, bk_, 0, groups * w, &fused);
    Take(wv_, bv_, 0, groups * w, &fused);
  }
  const bool biased = !bq_.empty() || !bk_.empty() || !bv_.empty();
  Fuse q, k, v;
  size_t at = 0;
  const auto next = [&](size_t count, Fuse* out) {
    Take(fused.weight, fused.bias, at, count, out);
    at += count;
  };
  if (to == "fused_l1") {
    next(heads * w, &q), next(groups * w, &k), next(groups * w, &v);
  } else if (to == "fused_l2") {
    for (size_t h = 0; h < heads; ++h) next(w, &q), next(w, &k), next(w, &v);
  } else {
    const size_t block = heads / 4 * w;
    for (size_t b = 0; b < 4; ++b) next(block, &q), next(block, &v), next(block, &k);
  }
  wq_ = q.weight, wk_ = k.weight, wv_ = v.weight;
  if (biased) bq_ = q.bias, bk_ = k.bias, bv_ = v.bias;
}

void PlantedWriter::SpoilWeights(const LayerSpec& spec) {
  if (Is("weights_transposed")) wq_ = Reread(wq_), wk_ = Reread(wk_), wv_ = Reread(wv_);
  if (Is("swap_kqv")) std::swap(wq_, wk_), std::swap(bq_, bk_);
  if (Is("swap_vkq")) std::swap(wq_, wv_), std::swap(bq_, bv_);
  if (Is("swap_qvk")) std::swap(wk_, wv_), std::swap(bk_, bv_);
  if (Is("swap_kvq") || Is("swap_vqk")) {
    const Table q = wq_, k = wk_, v = wv_;
    const std::vector<double> b = bq_, c = bk_, d = bv_;
    if (Is("swap_kvq")) {
      wq_ = k, wk_ = v, wv_ = q, bq_ = c, bk_ = d, bv_ = b;
    } else {
      wq_ = v, wk_ = q, wv_ = k, bq_ = d, bk_ = b, bv_ = c;
    }
  }
  for (const char* to : {"fused_l1", "fused_l2", "fused_l5"}) {
    if (Is(to)) Refuse(spec.fused_layout, to);
  }
  if (Is("wo_transposed") || Is("wo_row_slices")) wo_ = Transpose(wo_);
  if (Is("wo_first_slice")) {
    for (auto& row : wo_) {
      for (size_t i = 0; i < row.size(); ++i) row[i] = row[i % static_cast<size_t>(dv_)];
    }
  }
  if (Is("bias_q")) bq_.clear();
  if (Is("bias_k")) bk_.clear();
  if (Is("bias_v")) bv_.clear();
  if (Is("bias_o")) bo_.clear();
  if (Is("bias_o_per_head")) {
    for (double& b : bo_) b *= static_cast<double>(heads_);
  }
}

namespace {

double Steps(double value, double scale) {
  if (scale == 0.0) return 0.0;
  return std::max(
      -127.0,
      std::min(127.0, std::nearbyint(static_cast<double>(static_cast<float>(value / scale)))));
}

double AmaxScale(double amax) { return static_cast<double>(static_cast<float>(amax) / 127.0f); }

double Amax(const std::vector<double>& row) {
  double amax = 0.0;
  for (const double v : row) amax = std::max(amax, std::fabs(v));
  return amax;
}

}  // namespace

// x W^T + b of all rows.
Table PlantedWriter::Linear(const Table& x, const Table& w, const std::vector<double>& b) const {
  Table y;
  const bool int8 =
      Is("int8_weight_tensor") || Is("int8_x_batch") || Is("int8_weight_axis") || Is("int8_wrap16");
  double batch = 0.0, tensor = 0.0;
  for (const auto& row : x) batch = std::max(batch, Amax(row));
  for (const auto& row : w) tensor = std::max(tensor, Amax(row));
  std::vector<double> input_scale(w[0].size());
  for (size_t i = 0; i < w[0].size(); ++i) {
    double amax = 0.0;
    for (const auto& row : w) amax = std::max(amax, std::fabs(row[i]));
    input_scale[i] = AmaxScale(amax);
  }
  for (const auto& row : x) {
    y.emplace_back();
    for (size_t o = 0; o < w.size(); ++o) {
      double sum = 0.0;
      if (int8) {
        const double x_scale = AmaxScale(Is("int8_x_batch") ? batch : Amax(row));
        const double w_scale = AmaxScale(Is("int8_weight_tensor") ? tensor : Amax(w[o]));
        int64_t whole = 0;
        for (size_t i = 0; i < row.size(); ++i) {
          const double scale = Is("int8_weight_axis") ? input_scale[i] : w_scale;
          whole += static_cast<int64_t>(Steps(row[i], x_scale) * Steps(w[o][i], scale));
          if (Is("int8_wrap16")) whole = (whole + 32768 + 65536 * 1024) % 65536 - 32768;
        }
        const double out_scale = Is("int8_weight_axis") ? input_scale[o] : w_scale;
        sum = static_cast<double>(whole) * x_scale * out_scale;
      } else {
        for (size_t i = 0; i < row.size(); ++i) sum = Sum(sum + row[i] * w[o][i]);
      }
      sum = Store(sum);
      y.back().push_back(b.empty() ? sum : Store(sum + b[o]));
    }
  }
  return y;
}

// The layer's own norm over rows that have been through it.
Table PlantedWriter::NormAgain(const Table& rows) const {
  const bool centred = spec_.pre_norm->kind == NormKind::kLayerNorm;
  const double one = spec_.pre_norm->kind == NormKind::kRmsPlusOne ? 1.0 : 0.0;
  Table out;
  for (const auto& row : rows) {
    const double count = static_cast<double>(row.size());
    double mean = 0.0, squares = 0.0;
    for (const double v : row) mean = Sum(mean + v);
    mean = centred ? Store(mean / count) : 0.0;
    for (const double v : row) squares = Sum(squares + (v - mean) * (v - mean));
    const double factor = Store(1.0 / std::sqrt(Store(squares / count) + spec_.pre_norm->epsilon));
    out.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      const double x = Store(Store(row[i] - mean) * factor);
      const double bias = norm_bias_.empty() ? 0.0 : norm_bias_[i];
      out.back().push_back(Store(Store(x * Store(one + norm_[i])) + bias));
    }
  }
  return out;
}

PlantedWriter::PlantedWriter(const TestLayer& layer, const std::string& mistake,
                             Arithmetic arithmetic, PlantedEmpty empty)
    : spec_(layer.spec), arithmetic_(arithmetic), empty_(empty) {
  for (const auto& id : absl::StrSplit(mistake, '+')) mistakes_.insert(std::string(id));
  heads_ = spec_.heads, groups_ = spec_.kv_heads;
  dk_ = spec_.dk[0], dv_ = spec_.dv[0];
  const LayerMatrices& m = layer.matrices;
  wq_ = ToTable(m.wq, spec_.d_model), wk_ = ToTable(m.wk, spec_.d_memory);
  wv_ = ToTable(m.wv, spec_.d_memory), wo_ = ToTable(m.wo, heads_ * dv_);
  const auto row = [this](const std::vector<float>& b) {
    return b.empty() ? std::vector<double>() : ToTable(b, static_cast<int64_t>(b.size()))[0];
  };
  bq_ = row(m.bq), bk_ = row(m.bk), bv_ = row(m.bv), bo_ = row(m.bo), sinks_ = row(m.sinks);
  norm_ = row(m.pre_norm), norm_bias_ = row(m.pre_norm_bias);
  SpoilWeights(spec_);
}

Planted Plant(const TestLayer& layer, const PlantedInput& input, const std::string& mistake,
              Arithmetic arithmetic) {
  return Plant(layer, input, mistake, arithmetic, PlantedEmpty::kZeros);
}

Planted Plant(const TestLayer& layer, const PlantedInput& input, const std::string& mistake,
              Arithmetic arithmetic, PlantedEmpty empty) {
  return PlantedWriter(layer, mistake, arithmetic, empty).Write(input);
}

}  // namespace headwise
