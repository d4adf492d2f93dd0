// SPDX-License-Identifier: Apache-2.0
// The table of mistakes, and the page that lists it.
#include "core/audit/mistakes.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

// What the first release must name, at the least.
constexpr const char* kStarred[] = {"softmax_heads",
                                    "softmax_queries",
                                    "reshape_split",
                                    "reshape_merge",
                                    "reshape_both",
                                    "reshape_attend",
                                    "concat_features",
                                    "concat_batch",
                                    "heads_reversed",
                                    "heads_rolled",
                                    "heads_shuffled",
                                    "scale_none",
                                    "scale_sqrt_width",
                                    "scale_sqrt_heads",
                                    "scale_twice",
                                    "wo_missing",
                                    "wo_transposed",
                                    "fused_l1",
                                    "fused_l2",
                                    "mask_inverted",
                                    "causal_alignment",
                                    "rope_layout",
                                    "gqa_tiled",
                                    "alibi_scaled",
                                    "cap_after_mask",
                                    "sink_dropped",
                                    "bias_q",
                                    "bias_k",
                                    "bias_v",
                                    "bias_o",
                                    "ablation_after_wo",
                                    "int8_weight_tensor",
                                    "int8_x_batch",
                                    "int8_weight_axis",
                                    "int8_wrap16",
                                    "int8_u8_weights",
                                    "bf16_sums"};

TEST(Mistakes, HaveIdsOfTheirOwn) {
  std::set<std::string> ids;
  for (const Mistake& mistake : Mistakes()) {
    EXPECT_TRUE(ids.insert(std::string(mistake.id)).second) << mistake.id;
    EXPECT_FALSE(mistake.text.empty()) << mistake.id;
    EXPECT_FALSE(mistake.fix.empty()) << mistake.id;
    EXPECT_NE(mistake.changes, 0u) << mistake.id;
  }
  for (const char* id : kStarred) EXPECT_NE(FindMistake(id), nullptr) << id;
  EXPECT_EQ(FindMistake("no_such_mistake"), nullptr);
}

TEST(Mistakes, AreListedInTheDocuments) {
  const std::string page = ReadBytes(TestDataPath("../docs/audit.md"));
  for (const Mistake& mistake : Mistakes()) {
    const std::string line =
        absl::StrCat("| `", mistake.id, "` | ", mistake.text, " | ", mistake.fix, " |\n");
    EXPECT_TRUE(absl::StrContains(page, line)) << "docs/audit.md lacks " << line;
  }
}

}  // namespace
}  // namespace headwise
