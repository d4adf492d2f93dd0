// SPDX-License-Identifier: Apache-2.0
#include "core/format/tensor_file.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TensorFile, NamesSplitAtTheLastSuffix) {
  const auto split = [](absl::string_view text) {
    const TensorFileName name = ParseTensorFileName(text);
    return std::vector<std::string>{name.file, name.name};
  };
  EXPECT_THAT(split("a.npy"), ElementsAre("a.npy", ""));
  EXPECT_THAT(split("a.safetensors"), ElementsAre("a.safetensors", ""));
  EXPECT_THAT(split("a.safetensors:layer0.x"), ElementsAre("a.safetensors", "layer0.x"));
  EXPECT_THAT(split("a.safetensors:b.safetensors:c:d"),
              ElementsAre("a.safetensors:b.safetensors", "c:d"));
  EXPECT_THAT(split("a:b.npy"), ElementsAre("a:b.npy", ""));
  EXPECT_THAT(split("a.safetensors:"), ElementsAre("a.safetensors", ""));
}

TEST(TensorFile, PicksTheNamedTheOnlyAndX) {
  const TempDir dir;
  const std::string one = dir.Write("one.safetensors", FloatSafetensors({{"only", {3}}}));
  const std::string two = dir.Write("two.safetensors", FloatSafetensors({{"a", {2}}, {"x", {4}}}));
  const std::string other =
      dir.Write("other.safetensors", FloatSafetensors({{"a", {2}}, {"b", {4}}}));
  EXPECT_THAT(ReadTensorFile(one)->shape, ElementsAre(3));
  EXPECT_THAT(ReadTensorFile(two)->shape, ElementsAre(4));
  EXPECT_THAT(ReadTensorFile(two + ":a")->shape, ElementsAre(2));
  const absl::Status ambiguous = ReadTensorFile(other).status();
  EXPECT_EQ(ambiguous.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ambiguous.message()), HasSubstr("FILE:NAME"));
  EXPECT_EQ(ReadTensorFile(other + ":c").status().code(), absl::StatusCode::kNotFound);
}

TEST(TensorFile, NpyAndOtherFiles) {
  const TempDir dir;
  dir.Write("x.npy", NpyBytes("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
                              Raw<float>({2.0f})));
  EXPECT_THAT(Elements<float>(*ReadTensorFile(dir.Path("x.npy"))), ElementsAre(2.0f));
  EXPECT_EQ(ReadTensorFile(dir.Path("x.txt")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTensorFile(dir.Path("none.npy")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadTensorFile(dir.Path("none.safetensors:x")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(TensorFile, StoredInputs) {
  const absl::StatusOr<OwnedTensor> x =
      ReadTensorFile(TestDataPath("data/minilm/inputs.safetensors:layer0.x"));
  ASSERT_TRUE(x.ok()) << x.status();
  EXPECT_THAT(x->shape, ElementsAre(538, 384));
}

}  // namespace
}  // namespace headwise
