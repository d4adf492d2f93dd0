// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/config.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/format/file.h"
#include "core/format/strict_json.h"

namespace headwise {
namespace {

using nlohmann::json;

// The first spelling that is present and not null, or else the first that is null.
struct Found {
  absl::string_view key;
  const json* value = nullptr;
};

Found FindAlias(const ConfigObject& object, KeyAliases keys) {
  Found null;
  for (const absl::string_view key : keys) {
    const json* const value = object.Find(key);
    if (value == nullptr) continue;
    if (!value->is_null()) return {key, value};
    if (null.value == nullptr) null = {key, value};
  }
  return null;
}

std::optional<int64_t> AsPositiveInt(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  const int64_t number = value.get<int64_t>();
  if (number < 1) return std::nullopt;
  return number;
}

}  // namespace

const json* ConfigObject::Find(absl::string_view key) const {
  const auto found = object_->find(key);
  return found == object_->end() ? nullptr : &*found;
}

absl::Status ConfigObject::Refuse(absl::StatusCode code, absl::string_view key,
                                  absl::string_view rule, const json& value) const {
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return absl::Status(
      code, absl::StrCat("config.json: ", path_, key, ": ", rule, "; was ", Printable(text)));
}

absl::StatusOr<int64_t> ConfigObject::PositiveInt(KeyAliases keys, int64_t absent) const {
  const Found found = FindAlias(*this, keys);
  if (found.value == nullptr) return absent;
  if (const std::optional<int64_t> number = AsPositiveInt(*found.value)) return *number;
  return Refuse(absl::StatusCode::kDataLoss, found.key, "must be a positive integer", *found.value);
}

absl::Status ConfigObject::Unsupported(absl::string_view key, const json& value) const {
  return Refuse(absl::StatusCode::kUnimplemented, key, "not carried out by this release", value);
}

absl::Status ConfigObject::Missing(absl::string_view key, absl::string_view rule) const {
  return absl::DataLossError(absl::StrCat("config.json: ", path_, key, ": ", rule, "; was absent"));
}

absl::Status ConfigObject::CheckFixed(absl::Span<const FixedSetting> settings) const {
  for (const FixedSetting& setting : settings) {
    const json* const value = Find(setting.key);
    if (value == nullptr || value->is_null() || *value == json::parse(setting.json)) continue;
    return Unsupported(setting.key, *value);
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ConfigObject::NonNegativeInt(absl::string_view key, int64_t absent) const {
  const json* const value = Find(key);
  if (value == nullptr) return absent;
  if (value->is_number_integer() && *value == 0) return 0;
  if (const std::optional<int64_t> number = AsPositiveInt(*value)) return *number;
  return Refuse(absl::StatusCode::kDataLoss, key, "must be a whole number, 0 or more", *value);
}

absl::StatusOr<std::optional<double>> ConfigObject::NumberOrNull(
    absl::string_view key, std::optional<double> absent) const {
  const json* const value = Find(key);
  if (value == nullptr) return absent;
  if (value->is_null()) return std::optional<double>();
  if (value->is_number() && std::isfinite(value->get<double>())) {
    return std::optional<double>(value->get<double>());
  }
  return Refuse(absl::StatusCode::kDataLoss, key, "must be a finite number or null", *value);
}

absl::StatusOr<std::vector<double>> ConfigObject::PositiveNumbers(absl::string_view key) const {
  const json* const value = Find(key);
  if (value == nullptr) return Missing(key, "must be given");
  std::vector<double> numbers;
  bool good = value->is_array();
  for (size_t i = 0; good && i < value->size(); ++i) {
    const json& entry = (*value)[i];
    good = entry.is_number() && std::isfinite(entry.get<double>()) && entry.get<double>() > 0.0;
    if (good) numbers.push_back(entry.get<double>());
  }
  if (good) return numbers;
  return Refuse(absl::StatusCode::kDataLoss, key, "must be a list of positive finite numbers",
                *value);
}

absl::StatusOr<std::optional<int64_t>> ConfigObject::PositiveIntOrNull(
    KeyAliases keys, std::optional<int64_t> absent) const {
  const Found found = FindAlias(*this, keys);
  if (found.value == nullptr) return absent;
  if (found.value->is_null()) return std::optional<int64_t>();
  if (const std::optional<int64_t> number = AsPositiveInt(*found.value)) return number;
  return Refuse(absl::StatusCode::kDataLoss, found.key, "must be a positive integer or null",
                *found.value);
}

absl::StatusOr<double> ConfigObject::PositiveNumber(absl::string_view key, double absent) const {
  const json* const value = Find(key);
  if (value == nullptr) return absent;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (std::isfinite(number) && number > 0) return number;
  }
  return Refuse(absl::StatusCode::kDataLoss, key, "must be a positive finite number", *value);
}

absl::StatusOr<bool> ConfigObject::Bool(absl::string_view key, bool absent) const {
  const json* const value = Find(key);
  if (value == nullptr) return absent;
  if (value->is_null()) return false;
  if (value->is_boolean()) return value->get<bool>();
  return Refuse(absl::StatusCode::kDataLoss, key, "must be true or false", *value);
}

absl::StatusOr<std::string> ConfigObject::String(KeyAliases keys, absl::string_view absent) const {
  const Found found = FindAlias(*this, keys);
  if (found.value == nullptr) return std::string(absent);
  if (found.value->is_string()) return found.value->get<std::string>();
  return Refuse(absl::StatusCode::kDataLoss, found.key, "must be a text", *found.value);
}

absl::StatusOr<std::optional<ConfigObject>> ConfigObject::Object(absl::string_view key) const {
  const json* const value = Find(key);
  if (value == nullptr || value->is_null()) return std::optional<ConfigObject>();
  if (value->is_object()) {
    return std::optional<ConfigObject>(ConfigObject(*value, absl::StrCat(path_, key, ".")));
  }
  return Refuse(absl::StatusCode::kDataLoss, key, "must be an object or null", *value);
}

absl::StatusOr<json> ParseConfigJson(absl::string_view text) {
  JsonRules rules;
  rules.bare_nonfinite = true;
  absl::StatusOr<json> config = ParseStrictJson(text, "config.json", rules);
  if (config.ok() && !config->is_object()) {
    return absl::DataLossError("config.json: must be one JSON object");
  }
  return config;
}

}  // namespace headwise
