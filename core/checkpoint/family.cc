// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/family.h"

namespace headwise {

const Family* FindFamily(absl::string_view model_type) {
  for (const absl::Span<const Family> layout : {BertFamilies(), LlamaFamilies()}) {
    for (const Family& family : layout) {
      if (family.model_type == model_type) return &family;
    }
  }
  return nullptr;
}

}  // namespace headwise
