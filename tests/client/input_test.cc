// SPDX-License-Identifier: Apache-2.0
#include "client/input.h"

#include <string>
#include <utility>
#include <vector>

#include "client/status.h"
#include "core/format/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace headwise::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class InputTest : public ::testing::Test {
 protected:
  // A file with one tensor of this dtype and shape, its bytes 1, 0, 0, …
  std::string File(const std::string& name, DType dtype, Shape shape) {
    OwnedTensor tensor{dtype, std::move(shape), {}};
    tensor.data.resize(static_cast<size_t>(*NumElements(tensor.shape)) * DTypeBytes(dtype));
    if (!tensor.data.empty()) tensor.data[0] = 1;
    const std::string path = dir_.Path(name + ".safetensors");
    EXPECT_TRUE(WriteSafetensors(path, {{name, tensor.view()}}).ok());
    return path;
  }

  absl::StatusOr<v1::AttentionInput> Build(const std::vector<std::string>& words) {
    const absl::StatusOr<Args> args = Args::Parse(words, InputFlags());
    if (!args.ok()) return args.status();
    return BuildInput(*args);
  }

  TempDir dir_;
};

TEST_F(InputTest, SendsFloatsAsTheyAreAndF64AsF32) {
  const std::pair<DType, v1::DType> kPairs[] = {{DType::kF32, v1::F32},
                                                {DType::kBF16, v1::BF16},
                                                {DType::kF16, v1::F16},
                                                {DType::kF64, v1::F32}};
  for (const auto& [stored, sent] : kPairs) {
    const auto input = Build({"--input", File("x", stored, {3, 2})});
    ASSERT_TRUE(input.ok()) << input.status();
    EXPECT_EQ(input->x().dtype(), sent);
    EXPECT_THAT(input->x().shape(), ElementsAre(3, 2));
    EXPECT_EQ(input->x().data().size(), 6 * (sent == v1::F32 ? 4 : 2));
    EXPECT_THAT(input->lengths(), IsEmpty());
  }
}

TEST_F(InputTest, RefusesIntegersAsX) {
  const auto input = Build({"--input", File("x", DType::kI32, {3, 2})});
  EXPECT_EQ(input.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(IsUsageError(input.status()));
  EXPECT_EQ(input.status().message(), "x: dtype must be F32, BF16, F16 or F64; was I32");
}

TEST_F(InputTest, TakesLengthsFromFlagOrFile) {
  const std::string x = File("x", DType::kF32, {3, 2});
  EXPECT_THAT(Build({"--input", x, "--lengths", "2,0,1"})->lengths(), ElementsAre(2, 0, 1));
  const std::string lengths = File("n", DType::kI64, {2});
  EXPECT_THAT(Build({"--input", x, "--lengths-from", lengths})->lengths(), ElementsAre(1, 0));
  const auto both = Build({"--input", x, "--lengths", "3", "--lengths-from", lengths});
  EXPECT_TRUE(IsUsageError(both.status())) << both.status();
}

TEST_F(InputTest, PassesDenseInputOn) {
  const auto input = Build({"--input", File("x", DType::kF32, {2, 3, 4})});
  EXPECT_THAT(input->x().shape(), ElementsAre(2, 3, 4));
  EXPECT_THAT(input->lengths(), IsEmpty());
}

TEST_F(InputTest, FlattensDenseMemory) {
  const auto input = Build({"--input", File("x", DType::kF32, {2, 4}), "--lengths", "1,1",
                            "--memory", File("m", DType::kF32, {2, 5, 4})});
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_THAT(input->memory().shape(), ElementsAre(10, 4));
  EXPECT_THAT(input->memory_lengths(), ElementsAre(5, 5));
}

TEST_F(InputTest, TakesMasksOfEveryKind) {
  const std::string x = File("x", DType::kF32, {3, 2});
  const auto keep =
      Build({"--input", x, "--mask", File("k", DType::kU8, {3}), "--mask-kind", "keep"});
  ASSERT_TRUE(keep.ok()) << keep.status();
  EXPECT_EQ(keep->mask().kind(), v1::Mask::KEEP);
  EXPECT_EQ(keep->mask().form(), v1::Mask::KEY);
  EXPECT_EQ(keep->mask().tensor().dtype(), v1::BOOL);
  const auto additive =
      Build({"--input", x, "--mask", File("a", DType::kF64, {3, 3}), "--mask-kind", "additive"});
  ASSERT_TRUE(additive.ok()) << additive.status();
  EXPECT_EQ(additive->mask().form(), v1::Mask::PAIR);
  EXPECT_EQ(additive->mask().tensor().dtype(), v1::F32);
  const auto unnamed = Build({"--input", x, "--mask", File("h", DType::kBool, {2, 3, 3})});
  EXPECT_EQ(unnamed->mask().kind(), v1::Mask::KIND_UNSPECIFIED);
  EXPECT_EQ(unnamed->mask().form(), v1::Mask::HEAD);
}

TEST_F(InputTest, LeavesTheMasksFormToItsCountWhereTheShapeDoesNotSay) {
  const std::string x = File("x", DType::kF32, {3, 2});
  const std::string mask = File("k", DType::kBool, {1, 3});
  EXPECT_EQ(Build({"--input", x, "--mask", mask})->mask().form(), v1::Mask::FORM_UNSPECIFIED);
  EXPECT_EQ(Build({"--input", x, "--lengths", "2,1", "--mask", File("f", DType::kBool, {3})})
                ->mask()
                .form(),
            v1::Mask::FORM_UNSPECIFIED);
}

TEST_F(InputTest, SetsCausalWindowAndPositions) {
  const auto input = Build({"--input", File("x", DType::kF32, {3, 2}), "--causal", "bottom-right",
                            "--window", "0", "--positions", File("p", DType::kI32, {3})});
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->causal(), v1::Causal::BOTTOM_RIGHT);
  ASSERT_TRUE(input->has_window());
  EXPECT_EQ(input->window(), 0u);
  EXPECT_EQ(input->positions().dtype(), v1::I32);
  EXPECT_FALSE(Build({"--input", File("x", DType::kF32, {3, 2})})->has_window());
}

TEST_F(InputTest, ChecksTheGrammarBeforeItOpensAnyFile) {
  const std::vector<std::vector<std::string>> kWrong = {
      {},
      {"--input", "absent", "--mask-kind", "keep"},
      {"--input", "absent", "--memory-lengths", "1"},
      {"--input", "absent", "--causal", "left"},
      {"--input", "absent", "--lengths", "x"},
      {"--input", "absent", "--window", "-1"}};
  for (const auto& words : kWrong) {
    EXPECT_TRUE(IsUsageError(Build(words).status())) << ::testing::PrintToString(words);
  }
  EXPECT_FALSE(IsUsageError(Build({"--input", dir_.Path("absent.npy")}).status()));
}

}  // namespace
}  // namespace headwise::client
