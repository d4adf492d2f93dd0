// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/project.h"

#include <algorithm>

#include "core/kernel/vector_ops.h"

namespace headwise {
namespace {

// A head's columns of the tile, bias added and rotated.
void FinishRows(const RopeTable* rope, int64_t width, const float* bias, const int64_t* positions,
                const HeadRows& rows, float* tile, WorkerScratch* scratch) {
  for (int64_t i = 0; i < rows.rows; ++i) {
    float* row = tile + i * rows.stride;
    if (bias != nullptr) AddInPlace(bias, width, row);
    if (rope == nullptr) continue;
    const int64_t index = rows.first + i;
    rope->Rotate(positions == nullptr ? index : positions[index],
                 scratch->angles.Reserve(rope->dims()), row);
  }
}

}  // namespace

void StoreQueries(const AttentionLayer& layer, int64_t head, const HeadRows& rows, PassData* pass) {
  const int64_t dk = layer.spec().dk[static_cast<size_t>(head)];
  float* q = pass->q + layer.q_offsets()[static_cast<size_t>(head)] * pass->query_rows +
             (rows.sequence->q_row + rows.first) * dk;
  for (int64_t i = 0; i < rows.rows; ++i) {
    std::copy_n(rows.data + i * rows.stride, dk, q + i * dk);
  }
}

// Keys become columns of the sequence's transposed key blocks.
void StoreKeys(const AttentionLayer& layer, int64_t group, const HeadRows& rows, PassData* pass) {
  const SequencePlan& s = *rows.sequence;
  const int64_t dk = layer.kv_dk(group);
  float* head = pass->kt + s.key_slot * layer.k_width() +
                layer.k_offsets()[static_cast<size_t>(group)] * s.padded_keys();
  for (int64_t i = 0; i < rows.rows;) {
    const int64_t key = rows.first + i;
    const int64_t block = key / kKeyBlock * kKeyBlock;
    const int64_t block_width = std::min(kKeyBlock, s.padded_keys() - block);
    const int64_t count = std::min(rows.rows - i, block + kKeyBlock - key);
    Transpose(rows.data + i * rows.stride, rows.stride, count, dk,
              head + block * dk + (key - block), block_width);
    i += count;
  }
}

void StoreValues(const AttentionLayer& layer, int64_t group, const float* bias,
                 const HeadRows& rows, PassData* pass) {
  const SequencePlan& s = *rows.sequence;
  const int64_t dv = layer.kv_dv(group);
  float* head = pass->v + s.key_slot * layer.v_width() +
                layer.v_offsets()[static_cast<size_t>(group)] * s.padded_keys();
  uint8_t* flags = pass->v_not_finite + group * pass->padded_key_rows + s.key_slot;
  for (int64_t i = 0; i < rows.rows; ++i) {
    const int64_t key = rows.first + i;
    float* row = head + key * dv;
    const float* source = rows.data + i * rows.stride;
    bool finite;
    if (bias != nullptr) {
      finite = AddTo(source, bias, dv, row);
    } else {
      std::copy_n(source, dv, row);
      finite = AllFinite(row, dv);
    }
    flags[key] = finite ? 0 : 1;
  }
  if (rows.first + rows.rows == s.keys) {  // the rows that end the sequence clear the padding too
    std::fill(head + s.keys * dv, head + s.padded_keys() * dv, 0.0f);
    std::fill(flags + s.keys, flags + s.padded_keys(), uint8_t{0});
  }
}

namespace {

void StoreHead(const AttentionLayer& layer, ProjectionRole role, int64_t head, const float* bias,
               const HeadRows& rows, float* tile, PassData* pass, WorkerScratch* scratch) {
  const SequencePlan& s = *rows.sequence;
  switch (role) {
    case ProjectionRole::kQ: {
      const int64_t dk = layer.spec().dk[static_cast<size_t>(head)];
      FinishRows(layer.rope(dk), dk, bias, s.positions, rows, tile, scratch);
      StoreQueries(layer, head, rows, pass);
      break;
    }
    case ProjectionRole::kK: {
      const int64_t dk = layer.kv_dk(head);
      FinishRows(layer.rope(dk), dk, bias, s.key_positions, rows, tile, scratch);
      StoreKeys(layer, head, rows, pass);
      break;
    }
    case ProjectionRole::kV:
      StoreValues(layer, head, bias, rows, pass);
      break;
  }
}

int64_t HeadWidth(const AttentionLayer& layer, ProjectionRole role, int64_t head) {
  if (role == ProjectionRole::kQ) return layer.spec().dk[static_cast<size_t>(head)];
  return role == ProjectionRole::kK ? layer.kv_dk(head) : layer.kv_dv(head);
}

// Stores every head of the block for rows [row, row + rows), sequence by sequence.
void StoreBlock(const AttentionLayer& layer, const HeadBlock& block, const float* bias, int64_t row,
                int64_t rows, float* tile, PassData* pass, WorkerScratch* scratch) {
  const bool queries = block.role == ProjectionRole::kQ;
  int64_t s = queries ? SequenceOfQueryRow(*pass, row) : SequenceOfKeyRow(*pass, row);
  for (int64_t done = 0; done < rows; ++s) {
    const SequencePlan& sequence = pass->sequences[static_cast<size_t>(s)];
    const int64_t begin = queries ? sequence.q_row : sequence.kv_row;
    const int64_t length = queries ? sequence.queries : sequence.keys;
    const int64_t first = row + done - begin;
    const int64_t count = std::min(rows - done, length - first);
    if (count <= 0) continue;
    int64_t column = 0;
    for (int64_t head = block.first_head; head < block.last_head; ++head) {
      float* place = tile + done * layer.tile_stride() + column;
      const HeadRows head_rows{&sequence, first, count, place, layer.tile_stride()};
      StoreHead(layer, block.role, head, bias == nullptr ? nullptr : bias + column, head_rows,
                place, pass, scratch);
      column += HeadWidth(layer, block.role, head);
    }
    done += count;
  }
}

}  // namespace

void RunProject(const AttentionLayer& layer, const ProjectTask& task, PassData* pass,
                WorkerScratch* scratch) {
  const PackedMatrix& weights = task.keys_and_values ? layer.wkv() : layer.wq();
  const std::vector<HeadBlock>& blocks =
      task.keys_and_values ? layer.kv_blocks() : layer.q_blocks();
  const float* input = task.keys_and_values ? pass->memory : pass->x;
  float* tile = scratch->tile.Reserve(kTileRows * layer.tile_stride());
  for (int64_t row = task.row; row < task.row + task.rows; row += kTileRows) {
    const int64_t rows = std::min(kTileRows, task.row + task.rows - row);
    for (int64_t b = task.first_block; b < task.last_block; ++b) {
      const size_t block = static_cast<size_t>(b);
      weights.MultiplyBlock(block, input + row * weights.depth(), rows, tile);
      const float* bias =
          weights.bias() == nullptr ? nullptr : weights.bias() + weights.blocks()[block].column;
      StoreBlock(layer, blocks[block], bias, row, rows, tile, pass, scratch);
    }
  }
}

}  // namespace headwise
