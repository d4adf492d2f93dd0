// SPDX-License-Identifier: Apache-2.0
// TLS, callers' certificates, tokens and rights, against the built server.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/certificate_authority.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

constexpr char kForwardToken[] = "forward-0123456789", kAnalyzeToken[] = "analyze-0123456789",
               kAdminToken[] = "admin-0123456789";

// The server's files, and what a caller needs to reach it.
class Doors {
 public:
  Doors() { Install(authority_.Issue(1)); }

  void Install(const IssuedCertificate& certificate) const {
    files_.Write("key.pem", certificate.key);
    files_.Write("cert.pem", certificate.chain);
  }
  std::vector<std::string> TlsFlags(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--tls-cert", files_.Path("cert.pem"), "--tls-key",
                             files_.Path("key.pem"), "--demo"});
    return more;
  }
  std::vector<std::string> TokenFlags(std::vector<std::string> more = {}) const {
    files_.Write("tokens", absl::StrCat("forward ", kForwardToken, "\nanalyze ", kAnalyzeToken,
                                        "\nadmin ", kAdminToken, "\n"));
    more.insert(more.end(), {"--token-file", files_.Path("tokens")});
    return TlsFlags(std::move(more));
  }
  client::ClientOptions Options(const std::string& token = "") const {
    client::ClientOptions options;
    options.own_connection = true;
    options.security.tls = true;
    options.security.ca = authority_.certificate();
    options.security.token = token;
    return options;
  }
  static std::unique_ptr<client::Client> Connect(const std::string& address,
                                                 const client::ClientOptions& options) {
    auto client = client::Client::Connect(address, options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  static void WaitUntilReady(client::Client* client) {
    const auto end = Clock::now() + std::chrono::seconds(30);
    while (client->Health("").value_or("") != "SERVING" && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  static v1::ForwardRequest Request() {
    return MakeForwardRequest("two-head", RandomFloats(3 * 4, 1), {3});
  }
  static absl::Status Forward(client::Client* client) {
    return client->Forward(Request()).status();
  }

  const CertificateAuthority authority_;
  const TempDir files_;
};

class Tls : public ::testing::Test, public Doors {};
class TokenDoors : public ::testing::Test, public Doors {};

// What a new handshake shows.
std::string SerialAt(const std::string& address) {
  const std::string command = absl::StrCat("openssl s_client -connect ", address,
                                           " </dev/null 2>/dev/null | openssl x509 -noout -serial");
  std::string text;
  std::FILE* pipe = popen(command.c_str(), "r");
  for (char buffer[256]; std::fgets(buffer, sizeof(buffer), pipe) != nullptr;) text += buffer;
  pclose(pipe);
  return std::string(absl::StripAsciiWhitespace(text));
}

TEST(Cases, S16_CertificatesRotateUnderTrafficAndHalfAPairDoesNot) {
  const Doors doors;
  ServerProcess server(doors.TlsFlags());
  doors.WaitUntilReady(doors.Connect(server.address(), doors.Options()).get());
  std::atomic<bool> stop{false};
  std::atomic<int> calls{0};
  std::mutex mutex;
  std::vector<std::string> failures;
  std::vector<std::thread> traffic;
  for (int i = 0; i < 3; ++i) {
    traffic.emplace_back([&, i] {
      auto kept = doors.Connect(server.address(), doors.Options());
      while (!stop) {
        // One goes on over its connection, the others shake hands anew each time.
        if (i > 0) kept = doors.Connect(server.address(), doors.Options());
        const absl::Status status = doors.Forward(kept.get());
        ++calls;
        const std::lock_guard lock(mutex);
        if (!status.ok()) failures.push_back(status.ToString());
      }
    });
  }
  EXPECT_EQ(SerialAt(server.address()), "serial=01");
  const IssuedCertificate second = doors.authority_.Issue(2);
  doors.files_.Write("key.pem", second.key);  // the certificate is still the first one's
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  EXPECT_EQ(SerialAt(server.address()), "serial=01");
  EXPECT_THAT(server.Log(), HasSubstr("the old certificates stay"));
  doors.files_.Write("cert.pem", second.chain);
  const auto end = Clock::now() + std::chrono::seconds(5);
  while (SerialAt(server.address()) != "serial=02" && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(SerialAt(server.address()), "serial=02");
  stop = true;
  for (std::thread& thread : traffic) thread.join();
  EXPECT_GT(calls, 100);
  EXPECT_THAT(failures, ::testing::IsEmpty());
  EXPECT_THAT(server.Log(), Not(HasSubstr("PRIVATE")));
}

TEST(Cases, S16_PlaintextAndAWrongAuthorityAreUnavailableSoon) {
  const Doors doors;
  ServerProcess server(doors.TlsFlags());
  const CertificateAuthority stranger;
  client::ClientOptions plain, wrong = doors.Options();
  plain.own_connection = true;
  wrong.security.ca = stranger.certificate();
  for (const client::ClientOptions& options : {plain, wrong}) {
    const auto begin = Clock::now();
    const absl::Status status = doors.Forward(doors.Connect(server.address(), options).get());
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
  }
}

// The services that reflection lists, or how it fails.
grpc::Status ListServices(const std::string& address, std::vector<std::string>* names) {
  using Reflection = grpc::reflection::v1::ServerReflection;
  const auto stub =
      Reflection::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->ServerReflectionInfo(&context);
  grpc::reflection::v1::ServerReflectionRequest request;
  request.set_list_services("");
  stream->Write(request);
  stream->WritesDone();
  grpc::reflection::v1::ServerReflectionResponse response;
  while (stream->Read(&response)) {
    for (const auto& service : response.list_services_response().service()) {
      names->push_back(service.name());
    }
  }
  return stream->Finish();
}

TEST(Cases, S16_ReflectionIsAFlag) {
  ServerProcess on, off({"--noreflection"});
  std::vector<std::string> names;
  EXPECT_TRUE(ListServices(on.address(), &names).ok());
  EXPECT_THAT(names, ::testing::IsSupersetOf({"headwise.v1.Headwise", "grpc.health.v1.Health"}));
  EXPECT_EQ(ListServices(off.address(), &names).error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(Tls, CallersMustBringACertificateIfAsked) {
  ServerProcess server(TlsFlags({"--tls-client-ca", authority_.path()}));
  client::ClientOptions with = Options();
  const IssuedCertificate caller = authority_.Issue(7);
  with.security.key = caller.key;
  with.security.certificate = caller.chain;
  const auto client = Connect(server.address(), with);
  WaitUntilReady(client.get());
  EXPECT_TRUE(Forward(client.get()).ok());
  EXPECT_TRUE(absl::IsUnavailable(Forward(Connect(server.address(), Options()).get())));
  const CertificateAuthority stranger;
  const IssuedCertificate other = stranger.Issue(8);
  with.security.key = other.key;
  with.security.certificate = other.chain;
  EXPECT_TRUE(absl::IsUnavailable(Forward(Connect(server.address(), with).get())));
}

TEST_F(TokenDoors, EachTokenMayDoWhatItsRightSays) {
  ServerProcess server(TokenFlags({"--log-level", "debug"}));
  WaitUntilReady(Connect(server.address(), Options()).get());  // health needs no token
  v1::AblateRequest ablate;
  ablate.set_layer("two-head");
  *ablate.mutable_input() = Request().input();
  ablate.set_sweep(v1::LEAVE_ONE_OUT);
  // Forward, ablate, load: what each caller gets.
  using Code = absl::StatusCode;
  const std::vector<std::pair<std::string, std::vector<Code>>> callers = {
      {"", {Code::kUnauthenticated, Code::kUnauthenticated, Code::kUnauthenticated}},
      {"forward-0123456788",
       {Code::kUnauthenticated, Code::kUnauthenticated, Code::kUnauthenticated}},
      {kForwardToken, {Code::kOk, Code::kPermissionDenied, Code::kPermissionDenied}},
      {kAnalyzeToken, {Code::kOk, Code::kOk, Code::kPermissionDenied}},
      {kAdminToken, {Code::kOk, Code::kOk, Code::kOk}}};
  for (const auto& [token, codes] : callers) {
    const auto client = Connect(server.address(), Options(token));
    EXPECT_EQ(Forward(client.get()).code(), codes[0]) << token;
    EXPECT_EQ(client->Ablate(ablate).status().code(), codes[1]) << token;
    EXPECT_EQ(client->ListRepository().status().code(), codes[2]) << token;
  }
  EXPECT_GT(server.Metric("headwise_refusals_total{reason=\"NO_VALID_TOKEN\"}"), 0.0);
  EXPECT_GT(server.Metric("headwise_refusals_total{reason=\"NO_RIGHT\"}"), 0.0);
  for (const char* token : {kForwardToken, kAnalyzeToken, kAdminToken, "0123456788"}) {
    EXPECT_THAT(server.Log(), Not(HasSubstr(token)));
    EXPECT_THAT(server.MetricsText(), Not(HasSubstr(token)));
  }
}

TEST_F(TokenDoors, TheFileIsReadAgainAndABadOneIsNot) {
  ServerProcess server(TokenFlags());
  const auto admin = Connect(server.address(), Options(kAdminToken));
  WaitUntilReady(admin.get());
  EXPECT_TRUE(Forward(admin.get()).ok());
  files_.Write("tokens", "nonsense\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_TRUE(Forward(admin.get()).ok());
  EXPECT_THAT(server.Log(), HasSubstr("the old tokens stay"));
  files_.Write("tokens", "forward another-0123456789\n");
  const auto end = Clock::now() + std::chrono::seconds(5);
  while (Forward(admin.get()).ok() && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(absl::IsUnauthenticated(Forward(admin.get())));
  EXPECT_TRUE(Forward(Connect(server.address(), Options("another-0123456789")).get()).ok());
}

TEST_F(TokenDoors, OverAUnixSocketTokensCountTooAndNeedNoTls) {
  files_.Write("tokens", absl::StrCat("forward ", kForwardToken, "\n"));
  const std::string address = absl::StrCat("unix:", files_.Path("h.sock"));
  ServerProcess server({"--listen", address, "--demo", "--token-file", files_.Path("tokens")});
  client::ClientOptions options;
  const auto nobody = Connect(address, options);
  WaitUntilReady(nobody.get());
  EXPECT_TRUE(absl::IsUnauthenticated(Forward(nobody.get())));
  options.own_connection = true;
  options.security.token = kForwardToken;
  EXPECT_TRUE(Forward(Connect(address, options).get()).ok());
}

TEST_F(TokenDoors, NoTokenCrossesTheNetworkInTheOpen) {
  files_.Write("tokens", absl::StrCat("forward ", kForwardToken, "\n"));
  const CommandResult server = RunProgram(
      "headwise-server",
      {"--listen", "127.0.0.1:0", "--metrics", "", "--token-file", files_.Path("tokens")});
  EXPECT_EQ(server.exit_code, 1);
  EXPECT_THAT(server.err, HasSubstr("token-file: must come with --tls-cert"));
  files_.Write("token", kForwardToken);
  const CommandResult client = RunProgram(
      "headwise", {"--server", "127.0.0.1:1", "--token-file", files_.Path("token"), "list"});
  EXPECT_EQ(client.exit_code, 1);
  EXPECT_THAT(client.err, HasSubstr("token-file: must come with TLS"));
  EXPECT_THAT(client.err, Not(HasSubstr(kForwardToken)));
}

TEST_F(Tls, FilesThatAreNotRightEndTheStart) {
  const auto refused = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--listen", "127.0.0.1:0", "--metrics", ""});
    const CommandResult result = RunProgram("headwise-server", flags);
    EXPECT_EQ(result.exit_code, 1);
    return result.err;
  };
  const IssuedCertificate other = authority_.Issue(9);
  files_.Write("key.pem", other.key);
  EXPECT_THAT(refused(TlsFlags()), HasSubstr("tls-key: must belong to"));
  EXPECT_THAT(refused({"--tls-cert", files_.Path("cert.pem")}), HasSubstr("given together"));
  EXPECT_THAT(refused({"--tls-cert", files_.Path("none"), "--tls-key", files_.Path("key.pem")}),
              HasSubstr("NOT_FOUND"));
  EXPECT_THAT(refused({"--tls-client-ca", authority_.path()}), HasSubstr("tls-client-ca"));
}

TEST_F(Tls, TheProgramsSpeakItAndAdminHasAPortOfItsOwn) {
  ServerProcess server(TokenFlags({"--admin-listen", "127.0.0.1:0"}));
  files_.Write("token", absl::StrCat(kAdminToken, "\n"));
  const auto run = [&](const std::string& program, const std::string& address,
                       std::vector<std::string> words) {
    words.insert(words.end(), {"--server", address, "--tls-ca", authority_.path(), "--token-file",
                               files_.Path("token")});
    return RunProgram(program, words);
  };
  WaitUntilReady(Connect(server.address(), Options()).get());
  EXPECT_EQ(run("headwise", server.address(), {"list"}).exit_code, 0);
  const CommandResult load = run("headwise-load", server.address(),
                                 {"two-head", "--duration", "1s", "--lengths", "fixed:3"});
  EXPECT_EQ(load.exit_code, 0) << load.err;
  const CommandResult there = run("headwise", server.address(), {"unload", "two-head"});
  EXPECT_EQ(there.exit_code, 1);
  EXPECT_THAT(there.err, HasSubstr("PERMISSION_DENIED: method: must be called at an address of "
                                   "--admin-listen"));
  const CommandResult here = run("headwise", server.admin_address(), {"unload", "two-head"});
  EXPECT_EQ(here.exit_code, 0) << here.err;
}

}  // namespace
}  // namespace headwise
