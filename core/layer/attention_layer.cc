// SPDX-License-Identifier: Apache-2.0
#include "core/layer/attention_layer.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"

namespace headwise {
namespace {

std::vector<int64_t> Offsets(const std::vector<int64_t>& widths) {
  std::vector<int64_t> offsets;
  int64_t sum = 0;
  for (const int64_t width : widths) {
    offsets.push_back(sum);
    sum += width;
  }
  return offsets;
}

std::vector<int64_t> BlockWidths(const std::vector<HeadBlock>& blocks) {
  std::vector<int64_t> widths;
  for (const HeadBlock& block : blocks) widths.push_back(block.width);
  return widths;
}

// [wk; wv] and their biases as one matrix; a missing bias beside a present one is zeros.
void JoinKeysAndValues(const LayerSpec& spec, const LayerMatrices& matrices,
                       std::vector<float>* weights, std::vector<float>* bias) {
  *weights = matrices.wk;
  weights->insert(weights->end(), matrices.wv.begin(), matrices.wv.end());
  if (matrices.bk.empty() && matrices.bv.empty()) return;
  bias->assign(static_cast<size_t>(spec.k_width() + spec.v_width()), 0.0f);
  std::copy(matrices.bk.begin(), matrices.bk.end(), bias->begin());
  std::copy(matrices.bv.begin(), matrices.bv.end(), bias->begin() + spec.k_width());
}

}  // namespace

AttentionLayer::AttentionLayer(LayerInfo info) : info_(std::move(info)) {
  project_type_ = info_.dtype == DType::kI8     ? TileType::kU8S8
                  : info_.dtype == DType::kBF16 ? TileType::kBf16
                                                : TileType::kF32;
  attend_type_ = info_.dtype == DType::kF32 ? TileType::kF32 : TileType::kBf16;
  const LayerSpec& spec = info_.spec;
  for (int64_t g = 0; g < spec.kv_heads; ++g) {
    kv_dk_.push_back(spec.kv_dk(g));
    kv_dv_.push_back(spec.kv_dv(g));
  }
  q_width_ = spec.q_width();
  k_width_ = spec.k_width();
  v_width_ = spec.v_width();
  z_width_ = spec.z_width();
  q_offsets_ = Offsets(spec.dk);
  z_offsets_ = Offsets(spec.dv);
  k_offsets_ = Offsets(kv_dk_);
  v_offsets_ = Offsets(kv_dv_);
  std::vector<int64_t> features;
  for (int64_t g = 0; g < spec.kv_heads; ++g) features.push_back(kt_features(g));
  kt_offsets_ = Offsets(features);
  kt_width_ = kt_offsets_.back() + features.back();
  max_dk_ = *std::max_element(spec.dk.begin(), spec.dk.end());
  max_dv_ = *std::max_element(spec.dv.begin(), spec.dv.end());
  q_blocks_ = MakeHeadBlocks(ProjectionRole::kQ, spec.dk);
  kv_blocks_ = MakeHeadBlocks(ProjectionRole::kK, kv_dk_);
  const std::vector<HeadBlock> v_blocks = MakeHeadBlocks(ProjectionRole::kV, kv_dv_);
  kv_blocks_.insert(kv_blocks_.end(), v_blocks.begin(), v_blocks.end());
}

absl::StatusOr<std::shared_ptr<AttentionLayer>> AttentionLayer::Create(
    LayerInfo info, const LayerMatrices& matrices, KernelPath path) {
  std::shared_ptr<AttentionLayer> layer(new AttentionLayer(std::move(info)));
  absl::Status status = layer->PackProjections(matrices, path);
  if (status.ok()) status = layer->MakeKernels(path);
  if (!status.ok()) return status;
  layer->KeepExtras(matrices);
  return layer;
}

absl::Status AttentionLayer::PackProjections(const LayerMatrices& matrices, KernelPath path) {
  const LayerSpec& spec = info_.spec;
  const std::vector<int64_t> q_widths = BlockWidths(q_blocks_);
  const std::vector<int64_t> kv_widths = BlockWidths(kv_blocks_);
  const std::vector<int64_t> o_widths = MakeColumnBlocks(spec.d_out);
  for (const auto* widths : {&q_widths, &kv_widths, &o_widths}) {
    tile_stride_ = std::max(tile_stride_, *std::max_element(widths->begin(), widths->end()));
  }
  tile_stride_ = RoundUp(tile_stride_, kTileStep);
  std::vector<float> kv_weights, kv_bias;
  JoinKeysAndValues(spec, matrices, &kv_weights, &kv_bias);
  auto wq = PackedMatrix::Pack(path, project_type_, matrices.wq, matrices.bq,
                               {spec.q_width(), spec.d_model, q_widths, {}}, tile_stride_);
  if (!wq.ok()) return wq.status();
  auto wkv = PackedMatrix::Pack(path, project_type_, kv_weights, kv_bias,
                                {spec.k_width() + spec.v_width(), spec.d_memory, kv_widths, {}},
                                tile_stride_);
  if (!wkv.ok()) return wkv.status();
  auto wo = PackedMatrix::Pack(path, project_type_, matrices.wo, matrices.bo,
                               {spec.d_out, spec.z_width(), o_widths, spec.dv}, tile_stride_);
  if (!wo.ok()) return wo.status();
  wq_ = *std::move(wq);
  wkv_ = *std::move(wkv);
  wo_ = *std::move(wo);
  return absl::OkStatus();
}

absl::Status AttentionLayer::MakeKernels(KernelPath path) {
  const LayerSpec& spec = info_.spec;
  for (size_t r = 0; r < spec.dk.size(); ++r) {
    auto kernels = GetAttendKernels(path, attend_type_, spec.dk[r], spec.dv[r]);
    if (!kernels.ok()) return kernels.status();
    attend_.push_back(*std::move(kernels));
  }
  return absl::OkStatus();
}

void AttentionLayer::KeepExtras(const LayerMatrices& matrices) {
  const LayerSpec& spec = info_.spec;
  if (spec.rope.has_value()) rope_ = std::make_unique<RopeTable>(*spec.rope);
  if (spec.position_bias.has_value()) {
    position_bias_ = std::make_unique<PositionBias>(spec, matrices.position_bias);
  }
  sinks_ = matrices.sinks;
  q_norm_ = matrices.q_norm;
  k_norm_ = matrices.k_norm;
  q_norm_bias_ = matrices.q_norm_bias;
  k_norm_bias_ = matrices.k_norm_bias;
}

const float* AttentionLayer::norm_weights(ProjectionRole role, int64_t head) const {
  const bool queries = role == ProjectionRole::kQ;
  return OfHead(queries ? q_norm_ : k_norm_, (queries ? q_offsets_ : k_offsets_), head);
}

const float* AttentionLayer::norm_bias(ProjectionRole role, int64_t head) const {
  const bool queries = role == ProjectionRole::kQ;
  return OfHead(queries ? q_norm_bias_ : k_norm_bias_, (queries ? q_offsets_ : k_offsets_), head);
}

// `values` are one row for all heads, or head after head.
const float* AttentionLayer::OfHead(const std::vector<float>& values,
                                    const std::vector<int64_t>& offsets, int64_t head) const {
  if (values.empty()) return nullptr;
  const bool shared = info_.spec.qk_norm->span == QkNormSpan::kHead;
  return values.data() + (shared ? 0 : offsets[static_cast<size_t>(head)]);
}

}  // namespace headwise
