// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LayerRpc : public ServerFixture {
 protected:
  grpc::Status Load(const std::string& name, const std::string& checkpoint,
                    const std::string& layer, bool replace = false, v1::DType dtype = v1::F32) {
    v1::LoadLayerRequest request;
    request.set_name(name);
    request.set_checkpoint(checkpoint);
    request.set_layer(layer);
    request.set_replace(replace);
    request.set_dtype(dtype);
    grpc::ClientContext context;
    return stub_->LoadLayer(&context, request, &loaded_);
  }

  v1::LoadLayerResponse loaded_;
};

TEST_F(LayerRpc, LoadsFromTheRepository) {
  StartReady();
  const grpc::Status status = Load("m0", "minilm", "0");
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(loaded_.layer().name(), "m0");
  EXPECT_EQ(loaded_.layer().version(), 1u);
  EXPECT_EQ(loaded_.layer().family(), "bert");
  EXPECT_EQ(loaded_.layer().state(), v1::READY);
  EXPECT_EQ(loaded_.layer().d_model(), 384u);
  EXPECT_EQ(Load("m0", "minilm", "0").error_code(), grpc::StatusCode::ALREADY_EXISTS);
  ASSERT_TRUE(Load("m0", "minilm", "0", /*replace=*/true).ok());
  EXPECT_EQ(loaded_.layer().version(), 2u);
}

TEST_F(LayerRpc, RefusalsByWhatIsWrong) {
  StartReady();
  EXPECT_EQ(Load("a", "nowhere", "0").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Load("a", "minilm", "77").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Load("a", "../data/minilm", "0").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Load("a", "/etc", "0").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Load("a", "", "0").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Load("a", "minilm", "zero").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const grpc::Status f16 = Load("a", "minilm", "0", false, v1::F16);
  EXPECT_EQ(f16.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(f16.error_message(), HasSubstr("dtype"));
  EXPECT_FALSE(engine_.GetLayer("a").ok());
}

TEST_F(LayerRpc, WithoutARepository) {
  ServerOptions options = TestOptions();
  options.repository = "";
  StartReady(options);
  const grpc::Status status = Load("a", "minilm", "0");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("--repository"));
}

TEST_F(LayerRpc, ListShowUnload) {
  StartReady();
  ASSERT_TRUE(Load("m0", "minilm", "0").ok());
  grpc::ClientContext list_context;
  v1::ListLayersResponse list;
  ASSERT_TRUE(stub_->ListLayers(&list_context, {}, &list).ok());
  ASSERT_EQ(list.layers_size(), 2);
  EXPECT_EQ(list.layers(0).name(), "m0");

  grpc::ClientContext show_context;
  v1::GetLayerRequest show;
  show.set_name("m0");
  v1::LayerDetails details;
  ASSERT_TRUE(stub_->GetLayer(&show_context, show, &details).ok());
  EXPECT_EQ(details.source().dir(), "minilm");
  EXPECT_EQ(details.source().layer(), "0");
  EXPECT_EQ(details.source().fused_layout(), v1::SEPARATE);
  EXPECT_EQ(details.head_ids_size(), 12);
  EXPECT_EQ(details.spec().dk_size(), 12);
  EXPECT_FALSE(details.x_enters().empty());
  EXPECT_EQ(details.tensors_size(), 8);
  EXPECT_EQ(details.tensors(0).orientation(), v1::OUT_IN);
  EXPECT_GT(details.counts_size(), 0);

  v1::UnloadLayerRequest unload;
  unload.set_name("m0");
  v1::UnloadLayerResponse unloaded;
  grpc::ClientContext unload_context;
  ASSERT_TRUE(stub_->UnloadLayer(&unload_context, unload, &unloaded).ok());
  EXPECT_EQ(unloaded.layer().name(), "m0");
  grpc::ClientContext again_context;
  EXPECT_EQ(stub_->UnloadLayer(&again_context, unload, &unloaded).error_code(),
            grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext gone_context;
  EXPECT_EQ(stub_->GetLayer(&gone_context, show, &details).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(LayerRpc, DemoLoadsTheTwoHeadLayersAndWhatTheRepositoryHas) {
  ServerOptions options = TestOptions();
  options.demo = true;
  StartReady(options);
  std::vector<std::string> names;
  for (const LayerInfo& info : engine_.ListLayers()) names.push_back(info.name);
  EXPECT_THAT(names, ElementsAre("minilm", "smollm2", "toy", "two-head", "two-head-unequal"));
}

TEST_F(LayerRpc, AStartUpLayerThatFailsIsNamed) {
  ServerOptions options = TestOptions();
  options.strict_start = true;
  options.loads = {{"bad", "nowhere", "0", "f32"}};
  Start(options);
  grpc::ClientContext context;
  v1::ListLayersResponse list;
  ASSERT_TRUE(stub_->ListLayers(&context, {}, &list).ok());
  ASSERT_EQ(list.layers_size(), 2);
  EXPECT_EQ(list.layers(0).name(), "bad");
  EXPECT_EQ(list.layers(0).state(), v1::LOADING);
  const absl::Status status = server_->LoadStartupLayers();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bad"));
}

TEST_F(LayerRpc, WithoutStrictStartTheRestIsServedAndTheServerIsNotReady) {
  ServerOptions options = TestOptions();
  options.loads = {{"bad", "nowhere", "0", "f32"}, {"good", "minilm", "0", "f32"}};
  Start(options);
  ASSERT_TRUE(server_->LoadStartupLayers().ok());
  const auto health = [this](const std::string& name) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(name);
    grpc::health::v1::HealthCheckResponse response;
    EXPECT_TRUE(health_->Check(&context, request, &response).ok());
    return response.status();
  };
  using Response = grpc::health::v1::HealthCheckResponse;
  EXPECT_EQ(health(""), Response::NOT_SERVING);
  EXPECT_EQ(health("layer/bad"), Response::NOT_SERVING);
  EXPECT_EQ(health("layer/good"), Response::SERVING);
  grpc::ClientContext list_context;
  v1::ListLayersResponse list;
  ASSERT_TRUE(stub_->ListLayers(&list_context, {}, &list).ok());
  EXPECT_EQ(list.layers(0).name(), "bad");
  EXPECT_EQ(list.layers(0).state(), v1::FAILED);
  // A call can bring what is missing.
  grpc::ClientContext load_context;
  v1::LoadLayerRequest load;
  load.set_name("bad");
  load.set_checkpoint("minilm");
  load.set_layer("3");
  v1::LoadLayerResponse loaded;
  ASSERT_TRUE(stub_->LoadLayer(&load_context, load, &loaded).ok());
  EXPECT_EQ(health(""), Response::SERVING);
  EXPECT_EQ(health("layer/bad"), Response::SERVING);
}

TEST_F(LayerRpc, TheRepositoryMustExist) {
  ServerOptions options = TestOptions();
  options.repository = "no/such/folder";
  EXPECT_EQ(Server::Start(options, &engine_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LayerRpc, ListRepository) {
  StartReady();
  grpc::ClientContext context;
  v1::ListRepositoryResponse response;
  ASSERT_TRUE(stub_->ListRepository(&context, {}, &response).ok());
  std::vector<std::string> dirs;
  for (const v1::CheckpointSummary& checkpoint : response.checkpoints()) {
    dirs.push_back(checkpoint.dir());
    EXPECT_TRUE(checkpoint.supported()) << checkpoint.reason();
  }
  EXPECT_THAT(dirs, ElementsAre("minilm", "smollm2"));
}

}  // namespace
}  // namespace headwise
