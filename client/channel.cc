// SPDX-License-Identifier: Apache-2.0
#include "client/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/balance.h"
#include "client/retry.h"

namespace headwise::client {
namespace {

// By gRPC's words: of one address, of several, of a name. Replicas that say themselves that they
// don't serve have answered.
bool NobodyAnswered(const std::string& message) {
  return absl::StartsWith(message, "failed to connect") || absl::StrContains(message, "DNS") ||
         (absl::StartsWith(message, "connections to all backends failing") &&
          !absl::StrContains(message, "backend unhealthy"));
}

// Nobody listens, the name is unknown or certificates don't fit: the next attempt finds the same.
// Other ends of a connection are a moment's.
bool NobodyWillAnswer(const std::string& message) {
  constexpr std::array<absl::string_view, 5> kWords = {"Connection refused", "No such file", "DNS",
                                                       "andshake", "certificate"};
  return std::any_of(kWords.begin(), kWords.end(), [&message](absl::string_view words) {
    return absl::StrContains(message, words);
  });
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, bool own_connection,
                                           const ChannelSecurity& security) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetUserAgentPrefix("headwise");
  // http_proxy is about the web: through it not even 127.0.0.1 would be reached.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // gRPC would wait a second, and up to two minutes later: a server that restarts is back sooner.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
  if (own_connection) {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  } else {
    BalanceCalls(target, &arguments);
  }
  if (!security.tls) {
    return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  }
  if (!security.server_name.empty()) arguments.SetSslTargetNameOverride(security.server_name);
  return grpc::CreateCustomChannel(
      target, grpc::SslCredentials({security.ca, security.key, security.certificate}), arguments);
}

void PrepareContext(absl::Duration timeout, const std::string& client_id, const std::string& token,
                    grpc::ClientContext* context) {
  if (timeout != absl::InfiniteDuration()) {
    context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
  }
  if (!client_id.empty()) context->AddMetadata("headwise-client", client_id);
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
}

absl::Status ToAbslStatus(grpc::StatusCode code, const std::string& message,
                          const std::string& target, absl::Duration timeout) {
  if (code == grpc::StatusCode::OK) return absl::OkStatus();
  // No caller of this cancels: the server closed its door as the call came to it.
  if (code == grpc::StatusCode::CANCELLED) {
    return absl::UnavailableError(
        absl::StrCat("server: must not end before it answers; was ended, at ", target));
  }
  const auto absl_code = static_cast<absl::StatusCode>(code);
  if (code == grpc::StatusCode::UNAVAILABLE && NobodyAnswered(message)) {
    absl::Status status =
        absl::UnavailableError(absl::StrCat("server: must answer at ", target, "; was ", message));
    return NobodyWillAnswer(message) ? Lasting(std::move(status)) : status;
  }
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED && message == "Deadline Exceeded") {
    return absl::Status(absl_code, absl::StrCat("timeout: the answer must come within ",
                                                absl::FormatDuration(timeout), "; was later"));
  }
  // Short of memory, because of whatever call, gRPC resets streams with ENHANCE_YOUR_CALM.
  if (code == grpc::StatusCode::RESOURCE_EXHAUSTED &&
      absl::StartsWith(message, "Received RST_STREAM with error code 11")) {
    return absl::UnavailableError(
        absl::StrCat("server: must have memory for the call; was short of it, at ", target));
  }
  int64_t bytes = 0, limit = 0;
  if (code == grpc::StatusCode::RESOURCE_EXHAUSTED &&
      std::sscanf(message.c_str(), "Received message larger than max (%" SCNd64 " vs. %" SCNd64 ")",
                  &bytes, &limit) == 2) {
    return absl::Status(absl_code,
                        absl::StrCat("message: must be at most ", limit,
                                     " bytes (the server's --max-message-bytes); was ", bytes));
  }
  return absl::Status(absl_code, message);
}

}  // namespace headwise::client
