// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "client/load/payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "headwise/v1/headwise.pb.h"

namespace headwise::client {
namespace {

using ::testing::ElementsAre;

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

TEST(PayloadTest, IsWhatProtobufWouldWrite) {
  const Payload payload("layer-name", 3, 500, 1);
  for (const uint32_t tokens : {1u, 10u, 11u, 500u}) {
    v1::ForwardRequest forward;
    ASSERT_TRUE(forward.ParseFromString(Bytes(payload.Make(Method::kForward, tokens))));
    EXPECT_EQ(forward.layer(), "layer-name");
    EXPECT_EQ(forward.input().x().dtype(), v1::F32);
    EXPECT_THAT(forward.input().x().shape(), ElementsAre(tokens, 3));
    EXPECT_EQ(forward.input().x().data().size(), tokens * 3 * 4);
    EXPECT_EQ(forward.SerializeAsString(), Bytes(payload.Make(Method::kForward, tokens)));

    v1::AblateRequest ablate;
    ASSERT_TRUE(ablate.ParseFromString(Bytes(payload.Make(Method::kAblate, tokens))));
    EXPECT_EQ(ablate.sweep(), v1::LEAVE_ONE_OUT);
    EXPECT_EQ(ablate.input().x().data(), forward.input().x().data());
  }
}

TEST(PayloadTest, HoldsSeededNumbersOfUnitVariance) {
  const auto numbers = [](uint64_t seed) {
    v1::ForwardRequest request;
    request.ParseFromString(Bytes(Payload("m", 100, 100, seed).Make(Method::kForward, 100)));
    std::vector<float> values(10000);
    std::memcpy(values.data(), request.input().x().data().data(), 40000);
    return values;
  };
  EXPECT_EQ(numbers(1), numbers(1));
  EXPECT_NE(numbers(1), numbers(2));
  double squares = 0;
  for (const float value : numbers(1)) squares += static_cast<double>(value) * value;
  EXPECT_NEAR(squares / 10000, 1, 0.05);
}

}  // namespace
}  // namespace headwise::client
