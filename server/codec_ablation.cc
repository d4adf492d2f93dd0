// SPDX-License-Identifier: Apache-2.0
#include "server/codec_ablation.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/codec_input.h"
#include "server/codec_tensor.h"

namespace headwise {
namespace {

absl::Status Invalid(absl::string_view field, absl::string_view rule, absl::string_view was) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", rule, "; was ", was));
}

absl::Status NotCarriedOut(const char* field) {
  return absl::UnimplementedError(
      absl::StrCat(field, ": must be absent, it is not carried out; was given"));
}

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

absl::Status CheckCarriedOut(const v1::AblateRequest& request) {
  if (request.has_bootstrap()) return NotCarriedOut("bootstrap");
  if (request.folds() != 0) return NotCarriedOut("folds");
  if (request.order_size() != 0) return NotCarriedOut("order");
  return absl::OkStatus();
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
}

void EncodeAblationEffect(const AblationEffect& effect, v1::AblationEffect* wire) {
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

void EncodeScope(const PassInfo& pass, v1::Scope* scope) {
  int64_t tokens = 0;
  for (const int64_t length : pass.lengths) tokens += length;
  scope->set_n_sequences(static_cast<uint32_t>(pass.lengths.size()));
  scope->set_n_tokens(static_cast<uint32_t>(tokens));
  scope->set_intervened_on("z");
  scope->set_measured_at("y");
  scope->set_text(absl::StrFormat(
      "%d sequences, %d tokens; heads' outputs z replaced before W_O; effect measured at the "
      "layer's output y, not at a task",
      pass.lengths.size(), tokens));
}

}  // namespace

absl::StatusOr<AblateRequest> DecodeAblate(const v1::AblateRequest& request) {
  if (absl::Status status = CheckCarriedOut(request); !status.ok()) return status;
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
  result.return_y = request.return_y();
  result.return_gram = request.return_gram();
  result.return_all_ablation_y = request.return_ablation_y();
  result.return_ablation_y = ToInt64s(request.return_ablations());
  return result;
}

void EncodeAblate(const v1::AblateRequest& request, const std::string& request_id,
                  AblateResult* result, v1::AblateResult* wire) {
  EncodePass(result->pass, wire);
  EncodeScope(result->pass, wire->mutable_scope());
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
    EncodeAblationEffect(effect, wire->add_ablations());
  }
  for (NamedOutput& output : result->outputs) {
    std::string data = std::move(output.data);
    EncodeOutput(std::move(output), /*with_data=*/false, wire->add_tensors());
    output.data = std::move(data);
  }
}

}  // namespace headwise
