// SPDX-License-Identifier: Apache-2.0
#include "server/status.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/refusal.h"
#include "google/rpc/status.pb.h"

namespace headwise {
namespace {

// Status and details travel as HTTP/2 headers, of which clients take 8 KiB by default; the message
// is in there twice, once as base64.
constexpr size_t kMaxMessageBytes = 1500;
constexpr absl::Duration kLeastRetryDelay = absl::Milliseconds(10);
constexpr absl::Duration kLongestRetryDelay = absl::Seconds(30);

const char* ReasonOfCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_FIELD";
    case absl::StatusCode::kNotFound:
      return "NOT_FOUND";
    case absl::StatusCode::kAlreadyExists:
      return "NAME_TAKEN";
    case absl::StatusCode::kUnimplemented:
      return "NOT_SUPPORTED";
    case absl::StatusCode::kDataLoss:
      return "CORRUPT_FILE";
    case absl::StatusCode::kResourceExhausted:
      return IsRetryable(status) ? "QUEUE_FULL" : "LIMIT_EXCEEDED";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_PASSED";
    case absl::StatusCode::kCancelled:
      return "CALL_CANCELLED";
    case absl::StatusCode::kUnavailable:
      return "NOT_READY";
    case absl::StatusCode::kUnauthenticated:
      return "NO_VALID_TOKEN";
    case absl::StatusCode::kPermissionDenied:
      return "NO_RIGHT";
    case absl::StatusCode::kFailedPrecondition:
      return "WRONG_STATE";
    default:
      return "INTERNAL_ERROR";
  }
}

// One line, and short enough for a header; cut between UTF-8 characters.
std::string OneLine(absl::string_view message) {
  std::string line(message);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r' || c == '\0'; }, ' ');
  if (line.size() <= kMaxMessageBytes) return line;
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(line.substr(0, end), "…");
}

}  // namespace

std::string ReasonOf(const absl::Status& status) {
  std::string refusal = RefusalOf(status);
  return refusal.empty() ? ReasonOfCode(status) : refusal;
}

bool IsRetryable(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kUnavailable) return true;
  return status.code() == absl::StatusCode::kResourceExhausted &&
         absl::StrContains(status.message(), "retry");
}

absl::string_view FieldOf(absl::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == absl::string_view::npos) return "";
  const absl::string_view field = message.substr(0, colon);
  return absl::StrContains(field, ' ') ? "" : field;
}

absl::Duration RetryDelay(absl::Duration backlog) {
  return std::clamp(backlog / 2, kLeastRetryDelay, kLongestRetryDelay);
}

grpc::Status ToGrpcStatus(const absl::Status& status, absl::Duration retry_delay) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = OneLine(status.message());
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(message);

  google::rpc::ErrorInfo info;
  info.set_reason(ReasonOf(status));
  info.set_domain("headwise");
  wire.add_details()->PackFrom(info);

  const absl::string_view field = FieldOf(message);
  if (status.code() == absl::StatusCode::kInvalidArgument && !field.empty()) {
    google::rpc::BadRequest bad;
    google::rpc::BadRequest::FieldViolation* violation = bad.add_field_violations();
    violation->set_field(std::string(field));
    violation->set_description(message.substr(field.size() + 2));
    wire.add_details()->PackFrom(bad);
  }
  if (IsRetryable(status)) {
    google::rpc::RetryInfo retry;
    absl::Duration rest = retry_delay;
    retry.mutable_retry_delay()->set_seconds(absl::IDivDuration(rest, absl::Seconds(1), &rest));
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
    wire.add_details()->PackFrom(retry);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      wire.SerializeAsString());
}

}  // namespace headwise
