// SPDX-License-Identifier: Apache-2.0
// A folder of a test's own.
#ifndef HEADWISE_TESTS_SUPPORT_TEMP_DIR_H_
#define HEADWISE_TESTS_SUPPORT_TEMP_DIR_H_

#include <string>

#include "absl/strings/string_view.h"

namespace headwise {

// Made when constructed, removed with everything in it at the end. Ends the test program if the
// system refuses.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(absl::string_view name) const;

  // Writes a file, with the folders that its name needs, and returns its path.
  std::string Write(absl::string_view name, absl::string_view bytes) const;
  void MakeFolder(absl::string_view name) const;
  // A symbolic link at `name` that holds `target`.
  void Link(absl::string_view target, absl::string_view name) const;

 private:
  std::string path_;
};

// A whole file. Ends the test program if it can't be read.
std::string ReadBytes(const std::string& path);

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_TEMP_DIR_H_
