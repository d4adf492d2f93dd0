// SPDX-License-Identifier: Apache-2.0
// headwise_soak SECONDS: random loads, replacements, unloads, forwards, ablations, streams,
// cancellations and floods against one server process, and a plain model of what must come back.
// Every answer is checked; memory must stay flat. Exit code 1, and the fault on stderr, if not.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/compare.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using Clock = std::chrono::steady_clock;

int g_seconds = 60;

constexpr int64_t kWidth = 384;
constexpr size_t kNames = 3, kInputs = 6;
const char* const kSources[] = {"0", "3"};
constexpr size_t kSourceCount = 2;

// The model: which stored layer a version of a name is, and what each gives for each input.
class Model {
 public:
  struct Expected {
    std::vector<float> y;
    std::vector<double> effects;  // relative L2 of leaving each head out
  };

  explicit Model(client::Client* client) {
    for (size_t i = 0; i < kInputs; ++i) {
      const std::vector<int64_t> lengths = {static_cast<int64_t>(1 + 7 * i), 5};
      inputs_.push_back(MakeForwardRequest(
          "", RandomFloats((lengths[0] + 5) * kWidth, static_cast<uint32_t>(i)), lengths));
    }
    for (const char* source : kSources) {
      LoadStored(client, "model", "data/minilm", source);
      for (size_t i = 0; i < kInputs; ++i) expected_.push_back(Ask(client, i));
      EXPECT_TRUE(client->UnloadLayer("model").ok());
    }
  }

  v1::ForwardRequest Forward(size_t input, const std::string& layer) const {
    v1::ForwardRequest request = inputs_[input];
    request.set_layer(layer);
    return request;
  }
  v1::AblateRequest Ablate(size_t input, const std::string& layer) const {
    v1::AblateRequest request;
    request.set_layer(layer);
    *request.mutable_input() = inputs_[input].input();
    request.set_sweep(v1::LEAVE_ONE_OUT);
    return request;
  }

  void Loaded(const std::string& name, uint32_t version, size_t source) {
    const std::lock_guard<std::mutex> lock(mu_);
    sources_[{name, version}] = source;
  }

  void Check(size_t input, const v1::ForwardResponse& answer) const {
    const Expected* expected = Find(answer.layer(), answer.layer_version(), input);
    if (expected == nullptr) return;
    EXPECT_TRUE(SameBits(TensorFloats(answer, "y"), expected->y));
  }
  void Check(size_t input, const v1::AblateResult& answer) const {
    const Expected* expected = Find(answer.layer(), answer.layer_version(), input);
    if (expected == nullptr) return;
    EXPECT_EQ(Effects(answer), expected->effects);
  }

 private:
  static std::vector<double> Effects(const v1::AblateResult& result) {
    std::vector<double> effects;
    for (const v1::AblationEffect& ablation : result.ablations()) {
      effects.push_back(ablation.effect().relative_l2());
    }
    return effects;
  }
  Expected Ask(client::Client* client, size_t input) const {
    const auto forward = client->Forward(Forward(input, "model"));
    const auto ablate = client->Ablate(Ablate(input, "model"));
    EXPECT_TRUE(forward.ok() && ablate.ok()) << forward.status() << ablate.status();
    if (!forward.ok() || !ablate.ok()) return {};
    return {TensorFloats(*forward, "y"), Effects(*ablate)};
  }
  // An answer may be here before that of the load which made its version.
  const Expected* Find(const std::string& name, uint32_t version, size_t input) const {
    const auto end = Clock::now() + std::chrono::seconds(10);
    while (Clock::now() < end) {
      {
        const std::lock_guard<std::mutex> lock(mu_);
        const auto found = sources_.find({name, version});
        if (found != sources_.end()) return &expected_[found->second * kInputs + input];
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << name << " version " << version << " was never loaded";
    return nullptr;
  }

  std::vector<v1::ForwardRequest> inputs_;
  std::vector<Expected> expected_;  // source after source
  mutable std::mutex mu_;
  std::map<std::pair<std::string, uint32_t>, size_t> sources_;
};

class Soak {
 public:
  Soak() : client_(ConnectTo(server_)), model_(client_.get()) {}

  void Run() {
    std::vector<std::thread> threads;
    threads.emplace_back([this] { ChangeLayers(); });
    for (uint32_t i = 0; i < 4; ++i) threads.emplace_back([this, i] { Call(i); });
    threads.emplace_back([this] { Flood(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(g_seconds * 1000 / 3));
    const int64_t early = server_.PeakResidentBytes();
    std::this_thread::sleep_for(std::chrono::milliseconds(g_seconds * 2000 / 3));
    stop_ = true;
    for (std::thread& thread : threads) thread.join();
    // What is resident under a sanitizer is mostly the sanitizer's.
    if (!HEADWISE_SANITIZED) {
      EXPECT_LE(server_.ResidentBytes(), early + (int64_t{32} << 20));
    }
    EXPECT_EQ(server_.Metric("headwise_queued_requests"), 0.0);
    EXPECT_GT(right_, 100) << "hardly anything was answered";
    std::printf("%lld answers checked, %lld refused, resident %lld MiB after %lld MiB\n",
                static_cast<long long>(right_), static_cast<long long>(refused_),
                static_cast<long long>(server_.ResidentBytes() >> 20),
                static_cast<long long>(early >> 20));
    server_.Signal(SIGTERM);
    EXPECT_EQ(server_.WaitForExit(40.0), 0) << server_.Log();
  }

 private:
  static std::string Name(size_t i) { return absl::StrCat("layer", i); }

  void ChangeLayers() {
    const auto client = ConnectTo(server_);
    std::mt19937 random(1);
    while (!stop_) {
      const std::string name = Name(random() % kNames);
      if (random() % 4 == 0) {
        const auto unloaded = client->UnloadLayer(name);
        EXPECT_TRUE(unloaded.ok() || absl::IsNotFound(unloaded.status())) << unloaded.status();
      } else {
        const size_t source = random() % kSourceCount;
        v1::LoadLayerRequest load;
        load.set_name(name);
        load.set_checkpoint("data/minilm");
        load.set_layer(kSources[source]);
        load.set_replace(true);
        const auto loaded = client->LoadLayer(load);
        EXPECT_TRUE(loaded.ok()) << loaded.status();
        if (loaded.ok()) model_.Loaded(name, loaded->layer().version(), source);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
    }
  }

  // What a call may come to besides OK: nothing that says the server is at fault.
  void CountRefusal(const absl::Status& status, bool hurried) {
    ++refused_;
    const bool allowed = absl::IsNotFound(status) || absl::IsResourceExhausted(status) ||
                         (hurried && absl::IsDeadlineExceeded(status));
    EXPECT_TRUE(allowed) << status;
  }

  void Call(uint32_t seed) {
    const auto patient = ConnectTo(server_);
    const auto hurried = ConnectTo(server_, 0.003);
    std::mt19937 random(seed);
    while (!stop_) {
      const std::string name = Name(random() % kNames);
      const size_t input = random() % kInputs;
      const uint32_t dice = random() % 10;
      if (dice == 0) {
        Take(patient->Ablate(model_.Ablate(input, name)), input, /*in_a_hurry=*/false);
      } else if (dice == 1) {
        Take(hurried->Forward(model_.Forward(input, name)), input, /*in_a_hurry=*/true);
      } else if (dice == 2) {
        Stream(patient.get(), name);
      } else {
        Take(patient->Forward(model_.Forward(input, name)), input, /*in_a_hurry=*/false);
      }
    }
  }

  template <typename Answer>
  void Take(const absl::StatusOr<Answer>& answer, size_t input, bool in_a_hurry) {
    if (!answer.ok()) return CountRefusal(answer.status(), in_a_hurry);
    model_.Check(input, *answer);
    ++right_;
  }

  void Stream(client::Client* client, const std::string& name) {
    const auto stream = client->OpenForwardStream();
    for (size_t i = 0; i < kInputs; ++i) {
      v1::ForwardRequest request = model_.Forward(i, name);
      request.set_request_id(absl::StrCat(i));
      if (!stream->Send(request)) break;
    }
    stream->CloseSending();
    size_t answers = 0;
    while (const auto answer = stream->Receive()) {
      ++answers;
      const auto input = static_cast<size_t>(std::atoi(answer->request_id().c_str()));
      if (answer->status_code() == 0) {
        model_.Check(input, answer->response());
        ++right_;
      } else {
        CountRefusal(absl::Status(static_cast<absl::StatusCode>(answer->status_code()),
                                  answer->status_message()),
                     /*hurried=*/false);
      }
    }
    EXPECT_EQ(answers, kInputs);
    EXPECT_TRUE(stream->Finish().ok());
  }

  // Bursts of more than the queue takes.
  void Flood() {
    const auto client = ConnectTo(server_);
    std::mt19937 random(99);
    while (!stop_) {
      std::vector<std::thread> burst;
      for (int i = 0; i < 32; ++i) {
        const size_t input = random() % kInputs;
        burst.emplace_back([&, input] {
          Take(client->Forward(model_.Forward(input, Name(0))), input, /*in_a_hurry=*/false);
        });
      }
      for (std::thread& thread : burst) thread.join();
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
    }
  }

  ServerProcess server_{{"--queue-tokens", "400"}};
  std::unique_ptr<client::Client> client_;
  Model model_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> right_{0}, refused_{0};
};

TEST(Soak, EverythingAtOnceAgainstAPlainModel) { Soak().Run(); }

}  // namespace
}  // namespace headwise

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) headwise::g_seconds = std::max(3, std::atoi(argv[1]));
  return RUN_ALL_TESTS();
}
