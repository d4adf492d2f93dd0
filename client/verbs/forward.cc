// SPDX-License-Identifier: Apache-2.0
// forward.
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/html_report.h"
#include "client/input.h"
#include "client/json.h"
#include "client/status.h"
#include "client/tensors.h"
#include "client/verb.h"

namespace headwise::client {
namespace {

constexpr absl::string_view kOutputs[] = {"y", "z", "p", "scores", "q", "k", "v", "contributions"};
constexpr v1::Output kOutputValues[] = {v1::Y, v1::Z, v1::P, v1::SCORES,
                                        v1::Q, v1::K, v1::V, v1::CONTRIBUTIONS};
constexpr int kShownValues = 6;
constexpr int kShownTensors = 12;  // p and scores come one a sequence

absl::Status AddOutputs(const Args& args, v1::ForwardRequest* request) {
  for (absl::string_view name : absl::StrSplit(args.Text("return", "y"), ',')) {
    const auto* found = std::find(std::begin(kOutputs), std::end(kOutputs), name);
    if (found == std::end(kOutputs)) {
      return UsageError(absl::StrCat("--return: must be some of ", absl::StrJoin(kOutputs, ","),
                                     "; was \"", name, "\""));
    }
    const v1::Output output = kOutputValues[found - std::begin(kOutputs)];
    const auto& named = request->outputs();
    if (std::find(named.begin(), named.end(), output) == named.end()) request->add_outputs(output);
  }
  return absl::OkStatus();
}

// The first values of the first row: enough to compare by eye.
absl::StatusOr<std::string> FirstValues(const v1::NamedTensor& tensor) {
  CLIENT_ASSIGN_OR_RETURN(TensorView view, ViewOf(tensor));
  const int64_t shown = std::min<int64_t>(view.elements(), kShownValues);
  if (shown == 0) return std::string();
  view.shape = {shown};
  CLIENT_ASSIGN_OR_RETURN(const std::vector<double> values, ToDoubles(view, tensor.name()));
  std::vector<std::string> texts;
  for (const double value : values) texts.push_back(absl::StrFormat("%.6f", value));
  return absl::StrCat(tensor.name(), " starts ", absl::StrJoin(texts, " "), "\n");
}

std::string TensorTable(const v1::ForwardResponse& response, const Terminal& terminal) {
  Table table({{"tensor"}, {"dtype"}, {"shape"}, {"axes"}, {"size", Table::Align::kRight}});
  const int shown = std::min(response.tensors_size(), kShownTensors);
  for (int i = 0; i < shown; ++i) {
    const v1::NamedTensor& tensor = response.tensors(i);
    table.Add({tensor.name(), v1::DType_Name(tensor.dtype()),
               absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]"),
               absl::StrJoin(tensor.axes(), ", "),
               HumanBytes(static_cast<int64_t>(tensor.data().size()))});
  }
  const int more = response.tensors_size() - shown;
  return absl::StrCat(table.Render(terminal),
                      more > 0 ? absl::StrCat("and ", more, " more (--json lists them)\n") : "");
}

absl::StatusOr<std::string> Summary(const v1::ForwardResponse& response, const Terminal& terminal) {
  int64_t tokens = 0;
  for (const uint32_t length : response.lengths()) tokens += length;
  std::string text = absl::StrCat(
      CleanText(response.layer()), " version ", response.layer_version(), ": ",
      response.lengths_size(), response.lengths_size() == 1 ? " sequence, " : " sequences, ",
      tokens, " tokens; computed in ", HumanMicros(response.compute_us()), " after ",
      HumanMicros(response.queue_us()), " in the queue, in a pass of ", response.batch_requests(),
      response.batch_requests() == 1 ? " request and " : " requests and ", response.batch_tokens(),
      " tokens\n\n");
  absl::StrAppend(&text, TensorTable(response, terminal));
  for (const v1::NamedTensor& tensor : response.tensors()) {
    if (tensor.name() != "y") continue;
    CLIENT_ASSIGN_OR_RETURN(const std::string values, FirstValues(tensor));
    absl::StrAppend(&text, values.empty() ? "" : "\n", values);
  }
  return text;
}

void DropWeights(v1::ForwardResponse* response) {
  auto* tensors = response->mutable_tensors();
  tensors->erase(std::remove_if(tensors->begin(), tensors->end(),
                                [](const v1::NamedTensor& tensor) {
                                  return absl::StartsWith(tensor.name(), "p.");
                                }),
                 tensors->end());
}

absl::Status Forward(Session& session) {
  const Args& args = session.args;
  v1::ForwardRequest request;
  request.set_layer(session.name());
  CLIENT_RETURN_IF_ERROR(AddOutputs(args, &request));
  CLIENT_ASSIGN_OR_RETURN(const auto version, args.Uint("expected-version"));
  if (version.has_value()) request.set_expected_version(*version);
  CLIENT_ASSIGN_OR_RETURN(const auto priority, args.Int("priority"));
  if (priority.has_value()) request.set_priority(*priority);
  CLIENT_ASSIGN_OR_RETURN(*request.mutable_input(), BuildInput(args));
  // A page shows weights, whether the answer is to have them or not.
  const bool asked = std::find(request.outputs().begin(), request.outputs().end(), v1::P) !=
                     request.outputs().end();
  if (args.Has("report") && !asked) request.add_outputs(v1::P);
  CLIENT_ASSIGN_OR_RETURN(v1::ForwardResponse response, session.client.Forward(request));
  if (args.Has("report")) {
    CLIENT_ASSIGN_OR_RETURN(const WeightMaps weights, FirstWeights(response));
    if (!asked) DropWeights(&response);
    CLIENT_RETURN_IF_ERROR(WritePage(args.Text("report"), ForwardPage(response, weights)));
  }
  if (args.Has("output")) {
    CLIENT_RETURN_IF_ERROR(WriteTensors(args.Text("output"), response.tensors()));
  }
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(response));
    return absl::OkStatus();
  }
  CLIENT_ASSIGN_OR_RETURN(session.out, Summary(response, session.terminal));
  if (args.Has("output")) absl::StrAppend(&session.out, "wrote ", args.Text("output"), "\n");
  return absl::OkStatus();
}

}  // namespace

Verb ForwardVerb() {
  std::vector<Flag> flags = InputFlags();
  flags.insert(
      flags.end(),
      {{"return", "y,z,p,…", "of y, z, p, scores, q, k, v, contributions; y by default"},
       {"output", "F.safetensors", "write the returned tensors there, in F32"},
       {"report", "OUT.html", "one page with the weights of each head"},
       {"expected-version", "N", "refuse another version of the layer"},
       {"priority", "N", "among this client's requests; higher goes first, 0 by default"}});
  return {.name = "forward",
          .arguments = "NAME",
          .summary = "runs a layer over sequences",
          .min_positional = 1,
          .max_positional = 1,
          .flags = std::move(flags),
          .run = Forward};
}

}  // namespace headwise::client
