// SPDX-License-Identifier: Apache-2.0
// DeriveLayer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DeriveRpc : public ServerFixture {
 protected:
  void SetUp() override {
    StartReady();
    LoadMinilm("m3");
  }

  static v1::DeriveLayerRequest Request(v1::DeriveLayerRequest::Kind kind, const std::string& name,
                                        const std::string& as,
                                        const std::vector<uint32_t>& heads = {}) {
    v1::DeriveLayerRequest request;
    request.set_name(name);
    request.set_as(as);
    request.set_kind(kind);
    request.mutable_heads()->Add(heads.begin(), heads.end());
    return request;
  }
  grpc::Status Derive(const v1::DeriveLayerRequest& request) {
    grpc::ClientContext context;
    return stub_->DeriveLayer(&context, request, &response_);
  }
  v1::LayerDetails Details(const std::string& name) {
    v1::GetLayerRequest request;
    request.set_name(name);
    v1::LayerDetails details;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->GetLayer(&context, request, &details).ok());
    return details;
  }
  int64_t SavedBytes(const std::string& name) {
    v1::DownloadLayerRequest request;
    request.set_name(name);
    grpc::ClientContext context;
    const auto read = ReadAll(stub_->DownloadLayer(&context, request).get());
    EXPECT_TRUE(read.status.ok()) << read.status.error_message();
    return read.messages.empty() ? 0 : read.messages[0].total_bytes();
  }

  v1::LoadLayerResponse response_;
};

TEST_F(DeriveRpc, ADerivedLayerIsALayer) {
  ASSERT_TRUE(Derive(Request(v1::DeriveLayerRequest::PRUNE, "m3", "p", {0, 7})).ok());
  EXPECT_EQ(response_.layer().name(), "p");
  EXPECT_EQ(response_.layer().heads(), 10u);
  EXPECT_EQ(response_.layer().family(), "bert");
  // Pruned again by the old ids, and saved.
  ASSERT_TRUE(Derive(Request(v1::DeriveLayerRequest::PRUNE, "p", "q", {8})).ok());
  EXPECT_THAT(Details("q").head_ids(), ElementsAre(1, 2, 3, 4, 5, 6, 9, 10, 11));
  EXPECT_LT(SavedBytes("q"), SavedBytes("p"));
  const grpc::Status gone = Derive(Request(v1::DeriveLayerRequest::PRUNE, "q", "r", {7}));
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(gone.error_message(), HasSubstr("was 7"));
}

TEST_F(DeriveRpc, PermutesFusesAndSeparates) {
  ASSERT_TRUE(Derive(Request(v1::DeriveLayerRequest::PERMUTE, "m3", "p",
                             {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}))
                  .ok());
  EXPECT_EQ(Details("p").head_ids(0), 11u);
  ASSERT_TRUE(Derive(Request(v1::DeriveLayerRequest::COMBINE, "m3", "c")).ok());
  EXPECT_EQ(Details("c").spec().fused_layout(), v1::BLOCKS);
  ASSERT_TRUE(Derive(Request(v1::DeriveLayerRequest::SPLIT, "c", "s")).ok());
  EXPECT_EQ(Details("s").spec().fused_layout(), v1::SEPARATE);
}

TEST_F(DeriveRpc, RefusesWhatDoesNotFit) {
  const auto code = [&](const v1::DeriveLayerRequest& request) {
    return Derive(request).error_code();
  };
  using Kind = v1::DeriveLayerRequest;
  EXPECT_EQ(code(Request(Kind::SPLIT, "none", "s")), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code(Request(Kind::SPLIT, "m3", "m3")), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(code(Request(Kind::SPLIT, "m3", "s", {1})), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code(Request(Kind::KIND_UNSPECIFIED, "m3", "s")), grpc::StatusCode::INVALID_ARGUMENT);
  Kind gates = Request(Kind::SPLIT, "m3", "s");
  gates.set_fold_gates(true);
  EXPECT_EQ(code(gates), grpc::StatusCode::INVALID_ARGUMENT);
  Kind wrong = Request(Kind::QUANTIZE, "m3", "s");
  wrong.set_dtype(v1::F64);
  EXPECT_EQ(code(wrong), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace headwise
