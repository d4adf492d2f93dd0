// SPDX-License-Identifier: Apache-2.0
#include "tests/server/server_fixture.h"

#include <numeric>

#include "absl/strings/str_split.h"
#include "tests/support/bytes.h"

namespace headwise {

ServerFixture::ServerFixture() { engine_.AddLayer("toy"); }

ServerOptions ServerFixture::TestOptions() {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.metrics = "";
  options.repository = TestDataPath("data");
  return options;
}

void ServerFixture::Start(const ServerOptions& options) {
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, &engine_);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  const auto channel = server_->grpc_server()->InProcessChannel({});
  stub_ = v1::Headwise::NewStub(channel);
  health_ = grpc::health::v1::Health::NewStub(channel);
}

void ServerFixture::StartReady(const ServerOptions& options) {
  Start(options);
  const absl::Status loaded = server_->LoadStartupLayers();
  ASSERT_TRUE(loaded.ok()) << loaded;
}

void ServerFixture::LoadMinilm(const std::string& name) {
  v1::LoadLayerRequest request;
  request.set_name(name);
  request.set_checkpoint("minilm");
  request.set_layer("3");
  v1::LoadLayerResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->LoadLayer(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
}

std::shared_ptr<grpc::Channel> ServerFixture::TcpChannel() const {
  const std::vector<std::string> banner = absl::StrSplit(server_->Banner(), ' ');
  return grpc::CreateChannel(banner.at(1), grpc::InsecureChannelCredentials());
}

v1::Tensor Rows(int rows) {
  std::vector<float> values(static_cast<size_t>(rows) * 4);
  std::iota(values.begin(), values.end(), 0.0f);
  v1::Tensor tensor;
  tensor.set_dtype(v1::F32);
  tensor.add_shape(static_cast<uint32_t>(rows));
  tensor.add_shape(4);
  tensor.set_data(values.data(), values.size() * sizeof(float));
  return tensor;
}

v1::ForwardRequest ToyForward(int rows) {
  v1::ForwardRequest request;
  request.set_layer("toy");
  *request.mutable_input()->mutable_x() = Rows(rows);
  return request;
}

std::map<std::string, std::string> Trailing(const grpc::ClientContext& context) {
  std::map<std::string, std::string> result;
  for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
    result[std::string(key.data(), key.size())] = std::string(value.data(), value.size());
  }
  return result;
}

}  // namespace headwise
