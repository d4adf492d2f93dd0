// SPDX-License-Identifier: Apache-2.0
// Attention of one query row a head over keys that lie ready, as a step of decoding reads them:
// bound by bytes, so measured against reading the same memory in a plain loop on as many threads.
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/log/check.h"
#include "core/kernel/attend.h"
#include "core/kernel/project.h"
#include "tests/bench/bench.h"
#include "tests/support/test_layer.h"

namespace headwise::bench {
namespace {

struct Decode {
  std::shared_ptr<const AttentionLayer> layer;  // of one head
  int64_t heads, dk, keys;
  std::vector<float> q, k, v, z;  // q, z [H, dk]; k, v [H, S, dk]
  std::vector<float> queries;     // q as attention reads it; a tile's rows to spare
  MappedBytes kt, values;         // k and v, so too
  std::vector<uint8_t> flags;
  std::vector<PassData> passes;  // one a head
  std::vector<WorkerScratch> scratch;
  WorkerPool* pool;
};

void PlaceHead(Decode* c, int64_t head, const SequencePlan& s) {
  const int64_t number = ElementBytes(c->layer->attend_type());
  PassData& p = c->passes[static_cast<size_t>(head)];
  p.sequences = {s};
  p.query_rows = 1;
  p.key_rows = s.keys;
  p.padded_key_rows = s.padded_keys();
  p.q = c->queries.data() + head * c->dk;
  p.kt = c->kt.as<char>() + head * s.padded_keys() * c->layer->kt_features(0) * number;
  p.v = c->values.as<char>() + head * s.padded_keys() * c->layer->value_features(0) * number;
  p.v_not_finite = c->flags.data() + head * s.padded_keys();
  p.z = c->z.data() + head * c->dk;
  const auto rows = [&](std::vector<float>* from, int64_t row, int64_t count) {
    return HeadRows{&p.sequences[0], row, {from->data(), count, c->dk, c->dk}};
  };
  HeadRows query = rows(&c->q, 0, 1);
  query.rows.data += head * c->dk;
  StoreQueries(*c->layer, 0, query, &p);
  for (int64_t row = 0; row < s.keys; row += kTileRows) {
    for (std::vector<float>* from : {&c->k, &c->v}) {
      HeadRows some = rows(from, row, std::min(kTileRows, s.keys - row));
      some.rows.data += (head * s.keys + row) * c->dk;
      if (from == &c->k) {
        StoreKeys(*c->layer, 0, some, &p, &c->scratch[0]);
      } else {
        StoreValues(*c->layer, 0, some, &p);
      }
    }
  }
}

std::unique_ptr<Decode> MakeDecode(DType dtype, int64_t heads, int64_t dk, int64_t keys,
                                   WorkerPool* pool) {
  auto c = std::make_unique<Decode>();
  c->layer = CoreLayer(dtype, dk);
  c->heads = heads;
  c->dk = dk;
  c->keys = keys;
  c->pool = pool;
  c->q = RandomFloats(heads * dk, 1);
  c->k = RandomFloats(heads * keys * dk, 2);
  c->v = RandomFloats(heads * keys * dk, 3);
  c->z.resize(c->q.size());
  c->queries.resize(static_cast<size_t>((heads + kQueryTile) * dk));
  SequencePlan s;
  s.queries = 1;
  s.keys = keys;
  const int64_t keys_bytes = heads * s.padded_keys() * ElementBytes(c->layer->attend_type());
  c->kt = MappedBytes(keys_bytes * c->layer->kt_features(0));
  c->values = MappedBytes(keys_bytes * c->layer->value_features(0));
  c->flags.resize(static_cast<size_t>(heads * s.padded_keys()));
  c->passes.resize(static_cast<size_t>(heads));
  c->scratch.resize(static_cast<size_t>(pool->threads()));
  for (int64_t head = 0; head < heads; ++head) PlaceHead(c.get(), head, s);
  return c;
}

void RunDecode(Decode* c) {
  c->pool->Run(c->heads, [&](int64_t head, int worker) {
    RunAttend(*c->layer, {0, 0, 0, 1}, &c->passes[static_cast<size_t>(head)],
              &c->scratch[static_cast<size_t>(worker)]);
  });
}

// The same bytes, each once.
uint64_t ReadAll(const Decode& c) {
  std::vector<uint64_t> sums(static_cast<size_t>(2 * c.heads));
  c.pool->Run(2 * c.heads, [&](int64_t i, int) {
    const MappedBytes& bytes = i % 2 == 0 ? c.kt : c.values;
    const int64_t words = bytes.size() / 8 / c.heads;
    const uint64_t* begin = bytes.as<uint64_t>() + i / 2 * words;
    sums[static_cast<size_t>(i)] = std::accumulate(begin, begin + words, uint64_t{0});
  });
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
}

std::string Check(const Decode& c, double tolerance) {
  std::vector<double> expected, actual;
  for (int64_t head = 0; head < c.heads; ++head) {
    const float* q = c.q.data() + head * c.dk;
    std::vector<double> z(static_cast<size_t>(c.dk), 0.0);
    double sum = 0.0;
    for (int64_t j = 0; j < c.keys; ++j) {
      const int64_t at = (head * c.keys + j) * c.dk;
      double score = 0.0;
      for (int64_t d = 0; d < c.dk; ++d) {
        score += static_cast<double>(q[d]) * static_cast<double>(c.k[static_cast<size_t>(at + d)]);
      }
      const double weight = std::exp(score / std::sqrt(static_cast<double>(c.dk)));
      sum += weight;
      for (int64_t d = 0; d < c.dk; ++d) {
        z[static_cast<size_t>(d)] += weight * static_cast<double>(c.v[static_cast<size_t>(at + d)]);
      }
    }
    for (const double value : z) expected.push_back(value / sum);
  }
  for (const float value : c.z) actual.push_back(static_cast<double>(value));
  return Compare(expected, actual, tolerance);
}

}  // namespace

void DecodeRow(const Settings& settings, WorkerPool* pool, std::vector<Row>* rows) {
  if (!settings.Wants("decode_gbs_share")) return;
  auto c = MakeDecode(DType::kBF16, 32, settings.Size(128, 0), settings.Size(4096, 1), pool);
  uint64_t sum = 0;
  rows->push_back(TimeRatio(
      settings, "decode_gbs_share", [&] { sum += ReadAll(*c); }, [&] { RunDecode(c.get()); }));
  CHECK_NE(sum, 0u);  // it was read
  rows->back().error = Check(*c, 1e-2);
}

}  // namespace headwise::bench
