// SPDX-License-Identifier: Apache-2.0
#include "core/audit/mistakes.h"

#include <utility>

namespace headwise {

AuditCase RightCase(const LayerSpec& spec, std::shared_ptr<const LayerMatrices> matrices,
                    std::shared_ptr<const ReferenceInput> input) {
  AuditCase right;
  right.spec = spec;
  right.matrices = std::move(matrices);
  right.plan.reach =
      Reach{.causal = input->causal, .bottom_right = input->bottom_right, .window = input->window};
  right.input = std::move(input);
  return right;
}

const std::vector<Mistake>& Mistakes() {
  static const auto* all = [] {
    auto* list = new std::vector<Mistake>;
    for (auto part : {SoftmaxMistakes, HeadMistakes, WeightMistakes, MaskMistakes, PositionMistakes,
                      NumberMistakes}) {
      for (const Mistake& mistake : part()) list->push_back(mistake);
    }
    return list;
  }();
  return *all;
}

const Mistake* FindMistake(absl::string_view id) {
  for (const Mistake& mistake : Mistakes()) {
    if (mistake.id == id) return &mistake;
  }
  return nullptr;
}

}  // namespace headwise
