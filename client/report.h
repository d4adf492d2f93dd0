// SPDX-License-Identifier: Apache-2.0
// Text for people: aligned tables, bars, sizes and times with their units.
#ifndef HEADWISE_CLIENT_REPORT_H_
#define HEADWISE_CLIENT_REPORT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace headwise::client {

// What the reader's screen can show.
struct Terminal {
  bool colour = false;  // a terminal that wants colours
  bool utf8 = false;
};

// Asks file descriptor `fd` and the locale.
Terminal DescribeTerminal(int fd);

// A table with one header line, built row by row. Not thread-safe.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void Add(std::vector<std::string> cells);  // one cell a column
  std::string Render(const Terminal& terminal) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// A bar of value / max of `width` places, at least one place for a value above zero.
std::string Bar(double value, double max, int width, const Terminal& terminal);

// "512 B", "2.26 MiB".
std::string HumanBytes(int64_t bytes);
// "340 us", "12.3 ms", "2.40 s".
std::string HumanMicros(double micros);
// "1,048,576".
std::string Grouped(int64_t number);
// "0,1,2" and, from three neighbours on, "0-2".
std::string CompactList(const std::vector<uint32_t>& numbers);
// Text that came from elsewhere, with control characters replaced, so that it can't move the
// cursor.
std::string CleanText(absl::string_view text);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_REPORT_H_
