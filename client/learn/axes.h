// SPDX-License-Identifier: Apache-2.0
// Index arithmetic of row-major tensors and of the head axis. Pure and thread-safe.
#ifndef HEADWISE_CLIENT_LEARN_AXES_H_
#define HEADWISE_CLIENT_LEARN_AXES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/tensor.h"

namespace headwise::client {

// Offset of the element `index` (one number an axis, inside `shape`), in elements.
int64_t OffsetOf(const Shape& shape, const std::vector<int64_t>& index);

// Its inverse. `shape` has no axis of 0.
std::vector<int64_t> IndexOf(const Shape& shape, int64_t offset);

// Where each head's features lie among the columns of [tokens, sum of widths].
struct HeadColumns {
  std::vector<int64_t> widths;  // [heads]
  std::vector<int64_t> begins;  // [heads] first column
  int64_t total = 0;

  int64_t heads() const { return static_cast<int64_t>(widths.size()); }
  bool equal() const;                    // all heads are equally wide
  std::string Text(int64_t head) const;  // "2-3", "4"
};
HeadColumns ColumnsOf(std::vector<int64_t> widths);

// A tensor of heads [tokens, sum of widths].
struct HeadTensor {
  HeadColumns columns;
  std::vector<double> values;

  double at(int64_t token, int64_t head, int64_t feature) const {
    return values[static_cast<size_t>(token * columns.total +
                                      columns.begins[static_cast<size_t>(head)] + feature)];
  }
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LEARN_AXES_H_
