// SPDX-License-Identifier: Apache-2.0
// Compiled as C++23, whose strings can do this.
#include "core/base/resize.h"

namespace headwise {

void ResizeForOverwrite(std::string* bytes, size_t size) {
  bytes->resize_and_overwrite(size, [](char*, size_t count) { return count; });
}

}  // namespace headwise
