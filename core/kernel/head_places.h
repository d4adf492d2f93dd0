// SPDX-License-Identifier: Apache-2.0
// Where the heads of a sequence begin in a pass's buffers (PassData has the layouts), counted in
// numbers.
#ifndef HEADWISE_CORE_KERNEL_HEAD_PLACES_H_
#define HEADWISE_CORE_KERNEL_HEAD_PLACES_H_

#include <algorithm>
#include <cstdint>

#include "core/kernel/pass_data.h"
#include "core/layer/attention_layer.h"

namespace headwise {

// In q: the sequence's first row of a query head; its rows are dk apart.
inline int64_t QueriesAt(const AttentionLayer& layer, const PassData& pass, const SequencePlan& s,
                         int64_t head) {
  const size_t r = static_cast<size_t>(head);
  return layer.q_offsets()[r] * pass.query_rows + s.q_row * layer.spec().dk[r];
}

// In kt: the first key panel of a key/value head.
inline int64_t KeysAt(const AttentionLayer& layer, const SequencePlan& s, int64_t group) {
  return s.key_slot * layer.kt_width() +
         layer.kt_offsets()[static_cast<size_t>(group)] * s.padded_keys();
}

// The panel of kt that a key lies in.
struct KeyPanel {
  int64_t first = 0;  // key
  int64_t width = 0;  // keys, padded ones too
};
inline KeyPanel PanelOf(const SequencePlan& s, int64_t key) {
  const int64_t first = RoundDown(key, kKeyPanel);
  return {first, std::min(kKeyPanel, s.padded_keys() - first)};
}

// In v: the first key of a key/value head.
inline int64_t ValuesAt(const AttentionLayer& layer, const SequencePlan& s, int64_t group) {
  return s.key_slot * layer.value_width() +
         layer.value_offsets()[static_cast<size_t>(group)] * s.padded_keys();
}

// In a head of v: where the features apart begin, a row of padded keys each.
inline int64_t FeaturesApartAt(const SequencePlan& s, int64_t dv) {
  return s.padded_keys() * FeaturesInRows(dv);
}

// In a head of v, rows `g` by `g` interleaved: feature d of a key.
inline int64_t ValueIndex(int64_t g, const SequencePlan& s, int64_t dv, int64_t key, int64_t d) {
  const int64_t in_rows = FeaturesInRows(dv);
  return d < in_rows ? InterleavedIndex(g, in_rows, key, d)
                     : FeaturesApartAt(s, dv) + (d - in_rows) * s.padded_keys() + key;
}

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_HEAD_PLACES_H_
