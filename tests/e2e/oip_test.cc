// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol against a real server: the same numbers as Forward gives.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "inference/inference.grpc.pb.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"

namespace headwise {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using ::testing::ElementsAre;

using Tensors = std::map<std::string, std::vector<float>>;

template <typename T>
void AddRaw(const std::string& name, const std::string& datatype, const std::vector<int64_t>& shape,
            const std::vector<T>& values, ModelInferRequest* request) {
  ModelInferRequest::InferInputTensor* input = request->add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  input->mutable_shape()->Assign(shape.begin(), shape.end());
  request->add_raw_input_contents(values.data(), values.size() * sizeof(T));
}

class Oip : public ::testing::Test {
 protected:
  Oip() {
    inference::RepositoryModelLoadRequest load;
    load.set_model_name("m0");
    (*load.mutable_parameters())["checkpoint"].set_string_param("data/minilm");
    (*load.mutable_parameters())["layer"].set_string_param("0");
    inference::RepositoryModelLoadResponse loaded;
    grpc::ClientContext context;
    const grpc::Status status = stub_->RepositoryModelLoad(&context, load, &loaded);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  ModelInferResponse Infer(const ModelInferRequest& request) {
    ModelInferResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->ModelInfer(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  ServerProcess server_;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_ =
      inference::GRPCInferenceService::NewStub(
          grpc::CreateChannel(server_.address(), grpc::InsecureChannelCredentials()));
  StoredInput input_ = ReadStoredInput("minilm", 0);
};

Tensors FloatsOf(const ModelInferResponse& response) {
  Tensors tensors;
  for (int i = 0; i < response.outputs_size(); ++i) {
    const std::string& raw = response.raw_output_contents(i);
    std::vector<float>& values = tensors[response.outputs(i).name()];
    values.resize(raw.size() / sizeof(float));
    std::memcpy(values.data(), raw.data(), raw.size());
  }
  return tensors;
}

TEST_F(Oip, RaggedGivesForwardsBits) {
  ModelInferRequest request;
  request.set_model_name("m0");
  const auto tokens = static_cast<int64_t>(input_.x.size()) / input_.width;
  AddRaw("x", "FP32", {tokens, input_.width}, input_.x, &request);
  AddRaw("lengths", "INT64", {static_cast<int64_t>(input_.lengths.size())}, input_.lengths,
         &request);
  for (const char* name : {"y", "z", "p"}) request.add_outputs()->set_name(name);
  const Tensors tensors = FloatsOf(Infer(request));

  const auto forward = ConnectTo(server_)->Forward(
      MakeForwardRequest("m0", input_.x, input_.lengths, {v1::Y, v1::Z, v1::P}));
  ASSERT_TRUE(forward.ok()) << forward.status();
  EXPECT_EQ(tensors.at("y"), TensorFloats(*forward, "y"));
  EXPECT_EQ(tensors.at("z"), TensorFloats(*forward, "z"));
  std::vector<float> p;
  for (size_t b = 0; b < input_.lengths.size(); ++b) {
    const std::vector<float> part = TensorFloats(*forward, "p." + std::to_string(b));
    p.insert(p.end(), part.begin(), part.end());
  }
  EXPECT_EQ(tensors.at("p"), p);
}

TEST_F(Oip, DenseKeepsItsBatchAxis) {
  const std::vector<float> x(input_.x.begin(), input_.x.begin() + 6 * input_.width);
  ModelInferRequest request;
  request.set_model_name("m0");
  AddRaw("x", "FP32", {2, 3, input_.width}, x, &request);
  request.add_outputs()->set_name("y");
  request.add_outputs()->set_name("p");
  const ModelInferResponse response = Infer(request);
  ASSERT_EQ(response.outputs_size(), 2);
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(2, 3, 384));
  EXPECT_THAT(response.outputs(1).shape(), ElementsAre(2, 12, 3, 3));
  const auto forward = ConnectTo(server_)->Forward(MakeForwardRequest("m0", x, {3, 3}));
  ASSERT_TRUE(forward.ok()) << forward.status();
  EXPECT_EQ(FloatsOf(response).at("y"), TensorFloats(*forward, "y"));
}

TEST_F(Oip, HalfPrecisionGoesInAndOut) {
  for (const char* datatype : {"BF16", "FP16"}) {
    ModelInferRequest request;
    request.set_model_name("m0");
    AddRaw("x", datatype, {2, input_.width}, std::vector<uint16_t>(2 * 384, 0), &request);
    const ModelInferResponse response = Infer(request);
    ASSERT_EQ(response.outputs_size(), 1);
    EXPECT_EQ(response.outputs(0).datatype(), datatype);
    EXPECT_EQ(response.raw_output_contents(0).size(), 2u * 384 * 2);
  }
}

TEST_F(Oip, DescribesTheLayer) {
  inference::ModelMetadataRequest request;
  request.set_name("m0");
  inference::ModelMetadataResponse metadata;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->ModelMetadata(&context, request, &metadata).ok());
  EXPECT_THAT(metadata.versions(), ElementsAre("1"));
  ASSERT_EQ(metadata.inputs_size(), 4);
  EXPECT_EQ(metadata.inputs(0).name(), "x");
  EXPECT_THAT(metadata.inputs(0).shape(), ElementsAre(-1, 384));
  EXPECT_EQ(metadata.outputs(1).name(), "z");
  EXPECT_THAT(metadata.outputs(1).shape(), ElementsAre(-1, 12, 32));
  inference::ModelConfigRequest config_request;
  config_request.set_name("m0");
  inference::ModelConfigResponse config;
  grpc::ClientContext config_context;
  ASSERT_TRUE(stub_->ModelConfig(&config_context, config_request, &config).ok());
  EXPECT_EQ(config.config().max_batch_size(), 0);
  EXPECT_FALSE(config.config().input(0).optional());
  EXPECT_TRUE(config.config().input(1).optional());
}

}  // namespace
}  // namespace headwise
