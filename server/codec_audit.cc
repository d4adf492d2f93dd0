// SPDX-License-Identifier: Apache-2.0
#include "server/codec_audit.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/codec_tensor.h"

namespace headwise {
namespace {

absl::StatusOr<std::vector<double>> DecodeStage(const v1::Tensor& tensor, int64_t elements,
                                                const std::string& field) {
  const auto view = DecodeTensor(tensor, field);
  if (!view.ok()) return view.status();
  if (view->elements() != elements) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": must have ", elements, " elements; was ", view->elements()));
  }
  return ToDoubles(*view, field);
}

absl::StatusOr<std::vector<std::vector<double>>> DecodePairs(
    const google::protobuf::RepeatedPtrField<v1::Tensor>& tensors, const LayerSpec& spec,
    const ReferenceInput& input, const std::string& field) {
  std::vector<std::vector<double>> stages;
  if (tensors.empty()) return stages;
  if (tensors.size() != static_cast<int>(input.lengths.size())) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": must be one tensor a sequence, ",
                                                   input.lengths.size(), "; was ", tensors.size()));
  }
  for (int b = 0; b < tensors.size(); ++b) {
    const size_t at = static_cast<size_t>(b);
    auto stage = DecodeStage(tensors[b], spec.heads * input.lengths[at] * input.memory_lengths[at],
                             absl::StrCat(field, ".", b));
    if (!stage.ok()) return stage.status();
    stages.push_back(*std::move(stage));
  }
  return stages;
}

void EncodeDeviation(const Deviation& deviation, auto* wire) {
  wire->set_error(deviation.error);
  wire->set_bound(deviation.bound);
}

v1::Tensor FloatsOf(const std::vector<float>& values, int64_t width) {
  v1::Tensor wire;
  wire.set_dtype(v1::F32);
  wire.add_shape(static_cast<uint32_t>(static_cast<int64_t>(values.size()) / width));
  wire.add_shape(static_cast<uint32_t>(width));
  wire.set_data(values.data(), values.size() * sizeof(float));
  return wire;
}

}  // namespace

absl::StatusOr<TheirTensors> DecodeTheirs(const LayerSpec& spec, const ReferenceInput& input,
                                          const v1::Theirs& theirs) {
  if (!theirs.has_y()) {
    return absl::InvalidArgumentError("theirs.y: must be given; was absent");
  }
  const int64_t n = static_cast<int64_t>(input.positions.size());
  const int64_t m = static_cast<int64_t>(input.memory_positions.size());
  TheirTensors out;
  const auto decode = [](bool given, const v1::Tensor& tensor, int64_t elements,
                         const std::string& field, std::vector<double>* to) {
    if (!given) return absl::OkStatus();
    auto stage = DecodeStage(tensor, elements, field);
    if (stage.ok()) *to = *std::move(stage);
    return stage.status();
  };
  absl::Status status = decode(true, theirs.y(), n * spec.d_out, "theirs.y", &out.y);
  status.Update(decode(theirs.has_q(), theirs.q(), n * spec.q_width(), "theirs.q", &out.q));
  status.Update(decode(theirs.has_k(), theirs.k(), m * spec.k_width(), "theirs.k", &out.k));
  status.Update(decode(theirs.has_v(), theirs.v(), m * spec.v_width(), "theirs.v", &out.v));
  status.Update(decode(theirs.has_z(), theirs.z(), n * spec.z_width(), "theirs.z", &out.z));
  if (!status.ok()) return status;
  auto scores = DecodePairs(theirs.scores(), spec, input, "theirs.scores");
  if (!scores.ok()) return scores.status();
  auto p = DecodePairs(theirs.p(), spec, input, "theirs.p");
  if (!p.ok()) return p.status();
  out.scores = *std::move(scores);
  out.p = *std::move(p);
  return out;
}

absl::StatusOr<DType> DecodeStatedDType(const v1::Theirs& theirs) {
  switch (theirs.stated_dtype() == v1::DTYPE_UNSPECIFIED ? theirs.y().dtype()
                                                         : theirs.stated_dtype()) {
    case v1::F32:
    case v1::F64:
      return DType::kF32;
    case v1::BF16:
      return DType::kBF16;
    case v1::F16:
      return DType::kF16;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("theirs.stated_dtype: must be F32, BF16 or F16; was ",
                       static_cast<int>(theirs.stated_dtype())));
  }
}

absl::Status DecodeAuditAblation(const v1::Ablation& ablation, AuditCase* right) {
  const LayerSpec& spec = right->spec;
  const int64_t n = static_cast<int64_t>(right->input->positions.size());
  for (const v1::Intervention& wire : ablation.interventions()) {
    const bool zero = wire.kind() == v1::Intervention::ZERO;
    if (!zero && wire.kind() != v1::Intervention::SCALE) {
      return absl::UnimplementedError(
          absl::StrCat("ablation.kind: must be ZERO or SCALE in an audit; was ",
                       v1::Intervention::Kind_Name(wire.kind())));
    }
    if (wire.groups_size() > 0 || wire.sequences_size() > 0 || wire.token_begin() > 0 ||
        wire.has_token_end()) {
      return absl::UnimplementedError(
          "ablation: must be of whole heads at all tokens in an audit; was of a part");
    }
    if (!zero && !std::isfinite(wire.scale())) {
      return absl::InvalidArgumentError(
          absl::StrCat("ablation.scale: must be finite; was ", wire.scale()));
    }
    if (right->gates.empty()) right->gates.assign(static_cast<size_t>(n * spec.heads), 1.0);
    for (const uint32_t id : wire.heads()) {
      const auto found = std::find(spec.head_ids.begin(), spec.head_ids.end(), int64_t{id});
      if (found == spec.head_ids.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("ablation.heads: must be ids of the layer's heads; was ", id));
      }
      const int64_t axis = found - spec.head_ids.begin();
      for (int64_t token = 0; token < n; ++token) {
        right->gates[static_cast<size_t>(token * spec.heads + axis)] *= zero ? 0.0 : wire.scale();
      }
      right->ablated.push_back(axis);
    }
  }
  return absl::OkStatus();
}

void EncodeChecks(const std::vector<AuditCheck>& checks, v1::AuditResult* wire) {
  bool passed = true;
  for (const AuditCheck& check : checks) {
    v1::AuditCheck* added = wire->add_checks();
    added->set_id(check.id);
    added->set_compared(check.compared);
    added->set_error(check.error);
    added->set_bound(check.bound);
    added->set_bound_source(check.bound_source);
    added->set_passed(check.passed);
    passed = passed && check.passed;
  }
  wire->set_passed(passed);
}

void EncodeSearch(const SearchResult& result, DType stated, v1::AuditResult* wire) {
  wire->set_verdict(AuditVerdictName(result.verdict));
  wire->set_passed(result.verdict == AuditVerdict::kRight);
  wire->set_stated_dtype(EncodeDType(stated));
  if (result.first_difference.has_value()) {
    wire->set_first_difference(AuditStageName(*result.first_difference));
  }
  for (const StageDeviation& stage : result.stages) {
    v1::AuditStage* added = wire->add_stages();
    added->set_stage(AuditStageName(stage.stage));
    EncodeDeviation(stage.deviation, added);
    added->set_agrees(stage.deviation.agrees());
  }
  for (const AuditExplanation& explanation : result.explanations) {
    v1::Explanation* added = wire->add_explanations();
    for (const std::string& id : explanation.mistakes) added->add_mistakes(id);
    EncodeDeviation(explanation.deviation, added);
    added->set_text(explanation.text);
    added->set_fix(explanation.fix);
    added->set_first_stage(AuditStageName(explanation.first_stage));
  }
  wire->set_distinguishable(result.explanations.size() <= 1);
}

void EncodeDistinguishing(const DistinguishingInput& input, const LayerSpec& spec,
                          v1::AuditResult* wire) {
  wire->set_distinguishing_note(input.note);
  if (!input.found) return;
  *wire->mutable_distinguishing_x() = FloatsOf(input.x, spec.d_model);
  SetInt64s(input.lengths, wire->mutable_distinguishing_lengths());
  if (input.memory.empty()) return;
  *wire->mutable_distinguishing_memory() = FloatsOf(input.memory, spec.d_memory);
  SetInt64s(input.memory_lengths, wire->mutable_distinguishing_memory_lengths());
}

}  // namespace headwise
