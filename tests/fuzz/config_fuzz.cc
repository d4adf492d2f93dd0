// SPDX-License-Identifier: Apache-2.0
// A config.json beside the tensors of a golden checkpoint. The first line of the input names the
// checkpoint's folder and the layer, "bert 0"; the rest is the file.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/checkpoint/checkpoint.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/bytes.h"

namespace headwise {
namespace {

// The tensors of a folder, read once; null for a folder that isn't there.
const std::vector<StoredTensorInfo>* TensorsOf(absl::string_view folder) {
  static auto* const known = new std::map<std::string, std::unique_ptr<Checkpoint>, std::less<>>;
  if (folder.size() > 32) return nullptr;
  auto found = known->find(folder);
  if (found == known->end()) {
    auto opened = Checkpoint::Open(TestDataPath("golden"), folder);
    if (!opened.ok()) return nullptr;
    found = known->emplace(std::string(folder), *std::move(opened)).first;
  }
  return &found->second->tensors();
}

void CheckPlan(const LayerPlan& plan, const std::vector<StoredTensorInfo>& stored) {
  CHECK_GT(plan.spec.q_width(), 0);
  CHECK(ResolveSpec(plan.spec).ok());
  for (const TensorUse& use : plan.tensors) {
    CHECK(std::any_of(stored.begin(), stored.end(), [&](const StoredTensorInfo& info) {
      return info.name == use.name;
    })) << use.name;
  }
  PlantFault(plan.spec.rope.has_value() && plan.spec.rope->base > 20000.0);
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const std::pair<absl::string_view, absl::string_view> lines =
      absl::StrSplit(text, absl::MaxSplits('\n', 1));
  const std::pair<absl::string_view, absl::string_view> target =
      absl::StrSplit(lines.first, absl::MaxSplits(' ', 1));
  const auto* const stored = headwise::TensorsOf(target.first);
  if (stored == nullptr) return -1;
  const auto plan = headwise::PlanLayer(lines.second, target.second, *stored);
  if (plan.ok()) {
    headwise::CheckPlan(*plan, *stored);
  } else {
    headwise::CheckRefusal(plan.status());
  }
  return 0;
}
