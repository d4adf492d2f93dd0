// SPDX-License-Identifier: Apache-2.0
// count: parameters, work and bytes, of a served layer or of widths typed here.
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/counts_table.h"
#include "client/learn/layer_numbers.h"
#include "client/status.h"
#include "client/verb.h"
#include "core/format/counts.h"
#include "core/format/head_comparison.h"
#include "nlohmann/json.hpp"

namespace headwise::client {
namespace {

struct Answer {
  int64_t d_model = 0, heads = 0, kv_heads = 0;
  CountShape shape;  // of a served layer: what CompareHeadCounts looks at
  CountWorkload work;
  std::vector<v1::Count> counts;
  std::optional<HeadComparison> comparison;  // with --head-counts
};

// The flag's number, which must be at least 1, or the fallback.
absl::StatusOr<uint32_t> AtLeastOne(const Args& args, absl::string_view flag, uint32_t fallback) {
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> number, args.Uint(flag));
  if (number == 0u) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": must be at least 1; was 0"));
  }
  return number.value_or(fallback);
}

absl::StatusOr<CountWorkload> Workload(const Args& args) {
  CountWorkload work;
  CLIENT_ASSIGN_OR_RETURN(work.batch, AtLeastOne(args, "batch", 1));
  CLIENT_ASSIGN_OR_RETURN(const uint32_t queries, AtLeastOne(args, "queries", 1));
  work.queries = queries;
  CLIENT_ASSIGN_OR_RETURN(work.keys, AtLeastOne(args, "keys", queries));
  return work;
}

// The biases that a served layer has.
void MarkBiases(const v1::LayerDetails& layer, CountShape* shape) {
  shape->q_bias = shape->k_bias = shape->v_bias = shape->o_bias = false;
  for (const v1::LayerTensor& tensor : layer.tensors()) {
    const auto role = tensor.role();
    const bool all = role == v1::LayerTensor::QKV_BIAS, kv = role == v1::LayerTensor::KV_BIAS;
    shape->q_bias |= all || role == v1::LayerTensor::Q_BIAS;
    shape->k_bias |= all || kv || role == v1::LayerTensor::K_BIAS;
    shape->v_bias |= all || kv || role == v1::LayerTensor::V_BIAS;
    shape->o_bias |= role == v1::LayerTensor::O_BIAS;
  }
}

CountShape ShapeOf(const v1::LayerDetails& layer) {
  const v1::LayerSpec& spec = layer.spec();
  CountShape shape;
  shape.d_model = spec.d_model();
  shape.d_memory = spec.d_memory();
  shape.d_out = spec.d_out();
  const HeadLayout layout = LayoutOf(spec);
  shape.dk = layout.q.widths, shape.dv = layout.z.widths;
  shape.kv_dk = layout.k.widths, shape.kv_dv = layout.v.widths;
  MarkBiases(layer, &shape);
  if (layer.dtype() == v1::BF16) shape.weight_element_bytes = 2;
  if (layer.dtype() == v1::INT8) shape.weight_element_bytes = 1;
  return shape;
}

absl::StatusOr<Answer> CountServed(Session& session) {
  Answer answer;
  CLIENT_ASSIGN_OR_RETURN(answer.work, Workload(session.args));
  v1::GetLayerRequest request;
  request.set_name(session.name());
  request.set_batch(static_cast<uint32_t>(answer.work.batch));
  request.set_queries(static_cast<uint32_t>(answer.work.queries));
  request.set_keys(static_cast<uint32_t>(answer.work.keys));
  CLIENT_ASSIGN_OR_RETURN(const v1::LayerDetails layer, session.client.GetLayer(request));
  const v1::LayerSpec& spec = layer.spec();
  answer.d_model = spec.d_model();
  answer.heads = spec.heads();
  answer.kv_heads = spec.kv_heads();
  answer.shape = ShapeOf(layer);
  answer.counts.assign(layer.counts().begin(), layer.counts().end());
  return answer;
}

absl::StatusOr<Answer> CountTyped(const Args& args) {
  Answer answer;
  CLIENT_ASSIGN_OR_RETURN(answer.work, Workload(args));
  CLIENT_ASSIGN_OR_RETURN(const uint32_t width, AtLeastOne(args, "width", 0));
  CLIENT_ASSIGN_OR_RETURN(const uint32_t heads, AtLeastOne(args, "heads", 0));
  CLIENT_ASSIGN_OR_RETURN(const uint32_t kv_heads, AtLeastOne(args, "kv-heads", 0));
  CLIENT_ASSIGN_OR_RETURN(const uint32_t dk, AtLeastOne(args, "dk", 0));
  CLIENT_ASSIGN_OR_RETURN(const uint32_t dv, AtLeastOne(args, "dv", 0));
  CLIENT_ASSIGN_OR_RETURN(answer.shape, MakeCountShape(width, heads, kv_heads, dk, dv));
  CLIENT_ASSIGN_OR_RETURN(const std::vector<Count> counts, CountLayer(answer.shape, answer.work));
  answer.d_model = width;
  answer.heads = heads;
  answer.kv_heads = static_cast<int64_t>(answer.shape.kv_dk.size());
  for (const Count& count : counts) answer.counts.push_back(ToWire(count));
  return answer;
}

// A 64-bit integer is a string in JSON, as in protobuf's mapping.
nlohmann::ordered_json CountJson(const v1::Count& count) {
  return {{"id", count.id()},
          {"value", absl::StrCat(count.value())},
          {"unit", count.unit()},
          {"convention", count.convention()}};
}

void AddComparison(const HeadComparison& comparison, nlohmann::ordered_json* json) {
  nlohmann::ordered_json& rows = (*json)["head_counts"] = nlohmann::ordered_json::array();
  for (const HeadCountRow& row : comparison.rows) {
    nlohmann::ordered_json counts = nlohmann::ordered_json::array();
    for (const Count& count : row.counts) counts.push_back(CountJson(ToWire(count)));
    rows.push_back({{"heads", row.heads},
                    {"dk", row.dk},
                    {"dv", row.dv},
                    {"scale", row.scale},
                    {"counts", std::move(counts)}});
  }
  (*json)["changes"] = comparison.changes;
  (*json)["unchanged"] = comparison.unchanged;
  const OneHotReadings readings = CompareOneHotReadings();
  (*json)["one_hot_readings"] = {{"values", readings.values},
                                 {"weights", readings.weights},
                                 {"two_heads", readings.two_heads},
                                 {"best_weights", readings.best_weights},
                                 {"one_head", readings.one_head},
                                 {"error", readings.error},
                                 {"relative_error", readings.relative_error},
                                 {"relative_error_any_wo", readings.relative_error_any_wo}};
}

std::string AnswerJson(const Answer& answer) {
  nlohmann::ordered_json json = {
      {"d_model", answer.d_model},
      {"heads", answer.heads},
      {"kv_heads", answer.kv_heads},
      {"dk", answer.shape.dk},
      {"dv", answer.shape.dv},
      {"batch", answer.work.batch},
      {"queries", answer.work.queries},
      {"keys", answer.work.keys},
      {"score_shape", {answer.work.batch, answer.heads, answer.work.queries, answer.work.keys}},
      {"counts", nlohmann::ordered_json::array()}};
  for (const v1::Count& count : answer.counts) json["counts"].push_back(CountJson(count));
  if (answer.comparison.has_value()) AddComparison(*answer.comparison, &json);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string AnswerText(const Answer& answer, const Terminal& terminal) {
  const auto widths = [](const std::vector<int64_t>& list) {
    for (const int64_t width : list) {
      if (width != list[0]) return absl::StrJoin(list, ",");
    }
    return list.empty() ? std::string("-") : absl::StrCat(list[0]);
  };
  std::string text = absl::StrCat(
      "D ", answer.d_model, ", ", answer.heads, " query heads, ", answer.kv_heads,
      " key/value heads, dk ", widths(answer.shape.dk), ", dv ", widths(answer.shape.dv), "; B ",
      answer.work.batch, ", T ", answer.work.queries, ", S ", answer.work.keys, "\nscores (",
      answer.work.batch, ", ", answer.heads, ", ", answer.work.queries, ", ", answer.work.keys,
      ")\n\n", CountsText(answer.counts, terminal));
  if (answer.comparison.has_value()) {
    absl::StrAppend(&text, "\n", HeadComparisonText(*answer.comparison, terminal), "\n",
                    OneHotText(CompareOneHotReadings()));
  }
  return text;
}

absl::Status CheckGrammar(const Args& args) {
  const bool served = !args.positional().empty();
  for (absl::string_view flag : {"width", "heads", "kv-heads", "dk", "dv"}) {
    if (served && args.Has(flag)) {
      return UsageError(absl::StrCat("--", flag, " does not go with NAME"));
    }
  }
  if (!served && !(args.Has("width") && args.Has("heads"))) {
    return UsageError("NAME, or --width and --heads, is needed");
  }
  return absl::OkStatus();
}

absl::Status RunCount(Session& session) {
  CLIENT_RETURN_IF_ERROR(CheckGrammar(session.args));
  CLIENT_ASSIGN_OR_RETURN(const std::vector<uint32_t> heads, session.args.UintList("head-counts"));
  CLIENT_ASSIGN_OR_RETURN(Answer answer, session.args.positional().empty()
                                             ? CountTyped(session.args)
                                             : CountServed(session));
  if (!heads.empty()) {
    CLIENT_ASSIGN_OR_RETURN(answer.comparison,
                            CompareHeadCounts(answer.shape, answer.work,
                                              std::vector<int64_t>(heads.begin(), heads.end())));
  }
  session.out = session.json ? AnswerJson(answer) : AnswerText(answer, session.terminal);
  return absl::OkStatus();
}

}  // namespace

Verb CountVerb() {
  return {.name = "count",
          .arguments = "[NAME]",
          .summary = "parameters, work and bytes; without NAME no server is needed",
          .min_positional = 0,
          .max_positional = 1,
          .flags = {{"width", "D", "model width, instead of NAME"},
                    {"heads", "H", "query heads, instead of NAME"},
                    {"kv-heads", "G", "key/value heads; H by default"},
                    {"dk", "N", "key width of a head; D / H by default"},
                    {"dv", "N", "value width of a head; dk by default"},
                    {"batch", "B", "sequences; 1 by default"},
                    {"queries", "T", "query positions; 1 by default"},
                    {"keys", "S", "key positions; T by default"},
                    {"head-counts", "1,2,4,8", "the same width cut into so many heads"}},
          .run = RunCount};
}

}  // namespace headwise::client
