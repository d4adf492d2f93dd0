// SPDX-License-Identifier: Apache-2.0
// The table of families: one row a model_type (and part of it), one file a layout. Constant data;
// thread-safe.
#ifndef HEADWISE_CORE_CHECKPOINT_FAMILY_H_
#define HEADWISE_CORE_CHECKPOINT_FAMILY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
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
  Orientation orientation = Orientation::kOutIn;
  FusedLayout fused_layout = FusedLayout::kSeparate;  // unless Family::adjust says otherwise
  absl::Span<const RoleName> tensors;                 // always there
  absl::Span<const RoleName> biases = {};             // by Family::biases
  absl::Span<const RoleName> norms = {};              // by Family::norm
  absl::Span<const RoleName> shared = {};             // of all blocks: PREFIX + name
  absl::Span<const absl::string_view> ignored = {};   // of the block, but no part of the layer
  absl::string_view x_enters;
  absl::string_view y_leaves;
};

// config.json's spellings of the sizes.
struct SizeKeys {
  KeyAliases d_model;
  KeyAliases heads;
  KeyAliases kv_heads;  // empty: G = H
  KeyAliases head_dim;  // empty: D/H
  KeyAliases layers;    // a later spelling also where an earlier one is null
};

// What the family's configuration class takes for an absent key.
struct SizeDefaults {
  int64_t d_model = 0;
  int64_t heads = 0;
  std::optional<int64_t> kv_heads = std::nullopt;  // absent: H
  int64_t layers = 0;
  // Absent: D/H. A checkpoint whose tensors fit D/H only gets that, as its config.json was written
  // by a class without this default.
  std::optional<int64_t> head_dim = std::nullopt;
};

enum class MaskRule {
  kNone,
  kCausal,
  kCausalIfDecoder,  // causal where is_decoder
};

// Which layers slide, unless layer_types says.
enum class WindowLayers {
  kAll,
  kEven,        // 0, 2, 4, …
  kFromLayer,   // from max_window_layers on, and only with use_sliding_window
  kAllButNth,   // all but each sliding_window_pattern-th
  kAllButEach,  // all but the multiples of global_attn_every_n_layers
};

struct WindowRule {
  absl::string_view key;  // null: no window
  std::optional<int64_t> absent;
  WindowLayers layers = WindowLayers::kAll;
  int64_t period = 0;   // kFromLayer, kAllButNth, kAllButEach: for an absent key
  bool halved = false;  // the value is the width of both sides together
};

// A switch in config.json; an empty key: always as `absent`.
struct Switch {
  absl::string_view key = "";
  bool absent = false;
};

struct NormRule {
  Switch used;
  NormKind kind;
  QkNormSpan span;
  absl::string_view epsilon_key;
  double epsilon_absent;
  bool tensor_per_head = false;  // names hold "{}" for the head
};

// The norm that x went through before the block: tensors PREFIX + head + I + "." + name + ".weight"
// and, of a LayerNorm that has one, ".bias". Kept where the checkpoint holds them.
struct PreNormRule {
  absl::string_view name;
  NormKind kind = NormKind::kLayerNorm;
  absl::string_view epsilon_key = "";  // empty: no key, always as absent
  double epsilon_absent = 1e-5;
  Switch used = {"", true};
  absl::string_view other_name = "";  // in other files of the family
};

struct ScaleRule {
  enum class Kind { kOverRootOfDk, kOne, kValue, kOverRootOfValue };
  Kind kind = Kind::kOverRootOfDk;
  absl::string_view key = "";
  double absent = 0.0;
};

// The rotary embedding of files before rope_parameters. Sliding layers have a base of their own,
// and no scaling, where `sliding_base_key` is given.
struct RopeRule {
  RopeLayout layout = RopeLayout::kHalf;
  KeyAliases base_keys;
  double base_absent = 10000.0;
  absl::string_view sliding_base_key = "";
  double sliding_base_absent = 0.0;
  bool null_sliding_base_is_full = false;
  absl::string_view share_key = "partial_rotary_factor";
  double share_absent = 1.0;
  double max_positions_absent = 2048.0;            // of max_position_embeddings
  std::optional<double> original_absent = {};      // of original_max_position_embeddings
  bool calls_longrope_yarn = false;                // "yarn" and "su" mean longrope
  const RopeSpec& (*without_any_key)() = nullptr;  // scaling of a file that says nothing
};

struct Family {
  absl::string_view model_type;
  absl::string_view part =
      "";  // "encoder"; empty: the family has no parts, or this is the main one
  absl::string_view section = "";  // the object of config.json with the settings; empty: itself
  const BlockLayout* block;
  const BlockLayout* other_block = nullptr;  // the same under other names, for other files
  const SizeKeys* keys;
  SizeDefaults defaults;
  absl::Span<const FixedSetting> fixed = {};
  MaskRule mask = MaskRule::kNone;
  std::optional<WindowRule> window = std::nullopt;
  Switch biases = {};
  std::optional<RopeRule> rope = std::nullopt;
  std::optional<NormRule> norm = std::nullopt;
  std::optional<PreNormRule> pre_norm = std::nullopt;  // none: x is the residual stream itself
  ScaleRule scale = {};
  // Blocks are groups that layers share: layer N has block floor(N * groups / layers).
  absl::string_view groups_key = "";
  // What no other field says; called before RoPE is read, which a position bias replaces.
  absl::Status (*adjust)(const ConfigObject& config, int64_t layer, LayerSpec* spec) = nullptr;
};

// Rows of one layout each.
absl::Span<const Family> BertFamilies();
absl::Span<const Family> EncoderFamilies();
absl::Span<const Family> EncoderDecoderFamilies();
absl::Span<const Family> GptFamilies();
absl::Span<const Family> FalconFamilies();
absl::Span<const Family> LlamaFamilies();
absl::Span<const Family> GemmaFamilies();

// The rows of a model_type, in the order in which its parts are listed; none if it is unknown.
std::vector<const Family*> FindFamilies(absl::string_view model_type);

// ALiBi's slopes of H heads: 2^(-max_bias k / c) for the largest power of two c <= H, then the odd
// ones of 2c.
std::vector<float> AlibiSlopes(int64_t heads, double max_bias);

}  // namespace headwise

#endif  // HEADWISE_CORE_CHECKPOINT_FAMILY_H_
