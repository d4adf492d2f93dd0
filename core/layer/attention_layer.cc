// SPDX-License-Identifier: Apache-2.0
#include "core/layer/attention_layer.h"

#include <algorithm>
#include <initializer_list>
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

// Of a matrix that follows others in one product.
struct BiasPart {
  const std::vector<float>& bias;  // or empty
  int64_t width;
};

// A missing bias beside a present one is zeros.
std::vector<float> JoinBiases(std::initializer_list<BiasPart> parts) {
  std::vector<float> joined;
  int64_t width = 0;
  for (const BiasPart& part : parts) {
    if (!part.bias.empty()) {
      joined.resize(static_cast<size_t>(width), 0.0f);
      joined.insert(joined.end(), part.bias.begin(), part.bias.end());
    }
    width += part.width;
  }
  if (!joined.empty()) joined.resize(static_cast<size_t>(width), 0.0f);
  return joined;
}

// Appends the blocks of `rows` rows of a norm's statistic; how many they are.
int64_t AppendStatistic(int64_t rows, std::vector<HeadBlock>* blocks) {
  const std::vector<HeadBlock> added =
      MakeHeadBlocks(ProjectionRole::kStatistic, MakeColumnBlocks(rows));
  blocks->insert(blocks->end(), added.begin(), added.end());
  return static_cast<int64_t>(added.size());
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
  std::vector<int64_t> key_widths, value_widths;  // of PassData::kt and v
  for (int64_t g = 0; g < spec.kv_heads; ++g) {
    key_widths.push_back(kt_features(g));
    value_widths.push_back(value_features(g));
  }
  kt_offsets_ = Offsets(key_widths);
  kt_width_ = kt_offsets_.back() + key_widths.back();
  value_offsets_ = Offsets(value_widths);
  value_width_ = value_offsets_.back() + value_widths.back();
  max_dk_ = *std::max_element(spec.dk.begin(), spec.dk.end());
  max_dv_ = *std::max_element(spec.dv.begin(), spec.dv.end());
  q_blocks_ = MakeHeadBlocks(ProjectionRole::kQ, spec.dk);
  q_square_sums_ = spec.heads + AppendStatistic(spec.q_statistic_rows(), &q_blocks_);
  kv_blocks_ = MakeHeadBlocks(ProjectionRole::kK, kv_dk_);
  const std::vector<HeadBlock> v_blocks = MakeHeadBlocks(ProjectionRole::kV, kv_dv_);
  kv_blocks_.insert(kv_blocks_.end(), v_blocks.begin(), v_blocks.end());
  k_square_sums_ = spec.kv_heads + AppendStatistic(spec.k_statistic_rows(), &kv_blocks_);
}

absl::StatusOr<std::shared_ptr<AttentionLayer>> AttentionLayer::Prepare(LayerInfo info,
                                                                        const LayerVectors& vectors,
                                                                        KernelPath path) {
  std::shared_ptr<AttentionLayer> layer(new AttentionLayer(std::move(info)));
  absl::Status status = layer->PrepareProjections(vectors, path);
  if (status.ok()) status = layer->MakeKernels(path);
  if (!status.ok()) return status;
  layer->KeepExtras(vectors);
  return layer;
}

void AttentionLayer::PackRows(WeightMatrix matrix, int64_t first, int64_t count,
                              const float* rows) {
  switch (matrix) {
    case WeightMatrix::kQ:
      return wq_.PackColumns(first, count, rows);
    case WeightMatrix::kK:
      return wkv_.PackColumns(first, count, rows);
    case WeightMatrix::kV:
      return wkv_.PackColumns(k_width_ + first, count, rows);
    case WeightMatrix::kO:
      return wo_.PackColumns(first, count, rows);
    case WeightMatrix::kQStatistic:
      return wq_.PackColumns(q_width_ + first, count, rows);
    case WeightMatrix::kKStatistic:
      return wkv_.PackColumns(k_width_ + v_width_ + first, count, rows);
  }
}

void AttentionLayer::KeepProjectionsOf(const float* x, const float* memory, int64_t count) {
  wq_.KeepProductsOf(x, count);
  wkv_.KeepProductsOf(memory, count);
}

void AttentionLayer::KeepOutputsOf(const float* z, int64_t count) { wo_.KeepProductsOf(z, count); }

absl::StatusOr<std::shared_ptr<AttentionLayer>> AttentionLayer::Create(
    LayerInfo info, const LayerMatrices& matrices, KernelPath path) {
  auto layer = Prepare(std::move(info), matrices, path);
  if (!layer.ok()) return layer;
  const LayerSpec& spec = (*layer)->spec();
  (*layer)->PackRows(WeightMatrix::kQ, 0, spec.q_width(), matrices.wq.data());
  (*layer)->PackRows(WeightMatrix::kK, 0, spec.k_width(), matrices.wk.data());
  (*layer)->PackRows(WeightMatrix::kV, 0, spec.v_width(), matrices.wv.data());
  (*layer)->PackRows(WeightMatrix::kQStatistic, 0, spec.q_statistic_rows(),
                     matrices.wq_statistic.data());
  (*layer)->PackRows(WeightMatrix::kKStatistic, 0, spec.k_statistic_rows(),
                     matrices.wk_statistic.data());
  (*layer)->PackRows(WeightMatrix::kO, 0, spec.d_out, matrices.wo.data());
  return layer;
}

absl::Status AttentionLayer::PrepareProjections(const LayerVectors& vectors, KernelPath path) {
  const LayerSpec& spec = info_.spec;
  const std::vector<int64_t> q_widths = BlockWidths(q_blocks_);
  const std::vector<int64_t> kv_widths = BlockWidths(kv_blocks_);
  const std::vector<int64_t> o_widths = MakeColumnBlocks(spec.d_out);
  for (const auto* widths : {&q_widths, &kv_widths, &o_widths}) {
    tile_stride_ = std::max(tile_stride_, *std::max_element(widths->begin(), widths->end()));
  }
  tile_stride_ = RoundUp(tile_stride_, kTileStep);
  const int64_t q_rows = spec.q_statistic_rows(), k_rows = spec.k_statistic_rows();
  const std::vector<float> bq =
      JoinBiases({{vectors.bq, q_width_}, {vectors.bq_statistic, q_rows}});
  const std::vector<float> bkv =
      JoinBiases({{vectors.bk, k_width_}, {vectors.bv, v_width_}, {vectors.bk_statistic, k_rows}});
  auto wq = PackedMatrix::Prepare(path, project_type_, bq,
                                  {q_width_ + q_rows, spec.d_model, q_widths, {}}, tile_stride_);
  if (!wq.ok()) return wq.status();
  auto wkv = PackedMatrix::Prepare(path, project_type_, bkv,
                                   {k_width_ + v_width_ + k_rows, spec.d_memory, kv_widths, {}},
                                   tile_stride_);
  if (!wkv.ok()) return wkv.status();
  auto wo = PackedMatrix::Prepare(path, project_type_, vectors.bo,
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

void AttentionLayer::KeepExtras(const LayerVectors& vectors) {
  const LayerSpec& spec = info_.spec;
  if (spec.rope.has_value()) rope_ = std::make_unique<RopeTable>(*spec.rope);
  if (spec.position_bias.has_value()) {
    position_bias_ = std::make_unique<PositionBias>(spec, vectors.position_bias);
  }
  sinks_ = vectors.sinks;
  q_norm_ = vectors.q_norm;
  k_norm_ = vectors.k_norm;
  q_norm_bias_ = vectors.q_norm_bias;
  k_norm_bias_ = vectors.k_norm_bias;
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
