// SPDX-License-Identifier: Apache-2.0
#include "client/svg.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/report.h"

namespace headwise::client {
namespace {

constexpr absl::string_view kStyle = R"(
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--soft:#888}
@media(prefers-color-scheme:dark){:root{--ink:#eee;--paper:#161616;--soft:#999}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:56rem;
margin:0 auto;padding:1rem}
figure{margin:1.5rem 0;overflow-x:auto}figcaption{color:var(--soft)}
svg{width:100%;min-width:22rem;height:auto}svg text{fill:var(--ink);font:12px system-ui,sans-serif}
.axis{stroke:var(--soft)}.grid{stroke:var(--soft);stroke-opacity:.3}
table{border-collapse:collapse}td,th{padding:.2rem .6rem;text-align:right}
)";

constexpr const char* kColours[] = {"#3b6fb6", "#c2402c", "#2c8a4b", "#b07d1a", "#7a52a8"};
constexpr int kWidth = 640, kLeft = 80, kRight = 20, kTop = 30, kBottom = 270, kHeight = 300;

}  // namespace

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(CleanText(text),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string SvgText(double x, double y, const char* anchor, absl::string_view text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>", x, y, anchor,
                         Escaped(text));
}

std::string SvgLine(const char* kind, double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>",
                         kind, x1, y1, x2, y2);
}

std::string HtmlPage(const std::string& title, const std::string& intro, const std::string& body) {
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>",
      Escaped(title), "</title><style>", kStyle, "</style></head><body>\n<h1>", Escaped(title),
      "</h1>\n<p>", Escaped(intro), "</p>\n", body, "</body></html>\n");
}

std::string HtmlFigure(const std::string& id, int width, int height, const std::string& svg,
                       const std::string& caption) {
  return absl::StrFormat(
      "<figure id=\"%s\"><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">%s</svg>"
      "<figcaption>%s</figcaption></figure>\n",
      id, width, height, Escaped(caption), svg, Escaped(caption));
}

std::string HtmlTable(const std::string& id, const std::vector<std::vector<std::string>>& rows,
                      const std::string& caption) {
  std::string html = absl::StrCat("<figure id=\"", id, "\"><table>");
  for (size_t i = 0; i < rows.size(); ++i) {
    const char* cell = i == 0 ? "th" : "td";
    html += "<tr>";
    for (const std::string& text : rows[i]) {
      absl::StrAppend(&html, "<", cell, ">", Escaped(text), "</", cell, ">");
    }
    html += "</tr>";
  }
  return absl::StrCat(html, "</table><figcaption>", Escaped(caption), "</figcaption></figure>\n");
}

std::string HtmlChart(const std::string& id, const Chart& chart, const std::string& caption) {
  double largest = 0;
  for (const Chart::Series& series : chart.series) {
    for (const auto& point : series.points) largest = std::max(largest, point.second);
  }
  if (largest <= 0) largest = 1;
  const double first = chart.x_ticks.front().at;
  const double span = std::max(1e-12, chart.x_ticks.back().at - first);
  const auto x_of = [&](double x) {
    return kLeft + (kWidth - kLeft - kRight) * std::clamp((x - first) / span, 0.0, 1.0);
  };
  const auto y_of = [&](double y) { return kBottom - (kBottom - kTop) * y / largest; };
  std::string svg = absl::StrCat(SvgLine("axis", kLeft, kBottom, kWidth - kRight, kBottom),
                                 SvgLine("axis", kLeft, kTop, kLeft, kBottom));
  for (int tick = 0; tick <= 4; ++tick) {
    const double value = largest * tick / 4;
    absl::StrAppend(&svg, SvgLine("grid", kLeft, y_of(value), kWidth - kRight, y_of(value)),
                    SvgText(kLeft - 6, y_of(value) + 4, "end", chart.y_text(value)));
  }
  for (const Chart::Tick& tick : chart.x_ticks) {
    absl::StrAppend(&svg, SvgText(x_of(tick.at), kBottom + 18, "middle", tick.text));
  }
  double legend = kLeft + 10;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    std::vector<std::string> points;
    for (const auto& [x, y] : chart.series[i].points) {
      points.push_back(absl::StrFormat("%.1f,%.1f", x_of(x), y_of(y)));
    }
    absl::StrAppendFormat(&svg,
                          "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"%s\"/>"
                          "<rect x=\"%.0f\" y=\"8\" width=\"12\" height=\"12\" fill=\"%s\"/>",
                          colour, absl::StrJoin(points, " "), legend, colour);
    absl::StrAppend(&svg, SvgText(legend + 18, 18, "start", chart.series[i].name));
    legend += 40 + 7.0 * static_cast<double>(chart.series[i].name.size());
  }
  return HtmlFigure(id, kWidth, kHeight, svg, caption);
}

}  // namespace headwise::client
