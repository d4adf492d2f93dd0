// SPDX-License-Identifier: Apache-2.0
// The projections alone: x to q, k and v where attention reads them, against oneDNN's own matmul of
// the same size with its weights packed.
#include <cmath>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/worker_pool.h"
#include "core/kernel/project.h"
#include "core/layer/attention_layer.h"
#include "tests/bench/bench.h"
#include "tests/support/test_layer.h"

namespace headwise::bench {
namespace {

constexpr int64_t kHeads = 12;

struct ProjectionCase {
  TestLayer test;
  std::shared_ptr<const AttentionLayer> layer;
  std::vector<float> x, q, kt, v;
  std::vector<uint8_t> flags;
  PassData pass;
  std::vector<ProjectTask> tasks;
  std::vector<WorkerScratch> scratch;
};

std::unique_ptr<ProjectionCase> MakeCase(const Settings& settings, DType dtype) {
  auto c = std::make_unique<ProjectionCase>();
  const int64_t width = settings.Size(64, 0) * kHeads;
  const int64_t rows = settings.Size(4096, 1);
  c->test = RandomLayer(BasicSpec(width, kHeads), 5);
  LayerInfo info;
  info.spec = c->test.spec;
  info.dtype = dtype;
  auto layer = AttentionLayer::Create(std::move(info), c->test.matrices, BestKernelPath());
  CHECK(layer.ok()) << layer.status();
  c->layer = *layer;
  c->x = RandomFloats(rows * width, 6);
  SequencePlan s;
  s.queries = s.keys = rows;
  const size_t numbers = static_cast<size_t>((s.padded_keys() + kQueryTile) * width);
  c->q.resize(numbers);
  c->kt.resize(numbers);
  c->v.resize(static_cast<size_t>(s.padded_keys() * c->layer->value_width()));
  c->flags.resize(numbers);
  c->pass.sequences = {s};
  c->pass.x = c->pass.memory = c->x.data();
  c->pass.query_rows = c->pass.key_rows = rows;
  c->pass.padded_key_rows = s.padded_keys();
  c->pass.q = c->q.data();
  c->pass.kt = c->kt.data();
  c->pass.v = c->v.data();
  c->pass.v_not_finite = c->flags.data();
  const size_t blocks = c->layer->q_blocks().size() + c->layer->kv_blocks().size();
  for (int64_t row = 0; row < rows; row += kTileRows) {
    c->tasks.push_back({row, std::min(kTileRows, rows - row), 0, static_cast<int64_t>(blocks)});
  }
  c->scratch.resize(static_cast<size_t>(settings.threads));
  return c;
}

// q of 64 rows, all heads, against doubles.
std::string Check(const ProjectionCase& c, DType dtype) {
  const int64_t width = c.test.spec.d_model;
  const int64_t rows = c.pass.query_rows;
  std::vector<float> q(static_cast<size_t>(rows * width));
  for (int64_t head = 0; head < kHeads; ++head) {
    LoadHead(*c.layer, ProjectionRole::kQ, head, c.pass.sequences[0], c.pass, width,
             q.data() + c.layer->q_offsets()[static_cast<size_t>(head)]);
  }
  std::vector<double> expected, actual;
  for (int64_t row = rows - 1; row >= 0; row -= std::max<int64_t>(1, rows / 64)) {
    for (int64_t column = 0; column < width; ++column) {
      double sum = static_cast<double>(c.test.matrices.bq[static_cast<size_t>(column)]);
      for (int64_t i = 0; i < width; ++i) {
        sum += static_cast<double>(c.x[static_cast<size_t>(row * width + i)]) *
               static_cast<double>(c.test.matrices.wq[static_cast<size_t>(column * width + i)]);
      }
      expected.push_back(sum);
      actual.push_back(static_cast<double>(q[static_cast<size_t>(row * width + column)]));
    }
  }
  return Compare(expected, actual, dtype == DType::kF32 ? 1e-5 : 2e-2);
}

}  // namespace

void ProjectionRows(const Settings& settings, std::vector<Row>* rows) {
  WorkerPool pool(settings.threads);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    const std::string name = absl::StrCat(
        "projection_", dtype == DType::kI8 ? "int8" : absl::AsciiStrToLower(DTypeName(dtype)));
    if (!settings.Wants(name)) continue;
    auto c = MakeCase(settings, dtype);
    const int64_t width = c->test.spec.d_model;
    Matmul matmul(dtype, c->pass.query_rows, 3 * width, width, settings.threads);
    rows->push_back(TimeRatio(
        settings, name, [&] { matmul.Run(); },
        [&] {
          pool.Run(static_cast<int64_t>(c->tasks.size()), [&](int64_t i, int worker) {
            RunProject(*c->layer, c->tasks[static_cast<size_t>(i)], &c->pass,
                       &c->scratch[static_cast<size_t>(worker)]);
          });
        }));
    rows->back().error = Check(*c, dtype);
  }
}

}  // namespace headwise::bench
