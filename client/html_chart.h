// SPDX-License-Identifier: Apache-2.0
// Line charts and tables of pages, from the pieces of client/html_page.h. All functions are pure
// and thread-safe.
#ifndef HEADWISE_CLIENT_HTML_CHART_H_
#define HEADWISE_CLIENT_HTML_CHART_H_

#include <string>
#include <utility>
#include <vector>

namespace headwise::client {

// Rows of cells; the first row is the header.
std::string HtmlTable(const std::string& id, const std::vector<std::vector<std::string>>& rows,
                      const std::string& caption);

// A coloured square and a name each, in the colours of a chart's series in order.
std::string ColourKeys(const std::vector<std::string>& names);
// The colour of the i-th one, as CSS takes it.
const char* SeriesColour(size_t i);

// Points (x, y), y from 0 up.
struct Chart {
  struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points;
  };
  struct Tick {
    double at = 0;
    std::string text;
  };
  std::vector<Series> series;
  std::vector<Tick> x_ticks;  // in order; the axis reaches from the first to the last
  std::string (*y_text)(double value) = nullptr;
};
std::string HtmlChart(const std::string& id, const Chart& chart, const std::string& caption);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_HTML_CHART_H_
