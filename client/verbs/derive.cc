// SPDX-License-Identifier: Apache-2.0
// prune, permute, split, combine, quantize.
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/json.h"
#include "client/status.h"
#include "client/upload.h"
#include "client/verb.h"

namespace headwise::client {
namespace {

absl::Status Derive(Session& session, v1::DeriveLayerRequest request) {
  if (!session.args.Has("as")) return UsageError("--as is missing");
  request.set_name(session.name());
  request.set_as(session.args.Text("as"));
  request.set_replace(session.args.Has("replace"));
  CLIENT_ASSIGN_OR_RETURN(const v1::LoadLayerResponse response,
                          session.client.DeriveLayer(request));
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(response));
  } else {
    session.out = absl::StrCat("made ", CleanText(response.layer().name()), " version ",
                               response.layer().version(), ": ", response.layer().heads(),
                               " heads, ", v1::DType_Name(response.layer().dtype()), "\n");
  }
  return absl::OkStatus();
}

absl::Status DeriveWithHeads(Session& session, v1::DeriveLayerRequest::Kind kind,
                             absl::string_view flag) {
  if (!session.args.Has(flag)) return UsageError(absl::StrCat("--", flag, " is missing"));
  v1::DeriveLayerRequest request;
  request.set_kind(kind);
  CLIENT_ASSIGN_OR_RETURN(const auto heads, session.args.UintList(flag));
  request.mutable_heads()->Add(heads.begin(), heads.end());
  request.set_fold_gates(session.args.Has("gates"));
  return Derive(session, std::move(request));
}

absl::Status DerivePlain(Session& session, v1::DeriveLayerRequest::Kind kind) {
  v1::DeriveLayerRequest request;
  request.set_kind(kind);
  if (kind == v1::DeriveLayerRequest::QUANTIZE) request.set_dtype(v1::INT8);
  return Derive(session, std::move(request));
}

// JSON of an ablate answer with a prune plan.
absl::StatusOr<v1::PrunePlan> ReadPlan(const std::string& file) {
  constexpr uint64_t kMaxPlanBytes = 256 << 20;
  CLIENT_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(file, kMaxPlanBytes));
  v1::AblateResult result;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &result, options);
  if (parsed.ok() && result.prune_plan().steps_size() > 0) return result.prune_plan();
  return absl::InvalidArgumentError(
      "plan: must be JSON of an ablate answer with a prune plan; was something else");
}

// The step that leaves so many heads: what it drops, its gates, and the means of what it drops.
absl::Status ApplyPlan(const v1::PrunePlan& plan, uint32_t heads_left,
                       v1::DeriveLayerRequest* request) {
  for (const v1::PruneStep& step : plan.steps()) {
    if (step.gates_size() != static_cast<int>(heads_left)) continue;
    *request->mutable_heads() = step.dropped();
    *request->mutable_gates() = step.gates_mean_folded();
    std::vector<float> added;
    for (const v1::HeadMean& mean : plan.means()) {
      const auto& dropped = step.dropped();
      if (std::find(dropped.begin(), dropped.end(), mean.head()) == dropped.end()) continue;
      added.resize(std::max(added.size(), static_cast<size_t>(mean.mean_size())), 0.0f);
      for (int i = 0; i < mean.mean_size(); ++i) added[static_cast<size_t>(i)] += mean.mean(i);
    }
    v1::Tensor* bias = request->mutable_output_bias_added();
    bias->set_dtype(v1::F32);
    bias->add_shape(static_cast<uint32_t>(added.size()));
    bias->set_data(added.data(), added.size() * sizeof(float));
    return absl::OkStatus();
  }
  std::vector<int> choices;
  for (const v1::PruneStep& step : plan.steps()) choices.push_back(step.gates_size());
  return absl::InvalidArgumentError(absl::StrCat("heads-left: must be one of the plan's steps (",
                                                 absl::StrJoin(choices, ","), "); was ",
                                                 heads_left));
}

absl::Status Prune(Session& session) {
  const Args& args = session.args;
  if (!args.Has("plan")) {
    if (args.Has("heads-left")) return UsageError("--heads-left needs --plan");
    return DeriveWithHeads(session, v1::DeriveLayerRequest::PRUNE, "heads");
  }
  if (args.Has("heads")) return UsageError("--heads and --plan exclude each other");
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> left, args.Uint("heads-left"));
  if (!left.has_value()) return UsageError("--plan needs --heads-left");
  CLIENT_ASSIGN_OR_RETURN(const v1::PrunePlan plan, ReadPlan(args.Text("plan")));
  v1::DeriveLayerRequest request;
  request.set_kind(v1::DeriveLayerRequest::PRUNE);
  request.set_fold_gates(args.Has("gates"));
  CLIENT_RETURN_IF_ERROR(ApplyPlan(plan, *left, &request));
  return Derive(session, std::move(request));
}

absl::Status Permute(Session& session) {
  return DeriveWithHeads(session, v1::DeriveLayerRequest::PERMUTE, "order");
}

absl::Status Split(Session& session) { return DerivePlain(session, v1::DeriveLayerRequest::SPLIT); }

absl::Status Combine(Session& session) {
  return DerivePlain(session, v1::DeriveLayerRequest::COMBINE);
}

absl::Status Quantize(Session& session) {
  return DerivePlain(session, v1::DeriveLayerRequest::QUANTIZE);
}

}  // namespace

std::vector<Verb> DeriveVerbs() {
  const Flag as = {"as", "NEW", "name of the new layer"};
  const Flag replace = {"replace", "", "replace a layer of that name"};
  const auto verb = [](absl::string_view name, absl::string_view summary, std::vector<Flag> flags,
                       absl::Status (*run)(Session&)) {
    return Verb{.name = name,
                .arguments = "NAME",
                .summary = summary,
                .min_positional = 1,
                .max_positional = 1,
                .flags = std::move(flags),
                .run = run};
  };
  return {
      verb("prune", "makes a layer without some heads",
           {{"heads", "0,3", "ids of the heads that go"},
            {"plan", "F.json", "instead: JSON of ablate --sweep prune-plan"},
            {"heads-left", "K", "how many heads of the plan stay, with gates and means folded in"},
            {"gates", "", "fold the layer's own gates into W_O too"},
            as,
            replace},
           Prune),
      verb("permute", "makes a layer with its heads in another order",
           {{"order", "2,0,1", "ids in their new order"}, as, replace}, Permute),
      verb("split", "makes a layer with q, k and v of their own", {as, replace}, Split),
      verb("combine", "makes a layer with fused q, k and v", {as, replace}, Combine),
      verb("quantize", "makes an int8 layer", {as, replace}, Quantize)};
}

}  // namespace headwise::client
