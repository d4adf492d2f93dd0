// SPDX-License-Identifier: Apache-2.0
// count: parameters, work and bytes, of a served layer or of widths typed here.
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/counts_table.h"
#include "client/status.h"
#include "client/verb.h"
#include "core/format/counts.h"
#include "nlohmann/json.hpp"

namespace headwise::client {
namespace {

struct Answer {
  int64_t d_model = 0, heads = 0, kv_heads = 0;
  std::vector<int64_t> dk, dv;  // [H]
  CountWorkload work;
  std::vector<v1::Count> counts;
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

std::vector<int64_t> PerHead(const google::protobuf::RepeatedField<uint32_t>& widths,
                             uint32_t heads) {
  std::vector<int64_t> all(widths.begin(), widths.end());
  if (all.size() == 1) all.resize(heads, all[0]);
  return all;
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
  answer.dk = PerHead(spec.dk(), spec.heads());
  answer.dv = PerHead(spec.dv(), spec.heads());
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
  CLIENT_ASSIGN_OR_RETURN(const CountShape shape, MakeCountShape(width, heads, kv_heads, dk, dv));
  CLIENT_ASSIGN_OR_RETURN(const std::vector<Count> counts, CountLayer(shape, answer.work));
  answer.d_model = width;
  answer.heads = heads;
  answer.kv_heads = static_cast<int64_t>(shape.kv_dk.size());
  answer.dk = shape.dk;
  answer.dv = shape.dv;
  for (const Count& count : counts) {
    v1::Count& named = answer.counts.emplace_back();
    named.set_id(count.id);
    named.set_value(count.value);
    named.set_unit(count.unit);
    named.set_convention(count.convention);
  }
  return answer;
}

std::string AnswerJson(const Answer& answer) {
  nlohmann::ordered_json json = {
      {"d_model", answer.d_model},
      {"heads", answer.heads},
      {"kv_heads", answer.kv_heads},
      {"dk", answer.dk},
      {"dv", answer.dv},
      {"batch", answer.work.batch},
      {"queries", answer.work.queries},
      {"keys", answer.work.keys},
      {"score_shape", {answer.work.batch, answer.heads, answer.work.queries, answer.work.keys}},
      {"counts", nlohmann::ordered_json::array()}};
  for (const v1::Count& count : answer.counts) {
    // A 64-bit integer is a string in JSON, as in protobuf's mapping.
    json["counts"].push_back(nlohmann::ordered_json{{"id", count.id()},
                                                    {"value", absl::StrCat(count.value())},
                                                    {"unit", count.unit()},
                                                    {"convention", count.convention()}});
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string AnswerText(const Answer& answer, const Terminal& terminal) {
  const auto widths = [](const std::vector<int64_t>& list) {
    for (const int64_t width : list) {
      if (width != list[0]) return absl::StrJoin(list, ",");
    }
    return list.empty() ? std::string("-") : absl::StrCat(list[0]);
  };
  return absl::StrCat("D ", answer.d_model, ", ", answer.heads, " query heads, ", answer.kv_heads,
                      " key/value heads, dk ", widths(answer.dk), ", dv ", widths(answer.dv),
                      "; B ", answer.work.batch, ", T ", answer.work.queries, ", S ",
                      answer.work.keys, "\nscores (", answer.work.batch, ", ", answer.heads, ", ",
                      answer.work.queries, ", ", answer.work.keys, ")\n\n",
                      CountsTable(answer.counts, terminal));
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
  CLIENT_ASSIGN_OR_RETURN(const Answer answer, session.args.positional().empty()
                                                   ? CountTyped(session.args)
                                                   : CountServed(session));
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
                    {"keys", "S", "key positions; T by default"}},
          .run = RunCount};
}

}  // namespace headwise::client
