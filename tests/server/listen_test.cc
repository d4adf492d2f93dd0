// SPDX-License-Identifier: Apache-2.0
#include "server/listen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tests/server/server_fixture.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Listen, AddressesByCommas) {
  EXPECT_THAT(*ParseListen("listen", "127.0.0.1:0,unix:/run/h.sock"),
              ElementsAre("127.0.0.1:0", "unix:/run/h.sock"));
  for (const char* text : {"", ",", "unix:", "8500", "127.0.0.1:1,nothing"}) {
    EXPECT_EQ(ParseListen("listen", text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  std::string too_long = "unix:/";
  too_long.resize(120, 'x');
  EXPECT_FALSE(ParseListen("listen", too_long).ok());
}

class UnixRpc : public ServerFixture {
 protected:
  grpc::Status CallOver(const std::string& target) {
    const auto stub =
        v1::Headwise::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::ForwardResponse response;
    return stub->Forward(&context, ToyForward(2), &response);
  }
  ServerOptions Options() {
    ServerOptions options = TestOptions();
    options.listen = "127.0.0.1:0,unix:" + path_;
    return options;
  }

  TempDir dir_;
  const std::string path_ = dir_.path() + "/headwise.sock";
};

TEST_F(UnixRpc, ServesBesideTcp) {
  StartReady(Options());
  EXPECT_THAT(server_->Banner(), HasSubstr(",unix:" + path_));
  EXPECT_TRUE(CallOver("unix:" + path_).ok());
  const std::string banner = server_->Banner();
  const std::string tcp = banner.substr(10, banner.find(',') - 10);
  EXPECT_TRUE(CallOver(tcp).ok());
}

TEST_F(UnixRpc, AFileThatADeadServerLeftIsReplaced) {
  {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    close(fd);
  }
  StartReady(Options());
  EXPECT_TRUE(CallOver("unix:" + path_).ok());
}

TEST_F(UnixRpc, ASocketThatAnswersIsNot) {
  StartReady(Options());
  const absl::Status second = Server::Start(Options(), &engine_).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.message()), HasSubstr(path_));
  EXPECT_TRUE(CallOver("unix:" + path_).ok());
}

TEST_F(UnixRpc, NorIsAnOrdinaryFile) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(Server::Start(Options(), &engine_).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace headwise
