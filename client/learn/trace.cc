// SPDX-License-Identifier: Apache-2.0
#include "client/learn/trace.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/status.h"

namespace headwise::client {
namespace {

constexpr int64_t kFirstValues = 4;
constexpr int64_t kSmallNumbers = 600;        // printed without being asked
constexpr int64_t kPrintableNumbers = 20000;  // printed where asked
constexpr int64_t kComparedTokens = 256;
constexpr int64_t kFetchedBytes = 256 << 20;  // of weights, without being asked

int64_t Elements(const Shape& shape) { return NumElements(shape).value_or(0); }

// Numbers of a transposed tensor [rows, H, width] -> [H, rows, width], the first few.
std::vector<double> FirstTransposed(const HeadTensor& tensor, int64_t rows) {
  std::vector<double> values;
  const Shape shape = {tensor.columns.heads(), rows, tensor.columns.widths[0]};
  for (int64_t at = 0; at < std::min(kFirstValues, Elements(shape)); ++at) {
    const std::vector<int64_t> index = IndexOf(shape, at);
    values.push_back(tensor.at(index[1], index[0], index[2]));
  }
  return values;
}

std::vector<double> First(const std::vector<double>& values, int64_t limit) {
  const int64_t shown = std::min({kFirstValues, limit, static_cast<int64_t>(values.size())});
  return {values.begin(), values.begin() + shown};
}

// Builds the list; `lengths` of the sequences are T or S.
class StageList {
 public:
  // One row a token: [B, T, width].
  void Tokens(std::string id, std::string what, std::string tensor,
              const std::vector<int64_t>& lengths, int64_t width,
              const std::vector<double>& values) {
    Add(
        std::move(id), std::move(what), std::move(tensor), {"batch", "position", "feature"},
        lengths, [&](int64_t length) { return Shape{length, width}; }, First(values, kFirstValues));
  }

  // The same rows as heads: [B, T, heads, width], or [T, width] of each head.
  void Split(const std::string& id, const std::string& what, const std::string& tensor,
             const std::vector<int64_t>& lengths, const HeadTensor& heads) {
    if (!heads.columns.equal()) return Apart(id, what, tensor, lengths, heads);
    Add(
        id, what, tensor, {"batch", "position", "head", "feature"}, lengths,
        [&](int64_t length) {
          return Shape{length, heads.columns.heads(), heads.columns.widths[0]};
        },
        First(heads.values, kFirstValues));
  }

  // Heads before positions: [B, heads, T, width].
  void Transposed(const std::string& id, const std::string& what, const std::string& tensor,
                  const std::vector<int64_t>& lengths, const HeadTensor& heads) {
    if (!heads.columns.equal()) return;  // they lie apart already
    Add(
        id, what, tensor, {"batch", "head", "position", "feature"}, lengths,
        [&](int64_t length) {
          return Shape{heads.columns.heads(), length, heads.columns.widths[0]};
        },
        lengths.empty() ? std::vector<double>() : FirstTransposed(heads, lengths[0]));
  }

  // [B, H, T, S].
  void Pairs(const std::string& id, const std::string& what, const std::string& tensor,
             const Stages& numbers, const std::vector<std::vector<double>>& pairs) {
    TraceStage stage{id, what, tensor, {"batch", "head", "query", "key"}, {}, 0, {}};
    for (size_t b = 0; b < numbers.queries.size(); ++b) {
      stage.shapes.push_back({numbers.layout.heads(), numbers.queries[b], numbers.keys[b]});
    }
    if (!pairs.empty()) stage.first_values = First(pairs[0], kFirstValues);
    Finish(std::move(stage));
  }

  std::vector<TraceStage> Take() { return std::move(stages_); }

 private:
  template <typename ShapeOfLength>
  void Add(std::string id, std::string what, std::string tensor, std::vector<std::string> axes,
           const std::vector<int64_t>& lengths, const ShapeOfLength& shape_of,
           std::vector<double> first_values) {
    TraceStage stage{
        std::move(id),          std::move(what), std::move(tensor), std::move(axes), {}, 0,
        std::move(first_values)};
    for (const int64_t length : lengths) stage.shapes.push_back(shape_of(length));
    Finish(std::move(stage));
  }

  // Heads of unequal width: [T, width of the head] each.
  void Apart(const std::string& id, const std::string& what, const std::string& tensor,
             const std::vector<int64_t>& lengths, const HeadTensor& heads) {
    TraceStage stage{id, what, tensor, {"head", "position", "feature"}, {}, 0, {}};
    int64_t tokens = 0;
    for (const int64_t length : lengths) tokens += length;
    for (const int64_t width : heads.columns.widths) {
      stage.shapes.push_back({tokens, width});
      stage.elements += tokens * width;
    }
    for (int64_t f = 0; tokens > 0 && f < std::min(kFirstValues, heads.columns.widths[0]); ++f) {
      stage.first_values.push_back(heads.at(0, 0, f));
    }
    stages_.push_back(std::move(stage));
  }

  // Equal sequences become one shape with a batch axis.
  void Finish(TraceStage stage) {
    for (const Shape& shape : stage.shapes) stage.elements += Elements(shape);
    const bool equal = std::all_of(stage.shapes.begin(), stage.shapes.end(),
                                   [&](const Shape& shape) { return shape == stage.shapes[0]; });
    if (equal && !stage.shapes.empty()) {
      Shape whole = stage.shapes[0];
      whole.insert(whole.begin(), static_cast<int64_t>(stage.shapes.size()));
      stage.shapes = {std::move(whole)};
    }
    stages_.push_back(std::move(stage));
  }

  std::vector<TraceStage> stages_;
};

// "x W_q + b_q, then QK-norm, then RoPE".
std::string ProjectionText(const char* matrix, const v1::LayerSpec& spec) {
  std::string text = absl::StrCat("x W_", matrix);
  if (spec.has_clip()) absl::StrAppend(&text, ", clipped");
  if (*matrix == 'v') return text;
  if (spec.has_qk_norm()) absl::StrAppend(&text, ", normed");
  if (spec.has_rope()) absl::StrAppend(&text, ", turned by RoPE");
  return text;
}

std::string ScoreText(const v1::LayerSpec& spec) {
  std::string text = "q k^T * scale";
  if (spec.has_position_bias()) absl::StrAppend(&text, " + position bias");
  if (spec.has_softcap()) absl::StrAppend(&text, ", soft-capped");
  return text;
}

// What stands between a projection and the q, k, v that a forward returns, and can't be undone.
std::string Hindrance(const v1::LayerSpec& spec, const std::string& matrix) {
  if (spec.has_clip()) return "they are clipped";
  if (matrix == "v") return "";
  if (spec.has_qk_norm()) return "they are normed";
  // These multiply q and k by a factor, of the scaling's own where none is given.
  const v1::RopeSpec& rope = spec.rope();
  const bool stretches =
      rope.scaling() == v1::RopeSpec::YARN || rope.scaling() == v1::RopeSpec::LONGROPE;
  if (stretches && !(rope.has_attention_factor() && rope.attention_factor() == 1.0)) {
    return "RoPE stretches them";
  }
  return "";
}

// At position 0 RoPE turns nothing: q and k as they were projected.
v1::AttentionInput AtPositionZero(const v1::AttentionInput& input, const Stages& numbers) {
  const auto zeros = [](const std::vector<int64_t>& lengths) {
    uint32_t tokens = 0;
    for (const int64_t length : lengths) tokens += static_cast<uint32_t>(length);
    v1::Tensor tensor;
    tensor.set_dtype(v1::I32);
    tensor.add_shape(tokens);
    tensor.set_data(std::string(tokens * sizeof(int32_t), '\0'));
    return tensor;
  };
  v1::AttentionInput result = input;
  *result.mutable_positions() = zeros(numbers.queries);
  if (input.has_memory()) *result.mutable_memory_positions() = zeros(numbers.keys);
  return result;
}

HeadProjection CompareHead(const std::string& name, int64_t head, const Matrix& matrix,
                           const std::vector<double>& x, const HeadTensor& combined,
                           int64_t tokens) {
  HeadProjection projection{name, head, {}, {}, 0.0};
  const int64_t begin = combined.columns.begins[static_cast<size_t>(head)];
  const int64_t width = combined.columns.widths[static_cast<size_t>(head)];
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<double> alone = matrix.Apply(x, t, begin, width);
    for (int64_t f = 0; f < width; ++f) {
      const double served = combined.at(t, head, f);
      projection.difference =
          std::max(projection.difference, std::fabs(served - alone[static_cast<size_t>(f)]));
      if (t == 0) projection.combined.push_back(served);
    }
    if (t == 0) projection.separate = std::move(alone);
  }
  return projection;
}

absl::Status CompareProjections(Client* client, const v1::LayerDetails& layer,
                                const v1::AttentionInput& input, Trace* trace) {
  const v1::LayerSpec& spec = layer.spec();
  Stages numbers = trace->numbers;
  if (spec.has_rope() && Hindrance(spec, "q").empty()) {
    CLIENT_ASSIGN_OR_RETURN(numbers,
                            RunStages(client, layer, AtPositionZero(input, trace->numbers), false));
  }
  std::vector<double> memory = trace->x;
  if (input.has_memory()) {
    CLIENT_ASSIGN_OR_RETURN(memory, WireDoubles(input.memory(), "memory"));
  }
  Projections& result = trace->projections;
  const struct {
    const char* name;
    const Matrix& matrix;
    const std::vector<double>& x;
    const HeadTensor& combined;
  } kMatrices[] = {{"q", trace->weights->q, trace->x, numbers.q},
                   {"k", trace->weights->k, memory, numbers.k},
                   {"v", trace->weights->v, memory, numbers.v}};
  std::vector<std::string> left_out;
  for (const auto& [name, matrix, rows, combined] : kMatrices) {
    const std::string hindrance = Hindrance(spec, name);
    if (!hindrance.empty()) {
      left_out.push_back(absl::StrCat(name, " (", hindrance, ")"));
      continue;
    }
    const int64_t tokens = std::min(
        kComparedTokens, static_cast<int64_t>(rows.size()) / std::max<int64_t>(1, matrix.in));
    result.tokens = std::max(result.tokens, tokens);
    for (int64_t head = 0; head < combined.columns.heads(); ++head) {
      result.heads.push_back(CompareHead(name, head, matrix, rows, combined, tokens));
    }
  }
  result.left_out = absl::StrJoin(left_out, ", ");
  return absl::OkStatus();
}

int64_t NumbersOf(const Trace& trace) {
  int64_t sum = 0;
  for (const TraceStage& stage : trace.stages) sum += stage.elements;
  return sum;
}

}  // namespace

std::vector<TraceStage> StagesOf(const Stages& numbers, const std::vector<double>& x,
                                 int64_t d_model, const v1::LayerSpec& spec) {
  const std::vector<int64_t>&queries = numbers.queries, &keys = numbers.keys;
  StageList list;
  list.Tokens("x", "what enters", "x", queries, d_model, x);
  const struct {
    const char* name;
    const std::vector<int64_t>& lengths;
    const HeadTensor& tensor;
  } kProjected[] = {{"q", queries, numbers.q}, {"k", keys, numbers.k}, {"v", keys, numbers.v}};
  for (const auto& [name, lengths, tensor] : kProjected) {
    const std::string id = name;
    list.Tokens(id, ProjectionText(name, spec), id, lengths, tensor.columns.total, tensor.values);
    list.Split(id + "_heads", "read as heads", id, lengths, tensor);
    list.Transposed(id + "_transposed", "heads first", id, lengths, tensor);
  }
  list.Pairs("scores", ScoreText(spec), "scores", numbers, numbers.scores);
  list.Pairs("p", "softmax over the keys that the mask leaves", "p", numbers, numbers.p);
  list.Transposed("z_transposed", spec.gates().empty() ? "p v" : "p v, gated", "z", queries,
                  numbers.z);
  list.Split("z_heads", "positions first", "z", queries, numbers.z);
  list.Tokens("z", "heads read as one row", "z", queries, numbers.z.columns.total,
              numbers.z.values);
  list.Tokens("y", "z W_O", "y", queries, numbers.d_out, numbers.y);
  return list.Take();
}

std::optional<IndexExample> IndexExampleOf(const Stages& numbers) {
  const HeadColumns& columns = numbers.q.columns;
  if (!columns.equal() || numbers.queries.empty() || numbers.queries[0] == 0) return std::nullopt;
  const Shape flat = {numbers.queries[0], columns.heads(), columns.widths[0]};
  const Shape transposed = {flat[1], flat[0], flat[2]};
  std::optional<IndexExample> example;
  // The first number of a later head that another one would be taken for; else the last one.
  for (int64_t place = 0; place < Elements(flat); ++place) {
    const std::vector<int64_t> index = IndexOf(flat, place);
    IndexExample e{.tokens = flat[0], .heads = flat[1], .width = flat[2]};
    e.token = index[0], e.head = index[1], e.feature = index[2];
    e.column = e.head * e.width + e.feature;
    e.flat_offset = OffsetOf({e.tokens, e.heads * e.width}, {e.token, e.column});
    e.transposed_offset = OffsetOf(transposed, {e.head, e.token, e.feature});
    e.value = numbers.q.at(e.token, e.head, e.feature);
    const std::vector<int64_t> wrong = IndexOf(flat, e.transposed_offset);
    e.wrong_token = wrong[0], e.wrong_head = wrong[1], e.wrong_feature = wrong[2];
    e.wrong_value = numbers.q.at(wrong[0], wrong[1], wrong[2]);
    example = e;
    if (e.head > 0 && e.value != 0.0 && e.value != e.wrong_value) break;
  }
  return example;
}

absl::StatusOr<Trace> TraceLayer(Client* client, const std::string& layer,
                                 const v1::AttentionInput& input, const TraceOptions& options) {
  CLIENT_ASSIGN_OR_RETURN(const v1::LayerDetails details, DescribeLayer(client, layer));
  Trace trace;
  trace.layer = details.name();
  trace.version = details.version();
  trace.dtype = details.dtype();
  trace.d_model = details.spec().d_model();
  trace.sinks = details.spec().sinks();
  trace.gates = !details.spec().gates().empty();
  CLIENT_ASSIGN_OR_RETURN(trace.x, WireDoubles(input.x(), "x"));
  CLIENT_ASSIGN_OR_RETURN(trace.numbers, RunStages(client, details, input, false));
  trace.stages = StagesOf(trace.numbers, trace.x, trace.d_model, details.spec());
  const int64_t printed = NumbersOf(trace);
  if (options.worked && printed > kPrintableNumbers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("worked: at most ", Grouped(kPrintableNumbers),
                     " numbers are printed (fewer tokens make fewer); was ", Grouped(printed)));
  }
  trace.worked = options.worked || printed <= kSmallNumbers;
  if (trace.worked) {
    CLIENT_ASSIGN_OR_RETURN(trace.numbers, RunStages(client, details, input, true));
  }
  trace.index = IndexExampleOf(trace.numbers);
  int64_t bytes = 0;
  for (const v1::LayerTensor& tensor : details.tensors()) {
    int64_t elements = 1;
    for (const uint32_t axis : tensor.shape()) elements *= axis;
    bytes += elements * 4;
  }
  if (bytes > kFetchedBytes && !options.separate) {
    trace.projections.left_out =
        absl::StrCat("q, k, v (the weights are ", HumanBytes(bytes), "; --separate fetches them)");
    return trace;
  }
  absl::StatusOr<LayerWeights> weights = FetchWeights(client, details);
  if (!weights.ok()) {
    trace.projections.left_out =
        absl::StrCat("q, k, v (no weights: ", weights.status().message(), ")");
    return trace;
  }
  trace.weights = *std::move(weights);
  CLIENT_RETURN_IF_ERROR(CompareProjections(client, details, input, &trace));
  return trace;
}

}  // namespace headwise::client
