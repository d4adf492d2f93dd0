// SPDX-License-Identifier: Apache-2.0
// A small layer worked in full: every number that a token passes through, head by head.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/learn/blocks.h"
#include "client/learn/trace.h"

namespace headwise::client {
namespace {

constexpr double kHidden = std::numeric_limits<double>::quiet_NaN();

// One head of one sequence.
class WorkedHead {
 public:
  WorkedHead(const Trace& trace, int64_t sequence, int64_t head)
      : trace_(trace),
        n_(trace.numbers),
        b_(sequence),
        r_(head),
        g_(n_.layout.kv_head(head)),
        t_(n_.queries[static_cast<size_t>(sequence)]),
        s_(n_.keys[static_cast<size_t>(sequence)]),
        first_query_(n_.FirstQuery(sequence)),
        first_key_(n_.FirstKey(sequence)) {}

  std::string Text() const {
    const HeadLayout& layout = n_.layout;
    const std::string id = absl::StrCat(layout.head_ids[static_cast<size_t>(r_)]);
    const bool grouped = layout.k.heads() != layout.heads();
    const std::string q = layout.q.Text(r_), z = layout.z.Text(r_);
    return absl::StrCat(
        "head ", id, ": columns ", q, q == z ? " of q and z" : absl::StrCat(" of q, ", z, " of z"),
        grouped ? absl::StrCat(", key/value head ", g_) : "", ", scale ", ShortNumber(Scale()),
        "\n", Beside(Projections(id)), Beside(Attention()), Beside(Output(id)));
  }

 private:
  double Scale() const { return n_.layout.scale[static_cast<size_t>(r_)]; }
  double Score(int64_t i, int64_t j) const {
    return n_.Pair(n_.scores[static_cast<size_t>(b_)], b_, r_, i, j);
  }
  double Weight(int64_t i, int64_t j) const {
    return n_.Pair(n_.p[static_cast<size_t>(b_)], b_, r_, i, j);
  }
  // Hidden keys have a weight of exactly 0.
  double Visible(int64_t i, int64_t j) const { return Weight(i, j) == 0.0 ? kHidden : Score(i, j); }
  double Exponential(int64_t i, int64_t j) const {
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t k = 0; k < s_; ++k) {
      if (Weight(i, k) != 0.0) largest = std::max(largest, Score(i, k));
    }
    return Weight(i, j) == 0.0 ? kHidden : std::exp(Score(i, j) - largest);
  }

  // W^(r) as it stands in x W^(r): in x width.
  Block WeightBlock(const char* name, const Matrix& matrix, const HeadColumns& columns,
                    int64_t head, const std::string& id) const {
    const int64_t begin = columns.begins[static_cast<size_t>(head)];
    return MatrixBlock(absl::StrCat("W_", name, "^(", id, ")"), matrix.in,
                       columns.widths[static_cast<size_t>(head)], [&](int64_t i, int64_t f) {
                         return matrix.weight[static_cast<size_t>((begin + f) * matrix.in + i)];
                       });
  }
  Block HeadBlock(const std::string& title, const HeadTensor& tensor, int64_t first, int64_t rows,
                  int64_t head) const {
    return MatrixBlock(
        title, rows, tensor.columns.widths[static_cast<size_t>(head)],
        [&, first, head](int64_t t, int64_t f) { return tensor.at(first + t, head, f); });
  }

  std::vector<Block> Projections(const std::string& id) const {
    std::vector<Block> blocks;
    const HeadLayout& layout = n_.layout;
    if (trace_.weights.has_value()) {
      blocks = {WeightBlock("q", trace_.weights->q, layout.q, r_, id),
                WeightBlock("k", trace_.weights->k, layout.k, g_, id),
                WeightBlock("v", trace_.weights->v, layout.v, g_, id)};
    }
    blocks.push_back(HeadBlock("q", n_.q, first_query_, t_, r_));
    blocks.push_back(HeadBlock("k", n_.k, first_key_, s_, g_));
    blocks.push_back(HeadBlock("v", n_.v, first_key_, s_, g_));
    return blocks;
  }

  std::vector<Block> Attention() const {
    const int64_t width = n_.layout.q.widths[static_cast<size_t>(r_)];
    return {MatrixBlock("q k^T", t_, s_,
                        [&](int64_t i, int64_t j) {
                          double sum = 0.0;
                          for (int64_t f = 0; f < width; ++f) {
                            sum +=
                                n_.q.at(first_query_ + i, r_, f) * n_.k.at(first_key_ + j, g_, f);
                          }
                          return sum;
                        }),
            MatrixBlock("scores", t_, s_, [&](int64_t i, int64_t j) { return Score(i, j); }),
            MatrixBlock("visible", t_, s_, [&](int64_t i, int64_t j) { return Visible(i, j); }),
            MatrixBlock("exp(s - max)", t_, s_,
                        [&](int64_t i, int64_t j) { return Exponential(i, j); }),
            MatrixBlock(trace_.sinks ? "sum, no sink" : "sum", t_, 1, [&](int64_t i, int64_t) {
              double sum = 0.0;
              for (int64_t j = 0; j < s_; ++j) {
                if (Weight(i, j) != 0.0) sum += Exponential(i, j);
              }
              return sum;
            })};
  }

  std::vector<Block> Output(const std::string& id) const {
    return {MatrixBlock("p", t_, s_, [&](int64_t i, int64_t j) { return Weight(i, j); }),
            HeadBlock(trace_.gates ? "z = gate p v" : "z = p v", n_.z, first_query_, t_, r_),
            MatrixBlock(absl::StrCat("z W_o^(", id, ")"), t_, n_.d_out, [&](int64_t t, int64_t j) {
              return n_.contributions[static_cast<size_t>(
                  ((first_query_ + t) * n_.layout.heads() + r_) * n_.d_out + j)];
            })};
  }

  const Trace& trace_;
  const Stages& n_;
  const int64_t b_, r_, g_, t_, s_, first_query_, first_key_;
};

}  // namespace

std::string WorkedText(const Trace& trace) {
  const Stages& n = trace.numbers;
  std::string text = "Worked in full (a dot: hidden by the mask)\n";
  for (size_t b = 0; b < n.queries.size(); ++b) {
    const int64_t sequence = static_cast<int64_t>(b);
    const int64_t first = n.FirstQuery(sequence), rows = n.queries[b];
    if (n.queries.size() > 1) absl::StrAppend(&text, "sequence ", b, "\n");
    const auto rows_of = [&](const std::vector<double>& values, int64_t width) {
      return [&values, width, first](int64_t t, int64_t f) {
        return values[static_cast<size_t>((first + t) * width + f)];
      };
    };
    absl::StrAppend(
        &text, Beside({MatrixBlock("x", rows, trace.d_model, rows_of(trace.x, trace.d_model))}));
    for (int64_t head = 0; head < n.layout.heads(); ++head) {
      absl::StrAppend(&text, WorkedHead(trace, sequence, head).Text());
    }
    std::vector<Block> blocks = {MatrixBlock("z, heads side by side", rows, n.z.columns.total,
                                             rows_of(n.z.values, n.z.columns.total))};
    const bool biased = trace.weights.has_value() && !trace.weights->o.bias.empty();
    if (biased) {
      blocks.push_back(MatrixBlock("b_o", 1, n.d_out, [&](int64_t, int64_t j) {
        return trace.weights->o.bias[static_cast<size_t>(j)];
      }));
    }
    blocks.push_back(MatrixBlock(biased ? "y = sum of z W_o^(r) + b_o" : "y = sum of z W_o^(r)",
                                 rows, n.d_out, rows_of(n.y, n.d_out)));
    absl::StrAppend(&text, "all heads\n", Beside(blocks));
  }
  return text;
}

}  // namespace headwise::client
