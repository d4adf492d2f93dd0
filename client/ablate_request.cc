// SPDX-License-Identifier: Apache-2.0
#include "client/ablate_request.h"

#include <google/protobuf/util/json_util.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/status.h"
#include "client/tensors.h"
#include "client/upload.h"
#include "core/format/strict_json.h"
#include "core/format/tensor_file.h"

namespace headwise::client {
namespace {

constexpr uint64_t kMaxAblationsBytes = 256 << 20;

constexpr absl::string_view kSweeps[] = {"leave-one-out", "keep-one", "pairs", "cumulative",
                                         "prune-plan"};
constexpr v1::Sweep kSweepValues[] = {v1::LEAVE_ONE_OUT, v1::KEEP_ONE, v1::PAIRS, v1::CUMULATIVE,
                                      v1::PRUNE_PLAN};
constexpr absl::string_view kKinds[] = {"zero",  "scale",   "mean",    "resample",
                                        "donor", "replace", "uniform", "knockout"};
constexpr v1::Intervention::Kind kKindValues[] = {
    v1::Intervention::ZERO,     v1::Intervention::SCALE,   v1::Intervention::MEAN,
    v1::Intervention::RESAMPLE, v1::Intervention::DONOR,   v1::Intervention::REPLACE,
    v1::Intervention::UNIFORM,  v1::Intervention::KNOCKOUT};
constexpr absl::string_view kTargets[] = {"heads", "groups"};

// Flags that describe the intervention; they go with heads, groups and sweeps, not with a file.
constexpr absl::string_view kInterventionFlags[] = {
    "kind", "scale", "tokens-range", "mean", "replace", "donor", "donor-lengths", "edges", "draws"};

absl::Status CheckGrammar(const Args& args) {
  int what = 0;
  for (absl::string_view flag : {"heads", "groups", "sweep", "ablations"}) {
    what += args.Has(flag) ? 1 : 0;
  }
  if (what != 1) {
    return UsageError("one of --heads, --groups, --sweep or --ablations is needed");
  }
  if (!args.Has("sweep")) {
    for (absl::string_view flag : {"target", "order", "folds"}) {
      if (args.Has(flag)) return UsageError(absl::StrCat("--", flag, " needs --sweep"));
    }
  }
  if (args.Has("ablations")) {
    for (absl::string_view flag : kInterventionFlags) {
      if (args.Has(flag)) {
        return UsageError(absl::StrCat("--", flag, " does not go with --ablations"));
      }
    }
  }
  return absl::OkStatus();
}

// "A:B", "A:" or ":B".
absl::Status SetTokens(const Args& args, v1::Intervention* intervention) {
  if (!args.Has("tokens-range")) return absl::OkStatus();
  const std::vector<std::string> ends = absl::StrSplit(args.Text("tokens-range"), ':');
  uint32_t begin = 0, end = 0;
  if (ends.size() != 2 || (!ends[0].empty() && !absl::SimpleAtoi(ends[0], &begin)) ||
      (!ends[1].empty() && !absl::SimpleAtoi(ends[1], &end))) {
    return UsageError(absl::StrCat("--tokens-range: must be A:B, A: or :B; was \"",
                                   args.Text("tokens-range"), "\""));
  }
  intervention->set_token_begin(begin);
  if (!ends[1].empty()) intervention->set_token_end(end);
  return absl::OkStatus();
}

// [E, 3] integers: sequence, query, key.
absl::Status ReadEdges(const std::string& file, v1::Intervention* intervention) {
  CLIENT_ASSIGN_OR_RETURN(const OwnedTensor tensor, ReadTensorFile(file));
  if (tensor.shape.size() != 2 || tensor.shape[1] != 3) {
    return absl::InvalidArgumentError(absl::StrCat(
        "edges: shape must be [E, 3] (sequence, query, key); was ", ShapeToString(tensor.shape)));
  }
  CLIENT_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, ToIntegers(tensor.view(), "edges"));
  for (size_t i = 0; i < ids.size(); i += 3) {
    for (size_t j = i; j < i + 3; ++j) {
      if (ids[j] < 0 || ids[j] > UINT32_MAX) {
        return absl::InvalidArgumentError(
            absl::StrCat("edges: must be 0 or more and below 2^32; was ", ids[j]));
      }
    }
    v1::Edge* edge = intervention->add_edges();
    edge->set_sequence(static_cast<uint32_t>(ids[i]));
    edge->set_query(static_cast<uint32_t>(ids[i + 1]));
    edge->set_key(static_cast<uint32_t>(ids[i + 2]));
  }
  return absl::OkStatus();
}

// Kind and settings; heads and groups are left to the caller.
absl::StatusOr<v1::Intervention> BuildIntervention(const Args& args) {
  v1::Intervention intervention;
  CLIENT_ASSIGN_OR_RETURN(const size_t kind, args.Choice("kind", kKinds, 0));
  intervention.set_kind(kKindValues[kind]);
  CLIENT_ASSIGN_OR_RETURN(const std::optional<double> scale, args.Number("scale"));
  if (intervention.kind() == v1::Intervention::SCALE && !scale.has_value()) {
    return UsageError("--kind scale needs --scale");
  }
  if (intervention.kind() != v1::Intervention::SCALE && scale.has_value()) {
    return UsageError("--scale needs --kind scale");
  }
  intervention.set_scale(scale.value_or(0));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> seed, args.Uint("seed"));
  if (intervention.kind() == v1::Intervention::RESAMPLE) intervention.set_seed(seed.value_or(0));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> draws, args.Uint("draws"));
  intervention.set_draws(draws.value_or(0));
  CLIENT_RETURN_IF_ERROR(SetTokens(args, &intervention));
  if (args.Has("mean")) {
    CLIENT_ASSIGN_OR_RETURN(*intervention.mutable_tensor(), ReadFloats(args.Text("mean"), "mean"));
  }
  if (args.Has("replace")) {
    CLIENT_ASSIGN_OR_RETURN(*intervention.mutable_tensor(),
                            ReadFloats(args.Text("replace"), "replace"));
  }
  if (args.Has("donor-lengths")) {
    CLIENT_ASSIGN_OR_RETURN(const auto lengths, args.UintList("donor-lengths"));
    intervention.mutable_donor()->mutable_lengths()->Add(lengths.begin(), lengths.end());
  }
  if (args.Has("donor")) {
    CLIENT_ASSIGN_OR_RETURN(*intervention.mutable_donor()->mutable_x(),
                            ReadFloats(args.Text("donor"), "donor"));
  }
  if (args.Has("edges")) {
    CLIENT_RETURN_IF_ERROR(ReadEdges(args.Text("edges"), &intervention));
  }
  return intervention;
}

absl::Status AddSweep(const Args& args, v1::AblateRequest* request) {
  CLIENT_ASSIGN_OR_RETURN(const size_t sweep, args.Choice("sweep", kSweeps, 0));
  request->set_sweep(kSweepValues[sweep]);
  CLIENT_ASSIGN_OR_RETURN(const size_t target, args.Choice("target", kTargets, 0));
  request->set_target(target == 0 ? v1::HEADS : v1::GROUPS);
  CLIENT_ASSIGN_OR_RETURN(const auto order, args.UintList("order"));
  request->mutable_order()->Add(order.begin(), order.end());
  CLIENT_ASSIGN_OR_RETURN(*request->mutable_sweep_intervention(), BuildIntervention(args));
  return absl::OkStatus();
}

absl::Status SetStatistics(const Args& args, v1::AblateRequest* request) {
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> folds, args.Uint("folds"));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> resamples, args.Uint("resamples"));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> seed, args.Uint("seed"));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<double> level, args.Number("level"));
  if (folds.has_value()) request->set_folds(*folds);
  if (resamples.has_value()) request->mutable_bootstrap()->set_resamples(*resamples);
  if (seed.has_value()) request->mutable_bootstrap()->set_seed(*seed);
  if (level.has_value()) request->mutable_bootstrap()->set_level(*level);
  return absl::OkStatus();
}

absl::Status AddTargets(const Args& args, v1::AblateRequest* request) {
  CLIENT_ASSIGN_OR_RETURN(const auto heads, args.UintList("heads"));
  CLIENT_ASSIGN_OR_RETURN(const auto groups, args.UintList("groups"));
  CLIENT_ASSIGN_OR_RETURN(v1::Intervention intervention, BuildIntervention(args));
  intervention.mutable_heads()->Add(heads.begin(), heads.end());
  intervention.mutable_groups()->Add(groups.begin(), groups.end());
  *request->add_ablations()->add_interventions() = std::move(intervention);
  return absl::OkStatus();
}

}  // namespace

const std::vector<Flag>& AblateFlags() {
  static const auto* flags = new std::vector<Flag>{
      {"heads", "0,3", "one ablation of these query heads together"},
      {"groups", "1", "one ablation of all query heads of these key/value heads"},
      {"sweep", "KIND", "leave-one-out, keep-one, pairs, cumulative or prune-plan"},
      {"target", "heads|groups", "what the sweep runs over; heads by default"},
      {"order", "2,0,1", "order of a cumulative sweep"},
      {"ablations", "F.json", "JSON list of Ablation: any mixture of interventions"},
      {"kind", "KIND",
       "zero (default), scale, mean, resample, donor, replace, uniform or knockout"},
      {"scale", "G", "factor of --kind scale"},
      {"tokens-range", "A:B", "query positions A to B-1 of each sequence; all by default"},
      {"mean", "F[:NAME]", "the mean vectors, instead of the request's own"},
      {"replace", "F[:NAME]", "[N, sum dv]: the rows of --kind replace"},
      {"donor", "F[:NAME]", "x of the donor"},
      {"donor-lengths", "7,3,5", "tokens of each of its sequences; absent: one sequence"},
      {"edges", "F[:NAME]", "[E, 3]: sequence, query, key"},
      {"draws", "N", "of --kind resample; 1 by default"},
      {"seed", "N", "of --kind resample and of the intervals"},
      {"folds", "N", "of a prune plan; 4 by default"},
      {"level", "P", "of the intervals; 0.95 by default"},
      {"resamples", "N", "of the intervals; 2000 by default"},
      {"gram", "", "also return gram, b and y_sq"},
      {"means", "", "also return tokens, and means of z with their counts: z_mean, z_tokens"},
      {"return-p", "", "also return p, and p of every ablation that is written"},
      {"report", "OUT.html", "one page with the figures"},
      {"output", "F.safetensors", "write y and the ablated y's there"},
      {"expected-version", "N", "refuse another version of the layer"},
  };
  return *flags;
}

absl::StatusOr<v1::AblateRequest> ParseAblations(absl::string_view json) {
  const absl::StatusOr<nlohmann::json> parsed = ParseStrictJson(json, "ablations");
  if (!parsed.ok()) return absl::InvalidArgumentError(parsed.status().message());
  std::string wrapped(json);
  if (parsed->is_array()) {
    wrapped = absl::StrCat("{\"ablations\":", json, "}");
  } else if (parsed->is_object() && parsed->contains("interventions")) {
    wrapped = absl::StrCat("{\"ablations\":[", json, "]}");
  }
  v1::AblateRequest request;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = false;
  const auto status = google::protobuf::util::JsonStringToMessage(wrapped, &request, options);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ablations: must be JSON of Ablation; was ", std::string(status.message())));
  }
  return request;
}

absl::StatusOr<v1::AblateRequest> BuildAblateRequest(const Args& args, const std::string& layer) {
  CLIENT_RETURN_IF_ERROR(CheckGrammar(args));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> version, args.Uint("expected-version"));
  v1::AblateRequest request;
  if (args.Has("ablations")) {
    CLIENT_ASSIGN_OR_RETURN(const std::string json,
                            ReadTextFile(args.Text("ablations"), kMaxAblationsBytes));
    CLIENT_ASSIGN_OR_RETURN(request, ParseAblations(json));
  } else if (args.Has("sweep")) {
    CLIENT_RETURN_IF_ERROR(AddSweep(args, &request));
  } else {
    CLIENT_RETURN_IF_ERROR(AddTargets(args, &request));
  }
  CLIENT_RETURN_IF_ERROR(SetStatistics(args, &request));
  request.set_layer(layer);
  if (version.has_value()) request.set_expected_version(*version);
  if (args.Has("output")) {
    request.set_return_y(true);
    // The file holds every ablation's y unless the ablations' own file picks some.
    request.set_return_ablation_y(request.return_ablations().empty());
  }
  if (args.Has("gram")) request.set_return_gram(true);
  if (args.Has("means")) request.set_return_means(true);
  if (args.Has("return-p")) request.set_return_p(true);
  return request;
}

}  // namespace headwise::client
