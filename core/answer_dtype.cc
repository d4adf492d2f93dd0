// SPDX-License-Identifier: Apache-2.0
#include "core/answer_dtype.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/kernel/quantise.h"

namespace headwise {

void ConvertY(DType dtype, std::vector<NamedOutput>* outputs) {
  for (NamedOutput& output : *outputs) {
    if (output.name != "y" || dtype == output.dtype) continue;
    const size_t count = output.data.size() / sizeof(float);
    std::string narrow(count * sizeof(uint16_t), 0);
    auto* place = reinterpret_cast<uint16_t*>(narrow.data());
    if (dtype == DType::kBF16) {
      ToBf16(output.floats(), static_cast<int64_t>(count), place);
    } else {
      for (size_t i = 0; i < count; ++i) place[i] = FloatToF16(output.floats()[i]);
    }
    output.dtype = dtype;
    output.data = std::move(narrow);
  }
}

}  // namespace headwise
