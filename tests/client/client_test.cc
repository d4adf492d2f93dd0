// SPDX-License-Identifier: Apache-2.0
// The client against a stub server over loopback.
#include "client/client.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/stub_server.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise::client {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

std::unique_ptr<Client> ConnectTo(const StubServer& server,
                                  absl::Duration timeout = absl::Seconds(30)) {
  return *Client::Connect(server.target(), {.timeout = timeout});
}

TEST(ClientTest, HasNoMessageLimitOfItsOwn) {
  const auto server = StubServer::Start({});
  v1::ForwardRequest request;
  v1::Tensor* x = request.mutable_input()->mutable_x();
  x->set_dtype(v1::F32);
  for (const uint32_t axis : {8u, 512u, 768u}) x->add_shape(axis);
  x->set_data(std::string(8 * 512 * 768 * 4, '\1'));  // 12,582,912 bytes each way
  const auto response = ConnectTo(*server)->Forward(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->tensors(0).data(), x->data());
}

TEST(ClientTest, NamesTheServersMessageLimit) {
  StubAnswers answers;
  answers.max_message_bytes = 1000;
  const auto server = StubServer::Start(answers);
  v1::ForwardRequest request;
  request.mutable_input()->mutable_x()->set_data(std::string(2000, 'x'));
  const absl::Status status = ConnectTo(*server)->Forward(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            absl::StrCat("message: must be at most 1000 bytes (the server's --max-message-bytes); "
                         "was ",
                         request.ByteSizeLong()));
}

TEST(ClientTest, HandsOnTheServersCodeAndMessage) {
  StubAnswers answers;
  answers.forward = [](const v1::ForwardRequest&, v1::ForwardResponse*) {
    return absl::FailedPreconditionError("expected_version: must be 2; was 1");
  };
  const auto server = StubServer::Start(answers);
  EXPECT_EQ(ConnectTo(*server)->Forward({}).status(),
            absl::FailedPreconditionError("expected_version: must be 2; was 1"));
  EXPECT_EQ(ConnectTo(*server)->ServerInfo().status().code(), absl::StatusCode::kUnimplemented);
}

TEST(ClientTest, NamesAServerThatIsNotThere) {
  std::string target;
  {
    const auto server = StubServer::Start({});
    target = server->target();
  }
  const auto layers = (*Client::Connect(target))->ListLayers();
  EXPECT_EQ(layers.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(layers.status().message(), StartsWith("server: must answer at " + target));
}

TEST(ClientTest, GivesUpAfterTheTimeout) {
  StubAnswers answers;
  answers.forward = [](const v1::ForwardRequest&, v1::ForwardResponse*) {
    return absl::DeadlineExceededError("Deadline Exceeded");
  };
  const auto server = StubServer::Start(answers);
  const absl::Status status = ConnectTo(*server, absl::Seconds(20))->Forward({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "timeout: the answer must come within 20s; was later");
}

v1::AblateResponse ResultPart() {
  v1::AblateResponse part;
  v1::NamedTensor* y = part.mutable_result()->add_tensors();
  y->set_name("y");
  y->set_dtype(v1::F32);
  y->add_shape(2);
  v1::NamedTensor* empty = part.mutable_result()->add_tensors();
  empty->set_name("ablation.0.y");
  empty->set_dtype(v1::F32);
  empty->add_shape(0);
  return part;
}

v1::AblateResponse ChunkPart(uint32_t tensor, int64_t offset, const std::string& data) {
  v1::AblateResponse part;
  part.mutable_chunk()->set_tensor(tensor);
  part.mutable_chunk()->set_offset(offset);
  part.mutable_chunk()->set_data(data);
  return part;
}

v1::AblateResponse ProgressPart() {
  v1::AblateResponse part;
  part.mutable_progress()->set_stage("project");
  part.mutable_progress()->set_total(3);
  return part;
}

TEST(ClientAblateTest, PutsTheStreamTogether) {
  v1::AblateResponse queued = ProgressPart();
  queued.mutable_progress()->set_stage("queued");
  queued.mutable_progress()->set_bytes(4096);
  StubAnswers answers;
  answers.ablate_parts = {queued, ProgressPart(), ResultPart(), ChunkPart(0, 0, "abcde"),
                          ChunkPart(0, 5, "fgh")};
  const auto server = StubServer::Start(answers);
  std::vector<std::string> stages;
  const auto result = ConnectTo(*server)->Ablate(
      {}, [&](const std::string& name, int64_t, int64_t) { stages.push_back(name); });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(stages, ElementsAre("queued, takes 4.00 KiB there", "project"));
  EXPECT_EQ(result->tensors(0).data(), "abcdefgh");
  EXPECT_TRUE(result->tensors(1).has_data());
}

TEST(ClientAblateTest, RefusesStreamsThatDoNotFit) {
  const std::vector<std::vector<v1::AblateResponse>> kBroken = {
      {},
      {ProgressPart()},
      {ChunkPart(0, 0, "abcdefgh")},
      {ResultPart()},
      {ResultPart(), ChunkPart(0, 0, "abcd")},
      {ResultPart(), ChunkPart(0, 1, "abcdefgh")},
      {ResultPart(), ChunkPart(2, 0, "abcdefgh")},
      {ResultPart(), ChunkPart(0, 0, "abcdefgh"), ChunkPart(0, 8, "i")},
      {ResultPart(), ResultPart(), ChunkPart(0, 0, "abcdefgh")}};
  for (const auto& parts : kBroken) {
    StubAnswers answers;
    answers.ablate_parts = parts;
    const auto server = StubServer::Start(answers);
    EXPECT_EQ(ConnectTo(*server)->Ablate({}).status().code(), absl::StatusCode::kInternal)
        << parts.size();
  }
}

TEST(ClientAblateTest, PrefersTheServersError) {
  StubAnswers answers;
  answers.ablate_parts = {ProgressPart()};
  answers.ablate_status = absl::NotFoundError("layer: must be loaded; was m9");
  const auto server = StubServer::Start(answers);
  EXPECT_EQ(ConnectTo(*server)->Ablate({}).status(), answers.ablate_status);
}

TEST(ClientUploadTest, StreamsHeaderThenChunks) {
  const TempDir dir;
  const std::string weights = dir.Write(
      "w.safetensors", FloatSafetensors({{"big", {1200, 1024}}, {"none", {0}}, {"small", {2}}}));
  const auto server = StubServer::Start({});
  const auto response = ConnectTo(*server)->UploadSpecLayer(
      R"({"tensors":{"q":"big","k":"none","o_bias":"small"}})", weights, {.name = "mine"});
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->layer().name(), "mine");
  const auto parts = server->uploaded();
  ASSERT_EQ(parts.size(), 4u);  // header, two chunks of big, one of small
  EXPECT_EQ(parts[0].header().total_bytes(), 1200 * 1024 * 4 + 8);
  EXPECT_EQ(parts[1].chunk().data().size(), 4u << 20);
  EXPECT_EQ(parts[2].chunk().offset(), 4 << 20);
  EXPECT_EQ(parts[3].chunk().tensor(), 2u);
}

TEST(ClientUploadTest, ReportsARefusalInMidStream) {
  const TempDir dir;
  const std::string weights = dir.Write("w.safetensors", FloatSafetensors({{"big", {4096, 1024}}}));
  StubAnswers answers;
  answers.upload_status = absl::AlreadyExistsError("name: must be free; was mine");
  const auto server = StubServer::Start(answers);
  EXPECT_EQ(ConnectTo(*server)
                ->UploadSpecLayer(R"({"tensors":{"q":"big"}})", weights, {.name = "mine"})
                .status(),
            answers.upload_status);
}

}  // namespace
}  // namespace headwise::client
