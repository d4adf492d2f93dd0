// SPDX-License-Identifier: Apache-2.0
#include "core/audit/distinguish.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/audit/bounds.h"
#include "core/reference/staged_layer.h"

namespace headwise {
namespace {

constexpr double kClearly = 4.0;  // bounds of both
constexpr double kAmplitudes[] = {1.0, 3.0, 0.5, 8.0};

std::vector<double> Normal(int64_t count, double amplitude, std::mt19937* random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(count));
  // As f32, in which they travel.
  for (double& value : values) {
    value = static_cast<double>(static_cast<float>(amplitude * normal(*random)));
  }
  return values;
}

bool Counts(const std::vector<int64_t>& positions, const std::vector<int64_t>& lengths) {
  size_t at = 0;
  for (const int64_t length : lengths) {
    for (int64_t t = 0; t < length; ++t) {
      if (positions[at++] != t) return false;
    }
  }
  return true;
}

// The lengths may change only where nothing else would have to change with them.
bool IsTied(const AuditCase& right) {
  const ReferenceInput& input = *right.input;
  return input.mask_kind != MaskKind::kUnspecified || !right.gates.empty() || input.own_memory ||
         !Counts(input.positions, input.lengths);
}

ReferenceInput Another(const AuditCase& right, int64_t trial) {
  ReferenceInput input = *right.input;
  std::mt19937 random(static_cast<uint32_t>(trial + 1));
  const double amplitude = kAmplitudes[static_cast<size_t>(trial) % std::size(kAmplitudes)];
  if (!IsTied(right)) {
    const int64_t window = input.window.value_or(0);
    // One short sequence beside a long one, so that padding and windows show.
    input.lengths = {7, std::min<int64_t>(24 + 2 * window, 128)};
    input.memory_lengths = input.lengths;
    input.positions.clear();
    for (const int64_t length : input.lengths) {
      for (int64_t t = 0; t < length; ++t) input.positions.push_back(t);
    }
    input.memory_positions = input.positions;
  }
  const int64_t n = static_cast<int64_t>(input.positions.size());
  input.x = Normal(n * right.spec.d_model, amplitude, &random);
  input.memory = input.x;
  if (input.own_memory) {
    const int64_t m = static_cast<int64_t>(input.memory_positions.size());
    input.memory = Normal(m * right.spec.d_memory, amplitude, &random);
  }
  return input;
}

// The explanation's computation on another input; absent where it has no room there.
std::optional<AuditCase> Again(const AuditCase& right, const AuditExplanation& explanation,
                               const std::shared_ptr<const ReferenceInput>& input) {
  AuditCase c = right;
  c.input = input;
  for (const auto& [mistake, form] : explanation.applied) {
    if (mistake->apply == nullptr) {
      c.plan.order = explanation.computation.plan.order;
    } else if (!mistake->apply(form, &c)) {
      return std::nullopt;
    }
  }
  return c;
}

Bounded YOf(const std::optional<AuditCase>& c, const Numbers& numbers) {
  if (!c.has_value()) return {};
  const StagedLayer layer(c->spec, c->matrices, c->plan, numbers);
  return layer.Run(*c->input, layer.Project(*c->input), {.gates = c->gates}).y;
}

bool Differ(const Bounded& a, const Bounded& b) {
  if (a.value.size() != b.value.size()) return true;
  for (size_t e = 0; e < a.value.size(); ++e) {
    const double bound = kClearly * (a.bound[e] + b.bound[e]);
    if (!CompareElement(a.value[e], b.value[e], bound).agrees()) return true;
  }
  return false;
}

}  // namespace

DistinguishingInput Distinguish(const AuditCase& right,
                                const std::vector<AuditExplanation>& explanations, DType stated) {
  DistinguishingInput best;
  best.note =
      "no input was found that tells these apart: on this layer they may be one computation";
  size_t most = 0;
  const size_t pairs = explanations.size() * (explanations.size() - 1) / 2;
  for (size_t trial = 0; trial < std::size(kAmplitudes) && most < pairs; ++trial) {
    const auto input =
        std::make_shared<const ReferenceInput>(Another(right, static_cast<int64_t>(trial)));
    std::vector<Bounded> ys;
    for (const AuditExplanation& explanation : explanations) {
      ys.push_back(YOf(Again(right, explanation, input), NumbersOf(stated)));
    }
    std::vector<std::string> alike;
    size_t apart = 0;
    for (size_t i = 0; i < ys.size(); ++i) {
      for (size_t j = i + 1; j < ys.size(); ++j) {
        if (Differ(ys[i], ys[j])) {
          ++apart;
        } else {
          alike.push_back(absl::StrCat(absl::StrJoin(explanations[i].mistakes, "+"), " and ",
                                       absl::StrJoin(explanations[j].mistakes, "+")));
        }
      }
    }
    if (apart <= most) continue;
    most = apart;
    best.found = true;
    best.x.assign(input->x.begin(), input->x.end());
    best.lengths = input->lengths;
    best.memory.clear();
    best.memory_lengths.clear();
    if (input->own_memory) {
      best.memory.assign(input->memory.begin(), input->memory.end());
      best.memory_lengths = input->memory_lengths;
    }
    best.note = alike.empty() ? "each explanation gives another y on this input"
                              : absl::StrCat("each explanation gives another y on this input, but ",
                                             absl::StrJoin(alike, ", "));
  }
  return best;
}

}  // namespace headwise
