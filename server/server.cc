// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/format/safetensors.h"
#include "headwise/version.h"
#include "server/address.h"
#include "server/call_tracker.h"
#include "server/free_memory.h"
#include "server/front.h"
#include "server/health.h"
#include "server/http_server.h"
#include "server/layer_loader.h"
#include "server/metrics.h"
#include "server/oip_statistics.h"
#include "server/security.h"
#include "server/startup.h"
#include "server/startup_layers.h"
#include "server/warm_up.h"

namespace headwise {
namespace {

// What calls get to end after they have been aborted: the engine looks at cancellation between
// tasks of a few milliseconds.
constexpr std::chrono::seconds kAbortTime{5};
constexpr std::chrono::seconds kHurriedAbortTime{1};

// How often an idle server looks whether it has memory to give back.
constexpr std::chrono::seconds kTidyUp{2};

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServerOptions& options, Engine* engine)
      : options_(options),
        engine_(engine),
        health_([this](absl::string_view name) { return HealthOf(name); }),
        memory_(options.request_budget_bytes),
        metrics_(
            engine, kVersion, [this] { return MemoryByKind(); }, [this] { return calls_.live(); }) {
  }

  ~ServerImpl() override {
    BeginDrain();
    if (front_ != nullptr) StopGrpc();
  }

  absl::Status Bind();
  std::string Banner() const override;
  absl::Status LoadStartupLayers() override;
  void BeginDrain() override;
  void Hurry() override;
  void Wait() override;
  int64_t request_bytes() const override { return memory_.used_bytes(); }
  grpc::Server* grpc_server() override {
    return front_ == nullptr ? nullptr : front_->grpc_server();
  }

 private:
  Health HealthOf(absl::string_view name) const;
  std::map<std::string, int64_t> MemoryByKind() const;
  absl::Status LoadStartupLayer(const StartupJob& job);
  bool draining() const;
  void WaitLameDuck();
  void TidyUp(int64_t* tidied_at);
  absl::Status BindGrpc();
  absl::Status BindHttp();
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
  OipStatistics oip_statistics_;
  grpc::ResourceQuota quota_{"requests"};
  std::unique_ptr<Security> security_;
  std::unique_ptr<Front> front_, admin_;  // admin: null without --admin-listen
  std::unique_ptr<HttpServer> http_;

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
  // What a server that was killed left half-written.
  if (!options_.save_dir.empty()) RemoveTemporaries(options_.save_dir);
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

absl::Status ServerImpl::BindGrpc() {
  absl::StatusOr<std::unique_ptr<Security>> security =
      Security::Create(options_, [this](const absl::Status& why) { metrics_.RecordDenied(why); });
  if (!security.ok()) return security.status();
  security_ = *std::move(security);
  // Messages on their way in are copied once as they are parsed, and count as requests from then
  // on.
  quota_.Resize(static_cast<size_t>(options_.request_budget_bytes / 2));
  const FrontParts parts{&options_, security_.get(), &startup_,
                         &health_,  &quota_,         &oip_statistics_};
  Services services = services_;
  services.takes_admin_calls = options_.admin_listen.empty();
  absl::StatusOr<std::unique_ptr<Front>> front =
      Front::Start(parts, services, "listen", options_.listen);
  if (!front.ok()) return front.status();
  front_ = *std::move(front);
  if (options_.admin_listen.empty()) return absl::OkStatus();
  front = Front::Start(parts, services_, "admin-listen", options_.admin_listen);
  if (!front.ok()) return front.status();
  admin_ = *std::move(front);
  return absl::OkStatus();
}

std::string ServerImpl::Banner() const {
  std::string banner = absl::StrCat("listening ", front_->Addresses());
  if (http_ != nullptr) {
    absl::StrAppend(&banner, " metrics ", WithPort(options_.metrics, http_->port()));
  }
  if (admin_ != nullptr) absl::StrAppend(&banner, " admin ", admin_->Addresses());
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

// The allocator gives back what a burst of large messages took only while others come and go.
void ServerImpl::TidyUp(int64_t* tidied_at) {
  const int64_t entered = calls_.entered();
  if (entered == *tidied_at || calls_.live() > 0) return;
  ReleaseFreeMemory();
  *tidied_at = entered;
}

void ServerImpl::WaitLameDuck() {
  int64_t tidied_at = 0;
  MutexLock lock(&mu_);
  while (!draining_) {
    const auto then = std::chrono::steady_clock::now() + kTidyUp;
    if (!draining_changed_.WaitUntil(&mu_, then)) TidyUp(&tidied_at);
  }
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
  front_->Stop();
  if (admin_ != nullptr) admin_->Stop();
  loader_.reset();
  admin_.reset();
  front_.reset();
  security_.reset();  // and its folder: the process ends without tearing the rest down
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
