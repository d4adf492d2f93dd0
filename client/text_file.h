// SPDX-License-Identifier: Apache-2.0
// Whole text files. Errors are the system's, with the field and the file named.
#ifndef HEADWISE_CLIENT_TEXT_FILE_H_
#define HEADWISE_CLIENT_TEXT_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headwise::client {

absl::StatusOr<std::string> ReadTextFile(absl::string_view field, const std::string& file);
absl::Status WriteTextFile(absl::string_view field, const std::string& file,
                           absl::string_view text);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_TEXT_FILE_H_
