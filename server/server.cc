// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/address.h"
#include "server/call_tracker.h"
#include "server/health.h"
#include "server/health_service.h"
#include "server/http_server.h"
#include "server/layer_loader.h"
#include "server/listen.h"
#include "server/metrics.h"
#include "server/reflection.h"
#include "server/service.h"
#include "server/startup.h"
#include "server/startup_layers.h"
#include "server/version.h"
#include "server/warm_up.h"

namespace headwise {
namespace {

// What calls get to end after they have been aborted: the engine looks at cancellation between
// tasks of a few milliseconds.
constexpr std::chrono::seconds kAbortTime{5};
constexpr std::chrono::seconds kHurriedAbortTime{1};

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServerOptions& options, Engine* engine)
      : options_(options),
        engine_(engine),
        health_([this](absl::string_view name) { return HealthOf(name); }),
        memory_(options.request_budget_bytes),
        metrics_(
            engine, kVersion, [this] { return MemoryByKind(); },
            [this] { return calls_.live(); }) {}

  ~ServerImpl() override {
    BeginDrain();
    if (grpc_ != nullptr) StopGrpc();
  }

  absl::Status Bind();
  std::string Banner() const override;
  absl::Status LoadStartupLayers() override;
  void BeginDrain() override;
  void Hurry() override;
  void Wait() override;
  int64_t request_bytes() const override { return memory_.used_bytes(); }
  grpc::Server* grpc_server() override { return grpc_.get(); }

 private:
  Health HealthOf(absl::string_view name) const;
  std::map<std::string, int64_t> MemoryByKind() const;
  absl::Status LoadStartupLayer(const StartupJob& job);
  bool draining() const;
  void WaitLameDuck();
  absl::Status BindGrpc();
  absl::Status AddPorts(grpc::ServerBuilder* builder);
  void SetLimits(grpc::ServerBuilder* builder) const;
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
  RequestMemory memory_;
  Metrics metrics_;
  std::unique_ptr<LayerLoader> loader_;
  Services services_;
  std::unique_ptr<HeadwiseService> service_;
  std::unique_ptr<HealthService> health_service_;
  std::vector<std::unique_ptr<grpc::Service>> reflection_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<HttpServer> http_;
  std::vector<std::string> addresses_;
  std::vector<int> ports_;  // as many; what gRPC bound

  mutable Mutex mu_;
  CondVar draining_changed_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool hurry_ ABSL_GUARDED_BY(mu_) = false;
};

Health ServerImpl::HealthOf(absl::string_view name) const {
  if (name.empty()) return startup_.ready() ? Health::kServing : Health::kNotServing;
  if (!absl::ConsumePrefix(&name, "layer/")) return Health::kUnknownName;
  if (startup_.Missing(name)) return Health::kNotServing;
  return engine_->GetLayer(name).ok() ? Health::kServing : Health::kUnknownName;
}

std::map<std::string, int64_t> ServerImpl::MemoryByKind() const {
  return {{"requests", memory_.used_bytes()}, {"uploads", upload_bytes_.load()}};
}

void ServerImpl::LayersChanged() {
  for (const std::string& name : startup_.FailedNames()) {
    if (engine_->GetLayer(name).ok()) startup_.Arrived(name);
  }
  health_.Refresh();
  metrics_.Refresh();
}

absl::Status ServerImpl::Bind() {
  absl::StatusOr<std::unique_ptr<LayerLoader>> loader =
      LayerLoader::Create(engine_, options_.repository, [this] { LayersChanged(); });
  if (!loader.ok()) return loader.status();
  loader_ = *std::move(loader);
  services_ = {engine_, loader_.get(), &metrics_, &calls_, &options_, &upload_bytes_, &memory_};
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

absl::Status ServerImpl::AddPorts(grpc::ServerBuilder* builder) {
  absl::StatusOr<std::vector<std::string>> addresses = ParseListen(options_.listen);
  if (!addresses.ok()) return addresses.status();
  addresses_ = *std::move(addresses);
  ports_.assign(addresses_.size(), 0);
  for (size_t i = 0; i < addresses_.size(); ++i) {
    if (const std::string path = UnixPath(addresses_[i]); !path.empty()) {
      if (absl::Status clear = ClearUnixSocket(path); !clear.ok()) return clear;
    }
    builder->AddListeningPort(addresses_[i], grpc::InsecureServerCredentials(), &ports_[i]);
  }
  return absl::OkStatus();
}

void ServerImpl::SetLimits(grpc::ServerBuilder* builder) const {
  const auto ms = [](absl::Duration duration) {
    return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(duration), 1 << 30));
  };
  builder->SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              static_cast<int>(options_.max_concurrent_streams));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                              static_cast<int>(options_.max_header_bytes));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, ms(options_.keepalive_time));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ms(options_.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              ms(options_.min_ping_interval));
  // A small compressed message can blow up before any limit sees it.
  builder->SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
}

absl::Status ServerImpl::BindGrpc() {
  grpc::ServerBuilder builder;
  if (absl::Status ports = AddPorts(&builder); !ports.ok()) return ports;
  SetLimits(&builder);
  grpc::ResourceQuota quota("requests");
  quota.Resize(static_cast<size_t>(options_.request_budget_bytes));
  builder.SetResourceQuota(quota);
  RegisterServices(&builder);
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || std::find(ports_.begin(), ports_.end(), 0) != ports_.end()) {
    grpc_.reset();
    return absl::UnavailableError(absl::StrCat(
        "listen: must be a HOST:PORT or unix:PATH that is free; was ", options_.listen));
  }
  return absl::OkStatus();
}

std::string ServerImpl::Banner() const {
  std::vector<std::string> bound;
  for (size_t i = 0; i < addresses_.size(); ++i) {
    bound.push_back(UnixPath(addresses_[i]).empty() ? WithPort(addresses_[i], ports_[i])
                                                    : addresses_[i]);
  }
  std::string banner = absl::StrCat("listening ", absl::StrJoin(bound, ","));
  if (http_ != nullptr) {
    absl::StrAppend(&banner, " metrics ", WithPort(options_.metrics, http_->port()));
  }
  return banner;
}

absl::Status ServerImpl::LoadStartupLayer(const StartupJob& job) {
  absl::StatusOr<LayerInfo> info = job.load(loader_.get());
  absl::Status status = info.status();
  if (status.ok()) status = WarmUp(engine_, *info);
  if (status.ok()) {
    startup_.Arrived(job.name);
    return status;
  }
  status = absl::Status(status.code(), absl::StrCat("layer ", job.name, ": ", status.message()));
  startup_.Failed(job.name, status);
  LOG(ERROR) << "not ready: " << CodeName(status.code()) << ": " << status.message();
  return status;
}

absl::Status ServerImpl::LoadStartupLayers() {
  for (const StartupJob& job : StartupJobs(options_, *loader_)) {
    if (draining()) return absl::OkStatus();
    const absl::Status loaded = LoadStartupLayer(job);
    if (!loaded.ok() && options_.strict_start) return loaded;
    LayersChanged();
  }
  startup_.Done();
  LayersChanged();
  return absl::OkStatus();
}

bool ServerImpl::draining() const {
  MutexLock lock(&mu_);
  return draining_;
}

void ServerImpl::BeginDrain() {
  // Calls first: whoever sees NOT_SERVING may rely on it.
  if (options_.lame_duck <= absl::ZeroDuration()) calls_.StartDraining();
  health_.Drain();
  MutexLock lock(&mu_);
  draining_ = true;
  draining_changed_.SignalAll();
}

void ServerImpl::Hurry() {
  calls_.Hurry();
  MutexLock lock(&mu_);
  hurry_ = true;
  draining_changed_.SignalAll();
}

void ServerImpl::WaitLameDuck() {
  MutexLock lock(&mu_);
  while (!draining_) draining_changed_.Wait(&mu_);
  if (options_.lame_duck <= absl::ZeroDuration()) return;
  LOG(INFO) << "not serving to new clients, still answering for "
            << absl::FormatDuration(options_.lame_duck);
  const auto end =
      std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(options_.lame_duck);
  while (!hurry_ && draining_changed_.WaitUntil(&mu_, end)) {
  }
}

void ServerImpl::Wait() {
  WaitLameDuck();
  calls_.StartDraining();
  LOG(INFO) << "draining, at most " << absl::FormatDuration(options_.grace);
  const auto grace = absl::ToChronoMilliseconds(options_.grace);
  if (!calls_.WaitIdle(std::chrono::steady_clock::now() + grace)) {
    LOG(WARNING) << "ending the calls that are left";
  }
  StopGrpc();
  LOG(INFO) << "stopped";
}

void ServerImpl::StopGrpc() {
  bool hurry = false;
  {
    MutexLock lock(&mu_);
    hurry = hurry_;
  }
  calls_.StartDraining();
  calls_.AbortAll();
  engine_->CancelQueued();
  calls_.WaitIdle(std::chrono::steady_clock::now() + (hurry ? kHurriedAbortTime : kAbortTime));
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
