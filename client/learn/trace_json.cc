// SPDX-License-Identifier: Apache-2.0
// A trace for machines, as protobuf's mapping would write it.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/learn/trace.h"
#include "nlohmann/json.hpp"

namespace headwise::client {
namespace {

using Json = nlohmann::ordered_json;

Json Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json Numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(Number(value));
  return list;
}

Json StageJson(const TraceStage& stage) {
  return {{"stage", stage.id},
          {"tensor", stage.tensor},
          {"text", stage.what},
          {"dtype", "F32"},
          {"axes", stage.axes},
          {"shapes", stage.shapes},
          {"bytes", absl::StrCat(stage.elements * 4)},
          {"first_values", Numbers(stage.first_values)}};
}

Json IndexJson(const IndexExample& e) {
  return {{"tensor", "q.0"},
          {"shape", {e.tokens, e.heads, e.width}},
          {"index", {e.token, e.head, e.feature}},
          {"column", e.column},
          {"offset", e.flat_offset},
          {"transposed_offset", e.transposed_offset},
          {"value", Number(e.value)},
          {"without_transpose",
           {{"index", {e.wrong_token, e.wrong_head, e.wrong_feature}},
            {"value", Number(e.wrong_value)}}}};
}

Json ProjectionsJson(const Projections& projections) {
  Json heads = Json::array();
  for (const HeadProjection& head : projections.heads) {
    heads.push_back({{"matrix", head.matrix},
                     {"head", head.head},
                     {"separate", Numbers(head.separate)},
                     {"combined", Numbers(head.combined)},
                     {"difference", Number(head.difference)}});
  }
  return {{"tokens", projections.tokens}, {"left_out", projections.left_out}, {"heads", heads}};
}

// Every number, in the shapes of `forward`.
Json ValuesJson(const Trace& trace) {
  const Stages& n = trace.numbers;
  Json values = {{"x", Numbers(trace.x)},
                 {"q", Numbers(n.q.values)},
                 {"k", Numbers(n.k.values)},
                 {"v", Numbers(n.v.values)},
                 {"z", Numbers(n.z.values)},
                 {"y", Numbers(n.y)},
                 {"contributions", Numbers(n.contributions)}};
  for (size_t b = 0; b < n.queries.size(); ++b) {
    values[absl::StrCat("scores.", b)] = Numbers(n.scores[b]);
    values[absl::StrCat("p.", b)] = Numbers(n.p[b]);
  }
  return values;
}

}  // namespace

std::string TraceJson(const Trace& trace) {
  Json json = {{"layer", trace.layer},
               {"layer_version", trace.version},
               {"lengths", trace.numbers.queries},
               {"memory_lengths", trace.numbers.keys},
               {"stages", Json::array()}};
  for (const TraceStage& stage : trace.stages) json["stages"].push_back(StageJson(stage));
  if (trace.index.has_value()) json["index_arithmetic"] = IndexJson(*trace.index);
  json["separate_and_combined"] = ProjectionsJson(trace.projections);
  if (trace.worked) json["values"] = ValuesJson(trace);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace headwise::client
