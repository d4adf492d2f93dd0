// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

class AblateRpc : public ServerFixture {
 protected:
  static v1::AblateRequest Request(int rows) {
    v1::AblateRequest request;
    request.set_layer("toy");
    *request.mutable_input()->mutable_x() = Rows(rows);
    v1::Intervention* zero = request.add_ablations()->add_interventions();
    zero->set_kind(v1::Intervention::ZERO);
    zero->add_heads(1);
    request.add_ablations();
    return request;
  }
};

TEST_F(AblateRpc, ProgressThenResultThenChunks) {
  StartReady();
  v1::AblateRequest request = Request(200000);  // 3.2 MB of y: four chunks
  request.set_return_y(true);
  grpc::ClientContext context;
  const auto reader = stub_->Ablate(&context, request);
  const Streamed<v1::AblateResponse> streamed = ReadAll(reader.get());
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  size_t next = 0;
  while (next < streamed.messages.size() && streamed.messages[next].has_progress()) ++next;
  EXPECT_GE(next, 1u);
  ASSERT_LT(next, streamed.messages.size());
  ASSERT_TRUE(streamed.messages[next].has_result());
  const v1::AblateResult& result = streamed.messages[next].result();
  ASSERT_EQ(result.ablations_size(), 2);
  EXPECT_EQ(result.ablations(0).interventions(0).heads(0), 1u);
  ASSERT_EQ(result.tensors_size(), 1);
  EXPECT_EQ(result.tensors(0).name(), "y");
  EXPECT_FALSE(result.tensors(0).has_data());
  std::string bytes;
  for (size_t i = next + 1; i < streamed.messages.size(); ++i) {
    ASSERT_TRUE(streamed.messages[i].has_chunk());
    const v1::TensorChunk& chunk = streamed.messages[i].chunk();
    EXPECT_EQ(chunk.tensor(), 0u);
    EXPECT_EQ(chunk.offset(), static_cast<int64_t>(bytes.size()));
    EXPECT_LE(chunk.data().size(), size_t{1} << 20);
    bytes += chunk.data();
  }
  EXPECT_EQ(bytes, request.input().x().data());
  EXPECT_EQ(Trailing(context).at("headwise-compute-us"), "11");
}

TEST_F(AblateRpc, RefusalsComeWithoutMessages) {
  StartReady();
  v1::AblateRequest request = Request(1);
  request.set_layer("none");
  grpc::ClientContext context;
  const auto reader = stub_->Ablate(&context, request);
  const Streamed<v1::AblateResponse> streamed = ReadAll(reader.get());
  EXPECT_TRUE(streamed.messages.empty());
  EXPECT_EQ(streamed.status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AblateRpc, EffectsOfManyAblationsAndSequencesAreBounded) {
  ServerOptions options = TestOptions();
  options.max_output_bytes = 1024;
  StartReady(options);
  v1::AblateRequest request = Request(20);
  for (const int sequences : {8, 9}) {  // two ablations: 64 bytes each a sequence
    request.mutable_input()->clear_lengths();
    for (int i = 0; i < sequences; ++i) request.mutable_input()->add_lengths(1);
    grpc::ClientContext context;
    const auto reader = stub_->Ablate(&context, request);
    EXPECT_EQ(ReadAll(reader.get()).status.error_code(),
              sequences == 8 ? grpc::StatusCode::OK : grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
}

TEST_F(AblateRpc, ProgressComesWhileItWaits) {
  StartReady();
  engine_.Hold();
  grpc::ClientContext context;
  const auto reader = stub_->Ablate(&context, Request(1));
  v1::AblateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_TRUE(message.has_progress());
  EXPECT_EQ(message.progress().done(), 0u);
  engine_.Release();
  const Streamed<v1::AblateResponse> rest = ReadAll(reader.get());
  EXPECT_TRUE(rest.status.ok());
  ASSERT_EQ(rest.messages.size(), 2u);
  EXPECT_TRUE(rest.messages[1].has_result());
}

TEST_F(AblateRpc, CancelledWhileQueued) {
  StartReady();
  engine_.Hold();
  grpc::ClientContext context;
  const auto reader = stub_->Ablate(&context, Request(1));
  engine_.AwaitWaiting(1);
  context.TryCancel();
  EXPECT_EQ(ReadAll(reader.get()).status.error_code(), grpc::StatusCode::CANCELLED);
  server_.reset();
  EXPECT_EQ(engine_.stats().dropped_cancelled, 1);
}

}  // namespace
}  // namespace headwise
