// SPDX-License-Identifier: Apache-2.0
#include "server/front.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/address.h"
#include "server/listen.h"
#include "server/reflection.h"

namespace headwise {

absl::Status Front::AddPorts(const char* flag, const std::string& listen,
                             grpc::ServerBuilder* builder) {
  absl::StatusOr<std::vector<std::string>> addresses = ParseListen(flag, listen);
  if (!addresses.ok()) return addresses.status();
  addresses_ = *std::move(addresses);
  ports_.assign(addresses_.size(), 0);
  for (size_t i = 0; i < addresses_.size(); ++i) {
    if (const std::string path = UnixPath(addresses_[i]); !path.empty()) {
      if (absl::Status clear = ClearUnixSocket(path); !clear.ok()) return clear;
    }
    builder->AddListeningPort(addresses_[i], parts_.security->CredentialsFor(addresses_[i]),
                              &ports_[i]);
  }
  return absl::OkStatus();
}

void Front::SetLimits(grpc::ServerBuilder* builder) const {
  const auto ms = [](absl::Duration duration) {
    return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(duration), 1 << 30));
  };
  const ServerOptions& options = *parts_.options;
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              static_cast<int>(options.max_concurrent_streams));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                              static_cast<int>(options.max_header_bytes));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, ms(options.keepalive_time));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ms(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              ms(options.min_ping_interval));
  // A small compressed message can blow up before any limit sees it.
  builder->SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetResourceQuota(*parts_.quota);
}

void Front::RegisterServices(grpc::ServerBuilder* builder) {
  builder->RegisterService(&service_);
  builder->RegisterService(&oip_service_);
  builder->RegisterService(&health_service_);
  if (!parts_.options->reflection) return;
  reflection_ = MakeReflectionServices(
      {"headwise.v1.Headwise", "inference.GRPCInferenceService", "grpc.health.v1.Health",
       "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"});
  for (const std::unique_ptr<grpc::Service>& service : reflection_) {
    builder->RegisterService(service.get());
  }
}

absl::Status Front::Bind(const char* flag, const std::string& listen) {
  grpc::ServerBuilder builder;
  if (absl::Status ports = AddPorts(flag, listen, &builder); !ports.ok()) return ports;
  SetLimits(&builder);
  RegisterServices(&builder);
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || std::find(ports_.begin(), ports_.end(), 0) != ports_.end()) {
    grpc_.reset();
    return absl::UnavailableError(
        absl::StrCat(flag, ": must be a HOST:PORT or unix:PATH that is free; was ", listen));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Front>> Front::Start(const FrontParts& parts,
                                                    const Services& services, const char* flag,
                                                    const std::string& listen) {
  std::unique_ptr<Front> front(new Front(parts, services));
  if (absl::Status bound = front->Bind(flag, listen); !bound.ok()) return bound;
  return front;
}

std::string Front::Addresses() const {
  std::vector<std::string> bound;
  for (size_t i = 0; i < addresses_.size(); ++i) {
    bound.push_back(UnixPath(addresses_[i]).empty() ? WithPort(addresses_[i], ports_[i])
                                                    : addresses_[i]);
  }
  return absl::StrJoin(bound, ",");
}

void Front::Stop() {
  grpc_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  grpc_->Wait();
}

}  // namespace headwise
