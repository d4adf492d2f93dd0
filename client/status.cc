// SPDX-License-Identifier: Apache-2.0
#include "client/status.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace headwise::client {
namespace {

constexpr absl::string_view kUsagePayload = "headwise/usage";

}  // namespace

absl::Status UsageError(absl::string_view text) {
  absl::Status status = absl::InvalidArgumentError(text);
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

bool IsUsageError(const absl::Status& status) {
  return status.GetPayload(kUsagePayload).has_value();
}

std::string ErrorLine(absl::string_view program, const absl::Status& status) {
  std::string line = IsUsageError(status)
                         ? absl::StrCat(program, ": ", status.message())
                         : absl::StrCat(program, ": ", absl::StatusCodeToString(status.code()),
                                        ": ", status.message());
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  return IsUsageError(status) ? kExitUsage : kExitFailed;
}

}  // namespace headwise::client
