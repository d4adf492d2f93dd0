// SPDX-License-Identifier: Apache-2.0
#include "client/learn/blocks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/learn/trace.h"

namespace headwise::client {
namespace {

constexpr size_t kLineWidth = 110;
constexpr size_t kGap = 3;
constexpr int kMostDecimals = 4;

size_t WidthOf(const Block& block) {
  const size_t lines = block.lines.empty() ? 0 : block.lines[0].size();
  return std::max(block.title.size(), lines);
}

bool Plain(double number) { return std::fabs(number) < 1e5; }

// Decimals that the number needs, of four at most; none for what isn't written plainly.
int DecimalsOf(double number) {
  if (!Plain(number)) return 0;
  std::string text = absl::StrFormat("%.*f", kMostDecimals, number);
  text.erase(text.find_last_not_of('0') + 1);
  return static_cast<int>(text.size() - text.find('.') - 1);
}

// All numbers of a block have the same decimals, so that their points stand below each other.
std::string Aligned(double number, int decimals) {
  if (std::isnan(number)) return ".";
  if (!Plain(number)) return ShortNumber(number);
  std::string text = absl::StrFormat("%.*f", decimals, number);
  const bool zero = text.find_first_not_of("-0.") == text.npos;
  return zero && text[0] == '-' ? text.substr(1) : text;
}

std::string Padded(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

std::string Band(const std::vector<Block>& blocks, size_t begin, size_t end) {
  size_t height = 0;
  for (size_t i = begin; i < end; ++i) height = std::max(height, blocks[i].lines.size());
  std::string text;
  for (size_t line = 0; line <= height; ++line) {
    std::string row = "  ";
    for (size_t i = begin; i < end; ++i) {
      const Block& block = blocks[i];
      const bool shown = line == 0 || line <= block.lines.size();
      const std::string cell = line == 0 ? block.title : shown ? block.lines[line - 1] : "";
      absl::StrAppend(&row, Padded(cell, WidthOf(block) + kGap));
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(row), "\n");
  }
  return text;
}

}  // namespace

Block MatrixBlock(std::string title, int64_t rows, int64_t columns,
                  const std::function<double(int64_t row, int64_t column)>& value) {
  std::vector<std::vector<std::string>> cells(static_cast<size_t>(rows));
  std::vector<size_t> widths(static_cast<size_t>(columns), 1);
  int decimals = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      decimals = std::max(decimals, DecimalsOf(value(row, column)));
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      std::string cell = Aligned(value(row, column), decimals);
      size_t& width = widths[static_cast<size_t>(column)];
      width = std::max(width, cell.size());
      cells[static_cast<size_t>(row)].push_back(std::move(cell));
    }
  }
  Block block{std::move(title), {}};
  for (const std::vector<std::string>& row : cells) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      absl::StrAppend(&line, column == 0 ? "" : "  ",
                      std::string(widths[column] - row[column].size(), ' '), row[column]);
    }
    block.lines.push_back(std::move(line));
  }
  return block;
}

std::string Beside(const std::vector<Block>& blocks) {
  std::string text;
  for (size_t begin = 0; begin < blocks.size();) {
    size_t end = begin, width = 2;
    while (end < blocks.size() && (end == begin || width + WidthOf(blocks[end]) <= kLineWidth)) {
      width += WidthOf(blocks[end++]) + kGap;
    }
    absl::StrAppend(&text, Band(blocks, begin, end));
    begin = end;
  }
  return text;
}

}  // namespace headwise::client
