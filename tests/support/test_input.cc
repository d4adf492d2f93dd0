// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_input.h"

#include <cstring>
#include <utility>

namespace headwise {
namespace {

OwnedTensor IntegerTensor(const std::vector<int64_t>& values) {
  OwnedTensor tensor;
  tensor.dtype = DType::kI64;
  tensor.shape = {static_cast<int64_t>(values.size())};
  tensor.data.resize(values.size() * sizeof(int64_t));
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

Shape Rows(const std::vector<float>& values, int64_t width) {
  return {static_cast<int64_t>(values.size()) / width, width};
}

}  // namespace

TestInput::TestInput(int64_t width, const std::vector<float>& x, std::vector<int64_t> lengths)
    : owned_(std::make_shared<std::vector<std::shared_ptr<OwnedTensor>>>()) {
  input_.x = Own(FloatTensor(Rows(x, width), x));
  input_.lengths = std::move(lengths);
  input_.owner = owned_;
}

TensorView TestInput::Own(OwnedTensor tensor) {
  owned_->push_back(std::make_shared<OwnedTensor>(std::move(tensor)));
  return owned_->back()->view();
}

TestInput& TestInput::Memory(int64_t width, const std::vector<float>& memory,
                             std::vector<int64_t> lengths) {
  input_.memory = Own(FloatTensor(Rows(memory, width), memory));
  input_.memory_lengths = std::move(lengths);
  return *this;
}

TestInput& TestInput::BoolMask(MaskKind kind, MaskForm form, const std::vector<uint8_t>& mask) {
  OwnedTensor tensor;
  tensor.dtype = DType::kBool;
  tensor.shape = {static_cast<int64_t>(mask.size())};
  tensor.data = mask;
  input_.mask = MaskInput{kind, form, Own(std::move(tensor))};
  return *this;
}

TestInput& TestInput::Keep(MaskForm form, const std::vector<uint8_t>& mask) {
  return BoolMask(MaskKind::kKeep, form, mask);
}

TestInput& TestInput::Drop(MaskForm form, const std::vector<uint8_t>& mask) {
  return BoolMask(MaskKind::kDrop, form, mask);
}

TestInput& TestInput::Additive(MaskForm form, const std::vector<float>& mask) {
  const Shape shape = {static_cast<int64_t>(mask.size())};
  input_.mask = MaskInput{MaskKind::kAdditive, form, Own(FloatTensor(shape, mask))};
  return *this;
}

TestInput& TestInput::Positions(const std::vector<int64_t>& positions) {
  input_.positions = Own(IntegerTensor(positions));
  return *this;
}

TestInput& TestInput::MemoryPositions(const std::vector<int64_t>& positions) {
  input_.memory_positions = Own(IntegerTensor(positions));
  return *this;
}

TestInput& TestInput::Causal(CausalMode mode) {
  input_.causal = mode;
  return *this;
}

TestInput& TestInput::Window(int64_t window) {
  input_.window = window;
  return *this;
}

}  // namespace headwise
