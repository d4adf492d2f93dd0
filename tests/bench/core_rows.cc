// SPDX-License-Identifier: Apache-2.0
// The attention core alone: from ready q, k, v to z, all [B, H, T, dk], the layout work included.
#include <algorithm>
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

std::shared_ptr<const AttentionLayer> CoreLayer(DType dtype, int64_t dk) {
  TestLayer test = IdentityLayer(dk, 1);
  auto spec = ResolveSpec(test.spec);
  CHECK(spec.ok()) << spec.status();
  LayerInfo info;
  info.spec = *std::move(spec);
  info.dtype = dtype;
  auto layer = AttentionLayer::Create(std::move(info), test.matrices, BestKernelPath());
  CHECK(layer.ok()) << layer.status();
  return *layer;
}

namespace {

struct Mask {
  bool causal = false;
  int64_t window = -1;
};

// Each head of each sequence is a unit: a sequence of its own in a layer of one head.
struct Case {
  std::shared_ptr<const AttentionLayer> layer;
  int64_t units, dk, length;
  Mask mask;
  std::vector<float> q, k, v, z;  // [units, T, dk]; q has a tile's rows to spare
  struct Worker {
    std::vector<float> q, kt, v;  // room for f32, used for bf16 as well
    std::vector<uint8_t> flags;
    PassData pass;
    WorkerScratch scratch;
  };
  std::vector<Worker> workers;
  std::vector<AttendTile> tiles;  // of a unit
  WorkerPool* pool;

  int64_t unit_floats() const { return length * dk; }
};

std::unique_ptr<Case> MakeCase(DType dtype, int64_t units, int64_t dk, int64_t length,
                               const Mask& mask, WorkerPool* pool) {
  auto c = std::make_unique<Case>();
  c->layer = CoreLayer(dtype, dk);
  c->units = units;
  c->dk = dk;
  c->length = length;
  c->mask = mask;
  c->pool = pool;
  const int64_t floats = units * c->unit_floats();
  c->q = RandomFloats(floats + kQueryTile * dk, 1);
  c->k = RandomFloats(floats, 2);
  c->v = RandomFloats(floats, 3);
  c->z.resize(static_cast<size_t>(floats));
  for (int64_t t = 0; t < length; t += kQueryTile) {
    c->tiles.push_back({0, 0, t, std::min(kQueryTile, length - t)});
  }
  SequencePlan s;
  s.queries = s.keys = length;
  s.causal = mask.causal;
  s.window = mask.window;
  const size_t padded = static_cast<size_t>(s.padded_keys() * PadFeatures(dk));
  c->workers.resize(static_cast<size_t>(pool->threads()));
  for (Case::Worker& worker : c->workers) {
    worker.q.resize(static_cast<size_t>((length + kQueryTile) * dk));
    worker.kt.resize(padded);
    worker.v.resize(padded);
    worker.flags.resize(padded);
    PassData& p = worker.pass;
    p.sequences = {s};
    p.query_rows = p.key_rows = length;
    p.padded_key_rows = s.padded_keys();
    p.kt = worker.kt.data();
    p.v = worker.v.data();
    p.v_not_finite = worker.flags.data();
  }
  return c;
}

// Rows of q, k and v, from a multiple of kTileRows on, to where attention reads them; f32 queries
// are read where they lie.
void LayOut(Case* c, int64_t unit, int64_t row, Case::Worker* worker) {
  PassData& p = worker->pass;
  const int64_t at = unit * c->unit_floats();
  const auto rows = [&](std::vector<float>* from) {
    return HeadRows{
        &p.sequences[0],
        row,
        {from->data() + at + row * c->dk, std::min(kTileRows, c->length - row), c->dk, c->dk}};
  };
  if (c->layer->attend_type() != TileType::kF32) StoreQueries(*c->layer, 0, rows(&c->q), &p);
  StoreKeys(*c->layer, 0, rows(&c->k), &p, &worker->scratch);
  StoreValues(*c->layer, 0, rows(&c->v), &p);
}

// Asks for rows of q, k and v, from `row` on, as an answered projection would have left them.
void ExpectRows(const Case& c, int64_t unit, int64_t row, int64_t rows, Case::Worker* worker) {
  for (const std::vector<float>* data : {&c.k, &c.v, &c.q}) {
    worker->scratch.ahead.Want(data->data() + unit * c.unit_floats() + row * c.dk, rows * c.dk * 4);
  }
}

// What is read next: rows of this unit that no tile has seen, then the worker's next unit.
void ExpectNext(const Case& c, int64_t unit, int64_t row, int w, Case::Worker* worker) {
  worker->scratch.ahead.Clear();
  if (row < c.length) {
    ExpectRows(c, unit, row, std::min(kTileRows, c.length - row), worker);
  } else if (const int64_t next = c.pool->Upcoming(w); next >= 0) {
    ExpectRows(c, next, 0, c.length, worker);
  }
}

// Keys are laid out when the first tile sees them: all at once where every row sees every key.
void RunCore(Case* c) {
  c->pool->Run(c->units, [&](int64_t unit, int w) {
    Case::Worker* worker = &c->workers[static_cast<size_t>(w)];
    PassData& p = worker->pass;
    const int64_t at = unit * c->unit_floats();
    const bool copy_q = c->layer->attend_type() != TileType::kF32;
    p.q = copy_q ? worker->q.data() : c->q.data() + at;
    p.z = c->z.data() + at;
    int64_t laid_out = 0;
    for (const AttendTile& tile : c->tiles) {
      const int64_t end = p.sequences[0].Visible(tile.first_query + tile.queries - 1).end;
      if (laid_out < end) {
        for (; laid_out < end; laid_out += kTileRows) LayOut(c, unit, laid_out, worker);
        ExpectNext(*c, unit, laid_out, w, worker);
      }
      RunAttend(*c->layer, tile, &p, &worker->scratch);
    }
  });
}

// Plain double loops over 64 rows of the last unit and of the first one.
std::string CheckCore(const Case& c, double tolerance) {
  std::vector<double> expected, actual;
  const int64_t step = std::max<int64_t>(1, c.length / 64);
  for (const int64_t unit : {int64_t{0}, c.units - 1}) {
    const auto at = [&](int64_t row, int64_t d) {
      return static_cast<size_t>((unit * c.length + row) * c.dk + d);
    };
    for (int64_t t = c.length - 1; t >= 0; t -= step) {
      const int64_t end = c.mask.causal ? t + 1 : c.length;
      const int64_t begin = c.mask.window < 0 ? 0 : std::max<int64_t>(0, t + 1 - c.mask.window);
      std::vector<double> z(static_cast<size_t>(c.dk), 0.0);
      double sum = 0.0;
      for (int64_t j = begin; j < end; ++j) {
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
  return Compare(expected, actual, tolerance);
}

// Error of z against doubles: dot products of dk terms and sums over the keys.
double Tolerance(DType dtype) { return dtype == DType::kF32 ? 5e-6 : 1e-2; }

void CoreRow(const Settings& settings, DType dtype, Peak* peak, WorkerPool* pool, int64_t batch,
             int64_t length, int64_t heads, std::vector<Row>* rows) {
  const std::string name =
      absl::StrCat("core_", dtype == DType::kF32 ? "f32" : "bf16", "_t", length);
  if (!settings.Wants(name)) return;
  const int64_t t = settings.Size(length, 1), dk = settings.Size(64, 0);
  const Work work = CoreWork(dtype, {batch, t, heads * dk, heads}, pool);
  const double flops = 4.0 * static_cast<double>(batch * heads * dk) * static_cast<double>(t * t);
  rows->push_back(ShareOfPeak(settings, name, flops, peak, work.run));
  rows->back().error = work.check();
}

void CausalRow(const Settings& settings, WorkerPool* pool, std::vector<Row>* rows) {
  if (!settings.Wants("causal_over_dense_t2048")) return;
  const int64_t t = settings.Size(2048, 1);
  auto dense = MakeCase(DType::kF32, 16, 64, t, Mask{}, pool);
  auto causal = MakeCase(DType::kF32, 16, 64, t, Mask{.causal = true}, pool);
  rows->push_back(TimeRatio(
      settings, "causal_over_dense_t2048", [&] { RunCore(causal.get()); },
      [&] { RunCore(dense.get()); }));
  rows->back().error = CheckCore(*causal, Tolerance(DType::kF32));
}

// Time of a visible pair under a window, over that of a dense layer.
void WindowRow(const Settings& settings, WorkerPool* pool, std::vector<Row>* rows) {
  if (!settings.Wants("window_over_visible")) return;
  const int64_t t = settings.Size(8192, 1), window = settings.Size(256, 2);
  const int64_t dense_t = settings.Size(2048, 1);
  auto windowed = MakeCase(DType::kF32, 16, 64, t, Mask{.causal = true, .window = window}, pool);
  auto dense = MakeCase(DType::kF32, 16, 64, dense_t, Mask{}, pool);
  rows->push_back(TimeRatio(
      settings, "window_over_visible", [&] { RunCore(windowed.get()); },
      [&] { RunCore(dense.get()); }));
  const double visible = static_cast<double>(t * window - window * (window - 1) / 2);
  const double pairs = static_cast<double>(dense_t * dense_t) / visible;
  Row& row = rows->back();
  row.value *= pairs;
  row.low *= pairs;
  row.high *= pairs;
  row.error = CheckCore(*windowed, Tolerance(DType::kF32));
}

}  // namespace

Work CoreWork(DType dtype, const AttentionShape& shape, WorkerPool* pool) {
  const std::shared_ptr<Case> c = MakeCase(dtype, shape.batch * shape.heads,
                                           shape.d_model / shape.heads, shape.length, Mask{}, pool);
  return {.run = [c] { RunCore(c.get()); },
          .count = 1,
          .check = [c, dtype] { return CheckCore(*c, Tolerance(dtype)); }};
}

void CoreRows(const Settings& settings, Peaks* peaks, std::vector<Row>* rows) {
  WorkerPool pool(settings.threads);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Peak* peak = dtype == DType::kF32 ? &peaks->f32 : &peaks->bf16;
    CoreRow(settings, dtype, peak, &pool, 1, 2048, 16, rows);
    CoreRow(settings, dtype, peak, &pool, 8, 512, 12, rows);
    CoreRow(settings, dtype, peak, &pool, 8, 128, 12, rows);
  }
  CausalRow(settings, &pool, rows);
  WindowRow(settings, &pool, rows);
  DecodeRow(settings, &pool, rows);
}

}  // namespace headwise::bench
