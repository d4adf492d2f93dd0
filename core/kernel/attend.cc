// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/attend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/kernel/vector_ops.h"

namespace headwise {
namespace {

using States = std::array<SoftmaxState, kQueryTile>;

// Everything of a tile that does not change from block to block.
struct TileContext {
  const AttentionLayer& layer;
  const AttendTile& tile;
  const SequencePlan& sequence;
  const AttendKernels& kernels;
  int64_t dk, dv;
  size_t height;  // index of the compiled row count
  float scale;
  const float* q;               // [queries, dk]
  const float* kt;              // the head's key blocks
  const float* v;               // [padded keys, dv]
  const uint8_t* v_not_finite;  // [padded keys]
  float* scores;                // [rows, keys of the block]
  float* output;                // [rows, dv]
};

TileContext MakeContext(const AttentionLayer& layer, const AttendTile& tile, const PassData& pass,
                        WorkerScratch* scratch) {
  const LayerSpec& spec = layer.spec();
  const SequencePlan& s = pass.sequences[static_cast<size_t>(tile.sequence)];
  const size_t r = static_cast<size_t>(tile.head);
  const int64_t group = spec.query_to_kv[r];
  const size_t g = static_cast<size_t>(group);
  const int64_t dk = spec.dk[r];
  const int64_t dv = spec.dv[r];
  return {.layer = layer,
          .tile = tile,
          .sequence = s,
          .kernels = layer.attend(tile.head),
          .dk = dk,
          .dv = dv,
          .height = static_cast<size_t>(AttendKernels::Height(tile.queries)),
          .scale = static_cast<float>(spec.head_scale(tile.head)),
          .q = pass.q + layer.q_offsets()[r] * pass.query_rows + (s.q_row + tile.first_query) * dk,
          .kt = pass.kt + s.key_slot * layer.k_width() + layer.k_offsets()[g] * s.padded_keys(),
          .v = pass.v + s.key_slot * layer.v_width() + layer.v_offsets()[g] * s.padded_keys(),
          .v_not_finite = pass.v_not_finite + group * pass.padded_key_rows + s.key_slot,
          .scores = scratch->scores.Reserve(kQueryTile * kKeyBlock),
          .output = scratch->output.Reserve(kQueryTile * dv)};
}

// Columns of the block at `block` that row i of the tile may see, with its share of the user mask.
SoftmaxRow MakeRow(const TileContext& c, int64_t i, int64_t block, int64_t width) {
  const SequencePlan& s = c.sequence;
  const int64_t query = c.tile.first_query + i;
  const KeyRange visible = s.Visible(query);
  const int64_t begin = std::clamp<int64_t>(visible.begin - block, 0, width);
  const int64_t end = std::clamp<int64_t>(visible.end - block, 0, width);
  SoftmaxRow row{.scores = c.scores + i * width,
                 .width = width,
                 .begin = begin,
                 .end = end,
                 .scale = c.scale,
                 .keep = nullptr,
                 .additive = nullptr,
                 .keep_is_drop = s.keep_is_drop};
  const int64_t mask = c.tile.head * s.mask_head_stride + query * s.mask_row_stride + block + begin;
  if (s.keep != nullptr) row.keep = s.keep + mask;
  if (s.additive != nullptr) row.additive = s.additive + mask;
  return row;
}

bool Hidden(const SoftmaxRow& row, int64_t column) {
  if (column < row.begin || column >= row.end) return true;
  const int64_t i = column - row.begin;
  if (row.keep != nullptr && row.keep[i] == (row.keep_is_drop ? 1 : 0)) return true;
  return row.additive != nullptr && row.additive[i] == -std::numeric_limits<float>::infinity();
}

void MultiplyScores(const TileContext& c, int64_t block, int64_t width) {
  c.kernels.scores[c.height][static_cast<size_t>(width / kKeyStep - 1)]->Run(
      c.q, c.kt + block * c.dk, c.scores);
}

// Adds what the tile product left out: NaN and infinities of v, to the rows that see their key.
void AddNonFinite(const TileContext& c, int64_t block, int64_t width) {
  for (int64_t j = 0; j < width; ++j) {
    if (c.v_not_finite[block + j] == 0) continue;
    const float* v = c.v + (block + j) * c.dv;
    for (int64_t i = 0; i < c.tile.queries; ++i) {
      if (Hidden(MakeRow(c, i, block, width), j)) continue;
      const float p = c.scores[i * width + j];
      for (int64_t d = 0; d < c.dv; ++d) {
        if (!std::isfinite(v[d])) c.output[i * c.dv + d] += p * v[d];
      }
    }
  }
}

// The block of v with its NaN and infinities replaced by zeros, so that a hidden key stays inert in
// the product (0 * NaN is NaN). Rows that don't see it get the same bits as with a healthy v.
const float* FiniteValues(const TileContext& c, int64_t block, int64_t width,
                          WorkerScratch* scratch) {
  float* values = scratch->values.Reserve(kKeyBlock * c.dv);
  const float* v = c.v + block * c.dv;
  for (int64_t i = 0; i < width * c.dv; ++i) values[i] = std::isfinite(v[i]) ? v[i] : 0.0f;
  return values;
}

void AttendBlock(const TileContext& c, int64_t block, int64_t width, States* states,
                 WorkerScratch* scratch) {
  MultiplyScores(c, block, width);
  for (int64_t i = 0; i < c.tile.queries; ++i) {
    const float factor =
        SoftmaxStep(MakeRow(c, i, block, width), &(*states)[static_cast<size_t>(i)]);
    if (factor != 1.0f) ScaleInPlace(factor, c.dv, c.output + i * c.dv);
  }
  const uint8_t* flags = c.v_not_finite + block;
  const bool finite = std::find(flags, flags + width, uint8_t{1}) == flags + width;
  const float* values = finite ? c.v + block * c.dv : FiniteValues(c, block, width, scratch);
  c.kernels.output[c.height][static_cast<size_t>(width / kKeyStep - 1)]->Run(c.scores, values,
                                                                             c.output);
  if (!finite) AddNonFinite(c, block, width);
}

// p and raw scores of the tile, from the finished maximum and sum of each row.
void WriteWeights(const TileContext& c, const States& states) {
  const SequencePlan& s = c.sequence;
  for (int64_t block = 0; block < s.keys; block += kKeyBlock) {
    const int64_t width = std::min(kKeyBlock, s.padded_keys() - block);
    const int64_t keys = std::min(kKeyBlock, s.keys - block);
    MultiplyScores(c, block, width);
    for (int64_t i = 0; i < c.tile.queries; ++i) {
      const int64_t at = (c.tile.head * s.queries + c.tile.first_query + i) * s.keys + block;
      if (s.scores != nullptr) ScaleTo(c.scores + i * width, c.scale, keys, s.scores + at);
      if (s.p == nullptr) continue;
      SoftmaxFinish(MakeRow(c, i, block, width), states[static_cast<size_t>(i)]);
      std::copy_n(c.scores + i * width, keys, s.p + at);
    }
  }
}

// Key blocks [begin, end) that some row of the tile may see.
KeyRange VisibleBlocks(const SequencePlan& s, const AttendTile& tile) {
  KeyRange all{s.keys, 0};
  for (const int64_t row : {tile.first_query, tile.first_query + tile.queries - 1}) {
    const KeyRange range = s.Visible(row);
    if (range.end == 0) continue;
    all.begin = std::min(all.begin, range.begin);
    all.end = std::max(all.end, range.end);
  }
  // The first and last row bound the rest only if both see something.
  for (int64_t i = 1; i + 1 < tile.queries && (s.causal || s.window >= 0); ++i) {
    const KeyRange range = s.Visible(tile.first_query + i);
    if (range.end == 0) continue;
    all.begin = std::min(all.begin, range.begin);
    all.end = std::max(all.end, range.end);
  }
  all.begin = all.begin / kKeyBlock * kKeyBlock;
  return all;
}

}  // namespace

void RunAttend(const AttentionLayer& layer, const AttendTile& tile, PassData* pass,
               WorkerScratch* scratch) {
  const TileContext c = MakeContext(layer, tile, *pass, scratch);
  const SequencePlan& s = c.sequence;
  States states;
  states.fill({-std::numeric_limits<float>::infinity(), 0.0f});
  std::fill_n(c.output, AttendKernels::kRows[c.height] * c.dv, 0.0f);
  const KeyRange blocks = VisibleBlocks(s, tile);
  for (int64_t block = blocks.begin; block < blocks.end; block += kKeyBlock) {
    AttendBlock(c, block, std::min(kKeyBlock, s.padded_keys() - block), &states, scratch);
  }
  const int64_t z_width = layer.z_width();
  float* z = pass->z + (s.q_row + tile.first_query) * z_width +
             layer.z_offsets()[static_cast<size_t>(tile.head)];
  for (int64_t i = 0; i < tile.queries; ++i) {
    const float sum = states[static_cast<size_t>(i)].sum;
    if (sum == 0.0f) {  // the row saw no key
      std::fill_n(z + i * z_width, c.dv, 0.0f);
    } else {
      ScaleTo(c.output + i * c.dv, 1.0f / sum, c.dv, z + i * z_width);
    }
  }
  if (s.p != nullptr || s.scores != nullptr) WriteWeights(c, states);
}

int64_t AttendMacs(const AttentionLayer& layer, const SequencePlan& sequence,
                   const AttendTile& tile) {
  const KeyRange blocks = VisibleBlocks(sequence, tile);
  const size_t r = static_cast<size_t>(tile.head);
  const int64_t keys = std::max<int64_t>(0, blocks.end - blocks.begin);
  return tile.queries * keys * (layer.spec().dk[r] + layer.spec().dv[r]);
}

}  // namespace headwise
