// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "google/rpc/status.pb.h"
#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ForwardRpc : public ServerFixture {
 protected:
  grpc::Status Forward(const v1::ForwardRequest& request) {
    grpc::ClientContext context;
    v1::ForwardResponse response;
    return stub_->Forward(&context, request, &response);
  }
};

TEST_F(ForwardRpc, AnswersWithTensorsPassAndMetadata) {
  StartReady();
  grpc::ClientContext context;
  context.AddMetadata("headwise-request-id", "from-metadata");
  v1::ForwardRequest request = ToyForward(3);
  request.set_request_id("from-field");
  v1::ForwardResponse response;
  const grpc::Status status = stub_->Forward(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.tensors_size(), 1);
  EXPECT_EQ(response.tensors(0).data(), request.input().x().data());
  EXPECT_EQ(response.request_id(), "from-metadata");
  EXPECT_THAT(response.lengths(), ElementsAre(3));
  const std::map<std::string, std::string> trailing = Trailing(context);
  EXPECT_EQ(trailing.at("headwise-request-id"), "from-metadata");
  EXPECT_EQ(trailing.at("headwise-queue-us"), "7");
  EXPECT_EQ(trailing.at("headwise-compute-us"), "11");
  EXPECT_EQ(trailing.at("headwise-layer-version"), "1");
}

TEST_F(ForwardRpc, MakesRequestIdsUpAndRefusesBadOnes) {
  StartReady();
  v1::ForwardResponse first;
  v1::ForwardResponse second;
  grpc::ClientContext first_context;
  grpc::ClientContext second_context;
  ASSERT_TRUE(stub_->Forward(&first_context, ToyForward(1), &first).ok());
  ASSERT_TRUE(stub_->Forward(&second_context, ToyForward(1), &second).ok());
  EXPECT_FALSE(first.request_id().empty());
  EXPECT_NE(first.request_id(), second.request_id());
  v1::ForwardRequest request = ToyForward(1);
  request.set_request_id("line\nbreak");
  EXPECT_EQ(Forward(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_request_id(std::string(257, 'x'));
  EXPECT_EQ(Forward(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ForwardRpc, ErrorsCarryDetailsAndTheRequestId) {
  StartReady();
  grpc::ClientContext context;
  v1::ForwardRequest request = ToyForward(1);
  request.mutable_input()->mutable_x()->set_data("abc");
  v1::ForwardResponse response;
  const grpc::Status status = stub_->Forward(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("x.data: must hold 16 bytes"));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.details_size(), 2);
  EXPECT_FALSE(Trailing(context).at("headwise-request-id").empty());
}

TEST_F(ForwardRpc, UnknownLayerIsNotFound) {
  StartReady();
  v1::ForwardRequest request = ToyForward(1);
  request.set_layer("none");
  EXPECT_EQ(Forward(request).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ForwardRpc, ALayerOfStartUpIsUnavailableUntilItIsThere) {
  ServerOptions options = TestOptions();
  options.loads = {{"late", "minilm", "0", "f32"}};
  Start(options);
  v1::ForwardRequest request = ToyForward(1);
  request.set_layer("late");
  EXPECT_EQ(Forward(request).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Forward(ToyForward(1)).ok());
  ASSERT_TRUE(server_->LoadStartupLayers().ok());
  EXPECT_TRUE(Forward(request).ok());
}

TEST_F(ForwardRpc, CancelledWhileQueuedLeavesTheQueue) {
  StartReady();
  engine_.Hold();
  grpc::ClientContext context;
  grpc::Status status;
  std::thread caller([&] {
    v1::ForwardResponse response;
    status = stub_->Forward(&context, ToyForward(1), &response);
  });
  engine_.AwaitWaiting(1);
  context.TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  server_.reset();  // waits for the call's end
  EXPECT_EQ(engine_.stats().dropped_cancelled, 1);
}

TEST_F(ForwardRpc, ExpiredWhileQueuedLeavesTheQueue) {
  StartReady();
  engine_.Hold();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  v1::ForwardResponse response;
  EXPECT_EQ(stub_->Forward(&context, ToyForward(1), &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  server_.reset();
  EXPECT_EQ(engine_.stats().dropped_cancelled, 1);
}

TEST_F(ForwardRpc, AMessageOverTheLimitIsRefused) {
  ServerOptions options = TestOptions();
  options.max_message_bytes = 4096;
  StartReady(options);
  EXPECT_TRUE(Forward(ToyForward(10)).ok());
  const grpc::Status status = Forward(ToyForward(1000));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("4096"));
}

TEST_F(ForwardRpc, ACompressedMessageIsRefused) {
  StartReady();
  const auto stub = v1::Headwise::NewStub(TcpChannel());  // in process, nothing is compressed
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::ForwardResponse response;
  EXPECT_EQ(stub->Forward(&context, ToyForward(1000), &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace headwise
