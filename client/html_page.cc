// SPDX-License-Identifier: Apache-2.0
#include "client/html_page.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/report.h"

namespace headwise::client {
namespace {

constexpr absl::string_view kStyle = R"(
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--soft:#5f5f5f;--line:#9a9a9a;--bar:#3b6fb6;
--less:#2b62b0;--more:#c2402c;--gold:#946200;--leaf:#1f7a3d}
@media(prefers-color-scheme:dark){:root{--ink:#eee;--paper:#161616;--soft:#aaa;--line:#777;
--bar:#7aa7e8;--less:#6ea2f5;--more:#f07a63;--gold:#e0b44c;--leaf:#62c584}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:56rem;
margin:0 auto;padding:1rem;overflow-wrap:break-word}
h1{font-size:1.4rem;line-height:1.3}
figure{margin:2rem 0}figcaption{color:var(--soft);margin-top:.5rem}
.scroll{overflow-x:auto}.plot{display:flex}.plot .area{flex:1;min-width:0}
svg{display:block}svg text{fill:var(--ink);font:12px system-ui,sans-serif}
.axis{stroke:var(--line)}.bar{fill:var(--bar)}.whisker{stroke:var(--ink);stroke-width:1.5}
.less{fill:var(--less)}.more{fill:var(--more)}
table{border-collapse:collapse;font-size:14px}td,th{padding:.2rem .6rem;text-align:right;
white-space:nowrap}th{border-bottom:1px solid var(--line)}
.keys{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:14px;list-style:none;padding:0;margin:0}
.keys li{display:flex;align-items:center;gap:.4rem}
.maps{display:grid;grid-template-columns:repeat(auto-fill,minmax(152px,1fr));gap:.8rem}
)";

// A cell is as large as fits a phone, but never too small for its name.
double CellPixels(size_t count) {
  return std::clamp(290.0 / static_cast<double>(std::max<size_t>(1, count)), 18.0, 34.0);
}

}  // namespace

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(CleanText(text),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Page(const std::string& title, const std::string& scope, const std::string& body) {
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>",
      Escaped(title), "</title><style>", kStyle, "</style></head><body>\n<h1>", Escaped(title),
      "</h1>\n<p id=\"scope\">", Escaped(scope), "</p>\n", body, "</body></html>\n");
}

std::string Figure(absl::string_view id, const std::string& content, const std::string& caption) {
  return absl::StrCat("<figure id=\"", id, "\">", content, "<figcaption>", Escaped(caption),
                      "</figcaption></figure>\n");
}

std::string SvgText(absl::string_view x, double y, absl::string_view anchor,
                    absl::string_view text) {
  return absl::StrFormat("<text x=\"%s\" y=\"%.1f\" text-anchor=\"%s\">%s</text>", x, y, anchor,
                         Escaped(text));
}

std::string SvgLine(absl::string_view kind, absl::string_view x1, double y1, absl::string_view x2,
                    double y2) {
  return absl::StrFormat("<line class=\"%s\" x1=\"%s\" y1=\"%.1f\" x2=\"%s\" y2=\"%.1f\"/>", kind,
                         x1, y1, x2, y2);
}

std::string Percentage(double share) { return absl::StrFormat("%.2f%%", 100 * share); }

std::string Plot(int left_px, int height_px, const std::string& names, const std::string& area) {
  return absl::StrFormat(
      "<div class=\"plot\"><svg width=\"%d\" height=\"%d\">%s</svg>"
      "<svg class=\"area\" width=\"100%%\" height=\"%d\">%s</svg></div>",
      left_px, height_px, names, height_px, area);
}

Scale ScaleFor(double largest) {
  constexpr double kTicks = 4;
  if (!(largest > 0.0) || !std::isfinite(largest)) return {};
  const double wanted = largest / kTicks;
  const double power = std::pow(10.0, std::floor(std::log10(wanted)));
  double step = 10 * power;
  for (const double digit : {5.0, 2.5, 2.0, 1.0}) {
    if (digit * power >= wanted * (1 - 1e-9)) step = digit * power;
  }
  return {.top = step * std::ceil(largest / step * (1 - 1e-9)), .step = step};
}

std::string ShareAxis(const Scale& scale, double y, absl::string_view title) {
  std::string svg = SvgLine("axis", "0", y, "100%", y);
  const int ticks = scale.ticks();
  for (int tick = 0; tick <= ticks; ++tick) {
    const std::string x = Percentage(static_cast<double>(tick) / ticks);
    // The outer ones lean inwards, where there is room.
    const char* anchor = tick == 0 ? "start" : (tick == ticks ? "end" : "middle");
    absl::StrAppend(
        &svg, SvgLine("axis", x, y, x, y + 4),
        SvgText(x, y + 17, anchor, absl::StrFormat("%.3g %%", 100.0 * scale.step * tick)));
  }
  return absl::StrCat(svg, SvgText("50%", y + 34, "middle", title));
}

std::string MatrixFigure(absl::string_view id, absl::string_view what,
                         const std::vector<uint32_t>& names,
                         const std::map<std::pair<uint32_t, uint32_t>, double>& values,
                         const std::string& caption) {
  const double cell = CellPixels(names.size());
  constexpr double kLeft = 36, kTop = 40;
  const double size = cell * static_cast<double>(names.size());
  std::string svg = SvgText("0", 12, "start", absl::StrCat(what, " (both axes)"));
  for (size_t i = 0; i < names.size(); ++i) {
    const double middle = cell * (static_cast<double>(i) + 0.5);
    absl::StrAppend(
        &svg, SvgText(absl::StrCat(kLeft - 6), kTop + middle + 4, "end", absl::StrCat(names[i])),
        SvgText(absl::StrFormat("%.1f", kLeft + middle), kTop - 8, "middle",
                absl::StrCat(names[i])));
    for (size_t j = 0; j < names.size(); ++j) {
      const auto found = values.find(std::minmax(names[i], names[j]));
      if (i == j || found == values.end()) continue;
      absl::StrAppendFormat(
          &svg,
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\" "
          "fill-opacity=\"%.2f\"><title>%d, %d: %.3f</title></rect>",
          kLeft + cell * static_cast<double>(j), kTop + cell * static_cast<double>(i), cell, cell,
          found->second < 0 ? "less" : "more", std::min(1.0, std::fabs(found->second)), names[i],
          names[j], found->second);
    }
  }
  absl::StrAppendFormat(
      &svg,
      "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" class=\"axis\"/>",
      kLeft, kTop, size, size);
  std::string key = "<ul class=\"keys\">";
  for (const double value : {-1.0, -0.5, 0.5, 1.0}) {
    absl::StrAppendFormat(&key,
                          "<li><svg width=\"14\" height=\"14\"><rect width=\"14\" height=\"14\" "
                          "class=\"%s\" fill-opacity=\"%.2f\"/></svg>%+.1f</li>",
                          value < 0 ? "less" : "more", std::fabs(value), value);
  }
  return Figure(id,
                absl::StrFormat("<div class=\"scroll\"><svg width=\"%.0f\" height=\"%.0f\" "
                                "role=\"img\" aria-label=\"%s\">%s</svg></div>%s</ul>",
                                std::max(kLeft + size + 2, 200.0), kTop + size + 8,
                                Escaped(caption), svg, key),
                caption);
}

}  // namespace headwise::client
