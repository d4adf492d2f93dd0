// SPDX-License-Identifier: Apache-2.0
// Weights that are read while they are unpacked: the same numbers, each byte once.
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "core/layer/weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

// Random tensors of a layer, given as bytes in memory and as something to read.
class Source {
 public:
  void Add(TensorRole role, Shape shape, DType dtype) {
    const auto count = static_cast<size_t>(*NumElements(shape));
    const std::vector<float> values =
        RandomFloats(static_cast<int64_t>(count), static_cast<uint32_t>(owned_.size()) + 1);
    OwnedTensor tensor = FloatTensor(shape, values);
    if (dtype == DType::kBF16) {
      tensor.dtype = dtype;
      for (size_t i = 0; i < count; ++i) {
        const uint16_t bits = FloatToBf16(values[i]);
        std::memcpy(tensor.data.data() + i * sizeof(bits), &bits, sizeof(bits));
      }
      tensor.data.resize(count * sizeof(uint16_t));
    }
    std::vector<int> reads(tensor.data.size(), 0);
    owned_.push_back({std::move(tensor), std::move(reads)});
    Entry* const entry = &owned_.back();
    const TensorView view = entry->tensor.view();
    in_memory_.push_back({role, TensorRoleName(role), view});
    on_demand_.push_back({role, TensorRoleName(role), {view.dtype, view.shape, nullptr}});
    on_demand_.back().read = [entry](int64_t offset, absl::Span<char> out) -> absl::Status {
      std::memcpy(out.data(), entry->tensor.data.data() + offset, out.size());
      for (size_t i = 0; i < out.size(); ++i) ++entry->reads[static_cast<size_t>(offset) + i];
      return absl::OkStatus();
    };
  }

  const std::vector<RoleTensor>& in_memory() const { return in_memory_; }
  std::vector<RoleTensor>& on_demand() { return on_demand_; }

  void ExpectAllRead() const {
    for (const Entry& entry : owned_) {
      EXPECT_THAT(entry.reads, ::testing::Each(1));
    }
  }

 private:
  struct Entry {
    OwnedTensor tensor;
    std::vector<int> reads;  // of each byte
  };
  std::deque<Entry> owned_;  // stays in place as it grows
  std::vector<RoleTensor> in_memory_, on_demand_;
};

Shape Stored(const LayerSpec& spec, int64_t out, int64_t in) {
  return spec.orientation == Orientation::kOutIn ? Shape{out, in} : Shape{in, out};
}

// All tensors of a layer of `spec`, with biases.
void AddAll(const LayerSpec& spec, DType dtype, Source* source) {
  using enum TensorRole;
  const int64_t q = spec.q_width(), k = spec.k_width(), v = spec.v_width();
  const auto add = [&](TensorRole weight, TensorRole bias, int64_t out, int64_t in) {
    source->Add(weight, Stored(spec, out, in), dtype);
    source->Add(bias, {out}, dtype);
  };
  if (spec.fused_layout == FusedLayout::kSeparate) {
    add(kQWeight, kQBias, q, spec.d_model);
    add(kKWeight, kKBias, k, spec.d_memory);
    add(kVWeight, kVBias, v, spec.d_memory);
  } else {
    add(kQkvWeight, kQkvBias, q + k + v, spec.d_model);
  }
  add(kOWeight, kOBias, spec.d_out, spec.z_width());
}

void ExpectSame(const LayerMatrices& a, const LayerMatrices& b) {
  EXPECT_EQ(a.wq, b.wq);
  EXPECT_EQ(a.wk, b.wk);
  EXPECT_EQ(a.wv, b.wv);
  EXPECT_EQ(a.wo, b.wo);
  EXPECT_EQ(a.bq, b.bq);
  EXPECT_EQ(a.bk, b.bk);
  EXPECT_EQ(a.bv, b.bv);
  EXPECT_EQ(a.bo, b.bo);
}

TEST(WeightRows, ReadOnDemandGivesTheSameAndReadsEachByteOnce) {
  for (const Orientation orientation : {Orientation::kOutIn, Orientation::kInOut}) {
    for (const FusedLayout layout : {FusedLayout::kSeparate, FusedLayout::kBlocks,
                                     FusedLayout::kPerHead, FusedLayout::kPerGroup}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        LayerSpec spec = BasicSpec(24, 4);
        spec.orientation = orientation;
        spec.fused_layout = layout;
        if (layout != FusedLayout::kPerHead) spec.kv_heads = 2;
        spec = *ResolveSpec(spec);
        Source source;
        AddAll(spec, dtype, &source);
        const auto expected = UnpackWeights(spec, source.in_memory());
        const auto actual = UnpackWeights(spec, source.on_demand());
        ASSERT_TRUE(expected.ok() && actual.ok()) << expected.status() << actual.status();
        ExpectSame(*expected, *actual);
        source.ExpectAllRead();
      }
    }
  }
}

// More than the rows that are taken at once, and not a whole number of them.
TEST(WeightRows, LargeWeightsComeInPieces) {
  LayerSpec spec = *ResolveSpec(BasicSpec(900, 9));
  Source source;
  AddAll(spec, DType::kF32, &source);
  const auto expected = UnpackWeights(spec, source.in_memory());
  ASSERT_TRUE(expected.ok());
  std::vector<float> wq(expected->wq.size());
  int64_t pieces = 0, largest = 0;
  ASSERT_TRUE(UnpackVectors(spec, source.on_demand()).ok());
  const absl::Status status =
      UnpackRows(spec, source.on_demand(),
                 [&](WeightMatrix matrix, int64_t first, int64_t count, const float* rows) {
                   largest = std::max(largest, count * 900 * 4);
                   if (matrix != WeightMatrix::kQ) return;
                   std::memcpy(wq.data() + first * 900, rows, static_cast<size_t>(count * 900 * 4));
                   ++pieces;
                 });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(wq, expected->wq);
  EXPECT_GT(pieces, 2);
  EXPECT_LT(largest, 2 << 20);
  source.ExpectAllRead();
}

TEST(WeightRows, WhatReadingSaysIsPassedOn) {
  for (const Orientation orientation : {Orientation::kOutIn, Orientation::kInOut}) {
    LayerSpec spec = BasicSpec(24, 4);
    spec.orientation = orientation;
    spec = *ResolveSpec(spec);
    Source source;
    AddAll(spec, DType::kF32, &source);
    for (size_t i = 0; i < source.on_demand().size(); ++i) {
      std::vector<RoleTensor> tensors = source.in_memory();
      tensors[i] = source.on_demand()[i];
      tensors[i].read = [](int64_t, absl::Span<char>) { return absl::DataLossError("cut"); };
      EXPECT_EQ(UnpackWeights(spec, tensors).status(), absl::DataLossError("cut")) << i;
    }
  }
}

// Nothing is read of weights that will be refused.
TEST(WeightRows, ShapesAndDtypesAreCheckedBeforeAnythingIsRead) {
  const LayerSpec spec = *ResolveSpec(BasicSpec(24, 4));
  Source source;
  AddAll(spec, DType::kF32, &source);
  std::vector<RoleTensor> tensors = source.on_demand();
  for (RoleTensor& tensor : tensors) {
    tensor.read = [](int64_t, absl::Span<char>) { return absl::InternalError("read"); };
  }
  tensors[6].view.shape = {24, 25};
  EXPECT_EQ(
      UnpackVectors(spec, tensors).status(),
      absl::InvalidArgumentError("O_WEIGHT: O_WEIGHT must have shape [24, 24]; was [24, 25]"));
  tensors[6].view.shape = {24, 24};
  tensors[6].view.dtype = DType::kI32;
  EXPECT_EQ(UnpackVectors(spec, tensors).status(),
            absl::InvalidArgumentError("O_WEIGHT: dtype must be F32, BF16, F16 or F64; was I32"));
}

}  // namespace
}  // namespace headwise
