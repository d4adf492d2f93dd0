// SPDX-License-Identifier: Apache-2.0
// What the pages of --report are built from. Text is never scaled: widths are percentages of what
// the screen gives, heights and letters are pixels, and what can't be narrowed scrolls within its
// figure. All functions are pure and thread-safe.
#ifndef HEADWISE_CLIENT_HTML_PAGE_H_
#define HEADWISE_CLIENT_HTML_PAGE_H_

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "headwise/v1/ablation.pb.h"

namespace headwise::client {

// For text and attributes; control characters replaced.
std::string Escaped(absl::string_view text);

// A whole page: title, the scope sentence, then `body`.
std::string Page(const std::string& title, const std::string& scope, const std::string& body);

// A figure with its caption under it.
std::string Figure(absl::string_view id, const std::string& content, const std::string& caption);

// SVG's text and line; `x` is a coordinate as SVG takes it ("12", "40%"), `y` in pixels.
std::string SvgText(absl::string_view x, double y, absl::string_view anchor,
                    absl::string_view text);
std::string SvgLine(absl::string_view kind, absl::string_view x1, double y1, absl::string_view x2,
                    double y2);
// "37.5%" of a share in [0, 1].
std::string Percentage(double share);

// A plot: names in a column of `left_px`, beside them an area as wide as the screen allows.
std::string Plot(int left_px, int height_px, const std::string& names, const std::string& area);

// An axis from 0 to `top` with a tick every `step`, both round numbers.
struct Scale {
  double top = 1.0, step = 0.25;
  int ticks() const { return static_cast<int>(std::lround(top / step)); }  // beside that at 0
};
Scale ScaleFor(double largest);

// Ticks of a share, horizontally along `y` of an area, with the axis' title under them; 40 pixels
// high.
std::string ShareAxis(const Scale& scale, double y, absl::string_view title);

// A square matrix with the names of its rows and columns; values in [-1, 1], blue below nothing and
// red above, stronger with size. `what` names both axes.
std::string MatrixFigure(absl::string_view id, absl::string_view what,
                         const std::vector<uint32_t>& names,
                         const std::map<std::pair<uint32_t, uint32_t>, double>& values,
                         const std::string& caption);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_HTML_PAGE_H_
