// SPDX-License-Identifier: Apache-2.0
// A loaded layer: its spec and its weights, packed for the kernels.
#ifndef HEADWISE_CORE_LAYER_ATTENTION_LAYER_H_
#define HEADWISE_CORE_LAYER_ATTENTION_LAYER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/kernel/attend_kernels.h"
#include "core/kernel/head_blocks.h"
#include "core/kernel/kernel_path.h"
#include "core/kernel/packed_matrix.h"
#include "core/kernel/rope.h"
#include "core/layer/layer_info.h"
#include "core/layer/weights.h"

namespace headwise {

// Immutable after Create, shared by shared_ptr<const>: whoever holds it may use it from any thread,
// and unloading frees it when the last holder lets go.
class AttentionLayer {
 public:
  // Packs the matrices of a resolved spec (`info.spec`). UNIMPLEMENTED if `path` can't run here.
  static absl::StatusOr<std::shared_ptr<const AttentionLayer>> Create(LayerInfo info,
                                                                      const LayerMatrices& matrices,
                                                                      KernelPath path);

  const LayerInfo& info() const { return info_; }
  const LayerSpec& spec() const { return info_.spec; }

  // Projections: q = x wq, [k | v] = memory wkv, y = z wo; and what each block of columns holds.
  const PackedMatrix& wq() const { return wq_; }
  const PackedMatrix& wkv() const { return wkv_; }
  const PackedMatrix& wo() const { return wo_; }
  const std::vector<HeadBlock>& q_blocks() const { return q_blocks_; }
  const std::vector<HeadBlock>& kv_blocks() const { return kv_blocks_; }

  // Row stride of every tile that a projection writes, in floats.
  int64_t tile_stride() const { return tile_stride_; }

  // Tile products of head `r`'s attention.
  const AttendKernels& attend(int64_t r) const { return *attend_[static_cast<size_t>(r)]; }

  // Kernels of c_r = z_r W_O^(r) for a column block of `width`: [rows - 1].
  const std::vector<std::shared_ptr<const TileKernel>>& contribution(int64_t r,
                                                                     int64_t width) const {
    return contribution_.at({info_.spec.dv[static_cast<size_t>(r)], width});
  }

  // RoPE of a head of key width `dk`, or null.
  const RopeTable* rope(int64_t dk) const;

  // First feature of each head: of query head r in q and z, of key/value head g in k and v.
  const std::vector<int64_t>& q_offsets() const { return q_offsets_; }
  const std::vector<int64_t>& z_offsets() const { return z_offsets_; }
  const std::vector<int64_t>& k_offsets() const { return k_offsets_; }
  const std::vector<int64_t>& v_offsets() const { return v_offsets_; }

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
  absl::Status PackProjections(const LayerMatrices& matrices, KernelPath path);
  absl::Status MakeKernels(KernelPath path);

  LayerInfo info_;
  PackedMatrix wq_, wkv_, wo_;
  std::vector<HeadBlock> q_blocks_, kv_blocks_;
  int64_t tile_stride_ = 0;
  std::vector<std::shared_ptr<const AttendKernels>> attend_;  // [H]
  std::map<std::pair<int64_t, int64_t>, std::vector<std::shared_ptr<const TileKernel>>>
      contribution_;
  std::map<int64_t, std::unique_ptr<const RopeTable>> rope_;  // by dk
  std::vector<int64_t> q_offsets_, z_offsets_, k_offsets_, v_offsets_;
  std::vector<int64_t> kv_dk_, kv_dv_;  // [G]
  int64_t q_width_ = 0, k_width_ = 0, v_width_ = 0, z_width_ = 0;
  int64_t max_dv_ = 0;
  int64_t max_dk_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_LAYER_ATTENTION_LAYER_H_
