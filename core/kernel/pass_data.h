// SPDX-License-Identifier: Apache-2.0
// What the stages of one pass share: its sequences and the buffers between stages.
#ifndef HEADWISE_CORE_KERNEL_PASS_DATA_H_
#define HEADWISE_CORE_KERNEL_PASS_DATA_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "core/base/memory.h"
#include "core/kernel/attend_kernels.h"
#include "core/kernel/lines_ahead.h"
#include "core/kernel/packed_matrix.h"

namespace headwise {

// Keys that a query row may see, as far as order decides: [begin, end), clipped to [0, S].
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// One sequence of a pass.
struct SequencePlan {
  int64_t member = 0;    // which request of the pass it belongs to
  int64_t queries = 0;   // T
  int64_t keys = 0;      // S
  int64_t q_row = 0;     // first row among the pass's query rows
  int64_t kv_row = 0;    // first row among the pass's key rows
  int64_t key_slot = 0;  // first row among the pass's padded key rows

  bool causal = false;
  int64_t shift = 0;  // causal: query i sees keys up to i + shift (0 top left, S - T bottom right)
  int64_t window = -1;  // -1: none

  const int64_t* positions = nullptr;      // [T]; null: 0..T-1
  const int64_t* key_positions = nullptr;  // [S]; null: 0..S-1
  const float* angles = nullptr;  // [T, RopeTable::row_floats]; null: those of the layer's table
  const float* key_angles = nullptr;  // [S, RopeTable::row_floats]

  // The user mask of head r, row i begins at r * mask_head_stride + i * mask_row_stride.
  const uint8_t* keep = nullptr;  // 1 = may be seen (or hidden, if keep_is_drop)
  const float* additive = nullptr;
  bool keep_is_drop = false;
  int64_t mask_head_stride = 0;
  int64_t mask_row_stride = 0;

  float* p = nullptr;       // [H, T, S] or null: not asked for
  float* scores = nullptr;  // [H, T, S] or null

  int64_t padded_keys() const { return PadKeys(keys); }
  bool masked() const { return keep != nullptr || additive != nullptr; }
  // The user's mask hides the key from the row of the head; only where `masked`.
  bool HiddenByUser(int64_t head, int64_t query, int64_t key) const {
    const int64_t at = head * mask_head_stride + query * mask_row_stride + key;
    if (keep != nullptr && keep[at] == (keep_is_drop ? 1 : 0)) return true;
    return additive != nullptr && additive[at] == -std::numeric_limits<float>::infinity();
  }
  bool limited() const { return causal || window >= 0; }  // by order: not every row sees every key

  KeyRange Visible(int64_t row) const {
    constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
    const int64_t centre = row + shift;
    const int64_t back = window < 0 ? kFar : (causal ? window - 1 : window);
    const int64_t ahead = causal ? 0 : (window < 0 ? kFar : window);
    KeyRange range;
    range.begin = std::max<int64_t>(0, centre - back);
    range.end = std::min(keys, centre + ahead + 1);
    if (range.end <= range.begin) range = {0, 0};
    return range;
  }
};

// Buffers of a pass; the pass owns the memory. Letters as in the spec: N query rows, M key rows; g
// keys or features lie interleaved (see Interleave: f32 1, bf16 2). q, kt and v hold f32 or bf16,
// AttentionLayer::attend_type().
//   q   head after head: [N, dk_r] of head r begins at q_offset_r * N
//   kt  sequence after sequence at key_slot * kt_width, in it head after head at kt_offset_g *
//       padded keys, in it panels of kKeyPanel keys: k transposed, [dk_g / g, keys of the panel, g]
//   v   sequence after sequence at key_slot * value_width, in it head after head at padded keys *
//       value_offset_g: [padded keys / g, FeaturesInRows(dv_g), g], then [FeaturesApart(dv_g),
//       padded keys]; what pads it is zeros
//   z   [N, sum of dv], f32
struct PassData {
  std::vector<SequencePlan> sequences;
  const float* x = nullptr;       // [N, D]
  const float* memory = nullptr;  // [M, d_memory]; x itself without a memory
  int64_t query_rows = 0;         // N
  int64_t key_rows = 0;           // M
  int64_t padded_key_rows = 0;
  void* q = nullptr;
  void* kt = nullptr;
  void* v = nullptr;
  float* z = nullptr;
  // [G, padded_key_rows]: 1 where a row of v holds NaN or infinity. Such rows must not meet the
  // tile product, where 0 * NaN would leak from hidden keys.
  uint8_t* v_not_finite = nullptr;
  // A norm over the whole width of q (or k): AttentionLayer::square_sums of each row, [N, .] and
  // [M, .]; null where the layer has none.
  float* q_squares = nullptr;
  float* k_squares = nullptr;
};

// A worker's own buffers, reused from task to task.
struct WorkerScratch {
  int64_t next_task = -1;  // the worker's next one of this stage; -1: not known, or none
  LinesAhead ahead;        // what the worker's next tile reads
  RowScratch input;        // rows of x or z in the numbers of the weights
  Scratch tile;            // [kTileRows, tile_stride]
  Scratch scores;          // [kQueryTile, kKeyBlock]
  Scratch weights;         // [kQueryTile, kKeyBlock] in bf16
  Scratch bias;            // [kQueryTile, kKeyBlock]
  Scratch output;          // [kQueryTile, PadFeatures(dv)]
  Scratch values;          // [kKeyBlock, PadFeatures(dv)]: a block of v made finite
  Scratch maxima;          // [key blocks, kQueryTile]
  Scratch rows;            // z of an ablation; contributions of a Gram tile; k in bf16

  // Called between two key blocks of a tile with the tile's SequencePlan::member: other work may
  // run on this worker meanwhile. False: nobody waits for the tile, it is left as it is. Empty:
  // tiles run through.
  std::function<bool(int64_t member)> between_blocks;
};

// Sequence that query (or key) row `row` belongs to.
inline int64_t SequenceOfQueryRow(const PassData& pass, int64_t row) {
  const auto after =
      std::upper_bound(pass.sequences.begin(), pass.sequences.end(), row,
                       [](int64_t value, const SequencePlan& s) { return value < s.q_row; });
  return after - pass.sequences.begin() - 1;
}

inline int64_t SequenceOfKeyRow(const PassData& pass, int64_t row) {
  const auto after =
      std::upper_bound(pass.sequences.begin(), pass.sequences.end(), row,
                       [](int64_t value, const SequencePlan& s) { return value < s.kv_row; });
  return after - pass.sequences.begin() - 1;
}

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_PASS_DATA_H_
