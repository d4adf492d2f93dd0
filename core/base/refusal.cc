// SPDX-License-Identifier: Apache-2.0
#include "core/base/refusal.h"

#include "absl/strings/cord.h"

namespace headwise {
namespace {

constexpr absl::string_view kPayload = "headwise/refusal";

}  // namespace

absl::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kTooLarge:
      return "LIMIT_EXCEEDED";
    case Refusal::kQueueFull:
      return "QUEUE_FULL";
    case Refusal::kLayerFull:
      return "LAYER_QUEUE_FULL";
    case Refusal::kClientFull:
      return "CLIENT_LIMIT";
    case Refusal::kRequestBytes:
      return "REQUEST_MEMORY";
    case Refusal::kLayerBytes:
      return "LAYER_MEMORY";
  }
  return "LIMIT_EXCEEDED";
}

absl::Status Refuse(Refusal refusal, const std::string& message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kPayload, absl::Cord(RefusalName(refusal)));
  return status;
}

std::string RefusalOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  return payload.has_value() ? std::string(*payload) : "";
}

}  // namespace headwise
