// SPDX-License-Identifier: Apache-2.0
// The table of families: one row a model_type, one file a layout. Constant data; thread-safe.
#ifndef HEADWISE_CORE_CHECKPOINT_FAMILY_H_
#define HEADWISE_CORE_CHECKPOINT_FAMILY_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/checkpoint/config.h"
#include "core/layer/spec.h"
#include "core/layer/weights.h"

namespace headwise {

// A tensor of the block and its name after the block's.
struct RoleName {
  TensorRole role;
  absl::string_view name;
};

// Where an attention block's tensors are: PREFIX + head + I + tail + "." + name, PREFIX empty or
// ending with a dot and found by looking at the names.
struct BlockLayout {
  absl::string_view head;  // "encoder.layer."
  absl::string_view tail;  // ".attention"
  Orientation orientation;
  FusedLayout fused_layout;
  absl::Span<const RoleName> weights;
  absl::Span<const RoleName> biases;
  absl::Span<const absl::string_view> ignored;  // of the block, but no part of the layer
  absl::string_view x_enters;
  absl::string_view y_leaves;
};

// config.json's spellings of the sizes.
struct SizeKeys {
  KeyAliases d_model;
  KeyAliases heads;
  KeyAliases kv_heads;  // empty: G = H
  KeyAliases head_dim;  // empty: D/H
  KeyAliases layers;
};

// What the family's configuration class takes for an absent key.
struct SizeDefaults {
  int64_t d_model;
  int64_t heads;
  std::optional<int64_t> kv_heads;  // absent: H
  int64_t layers;
};

// A setting that is carried out for one value only. Absent and null mean that value.
struct FixedSetting {
  absl::string_view key;
  absl::string_view json;
};

enum class MaskRule {
  kCausalIfDecoder,  // causal where is_decoder
  kCausal,
};

struct WindowRule {
  absl::string_view key;  // null: no window
  std::optional<int64_t> absent;
};

struct Family {
  absl::string_view model_type;
  const BlockLayout* block;
  const SizeKeys* keys;
  SizeDefaults defaults;
  absl::Span<const FixedSetting> fixed;
  MaskRule mask;
  std::optional<WindowRule> window;
  // The key that says whether the block's biases are there; empty: `biases_if_no_key`.
  absl::string_view bias_key;
  bool biases_if_no_key;
  std::optional<RopeLayout> rope;
  double rope_base_if_absent;
};

// Rows of one layout each.
absl::Span<const Family> BertFamilies();
absl::Span<const Family> LlamaFamilies();

// The row of a model_type; nullptr if there is none.
const Family* FindFamily(absl::string_view model_type);

}  // namespace headwise

#endif  // HEADWISE_CORE_CHECKPOINT_FAMILY_H_
