// SPDX-License-Identifier: Apache-2.0
// A forward taken apart: every stage with its axes, how heads lie in memory, and projections one
// head at a time beside those of all heads at once. Pure functions of the numbers; thread-safe.
#ifndef HEADWISE_CLIENT_LEARN_TRACE_H_
#define HEADWISE_CLIENT_LEARN_TRACE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/learn/layer_numbers.h"
#include "client/report.h"

namespace headwise::client {

// One stage of the forward. Rectangular where all sequences (and heads, where they lie apart) are
// equal: one shape; else one shape for each of them.
struct TraceStage {
  std::string id;      // "q_heads"
  std::string what;    // "split into heads"
  std::string tensor;  // "q"
  std::vector<std::string> axes;
  std::vector<Shape> shapes;
  int64_t elements = 0;              // of all shapes; F32
  std::vector<double> first_values;  // in the order of memory, of the first shape
};

// The same number of the tensor q of sequence 0 found in each of its forms.
struct IndexExample {
  int64_t tokens = 0, heads = 0, width = 0;  // T, H, dk
  int64_t token = 0, head = 0, feature = 0;
  int64_t column = 0;             // of [T, H*dk]
  int64_t flat_offset = 0;        // in [T, H*dk], and in [T, H, dk]
  int64_t transposed_offset = 0;  // in [H, T, dk]
  double value = 0.0;
  // What a reshape to [H, T, dk] without the transpose would hold at this head and token.
  int64_t wrong_token = 0, wrong_head = 0, wrong_feature = 0;
  double wrong_value = 0.0;
};

// Projections of one head: computed alone from its rows of the weight in float64, and as it was
// served, out of the product for all heads.
struct HeadProjection {
  std::string matrix;                      // "q", "k", "v"
  int64_t head = 0;                        // axis place: query head, or key/value head
  std::vector<double> separate, combined;  // [width] of token 0
  double difference = 0.0;                 // largest over the tokens looked at
};

struct Projections {
  std::vector<HeadProjection> heads;
  int64_t tokens = 0;    // looked at, from the first on
  std::string left_out;  // what isn't compared and why; empty: nothing
};

struct Trace {
  std::string layer;
  uint32_t version = 0;       // 0: a layer that was typed, and is gone
  v1::DType dtype = v1::F32;  // of the layer's weights
  int64_t d_model = 0;
  bool sinks = false, gates = false;  // the layer's
  std::vector<double> x;              // [N, D]
  Stages numbers;
  std::vector<TraceStage> stages;
  std::optional<IndexExample> index;  // absent where heads differ in width or nothing is there
  Projections projections;
  std::optional<LayerWeights> weights;
  bool worked = false;  // small, or asked for: the numbers hold contributions
};

struct TraceOptions {
  bool separate = false;  // download the weights however large they are
  bool worked = false;    // every number is wanted, however many
};

// Runs the layer and takes it apart. Errors of Forward; RESOURCE_EXHAUSTED where `worked` asks for
// more numbers than anyone would print. What FetchWeights can't give is said in
// Projections::left_out.
absl::StatusOr<Trace> TraceLayer(Client* client, const std::string& layer,
                                 const v1::AttentionInput& input, const TraceOptions& options);

// The stages of a forward over x of width `d_model`.
std::vector<TraceStage> StagesOf(const Stages& numbers, const std::vector<double>& x,
                                 int64_t d_model, const v1::LayerSpec& spec);
std::optional<IndexExample> IndexExampleOf(const Stages& numbers);

// trace_text.cc, worked_text.cc, trace_json.cc.
std::string TraceText(const Trace& trace, const Terminal& terminal);
std::string WorkedText(const Trace& trace);  // every number, head by head
std::string TraceJson(const Trace& trace);

// A number as people write it: at most four decimals, none that is 0.
std::string ShortNumber(double value);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LEARN_TRACE_H_
