// SPDX-License-Identifier: Apache-2.0
// A loaded layer: its spec and its weights, packed for the kernels.
#ifndef HEADWISE_CORE_LAYER_ATTENTION_LAYER_H_
#define HEADWISE_CORE_LAYER_ATTENTION_LAYER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/kernel/attend_kernels.h"
#include "core/kernel/head_blocks.h"
#include "core/kernel/kernel_path.h"
#include "core/kernel/packed_matrix.h"
#include "core/kernel/position_bias.h"
#include "core/kernel/rope.h"
#include "core/layer/layer_info.h"
#include "core/layer/weights.h"

namespace headwise {

// Immutable after Create or the last PackRows, shared by shared_ptr<const>: whoever holds it may
// use it from any thread, and unloading frees it when the last holder lets go.
class AttentionLayer {
 public:
  // A layer whose matrices are still to come by PackRows, in the numbers of `info.dtype` (F32, BF16
  // or I8); `info.spec` is resolved. UNIMPLEMENTED if `path` can't run here.
  static absl::StatusOr<std::shared_ptr<AttentionLayer>> Prepare(LayerInfo info,
                                                                 const LayerVectors& vectors,
                                                                 KernelPath path);

  // Rows [first, first + count) of a matrix, f32. Each row once, before the layer is shared.
  void PackRows(WeightMatrix matrix, int64_t first, int64_t count, const float* rows);

  // Before the rows come, of a layer in f32: it is to answer one input only, f32 x [count, D] and
  // memory [count, d_memory], and keeps the products with it instead of the weights. What wo meets
  // is known when the other matrices are through: z [count, sum of dv], before the first row of wo.
  void KeepProjectionsOf(const float* x, const float* memory, int64_t count);
  void KeepOutputsOf(const float* z, int64_t count);

  // Both at once.
  static absl::StatusOr<std::shared_ptr<AttentionLayer>> Create(LayerInfo info,
                                                                const LayerMatrices& matrices,
                                                                KernelPath path);

  // Before the layer is shared.
  void set_reduced_error(ReducedError error) { info_.reduced_error = std::move(error); }

  const LayerInfo& info() const { return info_; }
  const LayerSpec& spec() const { return info_.spec; }

  // Projections: [q | rows of its statistic] = x wq, [k | v | rows of k's] = memory wkv, y = z wo;
  // and what each block of columns holds.
  const PackedMatrix& wq() const { return wq_; }
  const PackedMatrix& wkv() const { return wkv_; }
  const PackedMatrix& wo() const { return wo_; }
  const std::vector<HeadBlock>& q_blocks() const { return q_blocks_; }
  const std::vector<HeadBlock>& kv_blocks() const { return kv_blocks_; }

  // Row stride of every tile that a projection writes, in floats; a multiple of kTileStep.
  int64_t tile_stride() const { return tile_stride_; }

  // Tile products of head `r`'s attention, and the numbers that they multiply: kF32, or kBf16 for
  // layers in BF16 and I8.
  const AttendKernels& attend(int64_t r) const { return *attend_[static_cast<size_t>(r)]; }
  TileType attend_type() const { return attend_type_; }

  const RopeTable* rope() const { return rope_.get(); }                       // or null
  const PositionBias* position_bias() const { return position_bias_.get(); }  // or null
  const std::vector<float>& sinks() const { return sinks_; }                  // [H] or empty

  // Norm weights of head `head` of q (or key/value head of k), or null; and their bias, or null.
  const float* norm_weights(ProjectionRole role, int64_t head) const;
  const float* norm_bias(ProjectionRole role, int64_t head) const;

  // A norm over the whole width of q (or k): the sums of squares that a row has, the heads' and one
  // of each block of its statistic's rows; and the features that they go over.
  int64_t square_sums(bool keys) const { return keys ? k_square_sums_ : q_square_sums_; }
  int64_t norm_width(bool keys) const {
    return keys ? k_width_ + spec().k_statistic_rows() : q_width_ + spec().q_statistic_rows();
  }

  // First feature of each head: of query head r in q and z, of key/value head g in k and v.
  const std::vector<int64_t>& q_offsets() const { return q_offsets_; }
  const std::vector<int64_t>& z_offsets() const { return z_offsets_; }
  const std::vector<int64_t>& k_offsets() const { return k_offsets_; }
  const std::vector<int64_t>& v_offsets() const { return v_offsets_; }
  // The same of key/value head g in PassData::kt, where its features are filled up to whole groups.
  const std::vector<int64_t>& kt_offsets() const { return kt_offsets_; }
  int64_t kt_width() const { return kt_width_; }
  int64_t kt_features(int64_t group) const {
    return RoundUp(kv_dk(group), Interleave(attend_type_));
  }
  // And in PassData::v: those in rows of keys, filled up to whole vectors, and those apart.
  const std::vector<int64_t>& value_offsets() const { return value_offsets_; }
  int64_t value_width() const { return value_width_; }
  int64_t value_features(int64_t group) const {
    return FeaturesInRows(kv_dv(group)) + FeaturesApart(kv_dv(group));
  }

  // The spec's sums and group widths, looked up once: kernels ask for them at every tile.
  int64_t q_width() const { return q_width_; }
  int64_t k_width() const { return k_width_; }
  int64_t v_width() const { return v_width_; }
  int64_t z_width() const { return z_width_; }
  int64_t kv_dk(int64_t group) const { return kv_dk_[static_cast<size_t>(group)]; }
  int64_t kv_dv(int64_t group) const { return kv_dv_[static_cast<size_t>(group)]; }

  int64_t max_dv() const { return max_dv_; }
  int64_t max_dk() const { return max_dk_; }

 private:
  explicit AttentionLayer(LayerInfo info);
  absl::Status PrepareProjections(const LayerVectors& vectors, KernelPath path);
  absl::Status MakeKernels(KernelPath path);
  void KeepExtras(const LayerVectors& vectors);
  const float* OfHead(const std::vector<float>& values, const std::vector<int64_t>& offsets,
                      int64_t head) const;

  LayerInfo info_;
  TileType project_type_ = TileType::kF32;
  TileType attend_type_ = TileType::kF32;
  PackedMatrix wq_, wkv_, wo_;
  std::vector<HeadBlock> q_blocks_, kv_blocks_;
  int64_t tile_stride_ = 0;
  std::vector<std::shared_ptr<const AttendKernels>> attend_;  // [H]
  std::unique_ptr<const RopeTable> rope_;
  std::unique_ptr<const PositionBias> position_bias_;
  std::vector<float> sinks_;
  std::vector<float> q_norm_, k_norm_, q_norm_bias_, k_norm_bias_;
  std::vector<int64_t> q_offsets_, z_offsets_, k_offsets_, v_offsets_, kt_offsets_, value_offsets_;
  std::vector<int64_t> kv_dk_, kv_dv_;  // [G]
  int64_t q_width_ = 0, k_width_ = 0, v_width_ = 0, z_width_ = 0, kt_width_ = 0;
  int64_t value_width_ = 0;
  int64_t q_square_sums_ = 0, k_square_sums_ = 0;
  int64_t max_dv_ = 0;
  int64_t max_dk_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_LAYER_ATTENTION_LAYER_H_
