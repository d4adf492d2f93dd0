// SPDX-License-Identifier: Apache-2.0
#include "tests/support/bytes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace headwise {

std::string LittleEndian(uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

std::string SafetensorsBytes(absl::string_view header, absl::string_view payload) {
  return absl::StrCat(LittleEndian(header.size(), 8), header, payload);
}

std::string FloatSafetensors(const std::vector<NamedShape>& tensors) {
  std::vector<std::string> entries;
  std::string payload;
  for (const NamedShape& tensor : tensors) {
    const size_t begin = payload.size();
    const int64_t count = NumElements(tensor.shape).value();
    for (int64_t i = 0; i < count; ++i) payload += Raw<float>({static_cast<float>(i + 1)});
    entries.push_back(absl::StrCat("\"", tensor.name, R"(":{"dtype":"F32","shape":[)",
                                   absl::StrJoin(tensor.shape, ","), R"(],"data_offsets":[)", begin,
                                   ",", payload.size(), "]}"));
  }
  return SafetensorsBytes(absl::StrCat("{", absl::StrJoin(entries, ","), "}"), payload);
}

std::string NpyBytes(absl::string_view dictionary, absl::string_view payload, int major) {
  const int length_bytes = major == 1 ? 2 : 4;
  return absl::StrCat("\x93NUMPY", LittleEndian(static_cast<uint64_t>(major), 1),
                      LittleEndian(0, 1), LittleEndian(dictionary.size(), length_bytes), dictionary,
                      payload);
}

std::string TestDataPath(absl::string_view relative) {
  return absl::StrCat(HEADWISE_TEST_DATA, "/", relative);
}

}  // namespace headwise
