// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share. Each defines libFuzzer's entry, which a replaying main calls too.
#ifndef HEADWISE_TESTS_FUZZ_FUZZ_H_
#define HEADWISE_TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/log/check.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// 0: the input may join the corpus; -1: it may not.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace headwise {

// What every refusal keeps to: one line, not endless.
inline void CheckRefusal(const absl::Status& status) {
  CHECK(status.message().find('\n') == absl::string_view::npos) << status;
  CHECK_LT(status.message().size(), size_t{8192}) << status;
}

// In a target built with HEADWISE_PLANTED_FAULT, writes past an allocation where `met`: a fuzzer
// that doesn't reach it sees nothing else either.
inline void PlantFault(bool met) {
#ifdef HEADWISE_PLANTED_FAULT
  const auto bytes = std::make_unique<volatile char[]>(8);
  bytes[met ? 8 : 0] = 1;
#else
  (void)met;
#endif
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_FUZZ_FUZZ_H_
