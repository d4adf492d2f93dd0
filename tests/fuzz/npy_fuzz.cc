// SPDX-License-Identifier: Apache-2.0
#include "core/format/npy.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensor =
      headwise::ParseNpy(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!tensor.ok()) {
    headwise::CheckRefusal(tensor.status());
    return 0;
  }
  CHECK_EQ(tensor->data.size(), tensor->view().bytes());
  headwise::PlantFault(tensor->shape.size() > 2);
  return 0;
}
