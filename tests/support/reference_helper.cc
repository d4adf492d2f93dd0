// SPDX-License-Identifier: Apache-2.0
#include "tests/support/reference_helper.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace headwise {
namespace {

void Append(const std::vector<double>& values, std::vector<double>* out) {
  out->insert(out->end(), values.begin(), values.end());
}

}  // namespace

std::vector<ReferenceSequence> RunReference(const TestLayer& layer, const TestInput& input,
                                            const ReferenceOptions& options) {
  const absl::StatusOr<ReferenceInput> read = ReadReferenceInput(layer.spec, input.get());
  EXPECT_TRUE(read.ok()) << read.status();
  if (!read.ok()) return {};
  return ReferenceLayer(layer.spec, layer.matrices).Run(*read, options);
}

std::map<std::string, std::vector<double>> ReferenceByName(const TestLayer& layer,
                                                           const TestInput& input,
                                                           const ReferenceOptions& options) {
  std::map<std::string, std::vector<double>> named;
  const std::vector<ReferenceSequence> sequences = RunReference(layer, input, options);
  for (size_t b = 0; b < sequences.size(); ++b) {
    const ReferenceSequence& sequence = sequences[b];
    Append(sequence.y, &named["y"]);
    Append(sequence.z, &named["z"]);
    Append(sequence.q, &named["q"]);
    Append(sequence.k, &named["k"]);
    Append(sequence.v, &named["v"]);
    Append(sequence.contributions, &named["contributions"]);
    named[absl::StrCat("p.", b)] = sequence.p;
    named[absl::StrCat("scores.", b)] = sequence.scores;
  }
  return named;
}

}  // namespace headwise
