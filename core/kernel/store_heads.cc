// SPDX-License-Identifier: Apache-2.0
// Projected rows on their way to where attention reads them, and read back for answers.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "core/base/dtype.h"
#include "core/kernel/head_places.h"
#include "core/kernel/project.h"

namespace headwise {
namespace {

// The largest f32 that rounds to a finite bf16.
constexpr float kLargestForBf16 = std::bit_cast<float>(0x7F7F7FFFu);

// Rows of v as pairs of bf16. A pair may be split between two tasks; then each writes its own
// half only.
void StoreValuesAsBf16(const HeadRows& values, int64_t features, uint16_t* head) {
  const RowsView& rows = values.rows;
  for (int64_t i = 0; i < rows.rows;) {
    const int64_t key = values.first + i;
    if (key % 2 == 0 && i + 1 < rows.rows) {
      InterleaveAsBf16(rows.row(i), rows.row(i + 1), rows.width, features, head + key * features);
      i += 2;
      continue;
    }
    for (int64_t d = 0; d < features; ++d) {
      head[InterleavedIndex(2, features, key, d)] =
          d < rows.width ? FloatToBf16(rows.row(i)[d]) : uint16_t{0};
    }
    ++i;
  }
}

// The part of v that lies in rows of keys; what pads the sequence is cleared with its last rows.
void StoreValueRows(const HeadRows& values, bool reduced, void* head) {
  const RowsView& rows = values.rows;
  const int64_t features = PadFeatures(rows.width);
  if (reduced) {
    StoreValuesAsBf16(values, features, static_cast<uint16_t*>(head));
  } else {
    StoreRows(rows, features, static_cast<float*>(head) + values.first * features);
  }
  const SequencePlan& s = *values.sequence;
  if (values.first + rows.rows < s.keys) return;
  if (!reduced) {
    float* f32 = static_cast<float*>(head);
    std::fill(f32 + s.keys * features, f32 + s.padded_keys() * features, 0.0f);
    return;
  }
  for (int64_t key = s.keys; key < s.padded_keys(); ++key) {
    for (int64_t d = 0; d < features; ++d) {
      static_cast<uint16_t*>(head)[InterleavedIndex(2, features, key, d)] = 0;
    }
  }
}

// And the features apart, here the columns of `values`: a row of keys each.
void StoreFeaturesApart(const HeadRows& values, bool reduced, void* apart) {
  const RowsView& in = values.rows;
  const SequencePlan& s = *values.sequence;
  const int64_t end = values.first + in.rows;
  const int64_t cleared = end < s.keys ? 0 : s.padded_keys() - end;
  std::array<float, kFewFeatures * kTileRows> turned;
  Transpose32(in.data, in.stride, in.rows, in.width, turned.data(), kTileRows);
  for (int64_t d = 0; d < in.width; ++d) {
    const RowsView row{turned.data() + d * kTileRows, 1, in.rows, kTileRows};
    const int64_t at = d * s.padded_keys() + values.first;
    if (reduced) {
      StoreRowsAsBf16(row, in.rows + cleared, static_cast<uint16_t*>(apart) + at);
    } else {
      StoreRows(row, in.rows + cleared, static_cast<float*>(apart) + at);
    }
  }
}

}  // namespace

void StoreQueries(const AttentionLayer& layer, int64_t head, const HeadRows& rows, PassData* pass) {
  const int64_t dk = rows.rows.width;
  const int64_t at = QueriesAt(layer, *pass, *rows.sequence, head) + rows.first * dk;
  if (layer.attend_type() == TileType::kBf16) {
    StoreRowsAsBf16(rows.rows, dk, static_cast<uint16_t*>(pass->q) + at);
  } else {
    StoreRows(rows.rows, dk, static_cast<float*>(pass->q) + at);
  }
}

// Keys become columns of the sequence's transposed key panels; 32 bits of a key stay together.
void StoreKeys(const AttentionLayer& layer, int64_t group, const HeadRows& rows, PassData* pass,
               WorkerScratch* scratch) {
  const SequencePlan& s = *rows.sequence;
  const bool reduced = layer.attend_type() == TileType::kBf16;
  const int64_t features = layer.kt_features(group);
  const int64_t words = features * ElementBytes(layer.attend_type()) / 4;  // of a key
  const void* source = rows.rows.data;
  int64_t source_stride = rows.rows.stride;
  if (reduced) {
    auto* narrow = scratch->rows.Reserve<uint16_t>(kTileRows * features);
    StoreRowsAsBf16(rows.rows, features, narrow);
    source = narrow;
    source_stride = words;
  }
  auto* kt = static_cast<uint32_t*>(pass->kt);
  kt += KeysAt(layer, s, group) * ElementBytes(layer.attend_type()) / 4;
  for (int64_t i = 0; i < rows.rows.rows;) {
    const int64_t key = rows.first + i;
    const KeyPanel panel = PanelOf(s, key);
    const int64_t count = std::min(rows.rows.rows - i, panel.first + kKeyPanel - key);
    Transpose32(static_cast<const uint32_t*>(source) + i * source_stride, source_stride, count,
                words, kt + panel.first * words + (key - panel.first), panel.width);
    i += count;
  }
}

void StoreValues(const AttentionLayer& layer, int64_t group, const HeadRows& rows, PassData* pass) {
  const SequencePlan& s = *rows.sequence;
  const RowsView& all = rows.rows;
  const bool reduced = layer.attend_type() == TileType::kBf16;
  const float limit = reduced ? kLargestForBf16 : std::numeric_limits<float>::max();
  uint8_t* flags = pass->v_not_finite + group * pass->padded_key_rows + s.key_slot;
  FlagRows(limit, all, flags + rows.first);
  if (rows.first + all.rows == s.keys) {
    std::fill(flags + s.keys, flags + s.padded_keys(), uint8_t{0});
  }
  const int64_t apart = FeaturesApart(all.width), together = all.width - apart;
  const int64_t bytes = ElementBytes(layer.attend_type());
  char* head = static_cast<char*>(pass->v) + ValuesAt(layer, s, group) * bytes;
  StoreValueRows({&s, rows.first, {all.data, all.rows, together, all.stride}}, reduced, head);
  if (apart == 0) return;
  const HeadRows beyond{&s, rows.first, {all.data + together, all.rows, apart, all.stride}};
  StoreFeaturesApart(beyond, reduced, head + FeaturesApartAt(s, all.width) * bytes);
}

void LoadHead(const AttentionLayer& layer, ProjectionRole role, int64_t head, const SequencePlan& s,
              const PassData& pass, int64_t stride, float* out) {
  const bool reduced = layer.attend_type() == TileType::kBf16;
  const int64_t group = Interleave(layer.attend_type());
  const auto number = [reduced](const void* data, int64_t at) {
    return reduced ? Bf16ToFloat(static_cast<const uint16_t*>(data)[at])
                   : static_cast<const float*>(data)[at];
  };
  if (role == ProjectionRole::kQ) {
    const int64_t dk = layer.spec().dk[static_cast<size_t>(head)];
    const int64_t at = QueriesAt(layer, pass, s, head);
    for (int64_t t = 0; t < s.queries; ++t) {
      for (int64_t d = 0; d < dk; ++d) out[t * stride + d] = number(pass.q, at + t * dk + d);
    }
  } else if (role == ProjectionRole::kK) {
    const int64_t at = KeysAt(layer, s, head);
    for (int64_t key = 0; key < s.keys; ++key) {
      const KeyPanel panel = PanelOf(s, key);
      const int64_t begin = at + panel.first * layer.kt_features(head);
      for (int64_t d = 0; d < layer.kv_dk(head); ++d) {
        // The roles of key and feature are changed: features lie in groups.
        out[key * stride + d] =
            number(pass.kt, begin + InterleavedIndex(group, panel.width, d, key - panel.first));
      }
    }
  } else {
    const int64_t at = ValuesAt(layer, s, head);
    for (int64_t key = 0; key < s.keys; ++key) {
      for (int64_t d = 0; d < layer.kv_dv(head); ++d) {
        out[key * stride + d] =
            number(pass.v, at + ValueIndex(group, s, layer.kv_dv(head), key, d));
      }
    }
  }
}

}  // namespace headwise
