// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/position_buckets.h"

#include <algorithm>
#include <cmath>

namespace headwise {

int64_t T5Bucket(const PositionBiasSpec& spec, int64_t key_minus_query) {
  const bool after = key_minus_query > 0;
  // A side is the half of the table for one direction; without one for keys after the query they
  // all count as distance 0.
  const int64_t side = spec.bidirectional ? spec.buckets / 2 : spec.buckets;
  const int64_t base = spec.bidirectional && after ? side : 0;
  const int64_t distance =
      spec.bidirectional && after ? key_minus_query : std::max<int64_t>(0, -key_minus_query);
  const int64_t exact = side / 2;
  if (distance < exact) return base + distance;
  const double unit = static_cast<double>(exact);
  const double octaves = std::log(static_cast<double>(distance) / unit) /
                         std::log(static_cast<double>(spec.max_distance) / unit);
  // Compared before the cast, so that no distance is too far for it.
  const double beyond = octaves * static_cast<double>(side - exact);
  if (beyond >= static_cast<double>(side - exact)) return base + side - 1;
  return base + std::min(side - 1, exact + static_cast<int64_t>(beyond));
}

}  // namespace headwise
