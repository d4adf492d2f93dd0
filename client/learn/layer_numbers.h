// SPDX-License-Identifier: Apache-2.0
// A served layer's numbers for people: the stages of one forward, and its weights.
#ifndef HEADWISE_CLIENT_LEARN_LAYER_NUMBERS_H_
#define HEADWISE_CLIENT_LEARN_LAYER_NUMBERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/learn/axes.h"

namespace headwise::client {

// The settings of a layer that say where heads lie.
struct HeadLayout {
  HeadColumns q, k, v, z;            // q, z of H heads, k, v of G
  std::vector<int64_t> query_to_kv;  // [H]
  std::vector<int64_t> head_ids;     // [H]
  std::vector<double> scale;         // [H] of scores

  int64_t heads() const { return q.heads(); }
  int64_t kv_head(int64_t head) const { return query_to_kv[static_cast<size_t>(head)]; }
};
// Of a spec that a server answered, or one with defaults left out.
HeadLayout LayoutOf(const v1::LayerSpec& spec);

// One forward with every stage, as float64 copies of the answer's numbers.
struct Stages {
  HeadLayout layout;
  std::vector<int64_t> queries, keys;       // [B] T and S
  HeadTensor q, k, v, z;                    // tokens of all sequences, one after the other
  std::vector<std::vector<double>> scores;  // [B] of [H, T, S], before the mask
  std::vector<std::vector<double>> p;       // [B] of [H, T, S]
  std::vector<double> y;                    // [N, d_out]
  std::vector<double> contributions;        // [N, H, d_out], if they were asked for
  int64_t d_out = 0;

  // Element (head, query, key) of one sequence's scores or p.
  double Pair(const std::vector<double>& pairs, int64_t sequence, int64_t head, int64_t query,
              int64_t key) const;
  // First token of a sequence among the queries; among the keys.
  int64_t FirstQuery(int64_t sequence) const;
  int64_t FirstKey(int64_t sequence) const;
};

// Runs the layer over `input`. Errors of Forward; INTERNAL for an answer that doesn't fit.
absl::StatusOr<Stages> RunStages(Client* client, const v1::LayerDetails& layer,
                                 const v1::AttentionInput& input, bool contributions);

// Stages of an answer that holds y, z, q, k, v, p and scores.
absl::StatusOr<Stages> ReadStages(const v1::LayerDetails& layer, const v1::AttentionInput& input,
                                  const v1::ForwardResponse& response);

// The floats of a tensor as it goes over the wire.
absl::StatusOr<std::vector<double>> WireDoubles(const v1::Tensor& tensor, absl::string_view name);
v1::Tensor WireFloats(const std::vector<uint32_t>& shape, const std::vector<float>& values);

// y = x W^T + b.
struct Matrix {
  int64_t out = 0, in = 0;
  std::vector<double> weight;  // [out, in]
  std::vector<double> bias;    // [out]; empty: none

  // Columns begin … begin + width - 1 of the product with row `token` of x [., in].
  std::vector<double> Apply(const std::vector<double>& x, int64_t token, int64_t begin,
                            int64_t width) const;
};

struct LayerWeights {
  Matrix q, k, v, o;
};

// Downloads the layer's own tensors; of a layer with a fused projection, those of a split copy that
// is made for this and taken away. Errors of DownloadLayer and DeriveLayer.
absl::StatusOr<LayerWeights> FetchWeights(Client* client, const v1::LayerDetails& layer);

absl::StatusOr<v1::LayerDetails> DescribeLayer(Client* client, const std::string& name);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LEARN_LAYER_NUMBERS_H_
