// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/log/check.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/bytes.h"

namespace headwise {
namespace {

constexpr std::chrono::milliseconds kPoll(5);

using Clock = std::chrono::steady_clock;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Starts a program with its output in files. The child is the program itself, so its id is the one
// to signal.
pid_t Spawn(const std::string& program, const std::vector<std::string>& arguments,
            const std::string& out, const std::string& err) {
  const std::string path = absl::StrCat(HEADWISE_BIN_DIR, "/", program);
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  CHECK_GE(pid, 0);
  if (pid == 0) {
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDERR_FILENO);
    execv(path.c_str(), argv.data());
    _exit(127);
  }
  return pid;
}

// Exit code, 128 + signal, or -1 after `seconds`.
int Wait(pid_t pid, double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) == pid) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    std::this_thread::sleep_for(kPoll);
  } while (Clock::now() < end);
  return -1;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  uint32_t port = 0;
  CHECK(absl::SimpleAtoi(parts[1], &port)) << address;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, parts[0].c_str(), &to.sin_addr);
  std::string text;
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request =
        absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
        text.append(buffer, static_cast<size_t>(n));
      }
    }
  }
  close(fd);
  return text;
}

}  // namespace

CommandResult RunProgram(const std::string& program, const std::vector<std::string>& arguments) {
  const TempDir dir;
  const pid_t pid = Spawn(program, arguments, dir.Path("out"), dir.Path("err"));
  CommandResult result;
  result.exit_code = Wait(pid, 60.0);
  if (result.exit_code < 0) {
    kill(pid, SIGKILL);
    Wait(pid, 10.0);
  }
  result.out = ReadFile(dir.Path("out"));
  result.err = ReadFile(dir.Path("err"));
  return result;
}

ServerProcess::ServerProcess(std::vector<std::string> arguments) {
  std::vector<std::string> all = {"--listen",    "127.0.0.1:0",  "--metrics",
                                  "127.0.0.1:0", "--repository", TestDataPath(".")};
  all.insert(all.end(), arguments.begin(), arguments.end());
  pid_ = Spawn("headwise-server", all, dir_.Path("out"), dir_.Path("err"));
  running_ = true;
  const auto end = Clock::now() + std::chrono::seconds(60);
  std::string line;
  while (line.find('\n') == std::string::npos && Clock::now() < end) {
    if (WaitForExit(0.0) >= 0) break;
    line = ReadFile(dir_.Path("out"));
    std::this_thread::sleep_for(kPoll);
  }
  const std::vector<std::string> words =
      absl::StrSplit(line.substr(0, line.find('\n')), ' ');  // listening A metrics B [admin C]
  CHECK((words.size() == 4 || (words.size() == 6 && words[4] == "admin")) &&
        words[0] == "listening" && words[2] == "metrics")
      << "first line: " << line << "\n"
      << Log();
  address_ = words[1];
  metrics_ = words[3];
  if (words.size() == 6) admin_ = words[5];
}

ServerProcess::~ServerProcess() {
  if (!running_) return;
  if (const int code = WaitForExit(0.0); code >= 0) {
    ADD_FAILURE() << "the server ended by itself, code " << code << "\n" << Log();
    return;
  }
  kill(pid_, SIGKILL);
  WaitForExit(10.0);
}

CommandResult ServerProcess::Headwise(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {"--server", address_});
  return RunProgram("headwise", arguments);
}

nlohmann::json ServerProcess::HeadwiseJson(std::vector<std::string> arguments) const {
  arguments.push_back("--json");
  const CommandResult result = Headwise(std::move(arguments));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  if (result.exit_code != 0) return nullptr;
  return result.json();
}

std::string ServerProcess::MetricsText() const { return HttpGet(metrics_, "/metrics"); }

double ServerProcess::Metric(const std::string& name) const {
  double sum = 0.0;
  const std::string text = MetricsText();
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, name)) continue;
    if (line.empty() || (line[0] != '{' && line[0] != ' ')) continue;
    double value = 0.0;
    const size_t space = line.rfind(' ');
    if (absl::SimpleAtod(absl::StripAsciiWhitespace(line.substr(space + 1)), &value)) sum += value;
  }
  return sum;
}

bool ServerProcess::WaitForMetric(const std::string& name, double value) const {
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (Clock::now() < end) {
    if (Metric(name) >= value) return true;
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

void ServerProcess::Signal(int signal) const { kill(pid_, signal); }

int ServerProcess::WaitForExit(double seconds) {
  const int code = Wait(pid_, seconds);
  if (code >= 0) running_ = false;
  return code;
}

std::string ServerProcess::Log() const { return ReadFile(dir_.Path("err")); }

int64_t ServerProcess::StatusBytes(const std::string& key) const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/status"));
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, key + ":")) continue;
    absl::ConsumeSuffix(&rest, " kB");
    int64_t kib = 0;
    CHECK(absl::SimpleAtoi(absl::StripAsciiWhitespace(rest), &kib)) << line;
    return kib * 1024;
  }
  return -1;
}

int64_t ServerProcess::ResidentBytes() const { return StatusBytes("VmRSS"); }
int64_t ServerProcess::PeakResidentBytes() const { return StatusBytes("VmHWM"); }

}  // namespace headwise
