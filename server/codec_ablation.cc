// SPDX-License-Identifier: Apache-2.0
#include "server/codec_ablation.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/rules.h"
#include "server/codec_input.h"
#include "server/codec_tensor.h"

namespace headwise {
namespace {

absl::StatusOr<InterventionKind> DecodeKind(v1::Intervention::Kind kind, absl::string_view field) {
  // The wire numbers ZERO … KNOCKOUT 1 … 8 in the order of InterventionKind.
  if (kind < v1::Intervention::ZERO || kind > v1::Intervention::KNOCKOUT) {
    return Invalid(absl::StrCat(field, ".kind"), "must be a kind that headwise.v1 names",
                   absl::StrCat(static_cast<int>(kind)));
  }
  return static_cast<InterventionKind>(kind - v1::Intervention::ZERO);
}
static_assert(static_cast<int>(InterventionKind::kKnockout) ==
              v1::Intervention::KNOCKOUT - v1::Intervention::ZERO);

// The tensor and the donor; what a kind doesn't take is refused rather than left unread.
absl::Status DecodeSources(const v1::Intervention& wire, absl::string_view field,
                           Intervention* out) {
  const auto only = [&](const char* name, bool given, bool fits) {
    return given && !fits ? Invalid(absl::StrCat(field, ".", name), "must be absent for this kind",
                                    v1::Intervention::Kind_Name(wire.kind()))
                          : absl::OkStatus();
  };
  using Wire = v1::Intervention;
  absl::Status status =
      only("tensor", wire.has_tensor(), wire.kind() == Wire::MEAN || wire.kind() == Wire::REPLACE);
  status.Update(only("donor", wire.has_donor(), wire.kind() == Wire::DONOR));
  status.Update(only("edges", wire.edges_size() > 0, wire.kind() == Wire::KNOCKOUT));
  status.Update(only("draws", wire.draws() > 0, wire.kind() == Wire::RESAMPLE));
  if (!status.ok()) return status;
  if (wire.has_tensor()) {
    absl::StatusOr<TensorView> tensor = DecodeTensor(wire.tensor(), absl::StrCat(field, ".tensor"));
    if (!tensor.ok()) return tensor.status();
    out->tensor = *std::move(tensor);
  }
  if (wire.has_donor()) {
    absl::StatusOr<AttentionInput> donor = DecodeInput(wire.donor());
    if (!donor.ok()) {
      return absl::Status(donor.status().code(),
                          absl::StrCat(field, ".donor.", donor.status().message()));
    }
    out->donor = std::make_shared<const AttentionInput>(*std::move(donor));
  }
  return absl::OkStatus();
}

absl::StatusOr<Intervention> DecodeIntervention(const v1::Intervention& wire,
                                                absl::string_view field) {
  const absl::StatusOr<InterventionKind> kind = DecodeKind(wire.kind(), field);
  if (!kind.ok()) return kind.status();
  Intervention result;
  result.kind = *kind;
  result.heads = ToInt64s(wire.heads());
  result.groups = ToInt64s(wire.groups());
  result.scale = wire.scale();
  result.token_begin = wire.token_begin();
  if (wire.has_token_end()) result.token_end = wire.token_end();
  result.sequences = ToInt64s(wire.sequences());
  result.seed = wire.seed();
  result.draws = wire.draws();
  for (const v1::Edge& edge : wire.edges()) {
    result.edges.push_back({edge.sequence(), edge.query(), edge.key()});
  }
  if (absl::Status status = DecodeSources(wire, field, &result); !status.ok()) return status;
  return result;
}

absl::Status DecodeAblations(const v1::AblateRequest& request, std::vector<Ablation>* out) {
  for (int i = 0; i < request.ablations_size(); ++i) {
    Ablation ablation;
    for (const v1::Intervention& wire : request.ablations(i).interventions()) {
      absl::StatusOr<Intervention> intervention = DecodeIntervention(
          wire,
          absl::StrFormat("ablations[%d].interventions[%d]", i, ablation.interventions.size()));
      if (!intervention.ok()) return intervention.status();
      ablation.interventions.push_back(*std::move(intervention));
    }
    out->push_back(std::move(ablation));
  }
  return absl::OkStatus();
}

absl::Status DecodeSweep(const v1::AblateRequest& request, AblateRequest* out) {
  // SweepKind and SweepTarget number their values as the wire does, kNone being unspecified.
  if (request.sweep() < 0 || request.sweep() > v1::PRUNE_PLAN) {
    return Invalid("sweep", "must be a sweep that headwise.v1 names",
                   absl::StrCat(static_cast<int>(request.sweep())));
  }
  out->sweep = static_cast<SweepKind>(request.sweep());
  if (request.target() < 0 || request.target() > v1::GROUPS) {
    return Invalid("target", "must be HEADS or GROUPS",
                   absl::StrCat(static_cast<int>(request.target())));
  }
  out->target = request.target() == v1::GROUPS ? SweepTarget::kGroups : SweepTarget::kHeads;
  if (out->sweep != SweepKind::kNone && request.ablations_size() > 0) {
    return Invalid("ablations", "must be empty beside a sweep",
                   absl::StrCat(request.ablations_size(), " ablations"));
  }
  if (!request.has_sweep_intervention()) return absl::OkStatus();
  if (out->sweep == SweepKind::kNone) {
    return Invalid("sweep_intervention", "must be absent without a sweep", "given");
  }
  absl::StatusOr<Intervention> intervention =
      DecodeIntervention(request.sweep_intervention(), "sweep_intervention");
  if (!intervention.ok()) return intervention.status();
  out->sweep_intervention = *std::move(intervention);
  return absl::OkStatus();
}
static_assert(static_cast<int>(SweepKind::kPrunePlan) == v1::PRUNE_PLAN);

void DecodeBootstrap(const v1::Bootstrap& wire, BootstrapOptions* out) {
  if (wire.level() != 0.0) out->level = wire.level();
  if (wire.resamples() != 0) out->resamples = wire.resamples();
  out->seed = wire.seed();
}

void EncodeEffect(const Effect& effect, v1::Effect* wire) {
  if (effect.l2.has_value()) wire->set_l2(*effect.l2);
  if (effect.relative_l2.has_value()) wire->set_relative_l2(*effect.relative_l2);
  if (effect.cosine.has_value()) wire->set_cosine(*effect.cosine);
}

void EncodeIntervention(const Intervention& intervention, v1::Intervention* wire) {
  wire->set_kind(static_cast<v1::Intervention::Kind>(static_cast<int>(intervention.kind) +
                                                     v1::Intervention::ZERO));
  SetInt64s(intervention.heads, wire->mutable_heads());
  SetInt64s(intervention.groups, wire->mutable_groups());
  wire->set_scale(intervention.scale);
  wire->set_token_begin(static_cast<uint32_t>(intervention.token_begin));
  if (intervention.token_end.has_value()) {
    wire->set_token_end(static_cast<uint32_t>(*intervention.token_end));
  }
  SetInt64s(intervention.sequences, wire->mutable_sequences());
  wire->set_seed(intervention.seed);
  wire->set_draws(static_cast<uint32_t>(intervention.draws));
}

void EncodeIntervals(const EffectIntervals& intervals, v1::EffectIntervals* wire) {
  if (intervals.l2.has_value()) EncodeInterval(*intervals.l2, wire->mutable_l2());
  if (intervals.relative_l2.has_value()) {
    EncodeInterval(*intervals.relative_l2, wire->mutable_relative_l2());
  }
  if (intervals.cosine.has_value()) EncodeInterval(*intervals.cosine, wire->mutable_cosine());
}

void EncodeInteraction(const Interaction& pair, bool with_sums, v1::Interaction* wire) {
  SetInt64s(pair.heads, wire->mutable_heads());
  const PairSums& sums = pair.sums;
  if (sums.interaction().has_value()) wire->set_interaction(*sums.interaction());
  if (sums.relative_l2().has_value()) wire->set_relative_l2(*sums.relative_l2());
  if (sums.relative_l2_if_orthogonal().has_value()) {
    wire->set_relative_l2_if_orthogonal(*sums.relative_l2_if_orthogonal());
  }
  if (!with_sums) return;
  for (const double sum : {sums.product, sums.a_sq, sums.b_sq, sums.both_sq, sums.y_sq}) {
    wire->add_sums(sum);
  }
}

void EncodeGates(const std::vector<HeadGate>& gates,
                 google::protobuf::RepeatedPtrField<v1::HeadGate>* wire) {
  for (const HeadGate& gate : gates) {
    v1::HeadGate* added = wire->Add();
    added->set_head(static_cast<uint32_t>(gate.head));
    added->set_gate(gate.gate);
  }
}

void EncodePruneSums(const PruneSums& sums, v1::PruneSums* wire) {
  wire->set_sequences(static_cast<uint32_t>(sums.sequences));
  wire->set_queries(sums.queries);
  wire->set_keys(sums.keys);
  wire->set_pairs(sums.pairs);
  wire->mutable_products()->Add(sums.products.begin(), sums.products.end());
  wire->mutable_y_sq()->Add(sums.y_sq.begin(), sums.y_sq.end());
  wire->mutable_tokens()->Add(sums.tokens.begin(), sums.tokens.end());
  wire->mutable_z()->Add(sums.z.begin(), sums.z.end());
}

void EncodePrunePlan(const PrunePlan& plan, bool with_sums, v1::PrunePlan* wire) {
  wire->set_folds(static_cast<uint32_t>(plan.folds));
  SetInt64s(plan.order, wire->mutable_order());
  for (const PruneStep& step : plan.steps) {
    v1::PruneStep* added = wire->add_steps();
    SetInt64s(step.dropped, added->mutable_dropped());
    v1::PruneErrors* errors = added->mutable_relative_l2();
    if (step.errors.ungated) errors->set_ungated(*step.errors.ungated);
    if (step.errors.gated) errors->set_gated(*step.errors.gated);
    if (step.errors.mean_folded) errors->set_mean_folded(*step.errors.mean_folded);
    if (step.errors.gated_mean_folded) {
      errors->set_gated_mean_folded(*step.errors.gated_mean_folded);
    }
    EncodeGates(step.gates, added->mutable_gates());
    EncodeGates(step.gates_mean_folded, added->mutable_gates_mean_folded());
    added->set_ridge(step.ridge);
    added->set_parameters_saved(step.parameters_saved);
    added->set_flops_saved(step.flops_saved);
  }
  for (const HeadMean& mean : plan.means) {
    v1::HeadMean* added = wire->add_means();
    added->set_head(static_cast<uint32_t>(mean.head));
    added->mutable_mean()->Add(mean.mean.begin(), mean.mean.end());
  }
  if (with_sums) EncodePruneSums(plan.sums, wire->mutable_sums());
}

PruneSums DecodePruneSums(const v1::PruneSums& wire) {
  return {.sequences = wire.sequences(),
          .queries = wire.queries(),
          .keys = wire.keys(),
          .pairs = wire.pairs(),
          .products = {wire.products().begin(), wire.products().end()},
          .y_sq = {wire.y_sq().begin(), wire.y_sq().end()},
          .tokens = {wire.tokens().begin(), wire.tokens().end()},
          .z = {wire.z().begin(), wire.z().end()}};
}

void EncodeAblationEffect(const AblationEffect& effect, bool with_sums, v1::AblationEffect* wire) {
  wire->set_index(static_cast<uint32_t>(effect.index));
  for (const Intervention& intervention : effect.ablation.interventions) {
    EncodeIntervention(intervention, wire->add_interventions());
  }
  SetInt64s(effect.heads, wire->mutable_heads());
  EncodeEffect(effect.pooled, wire->mutable_effect());
  for (const Effect& sequence : effect.per_sequence) {
    EncodeEffect(sequence, wire->add_per_sequence());
  }
  EncodeEffect(effect.mean_over_sequences, wire->mutable_mean_over_sequences());
  wire->set_undefined_sequences(static_cast<uint32_t>(effect.undefined_sequences));
  wire->set_undefined_reason(effect.undefined_reason);
  EncodeIntervals(effect.intervals, wire->mutable_intervals());
  if (!with_sums) return;
  for (const std::vector<EffectSums>& draw : effect.sums) {
    for (const EffectSums& sums : draw) {
      for (const double sum : {sums.y_sq, sums.y_delta, sums.delta_sq}) wire->add_sums(sum);
    }
  }
  for (const HeadMeanSums& mean : effect.means) {
    v1::HeadMeanSums* added = wire->add_means();
    added->set_head(static_cast<uint32_t>(mean.head));
    added->set_tokens(mean.tokens);
    added->mutable_sum()->Add(mean.sum.begin(), mean.sum.end());
  }
}

void EncodePass(const PassInfo& pass, v1::AblateResult* wire) {
  wire->set_layer(pass.layer);
  wire->set_layer_version(static_cast<uint32_t>(pass.layer_version));
  SetInt64s(pass.lengths, wire->mutable_lengths());
  wire->set_batch_requests(static_cast<uint32_t>(pass.batch_requests));
  wire->set_batch_tokens(static_cast<uint32_t>(pass.batch_tokens));
  wire->set_queue_us(static_cast<uint32_t>(pass.queue_us));
  wire->set_compute_us(static_cast<uint32_t>(pass.compute_us));
}

// What was done to z, in words.
std::string ScopeText(const AblateResult& result, int64_t tokens) {
  bool anew = false;
  for (const AblationEffect& effect : result.ablations) {
    for (const Intervention& i : effect.ablation.interventions) {
      anew |= i.kind == InterventionKind::kUniform || i.kind == InterventionKind::kKnockout;
    }
  }
  return absl::StrFormat(
      "%d sequences, %d tokens; heads' outputs z replaced before W_O%s; effect measured at the "
      "layer's output y, not at a task",
      result.pass.lengths.size(), tokens,
      anew ? ", attention taken anew for heads under UNIFORM or KNOCKOUT" : "");
}

void EncodeScope(const AblateResult& result, v1::Scope* scope) {
  int64_t tokens = 0;
  for (const int64_t length : result.pass.lengths) tokens += length;
  scope->set_n_sequences(static_cast<uint32_t>(result.pass.lengths.size()));
  scope->set_n_tokens(static_cast<uint32_t>(tokens));
  scope->set_intervened_on("z");
  scope->set_measured_at("y");
  scope->set_text(ScopeText(result, tokens));
}

}  // namespace

void EncodeInterval(const Interval& interval, v1::Interval* wire) {
  wire->set_low(interval.low);
  wire->set_high(interval.high);
  wire->set_level(interval.level);
  wire->set_method(interval.method == IntervalMethod::kBca ? "BCA" : "RANGE");
  wire->set_resamples(static_cast<uint32_t>(interval.resamples));
  wire->set_seed(interval.seed);
}

void EncodeProgress(const RequestProgress& progress, v1::Progress* wire) {
  wire->set_stage(progress.stage);
  wire->set_done(static_cast<uint32_t>(progress.done));
  wire->set_total(static_cast<uint32_t>(progress.total));
  wire->set_bytes(progress.bytes);
}

absl::StatusOr<AblateRequest> DecodeAblate(const v1::AblateRequest& request) {
  AblateRequest result;
  result.layer = request.layer();
  if (request.has_expected_version()) result.expected_version = request.expected_version();
  absl::StatusOr<AttentionInput> input = DecodeInput(request.input());
  if (!input.ok()) return input.status();
  result.input = *std::move(input);
  if (absl::Status status = DecodeSweep(request, &result); !status.ok()) return status;
  if (absl::Status status = DecodeAblations(request, &result.ablations); !status.ok()) {
    return status;
  }
  DecodeBootstrap(request.bootstrap(), &result.bootstrap);
  if (request.folds() != 0) result.folds = request.folds();
  result.order = ToInt64s(request.order());
  result.return_y = request.return_y();
  result.return_gram = request.return_gram();
  result.return_means = request.return_means();
  result.return_p = request.return_p();
  result.return_sums = request.return_sums();
  if (request.has_prune_sums()) result.prune_sums = DecodePruneSums(request.prune_sums());
  result.return_all_ablation_y = request.return_ablation_y();
  result.return_ablation_y = ToInt64s(request.return_ablations());
  return result;
}

void EncodeAblate(const v1::AblateRequest& request, const std::string& request_id,
                  AblateResult* result, v1::AblateResult* wire) {
  EncodePass(result->pass, wire);
  EncodeScope(*result, wire->mutable_scope());
  wire->set_request_id(request_id);
  wire->set_sweep(request.sweep());
  if (request.sweep() != v1::SWEEP_UNSPECIFIED) {
    wire->set_target(request.target() == v1::GROUPS ? v1::GROUPS : v1::HEADS);
  }
  wire->set_forwards(static_cast<uint32_t>(result->forwards));
  wire->set_from_gram(result->from_gram);
  wire->set_y_l2(result->y_l2);
  wire->mutable_y_l2_per_sequence()->Add(result->y_l2_per_sequence.begin(),
                                         result->y_l2_per_sequence.end());
  for (const AblationEffect& effect : result->ablations) {
    EncodeAblationEffect(effect, request.return_sums(), wire->add_ablations());
  }
  for (const Interaction& pair : result->interactions) {
    EncodeInteraction(pair, request.return_sums(), wire->add_interactions());
  }
  if (result->prune_plan.has_value()) {
    EncodePrunePlan(*result->prune_plan, request.return_sums(), wire->mutable_prune_plan());
  }
  for (NamedOutput& output : result->outputs) {
    std::string data = std::move(output.data);
    EncodeOutput(std::move(output), /*with_data=*/false, wire->add_tensors());
    output.data = std::move(data);
  }
}

}  // namespace headwise
