// SPDX-License-Identifier: Apache-2.0
#include "core/format/npy.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Dictionary(absl::string_view descr, absl::string_view shape,
                       absl::string_view fortran = "False") {
  return absl::StrCat("{'descr': '", descr, "', 'fortran_order': ", fortran, ", 'shape': ", shape,
                      ", }   \n");
}

std::string Reversed(std::string bytes) {
  std::reverse(bytes.begin(), bytes.end());
  return bytes;
}

OwnedTensor Parse(const std::string& bytes) {
  absl::StatusOr<OwnedTensor> tensor = ParseNpy(bytes);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  return tensor.ok() ? *std::move(tensor) : OwnedTensor();
}

TEST(Npy, FloatsOfEachWidth) {
  const OwnedTensor f32 = Parse(NpyBytes(Dictionary("<f4", "(2, 1)"), Raw<float>({1.5f, -2.0f})));
  EXPECT_EQ(f32.dtype, DType::kF32);
  EXPECT_THAT(f32.shape, ElementsAre(2, 1));
  EXPECT_THAT(Elements<float>(f32), ElementsAre(1.5f, -2.0f));

  const OwnedTensor f64 = Parse(NpyBytes(Dictionary("<f8", "(1,)"), Raw<double>({0.1})));
  EXPECT_EQ(f64.dtype, DType::kF64);
  EXPECT_THAT(Elements<double>(f64), ElementsAre(0.1));

  const OwnedTensor f16 = Parse(NpyBytes(Dictionary("<f2", "(1,)"), Raw<uint16_t>({0x3c00})));
  EXPECT_EQ(f16.dtype, DType::kF16);
  EXPECT_THAT(Elements<uint16_t>(f16), ElementsAre(0x3c00));
}

TEST(Npy, IntegersAreWidenedToOnesThatWeHave) {
  const auto parse = [](absl::string_view descr, std::string payload) {
    return Parse(NpyBytes(Dictionary(descr, "(2,)"), payload));
  };
  for (const OwnedTensor& tensor :
       {parse("|i1", Raw<int8_t>({7, -1})), parse("<i2", Raw<int16_t>({7, -1})),
        parse("<i4", Raw<int32_t>({7, -1})), parse("=i4", Raw<int32_t>({7, -1})),
        parse(">i2", Reversed(Raw<int16_t>({-1, 7})))}) {
    EXPECT_EQ(tensor.dtype, DType::kI32);
    EXPECT_THAT(Elements<int32_t>(tensor), ElementsAre(7, -1));
  }
  EXPECT_THAT(Elements<int32_t>(parse("<u2", Raw<uint16_t>({7, 65535}))), ElementsAre(7, 65535));
  for (const OwnedTensor& tensor :
       {parse("<u4", Raw<uint32_t>({7, 4294967295})), parse("<i8", Raw<int64_t>({7, 4294967295})),
        parse("<u8", Raw<uint64_t>({7, 4294967295})),
        parse(">i8", Reversed(Raw<int64_t>({4294967295, 7})))}) {
    EXPECT_EQ(tensor.dtype, DType::kI64);
    EXPECT_THAT(Elements<int64_t>(tensor), ElementsAre(7, 4294967295));
  }
  EXPECT_EQ(parse("|u1", Raw<uint8_t>({7, 255})).dtype, DType::kU8);
  EXPECT_EQ(parse("|b1", Raw<uint8_t>({0, 1})).dtype, DType::kBool);
}

TEST(Npy, BigEndianFloats) {
  const OwnedTensor f32 =
      Parse(NpyBytes(Dictionary(">f4", "(2,)"), Reversed(Raw<float>({-2.0f, 1.5f}))));
  EXPECT_THAT(Elements<float>(f32), ElementsAre(1.5f, -2.0f));
}

TEST(Npy, FortranOrderOfThreeAxes) {
  // Element (a, b, c) of shape (2, 3, 2) is 100 a + 10 b + c; stored with the first axis fastest.
  const std::string payload = Raw<int32_t>({0, 100, 10, 110, 20, 120, 1, 101, 11, 111, 21, 121});
  const OwnedTensor tensor = Parse(NpyBytes(Dictionary("<i4", "(2, 3, 2)", "True"), payload));
  EXPECT_THAT(Elements<int32_t>(tensor),
              ElementsAre(0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121));
}

TEST(Npy, ScalarsAndEmptyArrays) {
  EXPECT_TRUE(Parse(NpyBytes(Dictionary("<f4", "()"), Raw<float>({3.0f}))).shape.empty());
  EXPECT_THAT(Parse(NpyBytes(Dictionary("<f4", "(0, 4)"), "")).shape, ElementsAre(0, 4));
  EXPECT_THAT(Parse(NpyBytes(Dictionary("<f4", "(4, 0)", "True"), "")).shape, ElementsAre(4, 0));
}

TEST(Npy, VersionsAndSpellings) {
  for (const int major : {1, 2, 3}) {
    EXPECT_THAT(Parse(NpyBytes(Dictionary("<f4", "(1,)"), Raw<float>({3.0f}), major)).shape,
                ElementsAre(1));
  }
  EXPECT_THAT(Parse(NpyBytes("{\"shape\":(1L,),\"descr\":\"<f4\",\"fortran_order\":False}",
                             Raw<float>({3.0f})))
                  .shape,
              ElementsAre(1));
}

void ExpectRefused(const std::string& bytes, absl::StatusCode code, absl::string_view text) {
  const absl::Status status = ParseNpy(bytes).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(text)));
}

TEST(Npy, WrongSizes) {
  const std::string one = Raw<float>({1.0f});
  ExpectRefused(NpyBytes(Dictionary("<f4", "(2,)"), one), absl::StatusCode::kDataLoss,
                "must be 8 bytes (<f4 [2]); was 4");
  ExpectRefused(NpyBytes(Dictionary("<f4", "(1,)"), one + "x"), absl::StatusCode::kDataLoss,
                "must be 4 bytes (<f4 [1]); was 5");
  ExpectRefused(NpyBytes(Dictionary("<f4", "(4294967296, 4294967296)"), one),
                absl::StatusCode::kDataLoss, "too large");
  ExpectRefused(NpyBytes(Dictionary("<f8", "(4611686018427387904,)"), one),
                absl::StatusCode::kDataLoss, "");
  ExpectRefused(NpyBytes(Dictionary("<u8", "(1,)"), LittleEndian(uint64_t{1} << 63, 8)),
                absl::StatusCode::kDataLoss, "must be at most 2^63 - 1; was 9223372036854775808");
}

TEST(Npy, OtherTypesAreNamed) {
  for (const char* descr : {"<c8", "|S4", "<U2", "|V2", "|O", "<f16", "<M8[s]", "", "<", "f"}) {
    ExpectRefused(NpyBytes(Dictionary(descr, "(0,)"), ""), absl::StatusCode::kUnimplemented, descr);
  }
  ExpectRefused(NpyBytes("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", ""),
                absl::StatusCode::kUnimplemented, "structure");
}

TEST(Npy, MalformedHeaders) {
  for (const char* dictionary :
       {"", "{", "[]", "{}", "{'descr': '<f4'}", "{'descr' '<f4'}",
        "{'descr': '<f4', 'fortran_order': maybe, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x",
        "{'descr: '<f4', 'fortran_order': False, 'shape': (1,)"}) {
    ExpectRefused(NpyBytes(dictionary, Raw<float>({1.0f})), absl::StatusCode::kDataLoss, "npy");
  }
  ExpectRefused("", absl::StatusCode::kDataLoss, "");
  ExpectRefused("\x93NUMPY", absl::StatusCode::kDataLoss, "");
  ExpectRefused("not a npy file at all", absl::StatusCode::kDataLoss, "must begin with");
  ExpectRefused(NpyBytes(Dictionary("<f4", "(1,)"), Raw<float>({1.0f}), 4),
                absl::StatusCode::kDataLoss, "version");
  ExpectRefused(absl::StrCat("\x93NUMPY", LittleEndian(1, 2), LittleEndian(60000, 2), "{}"),
                absl::StatusCode::kDataLoss, "length");
}

TEST(Npy, FileErrorsNameTheFile) {
  const TempDir dir;
  const std::string path = dir.Write("x.npy", "nothing");
  const absl::Status malformed = ReadNpy(path).status();
  EXPECT_EQ(malformed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(malformed.message()), HasSubstr(path));
  EXPECT_EQ(ReadNpy(dir.Path("none.npy")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadNpy(dir.path()).status().code(), absl::StatusCode::kInvalidArgument);
  dir.Write("y.npy", NpyBytes(Dictionary("<f4", "(1,)"), Raw<float>({1.0f})));
  EXPECT_TRUE(ReadNpy(dir.Path("y.npy")).ok());
}

// Whatever a file's bytes: an array, or a refusal.
TEST(Npy, MutatedFilesNeverCrash) {
  const std::string sound =
      NpyBytes(Dictionary("<f4", "(2, 3)", "True"), Raw<float>({1, 2, 3, 4, 5, 6}));
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = sound;
    for (uint32_t edits = 1 + random() % 3; edits > 0; --edits) {
      bytes[random() % bytes.size()] =
          static_cast<char>(random() % 4 == 0 ? '0' + random() % 10 : random() % 256);
    }
    const absl::StatusOr<OwnedTensor> tensor = ParseNpy(bytes);
    if (tensor.ok()) {
      ASSERT_EQ(tensor->view().bytes(), tensor->data.size());
    } else {
      ASSERT_TRUE(absl::IsDataLoss(tensor.status()) || absl::IsUnimplemented(tensor.status()))
          << tensor.status();
    }
  }
}

}  // namespace
}  // namespace headwise
