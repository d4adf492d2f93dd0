// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_ANSWER_DTYPE_H_
#define HEADWISE_CORE_ANSWER_DTYPE_H_

#include <vector>

#include "core/base/dtype.h"
#include "core/request.h"

namespace headwise {

// y of an answer, F32, in the numbers that the caller asked for: F32, BF16 or F16.
void ConvertY(DType dtype, std::vector<NamedOutput>* outputs);

}  // namespace headwise

#endif  // HEADWISE_CORE_ANSWER_DTYPE_H_
