// SPDX-License-Identifier: Apache-2.0
#include "core/layer/spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/rules.h"
#include "core/layer/spec_rules.h"

namespace headwise {
namespace {

constexpr int64_t kMaxWindow = std::numeric_limits<uint32_t>::max();
constexpr int64_t kMaxHeadId = std::numeric_limits<int32_t>::max();

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Invalid(field, absl::StrCat("must be from ", low, " to ", high), absl::StrCat(value));
}

// Fills in and checks D, the other outer widths, H and G.
absl::Status ResolveSizes(LayerSpec* spec) {
  if (spec->d_memory == 0) spec->d_memory = spec->d_model;
  if (spec->d_out == 0) spec->d_out = spec->d_model;
  if (spec->kv_heads == 0) spec->kv_heads = spec->heads;
  absl::Status status = CheckRange("d_model", spec->d_model, 1, kMaxModelWidth);
  status.Update(CheckRange("d_memory", spec->d_memory, 1, kMaxModelWidth));
  status.Update(CheckRange("d_out", spec->d_out, 1, kMaxModelWidth));
  status.Update(CheckRange("heads", spec->heads, 1, kMaxHeads));
  status.Update(CheckRange("kv_heads", spec->kv_heads, 1, kMaxHeads));
  return status;
}

absl::Status ResolveHeadIds(LayerSpec* spec) {
  if (spec->head_ids.empty()) {
    for (int64_t r = 0; r < spec->heads; ++r) spec->head_ids.push_back(r);
  }
  if (static_cast<int64_t>(spec->head_ids.size()) != spec->heads) {
    return Invalid("head_ids", absl::StrCat("must have ", spec->heads, " entries (heads)"),
                   absl::StrCat(spec->head_ids.size()));
  }
  std::set<int64_t> seen;
  for (const int64_t id : spec->head_ids) {
    if (absl::Status status = CheckRange("head_ids", id, 0, kMaxHeadId); !status.ok()) {
      return status;
    }
    if (!seen.insert(id).second) {
      return Invalid("head_ids", "must be distinct", absl::StrCat(id, " twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status ResolveKvMap(LayerSpec* spec) {
  if (spec->query_to_kv.empty()) {
    if (spec->heads % spec->kv_heads != 0) {
      return Invalid("kv_heads",
                     absl::StrCat("must divide heads (", spec->heads, ") without query_to_kv"),
                     absl::StrCat(spec->kv_heads));
    }
    const int64_t per_group = spec->heads / spec->kv_heads;
    for (int64_t r = 0; r < spec->heads; ++r) spec->query_to_kv.push_back(r / per_group);
  }
  if (static_cast<int64_t>(spec->query_to_kv.size()) != spec->heads) {
    return Invalid("query_to_kv", absl::StrCat("must have ", spec->heads, " entries (heads)"),
                   absl::StrCat(spec->query_to_kv.size()));
  }
  for (const int64_t group : spec->query_to_kv) {
    absl::Status status = CheckRange("query_to_kv", group, 0, spec->kv_heads - 1);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Brings `widths` to H entries: as given, or one entry for all heads.
absl::Status ResolveWidths(absl::string_view field, int64_t heads, std::vector<int64_t>* widths) {
  if (widths->size() == 1) widths->resize(static_cast<size_t>(heads), widths->front());
  if (static_cast<int64_t>(widths->size()) != heads) {
    return Invalid(field, absl::StrCat("must have 1 or ", heads, " entries (heads)"),
                   absl::StrCat(widths->size()));
  }
  for (const int64_t width : *widths) {
    absl::Status status = CheckRange(field, width, 1, kMaxHeadWidth);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ResolveHeadWidths(LayerSpec* spec) {
  if (spec->dk.empty()) {
    if (spec->d_model % spec->heads != 0) {
      return Invalid("width", "model width must divide evenly across heads",
                     absl::StrCat(spec->d_model, " for ", spec->heads));
    }
    spec->dk.assign(1, spec->d_model / spec->heads);
  }
  if (spec->dv.empty()) spec->dv = spec->dk;
  absl::Status status = ResolveWidths("dk", spec->heads, &spec->dk);
  status.Update(ResolveWidths("dv", spec->heads, &spec->dv));
  return status;
}

// Query heads that read the same key/value head must be as wide as it. A key/value head that no
// query head reads has no width of its own; it takes that of all heads where they are equal.
absl::Status CheckGroupWidths(const LayerSpec& spec) {
  std::vector<int64_t> first(static_cast<size_t>(spec.kv_heads), -1);
  for (size_t r = 0; r < spec.query_to_kv.size(); ++r) {
    int64_t& reader = first[static_cast<size_t>(spec.query_to_kv[r])];
    if (reader < 0) reader = static_cast<int64_t>(r);
    const size_t other = static_cast<size_t>(reader);
    if (spec.dk[r] != spec.dk[other]) {
      return Invalid("dk", "heads that share a key/value head must have equal widths",
                     absl::StrCat(spec.dk[other], " and ", spec.dk[r]));
    }
    if (spec.dv[r] != spec.dv[other]) {
      return Invalid("dv", "heads that share a key/value head must have equal widths",
                     absl::StrCat(spec.dv[other], " and ", spec.dv[r]));
    }
  }
  if (spec.equal_widths()) return absl::OkStatus();
  for (size_t group = 0; group < first.size(); ++group) {
    if (first[group] >= 0) continue;
    return Invalid("query_to_kv",
                   "every key/value head must be read by a query head where widths differ",
                   absl::StrCat("none for ", group));
  }
  return absl::OkStatus();
}

absl::Status CheckMatrices(const LayerSpec& spec) {
  if (spec.orientation == Orientation::kUnspecified) {
    return Invalid("orientation", "must be OUT_IN or IN_OUT", "unspecified");
  }
  if (spec.fused_layout == FusedLayout::kSeparate) return absl::OkStatus();
  if (spec.d_memory != spec.d_model) {
    return Invalid(
        "fused_layout",
        absl::StrCat("must be SEPARATE where d_memory differs from d_model (", spec.d_model, ")"),
        absl::StrCat(spec.d_memory));
  }
  if (spec.fused_layout == FusedLayout::kPerHead && spec.kv_heads != spec.heads) {
    return Invalid(
        "fused_layout",
        absl::StrCat("PER_HEAD needs as many key/value heads as heads (", spec.heads, ")"),
        absl::StrCat(spec.kv_heads));
  }
  // Its rows follow the groups: only then do query heads come out in axis order.
  if (spec.fused_layout == FusedLayout::kPerGroup &&
      !std::is_sorted(spec.query_to_kv.begin(), spec.query_to_kv.end())) {
    return Invalid("query_to_kv", "must not decrease with the fused layout PER_GROUP",
                   "another order");
  }
  return absl::OkStatus();
}

absl::Status CheckMask(const LayerSpec& spec) {
  if (!spec.mask.window.has_value()) return absl::OkStatus();
  const int64_t window = *spec.mask.window;
  if (spec.mask.causal && window < 1) {
    return Invalid("mask.window", "must be at least 1 where causal (the own token counts)",
                   absl::StrCat(window));
  }
  return CheckRange("mask.window", window, 0, kMaxWindow);
}

absl::Status CheckScale(const LayerSpec& spec) {
  if (!spec.scale.has_value() || std::isfinite(*spec.scale)) return absl::OkStatus();
  return Invalid("scale", "must be finite", absl::StrCat(*spec.scale));
}

absl::Status CheckPositive(absl::string_view field, const std::optional<double>& value) {
  if (!value.has_value() || (std::isfinite(*value) && *value > 0.0)) return absl::OkStatus();
  return Invalid(field, "must be finite and positive", absl::StrCat(*value));
}

absl::Status CheckScores(const LayerSpec& spec) {
  absl::Status status = CheckPositive("softcap", spec.softcap);
  status.Update(CheckPositive("clip", spec.clip));
  return status;
}

absl::Status CheckEpsilon(absl::string_view field, double epsilon) {
  if (std::isfinite(epsilon) && epsilon >= 0.0) return absl::OkStatus();
  return Invalid(field, "must be finite and not negative", absl::StrCat(epsilon));
}

absl::Status CheckStatisticRows(QkNormSpan span, absl::string_view field, int64_t rows) {
  if (rows != 0 && span != QkNormSpan::kWidth) {
    return Invalid(field, "needs the span WIDTH", absl::StrCat(rows));
  }
  return CheckRange(field, rows, 0, kMaxHeads * kMaxHeadWidth);
}

absl::Status CheckNorms(const LayerSpec& spec) {
  absl::Status status;
  if (spec.pre_norm.has_value()) status = CheckEpsilon("pre_norm.epsilon", spec.pre_norm->epsilon);
  if (!spec.qk_norm.has_value()) return status;
  const QkNormSpec& norm = *spec.qk_norm;
  status.Update(CheckEpsilon("qk_norm.epsilon", norm.epsilon));
  if (norm.span == QkNormSpan::kHead && !spec.equal_key_widths()) {
    status.Update(
        Invalid("qk_norm.span", "must be HEADS or WIDTH where heads differ in dk", "HEAD"));
  }
  if (norm.span == QkNormSpan::kWidth && norm.kind == NormKind::kLayerNorm) {
    status.Update(absl::UnimplementedError(
        "qk_norm.kind: must be RMS or RMS_PLUS_ONE with the span WIDTH; was LAYER_NORM"));
  }
  status.Update(CheckStatisticRows(norm.span, "qk_norm.q_statistic_rows", norm.q_statistic_rows));
  status.Update(CheckStatisticRows(norm.span, "qk_norm.k_statistic_rows", norm.k_statistic_rows));
  return status;
}

absl::Status CheckGates(const LayerSpec& spec) {
  if (spec.gates.empty()) return absl::OkStatus();
  if (static_cast<int64_t>(spec.gates.size()) != spec.heads) {
    return Invalid("gates", absl::StrCat("must have ", spec.heads, " entries (heads)"),
                   absl::StrCat(spec.gates.size()));
  }
  for (const float gate : spec.gates) {
    if (!std::isfinite(gate)) return Invalid("gates", "must be finite", absl::StrCat(gate));
  }
  return absl::OkStatus();
}

int64_t Sum(const std::vector<int64_t>& widths) {
  int64_t sum = 0;
  for (const int64_t width : widths) sum += width;
  return sum;
}

// The width of the first query head that reads `group`; of any head where none does.
int64_t GroupWidth(const LayerSpec& spec, const std::vector<int64_t>& widths, int64_t group) {
  for (size_t r = 0; r < spec.query_to_kv.size(); ++r) {
    if (spec.query_to_kv[r] == group) return widths[r];
  }
  return widths.front();
}

bool AllEqual(const std::vector<int64_t>& widths) {
  for (const int64_t width : widths) {
    if (width != widths.front()) return false;
  }
  return true;
}

}  // namespace

int64_t LayerSpec::q_width() const { return Sum(dk); }

int64_t LayerSpec::k_width() const {
  int64_t sum = 0;
  for (int64_t group = 0; group < kv_heads; ++group) sum += kv_dk(group);
  return sum;
}

int64_t LayerSpec::v_width() const {
  int64_t sum = 0;
  for (int64_t group = 0; group < kv_heads; ++group) sum += kv_dv(group);
  return sum;
}

int64_t LayerSpec::z_width() const { return Sum(dv); }

bool LayerSpec::normed_over_width() const {
  return qk_norm.has_value() && qk_norm->span == QkNormSpan::kWidth;
}

int64_t LayerSpec::q_statistic_rows() const { return qk_norm ? qk_norm->q_statistic_rows : 0; }

int64_t LayerSpec::k_statistic_rows() const { return qk_norm ? qk_norm->k_statistic_rows : 0; }

bool LayerSpec::equal_widths() const { return AllEqual(dk) && AllEqual(dv); }

bool LayerSpec::equal_key_widths() const { return AllEqual(dk); }

int64_t LayerSpec::kv_dk(int64_t group) const { return GroupWidth(*this, dk, group); }

int64_t LayerSpec::kv_dv(int64_t group) const { return GroupWidth(*this, dv, group); }

double LayerSpec::head_scale(int64_t head) const {
  if (scale.has_value()) return *scale;
  return 1.0 / std::sqrt(static_cast<double>(dk[static_cast<size_t>(head)]));
}

absl::StatusOr<LayerSpec> ResolveSpec(LayerSpec spec) {
  using Step = absl::Status (*)(LayerSpec*);
  constexpr Step kSteps[] = {ResolveSizes, ResolveHeadIds, ResolveKvMap, ResolveHeadWidths,
                             spec_rules::ResolveRope};
  for (const Step step : kSteps) {
    if (absl::Status status = step(&spec); !status.ok()) return status;
  }
  using Check = absl::Status (*)(const LayerSpec&);
  constexpr Check kChecks[] = {CheckGroupWidths,
                               CheckMatrices,
                               CheckMask,
                               CheckScale,
                               CheckScores,
                               CheckNorms,
                               CheckGates,
                               spec_rules::CheckRopeScaling,
                               spec_rules::CheckPositionBias};
  for (const Check check : kChecks) {
    if (absl::Status status = check(spec); !status.ok()) return status;
  }
  return spec;
}

}  // namespace headwise
