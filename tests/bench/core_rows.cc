// SPDX-License-Identifier: Apache-2.0
// The attention core alone: from ready q, k, v [rows, H * dk] to z, the layout work included.
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "core/base/worker_pool.h"
#include "core/kernel/attend.h"
#include "core/kernel/project.h"
#include "core/layer/attention_layer.h"
#include "tests/bench/bench.h"
#include "tests/support/test_layer.h"

namespace headwise::bench {
namespace {

struct Case {
  std::shared_ptr<const AttentionLayer> layer;
  int64_t heads, dk, batch, length;
  std::vector<float> q, k, v;  // [B * T, H * dk]
  std::vector<float> q_packed, kt, v_packed, z;
  std::vector<uint8_t> flags;
  PassData pass;
  std::vector<AttendTile> tiles;
  std::vector<WorkerScratch> scratch;
  WorkerPool* pool;

  int64_t rows() const { return batch * length; }
  int64_t width() const { return heads * dk; }
};

std::shared_ptr<const AttentionLayer> CoreLayer(int64_t heads, int64_t dk) {
  TestLayer test = IdentityLayer(heads * dk, heads);
  auto spec = ResolveSpec(test.spec);
  CHECK(spec.ok()) << spec.status();
  LayerInfo info;
  info.spec = *std::move(spec);
  auto layer = AttentionLayer::Create(std::move(info), test.matrices, BestKernelPath());
  CHECK(layer.ok()) << layer.status();
  return *layer;
}

std::unique_ptr<Case> MakeCase(int64_t heads, int64_t dk, int64_t batch, int64_t length,
                               bool causal, WorkerPool* pool) {
  auto c = std::make_unique<Case>();
  c->layer = CoreLayer(heads, dk);
  c->heads = heads;
  c->dk = dk;
  c->batch = batch;
  c->length = length;
  c->pool = pool;
  const int64_t floats = c->rows() * c->width();
  c->q = RandomFloats(floats, 1);
  c->k = RandomFloats(floats, 2);
  c->v = RandomFloats(floats, 3);
  const int64_t padded = batch * PadKeys(length);
  c->q_packed.resize(static_cast<size_t>(floats + kQueryTile * dk));
  c->kt.resize(static_cast<size_t>(padded * c->width()));
  c->v_packed.resize(c->kt.size());
  c->z.resize(static_cast<size_t>(floats));
  c->flags.resize(static_cast<size_t>(padded * heads));
  c->scratch.resize(static_cast<size_t>(pool->threads()));
  PassData& p = c->pass;
  for (int64_t b = 0; b < batch; ++b) {
    SequencePlan s;
    s.queries = s.keys = length;
    s.q_row = s.kv_row = b * length;
    s.key_slot = b * PadKeys(length);
    s.causal = causal;
    p.sequences.push_back(s);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = (length - 1) / kQueryTile * kQueryTile; t >= 0; t -= kQueryTile) {
        c->tiles.push_back({b, h, t, std::min(kQueryTile, length - t)});
      }
    }
  }
  p.query_rows = p.key_rows = c->rows();
  p.padded_key_rows = padded;
  p.q = c->q_packed.data();
  p.kt = c->kt.data();
  p.v = c->v_packed.data();
  p.z = c->z.data();
  p.v_not_finite = c->flags.data();
  return c;
}

void RunCore(Case* c) {
  c->pool->Run(c->batch * c->heads, [&](int64_t i, int) {
    const int64_t head = i % c->heads;
    const SequencePlan& s = c->pass.sequences[static_cast<size_t>(i / c->heads)];
    const int64_t at = s.q_row * c->width() + head * c->dk;
    const auto rows = [&](const std::vector<float>& from) {
      return HeadRows{&s, 0, s.keys, from.data() + at, c->width()};
    };
    StoreQueries(*c->layer, head, rows(c->q), &c->pass);
    StoreKeys(*c->layer, head, rows(c->k), &c->pass);
    StoreValues(*c->layer, head, nullptr, rows(c->v), &c->pass);
  });
  c->pool->Run(static_cast<int64_t>(c->tiles.size()), [&](int64_t i, int worker) {
    RunAttend(*c->layer, c->tiles[static_cast<size_t>(i)], &c->pass,
              &c->scratch[static_cast<size_t>(worker)]);
  });
}

// Plain double loops over 64 rows of the last sequence, all heads.
std::string CheckCore(const Case& c, bool causal) {
  std::vector<double> expected, actual;
  const int64_t first = (c.batch - 1) * c.length;
  const int64_t step = std::max<int64_t>(1, c.length / 64);
  for (int64_t t = c.length - 1; t >= 0; t -= step) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const auto at = [&](int64_t row, int64_t d) {
        return static_cast<size_t>((first + row) * c.width() + h * c.dk + d);
      };
      const int64_t keys = causal ? t + 1 : c.length;
      std::vector<double> z(static_cast<size_t>(c.dk), 0.0);
      double sum = 0.0;
      for (int64_t j = 0; j < keys; ++j) {
        double score = 0.0;
        for (int64_t d = 0; d < c.dk; ++d) {
          score += static_cast<double>(c.q[at(t, d)]) * static_cast<double>(c.k[at(j, d)]);
        }
        const double weight = std::exp(score / std::sqrt(static_cast<double>(c.dk)));
        sum += weight;
        for (int64_t d = 0; d < c.dk; ++d) {
          z[static_cast<size_t>(d)] += weight * static_cast<double>(c.v[at(j, d)]);
        }
      }
      for (int64_t d = 0; d < c.dk; ++d) {
        expected.push_back(z[static_cast<size_t>(d)] / sum);
        actual.push_back(static_cast<double>(c.z[at(t, d)]));
      }
    }
  }
  return Compare(expected, actual, 5e-6);
}

void CoreRow(const Settings& settings, Peak* peak, WorkerPool* pool, int64_t batch, int64_t length,
             int64_t heads, std::vector<Row>* rows) {
  const int64_t dk = settings.Size(64, 0);
  const int64_t t = settings.Size(length, 1);
  auto c = MakeCase(heads, dk, batch, t, /*causal=*/false, pool);
  const double flops = 4.0 * static_cast<double>(batch * heads * dk) * static_cast<double>(t * t);
  rows->push_back(ShareOfPeak(settings, absl::StrCat("core_f32_t", length), flops, peak,
                              [&] { RunCore(c.get()); }));
  rows->back().error = CheckCore(*c, false);
}

}  // namespace

void CoreRows(const Settings& settings, Peak* peak, std::vector<Row>* rows) {
  WorkerPool pool(settings.threads);
  CoreRow(settings, peak, &pool, 1, 2048, 16, rows);
  CoreRow(settings, peak, &pool, 8, 512, 12, rows);
  CoreRow(settings, peak, &pool, 8, 128, 12, rows);
  const int64_t t = settings.Size(2048, 1);
  auto dense = MakeCase(16, 64, 1, t, false, &pool);
  auto causal = MakeCase(16, 64, 1, t, true, &pool);
  rows->push_back(TimeRatio(
      settings, "causal_over_dense_t2048", [&] { RunCore(causal.get()); },
      [&] { RunCore(dense.get()); }));
  rows->back().error = CheckCore(*causal, true);
}

}  // namespace headwise::bench
