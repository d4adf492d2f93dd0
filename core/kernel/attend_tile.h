// SPDX-License-Identifier: Apache-2.0
// A tile of attention while it is computed: what attend.cc works on, and what it leaves for answers
// that ask for p or scores.
#ifndef HEADWISE_CORE_KERNEL_ATTEND_TILE_H_
#define HEADWISE_CORE_KERNEL_ATTEND_TILE_H_

#include <array>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/kernel/attend.h"
#include "core/kernel/softmax.h"

namespace headwise {

// Everything of a tile that does not change from block to block.
struct TileContext {
  const AttentionLayer& layer;
  const AttendTile& tile;
  const SequencePlan& sequence;
  const AttendKernels& kernels;
  KeyRange blocks;  // the keys that are computed, kKeyBlock at a time
  int64_t dk, dv;
  int64_t features;  // of k in a panel: dk, filled up to whole groups
  int64_t stride;    // of rows of the output: PadFeatures(dv)
  int64_t in_rows;   // features of v in rows of keys: FeaturesInRows(dv)
  int64_t apart;     // and those apart: FeaturesApart(dv)
  int64_t group;     // see Interleave
  int64_t bytes;     // of a number in q, k and v
  float scale;
  float softcap;                // 0: none
  bool masked;                  // by the caller
  bool plain;                   // see SoftmaxTile
  const char* q;                // [queries, dk]
  const char* kt;               // the head's key panels
  const char* v;                // [padded keys, in_rows]
  const char* v_apart;          // [apart, padded keys]
  const uint8_t* v_not_finite;  // [padded keys]
  float* z;                     // of the tile's first row; rows are the layer's z_width apart
  WorkerScratch* scratch;
  float* scores;      // [kQueryTile, kKeyBlock]
  uint16_t* weights;  // the same in bf16; null: the weights stay in `scores`
  float* output;      // [kQueryTile, stride]

  const char* key_values(int64_t key) const { return v + key * in_rows * bytes; }
  int64_t query_position(int64_t i) const {
    const int64_t query = tile.first_query + i;
    return sequence.positions == nullptr ? query : sequence.positions[query];
  }
};

// Rows [row, row + rows) of the tile against columns [first, last) of the block at key `block`:
// multiples of kKeyStep that hold all that the rows see there.
struct Part {
  int64_t block = 0;
  int64_t row = 0, rows = 0;
  int64_t first = 0, last = 0;

  int64_t width() const { return last - first; }
};

// The position bias of the part's rows, [rows, kScoreStride] in the worker's scratch, and a pointer
// to each row of it. Exact: also what a whole row shares, which changes no weight without a
// soft-cap or a sink.
void FillBias(const TileContext& c, const Part& part, bool exact,
              std::array<const float*, kQueryTile>* rows);

inline float WeightAt(const TileContext& c, int64_t i, int64_t column) {
  const int64_t at = i * kScoreStride + column;
  return c.weights == nullptr ? c.scores[at] : Bf16ToFloat(c.weights[at]);
}

// Into the answer: the logits before the mask of the part's rows, those of hidden keys as well.
void WriteScores(const TileContext& c, const Part& part);

// p of the tile's rows where no block that they see will write it.
void ClearWeights(const TileContext& c);

// p of the part's rows as far as they are known: to be finished when all blocks are through.
void KeepWeights(const TileContext& c, const Part& part);

// p of the tile's rows from what each block left and the maxima that it had then, [blocks,
// kQueryTile].
void FinishP(const TileContext& c, const SoftmaxState& state, const float* maxima);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_ATTEND_TILE_H_
