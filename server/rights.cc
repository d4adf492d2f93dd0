// SPDX-License-Identifier: Apache-2.0
#include "server/rights.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace headwise {
namespace {

constexpr absl::string_view kAnalyzeMethods[] = {"Ablate", "AnalyzeHeads", "Audit"};
constexpr absl::string_view kOipAdminMethods[] = {"RepositoryModelLoad", "RepositoryModelUnload"};
constexpr absl::string_view kForwardMethods[] = {"Forward", "ForwardStream", "ListLayers",
                                                 "GetLayer", "ServerInfo"};

bool Holds(const absl::string_view* begin, const absl::string_view* end, absl::string_view name) {
  return std::find(begin, end, name) != end;
}

}  // namespace

const char* RightName(Right right) {
  switch (right) {
    case Right::kNone:
      return "none";
    case Right::kForward:
      return "forward";
    case Right::kAnalyze:
      return "analyze";
    case Right::kAdmin:
      return "admin";
  }
  return "none";
}

std::optional<Right> ParseRight(absl::string_view name) {
  for (const Right right : {Right::kForward, Right::kAnalyze, Right::kAdmin}) {
    if (name == RightName(right)) return right;
  }
  return std::nullopt;
}

Right RightFor(absl::string_view path) {
  if (absl::StartsWith(path, "/grpc.health.v1.Health/")) return Right::kNone;
  if (absl::ConsumePrefix(&path, "/inference.GRPCInferenceService/")) {
    return Holds(std::begin(kOipAdminMethods), std::end(kOipAdminMethods), path) ? Right::kAdmin
                                                                                 : Right::kForward;
  }
  if (!absl::ConsumePrefix(&path, "/headwise.v1.Headwise/")) return Right::kForward;
  if (Holds(std::begin(kForwardMethods), std::end(kForwardMethods), path)) return Right::kForward;
  if (Holds(std::begin(kAnalyzeMethods), std::end(kAnalyzeMethods), path)) return Right::kAnalyze;
  return Right::kAdmin;  // a method that is added and forgotten here is closed, not open
}

}  // namespace headwise
