// SPDX-License-Identifier: Apache-2.0
// A folder that nothing opened through it can leave.
#ifndef HEADWISE_CORE_CHECKPOINT_ROOT_FOLDER_H_
#define HEADWISE_CORE_CHECKPOINT_ROOT_FOLDER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/format/file.h"

namespace headwise {

// Opens files and folders below one folder. Links are followed component by component, each opened
// without following, so that one which leads out is refused before anything outside is touched, and
// nobody can exchange a component in between. Thread-safe.
class RootFolder {
 public:
  // NOT_FOUND; PERMISSION_DENIED; INVALID_ARGUMENT (a NUL).
  static absl::StatusOr<std::unique_ptr<RootFolder>> Open(absl::string_view path);

  // `path` is relative to the root; "." is the root. NOT_FOUND; PERMISSION_DENIED (the system's);
  // OUT_OF_RANGE: leaves the root, whatever may be there outside; DATA_LOSS: not a regular file.
  absl::StatusOr<UniqueFd> OpenFile(absl::string_view path) const;
  absl::StatusOr<UniqueFd> OpenFolder(absl::string_view path) const;

  // Names of the folders right under `path`, sorted; links and hidden ones left out.
  absl::StatusOr<std::vector<std::string>> ListFolders(absl::string_view path) const;

 private:
  RootFolder(UniqueFd fd, std::string real_path);
  absl::StatusOr<UniqueFd> OpenBelow(absl::string_view path, int flags) const;

  const UniqueFd fd_;
  const std::string real_path_;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_CHECKPOINT_ROOT_FOLDER_H_
