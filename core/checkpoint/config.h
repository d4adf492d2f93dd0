// SPDX-License-Identifier: Apache-2.0
// config.json: typed access with aliases, defaults, and null as a value of its own.
#ifndef HEADWISE_CORE_CHECKPOINT_CONFIG_H_
#define HEADWISE_CORE_CHECKPOINT_CONFIG_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace headwise {

// Spellings of one setting, in the order in which they are looked for.
using KeyAliases = absl::Span<const absl::string_view>;

// One object of config.json. Every getter gives `absent` where no spelling is present, and
// DATA_LOSS "config.json: key: rule; was VALUE" for a value of another type. Immutable;
// thread-safe.
class ConfigObject {
 public:
  // A view of `object`, which must outlive it. `path` ("rope_scaling.") starts the keys in
  // messages.
  ConfigObject(const nlohmann::json& object, std::string path)
      : object_(&object), path_(std::move(path)) {}

  // The value, which may be null; nullptr where absent.
  const nlohmann::json* Find(absl::string_view key) const;

  absl::StatusOr<int64_t> PositiveInt(KeyAliases keys, int64_t absent) const;
  // null gives nullopt.
  absl::StatusOr<std::optional<int64_t>> PositiveIntOrNull(KeyAliases keys,
                                                           std::optional<int64_t> absent) const;
  absl::StatusOr<double> PositiveNumber(absl::string_view key, double absent) const;
  absl::StatusOr<bool> Bool(absl::string_view key, bool absent) const;
  absl::StatusOr<std::string> String(KeyAliases keys, absl::string_view absent) const;
  // nullopt where absent or null.
  absl::StatusOr<std::optional<ConfigObject>> Object(absl::string_view key) const;

  // "config.json: path.key: rule; was VALUE".
  absl::Status Refuse(absl::StatusCode code, absl::string_view key, absl::string_view rule,
                      const nlohmann::json& value) const;

 private:
  const nlohmann::json* object_;
  std::string path_;
};

// A whole config.json. DATA_LOSS unless it is one JSON object.
absl::StatusOr<nlohmann::json> ParseConfigJson(absl::string_view text);

}  // namespace headwise

#endif  // HEADWISE_CORE_CHECKPOINT_CONFIG_H_
