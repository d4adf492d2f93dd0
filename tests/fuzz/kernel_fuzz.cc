// SPDX-License-Identifier: Apache-2.0
// Every kernel path gives the same answer, or all refuse: a layer and an input made from the bytes,
// run on the microkernel and on primitives.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/engine.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/engine_helper.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

// Numbers from the input, in order; zeros behind its end.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  int64_t Up(int64_t low, int64_t high) {
    const int64_t byte = at_ < size_ ? data_[at_++] : 0;
    return low + byte % (high - low + 1);
  }
  bool Yes() { return Up(0, 1) == 1; }

 private:
  const uint8_t* const data_;
  const size_t size_;
  size_t at_ = 0;
};

TestLayer ChooseLayer(Choices* choices) {
  const int64_t kv_heads = choices->Up(1, 3);
  const int64_t heads = kv_heads * choices->Up(1, 2);
  LayerSpec spec = BasicSpec(heads * choices->Up(1, 17), heads);
  spec.kv_heads = kv_heads;
  spec.mask.causal = choices->Yes();
  if (choices->Yes()) spec.mask.window = choices->Up(1, 40);
  if (choices->Yes()) spec.softcap = 2.0;
  if (choices->Yes()) spec.scale = 0.25 * static_cast<double>(choices->Up(0, 8));
  spec.sinks = choices->Yes();
  return RandomLayer(spec, static_cast<uint32_t>(choices->Up(0, 255)), choices->Yes());
}

// Lengths beyond a tile of 64 queries and a block of 512 keys are among them.
TestInput ChooseInput(const LayerSpec& spec, Choices* choices) {
  std::vector<int64_t> lengths;
  int64_t rows = 0, keys = 0, pairs = 0;
  for (int64_t b = choices->Up(1, 3); b > 0; --b) {
    lengths.push_back(choices->Up(0, 3) == 0 ? choices->Up(60, 140) : choices->Up(0, 20));
    rows += lengths.back();
    pairs += lengths.back() * lengths.back();
  }
  TestInput input(spec.d_model, RandomFloats(rows * spec.d_model, 5), lengths);
  keys = rows;
  if (choices->Up(0, 3) == 0) {
    std::vector<int64_t> memory(lengths.size(), choices->Up(0, 1) == 0 ? 520 : choices->Up(0, 9));
    keys = memory.front() * static_cast<int64_t>(memory.size());
    pairs = rows * memory.front();
    input.Memory(spec.d_model, RandomFloats(keys * spec.d_model, 6), memory);
    input.Causal(choices->Yes() ? CausalMode::kTopLeft : CausalMode::kBottomRight);
  }
  const int64_t mask = choices->Up(0, 4);
  const auto bits = [&](int64_t count) {
    const int64_t step = choices->Up(1, 7);
    std::vector<uint8_t> keep;
    for (int64_t i = 0; i < count; ++i) keep.push_back(i % step == 0 ? 1 : 0);
    return keep;
  };
  if (mask == 1) input.Keep(MaskForm::kKey, bits(keys));
  if (mask == 2) input.Drop(MaskForm::kPair, bits(pairs));
  if (mask == 3) input.Additive(MaskForm::kPair, RandomFloats(pairs, 7, 3.0f));
  return input;
}

Engine* EngineOn(KernelPath path) {
  static auto* const best = MakeEngine(1, {}, KernelPath::kAuto).release();
  static auto* const primitive = MakeEngine(1, {}, KernelPath::kPrimitive).release();
  return path == KernelPath::kPrimitive ? primitive : best;
}

double LargestOf(const std::vector<float>& values) {
  double largest = 1.0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

void CheckAgree(const ForwardResult& a, const ForwardResult& b, double tolerance) {
  const auto left = ByName(a.outputs), right = ByName(b.outputs);
  CHECK_EQ(left.size(), right.size());
  for (const auto& [name, values] : left) {
    const std::vector<float>& others = right.at(name);
    CHECK_EQ(values.size(), others.size()) << name;
    const double allowed = tolerance * LargestOf(values);
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(double{values[i]} - double{others[i]});
      CHECK(difference <= allowed)
          << absl::StrCat(name, " at ", i, ": ", values[i], " and ", others[i]);
    }
  }
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headwise;
  Choices choices(data, size);
  const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kI8};
  // Rounding in bf16 falls apart where sums of another order land on another side of a half.
  const double tolerances[] = {2e-5, 5e-2, 5e-2};
  const int64_t dtype = choices.Up(0, 2);
  const TestLayer layer = ChooseLayer(&choices);
  const TestInput input = ChooseInput(layer.spec, &choices);
  std::vector<absl::StatusOr<ForwardResult>> answers;
  for (const KernelPath path : {KernelPath::kAuto, KernelPath::kPrimitive}) {
    Engine* const engine = EngineOn(path);
    Load(engine, "layer", layer, dtypes[dtype]);
    answers.push_back(ForwardNow(engine, MakeForward("layer", input, kAllOutputs)));
  }
  CHECK_EQ(answers[0].status().code(), answers[1].status().code());
  if (!answers[0].ok()) {
    CheckRefusal(answers[0].status());
    return 0;
  }
  CheckAgree(*answers[0], *answers[1], tolerances[dtype]);
  PlantFault(layer.spec.softcap.has_value() && layer.spec.sinks && layer.spec.mask.causal &&
             answers[0]->pass.batch_tokens > 60);
  return 0;
}
