// SPDX-License-Identifier: Apache-2.0
// The file of `load --spec`: JSON that the client reads and a spec that the server resolves.
#include "client/upload.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/spec_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto wire =
      headwise::client::ParseSpec(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!wire.ok()) {
    headwise::CheckRefusal(wire.status());
    return 0;
  }
  const auto spec = headwise::CheckWireSpec(*wire);
  headwise::PlantFault(spec.ok() && spec->mask.window.value_or(0) > 3);
  return 0;
}
