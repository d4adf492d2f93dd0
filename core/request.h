// SPDX-License-Identifier: Apache-2.0
// What callers ask of an Engine and what they get. Plain values without transport types.
#ifndef HEADWISE_CORE_REQUEST_H_
#define HEADWISE_CORE_REQUEST_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/cancel.h"
#include "core/base/tensor.h"
#include "core/format/effects.h"

namespace headwise {

enum class MaskKind : uint8_t { kUnspecified, kKeep, kDrop, kAdditive };
enum class MaskForm : uint8_t { kByCount, kKey, kPair, kHead };
enum class CausalMode : uint8_t { kLayer, kNone, kTopLeft, kBottomRight };

// A user mask. Element counts are summed over sequences: key [sum S], pair [sum T*S], head
// [sum H*T*S]; KEEP and DROP are BOOL or U8 of 0 and 1, ADDITIVE is F32, BF16 or F16.
struct MaskInput {
  MaskKind kind = MaskKind::kUnspecified;
  MaskForm form = MaskForm::kByCount;
  TensorView tensor;
};

// B sequences packed one after the other. All views point into `owner`, which the engine holds
// until the request is answered.
struct AttentionInput {
  TensorView x;                         // [N, D] or, with `lengths` empty, [B, T, D]
  std::vector<int64_t> lengths;         // T of each sequence; empty: [N, D] is one sequence
  std::optional<TensorView> memory;     // [M, d_memory]
  std::vector<int64_t> memory_lengths;  // S of each sequence, required with a memory of B > 1
  std::optional<MaskInput> mask;
  CausalMode causal = CausalMode::kLayer;
  std::optional<int64_t> window;
  std::optional<TensorView> positions;         // [N] I32 or I64
  std::optional<TensorView> memory_positions;  // [M] I32 or I64
  std::shared_ptr<const void> owner;
};

// Bits of ForwardRequest::outputs.
enum OutputBit : uint32_t {
  kOutputY = 1u << 0,
  kOutputZ = 1u << 1,
  kOutputP = 1u << 2,
  kOutputScores = 1u << 3,
  kOutputQ = 1u << 4,
  kOutputK = 1u << 5,
  kOutputV = 1u << 6,
  kOutputContributions = 1u << 7,
};

// How far a request is.
struct RequestProgress {
  const char* stage = "";  // "queued", then the stages of a pass: "project", "attend", "gram", …
  int64_t done = 0;        // tasks of the stage
  int64_t total = 0;
  int64_t bytes = 0;  // with "queued": what the request holds at its most, beside the layer; else 0
};

// Who asks, until when, and how to call it off.
struct RequestContext {
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<CancelToken> cancel;  // may be null: can't be cancelled
  std::string client;                   // whose share of the server it uses
  int32_t priority = 0;                 // among this client's requests; higher goes first
  // May be empty. Called on the caller's thread once the request is accepted, then on compute
  // threads some twenty times a stage, sometimes from two at once: must be short and thread-safe.
  std::function<void(const RequestProgress&)> progress;
  // Called before the request is queued, on the thread that brings it, with the bytes that its
  // answer will hold at most; anything but OK refuses the request. Empty: there is always room.
  std::function<absl::Status(int64_t bytes)> reserve_answer;
};

struct ForwardRequest {
  std::string layer;
  std::optional<int64_t> expected_version;
  AttentionInput input;
  uint32_t outputs = kOutputY;
  DType y_dtype = DType::kF32;  // of y in the answer: F32, BF16 or F16
  RequestContext context;
};

// A tensor of an answer. F32 unless said; `data` is packed little-endian and can be moved into a
// message as it is.
struct NamedOutput {
  std::string name;  // "y", "z", "p.0", …
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::string> axes;
  std::vector<int64_t> head_ids;  // along the head axis
  std::vector<int64_t> offsets;   // heads of unequal width: first column of each
  std::string data;

  const float* floats() const { return reinterpret_cast<const float*>(data.data()); }
  float* floats() { return reinterpret_cast<float*>(data.data()); }
};

// Bytes of the tensors' data.
inline int64_t DataBytes(const std::vector<NamedOutput>& outputs) {
  int64_t bytes = 0;
  for (const NamedOutput& output : outputs) bytes += static_cast<int64_t>(output.data.size());
  return bytes;
}

// How a request travelled.
struct PassInfo {
  std::string layer;
  int64_t layer_version = 0;
  std::vector<int64_t> lengths;
  int64_t batch_requests = 0;  // requests in the pass
  int64_t batch_tokens = 0;    // query tokens in the pass
  int64_t queue_us = 0;        // from accepted to the start of the pass
  int64_t pack_us = 0;         // of the pass's stage "pack"
  int64_t compute_us = 0;      // of the pass
};

struct ForwardResult {
  PassInfo pass;
  std::vector<NamedOutput> outputs;  // order: y, z, q, k, v, p.*, scores.*, contributions
};

// What replaces z_r. kZero, kScale: a factor. kMean: the mean z_r over the selected valid tokens of
// the request (those that see a key and aren't hidden by a mask of keys), or a given vector.
// kResample: z_r at the same position of another sequence. kDonor: of another input. kReplace:
// given rows. kUniform: the row's own mass spread evenly over the keys that it may see. kKnockout:
// some edges hidden, softmax taken anew.
enum class InterventionKind : uint8_t {
  kZero,
  kScale,
  kMean,
  kResample,
  kDonor,
  kReplace,
  kUniform,
  kKnockout,
};

// A query that may not see a key, by kKnockout.
struct Edge {
  int64_t sequence = 0;
  int64_t query = 0;
  int64_t key = 0;

  auto operator<=>(const Edge&) const = default;
};

// Replaces z_r for the named heads at the selected sequences and query positions.
struct Intervention {
  InterventionKind kind = InterventionKind::kZero;
  std::vector<int64_t> heads;   // ids
  std::vector<int64_t> groups;  // key/value heads: all their query heads
  double scale = 0.0;           // kScale
  int64_t token_begin = 0;      // half-open, per sequence, cut at its end
  std::optional<int64_t> token_end;
  std::vector<int64_t> sequences;  // indices; empty: all
  // kMean [sum dv], kReplace [N, sum dv]: of the named heads in axis order, or of all heads.
  std::optional<TensorView> tensor;
  std::shared_ptr<const AttentionInput> donor;  // kDonor: one sequence, or as many as the request
  std::vector<Edge> edges;                      // kKnockout
  uint32_t seed = 0;                            // kResample
  int64_t draws = 0;                            // kResample; 0: 1
};

struct Ablation {
  std::vector<Intervention> interventions;  // empty: a plain forward
};

enum class SweepKind : uint8_t { kNone, kLeaveOneOut, kKeepOne, kPairs, kCumulative, kPrunePlan };
enum class SweepTarget : uint8_t { kHeads, kGroups };

// What a prune plan is made from, fold by fold. Sums of one request are where the next begins, so
// that many requests make the plan of all their sequences.
struct PruneSums {
  int64_t sequences = 0;  // with tokens; the next such one belongs to fold `sequences` % folds
  int64_t queries = 0;    // tokens
  int64_t keys = 0;
  int64_t pairs = 0;             // sum of T * S
  std::vector<double> products;  // [folds, H, H]: <c_r, c_s> over tokens
  std::vector<double> y_sq;      // [folds]
  std::vector<double> tokens;    // [folds]
  std::vector<double> z;         // [folds, sum dv]: z over tokens
};

struct AblateRequest {
  std::string layer;
  std::optional<int64_t> expected_version;
  AttentionInput input;
  std::vector<Ablation> ablations;  // empty where `sweep` is set
  SweepKind sweep = SweepKind::kNone;
  SweepTarget target = SweepTarget::kHeads;
  Intervention sweep_intervention;  // kind and settings; heads and groups empty
  std::vector<int64_t> order;       // kCumulative: ids; empty: greedy
  int64_t folds = 4;                // kPrunePlan
  // kPrunePlan: sums of earlier requests (of none: empty ones). The answer's plan is that of all
  // sequences so far, without steps while a fold has none.
  std::optional<PruneSums> prune_sums;
  BootstrapOptions bootstrap;
  bool return_y = false;
  bool return_gram = false;
  bool return_means = false;
  bool return_p = false;     // also p, and p under every ablation whose y is returned
  bool return_sums = false;  // also what adds up over requests: means, prune sums
  bool return_all_ablation_y = false;
  std::vector<int64_t> return_ablation_y;  // indices of ablations
  RequestContext context;
};

// Sums that a mean z_r is made from.
struct HeadMeanSums {
  int64_t head = 0;         // id
  int64_t tokens = 0;       // valid and selected
  std::vector<double> sum;  // [dv]
};

struct AblationEffect {
  int64_t index = 0;
  Ablation ablation;           // what was done
  std::vector<int64_t> heads;  // ids of the query heads meant, in axis order
  Effect pooled;               // over all tokens of the request
  std::vector<Effect> per_sequence;
  Effect mean_over_sequences;
  int64_t undefined_sequences = 0;
  std::string undefined_reason;  // empty where all is defined
  EffectIntervals intervals;     // of `pooled`
  DrawSums sums;                 // what the figures are made of: [draws, sequences]
  // With return_sums: of each kMean of the request's own, heads in axis order.
  std::vector<HeadMeanSums> means;
};

struct Interaction {
  std::vector<int64_t> heads;  // ids; of both where groups are meant
  PairSums sums;
};

// ‖y - y'‖ / ‖y‖ on sequences that nothing was fitted to.
struct PruneErrors {
  std::optional<double> ungated, gated, mean_folded, gated_mean_folded;
};

// Heads that stay, with their gates.
struct HeadGate {
  int64_t head = 0;  // id
  double gate = 1.0;
};

struct PruneStep {
  std::vector<int64_t> dropped;  // ids of heads
  PruneErrors errors;
  std::vector<HeadGate> gates;              // fitted without folded means
  std::vector<HeadGate> gates_mean_folded;  // fitted beside them
  bool ridge = false;                       // the least squares were singular somewhere
  int64_t parameters_saved = 0;
  int64_t flops_saved = 0;  // of a dense forward of this request
};

// The mean contribution of a head over the request's tokens: what folding puts into b_o.
struct HeadMean {
  int64_t head = 0;         // id
  std::vector<float> mean;  // [d_out]
};

struct PrunePlan {
  int64_t folds = 0;
  std::vector<int64_t> order;  // ids of heads or groups, fitted to all sequences
  std::vector<PruneStep> steps;
  std::vector<HeadMean> means;
  PruneSums sums;  // of all sequences so far
};

struct AblateResult {
  PassInfo pass;
  int64_t forwards = 1;
  bool from_gram = true;  // all from the sums of one forward, exactly
  double y_l2 = 0.0;
  std::vector<double> y_l2_per_sequence;
  std::vector<AblationEffect> ablations;
  std::vector<Interaction> interactions;  // kPairs
  std::optional<PrunePlan> prune_plan;
  // As asked: y, p.*, ablation.I.y, ablation.I.p.*; gram, b, y_sq; tokens, z_mean, z_tokens.
  std::vector<NamedOutput> outputs;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_REQUEST_H_
