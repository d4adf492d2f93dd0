// SPDX-License-Identifier: Apache-2.0
#include "core/layer/layer_bytes.h"

#include "absl/strings/str_cat.h"
#include "core/base/refusal.h"

namespace headwise {

CountShape ShapeOf(const LayerSpec& spec, const LayerVectors& vectors) {
  CountShape shape;
  shape.d_model = spec.d_model;
  shape.d_memory = spec.d_memory;
  shape.d_out = spec.d_out;
  shape.dk = spec.dk;
  shape.dv = spec.dv;
  for (int64_t g = 0; g < spec.kv_heads; ++g) {
    shape.kv_dk.push_back(spec.kv_dk(g));
    shape.kv_dv.push_back(spec.kv_dv(g));
  }
  shape.q_bias = !vectors.bq.empty();
  shape.k_bias = !vectors.bk.empty();
  shape.v_bias = !vectors.bv.empty();
  shape.o_bias = !vectors.bo.empty();
  shape.q_statistic_rows = spec.q_statistic_rows();
  shape.k_statistic_rows = spec.k_statistic_rows();
  shape.q_statistic_bias = !vectors.bq_statistic.empty();
  shape.k_statistic_bias = !vectors.bk_statistic.empty();
  return shape;
}

int64_t ParameterBytes(const LayerSpec& spec, const LayerVectors& v, DType dtype) {
  const int64_t weights =
      (spec.q_width() + spec.q_statistic_rows()) * spec.d_model +
      (spec.k_width() + spec.v_width() + spec.k_statistic_rows()) * spec.d_memory +
      spec.d_out * spec.z_width();
  const size_t biases = v.bq.size() + v.bk.size() + v.bv.size() + v.bo.size() +
                        v.bq_statistic.size() + v.bk_statistic.size();
  return (weights + static_cast<int64_t>(biases)) * static_cast<int64_t>(DTypeBytes(dtype));
}

absl::Status LayerBytes::Take(int64_t bytes, int64_t budget) {
  bytes_ = bytes;
  const int64_t together = used_->fetch_add(bytes) + bytes;
  if (budget == 0 || together <= budget) return absl::OkStatus();
  return Refuse(Refusal::kLayerBytes,
                absl::StrCat("layers: at most ", budget,
                             " bytes of parameters (--layer-budget-bytes), unload some or retry "
                             "later; was ",
                             together - bytes, " and ", bytes, " more"));
}

}  // namespace headwise
