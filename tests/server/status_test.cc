// SPDX-License-Identifier: Apache-2.0
#include "server/status.h"

#include <gtest/gtest.h>

#include "google/rpc/status.pb.h"

namespace headwise {
namespace {

google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

template <typename Message>
bool Find(const google::rpc::Status& details, Message* message) {
  for (const google::protobuf::Any& any : details.details()) {
    if (any.UnpackTo(message)) return true;
  }
  return false;
}

TEST(Status, OkHasNoDetails) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_EQ(ToGrpcStatus(absl::OkStatus()).error_details(), "");
}

TEST(Status, EveryCodeKeepsItsNumberAndHasErrorInfo) {
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status =
        ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "field: rule; was X"));
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "field: rule; was X");
    const google::rpc::Status details = Details(status);
    EXPECT_EQ(details.code(), code);
    google::rpc::ErrorInfo info;
    ASSERT_TRUE(Find(details, &info));
    EXPECT_EQ(info.domain(), "headwise");
    EXPECT_FALSE(info.reason().empty());
  }
}

TEST(Status, InvalidArgumentNamesItsField) {
  google::rpc::BadRequest bad;
  ASSERT_TRUE(
      Find(Details(ToGrpcStatus(absl::InvalidArgumentError("x.data: must hold; was 4"))), &bad));
  ASSERT_EQ(bad.field_violations_size(), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "x.data");
  EXPECT_EQ(bad.field_violations(0).description(), "must hold; was 4");
  EXPECT_FALSE(Find(Details(ToGrpcStatus(absl::NotFoundError("layer: none; was x"))), &bad));
}

TEST(Status, OnlyWhatMaySucceedLaterIsRetryable) {
  google::rpc::RetryInfo retry;
  EXPECT_TRUE(Find(Details(ToGrpcStatus(absl::ResourceExhaustedError(
                       "queue: at most 10 tokens may wait, retry later; was 11"))),
                   &retry));
  EXPECT_FALSE(
      Find(Details(ToGrpcStatus(absl::ResourceExhaustedError("outputs: at most 10 bytes; was 11"))),
           &retry));
  EXPECT_TRUE(Find(Details(ToGrpcStatus(absl::UnavailableError("server: drains"))), &retry));
}

TEST(Status, MessagesAreOneLineAndFitAHeader) {
  const grpc::Status lines = ToGrpcStatus(absl::InternalError("a\nb\r\nc"));
  EXPECT_EQ(lines.error_message(), "a b  c");
  std::string accents;
  for (int i = 0; i < 4000; ++i) accents += "é";
  const grpc::Status cut = ToGrpcStatus(absl::InternalError(accents));
  EXPECT_LT(cut.error_message().size(), 1600u);
  EXPECT_EQ(cut.error_message().substr(cut.error_message().size() - 5), "é…");
}

TEST(Status, AFieldIsAWordBeforeAColon) {
  EXPECT_EQ(FieldOf("lengths: sum; was 3"), "lengths");
  EXPECT_EQ(FieldOf("no field here: x"), "");
  EXPECT_EQ(FieldOf("nothing"), "");
}

}  // namespace
}  // namespace headwise
