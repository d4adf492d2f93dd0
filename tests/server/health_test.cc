// SPDX-License-Identifier: Apache-2.0
#include "server/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::ElementsAre;

class Recorder : public HealthBoard::Watcher {
 public:
  void Tell(Health health, bool last) override {
    told.push_back(health);
    ended = ended || last;
  }
  std::vector<Health> told;
  bool ended = false;
};

TEST(HealthBoard, TellsTheStateAndThenChangesOnly) {
  Health now = Health::kUnknownName;
  HealthBoard board([&now](absl::string_view) { return now; });
  Recorder watcher;
  board.Watch("layer/a", &watcher);
  board.Refresh();
  now = Health::kServing;
  board.Refresh();
  board.Refresh();
  now = Health::kUnknownName;
  board.Refresh();
  EXPECT_THAT(watcher.told,
              ElementsAre(Health::kUnknownName, Health::kServing, Health::kUnknownName));
  board.Unwatch(&watcher);
  now = Health::kServing;
  board.Refresh();
  EXPECT_EQ(watcher.told.size(), 3u);
  EXPECT_FALSE(watcher.ended);
}

TEST(HealthBoard, DrainingEndsEveryWatch) {
  HealthBoard board([](absl::string_view name) {
    return name == "gone" ? Health::kUnknownName : Health::kServing;
  });
  Recorder serving;
  Recorder unknown;
  Recorder late;
  board.Watch("", &serving);
  board.Watch("gone", &unknown);
  board.Drain();
  board.Watch("", &late);
  EXPECT_THAT(serving.told, ElementsAre(Health::kServing, Health::kNotServing));
  EXPECT_THAT(unknown.told, ElementsAre(Health::kUnknownName, Health::kUnknownName));
  EXPECT_THAT(late.told, ElementsAre(Health::kNotServing));
  EXPECT_TRUE(serving.ended && unknown.ended && late.ended);
  EXPECT_EQ(board.Check(""), Health::kNotServing);
  EXPECT_EQ(board.Check("gone"), Health::kUnknownName);
}

class HealthRpc : public ServerFixture {
 protected:
  grpc::Status Check(const std::string& name, HealthCheckResponse* response) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(name);
    return health_->Check(&context, request, response);
  }
};

TEST_F(HealthRpc, NotServingUntilStartUpIsDone) {
  ServerOptions options = TestOptions();
  options.loads = {{"late", "minilm", "0", "f32"}};
  Start(options);
  HealthCheckResponse response;
  ASSERT_TRUE(Check("", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  ASSERT_TRUE(Check("layer/late", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  ASSERT_TRUE(server_->LoadStartupLayers().ok());
  for (const char* name : {"", "layer/late", "layer/toy"}) {
    ASSERT_TRUE(Check(name, &response).ok()) << name;
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << name;
  }
}

TEST_F(HealthRpc, UnknownNamesAreNotFound) {
  StartReady();
  HealthCheckResponse response;
  for (const char* name : {"layer/none", "toy", "headwise.v1.Headwise"}) {
    EXPECT_EQ(Check(name, &response).error_code(), grpc::StatusCode::NOT_FOUND) << name;
  }
}

TEST_F(HealthRpc, WatchFollowsALayer) {
  StartReady();
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("layer/toy");
  const auto reader = health_->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  grpc::ClientContext unload_context;
  v1::UnloadLayerRequest unload;
  v1::UnloadLayerResponse unloaded;
  unload.set_name("toy");
  ASSERT_TRUE(stub_->UnloadLayer(&unload_context, unload, &unloaded).ok());
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(HealthRpc, DrainingTellsWatchAndEndsIt) {
  StartReady();
  grpc::ClientContext context;
  const auto reader = health_->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  server_->BeginDrain();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

}  // namespace
}  // namespace headwise
