// SPDX-License-Identifier: Apache-2.0
// AnalyzeHeads over an engine without kernels: what the handler itself does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

class AnalyzeRpc : public ServerFixture {
 protected:
  void SetUp() override {
    LayerSpec spec;
    spec.d_model = 4;
    spec.heads = 2;
    spec.orientation = Orientation::kOutIn;
    const auto resolved = ResolveSpec(spec);
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    engine_.AddLayer("heads", *resolved);
    StartReady();
  }
  static v1::AnalyzeHeadsRequest Request(int rows = 8) {
    v1::AnalyzeHeadsRequest request;
    request.set_layer("heads");
    *request.mutable_input()->mutable_x() = Rows(rows);
    request.set_permutations(9);
    return request;
  }
  Streamed<v1::AnalyzeHeadsResponse> Analyze(const v1::AnalyzeHeadsRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub_->AnalyzeHeads(&context, request);
    return ReadAll(reader.get());
  }
};

TEST_F(AnalyzeRpc, ProgressThenTheResult) {
  v1::AnalyzeHeadsRequest request = Request();
  request.mutable_input()->add_lengths(5);
  request.mutable_input()->add_lengths(3);
  const auto streamed = Analyze(request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  ASSERT_GE(streamed.messages.size(), 2u);
  EXPECT_EQ(streamed.messages[0].progress().stage(), "queued");
  EXPECT_GT(streamed.messages[0].progress().bytes(), 0);
  for (size_t i = 0; i + 1 < streamed.messages.size(); ++i) {
    EXPECT_TRUE(streamed.messages[i].has_progress());
  }
  ASSERT_TRUE(streamed.messages.back().has_result());
  const v1::AnalyzeHeadsResult& result = streamed.messages.back().result();
  EXPECT_EQ(result.layer(), "heads");
  EXPECT_EQ(result.scope().n_sequences(), 2u);
  EXPECT_EQ(result.scope().n_tokens(), 8u);
  ASSERT_EQ(result.heads_size(), 2);
  EXPECT_NEAR(result.heads(0).entropy_share().value(), 1.0, 1e-6);  // every key weighs the same
  EXPECT_NEAR(result.heads(1).norm_share().value(), 0.5, 1e-6);
  ASSERT_EQ(result.pairs_size(), 1);
  EXPECT_NEAR(result.pairs(0).js_distance().value(), 0.0, 1e-3);
  EXPECT_NEAR(result.pairs(0).cosine().value(), 1.0, 1e-6);
  EXPECT_EQ(result.permutation_null().permutations(), 9u);
  EXPECT_EQ(result.permutation_null().tokens_used(), 8u);
}

TEST_F(AnalyzeRpc, RefusalsNameTheRule) {
  const auto refused = [&](const v1::AnalyzeHeadsRequest& request) {
    const auto streamed = Analyze(request);
    EXPECT_TRUE(streamed.messages.empty());
    return streamed.status;
  };
  v1::AnalyzeHeadsRequest request = Request();
  request.set_layer("none");
  EXPECT_EQ(refused(request).error_code(), grpc::StatusCode::NOT_FOUND);
  request = Request();
  request.set_permutations(1000000);
  EXPECT_THAT(refused(request).error_message(), HasSubstr("permutations: must be in"));
  request = Request();
  request.mutable_bootstrap()->set_resamples(1);
  EXPECT_THAT(refused(request).error_message(), HasSubstr("resamples"));
  request = Request();
  request.mutable_input()->add_lengths(9);
  EXPECT_EQ(refused(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = Request();
  request.mutable_token_ids()->set_dtype(v1::F32);
  request.mutable_token_ids()->add_shape(0);
  EXPECT_THAT(refused(request).error_message(), HasSubstr("token_ids"));
  request = Request();
  *request.mutable_directions() = Rows(1);
  request.mutable_directions()->set_shape(1, 3);
  EXPECT_EQ(refused(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AnalyzeRpc, CancelledWhileQueued) {
  engine_.Hold();
  grpc::ClientContext context;
  const auto reader = stub_->AnalyzeHeads(&context, Request());
  engine_.AwaitWaiting(1);
  context.TryCancel();
  EXPECT_EQ(ReadAll(reader.get()).status.error_code(), grpc::StatusCode::CANCELLED);
  server_.reset();
  EXPECT_EQ(engine_.stats().dropped_cancelled, 1);
}

// A million permutations of a long input would take minutes.
TEST_F(AnalyzeRpc, CancelledWhileItAnalyses) {
  v1::AnalyzeHeadsRequest request = Request(2000);
  request.set_permutations(100000);
  request.set_max_tokens(2000);
  grpc::ClientContext context;
  const auto reader = stub_->AnalyzeHeads(&context, request);
  v1::AnalyzeHeadsResponse message;
  while (reader->Read(&message) && message.progress().stage() != "permutations") {
  }
  context.TryCancel();
  EXPECT_EQ(ReadAll(reader.get()).status.error_code(), grpc::StatusCode::CANCELLED);
  server_.reset();  // waits for the analysis, which has noticed
}

}  // namespace
}  // namespace headwise
