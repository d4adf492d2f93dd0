// SPDX-License-Identifier: Apache-2.0
// An AttentionInput together with the numbers that it shows.
#ifndef HEADWISE_TESTS_SUPPORT_TEST_INPUT_H_
#define HEADWISE_TESTS_SUPPORT_TEST_INPUT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/tensor.h"
#include "core/request.h"

namespace headwise {

// Copies share the numbers, which stay alive as long as any AttentionInput made here.
class TestInput {
 public:
  // x is [N, width]; without lengths it is one sequence.
  TestInput(int64_t width, const std::vector<float>& x, std::vector<int64_t> lengths = {});

  TestInput& Memory(int64_t width, const std::vector<float>& memory,
                    std::vector<int64_t> lengths = {});
  TestInput& Keep(MaskForm form, const std::vector<uint8_t>& mask);
  TestInput& Drop(MaskForm form, const std::vector<uint8_t>& mask);
  TestInput& Additive(MaskForm form, const std::vector<float>& mask);
  TestInput& Positions(const std::vector<int64_t>& positions);
  TestInput& MemoryPositions(const std::vector<int64_t>& positions);
  TestInput& Causal(CausalMode mode);
  TestInput& Window(int64_t window);

  const AttentionInput& get() const { return input_; }

 private:
  TensorView Own(OwnedTensor tensor);
  TestInput& BoolMask(MaskKind kind, MaskForm form, const std::vector<uint8_t>& mask);

  std::shared_ptr<std::vector<std::shared_ptr<OwnedTensor>>> owned_;
  AttentionInput input_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_TEST_INPUT_H_
