// SPDX-License-Identifier: Apache-2.0
// "[PART.]I": which attention layer of a checkpoint is meant.
#ifndef HEADWISE_CORE_CHECKPOINT_LAYER_ID_H_
#define HEADWISE_CORE_CHECKPOINT_LAYER_ID_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headwise {

struct LayerId {
  std::string part;  // encoder, decoder, cross, text, vision; empty: none given
  int64_t index = 0;
};

// At most 9 digits without leading zeros; nullopt for any other text.
std::optional<int64_t> ParseLayerIndex(absl::string_view digits);

// INVALID_ARGUMENT for a text of another form.
absl::StatusOr<LayerId> ParseLayerId(absl::string_view text);

}  // namespace headwise

#endif  // HEADWISE_CORE_CHECKPOINT_LAYER_ID_H_
