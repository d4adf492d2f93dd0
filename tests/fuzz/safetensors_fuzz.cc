// SPDX-License-Identifier: Apache-2.0
// A whole safetensors file: what is accepted lies inside the file without gaps.
#include "core/base/dtype.h"
#include "core/format/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace headwise {
namespace {

void CheckEntries(const SafetensorsHeader& header, uint64_t file_bytes) {
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    CHECK_EQ(entry.begin, end);
    end = entry.end;
    const std::optional<DType> dtype = DTypeFromName(entry.dtype);
    PlantFault(!dtype.has_value());
    if (!dtype.has_value()) continue;
    CHECK_EQ(static_cast<uint64_t>(*NumElements(entry.shape)) * DTypeBytes(*dtype),
             entry.end - entry.begin);
  }
  CHECK_EQ(header.data_begin + end, file_bytes);
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto header = headwise::ParseSafetensorsHeader(bytes, size);
  if (header.ok()) {
    headwise::CheckEntries(*header, size);
  } else {
    CHECK(absl::IsDataLoss(header.status())) << header.status();
    headwise::CheckRefusal(header.status());
  }
  return 0;
}
