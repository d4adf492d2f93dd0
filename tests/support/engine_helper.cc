// SPDX-License-Identifier: Apache-2.0
#include "tests/support/engine_helper.h"

#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace headwise {
namespace {

std::vector<float> Floats(const NamedOutput& output) {
  CHECK(output.dtype == DType::kF32) << output.name;
  std::vector<float> values(output.data.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), output.data.data(), output.data.size());
  return values;
}

// Collects answers by their index and waits for all of them.
template <typename Result>
class Answers {
 public:
  explicit Answers(size_t count) : answers_(count), missing_(count) {}

  void Set(size_t index, absl::StatusOr<Result> answer) {
    const std::lock_guard<std::mutex> lock(mu_);
    CHECK(!answers_[index].has_value()) << absl::StrCat("answered twice: ", index);
    answers_[index] = std::move(answer);
    if (--missing_ == 0) done_.notify_all();
  }

  std::vector<absl::StatusOr<Result>> Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    done_.wait(lock, [this] { return missing_ == 0; });
    std::vector<absl::StatusOr<Result>> answers;
    for (auto& answer : answers_) answers.push_back(*std::move(answer));
    return answers;
  }

 private:
  std::mutex mu_;
  std::condition_variable done_;
  std::vector<std::optional<absl::StatusOr<Result>>> answers_;
  size_t missing_;
};

}  // namespace

std::unique_ptr<Engine> MakeEngine(int64_t threads, EngineLimits limits, KernelPath kernel) {
  EngineOptions options;
  options.threads = threads;
  options.kernel = kernel;
  options.limits = limits;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(options);
  CHECK_OK(engine.status());
  return *std::move(engine);
}

void Load(Engine* engine, const std::string& name, const TestLayer& layer, DType dtype) {
  LoadOptions options;
  options.name = name;
  options.dtype = dtype;
  options.replace = true;
  const LayerTensors tensors(layer);
  CHECK_OK(engine->LoadLayer(options, layer.spec, tensors.roles()).status());
}

absl::StatusOr<ForwardResult> ForwardNow(Engine* engine, ForwardRequest request) {
  auto answer = std::make_shared<std::promise<absl::StatusOr<ForwardResult>>>();
  engine->Forward(std::move(request), [answer](absl::StatusOr<ForwardResult> result) {
    answer->set_value(std::move(result));
  });
  return answer->get_future().get();
}

absl::StatusOr<AblateResult> AblateNow(Engine* engine, AblateRequest request) {
  auto answer = std::make_shared<std::promise<absl::StatusOr<AblateResult>>>();
  engine->Ablate(std::move(request), [answer](absl::StatusOr<AblateResult> result) {
    answer->set_value(std::move(result));
  });
  return answer->get_future().get();
}

ForwardRequest MakeForward(const std::string& layer, const TestInput& input, uint32_t outputs) {
  ForwardRequest request;
  request.layer = layer;
  request.input = input.get();
  request.outputs = outputs;
  return request;
}

std::vector<absl::StatusOr<ForwardResult>> ForwardTogether(Engine* engine,
                                                           std::vector<ForwardRequest> requests) {
  Answers<ForwardResult> answers(requests.size());
  std::promise<void> held, release;
  std::thread holder([&] {
    engine->RunExclusive([&] {
      held.set_value();
      release.get_future().wait();
    });
  });
  held.get_future().wait();
  for (size_t i = 0; i < requests.size(); ++i) {
    engine->Forward(std::move(requests[i]), [&answers, i](absl::StatusOr<ForwardResult> result) {
      answers.Set(i, std::move(result));
    });
  }
  release.set_value();
  holder.join();
  return answers.Wait();
}

std::map<std::string, std::vector<float>> ByName(const std::vector<NamedOutput>& outputs) {
  std::map<std::string, std::vector<float>> by_name;
  for (const NamedOutput& output : outputs) {
    if (output.dtype == DType::kF32) by_name[output.name] = Floats(output);
  }
  return by_name;
}

std::map<std::string, std::vector<float>> RunForward(const TestLayer& layer, const TestInput& input,
                                                     uint32_t outputs) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", layer);
  absl::StatusOr<ForwardResult> result =
      ForwardNow(engine.get(), MakeForward("layer", input, outputs));
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return {};
  return ByName(result->outputs);
}

std::vector<float> RunY(const TestLayer& layer, const TestInput& input) {
  return RunForward(layer, input)["y"];
}

std::vector<float> RunAblatedY(const TestLayer& layer, const TestInput& input,
                               const std::vector<int64_t>& heads) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", layer);
  AblateRequest request;
  request.layer = "layer";
  request.input = input.get();
  Intervention zero;
  zero.heads = heads;
  request.ablations.push_back({{zero}});
  request.return_all_ablation_y = true;
  absl::StatusOr<AblateResult> result = AblateNow(engine.get(), std::move(request));
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return {};
  return ByName(result->outputs)["ablation.0.y"];
}

}  // namespace headwise
