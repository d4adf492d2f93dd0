// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_BASE_RESIZE_H_
#define HEADWISE_CORE_BASE_RESIZE_H_

#include <cstddef>
#include <string>

namespace headwise {

// Makes `bytes` of a string without writing them: for outputs of many megabytes, every byte of
// which is written later and by several threads. What they hold until then is undefined.
void ResizeForOverwrite(std::string* bytes, size_t size);

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_RESIZE_H_
