// SPDX-License-Identifier: Apache-2.0
#include "client/report.h"

#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace headwise::client {
namespace {

constexpr absl::string_view kBold = "\033[1m";
constexpr absl::string_view kPlain = "\033[0m";

}  // namespace

Terminal DescribeTerminal(int fd) {
  Terminal terminal;
  std::setlocale(LC_CTYPE, "");
  terminal.utf8 = absl::string_view(nl_langinfo(CODESET)) == "UTF-8";
  const char* no_colour = std::getenv("NO_COLOR");
  terminal.colour = isatty(fd) == 1 && (no_colour == nullptr || *no_colour == '\0');
  return terminal;
}

void Table::Add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = CleanText(cell);
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render(const Terminal& terminal) const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  const auto line = [&](const std::function<const std::string&(size_t)>& cell) {
    std::string text;
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string pad(widths[c] - std::min(widths[c], cell(c).size()), ' ');
      const bool right = columns_[c].align == Align::kRight;
      absl::StrAppend(&text, c == 0 ? "" : "  ", right ? pad : "", cell(c), right ? "" : pad);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  };
  const std::string header =
      line([&](size_t c) -> const std::string& { return columns_[c].title; });
  std::string text =
      terminal.colour ? absl::StrCat(kBold, header, kPlain, "\n") : absl::StrCat(header, "\n");
  for (const auto& row : rows_) {
    absl::StrAppend(&text, line([&](size_t c) -> const std::string& { return row[c]; }), "\n");
  }
  return text;
}

std::string Bar(double value, double max, int width, const Terminal& terminal) {
  if (!(value > 0) || !(max > 0) || !std::isfinite(value) || !std::isfinite(max)) return "";
  const int places = std::clamp(static_cast<int>(std::lround(value / max * width)), 1, width);
  std::string bar;
  for (int i = 0; i < places; ++i) bar += terminal.utf8 ? "▇" : "#";
  return bar;
}

std::string HumanBytes(int64_t bytes) {
  constexpr absl::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (value /= 1024; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return absl::StrFormat("%.2f %s", value, kUnits[unit]);
}

std::string HumanMicros(double micros) {
  if (micros < 1000) return absl::StrFormat("%.0f us", micros);
  const bool millis = micros < 1e6;
  const double value = millis ? micros / 1e3 : micros / 1e6;
  const int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return absl::StrFormat("%.*f %s", decimals, value, millis ? "ms" : "s");
}

std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

std::string CompactList(const std::vector<uint32_t>& numbers) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (end - i >= 3) {
      parts.push_back(absl::StrCat(numbers[i], "-", numbers[end - 1]));
    } else {
      for (size_t j = i; j < end; ++j) parts.push_back(absl::StrCat(numbers[j]));
    }
    i = end;
  }
  return absl::StrJoin(parts, ",");
}

std::string CleanText(absl::string_view text) {
  std::string clean(text);
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return clean;
}

}  // namespace headwise::client
