// SPDX-License-Identifier: Apache-2.0
// The table of mistakes that attention code makes, each a small change of the staged computation.
#ifndef HEADWISE_CORE_AUDIT_MISTAKES_H_
#define HEADWISE_CORE_AUDIT_MISTAKES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/layer/spec.h"
#include "core/layer/weights.h"
#include "core/reference/reference_input.h"
#include "core/reference/stage_plan.h"
#include "core/reference/staged_layer.h"

namespace headwise {

// A computation: a layer, its input and how the stages are carried out. `gates` [N, H] and
// `ablated` (heads by axis) are what the caller took out on purpose.
struct AuditCase {
  LayerSpec spec;
  std::shared_ptr<const LayerMatrices> matrices;
  std::shared_ptr<const ReferenceInput> input;
  StagePlan plan;
  std::vector<double> gates;
  std::vector<int64_t> ablated;
  // Names what the products x W depend on, beside the layer and the input as they came; cases of
  // one audit with the same name share them.
  std::string projection_key;
};

// The right computation. plan.reach is set.
AuditCase RightCase(const LayerSpec& spec, std::shared_ptr<const LayerMatrices> matrices,
                    std::shared_ptr<const ReferenceInput> input);

// What a mistake changes; two that change the same can't be made together.
enum ChangeBit : uint32_t {
  kChangesWeights = 1u << 0,
  kChangesSplit = 1u << 1,
  kChangesRope = 1u << 2,
  kChangesGroups = 1u << 3,
  kChangesScale = 1u << 4,
  kChangesPositionBias = 1u << 5,
  kChangesCap = 1u << 6,
  kChangesReach = 1u << 7,
  kChangesMask = 1u << 8,
  kChangesSoftmax = 1u << 9,
  kChangesSink = 1u << 10,
  kChangesMerge = 1u << 11,
  kChangesOutWeights = 1u << 12,
  kChangesOutBias = 1u << 13,
  kChangesQBias = 1u << 14,
  kChangesKBias = 1u << 15,
  kChangesVBias = 1u << 16,
  kChangesAblation = 1u << 17,
  kChangesDropout = 1u << 18,
  kChangesResidual = 1u << 19,
  kChangesNumbers = 1u << 20,
  kChangesPadding = 1u << 21,
  kChangesInput = 1u << 22,
};

struct Mistake {
  absl::string_view id;
  absl::string_view text;  // what goes wrong
  absl::string_view fix;   // what to change
  uint32_t changes = 0;
  // Makes form 0, 1, … of the mistake in `c`; false where there is no such form, or where this
  // layer and input leave no room for it. Null: found in its own way (heads_shuffled, bf16_sums).
  bool (*apply)(int64_t form, AuditCase* c) = nullptr;
};

// All of them, in the order of the list of mistakes. Constant; thread-safe.
const std::vector<Mistake>& Mistakes();

// Null if there is none of this id.
const Mistake* FindMistake(absl::string_view id);

// The parts of the table.
absl::Span<const Mistake> SoftmaxMistakes();
absl::Span<const Mistake> HeadMistakes();
absl::Span<const Mistake> WeightMistakes();
absl::Span<const Mistake> MaskMistakes();
absl::Span<const Mistake> PositionMistakes();
absl::Span<const Mistake> NumberMistakes();

}  // namespace headwise

#endif  // HEADWISE_CORE_AUDIT_MISTAKES_H_
