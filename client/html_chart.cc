// SPDX-License-Identifier: Apache-2.0
#include "client/html_chart.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/html_page.h"

namespace headwise::client {
namespace {

// The page's own variables, so that both light and dark have theirs.
constexpr const char* kColours[] = {"var(--bar)", "var(--more)", "var(--leaf)", "var(--gold)"};

constexpr double kEdge = 0.07;  // of the width: half of the longest text on a phone
constexpr int kLeft = 76, kTop = 10, kBottom = 230, kHeight = 256;

}  // namespace

const char* SeriesColour(size_t i) { return kColours[i % std::size(kColours)]; }

std::string HtmlTable(const std::string& id, const std::vector<std::vector<std::string>>& rows,
                      const std::string& caption) {
  std::string html = "<div class=\"scroll\"><table>";
  for (size_t i = 0; i < rows.size(); ++i) {
    const char* cell = i == 0 ? "th" : "td";
    html += "<tr>";
    for (const std::string& text : rows[i]) {
      absl::StrAppend(&html, "<", cell, ">", Escaped(text), "</", cell, ">");
    }
    html += "</tr>";
  }
  return Figure(id, absl::StrCat(html, "</table></div>"), caption);
}

std::string ColourKeys(const std::vector<std::string>& names) {
  std::string html = "<ul class=\"keys\">";
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppend(&html,
                    "<li><svg width=\"14\" height=\"14\"><rect width=\"14\" height=\"14\" "
                    "style=\"fill:",
                    SeriesColour(i), "\"/></svg>", Escaped(names[i]), "</li>");
  }
  return absl::StrCat(html, "</ul>");
}

std::string HtmlChart(const std::string& id, const Chart& chart, const std::string& caption) {
  double largest = 0;
  for (const Chart::Series& series : chart.series) {
    for (const auto& point : series.points) largest = std::max(largest, point.second);
  }
  const Scale scale = ScaleFor(largest);
  const double first = chart.x_ticks.front().at;
  const double span = std::max(1e-12, chart.x_ticks.back().at - first);
  const auto share_of = [&](double x) { return std::clamp((x - first) / span, 0.0, 1.0); };
  const auto y_of = [&](double y) { return kBottom - (kBottom - kTop) * y / scale.top; };

  std::string names, area;
  for (int tick = 0; tick <= scale.ticks(); ++tick) {
    const double value = scale.step * tick;
    absl::StrAppend(&names,
                    SvgText(absl::StrCat(kLeft - 6), y_of(value) + 4, "end", chart.y_text(value)));
    absl::StrAppend(&area, SvgLine("axis", "0", y_of(value), "100%", y_of(value)));
  }
  for (const Chart::Tick& tick : chart.x_ticks) {
    // The outer ones lean inwards, where there is room.
    const double share = share_of(tick.at);
    const char* anchor = share < kEdge ? "start" : share > 1 - kEdge ? "end" : "middle";
    absl::StrAppend(&area, SvgText(Percentage(share), kBottom + 18, anchor, tick.text));
  }
  // Points are numbers, not percentages: their picture is stretched to the area's width, the pen
  // isn't.
  absl::StrAppendFormat(&area,
                        "<svg width=\"100%%\" height=\"%d\" viewBox=\"0 0 1000 %d\" "
                        "preserveAspectRatio=\"none\">",
                        kHeight, kHeight);
  std::vector<std::string> keys;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    keys.push_back(chart.series[i].name);
    std::vector<std::string> points;
    for (const auto& [x, y] : chart.series[i].points) {
      points.push_back(absl::StrFormat("%.1f,%.1f", 1000 * share_of(x), y_of(y)));
    }
    absl::StrAppendFormat(&area,
                          "<polyline style=\"fill:none;stroke:%s;stroke-width:2\" "
                          "vector-effect=\"non-scaling-stroke\" points=\"%s\"/>",
                          SeriesColour(i), absl::StrJoin(points, " "));
  }
  area += "</svg>";
  return Figure(id, absl::StrCat(Plot(kLeft, kHeight, names, area), ColourKeys(keys)), caption);
}

}  // namespace headwise::client
