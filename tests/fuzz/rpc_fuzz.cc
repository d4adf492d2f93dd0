// SPDX-License-Identifier: Apache-2.0
// The messages of the RPCs that take more than names: decoded, and checked against two layers, as
// the handlers and the engine do before anything is queued. An input's first byte names the
// message, the rest is its wire form; a seed that begins with "# NAME" has it in protobuf's text
// form.
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/ablation/plan.h"
#include "core/analysis/analysis.h"
#include "core/batch/validate.h"
#include "headwise/v1/headwise.pb.h"
#include "server/codec_ablation.h"
#include "server/codec_analysis.h"
#include "server/codec_input.h"
#include "server/status.h"
#include "server/upload.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/message_mutator.h"

// libFuzzer's; absent where the seeds are only replayed.
extern "C" __attribute__((weak)) size_t LLVMFuzzerMutate(uint8_t* data, size_t size,
                                                         size_t max_size);

namespace headwise {
namespace {

using google::protobuf::Message;

constexpr int64_t kMaxSequences = 16, kMaxAblations = 64;

// Two heads of equal width, causal; and unequal ones that share a key/value head.
std::vector<LayerSpec> MakeSpecs() {
  LayerSpec equal, unequal;
  equal.d_model = 4;
  equal.heads = 2;
  equal.orientation = Orientation::kOutIn;
  equal.mask.causal = true;
  unequal = equal;
  unequal.mask.causal = false;
  unequal.heads = 3;
  unequal.kv_heads = 2;
  unequal.dk = {2, 2, 1};
  unequal.dv = {1, 1, 3};
  unequal.query_to_kv = {0, 0, 1};
  unequal.head_ids = {7, 2, 5};
  std::vector<LayerSpec> specs;
  for (const LayerSpec& spec : {equal, unequal}) {
    absl::StatusOr<LayerSpec> resolved = ResolveSpec(spec);
    CHECK_OK(resolved.status());
    specs.push_back(*std::move(resolved));
  }
  return specs;
}

const std::vector<LayerSpec>& Specs() {
  static const auto* const specs = new std::vector<LayerSpec>(MakeSpecs());
  return *specs;
}

// A refusal is looked at as it leaves the server, which is where it is made one short line.
bool Ok(const absl::Status& status) {
  if (!status.ok()) CheckRefusal(absl::Status(status.code(), ToGrpcStatus(status).error_message()));
  return status.ok();
}

void Try(const v1::ForwardRequest& message) {
  const absl::StatusOr<ForwardRequest> decoded = DecodeForward(message);
  if (!Ok(decoded.status())) return;
  for (const LayerSpec& spec : Specs()) {
    const absl::StatusOr<ValidInput> valid = ValidateInput(spec, decoded->input, kMaxSequences);
    if (!Ok(valid.status())) continue;
    CHECK_GE(OutputBytes(spec, *valid, decoded->outputs), 0);
    CHECK_GE(EstimateWork(spec, *valid), 0.0);
    PlantFault(valid->queries.size() > 2 && valid->keep != nullptr);
  }
}

void Try(const v1::AblateRequest& message) {
  const absl::StatusOr<AblateRequest> decoded = DecodeAblate(message);
  if (!Ok(decoded.status())) return;
  for (const LayerSpec& spec : Specs()) {
    const absl::StatusOr<ValidInput> valid = ValidateInput(spec, decoded->input, kMaxSequences);
    if (!Ok(valid.status())) continue;
    auto plan = PlanAblations(spec, valid->queries, *decoded, kMaxAblations);
    if (!Ok(plan.status())) continue;
    Ok(ValidateDonors(spec, *valid, kMaxSequences, &*plan));
  }
}

void Try(const v1::AnalyzeHeadsRequest& message) {
  const absl::StatusOr<AttentionInput> input = DecodeInput(message.input());
  const absl::StatusOr<AnalysisOptions> options = DecodeAnalysisOptions(message);
  if (!Ok(input.status()) || !Ok(options.status())) return;
  for (const LayerSpec& spec : Specs()) {
    const absl::StatusOr<ValidInput> valid = ValidateInput(spec, *input, kMaxSequences);
    if (Ok(valid.status())) Ok(CheckAnalysis(spec, *valid, *options));
  }
}

// One message stands for the stream: its header, then its chunk.
void Try(const v1::UploadHeader& message) {
  Upload upload;
  if (!Ok(upload.Begin(message, int64_t{1} << 16))) return;
  Ok(upload.Begin(message, int64_t{1} << 16));
  v1::UploadChunk chunk;
  chunk.set_data("0123");
  Ok(upload.Add(chunk));
  Ok(upload.Finish().status());
}

template <typename MessageType>
void TryAs(const Message& message) {
  Try(static_cast<const MessageType&>(message));
}

struct Rpc {
  const Message& prototype;
  void (*run)(const Message& message);
};

const std::vector<Rpc>& Rpcs() {
  static const auto* const rpcs = new std::vector<Rpc>{
      {v1::ForwardRequest::default_instance(), TryAs<v1::ForwardRequest>},
      {v1::AblateRequest::default_instance(), TryAs<v1::AblateRequest>},
      {v1::AnalyzeHeadsRequest::default_instance(), TryAs<v1::AnalyzeHeadsRequest>},
      {v1::UploadHeader::default_instance(), TryAs<v1::UploadHeader>}};
  return *rpcs;
}

// An input read: which RPC, and its message.
struct Input {
  size_t rpc = 0;
  std::unique_ptr<Message> message;
};

Input ReadInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Input input;
  if (text.rfind("# ", 0) == 0) {
    for (size_t i = 0; i < Rpcs().size(); ++i) {
      if (text.rfind("# " + Rpcs()[i].prototype.GetDescriptor()->name() + "\n", 0) == 0) {
        input.rpc = i;
        input.message.reset(Rpcs()[i].prototype.New());
        CHECK(google::protobuf::TextFormat::ParseFromString(text, input.message.get())) << text;
        return input;
      }
    }
  }
  input.rpc = size == 0 ? 0 : data[0] % Rpcs().size();
  input.message.reset(Rpcs()[input.rpc].prototype.New());
  if (size == 0 || !input.message->ParseFromString(text.substr(1))) input.message->Clear();
  return input;
}

void MutateText(std::string* text) {
  if (LLVMFuzzerMutate == nullptr) return text->push_back('x');
  const size_t size = text->size();
  text->resize(size + 64);
  text->resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text->data()), size, text->size()));
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const headwise::Input input = headwise::ReadInput(data, size);
  headwise::Rpcs()[input.rpc].run(*input.message);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  std::mt19937 random(seed);
  headwise::Input input = headwise::ReadInput(data, size);
  for (unsigned int i = 0; i <= random() % 3; ++i) {
    headwise::MutateMessage(&random, headwise::MutateText, input.message.get());
  }
  const std::string wire = static_cast<char>(input.rpc) + input.message->SerializePartialAsString();
  if (wire.size() > max_size) return size;
  std::copy(wire.begin(), wire.end(), data);
  return wire.size();
}
