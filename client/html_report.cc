// SPDX-License-Identifier: Apache-2.0
#include "client/html_report.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/html_page.h"
#include "client/report.h"

namespace headwise::client {
namespace {

constexpr int kNamesPixels = 92;

// What fits the column of names.
std::string ShortName(const std::string& name) {
  constexpr size_t kMost = 11;
  return name.size() <= kMost ? name : absl::StrCat(name.substr(0, kMost - 1), "…");
}

// What the intervals are: all of an answer are of one kind.
std::string IntervalWords(const v1::AblateResult& result) {
  for (const v1::AblationEffect& ablation : result.ablations()) {
    if (!ablation.intervals().has_relative_l2()) continue;
    const v1::Interval& interval = ablation.intervals().relative_l2();
    if (interval.method() == "RANGE") return "smallest and largest of the sequences";
    return absl::StrFormat("%g %% intervals (BCa over sequences, %d resamples)",
                           100 * interval.level(), interval.resamples());
  }
  return "";
}

// A page of hundreds of bars helps nobody: the largest ones stand for all.
std::vector<const v1::AblationEffect*> LargestEffects(const v1::AblateResult& result) {
  constexpr size_t kMostBars = 64;
  std::vector<const v1::AblationEffect*> shown;
  for (const v1::AblationEffect& a : result.ablations()) shown.push_back(&a);
  if (shown.size() <= kMostBars) return shown;
  std::stable_sort(shown.begin(), shown.end(), [](const auto* a, const auto* b) {
    return a->effect().relative_l2() > b->effect().relative_l2();
  });
  shown.resize(kMostBars);
  return shown;
}

std::string EffectBars(const v1::AblateResult& result) {
  const std::vector<const v1::AblationEffect*> shown = LargestEffects(result);
  double largest = 0;
  for (const v1::AblationEffect* a : shown) {
    largest = std::max({largest, a->effect().relative_l2(), a->intervals().relative_l2().high()});
  }
  const Scale scale = ScaleFor(largest);
  std::string names, area;
  double y = 8;
  for (const v1::AblationEffect* a : shown) {
    const std::string heads = CompactList({a->heads().begin(), a->heads().end()});
    absl::StrAppend(&names, "<g><title>heads ", heads, "</title>",
                    SvgText(absl::StrCat(kNamesPixels - 8), y + 10, "end", ShortName(heads)),
                    "</g>");
    if (a->effect().has_relative_l2()) {
      absl::StrAppendFormat(&area,
                            "<rect class=\"bar\" x=\"0\" y=\"%.1f\" width=\"%s\" height=\"12\">"
                            "<title>heads %s: %.2f %%</title></rect>",
                            y, Percentage(a->effect().relative_l2() / scale.top), heads,
                            100 * a->effect().relative_l2());
    }
    if (a->intervals().has_relative_l2()) {
      const v1::Interval& interval = a->intervals().relative_l2();
      const std::string low = Percentage(interval.low() / scale.top);
      const std::string high = Percentage(interval.high() / scale.top);
      absl::StrAppend(&area, SvgLine("whisker", low, y + 6, high, y + 6),
                      SvgLine("whisker", low, y + 2, low, y + 10),
                      SvgLine("whisker", high, y + 2, high, y + 10));
    }
    y += 18;
  }
  absl::StrAppend(&names, SvgText(absl::StrCat(kNamesPixels - 8), y + 17, "end", "heads"));
  absl::StrAppend(&area, ShareAxis(scale, y, "change of y, relative L2"));
  std::string caption = "Change of y, L2 relative to y, when the heads on the left are ablated";
  if (static_cast<int>(shown.size()) < result.ablations_size()) {
    absl::StrAppend(&caption, " (the largest ", shown.size(), " of ", result.ablations_size(), ")");
  }
  const std::string intervals = IntervalWords(result);
  if (!intervals.empty()) absl::StrAppend(&caption, "; whiskers: ", intervals);
  return Figure("effects", Plot(kNamesPixels, static_cast<int>(y) + 42, names, area),
                caption + ".");
}

std::string Interactions(const v1::AblateResult& result) {
  std::vector<uint32_t> names;
  std::map<std::pair<uint32_t, uint32_t>, double> values;
  for (int i = 0; i < result.interactions_size(); ++i) {
    const v1::Interaction& pair = result.interactions(i);
    // Both units by id; an answer without the echo names heads.
    auto ids = pair.heads();
    if (i < result.ablations_size() && result.ablations(i).interventions_size() > 0 &&
        !result.ablations(i).interventions(0).groups().empty()) {
      ids = result.ablations(i).interventions(0).groups();
    }
    if (ids.size() != 2 || !pair.has_interaction()) continue;
    values[std::minmax(ids[0], ids[1])] = pair.interaction();
    names.insert(names.end(), ids.begin(), ids.end());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.empty()) return "";
  return MatrixFigure(
      "interactions", result.target() == v1::GROUPS ? "group" : "head", names, values,
      "Interaction of two: the cosine, from -1 to 1, between what each takes away "
      "from y. Red: the same way, blue: against each other, pale: nothing in common.");
}

struct Curve {
  const char* name;
  const char* colour;  // a variable of the page's style
  const char* dashes;
  double (v1::PruneErrors::*value)() const;
};

constexpr int kCurveHeight = 240, kCurveTop = 10, kCurveLeft = 60;

std::string CurveLine(const v1::PrunePlan& plan, const Curve& curve, double top) {
  const double steps = std::max(1, plan.steps_size());
  std::vector<std::string> points = {"0,100"};
  for (int i = 0; i < plan.steps_size(); ++i) {
    points.push_back(
        absl::StrFormat("%.2f,%.2f", 100 * (i + 1) / steps,
                        100 - 100 * (plan.steps(i).relative_l2().*curve.value)() / top));
  }
  return absl::StrFormat(
      "<polyline fill=\"none\" style=\"stroke:var(%s)\" stroke-width=\"2\" stroke-dasharray=\"%s\" "
      "vector-effect=\"non-scaling-stroke\" points=\"%s\"/>",
      curve.colour, curve.dashes, absl::StrJoin(points, " "));
}

std::string Curves(const v1::PrunePlan& plan) {
  const Curve curves[] = {
      {"ungated", "--more", "", &v1::PruneErrors::ungated},
      {"gated", "--gold", "7 3", &v1::PruneErrors::gated},
      {"means folded", "--less", "2 3", &v1::PruneErrors::mean_folded},
      {"gated, means folded", "--leaf", "9 3 2 3", &v1::PruneErrors::gated_mean_folded}};
  double largest = 0;
  for (const v1::PruneStep& step : plan.steps()) {
    for (const Curve& curve : curves) {
      largest = std::max(largest, (step.relative_l2().*curve.value)());
    }
  }
  const Scale scale = ScaleFor(largest);
  std::string names, lines, keys = "<ul class=\"keys\">";
  const int ticks = scale.ticks();
  for (int tick = 0; tick <= ticks; ++tick) {
    const double y = kCurveTop + kCurveHeight * (1 - static_cast<double>(tick) / ticks);
    absl::StrAppend(&names, SvgText(absl::StrCat(kCurveLeft - 6), y + 4, "end",
                                    absl::StrFormat("%.3g %%", 100 * scale.step * tick)));
  }
  for (const Curve& curve : curves) {
    absl::StrAppend(&lines, CurveLine(plan, curve, scale.top));
    absl::StrAppendFormat(&keys,
                          "<li><svg width=\"30\" height=\"10\"><line x1=\"0\" y1=\"5\" x2=\"30\" "
                          "y2=\"5\" style=\"stroke:var(%s)\" stroke-width=\"2\" "
                          "stroke-dasharray=\"%s\"/></svg>%s</li>",
                          curve.colour, curve.dashes, curve.name);
  }
  std::string area = absl::StrFormat(
      "<svg y=\"%d\" width=\"100%%\" height=\"%d\" viewBox=\"0 0 100 100\" "
      "preserveAspectRatio=\"none\">%s</svg>",
      kCurveTop, kCurveHeight, lines);
  const double bottom = kCurveTop + kCurveHeight;
  absl::StrAppend(&area, SvgLine("axis", "0", bottom, "100%", bottom),
                  SvgLine("axis", "0", kCurveTop, "0", bottom));
  // At most eight numbers, so that they don't touch on a phone.
  const int every = (plan.steps_size() + 7) / 8;
  for (int i = 0; i < plan.steps_size(); ++i) {
    const bool last = i + 1 == plan.steps_size();
    if (!last && ((i + 1) % every != 0 || plan.steps_size() - i - 1 < every)) continue;
    absl::StrAppend(&area,
                    SvgText(Percentage((i + 1.0) / plan.steps_size()), bottom + 17,
                            last ? "end" : "middle", absl::StrCat(plan.steps(i).dropped_size())));
  }
  absl::StrAppend(&area, SvgText("50%", bottom + 34, "middle", "heads dropped"));
  const int height = static_cast<int>(bottom) + 42;
  return Figure("prune", absl::StrCat(Plot(kCurveLeft, height, names, area), keys, "</ul>"),
                absl::StrCat("Change of y, L2 relative to y, over how many heads are dropped, on "
                             "sequences that nothing was fitted to (",
                             plan.folds(), " folds by sequence)."));
}

std::string Cell(const v1::Stat& stat) {
  if (!stat.has_value()) return "<td>-</td>";
  std::string text = absl::StrFormat("%.3f", stat.value());
  if (stat.has_interval()) {
    absl::StrAppendFormat(&text, " [%.3f, %.3f]", stat.interval().low(), stat.interval().high());
  }
  return absl::StrCat("<td>", text, "</td>");
}

std::string HeadTable(const v1::AnalyzeHeadsResult& result) {
  const bool induction =
      std::any_of(result.heads().begin(), result.heads().end(),
                  [](const v1::HeadStatistics& h) { return h.induction_score().has_value(); });
  int directions = 0;
  for (const auto& head : result.heads()) directions = std::max(directions, head.directions_size());
  std::string html =
      "<div class=\"scroll\"><table><thead><tr><th>head</th><th>entropy (nats)</th>"
      "<th>share of ln(keys)</th><th>on itself</th><th>on the token before</th>"
      "<th>on the first</th><th>distance (tokens)</th><th>norm share</th>";
  if (induction) absl::StrAppend(&html, "<th>induction</th>");
  for (int d = 0; d < directions; ++d) absl::StrAppend(&html, "<th>direction ", d, "</th>");
  absl::StrAppend(&html, "</tr></thead><tbody>");
  for (const v1::HeadStatistics& head : result.heads()) {
    absl::StrAppend(&html, "<tr><td>", head.head(), "</td>", Cell(head.entropy_nats()),
                    Cell(head.entropy_share()), Cell(head.self_mass()),
                    Cell(head.previous_token_mass()), Cell(head.first_token_mass()),
                    Cell(head.mean_distance()), Cell(head.norm_share()));
    if (induction) absl::StrAppend(&html, Cell(head.induction_score()));
    for (const v1::Stat& direction : head.directions()) absl::StrAppend(&html, Cell(direction));
    absl::StrAppend(&html, "</tr>");
  }
  return Figure("heads", absl::StrCat(html, "</tbody></table></div>"),
                "What each head attends to, pooled over tokens, with intervals over sequences: "
                "entropy of its weights, their mass on tokens (0 to 1), their mean distance, and "
                "the head's share of the norms of all contributions.");
}

std::string TensorTable(const v1::ForwardResponse& response) {
  std::string html =
      "<div class=\"scroll\"><table><thead><tr><th>tensor</th><th>dtype</th><th>shape</th>"
      "<th>axes</th></tr></thead><tbody>";
  for (const v1::NamedTensor& tensor : response.tensors()) {
    absl::StrAppend(&html, "<tr><td>", Escaped(tensor.name()), "</td><td>",
                    v1::DType_Name(tensor.dtype()), "</td><td>[",
                    absl::StrJoin(tensor.shape(), ", "), "]</td><td>",
                    Escaped(absl::StrJoin(tensor.axes(), ", ")), "</td></tr>");
  }
  return Figure("tensors", absl::StrCat(html, "</tbody></table></div>"), "What was returned.");
}

std::string Similarity(const v1::AnalyzeHeadsResult& result) {
  std::vector<uint32_t> ids;
  for (const v1::HeadStatistics& head : result.heads()) ids.push_back(head.head());
  std::map<std::pair<uint32_t, uint32_t>, double> values;
  for (const v1::HeadPair& pair : result.pairs()) {
    if (pair.heads_size() != 2 || !pair.cka().has_value()) continue;
    values[std::minmax(pair.heads(0), pair.heads(1))] = pair.cka().value();
  }
  std::vector<double> similarity(ids.size() * ids.size(), 0.0);
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t j = 0; j < ids.size(); ++j) {
      const auto found = values.find(std::minmax(ids[i], ids[j]));
      if (found != values.end()) similarity[i * ids.size() + j] = found->second;
    }
  }
  std::vector<uint32_t> ordered;
  for (const size_t i : DendrogramOrder(similarity, ids.size())) ordered.push_back(ids[i]);
  if (values.empty()) return "";
  return MatrixFigure(
      "similarity", "head", ordered, values,
      "Debiased linear CKA of heads' contributions, heads in dendrogram order (like ones "
      "side by side). Evidence of redundancy on these tokens, not proof.");
}

}  // namespace

std::vector<size_t> DendrogramOrder(const std::vector<double>& similarity, size_t n) {
  std::vector<std::vector<size_t>> clusters;
  for (size_t i = 0; i < n; ++i) clusters.push_back({i});
  const auto linkage = [&](const std::vector<size_t>& a, const std::vector<size_t>& b) {
    double sum = 0;
    for (const size_t i : a) {
      for (const size_t j : b) sum += similarity[i * n + j];
    }
    return sum / static_cast<double>(a.size() * b.size());
  };
  while (clusters.size() > 1) {
    size_t best_a = 0, best_b = 1;
    double most = -std::numeric_limits<double>::infinity();
    for (size_t a = 0; a < clusters.size(); ++a) {
      for (size_t b = a + 1; b < clusters.size(); ++b) {
        const double value = linkage(clusters[a], clusters[b]);
        if (value <= most) continue;
        most = value;
        best_a = a;
        best_b = b;
      }
    }
    std::vector<size_t>& kept = clusters[best_a];
    kept.insert(kept.end(), clusters[best_b].begin(), clusters[best_b].end());
    clusters.erase(clusters.begin() + static_cast<int64_t>(best_b));
  }
  return clusters.empty() ? std::vector<size_t>() : clusters.front();
}

absl::Status WritePage(const std::string& file, const std::string& page) {
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << page << std::flush;
  if (stream.good()) return absl::OkStatus();
  return absl::ErrnoToStatus(
      errno, absl::StrCat("report: must be a file that can be written; was ", file));
}

std::string AblationPage(const v1::AblateResult& result) {
  std::string body = EffectBars(result);
  absl::StrAppend(&body, Interactions(result));
  if (result.prune_plan().steps_size() > 0) absl::StrAppend(&body, Curves(result.prune_plan()));
  return Page(absl::StrCat("Ablation of ", result.layer()), result.scope().text(), body);
}

std::string AnalysisPage(const v1::AnalyzeHeadsResult& result, const WeightMaps& weights) {
  return Page(absl::StrCat("Heads of ", result.layer()), result.scope().text(),
              absl::StrCat(HeadTable(result), Similarity(result), WeightsFigure(weights)));
}

std::string ForwardPage(const v1::ForwardResponse& response, const WeightMaps& weights) {
  int64_t tokens = 0;
  for (const uint32_t length : response.lengths()) tokens += length;
  return Page(
      absl::StrCat("Forward of ", response.layer()),
      absl::StrCat(response.lengths_size(), " sequences, ", tokens,
                   " tokens; nothing was changed; weights p of this layer on these tokens."),
      absl::StrCat(WeightsFigure(weights), TensorTable(response)));
}

}  // namespace headwise::client
