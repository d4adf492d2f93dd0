// SPDX-License-Identifier: Apache-2.0
// Random layers and inputs on which a mistake can be made.
#ifndef HEADWISE_TESTS_CORE_AUDIT_PLANTED_CASE_H_
#define HEADWISE_TESTS_CORE_AUDIT_PLANTED_CASE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/audit/search.h"
#include "tests/core/audit/planted.h"
#include "tests/support/test_input.h"

namespace headwise {

struct PlantedCase {
  TestLayer layer;
  PlantedInput input;

  TestInput ForEngine() const;
  AuditCase Right() const;  // for the search
};

// Grouped or not, causal or not, with RoPE, ALiBi, biases and so on or not, by the seed; with what
// the mistake (or both, with "+") needs. "" needs nothing.
PlantedCase MakePlantedCase(const std::string& mistake, uint32_t seed);

std::vector<double> Doubles(const std::vector<float>& values);

// y alone, or with all stages.
TheirTensors Theirs(const Planted& planted, bool all_stages = false);

// Whether `id` is among the explanations, alone.
bool Names(const SearchResult& result, const std::string& id);
// "verdict: id, id+id", for messages.
std::string Describe(const SearchResult& result);

}  // namespace headwise

#endif  // HEADWISE_TESTS_CORE_AUDIT_PLANTED_CASE_H_
