// SPDX-License-Identifier: Apache-2.0
#include "core/ablation/source.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/rules.h"
#include "core/batch/validate.h"

namespace headwise {
namespace {

// Attempts at partners without repetition before repetition is allowed. With equal lengths one
// succeeds more often than every third time.
constexpr int kAttempts = 200;

int64_t Needed(const TokenSelection& selection, int64_t length) {
  return std::min(selection.end, length);
}

uint64_t Below(uint64_t bound, std::mt19937_64* random) {
  return (((*random)() >> 32) * bound) >> 32;
}

bool SameTensor(const std::optional<TensorView>& a, const std::optional<TensorView>& b) {
  if (a.has_value() != b.has_value()) return false;
  return !a.has_value() || (a->data == b->data && a->shape == b->shape && a->dtype == b->dtype);
}

int64_t Rows(const std::vector<int64_t>& lengths) {
  int64_t rows = 0;
  for (const int64_t length : lengths) rows += length;
  return rows;
}

// One attempt: the neediest sequences choose first.
bool TryPartners(const std::vector<std::vector<int64_t>>& candidates, bool repeat,
                 std::vector<int64_t> order, std::mt19937_64* random,
                 std::vector<int64_t>* partners) {
  std::set<int64_t> used;
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[Below(i, random)]);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return candidates[static_cast<size_t>(a)].size() < candidates[static_cast<size_t>(b)].size();
  });
  for (const int64_t s : order) {
    std::vector<int64_t> free;
    for (const int64_t c : candidates[static_cast<size_t>(s)]) {
      if (repeat || !used.contains(c)) free.push_back(c);
    }
    if (free.empty()) return false;
    const int64_t partner = free[Below(free.size(), random)];
    (*partners)[static_cast<size_t>(s)] = partner;
    used.insert(partner);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> DrawPartners(const std::vector<int64_t>& lengths,
                                                  const TokenSelection& selection, uint32_t seed,
                                                  int64_t draw) {
  std::vector<std::vector<int64_t>> candidates(lengths.size());
  std::vector<int64_t> order;
  for (size_t s = 0; s < lengths.size(); ++s) {
    if (!selection.Touches(static_cast<int64_t>(s), lengths[s])) continue;
    order.push_back(static_cast<int64_t>(s));
    const int64_t needed = Needed(selection, lengths[s]);
    for (size_t c = 0; c < lengths.size(); ++c) {
      if (c != s && lengths[c] >= needed) candidates[s].push_back(static_cast<int64_t>(c));
    }
    if (candidates[s].empty()) {
      return Invalid("RESAMPLE",
                     absl::StrCat("must find another sequence of at least ", needed,
                                  " tokens for each one selected"),
                     absl::StrCat("sequence ", s, " without"));
    }
  }
  std::mt19937_64 random((static_cast<uint64_t>(seed) << 32) + static_cast<uint64_t>(draw));
  std::vector<int64_t> partners(lengths.size(), -1);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (TryPartners(candidates, /*repeat=*/false, order, &random, &partners)) return partners;
  }
  TryPartners(candidates, /*repeat=*/true, order, &random, &partners);
  return partners;
}

absl::Status SourceMaker::CheckSettings(const Intervention& intervention) const {
  const InterventionKind kind = intervention.kind;
  if (kind == InterventionKind::kDonor && intervention.donor == nullptr) {
    return Invalid("donor", "must be given for DONOR", "absent");
  }
  if (kind == InterventionKind::kReplace && !intervention.tensor.has_value()) {
    return Invalid("tensor", "must be given for REPLACE", "absent");
  }
  if (kind == InterventionKind::kKnockout && intervention.edges.empty()) {
    return Invalid("edges", "must hold an edge for KNOCKOUT", "none");
  }
  constexpr int64_t kMostDraws = 1000;
  if (intervention.draws < 0 || intervention.draws > kMostDraws) {
    return Invalid("draws", absl::StrCat("must be at most ", kMostDraws),
                   absl::StrCat(intervention.draws));
  }
  return absl::OkStatus();
}

absl::Status SourceMaker::ReadEdges(const Intervention& intervention,
                                    ReplacementSource* source) const {
  source->edges = intervention.edges;
  for (const Edge& edge : source->edges) {
    const bool inside = edge.sequence >= 0 &&
                        edge.sequence < static_cast<int64_t>(lengths_.size()) && edge.query >= 0 &&
                        edge.query < lengths_[static_cast<size_t>(edge.sequence)] && edge.key >= 0;
    if (!inside) {
      return Invalid("edges", "must lie within their sequence (sequence, query, key)",
                     absl::StrCat(edge.sequence, ",", edge.query, ",", edge.key));
    }
  }
  std::sort(source->edges.begin(), source->edges.end());
  return absl::OkStatus();
}

bool SourceMaker::OfAllHeads(const Intervention& intervention) const {
  const int64_t rows = intervention.kind == InterventionKind::kReplace ? Rows(lengths_) : 1;
  return intervention.tensor->elements() == rows * spec_.z_width();
}

size_t SourceMaker::FindOrAdd(const Intervention& intervention,
                              const ResolvedIntervention& resolved, int64_t draw, bool* added) {
  *added = false;
  for (size_t i = 0; i < origins_.size(); ++i) {
    const Origin& other = origins_[i];
    const Intervention& o = other.intervention;
    // A tensor of the named heads only means them alone.
    if (o.kind == intervention.kind && plan_.sources[i].selection == resolved.selection &&
        o.seed == intervention.seed && other.draw == draw && o.donor == intervention.donor &&
        o.edges == intervention.edges && SameTensor(o.tensor, intervention.tensor) &&
        (!o.tensor.has_value() || other.heads == resolved.heads || OfAllHeads(o))) {
      return i;
    }
  }
  *added = true;
  origins_.push_back({intervention, resolved.heads, draw});
  ReplacementSource source;
  source.kind = intervention.kind;
  source.selection = resolved.selection;
  plan_.sources.push_back(std::move(source));
  return origins_.size() - 1;
}

absl::Status SourceMaker::Add(const Intervention& intervention, ResolvedIntervention* resolved) {
  if (absl::Status settings = CheckSettings(intervention); !settings.ok()) return settings;
  const bool resample = intervention.kind == InterventionKind::kResample;
  const int64_t draws = resample ? std::max<int64_t>(1, intervention.draws) : 1;
  for (int64_t draw = 0; draw < draws; ++draw) {
    bool added = false;
    const size_t at = FindOrAdd(intervention, *resolved, draw, &added);
    ReplacementSource& source = plan_.sources[at];
    std::vector<int64_t> heads;
    std::set_union(source.heads.begin(), source.heads.end(), resolved->heads.begin(),
                   resolved->heads.end(), std::back_inserter(heads));
    source.heads = std::move(heads);
    resolved->sources.push_back(at);
    if (!added) continue;
    if (resample) {
      auto partners = DrawPartners(lengths_, source.selection, intervention.seed, draw);
      if (!partners.ok()) return partners.status();
      source.partners = *std::move(partners);
    }
    if (intervention.kind == InterventionKind::kDonor) {
      source.donor = plan_.donors.size();
      plan_.donors.push_back(intervention.donor);
    }
    if (intervention.kind == InterventionKind::kKnockout) {
      if (absl::Status edges = ReadEdges(intervention, &source); !edges.ok()) return edges;
    }
  }
  return absl::OkStatus();
}

// The numbers of the source's heads, from a tensor of them or of all heads.
absl::Status SourceMaker::ReadTensor(size_t at) {
  ReplacementSource& source = plan_.sources[at];
  const TensorView& tensor = *origins_[at].intervention.tensor;
  auto numbers = ToFloats(tensor, "tensor");
  if (!numbers.ok()) return numbers.status();
  const int64_t rows = source.kind == InterventionKind::kReplace ? Rows(lengths_) : 1;
  const int64_t all = spec_.z_width();
  const int64_t count = static_cast<int64_t>(numbers->size());
  if (count == rows * source.width) {
    source.given = *std::move(numbers);
    return absl::OkStatus();
  }
  if (count != rows * all) {
    return Invalid("tensor",
                   absl::StrCat("must hold ", rows, " rows of ", source.width,
                                " (the named heads) or ", all, " (all heads) numbers"),
                   ShapeToString(tensor.shape));
  }
  for (int64_t row = 0; row < rows; ++row) {
    int64_t column = 0;
    for (int64_t r = 0; r < spec_.heads; ++r) {
      const int64_t width = spec_.dv[static_cast<size_t>(r)];
      const auto from = numbers->begin() + row * all + column;
      if (source.columns[static_cast<size_t>(r)] >= 0) {
        source.given.insert(source.given.end(), from, from + width);
      }
      column += width;
    }
  }
  return absl::OkStatus();
}

absl::Status SourceMaker::Finish() {
  plan_.variant_index.assign(plan_.sources.size(),
                             std::vector<int64_t>(static_cast<size_t>(spec_.heads), -1));
  for (size_t i = 0; i < plan_.sources.size(); ++i) {
    ReplacementSource& source = plan_.sources[i];
    source.columns.assign(static_cast<size_t>(spec_.heads), -1);
    for (const int64_t head : source.heads) {
      source.columns[static_cast<size_t>(head)] = source.width;
      source.width += spec_.dv[static_cast<size_t>(head)];
      plan_.variant_index[i][static_cast<size_t>(head)] =
          static_cast<int64_t>(plan_.variants.size());
      plan_.variants.push_back({i, head});
    }
    const bool tensor =
        source.kind == InterventionKind::kMean || source.kind == InterventionKind::kReplace;
    if (!tensor || !origins_[i].intervention.tensor.has_value()) continue;
    if (absl::Status read = ReadTensor(i); !read.ok()) return read;
  }
  return absl::OkStatus();
}

absl::Status ValidateDonors(const LayerSpec& spec, const ValidInput& input, int64_t max_sequences,
                            AblationPlan* plan) {
  for (const ReplacementSource& source : plan->sources) {
    if (source.kind == InterventionKind::kKnockout) {
      for (const Edge& edge : source.edges) {
        if (edge.key < input.keys[static_cast<size_t>(edge.sequence)]) continue;
        return Invalid(
            "edges",
            absl::StrCat("key must be below ", input.keys[static_cast<size_t>(edge.sequence)]),
            absl::StrCat(edge.key));
      }
    }
    if (source.kind != InterventionKind::kDonor) continue;
    auto donor = ValidateInput(spec, *plan->donors[source.donor], max_sequences);
    if (!donor.ok()) {
      return absl::Status(donor.status().code(), absl::StrCat("donor.", donor.status().message()));
    }
    if (donor->has_memory != input.has_memory) {
      return Invalid("donor.memory", "must be given exactly if the input's is",
                     donor->has_memory ? "given" : "absent");
    }
    const size_t count = donor->queries.size();
    if (count != 1 && count != input.queries.size()) {
      return Invalid("donor.lengths",
                     absl::StrCat("must be one sequence, or ", input.queries.size()),
                     absl::StrCat(count));
    }
    for (size_t s = 0; s < input.queries.size(); ++s) {
      if (!source.selection.Touches(static_cast<int64_t>(s), input.queries[s])) continue;
      const int64_t needed = Needed(source.selection, input.queries[s]);
      const int64_t length = donor->queries[count == 1 ? 0 : s];
      if (length >= needed) continue;
      return Invalid("donor.lengths",
                     absl::StrCat("must be at least ", needed, " for sequence ", s),
                     absl::StrCat(length));
    }
    plan->donor_inputs.push_back(std::make_shared<const ValidInput>(*std::move(donor)));
  }
  return absl::OkStatus();
}

}  // namespace headwise
