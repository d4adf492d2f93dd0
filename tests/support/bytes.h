// SPDX-License-Identifier: Apache-2.0
// Files made byte by byte, sound or not.
#ifndef HEADWISE_TESTS_SUPPORT_BYTES_H_
#define HEADWISE_TESTS_SUPPORT_BYTES_H_

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/tensor.h"

namespace headwise {

// The lowest `count` bytes of `value`, lowest first.
std::string LittleEndian(uint64_t value, int count);

// The bytes of numbers as they lie in memory.
template <typename T>
std::string Raw(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (values.size() > 0) std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

// The elements of a tensor that really holds T.
template <typename T>
std::vector<T> Elements(const OwnedTensor& tensor) {
  std::vector<T> values(tensor.data.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), values.size() * sizeof(T));
  return values;
}

// A safetensors file of this header and payload, without any check.
std::string SafetensorsBytes(absl::string_view header, absl::string_view payload);

// A sound safetensors file of F32 tensors filled with 1, 2, 3, …, in this order.
struct NamedShape {
  std::string name;
  Shape shape;
};
std::string FloatSafetensors(const std::vector<NamedShape>& tensors);

// A .npy file with this dictionary, version `major`.0.
std::string NpyBytes(absl::string_view dictionary, absl::string_view payload, int major = 1);

// A file or folder of tests/.
std::string TestDataPath(absl::string_view relative);

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_BYTES_H_
