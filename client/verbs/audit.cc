// SPDX-License-Identifier: Apache-2.0
// audit: the checks of a served layer, or what one's own numbers come from.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ablate_request.h"
#include "client/input.h"
#include "client/json.h"
#include "client/status.h"
#include "client/tensors.h"
#include "client/verb.h"
#include "core/format/safetensors.h"
#include "core/format/tensor_file.h"

namespace headwise::client {
namespace {

using Align = Table::Align;

constexpr absl::string_view kDTypes[] = {"f32", "bf16", "f16"};
constexpr v1::DType kDTypeValues[] = {v1::F32, v1::BF16, v1::F16};

std::vector<Flag> AuditFlags() {
  return {{"theirs", "F.safetensors", "one's own y, optionally q, k, v, scores, p, z; F.npy: y"},
          {"dtype", "f32|bf16|f16", "what one's own tensors were computed in; y's own by default"},
          {"heads", "0,3", "what one's own code ablated"},
          {"kind", "zero|scale", "how it did; zero by default"},
          {"scale", "G", "with --kind scale"},
          {"distinguish", "F.safetensors", "write an input that tells several explanations apart"},
          {"expected-version", "N", "refuse another version of the layer"}};
}

absl::Status CheckGrammar(const Args& args) {
  for (absl::string_view flag : {"dtype", "heads", "distinguish"}) {
    if (args.Has(flag) && !args.Has("theirs")) {
      return UsageError(absl::StrCat("--", flag, " needs --theirs"));
    }
  }
  for (absl::string_view flag : {"kind", "scale"}) {
    if (args.Has(flag) && !args.Has("heads")) {
      return UsageError(absl::StrCat("--", flag, " needs --heads"));
    }
  }
  return absl::OkStatus();
}

// One tensor a sequence: NAME.0, NAME.1, …, or NAME where there is one sequence.
absl::Status AddPairs(const SafetensorsFile& file, const std::string& path, const std::string& name,
                      google::protobuf::RepeatedPtrField<v1::Tensor>* out) {
  const auto add = [&](const std::string& of_sequence) -> absl::Status {
    CLIENT_ASSIGN_OR_RETURN(
        *out->Add(), ReadFloats(absl::StrCat(path, ":", of_sequence), "theirs." + of_sequence));
    return absl::OkStatus();
  };
  for (int b = 0; file.Find(absl::StrCat(name, ".", b)) != nullptr; ++b) {
    CLIENT_RETURN_IF_ERROR(add(absl::StrCat(name, ".", b)));
  }
  if (out->empty() && file.Find(name) != nullptr) return add(name);
  return absl::OkStatus();
}

absl::Status ReadTheirs(const std::string& text, v1::Theirs* theirs) {
  const TensorFileName named = ParseTensorFileName(text);
  if (!absl::EndsWith(named.file, ".safetensors") || !named.name.empty()) {
    CLIENT_ASSIGN_OR_RETURN(*theirs->mutable_y(), ReadFloats(text, "theirs.y"));
    return absl::OkStatus();
  }
  CLIENT_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(named.file));
  const auto read = [&](const char* name, v1::Tensor* out) -> absl::Status {
    CLIENT_ASSIGN_OR_RETURN(
        *out, ReadFloats(absl::StrCat(named.file, ":", name), absl::StrCat("theirs.", name)));
    return absl::OkStatus();
  };
  CLIENT_RETURN_IF_ERROR(read("y", theirs->mutable_y()));
  if (file->Find("q") != nullptr) CLIENT_RETURN_IF_ERROR(read("q", theirs->mutable_q()));
  if (file->Find("k") != nullptr) CLIENT_RETURN_IF_ERROR(read("k", theirs->mutable_k()));
  if (file->Find("v") != nullptr) CLIENT_RETURN_IF_ERROR(read("v", theirs->mutable_v()));
  if (file->Find("z") != nullptr) CLIENT_RETURN_IF_ERROR(read("z", theirs->mutable_z()));
  CLIENT_RETURN_IF_ERROR(AddPairs(*file, named.file, "scores", theirs->mutable_scores()));
  return AddPairs(*file, named.file, "p", theirs->mutable_p());
}

bool HasInputFlag(const Args& args) {
  for (const Flag& flag : InputFlags()) {
    if (args.Has(flag.name)) return true;
  }
  return args.Has("theirs");
}

absl::StatusOr<v1::AuditRequest> BuildRequest(const Args& args, const std::string& layer) {
  CLIENT_RETURN_IF_ERROR(CheckGrammar(args));
  v1::AuditRequest request;
  request.set_layer(layer);
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> version, args.Uint("expected-version"));
  if (version.has_value()) request.set_expected_version(*version);
  CLIENT_ASSIGN_OR_RETURN(const size_t dtype, args.Choice("dtype", kDTypes, std::size(kDTypes)));
  if (args.Has("heads")) {
    CLIENT_ASSIGN_OR_RETURN(const v1::AblateRequest ablate, BuildAblateRequest(args, layer));
    *request.mutable_ablation() = ablate.ablations(0);
  }
  if (HasInputFlag(args)) {
    CLIENT_ASSIGN_OR_RETURN(*request.mutable_input(), BuildInput(args));
  }
  if (args.Has("theirs")) {
    CLIENT_RETURN_IF_ERROR(ReadTheirs(args.Text("theirs"), request.mutable_theirs()));
    if (dtype < std::size(kDTypes)) request.mutable_theirs()->set_stated_dtype(kDTypeValues[dtype]);
  }
  request.set_want_distinguishing_input(args.Has("distinguish"));
  return request;
}

std::string Number(double value) { return absl::StrFormat("%.2g", value); }

std::string CheckReport(const v1::AuditResult& result, const Terminal& terminal) {
  Table table(
      {{"check"}, {"error", Align::kRight}, {"bound", Align::kRight}, {"verdict"}, {"compared"}});
  int failed = 0;
  for (const v1::AuditCheck& check : result.checks()) {
    failed += check.passed() ? 0 : 1;
    table.Add({CleanText(check.id()), Number(check.error()), Number(check.bound()),
               check.passed() ? "passed" : "FAILED", CleanText(check.compared())});
  }
  std::string text = absl::StrCat(CleanText(result.layer()), " version ", result.layer_version(),
                                  ": ", result.checks_size(), " checks, ", failed, " failed\n\n",
                                  table.Render(terminal), "\nbounds:\n");
  // Many checks share one source.
  std::vector<std::string> said;
  for (const v1::AuditCheck& check : result.checks()) {
    std::string ids;
    if (std::find(said.begin(), said.end(), check.bound_source()) != said.end()) continue;
    said.push_back(check.bound_source());
    for (const v1::AuditCheck& other : result.checks()) {
      if (other.bound_source() != check.bound_source()) continue;
      absl::StrAppend(&ids, ids.empty() ? "" : ", ", CleanText(other.id()));
    }
    absl::StrAppend(&text, "  ", ids, ": ", CleanText(check.bound_source()), "\n");
  }
  return text;
}

std::string Headline(const v1::AuditResult& result) {
  if (result.verdict() == "right") {
    return absl::StrCat("right: every tensor given is within the bounds of ",
                        v1::DType_Name(result.stated_dtype()), " numbers");
  }
  const std::string first = CleanText(result.first_difference());
  if (result.verdict() != "explained") {
    return absl::StrCat(
        "unexplained: ", first,
        " is the first of the tensors given that differs, and no known mistake, nor "
        "two at once, gives these numbers");
  }
  return absl::StrCat("explained: ", first, " is the first of the tensors given that differs; ",
                      result.explanations_size() == 1 ? "one explanation gives these numbers"
                                                      : absl::StrCat(result.explanations_size(),
                                                                     " explanations give these "
                                                                     "numbers on this input"));
}

std::string TheirsReport(const v1::AuditResult& result, const Terminal& terminal) {
  Table table({{"stage"}, {"error", Align::kRight}, {"bound", Align::kRight}, {"agrees"}});
  for (const v1::AuditStage& stage : result.stages()) {
    table.Add({CleanText(stage.stage()), Number(stage.error()), Number(stage.bound()),
               stage.agrees() ? "yes" : "NO"});
  }
  std::string text = absl::StrCat(CleanText(result.layer()), " version ", result.layer_version(),
                                  ", ", Headline(result), "\n\n", table.Render(terminal));
  for (const v1::Explanation& explanation : result.explanations()) {
    absl::StrAppend(&text, "\n", CleanText(absl::StrJoin(explanation.mistakes(), " + ")), ": ",
                    CleanText(explanation.text()),
                    "\n  first seen in: ", CleanText(explanation.first_stage()), "; y within ",
                    Number(explanation.error()), " of it, bound ", Number(explanation.bound()),
                    "\n  to change: ", CleanText(explanation.fix()), "\n");
  }
  if (!result.distinguishing_note().empty()) {
    absl::StrAppend(&text, "\n", CleanText(result.distinguishing_note()), "\n");
  } else if (!result.distinguishable()) {
    absl::StrAppend(&text,
                    "\n--distinguish F.safetensors writes an input that would tell these apart\n");
  }
  return text;
}

// x and lengths (and memory, memory_lengths) for another run of one's own code.
absl::Status WriteInput(const std::string& path, const v1::AuditResult& result) {
  std::vector<std::pair<std::string, TensorView>> named;
  const auto add = [&](const char* name, const v1::Tensor& tensor) {
    if (tensor.shape_size() == 0) return;
    named.emplace_back(name,
                       TensorView{DType::kF32, Shape(tensor.shape().begin(), tensor.shape().end()),
                                  tensor.data().data()});
  };
  const std::vector<int32_t> lengths(result.distinguishing_lengths().begin(),
                                     result.distinguishing_lengths().end());
  const std::vector<int32_t> keys(result.distinguishing_memory_lengths().begin(),
                                  result.distinguishing_memory_lengths().end());
  add("x", result.distinguishing_x());
  named.emplace_back(
      "lengths", TensorView{DType::kI32, {static_cast<int64_t>(lengths.size())}, lengths.data()});
  add("memory", result.distinguishing_memory());
  if (!keys.empty()) {
    named.emplace_back("memory_lengths",
                       TensorView{DType::kI32, {static_cast<int64_t>(keys.size())}, keys.data()});
  }
  return WriteSafetensors(path, named);
}

absl::Status Audit(Session& session) {
  CLIENT_ASSIGN_OR_RETURN(const v1::AuditRequest request,
                          BuildRequest(session.args, session.name()));
  CLIENT_ASSIGN_OR_RETURN(v1::AuditResult result, session.client.Audit(request, session.progress));
  if (result.has_distinguishing_x()) {
    const std::string path = session.args.Text("distinguish");
    CLIENT_RETURN_IF_ERROR(WriteInput(path, result));
    result.set_distinguishing_input(path);
  }
  if (!result.passed()) session.exit_code = kExitNotMet;
  if (session.json) {
    result.clear_distinguishing_x();  // in the file
    result.clear_distinguishing_memory();
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(result));
    return absl::OkStatus();
  }
  session.out = request.has_theirs() ? TheirsReport(result, session.terminal)
                                     : CheckReport(result, session.terminal);
  if (result.has_distinguishing_x()) {
    absl::StrAppend(&session.out, "wrote ", result.distinguishing_input(), "\n");
  }
  return absl::OkStatus();
}

}  // namespace

Verb AuditVerb() {
  std::vector<Flag> flags = InputFlags();
  const std::vector<Flag> own = AuditFlags();
  flags.insert(flags.end(), own.begin(), own.end());
  return {.name = "audit",
          .arguments = "NAME",
          .summary = "checks a layer, or says what is wrong with one's own numbers",
          .min_positional = 1,
          .max_positional = 1,
          .flags = std::move(flags),
          .run = Audit};
}

}  // namespace headwise::client
