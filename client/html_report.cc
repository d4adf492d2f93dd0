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
#include "absl/strings/str_replace.h"
#include "client/report.h"

namespace headwise::client {
namespace {

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(CleanText(text),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

constexpr absl::string_view kStyle = R"(
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--soft:#888;--bar:#3b6fb6}
@media(prefers-color-scheme:dark){:root{--ink:#eee;--paper:#161616;--soft:#999;--bar:#7aa7e8}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:56rem;
margin:0 auto;padding:1rem}
figure{margin:1.5rem 0;overflow-x:auto}figcaption{color:var(--soft)}
svg{width:100%;min-width:22rem;height:auto}svg text{fill:var(--ink);font:12px system-ui,sans-serif}
.axis{stroke:var(--soft)}.bar{fill:var(--bar)}.whisker{stroke:var(--ink);stroke-width:1.5}
table{border-collapse:collapse}td,th{padding:.2rem .6rem;text-align:right}
)";

std::string Page(const std::string& title, const v1::Scope& scope, const std::string& body) {
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>",
      Escaped(title), "</title><style>", kStyle, "</style></head><body>\n<h1>", Escaped(title),
      "</h1>\n<p>", Escaped(scope.text()), "</p>\n", body, "</body></html>\n");
}

std::string Figure(const std::string& id, int width, int height, const std::string& svg,
                   const std::string& caption) {
  return absl::StrFormat(
      "<figure id=\"%s\"><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">%s</svg>"
      "<figcaption>%s</figcaption></figure>\n",
      id, width, height, Escaped(caption), svg, Escaped(caption));
}

std::string Text(double x, double y, const char* anchor, absl::string_view text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>", x, y, anchor,
                         Escaped(text));
}

std::string Line(const char* kind, double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>",
                         kind, x1, y1, x2, y2);
}

constexpr int kWidth = 640, kLeft = 110, kRight = 60;

// Ticks of a horizontal axis from 0 to `largest`, in percent.
std::string PercentAxis(double largest, double y) {
  std::string svg = Line("axis", kLeft, y, kWidth - kRight, y);
  for (int tick = 0; tick <= 4; ++tick) {
    const double x = kLeft + (kWidth - kLeft - kRight) * tick / 4.0;
    absl::StrAppend(&svg, Line("axis", x, y, x, y + 4),
                    Text(x, y + 17, "middle", absl::StrFormat("%.3g %%", 25.0 * largest * tick)));
  }
  return svg;
}

std::string Bars(const v1::AblateResult& result) {
  double largest = 0;
  for (const v1::AblationEffect& a : result.ablations()) {
    largest = std::max({largest, a.effect().relative_l2(), a.intervals().relative_l2().high()});
  }
  if (largest <= 0) largest = 1;
  // A page of hundreds of bars helps nobody: the largest ones stand for all.
  constexpr size_t kMostBars = 64;
  std::vector<const v1::AblationEffect*> shown;
  for (const v1::AblationEffect& a : result.ablations()) shown.push_back(&a);
  const bool cut = shown.size() > kMostBars;
  if (cut) {
    std::stable_sort(shown.begin(), shown.end(), [](const auto* a, const auto* b) {
      return a->effect().relative_l2() > b->effect().relative_l2();
    });
    shown.resize(kMostBars);
  }
  std::string svg;
  double y = 10;
  const double scale = (kWidth - kLeft - kRight) / largest;
  for (const v1::AblationEffect* a : shown) {
    absl::StrAppend(
        &svg, Text(kLeft - 6, y + 11, "end", CompactList({a->heads().begin(), a->heads().end()})));
    if (a->effect().has_relative_l2()) {
      absl::StrAppendFormat(
          &svg, "<rect class=\"bar\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"12\"/>", kLeft, y,
          scale * a->effect().relative_l2());
    }
    if (a->intervals().has_relative_l2()) {
      const v1::Interval& interval = a->intervals().relative_l2();
      absl::StrAppend(&svg, Line("whisker", kLeft + scale * interval.low(), y + 6,
                                 kLeft + scale * interval.high(), y + 6));
    }
    y += 18;
  }
  absl::StrAppend(&svg, PercentAxis(largest, y));
  return Figure(
      "effects", kWidth, static_cast<int>(y) + 26, svg,
      absl::StrCat("Change of y, L2 relative to y, when the heads on the left are ablated",
                   cut ? " (the largest 64)" : "", "; lines: intervals"));
}

// Blue for less than nothing, red for more, stronger with size; `value` in [-1, 1].
std::string Colour(double value) {
  const double strength = std::min(1.0, std::fabs(value));
  return absl::StrFormat("fill=\"%s\" fill-opacity=\"%.2f\"", value < 0 ? "#2b62b0" : "#c2402c",
                         strength);
}

std::string Matrix(const std::string& id, const std::vector<uint32_t>& names,
                   const std::map<std::pair<uint32_t, uint32_t>, double>& values,
                   const std::string& caption) {
  const double cell = 560.0 / static_cast<double>(std::max<size_t>(1, names.size()));
  std::string svg;
  for (size_t i = 0; i < names.size(); ++i) {
    const double middle = 50 + cell * (static_cast<double>(i) + 0.5);
    absl::StrAppend(&svg, Text(44, middle + 4, "end", absl::StrCat(names[i])),
                    Text(middle, 40, "middle", absl::StrCat(names[i])));
    for (size_t j = 0; j < names.size(); ++j) {
      const auto found = values.find(std::minmax(names[i], names[j]));
      if (i == j || found == values.end()) continue;
      absl::StrAppendFormat(
          &svg,
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" %s><title>%d, %d: "
          "%.3f</title></rect>",
          50 + cell * static_cast<double>(j), 50 + cell * static_cast<double>(i), cell, cell,
          Colour(found->second), names[i], names[j], found->second);
    }
  }
  return Figure(id, kWidth, 620, svg, caption);
}

std::string Interactions(const v1::AblateResult& result) {
  std::vector<uint32_t> names;
  std::map<std::pair<uint32_t, uint32_t>, double> values;
  for (const v1::Interaction& pair : result.interactions()) {
    if (pair.heads_size() != 2 || !pair.has_interaction()) continue;
    values[std::minmax(pair.heads(0), pair.heads(1))] = pair.interaction();
    names.insert(names.end(), pair.heads().begin(), pair.heads().end());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.empty()) return "";
  return Matrix(
      "interactions", names, values,
      "Interaction of two heads: cosine between what each takes away from y (red: the same "
      "way, blue: against each other)");
}

std::string Curves(const v1::PrunePlan& plan) {
  struct Curve {
    const char* name;
    const char* colour;
    double (v1::PruneErrors::*value)() const;
  };
  const Curve curves[] = {{"ungated", "#c2402c", &v1::PruneErrors::ungated},
                          {"gated", "#b07d1a", &v1::PruneErrors::gated},
                          {"means folded", "#2b62b0", &v1::PruneErrors::mean_folded},
                          {"both", "#2c8a4b", &v1::PruneErrors::gated_mean_folded}};
  double largest = 1e-9;
  for (const v1::PruneStep& step : plan.steps()) {
    for (const Curve& curve : curves) {
      largest = std::max(largest, (step.relative_l2().*curve.value)());
    }
  }
  const double right = kWidth - kRight,
               step_width = (right - kLeft) / std::max(1, plan.steps_size());
  std::string svg =
      absl::StrCat(Line("axis", kLeft, 300, right, 300), Line("axis", kLeft, 20, kLeft, 300));
  for (int tick = 0; tick <= 4; ++tick) {
    absl::StrAppend(&svg, Text(kLeft - 6, 304 - 70 * tick, "end",
                               absl::StrFormat("%.3g %%", 25 * largest * tick)));
  }
  for (int i = 0; i < plan.steps_size(); ++i) {
    absl::StrAppend(&svg, Text(kLeft + step_width * (i + 1), 318, "middle",
                               absl::StrCat(plan.steps(i).dropped_size())));
  }
  int label = 0;
  for (const Curve& curve : curves) {
    std::vector<std::string> points = {absl::StrFormat("%d,300", kLeft)};
    for (int i = 0; i < plan.steps_size(); ++i) {
      points.push_back(
          absl::StrFormat("%.1f,%.1f", kLeft + step_width * (i + 1),
                          300 - 280 * (plan.steps(i).relative_l2().*curve.value)() / largest));
    }
    absl::StrAppendFormat(
        &svg, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"%s\"/>",
        curve.colour, absl::StrJoin(points, " "));
    absl::StrAppendFormat(&svg, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>",
                          kLeft + 16, 20 + 18 * label, curve.colour);
    absl::StrAppend(&svg, Text(kLeft + 34, 31 + 18 * label++, "start", curve.name));
  }
  return Figure("prune", kWidth, 330, svg,
                "Change of y, L2 relative to y, over how many heads are dropped; on sequences that "
                "nothing was fitted to");
}

std::string Cell(const v1::Stat& stat) {
  return stat.has_value() ? absl::StrFormat("<td>%.3f</td>", stat.value()) : "<td>-</td>";
}

std::string HeadTable(const v1::AnalyzeHeadsResult& result) {
  std::string html =
      "<figure id=\"heads\"><table><thead><tr><th>head</th><th>entropy (nats)</th><th>share</th>"
      "<th>self</th><th>previous</th><th>first</th><th>distance</th><th>norm share</th></tr>"
      "</thead><tbody>";
  for (const v1::HeadStatistics& head : result.heads()) {
    absl::StrAppend(&html, "<tr><td>", head.head(), "</td>", Cell(head.entropy_nats()),
                    Cell(head.entropy_share()), Cell(head.self_mass()),
                    Cell(head.previous_token_mass()), Cell(head.first_token_mass()),
                    Cell(head.mean_distance()), Cell(head.norm_share()), "</tr>");
  }
  return absl::StrCat(html,
                      "</tbody></table><figcaption>Weights of each head: entropy in nats and as "
                      "a share of the largest, mass on tokens, distance in tokens"
                      "</figcaption></figure>\n");
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
  return Matrix("similarity", ordered, values,
                "Debiased linear CKA of heads' contributions, like heads side by side");
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
  std::string body = Bars(result);
  absl::StrAppend(&body, Interactions(result));
  if (result.has_prune_plan()) absl::StrAppend(&body, Curves(result.prune_plan()));
  return Page(absl::StrCat("Ablation of ", result.layer()), result.scope(), body);
}

std::string AnalysisPage(const v1::AnalyzeHeadsResult& result) {
  return Page(absl::StrCat("Heads of ", result.layer()), result.scope(),
              absl::StrCat(HeadTable(result), Similarity(result)));
}

}  // namespace headwise::client
