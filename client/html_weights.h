// SPDX-License-Identifier: Apache-2.0
// Attention weights of one sequence as heat maps, one a head.
#ifndef HEADWISE_CLIENT_HTML_WEIGHTS_H_
#define HEADWISE_CLIENT_HTML_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "headwise/v1/headwise.pb.h"

namespace headwise::client {

// p of one sequence, or why it isn't shown.
struct WeightMaps {
  int64_t sequence = 0;
  int64_t queries = 0, keys = 0;
  std::vector<uint32_t> head_ids;  // [H]
  std::vector<float> p;            // [H, T, S]
  std::string absent;              // a sentence; empty where p is there
};

// p of the first sequence of an answer that has tokens and keys. INTERNAL for bytes that don't fit.
absl::StatusOr<WeightMaps> FirstWeights(const v1::ForwardResponse& response);

// Runs a forward for them: of the first sequence with tokens alone where the input allows, else of
// all. A refusal is what `absent` says.
WeightMaps AskForWeights(Client* client, const std::string& layer, const v1::AttentionInput& input);

// The figure "weights". Sequences longer than 48 tokens are shown in blocks of means.
std::string WeightsFigure(const WeightMaps& weights);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_HTML_WEIGHTS_H_
