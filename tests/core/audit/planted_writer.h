// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_TESTS_CORE_AUDIT_PLANTED_WRITER_H_
#define HEADWISE_TESTS_CORE_AUDIT_PLANTED_WRITER_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tests/core/audit/planted.h"

namespace headwise {

using Table = std::vector<std::vector<double>>;  // rows
using Cube = std::vector<Table>;                 // [heads][rows][features]

// One run of Plant.
class PlantedWriter {
 public:
  PlantedWriter(const TestLayer& layer, const std::string& mistake, Arithmetic arithmetic,
                PlantedEmpty empty);
  Planted Write(const PlantedInput& input);

 private:
  struct Sequence {
    int64_t length = 0, keys = 0, padded = 0;
    int64_t first_key = 0;  // in the packed memory
    bool causal = false, bottom_right = false;
  };
  bool Is(const char* id) const { return mistakes_.count(id) > 0; }
  double Store(double value) const;  // a finished number
  double Sum(double value) const;    // a running sum
  Table ToTable(const std::vector<float>& flat, int64_t width) const;
  Table NormAgain(const Table& rows) const;
  void SpoilWeights(const LayerSpec& spec);
  void Refuse(FusedLayout from, const std::string& to);
  Table Linear(const Table& x, const Table& w, const std::vector<double>& b) const;

  // planted_attention.cc
  Cube ToHeads(const Table& rows, int64_t heads, int64_t width) const;
  void Rope(Cube* heads, int64_t shift) const;
  bool Sees(const PlantedInput& input, const Sequence& s, int64_t query, int64_t key) const;
  double Score(int64_t head, const std::vector<double>& q, const std::vector<double>& k,
               int64_t distance) const;
  Cube Scores(const Cube& q, const Cube& k) const;
  std::vector<double> Weights(const std::vector<double>& scores, const std::vector<bool>& sees,
                              int64_t head) const;
  std::vector<double> Exponentials(const std::vector<double>& scores, const std::vector<bool>& sees,
                                   double extra) const;
  Cube AllWeights(const PlantedInput& input, const Sequence& s, const Cube& scores) const;
  Table Reading(const Table& p, const Table& v, int64_t head) const;
  Cube WithinTokens(const Cube& q, const Cube& k, const Cube& v) const;
  int64_t GroupOf(int64_t head) const;
  Table Join(const Cube& z) const;
  Table Output(const Table& joined, const Table& x) const;
  Table JoinBatch(const std::vector<Cube>& z) const;

  const LayerSpec spec_;
  const Arithmetic arithmetic_;
  const PlantedEmpty empty_;
  std::set<std::string> mistakes_;
  int64_t heads_ = 0, groups_ = 0, dk_ = 0, dv_ = 0;
  Table wq_, wk_, wv_, wo_;
  std::vector<double> bq_, bk_, bv_, bo_, sinks_, norm_, norm_bias_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_CORE_AUDIT_PLANTED_WRITER_H_
