// SPDX-License-Identifier: Apache-2.0
#include "client/learn/axes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headwise::client {

int64_t OffsetOf(const Shape& shape, const std::vector<int64_t>& index) {
  int64_t offset = 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) offset = offset * shape[axis] + index[axis];
  return offset;
}

std::vector<int64_t> IndexOf(const Shape& shape, int64_t offset) {
  std::vector<int64_t> index(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = offset % shape[axis];
    offset /= shape[axis];
  }
  return index;
}

bool HeadColumns::equal() const {
  return std::all_of(widths.begin(), widths.end(),
                     [this](int64_t width) { return width == widths[0]; });
}

std::string HeadColumns::Text(int64_t head) const {
  const int64_t first = begins[static_cast<size_t>(head)];
  const int64_t last = first + widths[static_cast<size_t>(head)] - 1;
  return first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last);
}

HeadColumns ColumnsOf(std::vector<int64_t> widths) {
  HeadColumns columns;
  for (const int64_t width : widths) {
    columns.begins.push_back(columns.total);
    columns.total += width;
  }
  columns.widths = std::move(widths);
  return columns;
}

}  // namespace headwise::client
