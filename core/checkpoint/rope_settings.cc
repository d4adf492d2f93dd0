// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/rope_settings.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

using nlohmann::json;

constexpr absl::string_view kKindKeys[] = {"rope_type", "type"};
constexpr absl::string_view kOriginalKey = "original_max_position_embeddings";

// rope_parameters of newer files, of this layer's type where they are kept by type; else
// rope_scaling, or nothing.
absl::StatusOr<std::optional<ConfigObject>> FindRopeObject(const RopeRule& rule,
                                                           const ConfigObject& config,
                                                           const RopeLayer& layer) {
  const absl::StatusOr<std::optional<ConfigObject>> parameters = config.Object("rope_parameters");
  if (!parameters.ok()) return parameters.status();
  if (!parameters->has_value()) {
    const bool own_base = layer.sliding && !rule.sliding_base_key.empty();
    if (own_base) return std::optional<ConfigObject>();  // and no scaling
    return config.Object("rope_scaling");
  }
  if (layer.type && (*parameters)->Find(*layer.type) != nullptr) {
    return (*parameters)->Object(*layer.type);
  }
  for (const absl::string_view kind : {"full_attention", "sliding_attention"}) {
    const json* const other = (*parameters)->Find(kind);
    if (other == nullptr) continue;
    if (layer.type) {
      return (*parameters)->Missing(*layer.type, absl::StrCat("must be given beside ", kind));
    }
    return (*parameters)
        ->Refuse(absl::StatusCode::kDataLoss, kind,
                 "needs layer_types that say which layers it is for", *other);
  }
  return *parameters;
}

// The base by the older keys.
absl::StatusOr<double> ReadBase(const RopeRule& rule, const ConfigObject& config, bool sliding) {
  if (sliding && !rule.sliding_base_key.empty()) {
    const json* const value = config.Find(rule.sliding_base_key);
    const bool as_full = value != nullptr && value->is_null() && rule.null_sliding_base_is_full;
    if (!as_full) return config.PositiveNumber(rule.sliding_base_key, rule.sliding_base_absent);
  }
  for (const absl::string_view key : rule.base_keys) {
    if (config.Find(key) != nullptr) return config.PositiveNumber(key, 0.0);
  }
  return rule.base_absent;
}

absl::StatusOr<double> ReadShare(const RopeRule& rule, const ConfigObject& config,
                                 const std::optional<ConfigObject>& rope) {
  constexpr absl::string_view kKey = "partial_rotary_factor";
  if (rope.has_value() && rope->Find(kKey) != nullptr) return rope->PositiveNumber(kKey, 1.0);
  if (config.Find(rule.share_key) != nullptr) return config.PositiveNumber(rule.share_key, 1.0);
  return config.PositiveNumber(kKey, rule.share_absent);
}

// Number of rotary features: a share of the head, cut to a whole number.
absl::Status ReadDims(const RopeRule& rule, const ConfigObject& config,
                      const std::optional<ConfigObject>& found, LayerSpec* spec) {
  const absl::StatusOr<double> share = ReadShare(rule, config, found);
  if (!share.ok()) return share.status();
  if (*share > 1.0) {
    return config.Refuse(absl::StatusCode::kDataLoss, rule.share_key, "must be at most 1", *share);
  }
  // The head's width is known where it is given or divides; where neither, ResolveSpec refuses.
  const int64_t width =
      std::min(kMaxHeadWidth, spec->dk.empty() ? spec->d_model / spec->heads : spec->dk.front());
  spec->rope->dims = static_cast<int64_t>(static_cast<double>(width) * *share);
  if (spec->rope->dims == 0 && width > 0) {  // 0 would mean all of the head
    return config.Refuse(absl::StatusCode::kDataLoss, rule.share_key,
                         absl::StrCat("must leave a feature of ", width), *share);
  }
  return absl::OkStatus();
}

// Reads one scaling's settings.
class ScalingReader {
 public:
  ScalingReader(const RopeRule& rule, const ConfigObject& config, const ConfigObject& rope,
                RopeSpec* spec)
      : rule_(rule), config_(config), rope_(rope), spec_(spec) {}

  absl::Status Read() {
    const absl::StatusOr<std::string> kind = rope_.String(kKindKeys, "default");
    if (!kind.ok()) return kind.status();
    const bool named = rope_.Find("rope_type") != nullptr || rope_.Find("type") != nullptr;
    if (const json* const factor = rope_.Find("factor"); !named && factor != nullptr) {
      return rope_.Refuse(absl::StatusCode::kDataLoss, "factor", "needs a rope_type beside it",
                          *factor);
    }
    const bool renamed = rule_.calls_longrope_yarn && (*kind == "yarn" || *kind == "su");
    if (*kind == "default") return absl::OkStatus();
    if (*kind == "linear") return ReadLinear();
    if (*kind == "dynamic") return ReadDynamic();
    if (*kind == "llama3") return ReadLlama3();
    if (*kind == "longrope" || renamed) return ReadLongRope();
    if (*kind == "yarn") return ReadYarn();
    return rope_.Unsupported(rope_.Find("rope_type") != nullptr ? "rope_type" : "type", *kind);
  }

 private:
  absl::Status ReadNumber(absl::string_view key, double* out) {
    if (rope_.Find(key) == nullptr) return rope_.Missing(key, "must be given");
    return ReadNumber(key, 0.0, out);
  }

  absl::Status ReadNumber(absl::string_view key, double absent, double* out) {
    const absl::StatusOr<double> number = rope_.PositiveNumber(key, absent);
    if (number.ok()) *out = *number;
    return number.status();
  }

  // As ReadNumber, for a key that may be null.
  absl::Status ReadOrNull(const ConfigObject& object, absl::string_view key,
                          std::optional<double>* out) {
    const json* const value = object.Find(key);
    if (value == nullptr || value->is_null()) return absl::OkStatus();
    const absl::StatusOr<double> number = object.PositiveNumber(key, 0.0);
    if (number.ok()) *out = *number;
    return number.status();
  }

  absl::StatusOr<double> MaxPositions() {
    return config_.PositiveNumber("max_position_embeddings", rule_.max_positions_absent);
  }

  // The trained length: above the scaling, in it, or the longest of the model.
  absl::Status ReadOriginal() {
    std::optional<double> original;
    absl::Status status = ReadOrNull(config_, kOriginalKey, &original);
    if (!original) status.Update(ReadOrNull(rope_, kOriginalKey, &original));
    const absl::StatusOr<double> longest = MaxPositions();
    status.Update(longest.status());
    if (!status.ok()) return status;
    if (!original) original = rule_.original_absent;
    spec_->original_max_positions = original.value_or(*longest);
    return absl::OkStatus();
  }

  absl::Status ReadLinear() {
    spec_->scaling = RopeScaling::kLinear;
    return ReadNumber("factor", &spec_->factor);
  }

  absl::Status ReadDynamic() {
    spec_->scaling = RopeScaling::kDynamic;
    const absl::StatusOr<double> longest = MaxPositions();
    if (!longest.ok()) return longest.status();
    spec_->original_max_positions = *longest;
    return ReadNumber("factor", &spec_->factor);
  }

  absl::Status ReadLlama3() {
    spec_->scaling = RopeScaling::kLlama3;
    absl::Status status = ReadNumber("factor", &spec_->factor);
    status.Update(ReadNumber("low_freq_factor", &spec_->low_freq_factor));
    status.Update(ReadNumber("high_freq_factor", &spec_->high_freq_factor));
    status.Update(ReadOriginal());
    return status;
  }

  // `factor` given, or how much longer the model is than it was trained.
  absl::Status ReadFactor() {
    std::optional<double> factor;
    absl::Status status = ReadOrNull(rope_, "factor", &factor);
    const absl::StatusOr<double> longest = MaxPositions();
    status.Update(longest.status());
    if (status.ok()) spec_->factor = factor.value_or(*longest / spec_->original_max_positions);
    return status;
  }

  absl::Status ReadYarn() {
    spec_->scaling = RopeScaling::kYarn;
    if (rope_.Find("factor") == nullptr) return rope_.Missing("factor", "must be given");
    absl::Status status = ReadOriginal();
    if (status.ok()) status = ReadFactor();
    std::optional<double> fast, slow;
    status.Update(ReadOrNull(rope_, "beta_fast", &fast));
    status.Update(ReadOrNull(rope_, "beta_slow", &slow));
    spec_->beta_fast = fast.value_or(32.0);
    spec_->beta_slow = slow.value_or(1.0);
    const absl::StatusOr<bool> truncate = rope_.Bool("truncate", true);
    status.Update(truncate.status());
    if (!status.ok()) return status;
    spec_->truncate = *truncate;
    return ReadYarnAttention();
  }

  // attention_factor, or the ratio of two scales; absent: the spec's own formula.
  absl::Status ReadYarnAttention() {
    absl::Status status = ReadOrNull(rope_, "attention_factor", &spec_->attention_factor);
    const absl::StatusOr<std::optional<double>> mscale = rope_.NumberOrNull("mscale", std::nullopt);
    const absl::StatusOr<std::optional<double>> all =
        rope_.NumberOrNull("mscale_all_dim", std::nullopt);
    status.Update(mscale.status());
    status.Update(all.status());
    if (!status.ok() || spec_->attention_factor) return status;
    const double above = mscale->value_or(0.0), below = all->value_or(0.0);
    if (above == 0.0 || below == 0.0) return absl::OkStatus();
    const auto get = [this](double m) {
      return spec_->factor <= 1.0 ? 1.0 : 0.1 * m * std::log(spec_->factor) + 1.0;
    };
    spec_->attention_factor = get(above) / get(below);
    return absl::OkStatus();
  }

  absl::Status ReadLongRope() {
    spec_->scaling = RopeScaling::kLongRope;
    absl::StatusOr<std::vector<double>> shorts = rope_.PositiveNumbers("short_factor");
    if (!shorts.ok()) return shorts.status();
    absl::StatusOr<std::vector<double>> longs = rope_.PositiveNumbers("long_factor");
    if (!longs.ok()) return longs.status();
    spec_->short_factors = *std::move(shorts);
    spec_->long_factors = *std::move(longs);
    absl::Status status = ReadOriginal();
    if (status.ok()) status = ReadFactor();
    status.Update(ReadOrNull(rope_, "attention_factor", &spec_->attention_factor));
    return status;
  }

  const RopeRule& rule_;
  const ConfigObject& config_;
  const ConfigObject& rope_;
  RopeSpec* const spec_;
};

// A family's own scaling where config.json has no word about it.
void UseFamilysScaling(const RopeRule& rule, const ConfigObject& config, RopeSpec* rope) {
  const bool silent =
      config.Find("rope_parameters") == nullptr && config.Find("rope_scaling") == nullptr;
  if (rule.without_any_key == nullptr || !silent) return;
  const RopeSpec& scaling = rule.without_any_key();
  rope->scaling = scaling.scaling;
  rope->factor = scaling.factor;
  rope->original_max_positions = scaling.original_max_positions;
  rope->truncate = scaling.truncate;
}

}  // namespace

absl::Status ReadRope(const RopeRule& rule, const ConfigObject& config, const RopeLayer& layer,
                      LayerSpec* spec) {
  const absl::StatusOr<std::optional<ConfigObject>> found = FindRopeObject(rule, config, layer);
  if (!found.ok()) return found.status();
  RopeSpec& rope = spec->rope.emplace();
  rope.layout = rule.layout;
  if (found->has_value()) {
    absl::Status status = ScalingReader(rule, config, **found, &rope).Read();
    if (!status.ok()) return status;
  }
  const bool given = found->has_value() && (*found)->Find("rope_theta") != nullptr;
  const absl::StatusOr<double> base =
      given ? (*found)->PositiveNumber("rope_theta", 0.0) : ReadBase(rule, config, layer.sliding);
  if (!base.ok()) return base.status();
  rope.base = *base;
  UseFamilysScaling(rule, config, &rope);
  return ReadDims(rule, config, *found, spec);
}

}  // namespace headwise
