// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol over a fake engine whose forward answers y = x.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "inference/inference.grpc.pb.h"
#include "server/codec_oip.h"
#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

ModelInferRequest::InferInputTensor* AddInput(ModelInferRequest* request, const std::string& name,
                                              const std::string& datatype,
                                              const std::vector<int64_t>& shape) {
  ModelInferRequest::InferInputTensor* input = request->add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  input->mutable_shape()->Assign(shape.begin(), shape.end());
  return input;
}

// x of 3 tokens and lengths 2 and 1, raw.
ModelInferRequest Ragged() {
  ModelInferRequest request;
  request.set_model_name("toy");
  request.set_id("mine");
  AddInput(&request, "x", "FP32", {3, 4});
  AddInput(&request, "lengths", "INT64", {2});
  request.add_raw_input_contents(Bytes<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  request.add_raw_input_contents(Bytes<int64_t>({2, 1}));
  return request;
}

TEST(OipCodecTest, RawAndTypedContentsAreTheSameRequest) {
  const ModelInferRequest raw = Ragged();
  ModelInferRequest typed;
  typed.set_model_name("toy");
  for (int i = 0; i < 12; ++i) {
    if (i == 0) AddInput(&typed, "x", "FP32", {3, 4});
    typed.mutable_inputs(0)->mutable_contents()->add_fp32_contents(static_cast<float>(i));
  }
  AddInput(&typed, "lengths", "INT32", {2});
  typed.mutable_inputs(1)->mutable_contents()->add_int_contents(2);
  typed.mutable_inputs(1)->mutable_contents()->add_int_contents(1);
  (*typed.mutable_parameters())["unknown"].set_string_param("ignored");
  for (const ModelInferRequest& request : {raw, typed}) {
    const auto decoded = DecodeInfer(request);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->layer, "toy");
    EXPECT_EQ(decoded->input.x.shape, (Shape{3, 4}));
    EXPECT_EQ(std::memcmp(decoded->input.x.data, raw.raw_input_contents(0).data(), 48), 0);
    EXPECT_THAT(decoded->input.lengths, ElementsAre(2, 1));
    EXPECT_EQ(decoded->outputs, static_cast<uint32_t>(kOutputY));
  }
}

TEST(OipCodecTest, YComesInTheDatatypeOfX) {
  const std::pair<const char*, DType> kCases[] = {
      {"BF16", DType::kBF16}, {"FP16", DType::kF16}, {"FP32", DType::kF32}, {"FP64", DType::kF32}};
  for (const auto& [datatype, dtype] : kCases) {
    ModelInferRequest request;
    AddInput(&request, "x", datatype, {1, 4});
    request.add_raw_input_contents(std::string(datatype[2] == '6'   ? 32
                                               : datatype[2] == '3' ? 16
                                                                    : 8,
                                               0));
    const auto decoded = DecodeInfer(request);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->y_dtype, dtype) << datatype;
  }
}

// `break_it` makes the ragged request wrong.
void ExpectRefused(const char* message, const std::function<void(ModelInferRequest*)>& break_it) {
  ModelInferRequest request = Ragged();
  break_it(&request);
  const absl::Status status = DecodeInfer(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(OipCodecTest, RefusesByName) {
  ExpectRefused("x: must be given",
                [](ModelInferRequest* r) { r->clear_inputs(), r->clear_raw_input_contents(); });
  ExpectRefused("inputs: must be x, lengths",
                [](ModelInferRequest* r) { r->mutable_inputs(0)->set_name("input_ids"); });
  ExpectRefused("inputs: must name each tensor once", [](ModelInferRequest* r) {
    *r->add_inputs() = r->inputs(0);
    r->add_raw_input_contents(r->raw_input_contents(0));
  });
  ExpectRefused("lengths twice", [](ModelInferRequest* r) {
    *r->add_inputs() = r->inputs(1);
    r->add_raw_input_contents(r->raw_input_contents(1));
  });
  ExpectRefused("x.datatype: must be",
                [](ModelInferRequest* r) { r->mutable_inputs(0)->set_datatype("BYTES"); });
  ExpectRefused("x.contents: must be the bytes of [4, 4] of FP32; was 48 bytes",
                [](ModelInferRequest* r) { r->mutable_inputs(0)->set_shape(0, 4); });
  ExpectRefused("x.contents: must be the bytes",
                [](ModelInferRequest* r) { r->mutable_inputs(0)->set_shape(0, -3); });
  ExpectRefused("x.contents: must be the bytes",
                [](ModelInferRequest* r) { r->mutable_inputs(0)->set_shape(0, int64_t{1} << 62); });
  ExpectRefused("x.shape: must have at most", [](ModelInferRequest* r) {
    for (int i = 0; i < 9; ++i) r->mutable_inputs(0)->add_shape(1);
  });
  ExpectRefused("raw_input_contents: must be one an input, 2; was 1",
                [](ModelInferRequest* r) { r->mutable_raw_input_contents()->RemoveLast(); });
  ExpectRefused("x.contents: must be raw for all", [](ModelInferRequest* r) {
    r->mutable_inputs(0)->mutable_contents()->add_fp32_contents(1);
  });
  ExpectRefused("x.contents: must be raw for all", [](ModelInferRequest* r) {
    r->mutable_inputs(0)->set_datatype("BF16");
    r->clear_raw_input_contents();
  });
  ExpectRefused("outputs: must be y, z",
                [](ModelInferRequest* r) { r->add_outputs()->set_name("logits"); });
  ExpectRefused("lengths", [](ModelInferRequest* r) {
    r->mutable_inputs(1)->set_datatype("FP32");
    r->mutable_inputs(1)->set_shape(0, 4);
  });
}

NamedOutput Output(const std::string& name, Shape shape, std::vector<std::string> axes) {
  NamedOutput output;
  output.name = name;
  output.shape = std::move(shape);
  output.axes = std::move(axes);
  output.data.assign(static_cast<size_t>(*NumElements(output.shape)) * 4, name.back());
  return output;
}

TEST(OipCodecTest, SplitsTheTokensOfADenseInputAndJoinsWeights) {
  ModelInferRequest request;
  AddInput(&request, "x", "FP32", {2, 3, 4});
  ForwardResult result;
  result.pass.layer_version = 7;
  result.outputs = {Output("y", {6, 4}, {"token", "feature"}),
                    Output("z", {6, 2, 2}, {"token", "head", "feature"}),
                    Output("k", {10, 2, 2}, {"token", "head", "feature"}),
                    Output("p.0", {2, 3, 3}, {"head", "query", "key"}),
                    Output("p.1", {2, 3, 3}, {"head", "query", "key"}),
                    Output("scores.0", {2, 3, 3}, {"head", "query", "key"}),
                    Output("scores.1", {2, 3, 2}, {"head", "query", "key"})};
  ModelInferResponse response;
  EncodeInfer(std::move(result), request, &response);
  EXPECT_EQ(response.model_version(), "7");
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& output : response.outputs()) {
    shapes[output.name()] = {output.shape().begin(), output.shape().end()};
  }
  EXPECT_THAT(shapes["y"], ElementsAre(2, 3, 4));
  EXPECT_THAT(shapes["z"], ElementsAre(2, 3, 2, 2));
  EXPECT_THAT(shapes["k"], ElementsAre(10, 2, 2));  // of a memory: not x's tokens
  EXPECT_THAT(shapes["p"], ElementsAre(2, 2, 3, 3));
  EXPECT_THAT(shapes["scores"], ElementsAre(30));
  ASSERT_EQ(response.raw_output_contents_size(), 5);
  EXPECT_EQ(response.raw_output_contents(3), std::string(72, '0') + std::string(72, '1'));
}

class OipRpc : public ServerFixture {
 protected:
  void SetUp() override {
    StartReady();
    oip_ = inference::GRPCInferenceService::NewStub(server_->grpc_server()->InProcessChannel({}));
  }
  template <typename Request, typename Response>
  grpc::Status Ask(grpc::Status (inference::GRPCInferenceService::Stub::*method)(
                       grpc::ClientContext*, const Request&, Response*),
                   const Request& request, Response* response) {
    grpc::ClientContext context;
    return (oip_.get()->*method)(&context, request, response);
  }
  bool ModelReady(const std::string& name, const std::string& version) {
    inference::ModelReadyRequest request;
    request.set_name(name);
    request.set_version(version);
    inference::ModelReadyResponse response;
    EXPECT_TRUE(Ask(&Stub::ModelReady, request, &response).ok());
    return response.ready();
  }

  using Stub = inference::GRPCInferenceService::Stub;
  std::unique_ptr<Stub> oip_;
};

TEST_F(OipRpc, SaysWhatLivesAndWhatIsReady) {
  inference::ServerLiveResponse live;
  ASSERT_TRUE(Ask(&Stub::ServerLive, {}, &live).ok());
  EXPECT_TRUE(live.live());
  inference::ServerReadyResponse ready;
  ASSERT_TRUE(Ask(&Stub::ServerReady, {}, &ready).ok());
  EXPECT_TRUE(ready.ready());
  EXPECT_TRUE(ModelReady("toy", ""));
  EXPECT_TRUE(ModelReady("toy", "1"));
  EXPECT_FALSE(ModelReady("toy", "2"));
  EXPECT_FALSE(ModelReady("another", ""));
  inference::ServerMetadataResponse metadata;
  ASSERT_TRUE(Ask(&Stub::ServerMetadata, {}, &metadata).ok());
  EXPECT_EQ(metadata.name(), "headwise");
  EXPECT_THAT(metadata.extensions(), Contains("model_repository"));
}

TEST_F(OipRpc, InfersAndCounts) {
  for (int i = 0; i < 3; ++i) {
    ModelInferResponse response;
    const grpc::Status status = Ask(&Stub::ModelInfer, Ragged(), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.id(), "mine");
    EXPECT_EQ(response.model_name(), "toy");
    ASSERT_EQ(response.outputs_size(), 1);
    EXPECT_EQ(response.outputs(0).name(), "y");
    EXPECT_EQ(response.outputs(0).datatype(), "FP32");
    EXPECT_EQ(response.raw_output_contents(0), Ragged().raw_input_contents(0));
  }
  ModelInferRequest wrong = Ragged();
  wrong.mutable_inputs(0)->set_name("y");
  ModelInferResponse refused;
  EXPECT_EQ(Ask(&Stub::ModelInfer, wrong, &refused).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  inference::ModelStatisticsResponse statistics;
  ASSERT_TRUE(Ask(&Stub::ModelStatistics, {}, &statistics).ok());
  ASSERT_EQ(statistics.model_stats_size(), 1);
  const inference::ModelStatistics& toy = statistics.model_stats(0);
  EXPECT_EQ(toy.inference_stats().success().count(), 3u);
  EXPECT_EQ(toy.inference_stats().fail().count(), 1u);
  EXPECT_EQ(toy.inference_stats().queue().ns(), 3 * 7000u);
  EXPECT_EQ(toy.inference_stats().compute_infer().ns(), 3 * 11000u);
  EXPECT_EQ(toy.execution_count(), 3u);
  EXPECT_GT(toy.last_inference(), 0u);
}

TEST_F(OipRpc, UnknownModelsAndVersionsAreNotFound) {
  ModelInferRequest request = Ragged();
  request.set_model_version("2");
  ModelInferResponse response;
  EXPECT_EQ(Ask(&Stub::ModelInfer, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_model_version("");
  request.set_model_name("another");
  EXPECT_EQ(Ask(&Stub::ModelInfer, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  inference::ModelMetadataRequest metadata;
  metadata.set_name("toy");
  metadata.set_version("one");
  inference::ModelMetadataResponse described;
  EXPECT_EQ(Ask(&Stub::ModelMetadata, metadata, &described).error_code(),
            grpc::StatusCode::NOT_FOUND);
  inference::ModelConfigRequest config;
  config.set_name("another");
  inference::ModelConfigResponse configured;
  EXPECT_EQ(Ask(&Stub::ModelConfig, config, &configured).error_code(), grpc::StatusCode::NOT_FOUND);
  inference::ModelStatisticsRequest statistics;
  statistics.set_name("another");
  inference::ModelStatisticsResponse counted;
  EXPECT_EQ(Ask(&Stub::ModelStatistics, statistics, &counted).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(OipRpc, IndexesLoadsAndUnloads) {
  inference::RepositoryIndexResponse index;
  ASSERT_TRUE(Ask(&Stub::RepositoryIndex, {}, &index).ok());
  std::map<std::string, std::string> states;
  for (const auto& model : index.models()) states[model.name()] = model.state();
  EXPECT_EQ(states["toy"], "READY");
  EXPECT_EQ(states["minilm.3"], "UNAVAILABLE");
  inference::RepositoryIndexRequest ready;
  ready.set_ready(true);
  ASSERT_TRUE(Ask(&Stub::RepositoryIndex, ready, &index).ok());
  EXPECT_EQ(index.models_size(), 1);

  inference::RepositoryModelLoadRequest load;
  inference::RepositoryModelLoadResponse loaded;
  load.set_model_name("minilm.3");
  const grpc::Status by_name = Ask(&Stub::RepositoryModelLoad, load, &loaded);
  ASSERT_TRUE(by_name.ok()) << by_name.error_message();
  EXPECT_TRUE(ModelReady("minilm.3", ""));
  load.set_model_name("mine");
  (*load.mutable_parameters())["checkpoint"].set_string_param("minilm");
  (*load.mutable_parameters())["layer"].set_string_param("2");
  const grpc::Status by_parameters = Ask(&Stub::RepositoryModelLoad, load, &loaded);
  ASSERT_TRUE(by_parameters.ok()) << by_parameters.error_message();
  EXPECT_TRUE(ModelReady("mine", "1"));
  ASSERT_TRUE(Ask(&Stub::RepositoryModelLoad, load, &loaded).ok());  // again: a new version
  EXPECT_TRUE(ModelReady("mine", "2"));
  (*load.mutable_parameters())["dtype"].set_string_param("f8");
  EXPECT_EQ(Ask(&Stub::RepositoryModelLoad, load, &loaded).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  load.clear_parameters();
  load.set_model_name("toy");  // is there, though no checkpoint has it
  EXPECT_TRUE(Ask(&Stub::RepositoryModelLoad, load, &loaded).ok());
  load.set_model_name("minilm.99");
  EXPECT_EQ(Ask(&Stub::RepositoryModelLoad, load, &loaded).error_code(),
            grpc::StatusCode::NOT_FOUND);

  inference::RepositoryModelUnloadRequest unload;
  inference::RepositoryModelUnloadResponse unloaded;
  unload.set_model_name("mine");
  EXPECT_TRUE(Ask(&Stub::RepositoryModelUnload, unload, &unloaded).ok());
  EXPECT_FALSE(ModelReady("mine", ""));
  EXPECT_EQ(Ask(&Stub::RepositoryModelUnload, unload, &unloaded).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

class OipDoorsRpc : public ServerFixture {
 protected:
  using Stub = inference::GRPCInferenceService::Stub;

  void SetUp() override {
    ServerOptions options = TestOptions();
    options.admin_listen = "127.0.0.1:0";
    StartReady(options);
    open_ = inference::GRPCInferenceService::NewStub(server_->grpc_server()->InProcessChannel({}));
    const std::string banner = server_->Banner();
    admin_ = inference::GRPCInferenceService::NewStub(
        grpc::CreateChannel(banner.substr(banner.rfind(' ') + 1),  // "listening A admin B"
                            grpc::InsecureChannelCredentials()));
  }
  static grpc::Status Load(Stub* stub, const std::string& name) {
    grpc::ClientContext context;
    inference::RepositoryModelLoadRequest request;
    request.set_model_name(name);
    inference::RepositoryModelLoadResponse response;
    return stub->RepositoryModelLoad(&context, request, &response);
  }
  static grpc::Status Unload(Stub* stub, const std::string& name) {
    grpc::ClientContext context;
    inference::RepositoryModelUnloadRequest request;
    request.set_model_name(name);
    inference::RepositoryModelUnloadResponse response;
    return stub->RepositoryModelUnload(&context, request, &response);
  }
  static inference::ModelStatisticsResponse Statistics(Stub* stub) {
    grpc::ClientContext context;
    inference::ModelStatisticsResponse response;
    EXPECT_TRUE(stub->ModelStatistics(&context, {}, &response).ok());
    return response;
  }

  std::unique_ptr<Stub> open_, admin_;
};

TEST_F(OipDoorsRpc, OnlyTheAdministrationsAddressLoadsAndUnloads) {
  for (const grpc::Status& refused : {Load(open_.get(), "minilm.3"), Unload(open_.get(), "toy")}) {
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(refused.error_message(), HasSubstr("--admin-listen; was Repository"));
  }
  const grpc::Status loaded = Load(admin_.get(), "minilm.3");
  EXPECT_TRUE(loaded.ok()) << loaded.error_message();
  const grpc::Status unloaded = Unload(admin_.get(), "minilm.3");
  EXPECT_TRUE(unloaded.ok()) << unloaded.error_message();
}

TEST_F(OipDoorsRpc, StatisticsAreTheSameAtEveryAddress) {
  grpc::ClientContext context;
  ModelInferResponse response;
  ASSERT_TRUE(open_->ModelInfer(&context, Ragged(), &response).ok());
  for (Stub* stub : {open_.get(), admin_.get()}) {
    const inference::ModelStatisticsResponse statistics = Statistics(stub);
    ASSERT_EQ(statistics.model_stats_size(), 1);
    EXPECT_EQ(statistics.model_stats(0).inference_stats().success().count(), 1u);
  }
}

}  // namespace
}  // namespace headwise
