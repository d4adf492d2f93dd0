// SPDX-License-Identifier: Apache-2.0
// `ablate` over many input files.
#ifndef HEADWISE_CLIENT_ABLATE_INPUTS_H_
#define HEADWISE_CLIENT_ABLATE_INPUTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/flags.h"
#include "headwise/v1/ablation.pb.h"

namespace headwise::client {

// The command line once for each file of --input; flags that name what belongs to an input are
// lists too. Usage errors.
absl::StatusOr<std::vector<Args>> SplitInputs(const Args& args);

// The answer as if the files of `inputs` had been one: the same sequences, folds and resamples.
// RESAMPLE alone draws its partners within each file, as it does within each request, and the scope
// says so. One file is in memory at a time; besides, memory grows with the number of sequences.
// Means of the request's own, and greedy orders, take a pass over the files of their own before the
// one that is answered.
absl::StatusOr<v1::AblateResult> AblateInputs(Client* client, const std::vector<Args>& inputs,
                                              v1::AblateRequest request,
                                              const ProgressCallback& progress);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_ABLATE_INPUTS_H_
