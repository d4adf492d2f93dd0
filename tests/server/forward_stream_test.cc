// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

v1::ForwardRequest Named(const std::string& id, int rows = 1) {
  v1::ForwardRequest request = ToyForward(rows);
  request.set_request_id(id);
  return request;
}

class ForwardStreamRpc : public ServerFixture {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::ForwardRequest, v1::ForwardStreamResponse>;
  std::unique_ptr<Stream> Open() { return stub_->ForwardStream(&context_); }

  grpc::ClientContext context_;
};

TEST_F(ForwardStreamRpc, AnswersCarryTheirRequestsIds) {
  StartReady();
  const auto stream = Open();
  std::set<std::string> asked, answered;
  for (int i = 0; i < 40; ++i) {
    asked.insert(absl::StrCat("r", i));
    ASSERT_TRUE(stream->Write(Named(absl::StrCat("r", i), i + 1)));
    v1::ForwardStreamResponse answer;
    ASSERT_TRUE(stream->Read(&answer));
    EXPECT_EQ(answer.status_code(), 0) << answer.status_message();
    EXPECT_EQ(answer.response().request_id(), answer.request_id());
    answered.insert(answer.request_id());
  }
  stream->WritesDone();
  v1::ForwardStreamResponse none;
  EXPECT_FALSE(stream->Read(&none));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(asked, answered);
}

TEST_F(ForwardStreamRpc, AnErrorAnswersItsRequestAndNotTheStream) {
  StartReady();
  const auto stream = Open();
  v1::ForwardRequest unknown = Named("unknown");
  unknown.set_layer("none");
  v1::ForwardRequest broken = Named("broken");
  broken.mutable_input()->mutable_x()->set_data("abc");
  v1::ForwardRequest unnamed = ToyForward(1);
  for (const v1::ForwardRequest& request :
       {unknown, broken, Named(std::string(300, 'i')), unnamed}) {
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  std::map<int, int> codes;
  v1::ForwardStreamResponse answer;
  while (stream->Read(&answer)) {
    ++codes[answer.status_code()];
    EXPECT_FALSE(answer.request_id().empty());
    EXPECT_EQ(answer.status_code() == 0, answer.status_message().empty());
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(codes[grpc::StatusCode::NOT_FOUND], 1);
  EXPECT_EQ(codes[grpc::StatusCode::INVALID_ARGUMENT], 2);
  EXPECT_EQ(codes[grpc::StatusCode::OK], 1);
}

TEST_F(ForwardStreamRpc, RequestsArePipelinedUpToTheLimit) {
  ServerOptions options = TestOptions();
  options.max_stream_requests = 4;
  StartReady(options);
  engine_.Hold();
  const auto stream = Open();
  std::thread writer([&] {
    for (int i = 0; i < 12; ++i) stream->Write(Named(absl::StrCat(i)));
    stream->WritesDone();
  });
  engine_.AwaitWaiting(4);
  EXPECT_EQ(engine_.waiting(), 4u);
  engine_.Release();
  int answers = 0;
  v1::ForwardStreamResponse answer;
  while (stream->Read(&answer)) ++answers;
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answers, 12);
}

TEST_F(ForwardStreamRpc, AReaderThatStallsStopsBeingRead) {
  ServerOptions options = TestOptions();
  options.max_stream_requests = 4;
  StartReady(options);
  const auto stub = v1::Headwise::NewStub(TcpChannel());
  grpc::ClientContext context;
  const auto stream = stub->ForwardStream(&context);
  // 64 KiB each: far more than the connection's window, and nobody reads.
  std::atomic<int> written{0};
  std::thread writer([&] {
    for (int i = 0; i < 1000 && stream->Write(Named(absl::StrCat(i), 4096)); ++i) ++written;
  });
  int before = -1;
  while (before != written) {
    before = written;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_LT(written, 1000);
  EXPECT_LE(server_->request_bytes(), 4 * 2 * 70'000);  // four requests with their answers
  context.TryCancel();
  writer.join();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ForwardStreamRpc, AnswersThatNobodyReadsStayWithinTheOutputBudget) {
  constexpr int kRows = 16384, kRequests = 12;  // 256 KiB each way
  ServerOptions options = TestOptions();
  options.max_output_bytes = 2 * kRows * 16 + 1000;  // two answers
  StartReady(options);
  engine_.Hold();
  const auto stream = Open();
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) stream->Write(Named(absl::StrCat(i), kRows));
    stream->WritesDone();
  });
  // The third is read, and waits for room; so nothing more is read.
  engine_.AwaitWaiting(2);
  const int64_t message = static_cast<int64_t>(Named("0", kRows).ByteSizeLong());
  while (server_->request_bytes() < 3 * message + 2 * kRows * 16) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(engine_.waiting(), 2u);
  EXPECT_LE(server_->request_bytes(), 3 * message + 2 * kRows * 16 + 1000);
  engine_.Release();
  std::set<std::string> answered;
  v1::ForwardStreamResponse answer;
  while (stream->Read(&answer)) {
    EXPECT_EQ(answer.status_code(), 0) << answer.status_message();
    answered.insert(answer.request_id());
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answered.size(), size_t{kRequests});
}

TEST_F(ForwardStreamRpc, AStreamThatIsCancelledForgetsWhatWaitsForRoom) {
  ServerOptions options = TestOptions();
  options.max_output_bytes = 100;
  StartReady(options);
  engine_.Hold();
  const auto stream = Open();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(stream->Write(Named(absl::StrCat(i), 5)));
  engine_.AwaitWaiting(1);
  context_.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_.reset();
  EXPECT_EQ(engine_.stats().dropped_cancelled, 1);
}

TEST_F(ForwardStreamRpc, CancellingTheStreamCancelsWhatWaits) {
  StartReady();
  engine_.Hold();
  const auto stream = Open();
  ASSERT_TRUE(stream->Write(Named("a")));
  ASSERT_TRUE(stream->Write(Named("b")));
  engine_.AwaitWaiting(2);
  context_.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_.reset();
  EXPECT_EQ(engine_.stats().dropped_cancelled, 2);
}

TEST_F(ForwardStreamRpc, DrainingEndsIdleStreamsAtOnceAndOthersAfterTheirAnswers) {
  StartReady();
  const auto idle = Open();
  ASSERT_TRUE(idle->Write(Named("first")));
  v1::ForwardStreamResponse answer;
  ASSERT_TRUE(idle->Read(&answer));
  engine_.Hold();
  grpc::ClientContext context;
  const auto busy = stub_->ForwardStream(&context);
  ASSERT_TRUE(busy->Write(Named("second")));
  engine_.AwaitWaiting(1);
  server_->BeginDrain();
  EXPECT_EQ(idle->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  engine_.Release();
  ASSERT_TRUE(busy->Read(&answer));
  EXPECT_EQ(answer.request_id(), "second");
  EXPECT_EQ(answer.status_code(), 0);
  const grpc::Status ended = busy->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(ended.error_message(), HasSubstr("draining"));
}

}  // namespace
}  // namespace headwise
