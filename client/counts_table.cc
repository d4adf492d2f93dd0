// SPDX-License-Identifier: Apache-2.0
#include "client/counts_table.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace headwise::client {
namespace {

using Align = Table::Align;

// Counts by id, and which of them have been shown.
class CountBook {
 public:
  explicit CountBook(const std::vector<v1::Count>& counts) : counts_(counts) {
    for (const v1::Count& count : counts) by_id_[count.id()] = &count;
  }

  bool Has(const std::string& id) const { return by_id_.contains(id); }
  std::string Convention(const std::string& id) const {
    return Has(id) ? by_id_.at(id)->convention() : "";
  }
  // The number as text; empty if it isn't there.
  std::string Take(const std::string& id) {
    if (!Has(id)) return "";
    shown_.insert(id);
    return Grouped(by_id_.at(id)->value());
  }
  std::vector<const v1::Count*> Rest() const {
    std::vector<const v1::Count*> rest;
    for (const v1::Count& count : counts_) {
      if (!shown_.contains(count.id())) rest.push_back(&count);
    }
    return rest;
  }

 private:
  const std::vector<v1::Count>& counts_;
  std::map<std::string, const v1::Count*> by_id_;
  std::set<std::string> shown_;
};

std::string WithoutPrefix(const std::string& text, const std::string& prefix) {
  return std::string(absl::StripPrefix(text, prefix));
}

std::string ParameterTable(CountBook* book, const Terminal& terminal) {
  if (!book->Has("parameters_q")) return "";
  Table table({{"parameters"},
               {"without bias", Align::kRight},
               {"with bias", Align::kRight},
               {"convention"}});
  for (const char* matrix : {"q", "k", "v", "o", "q_statistic", "k_statistic"}) {
    const std::string id = absl::StrCat("parameters_", matrix);
    if (!book->Has(id)) continue;
    const std::string both = id + "_with_bias";
    table.Add({absl::StrCat("W_", matrix), book->Take(id), book->Take(both),
               WithoutPrefix(book->Convention(both), absl::StrCat("W_", matrix, ": "))});
  }
  const std::string biases = book->Convention("parameters_with_bias");
  table.Add({"all", book->Take("parameters"), book->Take("parameters_with_bias"), biases});
  return table.Render(terminal) + "\n";
}

std::string WorkTable(CountBook* book, const Terminal& terminal) {
  if (!book->Has("macs_q")) return "";
  Table table({{"work"},
               {"MACs dense", Align::kRight},
               {"FLOPs dense", Align::kRight},
               {"MACs causal", Align::kRight},
               {"FLOPs causal", Align::kRight},
               {"convention"}});
  constexpr const char* kStages[][2] = {{"project q", "q"},
                                        {"project k", "k"},
                                        {"project v", "v"},
                                        {"statistic of q", "q_statistic"},
                                        {"statistic of k", "k_statistic"},
                                        {"scores q.k", "scores"},
                                        {"values p.v", "values"},
                                        {"project out", "o"},
                                        {"all", ""}};
  for (const auto& [title, stage] : kStages) {
    const std::string joint = *stage == '\0' ? "" : "_";
    const bool pairs = book->Has(absl::StrCat("macs", joint, stage, "_dense"));
    if (!pairs && !book->Has(absl::StrCat("macs_", stage))) continue;
    std::vector<std::string> cells = {title};
    for (const char* kind : {"dense", "causal"}) {
      for (const char* unit : {"macs", "flops"}) {
        cells.push_back(
            book->Take(absl::StrCat(unit, joint, stage, pairs ? "_" : "", pairs ? kind : "")));
      }
    }
    cells.push_back(book->Convention(absl::StrCat("macs", joint, stage, pairs ? "_dense" : "")));
    table.Add(std::move(cells));
  }
  return table.Render(terminal) +
         "A FLOP count is 2 per multiply-accumulate (MAC); bias, RoPE, mask and softmax aren't "
         "counted.\nCausal: only the pairs that a causal mask leaves, last query at last key; "
         "projections don't "
         "depend on it.\n\n";
}

std::string Names(const std::vector<std::string>& ids, const std::set<std::string>& left_out) {
  std::vector<std::string> names;
  for (const std::string& id : ids) {
    if (left_out.contains(id)) continue;
    names.push_back(CountName(id));
  }
  return names.empty() ? "nothing" : absl::StrJoin(names, ", ");
}

const Count* Find(const HeadCountRow& row, absl::string_view id) {
  for (const Count& count : row.counts) {
    if (count.id == id) return &count;
  }
  return nullptr;
}

}  // namespace

std::string CountsText(const std::vector<v1::Count>& counts, const Terminal& terminal) {
  CountBook book(counts);
  std::string text = ParameterTable(&book, terminal);
  absl::StrAppend(&text, WorkTable(&book, terminal));
  Table table({{"count"}, {"value", Align::kRight}, {"unit"}, {"convention"}});
  const std::vector<const v1::Count*> rest = book.Rest();
  for (const v1::Count* count : rest) {
    table.Add(
        {Names({count->id()}, {}), Grouped(count->value()), count->unit(), count->convention()});
  }
  if (!rest.empty()) absl::StrAppend(&text, table.Render(terminal));
  return text;
}

std::string HeadComparisonText(const HeadComparison& comparison, const Terminal& terminal) {
  Table table({{"heads", Align::kRight},
               {"dk", Align::kRight},
               {"dv", Align::kRight},
               {"1/sqrt(dk)", Align::kRight},
               {"patterns a query", Align::kRight},
               {"score elements", Align::kRight},
               {"score tensor", Align::kRight},
               {"parameters", Align::kRight},
               {"MACs dense", Align::kRight}});
  for (const HeadCountRow& row : comparison.rows) {
    table.Add({absl::StrCat(row.heads), absl::StrCat(row.dk), absl::StrCat(row.dv),
               absl::StrFormat("%.4f", row.scale), absl::StrCat(row.heads),
               Grouped(Find(row, "score_elements")->value),
               HumanBytes(Find(row, "score_tensor_bytes")->value),
               Grouped(Find(row, "parameters")->value), Grouped(Find(row, "macs_dense")->value)});
  }
  // Those that are sums of shown ones say nothing new.
  std::set<std::string> parts;
  for (const std::string& id : comparison.unchanged) {
    const bool total = id == "parameters" || id == "macs_dense" || id == "macs_causal" ||
                       id.find("bytes") != id.npos;
    if (!total) parts.insert(id);
  }
  std::string text =
      absl::StrCat("The same width cut into heads, each with keys and values of its own:\n",
                   table.Render(terminal));
  absl::StrAppend(&text, "Changes: the width and scale of a head, patterns a query, ",
                  Names(comparison.changes, {}), ".\nStays: ", Names(comparison.unchanged, parts),
                  ".\n");
  return text;
}

std::string OneHotText(const OneHotReadings& r) {
  const auto pair = [](const OneHotReadings::Pair& p) {
    return absl::StrFormat("(%g, %g)", p[0], p[1]);
  };
  return absl::StrCat(
      "Two one-hot readings: key 0 holds ", pair(r.values[0]), ", key 1 holds ", pair(r.values[1]),
      ".\n  Two heads, weights ", pair(r.weights[0]), " and ", pair(r.weights[1]),
      ", read feature 0 of key 0 beside feature 1 of key 1: ", pair(r.two_heads),
      ".\n  One head of both widths weighs both features alike. Its best weights are ",
      pair(r.best_weights), ", its reading ", pair(r.one_head),
      absl::StrFormat(": error %.4f, %.0f %% of the wanted reading.\n", r.error,
                      100.0 * r.relative_error),
      absl::StrFormat("  A W_O could mend that for these two values, not for all: over all values "
                      "the least error is %.1f %%, whatever the weights and W_O.\n",
                      100.0 * r.relative_error_any_wo));
}

std::string CountName(const std::string& id) {
  return absl::StrReplaceAll(id,
                             {{"_", " "}, {"macs", "MACs"}, {"flops", "FLOPs"}, {"kv", "k and v"}});
}

v1::Count ToWire(const Count& count) {
  v1::Count wire;
  wire.set_id(count.id);
  wire.set_value(count.value);
  wire.set_unit(count.unit);
  wire.set_convention(count.convention);
  return wire;
}

}  // namespace headwise::client
