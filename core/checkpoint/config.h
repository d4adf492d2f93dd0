// SPDX-License-Identifier: Apache-2.0
// config.json: typed access with aliases, defaults, and null as a value of its own.
#ifndef HEADWISE_CORE_CHECKPOINT_CONFIG_H_
#define HEADWISE_CORE_CHECKPOINT_CONFIG_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace headwise {

// Spellings of one setting, in the order in which they are looked for.
using KeyAliases = absl::Span<const absl::string_view>;

// A setting that is carried out for one value only. Absent and null mean that value.
struct FixedSetting {
  absl::string_view key;
  absl::string_view json;
};

inline constexpr absl::string_view kModelTypeKey[] = {"model_type"};

// One object of config.json. Every getter gives `absent` where no spelling is present, takes a
// later spelling where an earlier one is null, and gives DATA_LOSS "config.json: key: rule; was
// VALUE" for a value of another type. Immutable; thread-safe.
class ConfigObject {
 public:
  // A view of `object`, which must outlive it. `path` ("rope_scaling.") starts the keys in
  // messages.
  ConfigObject(const nlohmann::json& object, std::string path)
      : object_(&object), path_(std::move(path)) {}

  // The value, which may be null; nullptr where absent.
  const nlohmann::json* Find(absl::string_view key) const;

  absl::StatusOr<int64_t> PositiveInt(KeyAliases keys, int64_t absent) const;
  absl::StatusOr<int64_t> NonNegativeInt(absl::string_view key, int64_t absent) const;
  // null gives nullopt.
  absl::StatusOr<std::optional<int64_t>> PositiveIntOrNull(KeyAliases keys,
                                                           std::optional<int64_t> absent) const;
  absl::StatusOr<double> PositiveNumber(absl::string_view key, double absent) const;
  // Finite; null gives nullopt.
  absl::StatusOr<std::optional<double>> NumberOrNull(absl::string_view key,
                                                     std::optional<double> absent) const;
  // Positive and finite.
  absl::StatusOr<std::vector<double>> PositiveNumbers(absl::string_view key) const;
  // null is false.
  absl::StatusOr<bool> Bool(absl::string_view key, bool absent) const;
  absl::StatusOr<std::string> String(KeyAliases keys, absl::string_view absent) const;
  // nullopt where absent or null.
  absl::StatusOr<std::optional<ConfigObject>> Object(absl::string_view key) const;

  // UNIMPLEMENTED for the first of `settings` that has another value.
  absl::Status CheckFixed(absl::Span<const FixedSetting> settings) const;

  // "config.json: path.key: rule; was VALUE".
  absl::Status Refuse(absl::StatusCode code, absl::string_view key, absl::string_view rule,
                      const nlohmann::json& value) const;
  // The same for a setting or value that is known but not carried out.
  absl::Status Unsupported(absl::string_view key, const nlohmann::json& value) const;
  // "config.json: path.key: must be given…; was absent".
  absl::Status Missing(absl::string_view key, absl::string_view rule) const;

 private:
  const nlohmann::json* object_;
  std::string path_;
};

// A whole config.json. DATA_LOSS unless it is one JSON object.
absl::StatusOr<nlohmann::json> ParseConfigJson(absl::string_view text);

}  // namespace headwise

#endif  // HEADWISE_CORE_CHECKPOINT_CONFIG_H_
