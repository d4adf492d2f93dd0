// SPDX-License-Identifier: Apache-2.0
// Rows of the benchmark: a name, a value against its bound, and how sure the value is.
#ifndef HEADWISE_TESTS_BENCH_BENCH_H_
#define HEADWISE_TESTS_BENCH_BENCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/base/dtype.h"
#include "core/base/worker_pool.h"
#include "core/layer/attention_layer.h"

namespace headwise::bench {

// What a row must reach. Shares and gains must be at least the bound, time ratios at most.
enum class Direction { kAtLeast, kAtMost };

struct Bound {
  const char* name;
  const char* what;
  Direction direction;
  double value;
};

// The bound of a row; ends the program for a name that the table doesn't hold.
const Bound& FindBound(const std::string& name);

struct Row {
  std::string name;
  double value = 0.0;
  double low = 0.0, high = 0.0;  // over the repetitions
  std::string unit;
  std::string error;  // a wrong number; empty: right
  std::string peer;   // whom the row compares with; empty: nobody
};

struct Settings {
  bool quick = false;
  int threads = 1;
  uint32_t jitter = 0;  // 0: none; else every dimension moves by up to 15 %, seeded
  std::string only;     // rows whose names begin so; empty: all

  int repetitions() const { return quick ? 3 : 11; }
  // Least time that a repetition measures each side.
  double seconds() const { return quick ? 0.06 : 0.2; }
  bool Wants(const std::string& name) const { return name.rfind(only, 0) == 0; }
  // A dimension as it is measured.
  int64_t Size(int64_t size, uint32_t which) const;
};

// Median and range.
struct Spread {
  double median = 0.0, low = 0.0, high = 0.0;
};
Spread SpreadOf(std::vector<double> values);
Row MakeRow(const std::string& name, const Spread& spread, const char* unit);

// Seconds of `work`: the best of a few runs that fill about `least_seconds`.
double BestSeconds(double least_seconds, absl::FunctionRef<void()> work);

// Seconds of one call.
double SecondsOf(absl::FunctionRef<void()> work);

// oneDNN's own matmul [m, k] x [k, n] with packed weights, in numbers of `dtype` (F32; BF16 with
// BF16 results; I8: u8 x s8 with f32 results), by `threads` threads of its OpenMP team.
class Matmul {
 public:
  Matmul(DType dtype, int64_t m, int64_t n, int64_t k, int threads);
  ~Matmul();
  void Run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// FLOP/s of the matmul that shares are taken of: 4096 x 2304 x 768.
class Peak {
 public:
  Peak(DType dtype, int threads);
  double Measure();

 private:
  Matmul matmul_;
};

struct Peaks {
  explicit Peaks(int threads) : f32(DType::kF32, threads), bf16(DType::kBF16, threads) {}
  Peak f32, bf16;
};

// `work` as a share of the peak, both measured in turn so that a busy neighbour hits both.
Row ShareOfPeak(const Settings& settings, const std::string& name, double flops, Peak* peak,
                absl::FunctionRef<void()> work);

// Time of `numerator` over time of `denominator`, measured in turn.
Row TimeRatio(const Settings& settings, const std::string& name,
              absl::FunctionRef<void()> numerator, absl::FunctionRef<void()> denominator);

// "" if the values agree within `tolerance` of the largest expected one, else where they don't.
std::string Compare(const std::vector<double>& expected, const std::vector<double>& actual,
                    double tolerance);

// Something to be timed as it is: whole layers through the engine's door, or the attention core
// alone from ready q, k, v.
struct Work {
  std::function<void()> run;
  int count = 1;                       // how often a run does it
  std::function<std::string()> check;  // "" or what is wrong, outside the timing
};
struct AttentionShape {
  int64_t batch = 0, length = 0, d_model = 0, heads = 0;
};
Work LayerWork(const Settings& settings, DType dtype, const AttentionShape& shape);
// A layer of one head, as wide as the head, whose projections change nothing.
std::shared_ptr<const AttentionLayer> CoreLayer(DType dtype, int64_t dk);
Work CoreWork(DType dtype, const AttentionShape& shape, WorkerPool* pool);

// Bytes of memory that this process holds now, and at most since the last ResetPeak.
int64_t ResidentBytes();
int64_t PeakResidentBytes();
void ResetPeak();

// The rows, by what they measure.
void CoreRows(const Settings& settings, Peaks* peaks, std::vector<Row>* rows);
void DecodeRow(const Settings& settings, WorkerPool* pool, std::vector<Row>* rows);
void ProjectionRows(const Settings& settings, std::vector<Row>* rows);
void LayerRows(const Settings& settings, Peaks* peaks, std::vector<Row>* rows);
void BatchRows(const Settings& settings, std::vector<Row>* rows);
// Against peers.py, which reads from the pipe `path`.in and writes to `path`.out.
void PeerRows(const Settings& settings, const std::string& path, std::vector<Row>* rows);
void ServiceRows(const Settings& settings, std::vector<Row>* rows);  // starts a server beside it

// The same width cut into 1 to 32 heads: prints a table and returns its rows. A wrong number makes
// a row's "error".
nlohmann::json HeadsTable(const Settings& settings);

}  // namespace headwise::bench

#endif  // HEADWISE_TESTS_BENCH_BENCH_H_
