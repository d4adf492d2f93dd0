// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/address.h"
#include "server/call_tracker.h"
#include "server/health.h"
#include "server/health_service.h"
#include "server/http_server.h"
#include "server/layer_loader.h"
#include "server/metrics.h"
#include "server/reflection.h"
#include "server/service.h"
#include "server/startup.h"
#include "server/startup_layers.h"
#include "server/version.h"

namespace headwise {
namespace {

// What calls get to end after they have been aborted: the engine looks at cancellation between
// tasks of a few milliseconds.
constexpr std::chrono::seconds kAbortTime{5};

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServerOptions& options, Engine* engine)
      : options_(options),
        engine_(engine),
        health_([this](absl::string_view name) { return HealthOf(name); }),
        metrics_(engine, kVersion) {}

  ~ServerImpl() override {
    BeginDrain();
    if (grpc_ != nullptr) StopGrpc();
  }

  absl::Status Bind();
  std::string Banner() const override;
  absl::Status LoadStartupLayers() override;
  void BeginDrain() override;
  void Hurry() override { calls_.Hurry(); }
  void Wait() override;
  grpc::Server* grpc_server() override { return grpc_.get(); }

 private:
  Health HealthOf(absl::string_view name) const;
  absl::Status BindGrpc();
  absl::Status BindHttp();
  void RegisterServices(grpc::ServerBuilder* builder);
  void LayersChanged();
  void StopGrpc();

  const ServerOptions options_;
  Engine* const engine_;
  Startup startup_;
  CallTracker calls_;
  std::atomic<int64_t> upload_bytes_{0};
  HealthBoard health_;
  Metrics metrics_;
  std::unique_ptr<LayerLoader> loader_;
  Services services_;
  std::unique_ptr<HeadwiseService> service_;
  std::unique_ptr<HealthService> health_service_;
  std::vector<std::unique_ptr<grpc::Service>> reflection_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<HttpServer> http_;
  int port_ = 0;

  Mutex mu_;
  CondVar draining_changed_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
};

Health ServerImpl::HealthOf(absl::string_view name) const {
  if (name.empty()) return startup_.done() ? Health::kServing : Health::kNotServing;
  if (!absl::ConsumePrefix(&name, "layer/")) return Health::kUnknownName;
  if (startup_.Pending(name)) return Health::kNotServing;
  return engine_->GetLayer(name).ok() ? Health::kServing : Health::kUnknownName;
}

void ServerImpl::LayersChanged() {
  health_.Refresh();
  metrics_.Refresh();
}

absl::Status ServerImpl::Bind() {
  absl::StatusOr<std::unique_ptr<LayerLoader>> loader =
      LayerLoader::Create(engine_, options_.repository, [this] { LayersChanged(); });
  if (!loader.ok()) return loader.status();
  loader_ = *std::move(loader);
  services_ = {engine_, loader_.get(), &metrics_, &calls_, &options_, &upload_bytes_};
  startup_.Expect(StartupNames(options_, *loader_));
  if (absl::Status status = BindHttp(); !status.ok()) return status;
  return BindGrpc();
}

absl::Status ServerImpl::BindHttp() {
  if (options_.metrics.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<HttpServer>> http = HttpServer::Start(
      options_.metrics, {[this] { return metrics_.Text(); },
                         [this] { return health_.Check("") == Health::kServing; }});
  if (!http.ok()) return http.status();
  http_ = *std::move(http);
  return absl::OkStatus();
}

void ServerImpl::RegisterServices(grpc::ServerBuilder* builder) {
  service_ = std::make_unique<HeadwiseService>(&services_, &startup_);
  health_service_ = std::make_unique<HealthService>(&health_);
  builder->RegisterService(service_.get());
  builder->RegisterService(health_service_.get());
  if (!options_.reflection) return;
  reflection_ = MakeReflectionServices({"headwise.v1.Headwise", "grpc.health.v1.Health",
                                        "grpc.reflection.v1.ServerReflection",
                                        "grpc.reflection.v1alpha.ServerReflection"});
  for (const std::unique_ptr<grpc::Service>& service : reflection_) {
    builder->RegisterService(service.get());
  }
}

absl::Status ServerImpl::BindGrpc() {
  if (absl::Status status = CheckHostPort("listen", options_.listen); !status.ok()) return status;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port_);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A small compressed message can blow up before any limit sees it.
  builder.SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  grpc::ResourceQuota quota("requests");
  quota.Resize(static_cast<size_t>(options_.request_budget_bytes));
  builder.SetResourceQuota(quota);
  RegisterServices(&builder);
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || port_ == 0) {
    grpc_.reset();
    return absl::UnavailableError(
        absl::StrCat("listen: must be a HOST:PORT that is free; was ", options_.listen));
  }
  return absl::OkStatus();
}

std::string ServerImpl::Banner() const {
  std::string banner = absl::StrCat("listening ", WithPort(options_.listen, port_));
  if (http_ != nullptr) {
    absl::StrAppend(&banner, " metrics ", WithPort(options_.metrics, http_->port()));
  }
  return banner;
}

absl::Status ServerImpl::LoadStartupLayers() {
  for (const StartupJob& job : StartupJobs(options_, *loader_)) {
    if (calls_.draining()) return absl::OkStatus();
    if (absl::StatusOr<LayerInfo> info = job.load(loader_.get()); !info.ok()) {
      return absl::Status(info.status().code(),
                          absl::StrCat("layer ", job.name, ": ", info.status().message()));
    }
    startup_.Arrived(job.name);
    LayersChanged();
  }
  startup_.Done();
  LayersChanged();
  return absl::OkStatus();
}

void ServerImpl::BeginDrain() {
  // Calls first: whoever sees NOT_SERVING may rely on it.
  calls_.StartDraining();
  health_.Drain();
  MutexLock lock(&mu_);
  draining_ = true;
  draining_changed_.SignalAll();
}

void ServerImpl::Wait() {
  {
    MutexLock lock(&mu_);
    while (!draining_) draining_changed_.Wait(&mu_);
  }
  LOG(INFO) << "draining, at most " << absl::FormatDuration(options_.grace);
  const auto grace = absl::ToChronoMilliseconds(options_.grace);
  if (!calls_.WaitIdle(std::chrono::steady_clock::now() + grace)) {
    LOG(WARNING) << "grace is over: ending the calls that are left";
  }
  StopGrpc();
  LOG(INFO) << "stopped";
}

void ServerImpl::StopGrpc() {
  calls_.AbortAll();
  engine_->CancelQueued();
  calls_.WaitIdle(std::chrono::steady_clock::now() + kAbortTime);
  grpc_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  grpc_->Wait();
  loader_.reset();
  grpc_.reset();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      Engine* engine) {
  auto server = std::make_unique<ServerImpl>(options, engine);
  if (absl::Status status = server->Bind(); !status.ok()) return status;
  LOG(INFO) << "headwise-server " << kVersion << ": threads " << engine->cpu_budget().threads
            << " (" << engine->cpu_budget().source << "), kernel "
            << KernelPathName(engine->kernel()) << ", ISA " << IsaName() << ", oneDNN "
            << OneDnnVersion();
  return server;
}

}  // namespace headwise
