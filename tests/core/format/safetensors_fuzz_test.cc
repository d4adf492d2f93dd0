// SPDX-License-Identifier: Apache-2.0
// Thousands of damaged headers: each is read or refused, and what is read lies inside the file.
#include <random>

#include "absl/strings/str_cat.h"
#include "core/format/safetensors.h"
#include "gtest/gtest.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  std::string Mutate(std::string bytes) {
    for (uint32_t edits = 1 + Below(4); edits > 0; --edits) Edit(&bytes);
    return bytes;
  }

 private:
  uint32_t Below(size_t limit) { return static_cast<uint32_t>(random_() % limit); }

  void Edit(std::string* bytes) {
    static constexpr const char* kWords[] = {"{",
                                             "}",
                                             "[",
                                             "]",
                                             ",",
                                             ":",
                                             "\"",
                                             "null",
                                             "-1",
                                             "1e9",
                                             "0",
                                             "4",
                                             "8",
                                             "16",
                                             "24",
                                             "18446744073709551615",
                                             "18446744073709551616",
                                             "9223372036854775807",
                                             "\\u0000",
                                             "\"__metadata__\"",
                                             "\"a\"",
                                             "\"shape\"",
                                             "\"dtype\"",
                                             "\"data_offsets\"",
                                             "F64",
                                             "F4"};
    if (bytes->empty()) return;
    const size_t at = Below(bytes->size());
    switch (Below(6)) {
      case 0:
        (*bytes)[at] = static_cast<char>(Below(256));
        return;
      case 1:
        (*bytes)[at] = static_cast<char>('0' + Below(10));
        return;
      case 2:
        bytes->insert(at, kWords[Below(std::size(kWords))]);
        return;
      case 3:
        bytes->erase(at, 1 + Below(8));
        return;
      case 4:
        bytes->insert(at, bytes->substr(Below(bytes->size()), Below(40)));
        return;
      default:
        bytes->resize(at);
        return;
    }
  }

  std::mt19937 random_;
};

void CheckParse(const std::string& bytes, int64_t* accepted) {
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(bytes, bytes.size());
  if (!header.ok()) {
    ASSERT_TRUE(absl::IsDataLoss(header.status())) << header.status();
    ASSERT_EQ(header.status().message().find('\n'), absl::string_view::npos);
    return;
  }
  ++*accepted;
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : header->entries) {
    ASSERT_EQ(entry.begin, end);
    end = entry.end;
    const std::optional<DType> dtype = DTypeFromName(entry.dtype);
    if (dtype) {
      ASSERT_EQ(static_cast<uint64_t>(*NumElements(entry.shape)) * DTypeBytes(*dtype),
                entry.end - entry.begin);
    }
  }
  ASSERT_EQ(header->data_begin + end, bytes.size());
}

const std::string& Sound() {
  static const std::string* const sound = new std::string(SafetensorsBytes(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"F16","shape":[0],"data_offsets":[16,16]},)"
      R"("c":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}}  )",
      std::string(24, 'z')));
  return *sound;
}

TEST(SafetensorsFuzz, DamagedFiles) {
  Mutator mutator(20261129);
  int64_t accepted = 0;
  for (int round = 0; round < 30000; ++round) {
    CheckParse(mutator.Mutate(Sound()), &accepted);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 0);
}

// The length stays right, so that the damage reaches the JSON and the rules behind it.
TEST(SafetensorsFuzz, DamagedHeadersOfTheRightLength) {
  Mutator mutator(20261130);
  const std::string payload(24, 'z');
  const std::string header = Sound().substr(8, Sound().size() - 8 - payload.size());
  int64_t accepted = 0;
  for (int round = 0; round < 30000; ++round) {
    CheckParse(SafetensorsBytes(mutator.Mutate(header), payload), &accepted);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 0);
}

TEST(SafetensorsFuzz, DamagedFilesOnDisk) {
  Mutator mutator(20261201);
  const TempDir dir;
  for (int round = 0; round < 150; ++round) {
    const std::string path = dir.Write("f.safetensors", mutator.Mutate(Sound()));
    const auto file = SafetensorsFile::Open(path);
    if (!file.ok()) {
      ASSERT_TRUE(absl::IsDataLoss(file.status())) << file.status();
      continue;
    }
    for (const SafetensorsEntry& entry : (*file)->header().entries) {
      const absl::StatusOr<OwnedTensor> tensor = (*file)->Read(entry.name);
      ASSERT_EQ(tensor.ok(), DTypeFromName(entry.dtype).has_value()) << tensor.status();
    }
  }
}

}  // namespace
}  // namespace headwise
