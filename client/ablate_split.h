// SPDX-License-Identifier: Apache-2.0
// One request on many inputs, as one request on each: sequences, edges and rows that the whole
// counts through are those of the inputs, one after the other.
#ifndef HEADWISE_CLIENT_ABLATE_SPLIT_H_
#define HEADWISE_CLIENT_ABLATE_SPLIT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "headwise/v1/ablation.pb.h"

namespace headwise::client {

// One input among all of them.
struct InputPart {
  std::vector<uint32_t> lengths;  // T of its sequences
  int64_t first_sequence = 0;     // among the sequences of all inputs
  int64_t first_row = 0;          // among their tokens
};

// Parts for the lengths of each input, in order.
std::vector<InputPart> PartsOf(const std::vector<std::vector<uint32_t>>& lengths);

// Whether a request on all inputs says something that differs from input to input.
bool CountsThrough(const v1::AblateRequest& whole);

// What the server can't see input by input: INVALID_ARGUMENT for a sequence or an edge outside all
// inputs, a selection without a token, rows of REPLACE or sequences of DONOR that don't fit.
absl::Status CheckWhole(const v1::AblateRequest& whole, const std::vector<InputPart>& parts);

// `whole` as asked of one input, without the input itself. Where an intervention touches nothing of
// it, SCALE by 1 stands in, which changes no bit. CheckWhole has passed.
v1::AblateRequest RequestForPart(const v1::AblateRequest& whole, const InputPart& part);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_ABLATE_SPLIT_H_
