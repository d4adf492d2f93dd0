// SPDX-License-Identifier: Apache-2.0
// audit: its spelling is settled, and so scripts learn from UNIMPLEMENTED, not from a usage error,
// that this version doesn't carry it out.
#include <string>

#include "absl/strings/str_cat.h"
#include "client/input.h"
#include "client/verb.h"

namespace headwise::client {
namespace {

absl::Status NotInThisVersion(absl::string_view verb) {
  return absl::UnimplementedError(
      absl::StrCat("verb: must be one that this version carries out; was ", verb));
}

std::vector<Flag> WithInput(std::vector<Flag> flags) {
  flags.insert(flags.begin(), InputFlags().begin(), InputFlags().end());
  return flags;
}

}  // namespace

std::vector<Verb> ReservedVerbs() {
  const auto verb = [](absl::string_view name, absl::string_view summary, std::vector<Flag> flags,
                       absl::Status (*run)(Session&)) {
    return Verb{.name = name,
                .arguments = "NAME",
                .summary = summary,
                .min_positional = 1,
                .max_positional = 1,
                .flags = std::move(flags),
                .run = run};
  };
  return {
      verb("audit", "checks a layer, or one's own tensors (not in this version)",
           WithInput({{"theirs", "F.safetensors", "one's own y, optionally q, k, v, scores, p, z"},
                      {"dtype", "D", "what one's own tensors were computed in"}}),
           [](Session&) { return NotInThisVersion("audit"); }),
  };
}

}  // namespace headwise::client
