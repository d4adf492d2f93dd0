// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/attend_tile.h"

#include <algorithm>

namespace headwise {

void FillBias(const TileContext& c, const Part& part, bool exact,
              std::array<const float*, kQueryTile>* rows) {
  float* bias = c.scratch->bias.Reserve<float>(kQueryTile * kScoreStride);
  for (int64_t i = 0; i < part.rows; ++i, bias += kScoreStride) {
    const float shift = c.layer.position_bias()->FillRow(
        c.tile.head, c.query_position(part.row + i), c.sequence.key_positions,
        part.block + part.first, part.width(), bias);
    // A number for the whole row changes no weight, unless a soft-cap bends it or a sink doesn't
    // share it.
    if (exact && shift != 0.0f) {
      for (int64_t j = 0; j < part.width(); ++j) bias[j] += shift;
    }
    (*rows)[static_cast<size_t>(i)] = bias;
  }
}

void WriteScores(const TileContext& c, const Part& part) {
  const SequencePlan& s = c.sequence;
  std::array<const float*, kQueryTile> bias = {};
  if (c.layer.position_bias() != nullptr) FillBias(c, part, /*exact=*/true, &bias);
  const int64_t keys = std::min(part.width(), s.keys - part.block);
  for (int64_t i = 0; i < part.rows; ++i) {
    const int64_t row = c.tile.head * s.queries + c.tile.first_query + i;
    TransformScores({c.scale, bias[static_cast<size_t>(i)], c.softcap}, c.scores + i * kScoreStride,
                    keys, s.scores + row * s.keys + part.block);
  }
}

void ClearWeights(const TileContext& c) {
  const SequencePlan& s = c.sequence;
  if (!s.limited()) return;
  std::fill_n(s.p + (c.tile.head * s.queries + c.tile.first_query) * s.keys,
              c.tile.queries * s.keys, 0.0f);
}

void KeepWeights(const TileContext& c, const Part& part) {
  const SequencePlan& s = c.sequence;
  const int64_t count = std::min(part.last, s.keys - part.block) - part.first;
  for (int64_t i = part.row; i < part.row + part.rows; ++i) {
    const int64_t row = c.tile.head * s.queries + c.tile.first_query + i;
    float* p = s.p + row * s.keys + part.block + part.first;
    for (int64_t j = 0; j < count; ++j) p[j] = WeightAt(c, i, part.first + j);
  }
}

void FinishP(const TileContext& c, const SoftmaxState& state, const float* maxima) {
  const SequencePlan& s = c.sequence;
  const float unit = SoftmaxTile{.scale = c.scale, .plain = c.plain}.unit();
  for (int64_t i = 0; i < c.tile.queries; ++i) {
    const size_t at = static_cast<size_t>(i);
    float* p = s.p + (c.tile.head * s.queries + c.tile.first_query + i) * s.keys;
    const float* then = maxima + i;
    for (int64_t block = c.blocks.begin; block < c.blocks.end; block += kKeyBlock) {
      FinishWeights(unit, *then, state.max[at], state.sum[at], std::min(kKeyBlock, s.keys - block),
                    p + block);
      then += kQueryTile;
    }
  }
}

}  // namespace headwise
