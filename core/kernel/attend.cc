// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/attend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/base/dtype.h"
#include "core/kernel/softmax.h"
#include "core/kernel/vector_ops.h"

namespace headwise {
namespace {

// Rows are cut in two where a mask lets them see different keys: of a window's first and last keys
// each half then skips a quarter of a square.
constexpr int64_t kHalfTile = kQueryTile / 2;

// Everything of a tile that does not change from block to block.
struct TileContext {
  const AttentionLayer& layer;
  const AttendTile& tile;
  const SequencePlan& sequence;
  const AttendKernels& kernels;
  int64_t dk, dv;
  int64_t features;  // of k in a panel: dk, filled up to whole groups
  int64_t group;     // see Interleave
  int64_t bytes;     // of a number in q, k and v
  float scale;
  float softcap;                // 0: none
  bool masked;                  // by the caller
  bool plain;                   // see SoftmaxTile
  const char* q;                // [queries, dk]
  const char* kt;               // the head's key panels
  const char* v;                // [padded keys, dv]
  const uint8_t* v_not_finite;  // [padded keys]
  WorkerScratch* scratch;
  float* scores;      // [kQueryTile, kKeyBlock]
  uint16_t* weights;  // the same in bf16; null: the weights stay in `scores`
  float* output;      // [kQueryTile, dv]

  const char* key_values(int64_t key) const { return v + key * dv * bytes; }
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

TileContext MakeContext(const AttentionLayer& layer, const AttendTile& tile, const PassData& pass,
                        WorkerScratch* scratch) {
  const LayerSpec& spec = layer.spec();
  const SequencePlan& s = pass.sequences[static_cast<size_t>(tile.sequence)];
  const size_t r = static_cast<size_t>(tile.head);
  const size_t g = static_cast<size_t>(spec.query_to_kv[r]);
  const int64_t dk = spec.dk[r];
  const int64_t bytes = ElementBytes(layer.attend_type());
  const int64_t q_at = layer.q_offsets()[r] * pass.query_rows + (s.q_row + tile.first_query) * dk;
  const int64_t kt_at = s.key_slot * layer.kt_width() + layer.kt_offsets()[g] * s.padded_keys();
  const int64_t v_at = s.key_slot * layer.v_width() + layer.v_offsets()[g] * s.padded_keys();
  const bool reduced = layer.attend_type() == TileType::kBf16;
  const float scale = static_cast<float>(spec.head_scale(tile.head));
  const float softcap = static_cast<float>(spec.softcap.value_or(0.0));
  const bool masked = s.keep != nullptr || s.additive != nullptr;
  return {
      .layer = layer,
      .tile = tile,
      .sequence = s,
      .kernels = layer.attend(tile.head),
      .dk = dk,
      .dv = spec.dv[r],
      .features = layer.kt_features(spec.query_to_kv[r]),
      .group = Interleave(layer.attend_type()),
      .bytes = bytes,
      .scale = scale,
      .softcap = softcap,
      .masked = masked,
      .plain = !masked && softcap == 0.0f && layer.position_bias() == nullptr &&
               layer.sinks().empty() && scale > 0.0f,
      .q = static_cast<const char*>(pass.q) + q_at * bytes,
      .kt = static_cast<const char*>(pass.kt) + kt_at * bytes,
      .v = static_cast<const char*>(pass.v) + v_at * bytes,
      .v_not_finite = pass.v_not_finite + spec.query_to_kv[r] * pass.padded_key_rows + s.key_slot,
      .scratch = scratch,
      .scores = scratch->scores.Reserve<float>(kQueryTile * kScoreStride),
      .weights = reduced ? scratch->weights.Reserve<uint16_t>(kQueryTile * kScoreStride) : nullptr,
      .output = scratch->output.Reserve<float>(kQueryTile * spec.dv[r])};
}

// Columns of the block at `block` that row i of the tile may see.
KeyRange VisibleColumns(const TileContext& c, int64_t i, int64_t block, int64_t width) {
  const KeyRange visible = c.sequence.Visible(c.tile.first_query + i);
  return {std::clamp<int64_t>(visible.begin - block, 0, width),
          std::clamp<int64_t>(visible.end - block, 0, width)};
}

// What some row of [row, row + rows) sees of the block, rounded outwards; empty: nothing.
Part MakePart(const TileContext& c, int64_t block, int64_t width, int64_t row, int64_t rows) {
  const SequencePlan& s = c.sequence;
  Part part{block, row, rows, 0, width};
  if (!s.limited()) return part;
  KeyRange all{width, 0};
  for (int64_t i = row; i < row + rows; ++i) {
    const KeyRange range = VisibleColumns(c, i, block, width);
    if (range.begin >= range.end) continue;
    all.begin = std::min(all.begin, range.begin);
    all.end = std::max(all.end, range.end);
  }
  part.first = std::min(all.begin, all.end) / kKeyStep * kKeyStep;
  part.last = std::min(width, RoundUp(all.end, kKeyStep));
  return part;
}

RowMask MaskOfRow(const TileContext& c, int64_t i, int64_t key) {
  const SequencePlan& s = c.sequence;
  const int64_t at =
      c.tile.head * s.mask_head_stride + (c.tile.first_query + i) * s.mask_row_stride + key;
  return {.keep = s.keep == nullptr ? nullptr : s.keep + at,
          .additive = s.additive == nullptr ? nullptr : s.additive + at,
          .keep_is_drop = s.keep_is_drop};
}

// The position bias of the part's rows, [rows, kKeyBlock], and a pointer to each row of it.
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

void MultiplyScores(const TileContext& c, const Part& part) {
  const size_t height = AttendKernels::Height(part.rows);
  for (int64_t panel = part.first / kKeyPanel * kKeyPanel; panel < part.last; panel += kKeyPanel) {
    const int64_t key = part.block + panel;
    const int64_t width = std::min(kKeyPanel, c.sequence.padded_keys() - key);
    const int64_t begin = std::max<int64_t>(part.first - panel, 0);
    const int64_t keys = std::min(part.last - panel, width) - begin;
    c.kernels.scores(height, width, keys)
        .Run(c.q + part.row * c.dk * c.bytes, c.kt + (key * c.features + begin * c.group) * c.bytes,
             c.scores + part.row * kScoreStride + panel + begin);
  }
}

void RunSoftmax(const TileContext& c, const Part& part, SoftmaxState* state) {
  std::array<int32_t, kQueryTile> begin, end;
  std::array<const float*, kQueryTile> bias;
  std::array<RowMask, kQueryTile> masks;
  for (int64_t i = 0; i < part.rows; ++i) {
    const KeyRange range = VisibleColumns(c, part.row + i, part.block, part.last);
    const size_t at = static_cast<size_t>(i);
    begin[at] = static_cast<int32_t>(std::max(range.begin - part.first, int64_t{0}));
    end[at] = static_cast<int32_t>(range.end - part.first);
    if (c.masked) {
      masks[at] = MaskOfRow(c, part.row + i, part.block + part.first + begin[at]);
    }
  }
  SoftmaxTile tile;
  tile.scores = c.scores + part.row * kScoreStride + part.first;
  tile.stride = tile.bf16_stride = kScoreStride;
  tile.rows = part.rows;
  tile.width = part.width();
  tile.begin = begin.data();
  tile.end = end.data();
  tile.scale = c.scale;
  tile.plain = c.plain;
  tile.softcap = c.softcap;
  if (c.weights != nullptr) tile.bf16 = c.weights + part.row * kScoreStride + part.first;
  if (c.layer.position_bias() != nullptr) {
    FillBias(c, part, /*exact=*/tile.softcap != 0.0f || !c.layer.sinks().empty(), &bias);
    tile.bias = bias.data();
  }
  if (c.masked) tile.masks = masks.data();
  SoftmaxStep(tile, part.row, state);
}

float WeightAt(const TileContext& c, int64_t i, int64_t column) {
  const int64_t at = i * kScoreStride + column;
  return c.weights == nullptr ? c.scores[at] : Bf16ToFloat(c.weights[at]);
}

float ValueAt(const TileContext& c, int64_t key, int64_t feature) {
  if (c.weights == nullptr) {
    return reinterpret_cast<const float*>(c.v)[key * c.dv + feature];
  }
  const int64_t at = key / c.group * c.dv * c.group + feature * c.group + key % c.group;
  return Bf16ToFloat(reinterpret_cast<const uint16_t*>(c.v)[at]);
}

bool Hidden(const TileContext& c, int64_t i, int64_t key) {
  const KeyRange range = c.sequence.Visible(c.tile.first_query + i);
  if (key < range.begin || key >= range.end) return true;
  const RowMask mask = MaskOfRow(c, i, key);
  if (mask.keep != nullptr && *mask.keep == (mask.keep_is_drop ? 1 : 0)) return true;
  return mask.additive != nullptr && *mask.additive == -std::numeric_limits<float>::infinity();
}

// Adds what the tile product left out: NaN and infinities of v, to the rows that see their key.
void AddNonFinite(const TileContext& c, const Part& part) {
  for (int64_t j = part.first; j < part.last; ++j) {
    const int64_t key = part.block + j;
    if (c.v_not_finite[key] == 0) continue;
    for (int64_t i = part.row; i < part.row + part.rows; ++i) {
      if (Hidden(c, i, key)) continue;
      const float p = WeightAt(c, i, j);
      for (int64_t d = 0; d < c.dv; ++d) {
        const float value = ValueAt(c, key, d);
        if (!std::isfinite(value)) c.output[i * c.dv + d] += p * value;
      }
    }
  }
}

template <typename Bits>
void CopyFinite(const void* from, Bits exponent, int64_t count, void* to) {
  const Bits* in = static_cast<const Bits*>(from);
  Bits* out = static_cast<Bits*>(to);
  for (int64_t i = 0; i < count; ++i) out[i] = (in[i] & exponent) == exponent ? Bits{0} : in[i];
}

// The part's rows of v with NaN and infinities replaced by zeros, so that a hidden key stays inert
// in the product (0 * NaN is NaN). Rows that don't see it get the same bits as with a healthy v.
const char* FiniteValues(const TileContext& c, const Part& part) {
  const int64_t count = part.width() * c.dv;
  const char* from = c.key_values(part.block + part.first);
  char* to = c.scratch->values.Reserve<char>(kKeyBlock * c.dv * c.bytes);
  if (c.weights == nullptr) {
    CopyFinite<uint32_t>(from, 0x7F800000u, count, to);
  } else {
    CopyFinite<uint16_t>(from, uint16_t{0x7F80}, count, to);
  }
  return to;
}

void MultiplyValues(const TileContext& c, const Part& part) {
  const uint8_t* flags = c.v_not_finite + part.block;
  const bool finite =
      std::find(flags + part.first, flags + part.last, uint8_t{1}) == flags + part.last;
  const char* values = finite ? c.key_values(part.block + part.first) : FiniteValues(c, part);
  const int64_t at = part.row * kScoreStride + part.first;
  const void* weights = c.weights == nullptr ? static_cast<const void*>(c.scores + at)
                                             : static_cast<const void*>(c.weights + at);
  c.kernels.output(AttendKernels::Height(part.rows), part.width())
      .Run(weights, values, c.output + part.row * c.dv);
  if (!finite) AddNonFinite(c, part);
}

// p of the part's rows as far as they are known: to be finished when all blocks are through.
void KeepWeights(const TileContext& c, const Part& part) {
  const SequencePlan& s = c.sequence;
  const int64_t count = std::min(part.last, s.keys - part.block) - part.first;
  for (int64_t i = part.row; i < part.row + part.rows; ++i) {
    const int64_t row = c.tile.head * s.queries + c.tile.first_query + i;
    float* p = s.p + row * s.keys + part.block + part.first;
    for (int64_t j = 0; j < count; ++j) p[j] = WeightAt(c, i, part.first + j);
  }
}

// From scores to output.
void FinishPart(const TileContext& c, const Part& part, SoftmaxState* state) {
  RunSoftmax(c, part, state);
  ScaleRows(state->factor.data() + part.row, {c.output + part.row * c.dv, part.rows, c.dv, c.dv});
  MultiplyValues(c, part);
  if (c.sequence.p != nullptr) KeepWeights(c, part);
}

void AttendPart(const TileContext& c, const Part& part, SoftmaxState* state) {
  if (part.width() <= 0) return;
  MultiplyScores(c, part);
  FinishPart(c, part, state);
}

// Into the answer: the logits before the mask of the part's rows, those of hidden keys as well.
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

void AttendBlock(const TileContext& c, int64_t block, SoftmaxState* state) {
  const int64_t width = std::min(kKeyBlock, c.sequence.padded_keys() - block);
  const int64_t rows = c.tile.queries;
  const Part seen = MakePart(c, block, width, 0, rows);
  if (c.sequence.scores != nullptr) {
    const Part all{block, 0, rows, 0, width};
    MultiplyScores(c, all);
    WriteScores(c, all);
    if (seen.width() > 0) FinishPart(c, all, state);
    return;
  }
  const bool cut = c.sequence.limited() && rows > kHalfTile;
  const Part upper = cut ? MakePart(c, block, width, 0, kHalfTile) : seen;
  const Part lower = cut ? MakePart(c, block, width, kHalfTile, rows - kHalfTile) : seen;
  if (upper.first == lower.first && upper.last == lower.last) {
    AttendPart(c, seen, state);
  } else {
    AttendPart(c, upper, state);
    AttendPart(c, lower, state);
  }
}

// Key blocks that some row of the tile may see: from a block's first key.
KeyRange VisibleBlocks(const SequencePlan& s, const AttendTile& tile) {
  if (!s.limited()) return {0, s.keys};
  // Every row is looked at: in a causal window with T > S the last rows of a tile may see no key.
  KeyRange all{s.keys, 0};
  for (int64_t i = 0; i < tile.queries; ++i) {
    const KeyRange range = s.Visible(tile.first_query + i);
    if (range.end == 0) continue;
    all.begin = std::min(all.begin, range.begin);
    all.end = std::max(all.end, range.end);
  }
  all.begin = all.begin / kKeyBlock * kKeyBlock;
  return all;
}

float* FirstZ(const TileContext& c, const PassData& pass) {
  return pass.z + (c.sequence.q_row + c.tile.first_query) * c.layer.z_width() +
         c.layer.z_offsets()[static_cast<size_t>(c.tile.head)];
}

// Asks for the lines of z while the tile is computed: rows lie too far apart to be foreseen.
void PrefetchZ(const TileContext& c, const PassData& pass) {
  const float* z = FirstZ(c, pass);
  for (int64_t i = 0; i < c.tile.queries; ++i, z += c.layer.z_width()) {
    for (int64_t d = 0; d < c.dv; d += 16) __builtin_prefetch(z + d, /*rw=*/1);
  }
}

// z of the tile's rows from their output and sums.
void WriteZ(const TileContext& c, const PassData& pass, const SoftmaxState& state) {
  const int64_t z_width = c.layer.z_width();
  const size_t r = static_cast<size_t>(c.tile.head);
  const std::vector<float>& gates = c.layer.spec().gates;
  const float gate = gates.empty() ? 1.0f : gates[r];
  float* z = FirstZ(c, pass);
  std::array<float, kQueryTile> factors;
  for (int64_t i = 0; i < c.tile.queries; ++i) {
    const size_t at = static_cast<size_t>(i);
    factors[at] = 1.0f / state.sum[at];
    if (state.sum[at] != 0.0f && gate != 0.0f) continue;
    // Saw no key, or is switched off: 0 whatever v holds.
    std::fill_n(c.output + i * c.dv, c.dv, 0.0f);
    factors[at] = 0.0f;
  }
  ScaleRowsTo(factors.data(), {c.output, c.tile.queries, c.dv, c.dv}, z_width, z);
  if (gate == 1.0f) return;
  for (int64_t i = 0; i < c.tile.queries; ++i)
    ScaleTo(z + i * z_width, gate, c.dv, z + i * z_width);
}

void FinishP(const TileContext& c, const SoftmaxState& state, const KeyRange& blocks,
             const float* maxima) {
  const SequencePlan& s = c.sequence;
  const float unit = SoftmaxTile{.scale = c.scale, .plain = c.plain}.unit();
  for (int64_t i = 0; i < c.tile.queries; ++i) {
    const size_t at = static_cast<size_t>(i);
    float* p = s.p + (c.tile.head * s.queries + c.tile.first_query + i) * s.keys;
    const float* then = maxima + i;
    for (int64_t block = blocks.begin; block < blocks.end; block += kKeyBlock) {
      FinishWeights(unit, *then, state.max[at], state.sum[at], std::min(kKeyBlock, s.keys - block),
                    p + block);
      then += kQueryTile;
    }
  }
}

}  // namespace

void RunAttend(const AttentionLayer& layer, const AttendTile& tile, PassData* pass,
               WorkerScratch* scratch) {
  const TileContext c = MakeContext(layer, tile, *pass, scratch);
  const SequencePlan& s = c.sequence;
  const std::vector<float>& sinks = layer.sinks();
  SoftmaxState state =
      SoftmaxState::Start(sinks.empty() ? nullptr : &sinks[static_cast<size_t>(tile.head)]);
  std::fill_n(c.output, kQueryTile * c.dv, 0.0f);
  PrefetchZ(c, *pass);
  const KeyRange blocks = s.scores == nullptr ? VisibleBlocks(s, tile) : KeyRange{0, s.keys};
  const int64_t count =
      (std::max<int64_t>(0, blocks.end - blocks.begin) + kKeyBlock - 1) / kKeyBlock;
  float* maxima = s.p == nullptr ? nullptr : scratch->maxima.Reserve<float>(count * kQueryTile);
  for (int64_t b = 0; b < count; ++b) {
    if (b > 0 && scratch->between_blocks && !scratch->between_blocks(s.member)) return;
    AttendBlock(c, blocks.begin + b * kKeyBlock, &state);
    if (maxima != nullptr) std::copy_n(state.max.data(), kQueryTile, maxima + b * kQueryTile);
  }
  WriteZ(c, *pass, state);
  if (s.p != nullptr) FinishP(c, state, blocks, maxima);
}

int64_t AttendMacs(const AttentionLayer& layer, const SequencePlan& sequence,
                   const AttendTile& tile) {
  const KeyRange blocks = VisibleBlocks(sequence, tile);
  const size_t r = static_cast<size_t>(tile.head);
  const int64_t keys = std::max<int64_t>(0, blocks.end - blocks.begin);
  return tile.queries * keys * (layer.spec().dk[r] + layer.spec().dv[r]);
}

}  // namespace headwise
