// SPDX-License-Identifier: Apache-2.0
// Rows of the benchmark: a name, a value against its bound, and how sure the value is.
#ifndef HEADWISE_TESTS_BENCH_BENCH_H_
#define HEADWISE_TESTS_BENCH_BENCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

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
};

struct Settings {
  bool quick = false;
  int threads = 1;
  uint32_t jitter = 0;  // 0: none; else every dimension moves by up to 15 %, seeded

  int repetitions() const { return quick ? 5 : 11; }
  // A dimension as it is measured.
  int64_t Size(int64_t size, uint32_t which) const;
};

// Median and range.
struct Spread {
  double median = 0.0, low = 0.0, high = 0.0;
};
Spread SpreadOf(std::vector<double> values);

// Seconds of `work`: the best of a few runs that fill about `least_seconds`.
double BestSeconds(double least_seconds, absl::FunctionRef<void()> work);

// FLOP/s of oneDNN's own f32 matmul, 4096 x 2304 x 768 with packed weights and `threads` threads.
class Peak {
 public:
  explicit Peak(int threads);
  ~Peak();
  double Measure();

 private:
  struct State;
  std::unique_ptr<State> state_;
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

// The rows, by what they measure.
void CoreRows(const Settings& settings, Peak* peak, std::vector<Row>* rows);
void LayerRows(const Settings& settings, Peak* peak, std::vector<Row>* rows);
void BatchRows(const Settings& settings, std::vector<Row>* rows);

}  // namespace headwise::bench

#endif  // HEADWISE_TESTS_BENCH_BENCH_H_
