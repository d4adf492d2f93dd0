// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/family.h"

#include <cmath>

namespace headwise {

std::vector<const Family*> FindFamilies(absl::string_view model_type) {
  std::vector<const Family*> found;
  for (const absl::Span<const Family> layout :
       {BertFamilies(), EncoderFamilies(), EncoderDecoderFamilies(), GptFamilies(),
        FalconFamilies(), LlamaFamilies(), GemmaFamilies()}) {
    for (const Family& family : layout) {
      if (family.model_type == model_type) found.push_back(&family);
    }
  }
  return found;
}

std::vector<float> AlibiSlopes(int64_t heads, double max_bias) {
  int64_t whole = 1;
  while (whole * 2 <= heads) whole *= 2;
  std::vector<float> slopes;
  for (int64_t r = 0; r < heads; ++r) {
    // The heads beyond the power of two lie between the first ones.
    const double step =
        r < whole ? static_cast<double>(r + 1) : static_cast<double>(r - whole) + 0.5;
    slopes.push_back(static_cast<float>(std::exp2(-max_bias * step / static_cast<double>(whole))));
  }
  return slopes;
}

}  // namespace headwise
