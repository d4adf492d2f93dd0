// SPDX-License-Identifier: Apache-2.0
// A trace for people: the table of stages, index arithmetic, projections side by side.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/learn/trace.h"

namespace headwise::client {
namespace {

using Align = Table::Align;

constexpr size_t kShownValues = 4;
constexpr size_t kShownHeads = 4;  // of a matrix, of many

std::string Numbers(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min(kShownValues, values.size()); ++i) {
    texts.push_back(ShortNumber(values[i]));
  }
  return absl::StrJoin(texts, " ");
}

// "12" or "12-40".
std::string Range(const std::vector<Shape>& shapes, size_t axis) {
  int64_t low = shapes[0][axis], high = low;
  for (const Shape& shape : shapes) {
    low = std::min(low, shape[axis]);
    high = std::max(high, shape[axis]);
  }
  return low == high ? absl::StrCat(low) : absl::StrCat(low, "-", high);
}

// "[1, 3, 4]", or of unequal sequences or heads "24 of [12, 6-40, 6-40]".
std::string ShapesText(const std::vector<Shape>& shapes) {
  if (shapes.empty()) return "none";
  if (shapes.size() == 1) return ShapeToString(shapes[0]);
  std::vector<std::string> axes;
  for (size_t axis = 0; axis < shapes[0].size(); ++axis) axes.push_back(Range(shapes, axis));
  return absl::StrCat(shapes.size(), " of [", absl::StrJoin(axes, ", "), "]");
}

std::string StageTable(const Trace& trace, const Terminal& terminal) {
  Table table({{"tensor"},
               {"how it comes about"},
               {"axes"},
               {"shape"},
               {"dtype"},
               {"size", Align::kRight},
               {"first values"}});
  for (const TraceStage& stage : trace.stages) {
    table.Add({stage.tensor, stage.what, absl::StrJoin(stage.axes, ", "), ShapesText(stage.shapes),
               "F32", HumanBytes(stage.elements * 4), Numbers(stage.first_values)});
  }
  return table.Render(terminal);
}

std::string IndexText(const IndexExample& e) {
  std::string text = absl::StrFormat(
      "How heads lie in memory (sequence 0: T %d, H %d, dk %d)\n"
      "  [T, H*dk] read as [T, H, dk]: q[t, r, f] is column r*%d + f of row t. Nothing moves.\n"
      "    q[%d, %d, %d]: column %d*%d + %d = %d, offset %d*%d + %d = %d, value %s in both forms\n",
      e.tokens, e.heads, e.width, e.width, e.token, e.head, e.feature, e.head, e.width, e.feature,
      e.column, e.token, e.heads * e.width, e.column, e.flat_offset, ShortNumber(e.value));
  absl::StrAppendFormat(
      &text,
      "  Transposed to [H, T, dk], a head's rows follow each other: numbers move.\n"
      "    the same number: offset (%d*%d + %d)*%d + %d = %d\n",
      e.head, e.tokens, e.token, e.width, e.feature, e.transposed_offset);
  if (e.wrong_value != e.value) {
    absl::StrAppendFormat(&text,
                          "  Reshaped to [H, T, dk] without the transpose, that place would hold "
                          "q[%d, %d, %d] = %s:\n"
                          "    token %d of head %d instead of token %d of head %d\n",
                          e.wrong_token, e.wrong_head, e.wrong_feature, ShortNumber(e.wrong_value),
                          e.wrong_token, e.wrong_head, e.token, e.head);
  } else {
    absl::StrAppend(
        &text,
        "  Here a reshape without the transpose finds the same numbers: with one head or "
        "one token nothing\n  tells the two apart.\n");
  }
  absl::StrAppend(&text,
                  "  Back: z [H, T, dv] is transposed to [T, H, dv] and read as [T, H*dv].\n");
  return text;
}

std::string UnequalText(const HeadLayout& layout) {
  std::string text = "How heads lie in memory: they differ in width, so no reshape splits them\n";
  for (int64_t r = 0; r < layout.heads(); ++r) {
    absl::StrAppend(&text, "  head ", layout.head_ids[static_cast<size_t>(r)], ": columns ",
                    layout.q.Text(r), " of q and ", layout.k.Text(layout.kv_head(r)),
                    " of k, columns ", layout.v.Text(layout.kv_head(r)), " of v and ",
                    layout.z.Text(r), " of z\n");
  }
  return text;
}

const HeadColumns& ColumnsOf(const Trace& trace, const std::string& matrix) {
  const HeadLayout& layout = trace.numbers.layout;
  return matrix == "q" ? layout.q : matrix == "k" ? layout.k : layout.v;
}

std::string ProjectionsText(const Trace& trace, const Terminal& terminal) {
  const Projections& projections = trace.projections;
  std::string text;
  if (!projections.heads.empty()) {
    Table table({{"matrix"},
                 {"head", Align::kRight},
                 {"columns"},
                 {"separate, token 0"},
                 {"combined, token 0"},
                 {"largest difference", Align::kRight}});
    double largest = 0.0;
    for (const HeadProjection& head : projections.heads) {
      largest = std::max(largest, head.difference);
      const HeadColumns& columns = ColumnsOf(trace, head.matrix);
      const size_t heads = static_cast<size_t>(columns.heads());
      if (heads > kShownHeads && head.head >= 2) continue;
      table.Add({head.matrix, absl::StrCat(head.head), columns.Text(head.head),
                 Numbers(head.separate), Numbers(head.combined),
                 absl::StrFormat("%.1e", head.difference)});
    }
    text = absl::StrCat(
        "Separate projections (x W^(r), one head at a time, in float64) beside the combined ones "
        "(all heads in one\nproduct, as served in ",
        v1::DType_Name(trace.dtype), ")\n", table.Render(terminal),
        absl::StrFormat("Largest difference of all heads over %d tokens: %.1e\n",
                        projections.tokens, largest));
  }
  if (!projections.left_out.empty()) {
    absl::StrAppend(
        &text, "Not compared with separate projections: ", CleanText(projections.left_out), "\n");
  }
  return text;
}

std::string Heading(const Trace& trace) {
  const Stages& numbers = trace.numbers;
  int64_t tokens = 0;
  for (const int64_t length : numbers.queries) tokens += length;
  const size_t sequences = numbers.queries.size();
  return absl::StrCat(CleanText(trace.layer),
                      trace.version == 0 ? "" : absl::StrCat(" version ", trace.version), ": ",
                      sequences, sequences == 1 ? " sequence, " : " sequences, ", tokens,
                      " tokens; D ", trace.d_model, ", ", numbers.layout.heads(), " query heads, ",
                      numbers.layout.k.heads(), " key/value heads\n\n");
}

}  // namespace

std::string ShortNumber(double value) {
  if (!std::isfinite(value)) return absl::StrFormat("%g", value);
  const double size = std::fabs(value);
  if (size >= 1e5 || (size != 0.0 && size < 5e-5)) return absl::StrFormat("%.3g", value);
  std::string text = absl::StrFormat("%.4f", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string TraceText(const Trace& trace, const Terminal& terminal) {
  std::string text = absl::StrCat(Heading(trace), StageTable(trace, terminal), "\n");
  if (trace.index.has_value()) {
    absl::StrAppend(&text, IndexText(*trace.index));
  } else if (!trace.numbers.layout.q.equal()) {
    absl::StrAppend(&text, UnequalText(trace.numbers.layout));
  }
  const std::string projections = ProjectionsText(trace, terminal);
  absl::StrAppend(&text, projections.empty() ? "" : "\n", projections);
  if (trace.worked) absl::StrAppend(&text, "\n", WorkedText(trace));
  return text;
}

}  // namespace headwise::client
