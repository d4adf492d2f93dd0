// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/project.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/dtype.h"
#include "core/kernel/head_places.h"

namespace headwise {
namespace {

// What of the layer acts on a head of a role.
struct HeadPlace {
  ProjectionRole role = ProjectionRole::kQ;
  int64_t head = 0;
};

int64_t HeadWidth(const AttentionLayer& layer, const HeadPlace& place) {
  if (place.role == ProjectionRole::kQ) return layer.spec().dk[static_cast<size_t>(place.head)];
  return place.role == ProjectionRole::kK ? layer.kv_dk(place.head) : layer.kv_dv(place.head);
}

void Rotate(const AttentionLayer& layer, ProjectionRole role, const HeadRows& rows) {
  const RopeTable& rope = *layer.rope();
  const SequencePlan& s = *rows.sequence;
  const bool queries = role == ProjectionRole::kQ;
  const float* computed = queries ? s.angles : s.key_angles;
  const int64_t* positions = queries ? s.positions : s.key_positions;
  std::array<const float*, kTileRows> angles;
  for (int64_t i = 0; i < rows.rows.rows; ++i) {
    const int64_t index = rows.first + i;
    angles[static_cast<size_t>(i)] =
        computed != nullptr ? computed + index * rope.row_floats()
                            : rope.Ready(positions == nullptr ? index : positions[index]);
  }
  RotateRows(rope.layout(), rope.dims(), angles.data(), rows.rows);
}

// q and k between projection and attention, in the order of the spec: norm, then RoPE.
void FinishRows(const AttentionLayer& layer, const HeadPlace& place, const HeadRows& rows,
                PassData* pass) {
  const LayerSpec& spec = layer.spec();
  if (spec.qk_norm.has_value()) {
    const float* weights = layer.norm_weights(place.role, place.head);
    if (spec.normed_over_width()) {
      const bool queries = place.role == ProjectionRole::kQ;
      const int64_t sums = layer.square_sums(/*keys=*/!queries);
      const int64_t row = (queries ? rows.sequence->q_row : rows.sequence->kv_row) + rows.first;
      float* squares = queries ? pass->q_squares : pass->k_squares;
      WeighRows(*spec.qk_norm, weights, rows.rows, sums, squares + row * sums + place.head);
    } else {
      NormRows(*spec.qk_norm, weights, layer.norm_bias(place.role, place.head), rows.rows);
    }
  }
  if (layer.rope() != nullptr) Rotate(layer, place.role, rows);
}

// Stores every head of the block for rows [row, row + rows) of the pass, sequence by sequence.
void StoreBlock(const AttentionLayer& layer, const HeadBlock& block, int64_t row,
                const RowsView& tile, PassData* pass, WorkerScratch* scratch) {
  const bool queries = block.role == ProjectionRole::kQ;
  int64_t s = queries ? SequenceOfQueryRow(*pass, row) : SequenceOfKeyRow(*pass, row);
  for (int64_t done = 0; done < tile.rows; ++s) {
    const SequencePlan& sequence = pass->sequences[static_cast<size_t>(s)];
    const int64_t begin = queries ? sequence.q_row : sequence.kv_row;
    const int64_t length = queries ? sequence.queries : sequence.keys;
    const int64_t first = row + done - begin;
    const int64_t count = std::min(tile.rows - done, length - first);
    if (count <= 0) continue;
    float* column = tile.row(done);
    for (int64_t head = block.first_head; head < block.last_head; ++head) {
      const HeadPlace place{block.role, head};
      const int64_t width = HeadWidth(layer, place);
      const HeadRows rows{&sequence, first, {column, count, width, tile.stride}};
      if (block.role != ProjectionRole::kV) FinishRows(layer, place, rows, pass);
      if (queries) StoreQueries(layer, head, rows, pass);
      if (block.role == ProjectionRole::kK) StoreKeys(layer, head, rows, pass, scratch);
      if (block.role == ProjectionRole::kV) StoreValues(layer, head, rows, pass);
      column += width;
    }
    done += count;
  }
}

// Takes the squares of a block of a statistic's columns for rows [row, row + rows) of the pass.
void SquareBlock(const AttentionLayer& layer, bool keys, const HeadBlock& block, int64_t row,
                 const RowsView& tile, PassData* pass) {
  const int64_t sums = layer.square_sums(keys);
  const int64_t heads = keys ? layer.spec().kv_heads : layer.spec().heads;
  float* squares = keys ? pass->k_squares : pass->q_squares;
  SquareRows(tile, sums, squares + row * sums + heads + block.first_head);
}

// Numbers of q or kt times a factor, in the numbers that attention reads.
void ScaleNumbers(TileType type, void* data, int64_t at, int64_t step, int64_t count,
                  float factor) {
  for (int64_t i = 0; i < count; ++i, at += step) {
    if (type == TileType::kF32) {
      static_cast<float*>(data)[at] *= factor;
    } else {
      uint16_t& bits = static_cast<uint16_t*>(data)[at];
      bits = FloatToBf16(Bf16ToFloat(bits) * factor);
    }
  }
}

}  // namespace

void RunProject(const AttentionLayer& layer, const ProjectTask& task, PassData* pass,
                WorkerScratch* scratch) {
  const int64_t of_queries = static_cast<int64_t>(layer.q_blocks().size());
  const float* input = task.first_block < of_queries ? pass->x : pass->memory;
  const PackedMatrix& first = task.first_block < of_queries ? layer.wq() : layer.wkv();
  const std::optional<double>& clip = layer.spec().clip;
  float* tile = scratch->tile.Reserve<float>(kTileRows * layer.tile_stride());
  for (int64_t row = task.row; row < task.row + task.rows; row += kTileRows) {
    const int64_t rows = std::min(kTileRows, task.row + task.rows - row);
    // Both matrices take the same numbers of a row.
    const TileRows numbers =
        first.MakeRows(input + row * first.depth(), rows, nullptr, &scratch->input);
    for (int64_t b = task.first_block; b < task.last_block; ++b) {
      const bool keys_and_values = b >= of_queries;
      const PackedMatrix& weights = keys_and_values ? layer.wkv() : layer.wq();
      const size_t number = static_cast<size_t>(keys_and_values ? b - of_queries : b);
      const HeadBlock& block = (keys_and_values ? layer.kv_blocks() : layer.q_blocks())[number];
      const PackedMatrix::Block& columns = weights.blocks()[number];
      weights.MultiplyBlock(number, numbers, tile);
      const RowsView results{tile, rows, columns.width, layer.tile_stride()};
      if (weights.bias() != nullptr) AddBias(weights.bias() + columns.column, results);
      if (clip.has_value()) ClampRows(static_cast<float>(*clip), results);
      if (block.role == ProjectionRole::kStatistic) {
        SquareBlock(layer, keys_and_values, block, row, results, pass);
      } else {
        StoreBlock(layer, block, row, results, pass, scratch);
      }
    }
  }
}

void RunWidthNorm(const AttentionLayer& layer, bool keys, int64_t row, int64_t rows,
                  PassData* pass) {
  const LayerSpec& spec = layer.spec();
  const int64_t heads = keys ? spec.kv_heads : spec.heads;
  const int64_t sums = layer.square_sums(keys);
  const double width = static_cast<double>(layer.norm_width(keys));
  const TileType type = layer.attend_type();
  const int64_t group = Interleave(type);
  for (int64_t i = row; i < row + rows; ++i) {
    const float* squares = (keys ? pass->k_squares : pass->q_squares) + i * sums;
    double sum = 0.0;
    for (int64_t s = 0; s < sums; ++s) sum += static_cast<double>(squares[s]);
    const float factor = static_cast<float>(1.0 / std::sqrt(sum / width + spec.qk_norm->epsilon));
    if (!keys) {
      for (size_t h = 0; h < spec.dk.size(); ++h) {
        const int64_t dk = spec.dk[h];
        const int64_t at = layer.q_offsets()[h] * pass->query_rows + i * dk;
        ScaleNumbers(type, pass->q, at, 1, dk, factor);
      }
      continue;
    }
    const SequencePlan& s = pass->sequences[static_cast<size_t>(SequenceOfKeyRow(*pass, i))];
    const int64_t key = i - s.kv_row;
    const KeyPanel panel = PanelOf(s, key);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t features = layer.kt_features(h);
      const int64_t at = KeysAt(layer, s, h) + panel.first * features + (key - panel.first) * group;
      for (int64_t d = 0; d < features; d += group) {
        ScaleNumbers(type, pass->kt, at + d * panel.width, 1, group, factor);
      }
    }
  }
}

}  // namespace headwise
