// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_GRAM_TOTALS_H_
#define HEADWISE_CLIENT_GRAM_TOTALS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "headwise/v1/ablation.pb.h"

namespace headwise::client {

// Adds the sums that `return_gram` asks for up over the sequences of many answers. Memory is that
// of one sequence. Not thread-safe.
class GramTotals {
 public:
  // INTERNAL where the tensors' bytes or shapes don't fit.
  absl::Status Add(const v1::AblateResult& result);

  // gram [H, H], b [H], y_sq [1], tokens [1], z_mean [sum dv] (over the valid tokens of all
  // sequences) and z_tokens [H]; nothing where no answer had them.
  void AppendTo(v1::AblateResult* result) const;

 private:
  struct Sum {
    v1::NamedTensor form;  // of one sequence, without bytes
    std::vector<double> values;
  };
  absl::Status AddTensor(const v1::NamedTensor& tensor, const std::vector<double>& weights);

  std::map<std::string, Sum> sums_;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_GRAM_TOTALS_H_
