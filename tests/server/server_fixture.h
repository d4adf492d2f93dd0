// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_TESTS_SERVER_SERVER_FIXTURE_H_
#define HEADWISE_TESTS_SERVER_SERVER_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "headwise/v1/headwise.grpc.pb.h"
#include "server/server.h"
#include "tests/server/fake_engine.h"

namespace headwise {

// A server over a FakeEngine that has the layer "toy", reached in process.
class ServerFixture : public ::testing::Test {
 protected:
  ServerFixture();

  // Options for tests: ports chosen by the system, no HTTP, the test data as repository.
  static ServerOptions TestOptions();

  // Starts the server, loads nothing yet. Fails the test if it can't.
  void Start(const ServerOptions& options = TestOptions());
  // As Start; and it is ready.
  void StartReady(const ServerOptions& options = TestOptions());

  // Loads layer 3 of the repository's minilm. Fails the test if it can't.
  void LoadMinilm(const std::string& name);

  // A channel over TCP to the server's port.
  std::shared_ptr<grpc::Channel> TcpChannel() const;

  FakeEngine engine_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Headwise::Stub> stub_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

// A [rows, 4] F32 tensor of 0, 1, 2, …
v1::Tensor Rows(int rows);

// A forward request for "toy".
v1::ForwardRequest ToyForward(int rows);

// Trailing metadata as a map.
std::map<std::string, std::string> Trailing(const grpc::ClientContext& context);

// The messages of a server stream, and how it ended.
template <typename Message>
struct Streamed {
  std::vector<Message> messages;
  grpc::Status status;
};
template <typename Message>
Streamed<Message> ReadAll(grpc::ClientReaderInterface<Message>* reader) {
  Streamed<Message> result;
  Message message;
  while (reader->Read(&message)) result.messages.push_back(message);
  result.status = reader->Finish();
  return result;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SERVER_SERVER_FIXTURE_H_
