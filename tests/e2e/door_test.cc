// SPDX-License-Identifier: Apache-2.0
// What strangers do at the door: bombs, floods, silence, garbage. The others go on, and memory
// comes back.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/format/file.h"
#include "headwise/v1/headwise.grpc.pb.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kWidth = 64, kHeads = 4;

// A caller who minds their own business all the while. None of their calls may fail for good.
class Bystander {
 public:
  explicit Bystander(const ServerProcess& server) {
    thread_ = std::thread([this, &server] {
      const auto client = ConnectTo(server, 20.0);
      const auto request = MakeForwardRequest("layer", RandomFloats(8 * kWidth, 1), {8});
      while (!stop_) {
        auto answer = client->Forward(request);
        // Short of memory gRPC closes idle connections: UNAVAILABLE, and worth one more try.
        if (absl::IsUnavailable(answer.status())) answer = client->Forward(request);
        if (!answer.ok()) ADD_FAILURE() << answer.status();
        ++calls_;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
  }
  ~Bystander() {
    stop_ = true;
    thread_.join();
    EXPECT_GT(calls_, 0);
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> calls_{0};
  std::thread thread_;
};

class Door : public ::testing::Test {
 protected:
  // Loads "layer" on a server with these flags.
  void Open(const std::vector<std::string>& flags = {}) {
    server_ = std::make_unique<ServerProcess>(flags);
    UploadRandomLayer(ConnectTo(*server_).get(), "layer", kWidth, kHeads);
  }
  std::unique_ptr<v1::Headwise::Stub> PlainStub(bool own_connection = true) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, own_connection ? 1 : 0);
    arguments.SetMaxReceiveMessageSize(-1);
    return v1::Headwise::NewStub(grpc::CreateCustomChannel(
        server_->address(), grpc::InsecureChannelCredentials(), arguments));
  }
  // Resident memory falls back to `bytes` within a few seconds.
  void ExpectResidentFallsTo(int64_t bytes) const {
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (server_->ResidentBytes() > bytes && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_LE(server_->ResidentBytes(), bytes);
  }

  std::unique_ptr<ServerProcess> server_;
};

// A message whose x holds about that many bytes of zeros, in short sequences.
v1::ForwardRequest Zeros(int64_t bytes) {
  constexpr int64_t kRowBytes = kWidth * 4, kLength = 64;
  const int64_t sequences = bytes / (kRowBytes * kLength);
  bytes = sequences * kLength * kRowBytes;
  v1::ForwardRequest request;
  for (int64_t i = 0; i < sequences; ++i) request.mutable_input()->add_lengths(kLength);
  request.set_layer("layer");
  v1::Tensor* const x = request.mutable_input()->mutable_x();
  x->set_dtype(v1::F32);
  x->add_shape(static_cast<uint32_t>(bytes / kRowBytes));
  x->add_shape(kWidth);
  x->set_data(std::string(static_cast<size_t>(bytes), '\0'));
  return request;
}

TEST_F(Door, ACompressedBombIsRefusedUnopened) {
  Open();
  const Bystander bystander(*server_);
  const int64_t before = server_->PeakResidentBytes();
  const auto stub = PlainStub();
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    v1::ForwardResponse response;
    const grpc::Status status = stub->Forward(&context, Zeros(64 * kMiB), &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  }
  // Twice 64 MiB of zeros are some 130 KiB on the wire.
  EXPECT_LE(server_->PeakResidentBytes(), before + 16 * kMiB);
}

TEST_F(Door, AMessageFarOverTheLimitStaysWithinTheBudget) {
  // gRPC takes a message in before it looks at its size; its quota, half of the budget, is what
  // stops it. The allocator needs as much again.
  constexpr int64_t kBudget = 64 * kMiB;
  Open({"--max-message-bytes", "4MiB", "--request-budget-bytes", "64MiB"});
  const Bystander bystander(*server_);
  const int64_t before = server_->ResidentBytes();
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::ForwardResponse response;
    const grpc::Status status = PlainStub()->Forward(&context, Zeros(300 * kMiB), &response);
    EXPECT_THAT(status.error_code(), ::testing::AnyOf(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                                      grpc::StatusCode::UNAVAILABLE))
        << status.error_message();
  }
  RecordProperty("peak_growth_mib",
                 static_cast<int>((server_->PeakResidentBytes() - before) / kMiB));
  EXPECT_LE(server_->PeakResidentBytes(), before + kBudget + kBudget / 4);
  ExpectResidentFallsTo(before + 64 * kMiB);
}

TEST_F(Door, ManyLargeMessagesAtOnceStayWithinTheBudget) {
  // What requests hold, and what gRPC and the allocator add while more arrive.
  constexpr int64_t kBudget = 128 * kMiB;
  Open({"--request-budget-bytes", "128MiB"});
  const int64_t before = server_->ResidentBytes();
  const v1::ForwardRequest request = Zeros(10'000'000);
  std::vector<std::future<grpc::Status>> calls;
  for (int i = 0; i < 60; ++i) {
    calls.push_back(std::async(std::launch::async, [&] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      v1::ForwardResponse response;
      return PlainStub()->Forward(&context, request, &response);
    }));
  }
  for (auto& call : calls) {
    const grpc::StatusCode code = call.get().error_code();
    EXPECT_THAT(
        code, ::testing::AnyOf(grpc::StatusCode::OK, grpc::StatusCode::RESOURCE_EXHAUSTED,
                               grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::DEADLINE_EXCEEDED));
  }
  RecordProperty("peak_growth_mib",
                 static_cast<int>((server_->PeakResidentBytes() - before) / kMiB));
  EXPECT_LE(server_->PeakResidentBytes(), before + 2 * kBudget + kBudget / 4);
  EXPECT_TRUE(
      ConnectTo(*server_)->Forward(MakeForwardRequest("layer", RandomFloats(kWidth, 1), {1})).ok());
  ExpectResidentFallsTo(before + 64 * kMiB);
}

TEST_F(Door, ASecondServerOnThePortDoesNotStart) {
  Open();
  const CommandResult second =
      RunProgram("headwise-server", {"--listen", server_->address(), "--metrics", "127.0.0.1:0"});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr("UNAVAILABLE: listen: must be a HOST:PORT or unix:PATH that "
                                    "is free"));
}

UniqueFd ConnectRaw(const std::string& address) {
  uint32_t port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return UniqueFd();
  return fd;
}

void Send(const UniqueFd& fd, const std::string& bytes) {
  // The server may have hung up, which is its right.
  (void)!send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// An empty one: nine bytes of header, type 4.
std::string SettingsFrame() {
  std::string frame(9, '\0');
  frame[3] = 4;
  return frame;
}

TEST_F(Door, AThousandSilentConnectionsHurtNobody) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  ASSERT_GE(files.rlim_max, rlim_t{3000});
  Open();
  const Bystander bystander(*server_);
  const int64_t before = server_->ResidentBytes();
  {
    std::vector<UniqueFd> connections;
    for (int i = 0; i < 1000; ++i) {
      connections.push_back(ConnectRaw(server_->address()));
      ASSERT_TRUE(connections.back().ok()) << i;
      // A third says nothing, a third half of its greeting, a third all of it.
      if (i % 3 == 1) Send(connections.back(), std::string(kPreface).substr(0, 10));
      if (i % 3 == 2) Send(connections.back(), kPreface + SettingsFrame());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_TRUE(ConnectTo(*server_)
                    ->Forward(MakeForwardRequest("layer", RandomFloats(kWidth, 1), {1}))
                    .ok());
    RecordProperty("bytes_a_connection",
                   static_cast<int>((server_->ResidentBytes() - before) / 1000));
  }
  ExpectResidentFallsTo(before + 64 * kMiB);
}

TEST_F(Door, SlowSendersHurtNobody) {
  Open();
  const Bystander bystander(*server_);
  std::vector<UniqueFd> connections;
  for (int i = 0; i < 50; ++i) connections.push_back(ConnectRaw(server_->address()));
  // A byte at a time: of a request whose headers never end.
  const std::string bytes = kPreface + SettingsFrame() + std::string("\0\x40\0\1\0\0\0\0\1", 9);
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const UniqueFd& connection : connections) Send(connection, bytes.substr(i, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST_F(Door, GarbageHurtsNobody) {
  Open();
  const Bystander bystander(*server_);
  std::mt19937 random(20);
  for (int i = 0; i < 300; ++i) {
    const UniqueFd connection = ConnectRaw(server_->address());
    ASSERT_TRUE(connection.ok());
    std::string bytes = i % 2 == 0 ? "" : kPreface + SettingsFrame();
    const size_t count = 1 + random() % 4000;
    for (size_t b = 0; b < count; ++b) bytes.push_back(static_cast<char>(random()));
    Send(connection, bytes);
    if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const UniqueFd web = ConnectRaw(server_->address());
  Send(web, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
}

TEST_F(Door, AClientThatNeverReadsHoldsNoMoreThanItsAnswers) {
  constexpr int64_t kOutput = 32 * kMiB;
  Open({"--max-output-bytes", "32MiB"});
  const Bystander bystander(*server_);
  const int64_t before = server_->ResidentBytes();
  const auto stub = PlainStub();
  grpc::ClientContext context;
  auto stream = stub->ForwardStream(&context);
  // 2 MiB each way, a hundred of them; nobody reads.
  std::atomic<int> written{0};
  std::thread writer([&] {
    const v1::ForwardRequest request = Zeros(2 * kMiB);
    for (int i = 0; i < 100 && stream->Write(request); ++i) ++written;
  });
  int seen = -1;
  while (seen != written) {
    seen = written;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  EXPECT_LT(written, 100);
  EXPECT_LE(server_->Metric("headwise_memory_bytes{kind=\"requests\"}"),
            static_cast<double>(kOutput + 16 * 2 * kMiB + kMiB));
  EXPECT_LE(server_->ResidentBytes(), before + kOutput + 96 * kMiB);
  context.TryCancel();
  writer.join();
  (void)stream->Finish();
  ExpectResidentFallsTo(before + 64 * kMiB);
}

}  // namespace
}  // namespace headwise
