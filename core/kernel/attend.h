// SPDX-License-Identifier: Apache-2.0
// Stage "attend": z of query tiles, fused: scores never exist beyond one tile.
#ifndef HEADWISE_CORE_KERNEL_ATTEND_H_
#define HEADWISE_CORE_KERNEL_ATTEND_H_

#include <cstdint>

#include "core/kernel/pass_data.h"
#include "core/layer/attention_layer.h"

namespace headwise {

// Query rows [first_query, first_query + queries) of one head of one sequence; queries <=
// kQueryTile.
struct AttendTile {
  int64_t sequence = 0;
  int64_t head = 0;
  int64_t first_query = 0;
  int64_t queries = 0;
};

// z = gate * softmax(t + mask) v for the tile, t the logits with bias and soft-cap; block of keys
// by block of keys with a running maximum and sum a row (FlashAttention, Dao et al. 2022). Keys
// that none of 16 rows may see are skipped, in steps of kKeyStep. Writes the tile's rows of p
// and scores where the sequence asks for them: p is the weights that made z. Moves (dk + dv) * S
// numbers of k and v a tile from the second-level cache and nothing else. Between two blocks it
// calls `scratch->between_blocks`, which may end it there.
// Thread-safe for different tiles.
void RunAttend(const AttentionLayer& layer, const AttendTile& tile, PassData* pass,
               WorkerScratch* scratch);

// Tells the worker what `next` reads that `tile`, which runs before it, doesn't: its rows of q, and
// kt and v of another sequence, key/value head or later keys. Asked for while `tile` runs.
void ExpectTile(const AttentionLayer& layer, const AttendTile& tile, const AttendTile& next,
                const PassData& pass, WorkerScratch* scratch);

// Multiply-adds of the tile's visible blocks, for cutting work into tasks.
int64_t AttendMacs(const AttentionLayer& layer, const SequencePlan& sequence,
                   const AttendTile& tile);

// Bytes of scores that one worker holds at a time.
constexpr int64_t kScoreTileBytes = kQueryTile * kKeyBlock * static_cast<int64_t>(sizeof(float));

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_ATTEND_H_
