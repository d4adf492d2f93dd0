// SPDX-License-Identifier: Apache-2.0
// Small matrices as text, beside one another. Pure and thread-safe.
#ifndef HEADWISE_CLIENT_LEARN_BLOCKS_H_
#define HEADWISE_CLIENT_LEARN_BLOCKS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headwise::client {

// A titled matrix. All lines are equally long.
struct Block {
  std::string title;
  std::vector<std::string> lines;
};

// rows x columns numbers, right-aligned in each column; NaN from `value` shows as ".": hidden.
Block MatrixBlock(std::string title, int64_t rows, int64_t columns,
                  const std::function<double(int64_t row, int64_t column)>& value);

// The blocks side by side, in as many bands as 110 columns need, each line indented by two.
std::string Beside(const std::vector<Block>& blocks);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LEARN_BLOCKS_H_
