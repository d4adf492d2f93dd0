// SPDX-License-Identifier: Apache-2.0
// The float64 layer in stages that can be plugged: projections, heads, scores, weights, readings,
// output. The reference runs it with the default plan, audits with the plans of mistakes.
#ifndef HEADWISE_CORE_REFERENCE_STAGED_LAYER_H_
#define HEADWISE_CORE_REFERENCE_STAGED_LAYER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/layer/spec.h"
#include "core/layer/weights.h"
#include "core/reference/reference_input.h"
#include "core/reference/stage_plan.h"

namespace headwise {

// A tensor and, where bounds are asked for, how far right code in Numbers may be from each element.
struct Bounded {
  std::vector<double> value;
  std::vector<double> bound;  // empty: not asked for
};

// x W of q, k and v before their biases: [N or the rows asked for, sum dk over H], [M, sum dk over
// G], [M, sum dv over G].
struct Projections {
  Bounded q, k, v;
  // Rows of pruned heads that a norm over the whole width still counts: [., q_statistic_rows],
  // [M, k_statistic_rows].
  Bounded q_statistic, k_statistic;
};

// All stages, sequences packed. R is the number of query rows computed.
struct StageTensors {
  std::vector<int64_t> rows;          // [R] packed query positions
  Bounded q, k, v;                    // after clip, norm and RoPE; q has the rows of Projections
  std::vector<Bounded> scores;        // [B]: [H, rows of the sequence, S], before the mask
  std::vector<Bounded> p;             // [B]: the same
  Bounded z;                          // [R, sum dv over H], after gates, before concatenation
  std::vector<int64_t> y_rows;        // packed query positions of y
  Bounded y;                          // [rows of y, d_out]
  std::vector<double> contributions;  // [R, H, d_out] where asked for
  std::vector<bool> hidden;           // as all scores one after the other: the key may not be seen
};

struct StageOptions {
  std::vector<int64_t> rows;  // ascending packed query positions to compute; empty: all
  // [N, H] multiplies z; 0 makes it zero whatever it holds; empty: none.
  std::vector<double> gates;
  bool contributions = false;
  bool only_given_q_rows = false;  // Projections::q holds `rows` only
};

// Immutable, thread-safe. Bounds: each operation adds three times its unit roundoff times the root
// of the sum of its squared terms (independent roundings of unit u have a deviation of about 0.4 u,
// so that is 7 deviations); errors that come in are carried on by their derivative, as independent
// of each other.
class StagedLayer {
 public:
  // `spec` is resolved and `matrices` fit it. With `numbers`, bounds are computed.
  StagedLayer(LayerSpec spec, std::shared_ptr<const LayerMatrices> matrices, StagePlan plan = {},
              std::optional<Numbers> numbers = std::nullopt);

  const LayerSpec& spec() const { return spec_; }
  const StagePlan& plan() const { return plan_; }

  // q of the packed query positions `rows`; empty: all.
  Projections Project(const ReferenceInput& input, const std::vector<int64_t>& rows = {}) const;

  // Everything after Project. Where plan().mixes_rows(), z holds all rows, y those asked for.
  StageTensors Run(const ReferenceInput& input, const Projections& projections,
                   const StageOptions& options = {}) const;

  // Whether some query may see no key although there are keys.
  bool HasEmptyRows(const ReferenceInput& input) const;

 private:
  struct Place;  // of a sequence in the packed tensors
  struct Norm {
    const std::vector<float>&weight, &bias;
  };
  static std::vector<Place> Places(const ReferenceInput& input);

  // stages_project.cc
  Bounded Multiply(const std::vector<double>& in, const std::vector<int64_t>& rows,
                   const std::vector<float>& weight, int64_t out_width) const;
  Bounded MultiplyInt8(const std::vector<double>& in, const std::vector<float>& weight,
                       int64_t out_width) const;
  // [n, out_width]: the root of the sum of (in weight)^2 over the terms of each product.
  static std::vector<double> RootsOfSquares(const std::vector<double>& in,
                                            const std::vector<float>& weight, int64_t out_width);
  // stages_heads.cc
  void MakeHeads(const ReferenceInput& input, const Projections& projections,
                 const StageOptions& options, StageTensors* out) const;
  void AddBias(const std::vector<float>& bias, Bounded* features) const;
  void Split(const std::vector<int64_t>& lengths, int64_t heads, Bounded* features) const;
  void Normalise(const Norm& norm, const std::vector<int64_t>& begins, const Bounded& statistic,
                 Bounded* features) const;
  void NormaliseWidth(const Norm& norm, int64_t width, const Bounded& statistic,
                      Bounded* features) const;
  void Rotate(const std::vector<int64_t>& positions, double length,
              const std::vector<int64_t>& begins, int64_t first_row, Bounded* features) const;
  // stages_attend.cc
  struct Rows;  // one sequence's scores and weights under way
  void Attend(const ReferenceInput& input, const StageOptions& options, StageTensors* out) const;
  void AttendHeads(const StageOptions& options, StageTensors* out) const;
  double PositionBias(int64_t head, double scale, int64_t query_position,
                      int64_t key_position) const;
  void ScoreRow(const ReferenceInput& input, const Place& place, int64_t head, int64_t index,
                const StageTensors& tensors, Rows* rows) const;
  double MaskTerm(const ReferenceInput& input, const Place& place, int64_t head, int64_t query,
                  int64_t key) const;
  Reach ReachOf(const ReferenceInput& input) const;
  bool InReach(const Reach& reach, const Place& place, int64_t query, int64_t key) const;
  void ReadRow(const Place& place, int64_t head, int64_t index, const Rows& rows,
               StageTensors* out) const;
  // stages_softmax.cc
  void Softmax(Rows* rows) const;
  void SoftmaxRow(int64_t head, int64_t first, int64_t count, int64_t step, bool with_sink,
                  Rows* rows) const;
  void AfterSoftmax(Rows* rows) const;
  // stages_out.cc
  void Gate(const std::vector<double>& gates, StageTensors* out) const;
  Bounded Concatenate(const ReferenceInput& input, const StageTensors& tensors,
                      const std::vector<int64_t>& rows) const;
  void ProjectOut(const ReferenceInput& input, const StageOptions& options,
                  StageTensors* out) const;
  void Contribute(StageTensors* out) const;

  bool bounded() const { return numbers_.has_value(); }
  // What rounding a sum of `count` terms adds, by the root of its squared terms and its value.
  double SumBound(double count, double root, double value) const;
  double StoreBound(double value, double times = 1.0) const;

  const LayerSpec spec_;
  const std::shared_ptr<const LayerMatrices> matrices_;
  const StagePlan plan_;
  const std::optional<Numbers> numbers_;
  std::vector<int64_t> q_begin_, z_begin_;  // [H + 1] first column of each head in q, z
  std::vector<int64_t> k_begin_, v_begin_;  // [G + 1] first column of each head in k, v
};

}  // namespace headwise

#endif  // HEADWISE_CORE_REFERENCE_STAGED_LAYER_H_
