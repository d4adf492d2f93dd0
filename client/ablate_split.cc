// SPDX-License-Identifier: Apache-2.0
#include "client/ablate_split.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"

namespace headwise::client {
namespace {

using Kind = v1::Intervention;

absl::Status Invalid(absl::string_view field, absl::string_view rule, absl::string_view was) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", rule, "; was ", was));
}

int64_t Sequences(const std::vector<InputPart>& parts) {
  int64_t count = 0;
  for (const InputPart& part : parts) count += static_cast<int64_t>(part.lengths.size());
  return count;
}

int64_t Rows(const InputPart& part) {
  return std::accumulate(part.lengths.begin(), part.lengths.end(), int64_t{0});
}

int64_t Rows(const std::vector<InputPart>& parts) {
  int64_t rows = 0;
  for (const InputPart& part : parts) rows += Rows(part);
  return rows;
}

// The part's sequences that the intervention selects, by their number in the part.
std::vector<uint32_t> Selected(const v1::Intervention& whole, const InputPart& part) {
  std::vector<uint32_t> selected;
  const uint32_t end =
      whole.has_token_end() ? whole.token_end() : std::numeric_limits<uint32_t>::max();
  for (uint32_t s = 0; s < part.lengths.size(); ++s) {
    const uint32_t number = static_cast<uint32_t>(part.first_sequence) + s;
    const auto& named = whole.sequences();
    const bool meant =
        named.empty() || std::find(named.begin(), named.end(), number) != named.end();
    if (meant && whole.token_begin() < std::min(end, part.lengths[s])) selected.push_back(s);
  }
  return selected;
}

// Rows [first, first + count) of a tensor whose first axis has `rows`.
v1::Tensor RowsOf(const v1::Tensor& tensor, int64_t rows, int64_t first, int64_t count) {
  v1::Tensor part;
  part.set_dtype(tensor.dtype());
  *part.mutable_shape() = tensor.shape();
  part.set_shape(0, static_cast<uint32_t>(count));
  const size_t row_bytes = rows == 0 ? 0 : tensor.data().size() / static_cast<size_t>(rows);
  part.set_data(tensor.data().substr(static_cast<size_t>(first) * row_bytes,
                                     static_cast<size_t>(count) * row_bytes));
  return part;
}

// Lets a part see its own sequences of a donor that has one for each of the whole.
void SplitDonor(const InputPart& part, v1::AttentionInput* donor) {
  if (donor->lengths_size() < 2) return;
  int64_t rows = 0, first = 0, count = 0;
  std::vector<uint32_t> lengths;
  for (int s = 0; s < donor->lengths_size(); ++s) {
    const uint32_t length = donor->lengths(s);
    if (s < part.first_sequence) {
      first += length;
    } else if (lengths.size() < part.lengths.size()) {
      count += length;
      lengths.push_back(length);
    }
    rows += length;
  }
  *donor->mutable_x() = RowsOf(donor->x(), rows, first, count);
  donor->mutable_lengths()->Assign(lengths.begin(), lengths.end());
}

// All of it that goes to every part alike.
void ChangeNothing(v1::Intervention* intervention) {
  v1::Intervention nothing;
  nothing.set_kind(Kind::SCALE);
  nothing.set_scale(1.0);
  *nothing.mutable_heads() = intervention->heads();
  *nothing.mutable_groups() = intervention->groups();
  *intervention = std::move(nothing);
}

void ToPart(const InputPart& part, v1::Intervention* intervention) {
  const std::vector<uint32_t> selected = Selected(*intervention, part);
  const bool named = !intervention->sequences().empty();
  std::vector<v1::Edge> edges;
  const int64_t past = part.first_sequence + static_cast<int64_t>(part.lengths.size());
  for (const v1::Edge& edge : intervention->edges()) {
    if (edge.sequence() < part.first_sequence || edge.sequence() >= past) continue;
    edges.push_back(edge);
    edges.back().set_sequence(edge.sequence() - static_cast<uint32_t>(part.first_sequence));
  }
  const bool cut_off = intervention->kind() == Kind::KNOCKOUT && edges.empty();
  if (selected.empty() || cut_off) return ChangeNothing(intervention);
  if (named) intervention->mutable_sequences()->Assign(selected.begin(), selected.end());
  intervention->mutable_edges()->Assign(edges.begin(), edges.end());
  if (intervention->kind() == Kind::REPLACE) {
    *intervention->mutable_tensor() =
        RowsOf(intervention->tensor(), intervention->tensor().shape(0), part.first_row, Rows(part));
  }
  if (intervention->has_donor()) SplitDonor(part, intervention->mutable_donor());
}

absl::Status CheckIntervention(const v1::Intervention& whole, const std::vector<InputPart>& parts) {
  const int64_t sequences = Sequences(parts);
  for (const uint32_t sequence : whole.sequences()) {
    if (sequence < sequences) continue;
    return Invalid("sequences", absl::StrCat("must be in [0, ", sequences, ")"),
                   absl::StrCat(sequence));
  }
  for (const v1::Edge& edge : whole.edges()) {
    if (edge.sequence() < sequences) continue;
    return Invalid("edges", absl::StrCat("sequence must be in [0, ", sequences, ")"),
                   absl::StrCat(edge.sequence()));
  }
  const bool touches = std::any_of(parts.begin(), parts.end(), [&](const InputPart& part) {
    return !Selected(whole, part).empty();
  });
  if (!touches) {
    return Invalid(
        "token range", "must select a token of the inputs",
        absl::StrCat("[", whole.token_begin(), ", ",
                     whole.has_token_end() ? absl::StrCat(whole.token_end()) : "end", ")"));
  }
  const int64_t rows = Rows(parts);
  if (whole.kind() == Kind::REPLACE &&
      (whole.tensor().shape_size() != 2 || whole.tensor().shape(0) != rows)) {
    return Invalid(
        "replace", absl::StrCat("must hold ", rows, " rows, one a token of all inputs"),
        whole.tensor().shape_size() == 2 ? absl::StrCat(whole.tensor().shape(0)) : "another shape");
  }
  const int donors = whole.donor().lengths_size();
  if (donors < 2) return absl::OkStatus();
  const int64_t donated =
      std::accumulate(whole.donor().lengths().begin(), whole.donor().lengths().end(), int64_t{0});
  if (donors != sequences) {
    return Invalid("donor.lengths",
                   absl::StrCat("must be one sequence, or ", sequences, " as of all inputs"),
                   absl::StrCat(donors));
  }
  if (whole.donor().x().shape_size() == 2 && whole.donor().x().shape(0) == donated) {
    return absl::OkStatus();
  }
  return Invalid("donor.x", absl::StrCat("must hold the ", donated, " rows of its lengths"),
                 "others");
}

bool CountsThrough(const v1::Intervention& whole) {
  return whole.token_begin() > 0 || !whole.sequences().empty() || whole.kind() == Kind::REPLACE ||
         whole.kind() == Kind::KNOCKOUT || whole.donor().lengths_size() > 1;
}

}  // namespace

std::vector<InputPart> PartsOf(const std::vector<std::vector<uint32_t>>& lengths) {
  std::vector<InputPart> parts;
  int64_t sequences = 0, rows = 0;
  for (const std::vector<uint32_t>& own : lengths) {
    parts.push_back({own, sequences, rows});
    sequences += static_cast<int64_t>(own.size());
    rows += Rows(parts.back());
  }
  return parts;
}

bool CountsThrough(const v1::AblateRequest& whole) {
  if (CountsThrough(whole.sweep_intervention())) return true;
  for (const v1::Ablation& ablation : whole.ablations()) {
    for (const v1::Intervention& intervention : ablation.interventions()) {
      if (CountsThrough(intervention)) return true;
    }
  }
  return false;
}

absl::Status CheckWhole(const v1::AblateRequest& whole, const std::vector<InputPart>& parts) {
  absl::Status status;
  if (whole.has_sweep_intervention()) status = CheckIntervention(whole.sweep_intervention(), parts);
  for (const v1::Ablation& ablation : whole.ablations()) {
    for (const v1::Intervention& intervention : ablation.interventions()) {
      status.Update(CheckIntervention(intervention, parts));
    }
  }
  return status;
}

v1::AblateRequest RequestForPart(const v1::AblateRequest& whole, const InputPart& part) {
  v1::AblateRequest request = whole;
  if (request.has_sweep_intervention()) ToPart(part, request.mutable_sweep_intervention());
  for (v1::Ablation& ablation : *request.mutable_ablations()) {
    for (v1::Intervention& intervention : *ablation.mutable_interventions()) {
      ToPart(part, &intervention);
    }
  }
  return request;
}

}  // namespace headwise::client
