// SPDX-License-Identifier: Apache-2.0
// trace: every stage of a forward, of a served layer or of one typed as JSON.
#include "client/learn/trace.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/input.h"
#include "client/learn/layer_json.h"
#include "client/learn/temporary_layer.h"
#include "client/status.h"
#include "client/upload.h"
#include "client/verb.h"

namespace headwise::client {
namespace {

constexpr uint64_t kMaxLayerJsonBytes = 16 << 20;

absl::Status CheckGrammar(const Args& args) {
  const bool typed = args.Has("layer-json");
  if (typed == !args.positional().empty()) {
    return UsageError("one of NAME or --layer-json is needed");
  }
  if (!typed) return absl::OkStatus();
  for (const Flag& flag : InputFlags()) {
    if (args.Has(flag.name)) {
      return UsageError(absl::StrCat("--", flag.name, " does not go with --layer-json"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Trace> TraceTyped(Session& session, const TraceOptions& options) {
  const std::string file = session.args.Text("layer-json");
  CLIENT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, kMaxLayerJsonBytes));
  CLIENT_ASSIGN_OR_RETURN(TypedLayer typed, ParseTypedLayer(text));
  CLIENT_ASSIGN_OR_RETURN(
      const auto layer,
      TemporaryLayer::Upload(&session.client, typed.spec, TensorMap(std::move(typed.weights))));
  CLIENT_ASSIGN_OR_RETURN(Trace trace,
                          TraceLayer(&session.client, layer->name(), typed.input, options));
  trace.layer = file;  // its name on the server is gone when the reader sees it
  trace.version = 0;
  return trace;
}

absl::StatusOr<Trace> TraceServed(Session& session, const TraceOptions& options) {
  CLIENT_ASSIGN_OR_RETURN(const v1::AttentionInput input, BuildInput(session.args));
  return TraceLayer(&session.client, session.name(), input, options);
}

absl::Status RunTrace(Session& session) {
  CLIENT_RETURN_IF_ERROR(CheckGrammar(session.args));
  const TraceOptions options{.separate = session.args.Has("separate"),
                             .worked = session.args.Has("worked")};
  CLIENT_ASSIGN_OR_RETURN(const Trace trace, session.args.Has("layer-json")
                                                 ? TraceTyped(session, options)
                                                 : TraceServed(session, options));
  session.out = session.json ? TraceJson(trace) : TraceText(trace, session.terminal);
  return absl::OkStatus();
}

}  // namespace

Verb TraceVerb() {
  std::vector<Flag> flags = InputFlags();
  flags.insert(flags.end(),
               {{"layer-json", "F.json", "a tiny layer with its x, typed as JSON, instead of NAME"},
                {"worked", "", "every number, head by head (small layers: always)"},
                {"separate", "", "fetch the weights for separate projections, however large"}});
  return {.name = "trace",
          .arguments = "[NAME]",
          .summary = "every stage of a forward: axes, shapes, first values, index arithmetic",
          .min_positional = 0,
          .max_positional = 1,
          .flags = std::move(flags),
          .run = RunTrace};
}

}  // namespace headwise::client
