// SPDX-License-Identifier: Apache-2.0
#include "server/security.h"

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/format/file.h"
#include "server/certificates.h"
#include "server/listen.h"
#include "server/metrics.h"
#include "server/rights.h"
#include "server/status.h"
#include "server/tokens.h"

namespace headwise {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 20;

// How often the files are looked at, by us and then by gRPC.
constexpr std::chrono::seconds kLook{1};
constexpr unsigned int kGrpcLookSeconds = 1;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  const absl::StatusOr<UniqueFd> file = OpenForRead(path);
  if (!file.ok()) return file.status();
  return ReadAll(*file, path, kMaxFileBytes);
}

// The tokens that are let in now. Thread-safe.
class TokenBox {
 public:
  void Set(Tokens tokens) {
    auto fresh = std::make_shared<const Tokens>(std::move(tokens));
    MutexLock lock(&mu_);
    tokens_ = std::move(fresh);
  }
  std::shared_ptr<const Tokens> Get() const {
    MutexLock lock(&mu_);
    return tokens_;
  }

 private:
  mutable Mutex mu_;
  std::shared_ptr<const Tokens> tokens_ ABSL_GUARDED_BY(mu_);
};

// Ends a call before its message is read, unless it brings a token with the right that its method
// needs.
class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  TokenCheck(std::shared_ptr<const TokenBox> tokens, Security::OnDenied on_denied)
      : tokens_(std::move(tokens)), on_denied_(std::move(on_denied)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata* consumed,
                       OutputMetadata*) override {
    const absl::Status status = Check(metadata, consumed);
    if (!status.ok() && on_denied_) on_denied_(status);
    return ToGrpcStatus(status);
  }

 private:
  absl::Status Check(const InputMetadata& metadata, OutputMetadata* consumed) const {
    const auto path = metadata.find(":path");
    if (path == metadata.end()) return absl::UnauthenticatedError("call: must have a path");
    const absl::string_view method(path->second.data(), path->second.size());
    const Right needed = RightFor(method);
    const auto [begin, end] = metadata.equal_range("authorization");
    // Handlers, and what they log, never see it.
    for (auto each = begin; each != end; ++each) {
      consumed->emplace("authorization", std::string(each->second.data(), each->second.size()));
    }
    if (needed == Right::kNone) return absl::OkStatus();
    const auto count = std::distance(begin, end);
    const absl::string_view token =
        count == 1 ? BearerToken({begin->second.data(), begin->second.size()}) : "";
    const Right right = tokens_->Get()->Find(token);
    if (right == Right::kNone) {
      return absl::UnauthenticatedError(
          absl::StrCat("authorization: must be \"Bearer\" and a token that is let in; was ",
                       count == 0 ? "absent" : (count == 1 ? "another" : "there several times")));
    }
    if (right >= needed) return absl::OkStatus();
    return absl::PermissionDeniedError(
        absl::StrCat("authorization: must be a token with the right ", RightName(needed), " for ",
                     Printable(method), "; was one with ", RightName(right)));
  }

  const std::shared_ptr<const TokenBox> tokens_;
  const Security::OnDenied on_denied_;
};

class SecurityImpl final : public Security {
 public:
  SecurityImpl(const ServerOptions& options, OnDenied on_denied)
      : options_(options), on_denied_(std::move(on_denied)) {}
  ~SecurityImpl() override {
    {
      MutexLock lock(&mu_);
      stop_ = true;
      changed_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start();
  std::shared_ptr<grpc::ServerCredentials> CredentialsFor(
      const std::string& address) const override;

 private:
  bool tls() const { return !options_.tls_cert.empty(); }
  bool tokens() const { return !options_.token_file.empty(); }

  absl::StatusOr<Certificates> ReadCertificates() const;
  // Reads, and takes over what has changed since the last look. On one thread.
  absl::Status LookAtCertificates();
  absl::Status LookAtTokens();
  void Watch();

  const ServerOptions options_;
  const OnDenied on_denied_;
  std::unique_ptr<CertificateFolder> folder_;
  std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> provider_;
  const std::shared_ptr<TokenBox> token_box_ = std::make_shared<TokenBox>();
  // What the last look saw, right or not.
  std::string seen_certificates_, seen_tokens_;

  Mutex mu_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

absl::StatusOr<Certificates> SecurityImpl::ReadCertificates() const {
  Certificates certificates;
  const std::pair<const std::string&, std::string&> files[] = {
      {options_.tls_key, certificates.key},
      {options_.tls_cert, certificates.chain},
      {options_.tls_client_ca, certificates.client_ca}};
  for (const auto& [path, text] : files) {
    if (path.empty()) continue;
    absl::StatusOr<std::string> read = ReadText(path);
    if (!read.ok()) return read.status();
    text = *std::move(read);
  }
  return certificates;
}

absl::Status SecurityImpl::LookAtCertificates() {
  const absl::StatusOr<Certificates> now = ReadCertificates();
  const std::string seen =
      now.ok() ? absl::StrCat(now->key, now->chain, now->client_ca) : now.status().ToString();
  if (seen == seen_certificates_) return absl::OkStatus();
  seen_certificates_ = seen;
  if (!now.ok()) return now.status();
  if (absl::Status right = CheckCertificates(*now); !right.ok()) return right;
  return folder_->Publish(*now);
}

absl::Status SecurityImpl::LookAtTokens() {
  const absl::StatusOr<std::string> now = ReadText(options_.token_file);
  const std::string seen = now.ok() ? *now : now.status().ToString();
  if (seen == seen_tokens_) return absl::OkStatus();
  seen_tokens_ = seen;
  if (!now.ok()) return now.status();
  absl::StatusOr<Tokens> tokens = Tokens::Parse(*now);
  if (!tokens.ok()) return tokens.status();
  token_box_->Set(*std::move(tokens));
  return absl::OkStatus();
}

absl::Status SecurityImpl::Start() {
  if (tls()) {
    absl::StatusOr<std::unique_ptr<CertificateFolder>> folder = CertificateFolder::Create();
    if (!folder.ok()) return folder.status();
    folder_ = *std::move(folder);
    if (absl::Status status = LookAtCertificates(); !status.ok()) return status;
    provider_ = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
        folder_->key_path(), folder_->chain_path(),
        options_.tls_client_ca.empty() ? "" : folder_->client_ca_path(), kGrpcLookSeconds);
  }
  if (tokens()) {
    if (absl::Status status = LookAtTokens(); !status.ok()) return status;
  }
  if (tls() || tokens()) thread_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

void SecurityImpl::Watch() {
  for (;;) {
    {
      const auto until = std::chrono::steady_clock::now() + kLook;
      MutexLock lock(&mu_);
      while (!stop_ && changed_.WaitUntil(&mu_, until)) {
      }
      if (stop_) return;
    }
    const auto report = [](const char* what, const std::string& before, const std::string& after,
                           const absl::Status& status) {
      if (before == after) return;
      if (status.ok()) {
        LOG(INFO) << "new " << what << " from now on";
      } else {
        LOG(WARNING) << "the old " << what << " stay: " << status.message();
      }
    };
    if (tls()) {
      const std::string before = seen_certificates_;
      const absl::Status status = LookAtCertificates();
      report("certificates", before, seen_certificates_, status);
    }
    if (tokens()) {
      const std::string before = seen_tokens_;
      const absl::Status status = LookAtTokens();
      report("tokens", before, seen_tokens_, status);
    }
  }
}

std::shared_ptr<grpc::ServerCredentials> SecurityImpl::CredentialsFor(
    const std::string& address) const {
  const bool is_unix = !UnixPath(address).empty();
  std::shared_ptr<grpc::ServerCredentials> credentials;
  if (tls() && !is_unix) {
    grpc::experimental::TlsServerCredentialsOptions options(provider_);
    options.watch_identity_key_cert_pairs();
    if (!options_.tls_client_ca.empty()) {
      options.watch_root_certs();
      options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    }
    credentials = grpc::experimental::TlsServerCredentials(options);
  } else if (tokens()) {
    // As insecure on the wire, and able to check tokens.
    credentials = grpc::experimental::LocalServerCredentials(UDS);
  } else {
    return grpc::InsecureServerCredentials();
  }
  if (tokens()) {
    credentials->SetAuthMetadataProcessor(std::make_shared<TokenCheck>(token_box_, on_denied_));
  }
  return credentials;
}

absl::Status CheckFlags(const ServerOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("tls-cert, tls-key: must be given together; was one of them");
  }
  if (options.tls_cert.empty() && !options.tls_client_ca.empty()) {
    return absl::InvalidArgumentError(
        "tls-client-ca: must come with --tls-cert and --tls-key; was alone");
  }
  if (options.token_file.empty() || !options.tls_cert.empty()) return absl::OkStatus();
  const std::pair<const char*, const std::string&> flags[] = {
      {"listen", options.listen}, {"admin-listen", options.admin_listen}};
  for (const auto& [flag, listen] : flags) {
    if (listen.empty()) continue;
    const absl::StatusOr<std::vector<std::string>> addresses = ParseListen(flag, listen);
    if (!addresses.ok()) return addresses.status();
    for (const std::string& address : *addresses) {
      if (!UnixPath(address).empty()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("token-file: must come with --tls-cert and --tls-key, since tokens would "
                       "cross the network in the open; was alone with ",
                       address));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Security>> Security::Create(const ServerOptions& options,
                                                           OnDenied on_denied) {
  if (absl::Status flags = CheckFlags(options); !flags.ok()) return flags;
  auto security = std::make_unique<SecurityImpl>(options, std::move(on_denied));
  if (absl::Status started = security->Start(); !started.ok()) return started;
  return security;
}

}  // namespace headwise
