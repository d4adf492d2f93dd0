// SPDX-License-Identifier: Apache-2.0
// What the files of StagedLayer share.
#ifndef HEADWISE_CORE_REFERENCE_STAGES_H_
#define HEADWISE_CORE_REFERENCE_STAGES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/reference/staged_layer.h"

namespace headwise {

inline constexpr double kHidden = -std::numeric_limits<double>::infinity();
inline constexpr double kDeviations = 3.0;  // of a bound, in unit roundoffs

inline size_t Index(int64_t value) { return static_cast<size_t>(value); }

// A sequence's place in the packed tensors.
struct StagedLayer::Place {
  int64_t query_begin = 0;
  int64_t queries = 0;  // T
  int64_t key_begin = 0;
  int64_t keys = 0;           // S
  int64_t pair_begin = 0;     // sum of T * S of the sequences before
  double length = 0.0;        // largest position + 1
  int64_t row_begin = 0;      // of StageTensors::rows
  std::vector<int64_t> rows;  // its queries, within the sequence
};

// One sequence's scores on their way to weights, [H, R, S] each.
struct StagedLayer::Rows {
  int64_t heads = 0, count = 0, keys = 0;
  Bounded scores;              // as returned
  std::vector<double> masked;  // what the softmax sees
  std::vector<char> visible;   // what the softmax may see
  std::vector<char> hidden;    // by the mask, whatever the plan makes of it
  Bounded p;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_REFERENCE_STAGES_H_
