// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/layer_id.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/format/file.h"

namespace headwise {
namespace {

constexpr std::array<absl::string_view, 5> kParts = {"encoder", "decoder", "cross", "text",
                                                     "vision"};

}  // namespace

std::optional<int64_t> ParseLayerIndex(absl::string_view digits) {
  if (digits.empty() || digits.size() > 9 || (digits.size() > 1 && digits[0] == '0') ||
      !std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit)) {
    return std::nullopt;
  }
  int64_t index = 0;
  if (!absl::SimpleAtoi(digits, &index)) return std::nullopt;
  return index;
}

absl::StatusOr<LayerId> ParseLayerId(absl::string_view text) {
  const size_t dot = text.find('.');
  LayerId id;
  absl::string_view digits = text;
  bool known_part = true;
  if (dot != absl::string_view::npos) {
    id.part = std::string(text.substr(0, dot));
    digits = text.substr(dot + 1);
    known_part = std::find(kParts.begin(), kParts.end(), id.part) != kParts.end();
  }
  const std::optional<int64_t> index = ParseLayerIndex(digits);
  if (!known_part || !index) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer: must be [PART.]I, PART encoder, decoder, cross, text or vision; was \"",
        Printable(text), "\""));
  }
  id.index = *index;
  return id;
}

}  // namespace headwise
