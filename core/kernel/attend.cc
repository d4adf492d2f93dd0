// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/attend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/base/dtype.h"
#include "core/kernel/attend_tile.h"
#include "core/kernel/head_places.h"
#include "core/kernel/softmax.h"
#include "core/kernel/thin_products.h"
#include "core/kernel/vector_ops.h"

namespace headwise {
namespace {

// Rows are cut into parts of that many where a mask lets them see different keys, so that little of
// a window's two ends is computed in vain. A height that the kernels are compiled for.
constexpr int64_t kPartRows = 16;

// Keys that some row of the tile may see, from a panel's first key: blocks are counted from there,
// so that a narrow window fits into one.
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
  all.begin = RoundDown(all.begin, kKeyPanel);
  return all;
}

TileContext MakeContext(const AttentionLayer& layer, const AttendTile& tile, const PassData& pass,
                        WorkerScratch* scratch) {
  const LayerSpec& spec = layer.spec();
  const SequencePlan& s = pass.sequences[static_cast<size_t>(tile.sequence)];
  const size_t r = static_cast<size_t>(tile.head);
  const int64_t group = spec.query_to_kv[r];
  const int64_t dk = spec.dk[r];
  const int64_t dv = spec.dv[r];
  const int64_t stride = PadFeatures(dv);
  const int64_t bytes = ElementBytes(layer.attend_type());
  const int64_t q_at = QueriesAt(layer, pass, s, tile.head) + tile.first_query * dk;
  const char* v = static_cast<const char*>(pass.v) + ValuesAt(layer, s, group) * bytes;
  const bool reduced = layer.attend_type() == TileType::kBf16;
  const float scale = static_cast<float>(spec.head_scale(tile.head));
  const float softcap = static_cast<float>(spec.softcap.value_or(0.0));
  const bool masked = s.keep != nullptr || s.additive != nullptr;
  return {
      .layer = layer,
      .tile = tile,
      .sequence = s,
      .kernels = layer.attend(tile.head),
      .blocks = s.scores == nullptr ? VisibleBlocks(s, tile) : KeyRange{0, s.keys},
      .dk = dk,
      .dv = dv,
      .features = layer.kt_features(group),
      .stride = stride,
      .in_rows = FeaturesInRows(dv),
      .apart = FeaturesApart(dv),
      .group = Interleave(layer.attend_type()),
      .bytes = bytes,
      .scale = scale,
      .softcap = softcap,
      .masked = masked,
      .plain = !masked && softcap == 0.0f && layer.position_bias() == nullptr &&
               layer.sinks().empty() && scale > 0.0f,
      .q = static_cast<const char*>(pass.q) + q_at * bytes,
      .kt = static_cast<const char*>(pass.kt) + KeysAt(layer, s, group) * bytes,
      .v = v,
      .v_apart = v + FeaturesApartAt(s, dv) * bytes,
      .v_not_finite = pass.v_not_finite + group * pass.padded_key_rows + s.key_slot,
      .z = pass.z + (s.q_row + tile.first_query) * layer.z_width() + layer.z_offsets()[r],
      .scratch = scratch,
      .scores = scratch->scores.Reserve<float>(kQueryTile * kScoreStride),
      .weights = reduced ? scratch->weights.Reserve<uint16_t>(kQueryTile * kScoreStride) : nullptr,
      .output = scratch->output.Reserve<float>(kQueryTile * stride)};
}

// Columns of the block at `block` that row i of the tile may see.
KeyRange VisibleColumns(const TileContext& c, int64_t i, int64_t block, int64_t width) {
  const KeyRange visible = c.sequence.Visible(c.tile.first_query + i);
  return {std::clamp<int64_t>(visible.begin - block, 0, width),
          std::clamp<int64_t>(visible.end - block, 0, width)};
}

// What some row of [row, row + rows) sees of the block, rounded outwards; empty: nothing.
Part MakePart(const TileContext& c, int64_t block, int64_t width, int64_t row, int64_t rows) {
  Part part{block, row, rows, 0, width};
  KeyRange all{width, 0};
  for (int64_t i = row; i < row + rows; ++i) {
    const KeyRange range = VisibleColumns(c, i, block, width);
    if (range.begin >= range.end) continue;
    all.begin = std::min(all.begin, range.begin);
    all.end = std::max(all.end, range.end);
  }
  part.first = RoundDown(std::min(all.begin, all.end), kKeyStep);
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

void MultiplyScores(const TileContext& c, const Part& part) {
  const size_t height = AttendKernels::Height(part.rows);
  const char* q = c.q + part.row * c.dk * c.bytes;
  for (int64_t column = part.first; column < part.last;) {
    const int64_t key = part.block + column;
    const KeyPanel panel = PanelOf(c.sequence, key);
    const int64_t keys = std::min(part.last - column, panel.first + panel.width - key);
    const char* kt = c.kt + (panel.first * c.features + (key - panel.first) * c.group) * c.bytes;
    float* scores = c.scores + part.row * kScoreStride + column;
    if (c.tile.queries == 1) {
      ScoreRow(c.layer.attend_type(), q, kt, c.dk, panel.width, keys, scores);
    } else {
      c.kernels.scores(height, panel.width, keys).Run(q, kt, scores);
    }
    column += keys;
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
  tile.ahead = &c.scratch->ahead;
  if (part.block + kKeyBlock >= c.blocks.end) {
    // Rows of z lie too far apart for the CPU to foresee, and a core waits on few lines at a time.
    tile.results = c.z + part.row * c.layer.z_width();
    tile.results_stride = c.layer.z_width();
    tile.results_width = c.dv;
  }
  SoftmaxStep(tile, part.row, state);
}

float ValueAt(const TileContext& c, int64_t key, int64_t feature) {
  const int64_t at = ValueIndex(c.group, c.sequence, c.dv, key, feature);
  return c.weights == nullptr ? reinterpret_cast<const float*>(c.v)[at]
                              : Bf16ToFloat(reinterpret_cast<const uint16_t*>(c.v)[at]);
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
        if (!std::isfinite(value)) c.output[i * c.stride + d] += p * value;
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

// What a block of keys of v multiplies: rows of features from the part's first key on, and the
// features apart from the block's first key on.
struct BlockValues {
  const char* rows = nullptr;
  FeatureRows apart;
};

BlockValues ValuesOf(const TileContext& c, const Part& part) {
  return {c.key_values(part.block + part.first),
          {c.v_apart + part.block * c.bytes, c.apart, c.sequence.padded_keys()}};
}

// The same with NaN and infinities replaced by zeros, so that a hidden key stays inert in the
// product (0 * NaN is NaN). Rows that don't see it get the same bits as with a healthy v.
BlockValues FiniteValues(const TileContext& c, const Part& part) {
  const BlockValues values = ValuesOf(c, part);
  char* rows = c.scratch->values.Reserve<char>(kKeyBlock * c.stride * c.bytes);
  char* apart = rows + kKeyBlock * c.in_rows * c.bytes;
  const auto copy = [&](const char* from, int64_t count, char* to) {
    if (c.weights == nullptr) {
      CopyFinite<uint32_t>(from, 0x7F800000u, count, to);
    } else {
      CopyFinite<uint16_t>(from, uint16_t{0x7F80}, count, to);
    }
  };
  copy(values.rows, part.width() * c.in_rows, rows);
  for (int64_t d = 0; d < c.apart; ++d) {
    copy(static_cast<const char*>(values.apart.data) + d * values.apart.stride * c.bytes, part.last,
         apart + d * kKeyBlock * c.bytes);
  }
  return {rows, {apart, c.apart, kKeyBlock}};
}

void MultiplyRows(const TileContext& c, const Part& part, const char* weights, const char* values) {
  float* output = c.output + part.row * c.stride;
  if (c.tile.queries == 1) {
    AddWeightedRows(c.layer.attend_type(), weights, values, part.width(), c.in_rows, output);
    return;
  }
  const size_t height = AttendKernels::Height(part.rows);
  const int64_t end = RoundUp(c.sequence.keys - part.block, AttendKernels::kRestStep);
  const int64_t keys = std::min(part.last, end) - part.first;
  const int64_t panels = RoundDown(keys, kKeyPanel);
  if (panels > 0) c.kernels.output(height, panels).Run(weights, values, output);
  if (panels < keys) {
    c.kernels.output(height, keys - panels)
        .Run(weights + panels * c.bytes, values + panels * c.in_rows * c.bytes, output);
  }
}

void MultiplyValues(const TileContext& c, const Part& part) {
  const uint8_t* flags = c.v_not_finite + part.block;
  const bool finite =
      std::find(flags + part.first, flags + part.last, uint8_t{1}) == flags + part.last;
  const BlockValues values = finite ? ValuesOf(c, part) : FiniteValues(c, part);
  const int64_t at = part.row * kScoreStride;
  const char* weights = c.weights == nullptr ? reinterpret_cast<const char*>(c.scores + at)
                                             : reinterpret_cast<const char*>(c.weights + at);
  MultiplyRows(c, part, weights + part.first * c.bytes, values.rows);
  if (c.apart > 0) {
    AddFeaturesApart(c.layer.attend_type(), weights, part.rows, values.apart, part.first, part.last,
                     c.output + part.row * c.stride + c.in_rows, c.stride);
  }
  if (!finite) AddNonFinite(c, part);
}

// From scores to output.
void FinishPart(const TileContext& c, const Part& part, SoftmaxState* state) {
  RunSoftmax(c, part, state);
  ScaleRows(state->factor.data() + part.row,
            {c.output + part.row * c.stride, part.rows, c.stride, c.stride});
  MultiplyValues(c, part);
  if (c.sequence.p != nullptr) KeepWeights(c, part);
}

void AttendPart(const TileContext& c, const Part& part, SoftmaxState* state) {
  if (part.width() <= 0) return;
  MultiplyScores(c, part);
  FinishPart(c, part, state);
}

void AttendBlock(const TileContext& c, int64_t block, SoftmaxState* state) {
  const int64_t width = std::min(kKeyBlock, c.sequence.padded_keys() - block);
  const int64_t rows = c.tile.queries;
  const Part all{block, 0, rows, 0, width};
  if (c.sequence.scores != nullptr) {
    MultiplyScores(c, all);
    WriteScores(c, all);
    if (MakePart(c, block, width, 0, rows).width() > 0) FinishPart(c, all, state);
    return;
  }
  if (!c.sequence.limited()) return AttendPart(c, all, state);
  Part part;
  for (int64_t row = 0; row < rows; row += kPartRows) {
    const Part next = MakePart(c, block, width, row, std::min(kPartRows, rows - row));
    if (row > 0 && next.first == part.first && next.last == part.last) {
      part.rows += next.rows;
      continue;
    }
    AttendPart(c, part, state);
    part = next;
  }
  AttendPart(c, part, state);
}

// z of the tile's rows from their output and sums.
void WriteZ(const TileContext& c, const SoftmaxState& state) {
  const int64_t z_width = c.layer.z_width();
  const size_t r = static_cast<size_t>(c.tile.head);
  const std::vector<float>& gates = c.layer.spec().gates;
  const float gate = gates.empty() ? 1.0f : gates[r];
  float* z = c.z;
  std::array<float, kQueryTile> factors;
  for (int64_t i = 0; i < c.tile.queries; ++i) {
    const size_t at = static_cast<size_t>(i);
    factors[at] = 1.0f / state.sum[at];
    if (state.sum[at] != 0.0f && gate != 0.0f) continue;
    // Saw no key, or is switched off: 0 whatever v holds.
    std::fill_n(c.output + i * c.stride, c.dv, 0.0f);
    factors[at] = 0.0f;
  }
  ScaleRowsTo(factors.data(), {c.output, c.tile.queries, c.dv, c.stride}, z_width, z);
  if (gate == 1.0f) return;
  for (int64_t i = 0; i < c.tile.queries; ++i)
    ScaleTo(z + i * z_width, gate, c.dv, z + i * z_width);
}

}  // namespace

void RunAttend(const AttentionLayer& layer, const AttendTile& tile, PassData* pass,
               WorkerScratch* scratch) {
  const TileContext c = MakeContext(layer, tile, *pass, scratch);
  const SequencePlan& s = c.sequence;
  const std::vector<float>& sinks = layer.sinks();
  SoftmaxState state =
      SoftmaxState::Start(sinks.empty() ? nullptr : &sinks[static_cast<size_t>(tile.head)]);
  std::fill_n(c.output, AttendKernels::kRows[AttendKernels::Height(tile.queries)] * c.stride, 0.0f);
  const int64_t keys = std::max<int64_t>(0, c.blocks.end - c.blocks.begin);
  const int64_t count = RoundUp(keys, kKeyBlock) / kKeyBlock;
  float* maxima = s.p == nullptr ? nullptr : scratch->maxima.Reserve<float>(count * kQueryTile);
  if (s.p != nullptr) ClearWeights(c);
  for (int64_t b = 0; b < count; ++b) {
    if (b > 0 && scratch->between_blocks && !scratch->between_blocks(s.member)) return;
    AttendBlock(c, c.blocks.begin + b * kKeyBlock, &state);
    if (maxima != nullptr) std::copy_n(state.max.data(), kQueryTile, maxima + b * kQueryTile);
  }
  WriteZ(c, state);
  if (s.p != nullptr) FinishP(c, state, maxima);
}

void ExpectTile(const AttentionLayer& layer, const AttendTile& tile, const AttendTile& next,
                const PassData& pass, WorkerScratch* scratch) {
  const LayerSpec& spec = layer.spec();
  const SequencePlan& s = pass.sequences[static_cast<size_t>(next.sequence)];
  const size_t r = static_cast<size_t>(next.head);
  const int64_t bytes = ElementBytes(layer.attend_type());
  const auto want = [&](const void* data, int64_t at, int64_t numbers) {
    scratch->ahead.Want(static_cast<const char*>(data) + at * bytes, numbers * bytes);
  };
  scratch->ahead.Clear();
  want(pass.q, QueriesAt(layer, pass, s, next.head) + next.first_query * spec.dk[r],
       next.queries * spec.dk[r]);
  const int64_t group = spec.query_to_kv[r];
  KeyRange keys = VisibleBlocks(s, next);
  if (next.sequence == tile.sequence && group == spec.query_to_kv[static_cast<size_t>(tile.head)]) {
    keys.begin = std::max(keys.begin, RoundDown(VisibleBlocks(s, tile).end, kKeyPanel));
  }
  const int64_t count = RoundUp(keys.end, kKeyStep) - keys.begin;
  const int64_t features = layer.kt_features(group), in_rows = FeaturesInRows(spec.dv[r]);
  want(pass.kt, KeysAt(layer, s, group) + keys.begin * features, count * features);
  want(pass.v, ValuesAt(layer, s, group) + keys.begin * in_rows, count * in_rows);
}

int64_t AttendMacs(const AttentionLayer& layer, const SequencePlan& sequence,
                   const AttendTile& tile) {
  const KeyRange blocks = VisibleBlocks(sequence, tile);
  const size_t r = static_cast<size_t>(tile.head);
  const int64_t keys = std::max<int64_t>(0, blocks.end - blocks.begin);
  return tile.queries * keys * (layer.spec().dk[r] + layer.spec().dv[r]);
}

}  // namespace headwise
