// SPDX-License-Identifier: Apache-2.0
#include "client/text_file.h"

#include <cerrno>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace headwise::client {

absl::StatusOr<std::string> ReadTextFile(absl::string_view field, const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.is_open() && !stream.bad()) return text;
  return absl::ErrnoToStatus(errno,
                             absl::StrCat(field, ": must be a file that can be read; was ", file));
}

absl::Status WriteTextFile(absl::string_view field, const std::string& file,
                           absl::string_view text) {
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << text << std::flush;
  if (stream.good()) return absl::OkStatus();
  return absl::ErrnoToStatus(
      errno, absl::StrCat(field, ": must be a file that can be written; was ", file));
}

}  // namespace headwise::client
