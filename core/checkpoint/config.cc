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

// The first spelling that is present, with its value.
struct Found {
  absl::string_view key;
  const json* value = nullptr;
};

Found FindAlias(const ConfigObject& object, KeyAliases keys) {
  for (const absl::string_view key : keys) {
    if (const json* const value = object.Find(key)) return {key, value};
  }
  return {};
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
