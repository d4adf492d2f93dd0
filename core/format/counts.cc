// SPDX-License-Identifier: Apache-2.0
#include "core/format/counts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace headwise {
namespace {

constexpr int64_t kMaxHeads = 65536;

// A count that remembers whether it ever left the range of int64.
class Checked {
 public:
  Checked(int64_t value = 0) : value_(value) {}  // NOLINT: numbers are written as numbers

  friend Checked operator+(Checked a, Checked b) {
    Checked sum;
    sum.over_ = __builtin_add_overflow(a.value_, b.value_, &sum.value_) || a.over_ || b.over_;
    return sum;
  }
  friend Checked operator*(Checked a, Checked b) {
    Checked product;
    product.over_ =
        __builtin_mul_overflow(a.value_, b.value_, &product.value_) || a.over_ || b.over_;
    return product;
  }
  int64_t value() const { return value_; }
  bool over() const { return over_; }

 private:
  int64_t value_;
  bool over_ = false;
};

Checked Sum(const std::vector<int64_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), Checked());
}

// n (n + 1) / 2 without leaving the range on the way.
Checked Triangle(int64_t n) {
  return n % 2 == 0 ? Checked(n / 2) * (Checked(n) + 1) : (Checked(n / 2) + 1) * n;
}

// Pairs (query, key) that a causal mask leaves when the last query sees the last key.
Checked CausalPairs(int64_t queries, int64_t keys) {
  if (queries > keys) return Triangle(keys);
  return Checked(queries) * (keys - queries) + Triangle(queries);
}

struct Widths {
  Checked q, k, v, z;  // sums over heads
};

Widths SumWidths(const CountShape& shape) {
  return {Sum(shape.dk), Sum(shape.kv_dk), Sum(shape.kv_dv), Sum(shape.dv)};
}

// One of W_q, W_k, W_v, W_o with what it costs.
struct Matrix {
  absl::string_view id;      // "q", …
  std::string shape;         // of the weight, in letters
  absl::string_view length;  // how many rows it is applied to
  Checked weight, bias;      // parameters; a bias that the layer lacks is 0
  Checked macs;
};

bool Equal(const std::vector<int64_t>& widths) {
  return std::all_of(widths.begin(), widths.end(),
                     [&](int64_t width) { return width == widths[0]; });
}

// The widths together, in letters: of H query heads or of G key/value heads.
std::string WidthLetters(const CountShape& shape, bool groups, absl::string_view width) {
  const bool equal = Equal(shape.dk) && Equal(shape.dv);
  if (equal)
    return absl::StrCat(groups && shape.kv_dk.size() != shape.dk.size() ? "G*" : "H*", width);
  return absl::StrCat("sum of ", width, groups ? " over key/value heads" : "");
}

// W_q, W_k, W_v, W_o and, where there are any, the rows in the statistics of q and k.
std::vector<Matrix> Matrices(const CountShape& shape, const CountWorkload& work,
                             const Widths& widths) {
  const Checked queries = Checked(work.batch) * work.queries;
  const Checked keys = Checked(work.batch) * work.keys;
  const std::string memory = shape.d_memory == shape.d_model ? "D" : "d_memory";
  const std::string out = shape.d_out == shape.d_model ? "D" : "d_out";
  const auto matrix = [](absl::string_view id, std::string letters, absl::string_view length,
                         Checked weight, bool has_bias, Checked bias, Checked rows) {
    return Matrix{id, std::move(letters), length, weight, has_bias ? bias : 0, weight * rows};
  };
  std::vector<Matrix> matrices = {
      matrix("q", "D * " + WidthLetters(shape, false, "dk"), "B*T", widths.q * shape.d_model,
             shape.q_bias, widths.q, queries),
      matrix("k", memory + " * " + WidthLetters(shape, true, "dk"), "B*S",
             widths.k * shape.d_memory, shape.k_bias, widths.k, keys),
      matrix("v", memory + " * " + WidthLetters(shape, true, "dv"), "B*S",
             widths.v * shape.d_memory, shape.v_bias, widths.v, keys),
      matrix("o", WidthLetters(shape, false, "dv") + " * " + out, "B*T", widths.z * shape.d_out,
             shape.o_bias, shape.d_out, queries)};
  const std::string pruned = " * rows of pruned heads in the norm's statistic";
  if (const int64_t rows = shape.q_statistic_rows; rows > 0) {
    matrices.push_back(matrix("q_statistic", "D" + pruned, "B*T", Checked(rows) * shape.d_model,
                              shape.q_statistic_bias, rows, queries));
  }
  if (const int64_t rows = shape.k_statistic_rows; rows > 0) {
    matrices.push_back(matrix("k_statistic", memory + pruned, "B*S", Checked(rows) * shape.d_memory,
                              shape.k_statistic_bias, rows, keys));
  }
  return matrices;
}

bool HasStatistic(const CountShape& shape) {
  return shape.q_statistic_rows > 0 || shape.k_statistic_rows > 0;
}

std::string BiasConvention(const CountShape& shape) {
  std::vector<absl::string_view> names;
  if (shape.q_bias) names.push_back("b_q");
  if (shape.k_bias) names.push_back("b_k");
  if (shape.v_bias) names.push_back("b_v");
  if (shape.o_bias) names.push_back("b_o");
  if (shape.q_statistic_bias) names.push_back("b_q_statistic");
  if (shape.k_statistic_bias) names.push_back("b_k_statistic");
  return names.empty() ? "the layer has no bias" : absl::StrJoin(names, ", ");
}

absl::Status CheckSizes(const CountShape& shape, const CountWorkload& work) {
  std::vector<int64_t> sizes = {
      shape.d_model, shape.d_memory,         shape.d_out,           work.batch, work.queries,
      work.keys,     shape.q_statistic_rows, shape.k_statistic_rows};
  for (const std::vector<int64_t>* widths : {&shape.dk, &shape.dv, &shape.kv_dk, &shape.kv_dv}) {
    sizes.insert(sizes.end(), widths->begin(), widths->end());
  }
  const int64_t smallest = *std::min_element(sizes.begin(), sizes.end());
  if (smallest >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("size: must not be negative; was ", smallest));
}

// Adds counts and keeps the first that overflowed.
class CountList {
 public:
  void Add(absl::string_view id, Checked value, absl::string_view unit,
           absl::string_view convention) {
    if (value.over() && overflowed_.empty()) overflowed_ = std::string(id);
    counts_.push_back({std::string(id), value.value(), std::string(unit), std::string(convention)});
  }
  absl::StatusOr<std::vector<Count>> Take() {
    if (overflowed_.empty()) return std::move(counts_);
    return absl::InvalidArgumentError(
        absl::StrCat(overflowed_, ": must be at most 2^63 - 1; was larger"));
  }

 private:
  std::vector<Count> counts_;
  std::string overflowed_;
};

void AddScores(const CountShape& shape, const CountWorkload& work, CountList* list) {
  const Checked rows = Checked(work.batch) * static_cast<int64_t>(shape.dk.size());
  const bool square = work.queries == work.keys;
  list->Add("score_elements", rows * work.queries * work.keys, "element", "B*H*T*S, dense");
  list->Add(
      "score_elements_causal", rows * CausalPairs(work.queries, work.keys), "element",
      square ? "B*H*T(T+1)/2" : "B*H*pairs that a causal mask leaves, last query at last key");
}

// Returns the parameters with biases.
Checked AddParameters(const CountShape& shape, const std::vector<Matrix>& matrices,
                      CountList* list) {
  Checked without, with;
  for (const Matrix& matrix : matrices) {
    without = without + matrix.weight;
    with = with + matrix.weight + matrix.bias;
  }
  const std::string pruned =
      HasStatistic(shape) ? "; rows of pruned heads in the norm's statistic too" : "";
  list->Add("parameters", without, "parameter", "without bias" + pruned);
  list->Add("parameters_with_bias", with, "parameter", BiasConvention(shape) + pruned);
  for (const Matrix& matrix : matrices) {
    const std::string id = absl::StrCat("parameters_", matrix.id);
    const std::string letters = absl::StrCat("W_", matrix.id, ": ", matrix.shape);
    const bool biased = matrix.bias.over() || matrix.bias.value() > 0;
    list->Add(id, matrix.weight, "parameter", letters);
    list->Add(id + "_with_bias", matrix.weight + matrix.bias, "parameter",
              absl::StrCat(letters, biased ? absl::StrCat(", and b_", matrix.id) : ", no bias"));
  }
  return with;
}

// A stage's multiply-accumulates, and as many FLOPs twice.
struct Stage {
  std::string id;
  Checked macs;
  std::string convention;
};

void AddWork(const CountShape& shape, const CountWorkload& work, const Widths& widths,
             const std::vector<Matrix>& matrices, CountList* list) {
  const Checked dense_pairs = Checked(work.batch) * work.queries * work.keys;
  const Checked causal_pairs = Checked(work.batch) * CausalPairs(work.queries, work.keys);
  Checked projections;
  std::vector<Stage> stages;
  for (const Matrix& matrix : matrices) {
    projections = projections + matrix.macs;
    stages.push_back(
        {std::string(matrix.id), matrix.macs, absl::StrCat(matrix.length, " * ", matrix.shape)});
  }
  const std::string dk = WidthLetters(shape, false, "dk"), dv = WidthLetters(shape, false, "dv");
  stages.push_back({"scores_dense", widths.q * dense_pairs, "B*T*S * " + dk});
  stages.push_back({"scores_causal", widths.q * causal_pairs, "B * causal pairs * " + dk});
  stages.push_back({"values_dense", widths.z * dense_pairs, "B*T*S * " + dv});
  stages.push_back({"values_causal", widths.z * causal_pairs, "B * causal pairs * " + dv});
  const Checked per_pair = widths.q + widths.z;
  const Checked dense = projections + per_pair * dense_pairs;
  const Checked causal = projections + per_pair * causal_pairs;
  const std::string parts = HasStatistic(shape)
                                ? "projections + the norm's statistic + scores + values"
                                : "projections + scores + values";
  list->Add("macs_dense", dense, "mac", parts);
  list->Add("macs_causal", causal, "mac", parts + " of causal pairs");
  list->Add("flops_dense", dense * 2, "flop",
            "2 per multiply-accumulate; bias, RoPE, mask, softmax not counted");
  list->Add("flops_causal", causal * 2, "flop",
            "2 per multiply-accumulate of causal pairs; bias, RoPE, mask, softmax not counted");
  for (const Stage& stage : stages) {
    list->Add("macs_" + stage.id, stage.macs, "mac", stage.convention);
    list->Add("flops_" + stage.id, stage.macs * 2, "flop", "2 * " + stage.convention);
  }
}

void AddBytes(const CountShape& shape, const CountWorkload& work, const Widths& widths,
              Checked parameters_with_bias, CountList* list) {
  const Checked rows = Checked(work.batch) * static_cast<int64_t>(shape.dk.size());
  list->Add("weight_bytes", parameters_with_bias * shape.weight_element_bytes, "byte",
            absl::StrCat("parameters with bias, ", shape.weight_element_bytes, " bytes each"));
  const Checked activations =
      Checked(work.batch) * ((widths.q + widths.z + shape.d_model + shape.d_out) * work.queries +
                             (widths.k + widths.v) * work.keys);
  list->Add("activation_bytes", activations * shape.activation_element_bytes, "byte",
            absl::StrCat("x, q, k, v, z and y, ", shape.activation_element_bytes,
                         " bytes a number; no scores"));
  list->Add("kv_bytes_per_token", (widths.k + widths.v) * shape.activation_element_bytes, "byte",
            absl::StrCat("k and v of one key position, ", shape.activation_element_bytes,
                         " bytes a number"));
  list->Add("score_tensor_bytes", rows * work.queries * work.keys * shape.activation_element_bytes,
            "byte",
            absl::StrCat("B*H*T*S if it were stored, ", shape.activation_element_bytes,
                         " bytes a number"));
}

}  // namespace

absl::StatusOr<CountShape> MakeCountShape(int64_t d_model, int64_t heads, int64_t kv_heads,
                                          int64_t dk, int64_t dv) {
  if (d_model < 1) {
    return absl::InvalidArgumentError(absl::StrCat("width: must be positive; was ", d_model));
  }
  if (heads < 1 || heads > kMaxHeads) {
    return absl::InvalidArgumentError(
        absl::StrCat("heads: must be 1 to ", kMaxHeads, "; was ", heads));
  }
  if (dk < 0 || dv < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(dk < 0 ? "dk" : "dv", ": must be positive; was ", std::min(dk, dv)));
  }
  if (dk == 0 && d_model % heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "width: model width must divide evenly across heads; was ", d_model, " for ", heads));
  }
  if (kv_heads == 0) kv_heads = heads;
  if (kv_heads < 0 || heads % kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_heads: must divide ", heads, " heads evenly; was ", kv_heads));
  }
  if (dk == 0) dk = d_model / heads;
  if (dv == 0) dv = dk;
  CountShape shape;
  shape.d_model = shape.d_memory = shape.d_out = d_model;
  shape.dk.assign(static_cast<size_t>(heads), dk);
  shape.dv.assign(static_cast<size_t>(heads), dv);
  shape.kv_dk.assign(static_cast<size_t>(kv_heads), dk);
  shape.kv_dv.assign(static_cast<size_t>(kv_heads), dv);
  return shape;
}

absl::StatusOr<std::vector<Count>> CountLayer(const CountShape& shape, const CountWorkload& work,
                                              std::optional<int64_t> kernel_score_bytes) {
  if (absl::Status status = CheckSizes(shape, work); !status.ok()) return status;
  const Widths widths = SumWidths(shape);
  const std::vector<Matrix> matrices = Matrices(shape, work, widths);
  CountList list;
  AddScores(shape, work, &list);
  const Checked with_bias = AddParameters(shape, matrices, &list);
  AddWork(shape, work, widths, matrices, &list);
  AddBytes(shape, work, widths, with_bias, &list);
  if (kernel_score_bytes) {
    list.Add("kernel_score_bytes", *kernel_score_bytes, "byte",
             "scores that the kernel really holds at a time, all threads");
  }
  return list.Take();
}

}  // namespace headwise
