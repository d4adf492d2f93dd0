// SPDX-License-Identifier: Apache-2.0
// Pieces of self-contained pages: inline SVG, no script, nothing from the network, light and dark.
// All functions are pure and thread-safe.
#ifndef HEADWISE_CLIENT_SVG_H_
#define HEADWISE_CLIENT_SVG_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace headwise::client {

// Fit for text and attributes of HTML and SVG; control characters are replaced.
std::string Escaped(absl::string_view text);

std::string SvgText(double x, double y, const char* anchor, absl::string_view text);
std::string SvgLine(const char* kind, double x1, double y1, double x2, double y2);

// A whole page; `intro` is text, `body` is HTML.
std::string HtmlPage(const std::string& title, const std::string& intro, const std::string& body);

std::string HtmlFigure(const std::string& id, int width, int height, const std::string& svg,
                       const std::string& caption);

// Rows of cells; the first row is the header.
std::string HtmlTable(const std::string& id, const std::vector<std::vector<std::string>>& rows,
                      const std::string& caption);

// A line chart of points (x, y), y from 0 up.
struct Chart {
  struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points;
  };
  struct Tick {
    double at;
    std::string text;
  };
  std::vector<Series> series;
  std::vector<Tick> x_ticks;  // in order; the axis reaches from the first to the last
  std::string (*y_text)(double value) = nullptr;
};
std::string HtmlChart(const std::string& id, const Chart& chart, const std::string& caption);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_SVG_H_
